//! The events of an interface: full events, and counting events (reference: portals, sections 7 and 9).

use super::types::{List, Process};

/// The kinds of full events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// A get has read the entry.
    Get = 0,
    /// An append matched an earlier get.
    GetOverflow = 1,
    /// A put has landed.
    Put = 2,
    /// An append matched an earlier put.
    PutOverflow = 3,
    /// An atomic has been done.
    Atomic = 4,
    /// An append matched an earlier atomic.
    AtomicOverflow = 5,
    /// A fetching atomic or a swap has been done.
    FetchAtomic = 6,
    /// An append matched an earlier one of these.
    FetchAtomicOverflow = 7,
    /// What was read has arrived at the initiator.
    Reply = 8,
    /// What was sent may be changed at the initiator.
    Send = 9,
    /// The target has acknowledged, at the initiator.
    Ack = 10,
    /// A portal table entry was disabled by flow control.
    PtDisabled = 11,
    /// An entry is linked.
    Link = 12,
    /// An entry was unlinked by what it took.
    AutoUnlink = 13,
    /// All headers of an unlinked overflow entry have been consumed.
    AutoFree = 14,
    /// A search has ended.
    Search = 15,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NiFail {
    /// It ended without a failure.
    #[default]
    Ok = 0,
    /// The target cannot be reached, or is gone.
    Undeliverable = 1,
    /// No table entry or list entry took it.
    Dropped = 2,
    /// The table entry is disabled.
    PtDisabled = 3,
    /// The entry is for another user.
    PermViolation = 4,
    /// The entry does not allow it.
    OpViolation = 5,
    /// A search found nothing.
    NoMatch = 6,
    /// Memory that cannot be reached.
    Segv = 7,
}

impl NiFail {
    /// Reads the number on the wire; `None` for a number that means no failure.
    #[must_use]
    pub const fn of_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Ok,
            1 => Self::Undeliverable,
            2 => Self::Dropped,
            3 => Self::PtDisabled,
            4 => Self::PermViolation,
            5 => Self::OpViolation,
            6 => Self::NoMatch,
            7 => Self::Segv,
            _ => return None,
        })
    }
}

/// A full event. Which fields mean something depends on its kind: all of them at the target of an operation;
/// `user_ptr`, `mlength`, `remote_offset` and `fail` at its initiator; `user_ptr`, `pt_index` and `fail` with
/// LINK, AUTO_UNLINK and AUTO_FREE; `pt_index` and `fail` with PT_DISABLED.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind of event.
    pub kind: EventKind,
    /// How it ended.
    pub fail: NiFail,
    /// The list on which the entry was.
    pub list: List,
    /// Where the first byte landed, or was read: an address in this process.
    pub start: usize,
    /// The place as an offset into the entry's memory (of an overflow entry where the header was unexpected).
    /// Not in the C binding; a hardware driver computes it from `start`.
    pub place: u64,
    /// The caller's own.
    pub user_ptr: u64,
    /// The initiator's 64 bits.
    pub hdr_data: u64,
    /// The initiator's match bits.
    pub match_bits: u64,
    /// The requested length in bytes.
    pub rlength: u64,
    /// The number of bytes that were moved.
    pub mlength: u64,
    /// The initiator's offset; at an initiator, the offset that the target used.
    pub remote_offset: u64,
    /// The process of the initiator.
    pub initiator: Process,
    /// The user of the initiator's process.
    pub uid: u32,
    /// Which portal table entry.
    pub pt_index: u32,
    /// The number of the operation, for atomics.
    pub atomic_operation: u8,
    /// The number of the type, for atomics.
    pub atomic_type: u8,
}

/// The result of a poll of an event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EqGet {
    /// The queue is empty.
    Empty,
    /// The oldest event.
    Event(Event),
    /// The oldest remaining event: some before it were overwritten, which is reported once.
    Dropped(Event),
}

/// A counting event's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Operations, or bytes, that ended well.
    pub success: u64,
    /// Operations that did not.
    pub failure: u64,
}

impl Count {
    /// Adds this many successes.
    #[must_use]
    pub const fn success(success: u64) -> Self {
        Self { success, failure: 0 }
    }

    /// Whether a wait for `test` is over: by the sum, as the public header defines it, or by a failure, as in
    /// the reference implementation.
    #[inline]
    #[must_use]
    pub const fn reaches(self, test: u64) -> bool {
        self.success.saturating_add(self.failure) >= test || self.failure != 0
    }

    /// Whether what was triggered at `threshold` fires.
    #[inline]
    #[must_use]
    pub const fn fires(self, threshold: u64) -> bool {
        self.success.saturating_add(self.failure) >= threshold
    }
}
