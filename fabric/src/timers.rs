//! Deadlines by key: at most one for each key, so that memory grows with what waits and not with how often it
//! was rescheduled.
//!
//! For protocols with few timers, of kinds that are not known in advance. Each call is logarithmic in the
//! number of timers, and may allocate; the data path uses `doorbell-hotel` instead, which is constant and
//! does not allocate.
//!
//! ```
//! use doorbell_fabric::time::Time;
//! use doorbell_fabric::timers::Timers;
//!
//! let mut timers = Timers::new();
//! timers.set("answer", Time::from_nanos(5));
//! timers.set("probe", Time::from_nanos(3));
//! timers.set("answer", Time::from_nanos(9)); // in place of the earlier deadline
//! assert_eq!(timers.next(), Some(Time::from_nanos(3)));
//! assert_eq!(timers.due(Time::from_nanos(4)), Some("probe"));
//! assert_eq!(timers.due(Time::from_nanos(4)), None);
//! ```

use std::collections::{BTreeMap, BTreeSet};

use crate::time::Time;

/// Deadlines, each with the key that it is for. Keys of one deadline are due in their own order, the same on
/// every run.
#[derive(Clone, Debug, Default)]
pub struct Timers<K> {
    of: BTreeMap<K, Time>,
    order: BTreeSet<(Time, K)>,
}

impl<K: Copy + Ord> Timers<K> {
    /// Returns timers without deadlines.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            of: BTreeMap::new(),
            order: BTreeSet::new(),
        }
    }

    /// Sets the deadline of `key`, whatever it was before. [`Time::NEVER`] clears it.
    pub fn set(&mut self, key: K, at: Time) {
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

    /// Removes the deadline of `key`, if it has one.
    pub fn clear(&mut self, key: K) {
        if let Some(at) = self.of.remove(&key) {
            self.order.remove(&(at, key));
        }
    }

    /// Removes the first deadline that is due at `now`, and returns its key.
    pub fn due(&mut self, now: Time) -> Option<K> {
        let &(at, key) = self.order.first()?;
        if at > now {
            return None;
        }
        self.clear(key);
        Some(key)
    }

    /// The first deadline.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        self.order.first().map(|&(at, _)| at)
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
        assert_eq!((timers.next(), timers.of.len()), (Some(at(2)), 2));
        assert_eq!((timers.due(at(1)), timers.due(at(2))), (None, Some('a')));
        assert_eq!(
            (timers.due(at(8)), timers.due(at(9)), timers.due(at(9))),
            (None, Some('b'), None)
        );
        assert!(timers.of.is_empty() && timers.order.is_empty());
    }
}
