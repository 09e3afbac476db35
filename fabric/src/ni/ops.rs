//! Data movement and triggered operations as values: what a call takes is what a trigger keeps (reference:
//! portals, section 10).

use super::event::Count;
use super::types::{AckReq, AtomicKind, CtHandle, Datatype, Entry, EntryHandle, List, MdHandle, Process};

/// The destination of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The process at the target.
    pub process: Process,
    /// Which entry of its portal table.
    pub pt_index: u32,
    /// What its match entries look at.
    pub match_bits: u64,
    /// Where in the entry, unless that places messages itself.
    pub remote_offset: u64,
}

/// Bytes of a memory descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The descriptor of the memory.
    pub md: MdHandle,
    /// The offset of the first byte.
    pub offset: u64,
}

/// Writes into the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// The source of the bytes.
    pub from: Piece,
    /// The length in bytes.
    pub length: u64,
    /// The requested acknowledgement.
    pub ack: AckReq,
    /// The destination of the bytes.
    pub target: Target,
    /// A number for the events of the initiator.
    pub user_ptr: u64,
    /// A number for the event of the target.
    pub hdr_data: u64,
}

/// Reads the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get {
    /// The destination of the bytes.
    pub into: Piece,
    /// Length in bytes.
    pub length: u64,
    /// The source of the bytes.
    pub target: Target,
    /// A number for the event of the initiator.
    pub user_ptr: u64,
}

/// Combines bytes with those of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// The operands' source and target, as of a put.
    pub put: Put,
    /// The operation to apply.
    pub kind: AtomicKind,
    /// The type of the elements.
    pub datatype: Datatype,
}

/// An atomic that also brings what was there before. With SWAP and its kin the operand decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchAtomic {
    /// Where the old bytes go.
    pub into: Piece,
    /// Where the new ones are.
    pub from: Piece,
    /// Length in bytes.
    pub length: u64,
    /// The memory at the target.
    pub target: Target,
    /// A number for the event of the initiator.
    pub user_ptr: u64,
    /// A number for the event of the target.
    pub hdr_data: u64,
    /// The operation to apply.
    pub kind: AtomicKind,
    /// The type of the elements.
    pub datatype: Datatype,
    /// What CSWAP and its kin compare with, and MSWAP's mask: one element, from the first byte on.
    pub operand: [u8; 32],
}

/// What waits for a counting event.
#[derive(Clone, Debug)]
pub enum Triggered {
    /// Starts a put.
    Put(Put),
    /// Starts a get.
    Get(Get),
    /// Starts an atomic.
    Atomic(Atomic),
    /// A fetching atomic, or a swap.
    FetchAtomic(FetchAtomic),
    /// Adds to a counting event.
    CtInc(CtHandle, Count),
    /// Sets a counting event.
    CtSet(CtHandle, Count),
    /// Appends an entry (an extension). Its handle is returned when the trigger is set.
    Append {
        /// The table entry to append to.
        pt_index: u32,
        /// The entry to append.
        entry: Box<Entry>,
        /// The list to append to.
        list: List,
        /// A number for its events.
        user_ptr: u64,
    },
    /// Unlinks an entry (an extension).
    Unlink(EntryHandle),
}
