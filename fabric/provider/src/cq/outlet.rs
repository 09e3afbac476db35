//! The memory of a caller that reads a queue.

use std::ptr;

use libfabric_sys::fi_addr_t;

use super::entry::{Entry, Format};
use crate::ep::limits;

/// The number of a queue in its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueIndex(pub(crate) u16);

impl QueueIndex {
    /// No queue has this number.
    pub(crate) const NONE: Self = Self(limits::QUEUES);
}

/// Where the entries of one queue go while a caller reads it: its completions are written there, and nowhere
/// else before.
#[derive(Debug)]
pub(crate) struct Outlet {
    /// The queue that is read; none where there is no room at all.
    queue: QueueIndex,
    to: *mut u8,
    senders: *mut fi_addr_t,
    /// Entries that may yet be written; without bound where there is no queue.
    room: usize,
    written: usize,
}

impl Outlet {
    /// No caller reads: all completions are kept.
    pub(crate) const fn closed() -> Self {
        Self {
            queue: QueueIndex::NONE,
            to: ptr::null_mut(),
            senders: ptr::null_mut(),
            room: usize::MAX,
            written: 0,
        }
    }

    /// The memory of a caller that reads a queue. One without room is as [`closed`](Self::closed).
    ///
    /// # Safety
    /// At `to` there is room for `room` entries of the queue's format, and at `senders`, if that is not null,
    /// for as many addresses, for as long as this is used.
    #[inline(always)]
    pub(crate) const unsafe fn new(
        queue: QueueIndex,
        to: *mut u8,
        room: usize,
        senders: *mut fi_addr_t,
    ) -> Self {
        if room == 0 {
            return Self::closed();
        }
        Self {
            queue,
            to,
            senders,
            room,
            written: 0,
        }
    }

    /// Whether it belongs to this queue, and has room.
    #[inline(always)]
    pub(crate) fn takes(&self, queue: QueueIndex) -> bool {
        self.queue == queue && self.room != 0
    }

    /// Whether it is of a caller, and full.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.room == 0
    }

    /// Whether no caller reads.
    #[inline(always)]
    pub(crate) fn is_closed(&self) -> bool {
        self.queue == QueueIndex::NONE
    }

    /// Entries that the caller has yet room for.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        if self.is_closed() { 0 } else { self.room }
    }

    /// Entries that were written.
    #[inline]
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    /// Writes an entry, for which [`takes`](Self::takes) has found room.
    #[inline(always)]
    pub(crate) fn put(&mut self, format: Format, entry: &Entry, sender: fi_addr_t) {
        if let Some(to) = self.place(format) {
            // SAFETY: a place for an entry of this format.
            unsafe { format.write(to, entry) };
            if !self.senders.is_null() {
                // SAFETY: there is room for an address for each entry.
                unsafe { self.senders.wrapping_add(self.written).write_unaligned(sender) };
            }
            self.written += 1;
            self.room -= 1;
        }
    }

    /// The place of the next entry in the caller's memory, if there is room.
    #[inline(always)]
    fn place(&self, format: Format) -> Option<*mut u8> {
        // SAFETY: within the caller's memory, as `new` was promised.
        (self.room() != 0).then(|| unsafe { self.to.add(self.written * format.size()) })
    }
}
