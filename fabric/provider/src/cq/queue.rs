//! One completion queue: what has ended and was not read yet, and room for what will end.

use std::ffi::{CStr, c_int};

use libfabric_sys::*;

use super::entry::{Entry, Format};
use super::failure::{Failure, Failures};
use super::outlet::{Outlet, QueueIndex};
use super::ring::Ring;
use crate::bell::Bell;
use crate::errno::{Errno, Result};

/// The number of places where the client leaves the choice to us.
pub(crate) const DEFAULT_SIZE: usize = 1024;
/// Unread entries from which on no call begins that adds one at once, at least: clients post more than the
/// size that they have named.
const UNREAD_AT_LEAST: usize = 256;

/// A completion queue.
///
/// Each operation owns the place of its entry from the moment it is accepted: the places are as many as the
/// unread entries and the operations under way together, so that no end of one finds the queue full.
#[derive(Debug)]
pub(crate) struct Queue {
    index: QueueIndex,
    format: Format,
    ring: Ring,
    /// Operations under way that add an entry when they end.
    owed: usize,
    /// Unread entries, at most, where a call may add one at once.
    unread_most: usize,
    failures: Failures,
    /// Whether the next wait is to end without an entry.
    signalled: bool,
    /// Wakes those that sleep until there is something to read.
    pub(crate) bell: Bell,
}

impl Queue {
    /// Makes a queue of `size` places, or of a default number for zero.
    pub(crate) fn new(index: QueueIndex, format: Format, size: usize, bell: Bell) -> Self {
        let size = if size == 0 { DEFAULT_SIZE } else { size };
        Self {
            index,
            format,
            ring: Ring::new(size.min(1 << 16)),
            owed: 0,
            unread_most: size.max(UNREAD_AT_LEAST),
            failures: Failures::default(),
            signalled: false,
            bell,
        }
    }

    /// Ends the wait that is under way, or the next one.
    pub(crate) fn signal(&mut self) {
        self.signalled = true;
        self.bell.ring_now();
    }

    /// Whether a wait is to end without an entry; true once for each signal.
    pub(crate) fn take_signal(&mut self) -> bool {
        std::mem::take(&mut self.signalled)
    }

