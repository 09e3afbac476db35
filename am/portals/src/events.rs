//! Event queues: a ring of a fixed number of events, and the reserve for PT_DISABLED (reference: portals,
//! section 7).
//!
//! * Of a full queue without flow control the oldest event is overwritten, which the next read reports once.
//! * PT_DISABLED does not count: there is room for one of each table entry beside the others, and it is never
//!   overwritten.
//! * Where a table entry with flow control posts to a queue, nothing is overwritten: reaching the count
//!   disables the table entries instead. The queue grows for events that come all the same: of operations
//!   that were in progress then, which are as many as peers may have, and of what the program does itself
//!   before it reads (appends, operations that it begins).

use doorbell_fabric::ni::{EqGet, Event, EventKind, List, NiFail, Process};

/// An event with nothing in it.
pub(crate) const BLANK: Event = Event {
    kind: EventKind::Put,
    fail: NiFail::Ok,
    list: List::Priority,
    start: 0,
    place: 0,
    user_ptr: 0,
    hdr_data: 0,
    match_bits: 0,
    rlength: 0,
    mlength: 0,
    remote_offset: 0,
    initiator: Process { nid: 0, pid: 0 },
    uid: 0,
    pt_index: 0,
    atomic_operation: 0,
    atomic_type: 0,
};

/// An event queue.
#[derive(Debug)]
pub(crate) struct EventQueue {
    /// A power of two.
    ring: Vec<Event>,
    /// Number of the oldest event, and of the next one: they grow until the queue is empty.
    first: usize,
    next: usize,
    count: usize,
    /// PT_DISABLED events among those that are queued.
    reserved: usize,
    /// Events that operations in progress will bring.
    promised: usize,
    overwritten: bool,
    /// Table entries with flow control that post to this queue.
    pub(crate) flow: u32,
}

impl EventQueue {
    pub(crate) fn new(count: usize) -> Self {
        let slots = count.saturating_add(2).next_power_of_two();
        Self {
            ring: vec![BLANK; slots],
            first: 0,
            next: 0,
            count,
            reserved: 0,
            promised: 0,
            overwritten: false,
            flow: 0,
        }
    }

    /// Events that count.
    #[inline(always)]
    fn used(&self) -> usize {
        self.next - self.first - self.reserved
    }

    /// Whether there is room for nothing more of what is under flow control.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.used() + self.promised >= self.count
    }

    /// Promises room for one more event that must not be lost.
    #[inline]
    pub(crate) fn promise(&mut self) {
        self.promised += 1;
    }

    /// Ends a promise: the event comes now, or never.
    #[inline]
    pub(crate) fn unpromise(&mut self) {
        self.promised = self.promised.saturating_sub(1);
    }

    /// Queues an event.
    #[inline(always)]
    pub(crate) fn post(&mut self, event: &Event) {
        if self.used() >= self.count {
            self.overwrite();
        }
        self.push(event);
    }

    /// Queues an event of a queue under flow control, which is never lost.
    #[inline]
    pub(crate) fn post_kept(&mut self, event: &Event) {
        self.push(event);
    }

    /// Queues a PT_DISABLED, beside the others.
    pub(crate) fn post_disabled(&mut self, event: &Event) {
        self.reserved += 1;
        self.push(event);
    }

    #[inline(always)]
    fn push(&mut self, event: &Event) {
        if self.next - self.first == self.ring.len() {
            self.grow();
        }
        let at = self.next & (self.ring.len() - 1);
        if let Some(slot) = self.ring.get_mut(at) {
            *slot = *event;
        }
        self.next += 1;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let old = self.ring.len();
        let mut ring = Vec::with_capacity(2 * old);
        ring.extend((self.first..self.next).map(|at| self.ring[at & (old - 1)]));
        ring.resize(2 * old, BLANK);
        (self.first, self.next) = (0, self.next - self.first);
        self.ring = ring;
    }

    /// Forgets the oldest event that is no PT_DISABLED.
    #[cold]
    #[inline(never)]
    fn overwrite(&mut self) {
        let mask = self.ring.len() - 1;
        let oldest = (self.first..self.next).find(|at| self.ring[at & mask].kind != EventKind::PtDisabled);
        let Some(oldest) = oldest else { return };
        for at in (self.first..oldest).rev() {
            self.ring[(at + 1) & mask] = self.ring[at & mask];
        }
        self.first += 1;
        self.overwritten = true;
    }

    /// Events that are queued.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.next - self.first
    }

    /// The oldest event.
    #[inline(always)]
    pub(crate) fn get(&mut self) -> EqGet {
        if self.first == self.next {
            return EqGet::Empty;
        }
        let event = self.ring[self.first & (self.ring.len() - 1)];
        self.first += 1;
        if self.first == self.next {
            // The next one is written where this was: a queue that is read in time stays in a few lines of
            // the nearest cache.
            (self.first, self.next) = (0, 0);
        }
        if event.kind == EventKind::PtDisabled {
            self.reserved -= 1;
        }
        if std::mem::take(&mut self.overwritten) {
            return EqGet::Dropped(event);
        }
        EqGet::Event(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(user_ptr: u64) -> Event {
        Event { user_ptr, ..BLANK }
    }

    fn disabled(pt_index: u32) -> Event {
        Event {
            kind: EventKind::PtDisabled,
            pt_index,
            ..BLANK
        }
    }

    #[test]
    fn a_full_queue_loses_the_oldest_and_reports_it_once() {
        let mut queue = EventQueue::new(3);
        (0..5).for_each(|n| queue.post(&numbered(n)));
        assert_eq!(queue.get(), EqGet::Dropped(numbered(2)));
        assert_eq!(queue.get(), EqGet::Event(numbered(3)));
        assert_eq!(queue.get(), EqGet::Event(numbered(4)));
        assert_eq!(queue.get(), EqGet::Empty);
    }

    #[test]
    fn pt_disabled_counts_nothing_and_is_never_overwritten() {
        let mut queue = EventQueue::new(2);
        queue.post_disabled(&disabled(1));
        (0..2).for_each(|n| queue.post(&numbered(n)));
        queue.post_disabled(&disabled(2));
        queue.post(&numbered(2));
        assert_eq!(queue.get(), EqGet::Dropped(disabled(1)));
        assert_eq!(queue.get(), EqGet::Event(numbered(1)));
        assert_eq!(queue.get(), EqGet::Event(disabled(2)));
        assert_eq!(queue.get(), EqGet::Event(numbered(2)));
        assert_eq!(queue.get(), EqGet::Empty);
    }

    #[test]
    fn what_was_promised_is_kept_beyond_the_count() {
        let mut queue = EventQueue::new(1);
        (0..2).for_each(|_| queue.promise());
        assert!(queue.is_full());
        for n in 0..10 {
            queue.unpromise();
            queue.post_kept(&numbered(n));
        }
        for n in 0..10 {
            assert_eq!(queue.get(), EqGet::Event(numbered(n)));
        }
        assert!(!queue.is_full());
    }

    #[test]
    fn a_queue_of_nothing_keeps_only_the_last() {
        let mut queue = EventQueue::new(1);
        for n in 0..1000 {
            queue.post(&numbered(n));
        }
        assert_eq!(queue.get(), EqGet::Dropped(numbered(999)));
    }
}
