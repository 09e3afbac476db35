//! Where the registers are in their blocks, and the numbers of resource types: the reference's sections 2 and
//! 4.
//!
//! Of the model alone: its drivers have definitions of their own, so that a mistake is seen and not shared.

/// Bytes of one instance of a strided resource (2.2).
pub(crate) const STRIDE: usize = 128;

/// Numbers of resource types (2.3).
pub(crate) mod resource {
    pub(crate) const WQ: u8 = 1;
    pub(crate) const RQ: u8 = 2;
    pub(crate) const CQ: u8 = 3;
    pub(crate) const MEM: u8 = 4;
    pub(crate) const INTR_CTRL: u8 = 10;
    pub(crate) const INTR_TABLE: u8 = 11;
    pub(crate) const INTR_PBA: u8 = 12;
    pub(crate) const INTR_PBA_LEGACY: u8 = 13;
    pub(crate) const DEVCMD: u8 = 16;
    pub(crate) const DEVCMD2: u8 = 24;
    pub(crate) const GRPMBR_INTR: u8 = 35;
    /// A number that no enumeration knows.
    pub(crate) const UNKNOWN: u8 = 200;
}

/// What a WQ and an RQ have in common (4.1, 4.2).
pub(crate) mod queue {
    pub(crate) const RING_BASE: usize = 0x00;
    pub(crate) const RING_SIZE: usize = 0x08;
    pub(crate) const POSTED: usize = 0x10;
    pub(crate) const CQ_INDEX: usize = 0x18;
    pub(crate) const ENABLE: usize = 0x20;
    pub(crate) const RUNNING: usize = 0x28;
    pub(crate) const FETCH: usize = 0x30;
}

/// A WQ's registers about errors (4.1).
pub(crate) mod wq {
    pub(crate) const ERROR_INTR_ENABLE: usize = 0x40;
    pub(crate) const ERROR_INTR_OFFSET: usize = 0x48;
    pub(crate) const ERROR_STATUS: usize = 0x50;
}

/// An RQ's registers about errors: not where a WQ has them (4.2).
pub(crate) mod rq {
    pub(crate) const ERROR_INTR_ENABLE: usize = 0x38;
    pub(crate) const ERROR_INTR_OFFSET: usize = 0x40;
    pub(crate) const ERROR_STATUS: usize = 0x48;
}

/// A completion queue (4.3).
pub(crate) mod cq {
    pub(crate) const RING_BASE: usize = 0x00;
    pub(crate) const RING_SIZE: usize = 0x08;
    pub(crate) const FLOW_CONTROL: usize = 0x10;
    pub(crate) const COLOR_ENABLE: usize = 0x18;
    pub(crate) const HEAD: usize = 0x20;
    pub(crate) const TAIL: usize = 0x28;
    pub(crate) const TAIL_COLOR: usize = 0x30;
    pub(crate) const INTR_ENABLE: usize = 0x38;
    pub(crate) const ENTRY_ENABLE: usize = 0x40;
    pub(crate) const MESSAGE_ENABLE: usize = 0x48;
    pub(crate) const INTR_OFFSET: usize = 0x50;
    pub(crate) const MESSAGE_ADDR: usize = 0x58;
}

/// An interrupt's control block (4.4).
pub(crate) mod intr {
    pub(crate) const TIMER: usize = 0x00;
    pub(crate) const TIMER_TYPE: usize = 0x10;
    pub(crate) const MASK_ON_ASSERTION: usize = 0x18;
    pub(crate) const MASK: usize = 0x20;
    pub(crate) const CREDITS: usize = 0x28;
    pub(crate) const CREDIT_RETURN: usize = 0x30;
}

/// The device command block (3.1).
pub(crate) mod devcmd {
    pub(crate) const STATUS: usize = 0x00;
    pub(crate) const CMD: usize = 0x04;
    pub(crate) const ARGS: usize = 0x08;
    pub(crate) const ARG_COUNT: usize = 15;
    pub(crate) const BUSY: u32 = 1;
    pub(crate) const ERROR: u32 = 2;
}

/// The name of a register at an offset of a block of this resource type, for reports.
pub(crate) fn name(kind: u8, at: usize) -> &'static str {
    use self::resource as r;
    let index = at / 8;
    let of = |names: &[&'static str]| names.get(index).copied().unwrap_or("(reserved)");
    match kind {
        r::WQ | r::DEVCMD2 => of(&[
            "ring_base",
            "ring_size",
            "posted_index",
            "cq_index",
            "enable",
            "running",
            "fetch_index",
            "dca_value",
            "error_interrupt_enable",
            "error_interrupt_offset",
            "error_status",
        ]),
        r::RQ => of(&[
            "ring_base",
            "ring_size",
            "posted_index",
            "cq_index",
            "enable",
            "running",
            "fetch_index",
            "error_interrupt_enable",
            "error_interrupt_offset",
            "error_status",
            "tcp_sn",
            "unused",
            "dca_select",
            "dca_value",
            "data_ring",
            "header_split",
        ]),
        r::CQ => of(&[
            "ring_base",
            "ring_size",
            "flow_control_enable",
            "color_enable",
            "cq_head",
            "cq_tail",
            "cq_tail_color",
            "interrupt_enable",
            "cq_entry_enable",
            "cq_message_enable",
            "interrupt_offset",
            "cq_message_addr",
        ]),
        r::INTR_CTRL | r::GRPMBR_INTR => of(&[
            "coalescing_timer",
            "coalescing_value",
            "coalescing_type",
            "mask_on_assertion",
            "mask",
            "int_credits",
            "int_credit_return",
        ]),
        r::DEVCMD if at < devcmd::CMD => "status",
        r::DEVCMD if at < devcmd::ARGS => "cmd",
        r::DEVCMD => "args",
        r::MEM => "mem",
        _ => "(none)",
    }
}
