//! When each peer is due: a heap, which does not allocate for what is set again and again. A peer's own
//! record has the time that holds; what is in the heap beside it is passed over.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use doorbell_fabric::time::Time;

/// Entries that may be there for each one that holds, before those that do not are removed.
const STALE: usize = 4;

/// Times of peers by their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadlines {
    heap: BinaryHeap<Reverse<(Time, u32)>>,
}

impl Deadlines {
    /// A peer is due then. `holds` is whether an entry is one that its peer waits for, of `peers` peers.
    pub(crate) fn set(&mut self, at: Time, peer: u32, peers: usize, holds: impl Fn(u32, Time) -> bool) {
        if at == Time::NEVER {
            return;
        }
        if self.heap.len() >= STALE * (peers + 1) {
            self.heap.retain(|Reverse((at, peer))| holds(*peer, *at));
        }
        self.heap.push(Reverse((at, peer)));
    }

    /// Takes the first entry that is due. Whether it holds follows from its peer's record.
    pub(crate) fn due(&mut self, now: Time) -> Option<(Time, u32)> {
        let Reverse(first) = *self.heap.peek()?;
        if first.0 > now {
            return None;
        }
        self.heap.pop();
        Some(first)
    }

    /// The time of the first entry. It may be one that does not hold any more.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Entries, those that do not hold included.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_due_in_its_time_and_what_does_not_hold_is_bounded() {
        let mut deadlines = Deadlines::default();
        let at = Time::from_nanos;
        deadlines.set(Time::NEVER, 9, 2, |_, _| true);
        for nanos in (0..1000).rev() {
            deadlines.set(at(nanos), 1, 2, |_, held| held == at(nanos + 1));
            assert!(deadlines.len() <= 3 * STALE);
        }
        assert_eq!(deadlines.next(), Some(at(0)));
        assert_eq!(deadlines.due(at(0)), Some((at(0), 1)));
        assert_eq!(deadlines.due(at(0)), None);
    }
}