    /// Whether there is something to read.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        !self.ring.is_empty() || self.failures.any()
    }

    /// Whether there are as many unread entries and failures as it holds beside those of operations under
    /// way.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.ring.len() + self.failures.len() >= self.unread_most
    }

    /// An operation begins that will add an entry, for which there is a place from now on.
    #[inline(always)]
    pub(crate) fn accept(&mut self) {
        self.owed += 1;
        self.ring.reserve(self.ring.len() + self.owed);
    }

    /// An operation that was accepted will add no entry.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.owed = self.owed.saturating_sub(1);
    }

    /// An operation that was accepted has ended.
    #[inline(always)]
    pub(crate) fn complete(&mut self, outlet: &mut Outlet, entry: &Entry, sender: fi_addr_t) {
        self.owed -= 1;
        self.add(outlet, entry, sender);
    }

    /// Adds an entry to the caller's memory where that reads this queue, else to the queue.
    #[inline(always)]
    pub(crate) fn add(&mut self, outlet: &mut Outlet, entry: &Entry, sender: fi_addr_t) {
        // A queue that is read has been emptied before, so that the order is kept; a failure may have come
        // since.
        if outlet.takes(self.index) && self.ring.is_empty() && !self.failures.any() {
            outlet.put(self.format, entry, sender);
        } else {
            self.push(entry, sender);
        }
    }

    /// Adds an entry to the queue.
    #[inline]
    pub(crate) fn push(&mut self, entry: &Entry, sender: fi_addr_t) {
        self.ring.push(entry, sender);
        self.bell.ring();
    }

    /// Adds a failure.
    #[cold]
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failures.push(self.ring.next(), failure);
        self.bell.ring();
    }

    /// Moves what is there to a caller, oldest first. Returns what the call returns; `None` when there was
    /// nothing.
    #[inline(always)]
    pub(crate) fn read(&mut self, outlet: &mut Outlet) -> Option<Result<isize>> {
        if self.failures.any() {
            return Some(self.read_before_failure(outlet));
        }
        if self.ring.is_empty() {
            return None;
        }
        self.ring.take(self.format, outlet);
        Some(Ok(outlet.written() as isize))
    }

    /// Moves what came before the oldest failure: a buffer for many messages whose failure is read is the
    /// client's again, and no entry of it may follow.
    ///
    /// # Errors
    /// `FI_EAVAIL` when nothing did.
    #[cold]
    fn read_before_failure(&mut self, outlet: &mut Outlet) -> Result<isize> {
        let before = self.failures.next().map_or(0, |next| self.ring.before(next));
        if before == 0 {
            return Err(Errno(FI_EAVAIL));
        }
        self.ring.take_most(before, self.format, outlet);
        Ok(outlet.written() as isize)
    }

    /// What a call returns that has read no entry.
    ///
    /// # Errors
    /// `FI_EAVAIL` when there is a failure to be read, else `FI_EAGAIN`.
    #[inline]
    pub(crate) fn read_nothing(&self) -> Result<isize> {
        Err(Errno(if self.failures.any() { FI_EAVAIL } else { FI_EAGAIN }))
    }

    /// Writes the oldest failure; returns how many.
    ///
    /// # Safety
    /// That of [`Failures::read`].
    ///
    /// # Errors
    /// `FI_EAGAIN` when there is none.
    pub(crate) unsafe fn read_failure(&mut self, level: Level, to: *mut fi_cq_err_entry) -> Result<isize> {
        // SAFETY: the caller keeps the contract.
        match unsafe { self.failures.read(level, to) } {
            true => Ok(1),
            false => Err(Errno(FI_EAGAIN)),
        }
    }

    /// Returns what a `prov_errno` stands for.
    pub(crate) fn text(&self, prov_errno: c_int) -> &CStr {
        self.failures.text(prov_errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: usize) -> Entry {
        Entry {
            op_context: std::ptr::without_provenance_mut(number),
            flags: FI_RECV,
            len: 0,
            buf: std::ptr::null_mut(),
            data: 0,
            tag: 0,
        }
    }

    fn queue(size: usize) -> Queue {
        Queue::new(QueueIndex(3), Format::Context, size, Bell::silent())
    }

    /// Reads what is there, then lets `more` end, as a call does.
    fn read(
        queue: &mut Queue,
        most: usize,
        more: impl FnOnce(&mut Queue, &mut Outlet),
    ) -> Result<Vec<usize>> {
        let mut memory = vec![0_usize; most];
        // SAFETY: the memory has room for `most`.
        let mut outlet = unsafe {
            Outlet::new(
                QueueIndex(3),
                memory.as_mut_ptr().cast(),
                most,
                std::ptr::null_mut(),
            )
        };
        if let Some(read) = queue.read(&mut outlet) {
            read?;
        } else {
            more(queue, &mut outlet);
            if outlet.written() == 0 {
                queue.read_nothing()?;
            }
        }
        memory.truncate(outlet.written());
        Ok(memory)
    }

    #[test]
    fn ten_thousand_accepted_operations_all_find_their_places() {
        let mut queue = queue(100);
        (0..10_000).for_each(|_| queue.accept());
        let places = queue.ring.places();
        assert!(places >= 10_000);
        (0..10_000).for_each(|number| queue.complete(&mut Outlet::closed(), &entry(number), 0));
        assert_eq!(
            queue.ring.places(),
            places,
            "nothing was allocated when they ended"
        );
        let mut next = 0;
        while let Ok(read) = read(&mut queue, 64, |_, _| {}) {
            read.into_iter().for_each(|number| {
                assert_eq!(number, next);
                next += 1;
            });
        }
        assert_eq!((next, queue.owed), (10_000, 0));
    }

    #[test]
    fn what_ends_while_it_is_read_is_written_to_the_caller_and_the_rest_is_kept() {
        let mut queue = queue(16);
        (0..5).for_each(|_| queue.accept());
        let end = |queue: &mut Queue, outlet: &mut Outlet| {
            (0..5).for_each(|number| queue.complete(outlet, &entry(number), 0));
        };
        assert_eq!(read(&mut queue, 3, end), Ok(vec![0, 1, 2]));
        assert_eq!(read(&mut queue, 0, |_, _| panic!("not needed")), Ok(vec![]));
        assert_eq!(read(&mut queue, 3, |_, _| panic!("not needed")), Ok(vec![3, 4]));
        assert_eq!(read(&mut queue, 3, |_, _| {}), Err(Errno(FI_EAGAIN)));
        assert_eq!(read(&mut queue, 0, |_, _| {}), Err(Errno(FI_EAGAIN)));
    }

    #[test]
    fn other_queues_do_not_write_to_the_caller() {
        let mut queue = queue(16);
        queue.accept();
        // SAFETY: nothing is written to another queue's caller.
        let mut outlet = unsafe { Outlet::new(QueueIndex(4), std::ptr::null_mut(), 9, std::ptr::null_mut()) };
        queue.complete(&mut outlet, &entry(1), 0);
        assert_eq!(outlet.written(), 0);
        assert_eq!(read(&mut queue, 3, |_, _| {}), Ok(vec![1]));
    }

    /// A buffer for many messages that was cancelled is the client's again with the failure.
    #[test]
    fn a_failure_comes_in_its_place_and_is_read_by_a_call_of_its_own() {
        let mut queue = queue(16);
        (0..20).for_each(|number| queue.push(&entry(number), 0));
        queue.fail(failed(20));
        // It keeps its place while the queue grows.
        (21..60).for_each(|number| queue.push(&entry(number), 0));
        assert_eq!(read(&mut queue, 3, |_, _| {}), Ok(vec![0, 1, 2]));
        assert_eq!(read(&mut queue, 99, |_, _| {}), Ok((3..20).collect()));
        assert_eq!(read(&mut queue, 3, |_, _| {}), Err(Errno(FI_EAVAIL)));
        let mut failed = fi_cq_err_entry::zeroed();
        // SAFETY: a whole structure.
        assert_eq!(unsafe { queue.read_failure(Level::NEWEST, &mut failed) }, Ok(1));
        assert_eq!((failed.err, failed.op_context.addr()), (FI_ECANCELED, 20));
        // SAFETY: as above.
        let none = unsafe { queue.read_failure(Level::NEWEST, &mut failed) };
        assert_eq!(none, Err(Errno(FI_EAGAIN)));
        assert_eq!(read(&mut queue, 99, |_, _| {}), Ok((21..60).collect()));
    }

    fn failed(number: usize) -> Failure {
        Failure {
            entry: entry(number),
            lost: 0,
            errno: FI_ECANCELED,
            sender: FI_ADDR_NOTAVAIL,
            text: None,
            address: Vec::new(),
        }
    }

    #[test]
    fn entries_do_not_overtake_a_failure_of_the_same_pass() {
        let mut queue = queue(16);
        (0..3).for_each(|_| queue.accept());
        let end = |queue: &mut Queue, outlet: &mut Outlet| {
            queue.complete(outlet, &entry(0), 0);
            queue.release();
            queue.fail(failed(1));
            queue.complete(outlet, &entry(2), 0);
        };
        assert_eq!(read(&mut queue, 3, end), Ok(vec![0]));
        assert_eq!(read(&mut queue, 3, |_, _| {}), Err(Errno(FI_EAVAIL)));
        let mut found = fi_cq_err_entry::zeroed();
        // SAFETY: a whole structure.
        let read_one = unsafe { queue.read_failure(Level::NEWEST, &mut found) };
        assert_eq!(read_one, Ok(1));
        assert_eq!(read(&mut queue, 3, |_, _| {}), Ok(vec![2]));
    }

    #[test]
    fn it_is_full_by_unread_failures_too() {
        let mut queue = queue(300);
        (0..300).for_each(|number| queue.fail(failed(number)));
        assert!(queue.is_full());
    }

    #[test]
    fn it_is_full_by_unread_entries_and_not_by_operations_under_way() {
        let mut queue = queue(300);
        (0..1000).for_each(|_| queue.accept());
        assert!(!queue.is_full());
        (0..300).for_each(|number| queue.push(&entry(number), 0));
        assert!(queue.is_full() && queue.any());
        read(&mut queue, 1, |_, _| {}).unwrap();
        assert!(!queue.is_full());
    }
}
