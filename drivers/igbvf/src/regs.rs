//! Unsafe room: the registers of a virtual function, typed. All that is unsafe here is the promise that these
//! structures are made of registers.
//!
//! Source: Intel 82576EB datasheet, revision 2.87, section 9 ("Virtual Function Device" registers); offsets
//! as in Linux's `igbvf/regs.h`. A function sees its own first two queues at the offsets of queues 0 and 1,
//! whichever they are of the adapter.

use doorbell_vfio::Registers;
use memoffset::offset_of;
use volatile_register::{RO, RW, WO};

/// Where the blocks below begin in BAR 0.
pub(crate) const GENERAL: u64 = 0;
pub(crate) const MAILBOX: u64 = 0x800;
pub(crate) const INTERRUPTS: u64 = 0x1520;
pub(crate) const RECEIVE: u64 = 0x2800;
pub(crate) const TRANSMIT: u64 = 0x3800;
/// Bytes from one queue's registers to the next.
pub(crate) const QUEUE_STRIDE: u64 = 0x100;

/// Control and status.
#[repr(C)]
pub(crate) struct General {
    pub(crate) control: RW<u32>,
    _4: RO<u32>,
    pub(crate) status: RO<u32>,
}
const _: () = assert!(offset_of!(General, status) == 0x8);

/// `CTRL`: resets the function's queues and interrupts.
pub(crate) const CONTROL_RESET: u32 = 1 << 26;
/// `STATUS`: full duplex, link up, and the speed in units of its own.
pub(crate) const STATUS_FULL_DUPLEX: u32 = 1;
pub(crate) const STATUS_LINK_UP: u32 = 1 << 1;
pub(crate) const STATUS_SPEED_100: u32 = 1 << 6;
pub(crate) const STATUS_SPEED_1000: u32 = 1 << 7;
/// What a device that is gone reads as.
pub(crate) const GONE: u32 = u32::MAX;

/// The mailbox that the function shares with the physical one.
#[repr(C)]
pub(crate) struct MailboxRegisters {
    pub(crate) memory: [RW<u32>; 16],
    _840: [RO<u32>; 256],
    pub(crate) control: RW<u32>,
}
const _: () = assert!(MAILBOX as usize + offset_of!(MailboxRegisters, control) == 0xc40);

/// Interrupts: bits are vectors, of which the function has three.
#[repr(C)]
pub(crate) struct Interrupts {
    pub(crate) set: WO<u32>,
    pub(crate) mask_set: RW<u32>,
    pub(crate) mask_clear: WO<u32>,
    pub(crate) auto_clear: RW<u32>,
    pub(crate) auto_mask: RW<u32>,
    _1534: [RO<u32>; 19],
    pub(crate) cause: RO<u32>,
    _1584: [RO<u32>; 63],
    pub(crate) throttle: [RW<u32>; 3],
    _168c: [RO<u32>; 29],
    pub(crate) of_queues: RW<u32>,
    _1704: [RO<u32>; 15],
    pub(crate) of_mailbox: RW<u32>,
}
const _: () = assert!(INTERRUPTS as usize + offset_of!(Interrupts, auto_mask) == 0x1530);
const _: () = assert!(INTERRUPTS as usize + offset_of!(Interrupts, cause) == 0x1580);
const _: () = assert!(INTERRUPTS as usize + offset_of!(Interrupts, throttle) == 0x1680);
const _: () = assert!(INTERRUPTS as usize + offset_of!(Interrupts, of_queues) == 0x1700);
const _: () = assert!(INTERRUPTS as usize + offset_of!(Interrupts, of_mailbox) == 0x1740);

/// An entry of `IVAR` counts.
pub(crate) const VECTOR_VALID: u32 = 0x80;

/// A receive queue.
#[repr(C)]
pub(crate) struct ReceiveQueue {
    pub(crate) base_low: RW<u32>,
    pub(crate) base_high: RW<u32>,
    pub(crate) length: RW<u32>,
    /// Split and replication receive control.
    pub(crate) buffers: RW<u32>,
    pub(crate) head: RW<u32>,
    _14: RO<u32>,
    pub(crate) tail: RW<u32>,
    _1c: [RO<u32>; 3],
    pub(crate) control: RW<u32>,
}
const _: () = assert!(offset_of!(ReceiveQueue, tail) == 0x18 && offset_of!(ReceiveQueue, control) == 0x28);

/// `SRRCTL`: one buffer a packet, in units of 1 KiB; drops what finds none, so that no other queue waits for
/// it.
pub(crate) const ONE_BUFFER: u32 = 1 << 25;
pub(crate) const DROPS: u32 = 1 << 31;
/// `RXDCTL`, `TXDCTL`: the queue is on.
pub(crate) const QUEUE_ENABLE: u32 = 1 << 25;

/// A transmit queue.
#[repr(C)]
pub(crate) struct TransmitQueue {
    pub(crate) base_low: RW<u32>,
    pub(crate) base_high: RW<u32>,
    pub(crate) length: RW<u32>,
    _c: RO<u32>,
    pub(crate) head: RW<u32>,
    _14: RO<u32>,
    pub(crate) tail: RW<u32>,
    _1c: [RO<u32>; 3],
    pub(crate) control: RW<u32>,
    _2c: [RO<u32>; 3],
    pub(crate) write_back_low: RW<u32>,
    pub(crate) write_back_high: RW<u32>,
}
const _: () = assert!(offset_of!(TransmitQueue, tail) == 0x18 && offset_of!(TransmitQueue, control) == 0x28);
const _: () = assert!(offset_of!(TransmitQueue, write_back_low) == 0x38);

// SAFETY: `repr(C)`, of cells and arrays of cells alone.
unsafe impl Registers for General {}
// SAFETY: as above.
unsafe impl Registers for MailboxRegisters {}
// SAFETY: as above.
unsafe impl Registers for Interrupts {}
// SAFETY: as above.
unsafe impl Registers for ReceiveQueue {}
// SAFETY: as above.
unsafe impl Registers for TransmitQueue {}
