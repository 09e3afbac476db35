//! The memory of a caller that reads a queue.

use std::ptr;

use libfabric_sys::fi_addr_t;

use super::entry::{Entry, Format};

/// The number of a queue in its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueIndex(pub(crate) u16);

impl QueueIndex {
    /// No queue has this number.
    pub(crate) const NONE: Self = Self(u16::MAX);
}

/// Where the entries of one queue go while a caller reads it: its completions are written there, and nowhere
/// else before.
#[derive(Debug)]
pub(crate) struct Outlet {
    queue: QueueIndex,
    to: *mut u8,
    senders: *mut fi_addr_t,
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
            room: 0,
            written: 0,
        }
    }

    /// The memory of a caller that reads a queue.
    ///
    /// # Safety
    /// At `to` there is room for `room` entries of the queue's format, and at `senders`, if that is not null,
    /// for as many addresses, for as long as this is used.
    pub(crate) const unsafe fn new(
        queue: QueueIndex,
        to: *mut u8,
        room: usize,
        senders: *mut fi_addr_t,
    ) -> Self {
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
        self.queue == queue && self.written < self.room
    }

    /// Whether it is of a caller, and full.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.written == self.room && self.room != 0
    }

    /// Whether it has no room at all.
    #[inline(always)]
    pub(crate) fn is_void(&self) -> bool {
        self.room == 0
    }

    /// Entries that may yet be written.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.room - self.written
    }

    /// Entries that were written.
    #[inline]
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    /// Whether the caller wants to know the senders.
    #[inline]
    pub(crate) fn names_senders(&self) -> bool {
        !self.senders.is_null()
    }

    /// Writes an entry, for which [`takes`](Self::takes) has found room.
    #[inline(always)]
    pub(crate) fn put(&mut self, format: Format, entry: &Entry, sender: fi_addr_t) {
        if let Some(to) = self.place(format) {
            // SAFETY: a place for an entry of this format.
            unsafe { format.write(to, entry) };
            self.name(self.written, sender);
            self.written += 1;
        }
    }

    /// Copies one entry that is written already, for which there is room.
    ///
    /// # Safety
    /// At `entry` is an entry of this format.
    #[inline(always)]
    pub(crate) unsafe fn put_copy(&mut self, format: Format, entry: *const u8, sender: fi_addr_t) {
        if let Some(to) = self.place(format) {
            // SAFETY: a place for an entry of this format; the other one is no memory of the caller's.
            unsafe { format.copy(to, entry) };
            self.name(self.written, sender);
            self.written += 1;
        }
    }

    /// The place of the next entry in the caller's memory, if there is room.
    #[inline(always)]
    fn place(&self, format: Format) -> Option<*mut u8> {
        // SAFETY: within the caller's memory, as `new` was promised.
        (self.written < self.room).then(|| unsafe { self.to.add(self.written * format.size()) })
    }

    /// Copies entries that are written already, and their senders; no more than there is room for.
    pub(crate) fn copy(&mut self, format: Format, entries: *const u8, senders: &[fi_addr_t]) {
        let count = senders.len().min(self.room());
        // SAFETY: within the caller's memory, as `new` was promised.
        let to = unsafe { self.to.add(self.written * format.size()) };
        // SAFETY: `entries` has as many as `senders`, which the ring keeps so; the ring's memory is not the
        // caller's.
        unsafe { ptr::copy_nonoverlapping(entries, to, count * format.size()) };
        if self.names_senders() {
            for (at, sender) in senders.iter().take(count).enumerate() {
                self.name(self.written + at, *sender);
            }
        }
        self.written += count;
    }

    #[inline(always)]
    fn name(&mut self, at: usize, sender: fi_addr_t) {
        if !self.senders.is_null() {
            // SAFETY: `at` is below the room, for which there are addresses if there are any.
            unsafe { self.senders.wrapping_add(at).write_unaligned(sender) };
        }
    }
}
