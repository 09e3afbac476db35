//! Credits: they bound how many messages of a kind an endpoint has in flight. Further ones wait in a bounded
//! queue.

use std::collections::{BTreeMap, VecDeque};

use doorbell_fabric::time::Time;

/// A bounded queue with credits.
#[derive(Debug)]
pub(super) struct Credits<T> {
    depth: usize,
    lent: BTreeMap<u64, Time>,
    first: VecDeque<T>,
    again: VecDeque<T>,
    room: usize,
}

/// Whether a message is sent for the first time or repeated; first ones have priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    First,
    Again,
}

impl<T> Credits<T> {
    pub(super) fn new(depth: u32, room: usize) -> Self {
        Self {
            depth: depth.max(1) as usize,
            lent: BTreeMap::new(),
            first: VecDeque::new(),
            again: VecDeque::new(),
            room,
        }
    }

    /// Queues for a credit; returns false if the queue is full.
    pub(super) fn want(&mut self, what: T, turn: Priority) -> bool {
        if self.waiting() >= self.room {
            return false;
        }
        match turn {
            Priority::First => self.first.push_back(what),
            Priority::Again => self.again.push_back(what),
        }
        true
    }

    /// Returns the next in the queue, if there is a credit for it.
    pub(super) fn next(&mut self) -> Option<T> {
        if self.lent.len() >= self.depth {
            return None;
        }
        self.first.pop_front().or_else(|| self.again.pop_front())
    }

    /// Lends a credit until a given time.
    pub(super) fn lend(&mut self, to: u64, until: Time) {
        self.lent.insert(to, until);
    }

    pub(super) fn back(&mut self, from: u64) {
        self.lent.remove(&from);
    }

    /// Returns the credit that was lent first.
    pub(super) fn back_first(&mut self) {
        self.lent.pop_first();
    }

    /// Takes back the credits whose time is over.
    pub(super) fn collect(&mut self, now: Time) {
        self.lent.retain(|_, until| *until > now);
    }

    /// Returns when the next credit is due back.
    pub(super) fn due(&self) -> Option<Time> {
        self.lent.values().min().copied()
    }

    pub(super) fn waiting(&self) -> usize {
        self.first.len() + self.again.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_lent_and_first_ones_first() {
        let at = Time::from_nanos;
        let mut credits = Credits::new(2, 3);
        assert!(credits.want('a', Priority::Again) && credits.want('b', Priority::First));
        assert!(credits.want('c', Priority::First));
        assert!(!credits.want('d', Priority::First), "the queue is full");
        for (name, until) in [('b', 5), ('c', 3)] {
            assert_eq!(credits.next(), Some(name));
            credits.lend(until, at(until));
        }
        assert_eq!(credits.next(), None, "no credit is left");
        assert_eq!(credits.due(), Some(at(3)));
        credits.collect(at(3));
        assert_eq!((credits.next(), credits.waiting()), (Some('a'), 0));
        credits.back(5);
        assert_eq!(credits.due(), None);
        assert_eq!(
            Credits::<u8>::new(0, 1).depth,
            1,
            "a depth of 0 would block for ever"
        );
    }
}
