//! Deadlines by key: one for each key at most, so that memory grows with what waits and not with how often it was
//! re-booked.

use std::collections::{BTreeMap, BTreeSet};

use doorbell_fabric::time::Time;

/// Who waits until when.
#[derive(Debug)]
pub(super) struct Timers<K> {
    of: BTreeMap<K, Time>,
    order: BTreeSet<(Time, K)>,
}

impl<K: Copy + Ord> Timers<K> {
    pub(super) fn new() -> Self {
        Self {
            of: BTreeMap::new(),
            order: BTreeSet::new(),
        }
    }

    /// Sets the deadline of `key`, whatever it was before. [`Time::NEVER`] clears it.
    pub(super) fn set(&mut self, key: K, at: Time) {
        if at == Time::NEVER {
            return self.clear(key);
        }
        if let Some(before) = self.of.insert(key, at) {
            if before == at {
                return;
            }
            self.order.remove(&(before, key));
        }
        self.order.insert((at, key));
    }

    pub(super) fn clear(&mut self, key: K) {
        if let Some(at) = self.of.remove(&key) {
            self.order.remove(&(at, key));
        }
    }

    /// The first that is due, which then waits no longer.
    pub(super) fn due(&mut self, now: Time) -> Option<K> {
        let &(at, key) = self.order.first()?;
        if at > now {
            return None;
        }
        self.clear(key);
        Some(key)
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.order.first().map(|&(at, _)| at)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.of.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_waits_once_and_in_order() {
        let mut timers = Timers::new();
        let at = Time::from_nanos;
        timers.set('a', at(5));
        timers.set('b', at(3));
        timers.set('a', at(2));
        timers.set('c', at(4));
        timers.clear('c');
        timers.set('b', Time::NEVER);
        timers.set('b', at(9));
        assert_eq!((timers.next(), timers.len()), (Some(at(2)), 2));
        assert_eq!((timers.due(at(1)), timers.due(at(2))), (None, Some('a')));
        assert_eq!(
            (timers.due(at(8)), timers.due(at(9)), timers.due(at(9))),
            (None, Some('b'), None)
        );
        assert_eq!(timers.len(), 0);
    }
}
