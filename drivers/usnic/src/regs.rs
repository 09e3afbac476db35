//! Unsafe room: the registers of a vNIC, typed. All that is unsafe here is the promise that these structures
//! are made of registers.
//!
//! Queue registers sit on 8-byte spacing; ring bases and message addresses have 64 bits, all others 32 (the
//! upper half is unused), and a control block has 128 bytes. Where the blocks are, the resource table says
//! ([`Table`](crate::table::Table)).
//!
//! Sources, as the public drivers have them: DPDK `drivers/net/enic/base/vnic_{wq,rq,cq,intr,devcmd}.h`;
//! libfabric `prov/usnic/src/usnic_direct/vnic_{wq,rq,cq,intr,devcmd}.h`; Linux
//! `drivers/net/ethernet/cisco/enic`.

use doorbell_vfio::Registers;
use memoffset::offset_of;
use volatile_register::{RO, RW};

/// Bytes from one control block to the next of its kind.
pub(crate) const STRIDE: u64 = 128;
/// What a device that is gone reads as.
pub(crate) const GONE: u32 = u32::MAX;

/// A work queue: what is sent.
#[repr(C)]
pub(crate) struct WorkQueue {
    pub(crate) ring_base: RW<u64>,
    pub(crate) ring_size: RW<u32>,
    _0c: RO<u32>,
    /// The doorbell: one past the last descriptor that is filled. Also written 64 bits wide, with a prefetch
    /// hint ([`Hinted`]).
    pub(crate) posted: RW<u32>,
    _14: RO<u32>,
    pub(crate) cq_index: RW<u32>,
    _1c: RO<u32>,
    pub(crate) enable: RW<u32>,
    _24: RO<u32>,
    pub(crate) running: RO<u32>,
    _2c: RO<u32>,
    /// What the device fetches next. Written only while the queue is disabled.
    pub(crate) fetch: RW<u32>,
    _34: RO<u32>,
    _dca_value: RW<u32>,
    _3c: RO<u32>,
    pub(crate) error_interrupt_enable: RW<u32>,
    _44: RO<u32>,
    pub(crate) error_interrupt_offset: RW<u32>,
    _4c: RO<u32>,
    pub(crate) error_status: RW<u32>,
    _54: [RO<u32>; 11],
}
const _: () = assert!(size_of::<WorkQueue>() == STRIDE as usize);
const _: () = assert!(offset_of!(WorkQueue, ring_size) == 0x08 && offset_of!(WorkQueue, posted) == 0x10);
const _: () = assert!(offset_of!(WorkQueue, cq_index) == 0x18 && offset_of!(WorkQueue, enable) == 0x20);
const _: () = assert!(offset_of!(WorkQueue, running) == 0x28 && offset_of!(WorkQueue, fetch) == 0x30);
const _: () = assert!(offset_of!(WorkQueue, error_interrupt_enable) == 0x40);
const _: () = assert!(offset_of!(WorkQueue, error_interrupt_offset) == 0x48);
const _: () = assert!(offset_of!(WorkQueue, error_status) == 0x50);

/// The ring of devcmd2 has a work queue's registers.
pub(crate) type CommandRing = WorkQueue;

/// A receive queue. Up to `fetch` as a work queue, then not: no `dca_value` precedes the error
/// registers.
#[repr(C)]
pub(crate) struct ReceiveQueue {
    pub(crate) ring_base: RW<u64>,
    pub(crate) ring_size: RW<u32>,
    _0c: RO<u32>,
    /// The doorbell, 32 bits wide.
    pub(crate) posted: RW<u32>,
    _14: RO<u32>,
    pub(crate) cq_index: RW<u32>,
    _1c: RO<u32>,
    pub(crate) enable: RW<u32>,
    _24: RO<u32>,
    pub(crate) running: RO<u32>,
    _2c: RO<u32>,
    /// Written only while the queue is disabled.
    pub(crate) fetch: RW<u32>,
    _34: RO<u32>,
    pub(crate) error_interrupt_enable: RW<u32>,
    _3c: RO<u32>,
    pub(crate) error_interrupt_offset: RW<u32>,
    _44: RO<u32>,
    pub(crate) error_status: RW<u32>,
    _4c: RO<u32>,
    /// `tcp_sn`, `dropped_packet_count`, the two dca registers: named by the drivers and not used here.
    _50: [RO<u32>; 8],
    /// A second queue that gives continuation buffers; 0: none.
    pub(crate) data_ring: RW<u32>,
    _74: RO<u32>,
    pub(crate) header_split: RW<u32>,
    _7c: RO<u32>,
}
const _: () = assert!(size_of::<ReceiveQueue>() == STRIDE as usize);
const _: () = assert!(offset_of!(ReceiveQueue, posted) == 0x10 && offset_of!(ReceiveQueue, fetch) == 0x30);
const _: () = assert!(offset_of!(ReceiveQueue, error_interrupt_enable) == 0x38);
const _: () = assert!(offset_of!(ReceiveQueue, error_interrupt_offset) == 0x40);
const _: () = assert!(offset_of!(ReceiveQueue, error_status) == 0x48);
const _: () = assert!(offset_of!(ReceiveQueue, data_ring) == 0x70);
const _: () = assert!(offset_of!(ReceiveQueue, header_split) == 0x78);

/// A completion queue. It has no enable bit: it is live when base, size and `entry_enable` are set.
#[repr(C)]
pub(crate) struct CompletionQueue {
    pub(crate) ring_base: RW<u64>,
    pub(crate) ring_size: RW<u32>,
    _0c: RO<u32>,
    pub(crate) flow_control_enable: RW<u32>,
    _14: RO<u32>,
    pub(crate) color_enable: RW<u32>,
    _1c: RO<u32>,
    pub(crate) head: RW<u32>,
    _24: RO<u32>,
    /// Where the device writes next.
    pub(crate) tail: RW<u32>,
    _2c: RO<u32>,
    /// The colour of its first pass.
    pub(crate) tail_color: RW<u32>,
    _34: RO<u32>,
    pub(crate) interrupt_enable: RW<u32>,
    _3c: RO<u32>,
    pub(crate) entry_enable: RW<u32>,
    _44: RO<u32>,
    pub(crate) message_enable: RW<u32>,
    _4c: RO<u32>,
    pub(crate) interrupt_offset: RW<u32>,
    _54: RO<u32>,
    pub(crate) message_address: RW<u64>,
    _60: [RO<u32>; 8],
}
const _: () = assert!(size_of::<CompletionQueue>() == STRIDE as usize);
const _: () = assert!(offset_of!(CompletionQueue, flow_control_enable) == 0x10);
const _: () = assert!(offset_of!(CompletionQueue, color_enable) == 0x18);
const _: () = assert!(offset_of!(CompletionQueue, head) == 0x20 && offset_of!(CompletionQueue, tail) == 0x28);
const _: () = assert!(offset_of!(CompletionQueue, tail_color) == 0x30);
const _: () = assert!(offset_of!(CompletionQueue, interrupt_enable) == 0x38);
const _: () = assert!(offset_of!(CompletionQueue, entry_enable) == 0x40);
const _: () = assert!(offset_of!(CompletionQueue, message_enable) == 0x48);
const _: () = assert!(offset_of!(CompletionQueue, interrupt_offset) == 0x50);
const _: () = assert!(offset_of!(CompletionQueue, message_address) == 0x58);

/// The control block of an interrupt.
#[repr(C)]
pub(crate) struct Interrupt {
    pub(crate) coalescing_timer: RW<u32>,
    _04: RO<u32>,
    pub(crate) coalescing_value: RW<u32>,
    _0c: RO<u32>,
    pub(crate) coalescing_type: RW<u32>,
    _14: RO<u32>,
    pub(crate) mask_on_assertion: RW<u32>,
    _1c: RO<u32>,
    pub(crate) mask: RW<u32>,
    _24: RO<u32>,
    pub(crate) credits: RW<u32>,
    _2c: RO<u32>,
    /// Bits 0 to 15: credits that are given back; bit 16 unmasks; bit 17 restarts the timer.
    pub(crate) credit_return: RW<u32>,
    _34: RO<u32>,
}
const _: () = assert!(offset_of!(Interrupt, coalescing_type) == 0x10);
const _: () = assert!(offset_of!(Interrupt, mask_on_assertion) == 0x18);
const _: () = assert!(offset_of!(Interrupt, mask) == 0x20 && offset_of!(Interrupt, credits) == 0x28);
const _: () = assert!(offset_of!(Interrupt, credit_return) == 0x30);

/// The command block.
#[repr(C)]
pub(crate) struct Commands {
    pub(crate) status: RO<u32>,
    pub(crate) command: RW<u32>,
    pub(crate) arguments: [RW<u64>; ARGUMENTS],
}
const _: () = assert!(size_of::<Commands>() == 128);
const _: () = assert!(offset_of!(Commands, command) == 4 && offset_of!(Commands, arguments) == 8);

/// Arguments of a command.
pub(crate) const ARGUMENTS: usize = 15;
/// Status: a command is under way; it has failed, with its number in the first argument.
pub(crate) const BUSY: u32 = 1;
pub(crate) const ERROR: u32 = 1 << 1;

/// A work queue's doorbell as it is written 64 bits wide.
pub(crate) type Hinted = RW<u64>;

// SAFETY: `repr(C)`, of cells and arrays of cells alone.
unsafe impl Registers for WorkQueue {}
// SAFETY: as above.
unsafe impl Registers for ReceiveQueue {}
// SAFETY: as above.
unsafe impl Registers for CompletionQueue {}
// SAFETY: as above.
unsafe impl Registers for Interrupt {}
// SAFETY: as above.
unsafe impl Registers for Commands {}
