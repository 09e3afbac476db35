//! Callers that have not yet proved that they have the key.
//!
//! Each costs memory, and over TCP a descriptor; so their number is limited, in all and per source. When one
//! more arrives, the oldest is dropped: a peer with the key completes the handshake quickly, and one without
//! it cannot keep others out. A source whose handshakes keep failing is rejected for a while.

use std::collections::{BTreeMap, VecDeque};

use doorbell_fabric::time::Time;

use super::connections::LineId;
use super::limits::Limits;

/// Maximum number of sources whose failures are remembered.
const REMEMBERED: usize = 1024;

#[derive(Debug)]
struct Waiting<S> {
    id: LineId,
    source: Option<S>,
}

/// Failures that are not forgotten, at a given time.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    at: Time,
}

/// The guests of a transport, from sources `S`; those without a source share only the total number.
#[derive(Debug)]
pub(super) struct Guests<S> {
    /// The oldest first.
    waiting: VecDeque<Waiting<S>>,
    failures: BTreeMap<S, Failures>,
}

impl<S: Copy + Ord> Guests<S> {
    pub(super) fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            failures: BTreeMap::new(),
        }
    }

    /// Whether calls from a source are served at all.
    pub(super) fn is_accepted(&mut self, now: Time, source: Option<S>, limits: &Limits) -> bool {
        source.is_none_or(|source| self.remembered(now, source, limits) < limits.failures.max(1))
    }

    /// Adds a guest; returns the one to be dropped for it, if any.
    pub(super) fn enter(&mut self, id: LineId, source: Option<S>, limits: &Limits) -> Option<LineId> {
        self.waiting.push_back(Waiting { id, source });
        let same = |other: &Waiting<S>| source.is_some() && other.source == source;
        let crowd = self.waiting.iter().filter(|other| same(other)).count();
        let at = if crowd > limits.guests_each.max(1) {
            self.waiting.iter().position(same)
        } else if self.waiting.len() > limits.guests.max(1) {
            Some(0)
        } else {
            None
        };
        at.and_then(|at| self.waiting.remove(at)).map(|oldest| oldest.id)
    }

    /// Removes a guest that has proved the key or has failed. Returns false if it was not one.
    pub(super) fn leave(&mut self, now: Time, id: LineId, failed: bool, limits: &Limits) -> bool {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id) else {
            return false;
        };
        let source = self.waiting.remove(at).and_then(|waiting| waiting.source);
        if let Some(source) = source.filter(|_| failed) {
            self.failed(now, source, limits);
        }
        true
    }

    /// Records a failed handshake of a source.
    pub(super) fn failed(&mut self, now: Time, source: S, limits: &Limits) {
        let count = self.remembered(now, source, limits) + 1;
        if count == 1 && self.failures.len() >= REMEMBERED {
            let least = self
                .failures
                .iter()
                .min_by_key(|(_, failures)| (failures.count, failures.at));
            if let Some((&least, _)) = least {
                self.failures.remove(&least);
            }
        }
        self.failures.insert(source, Failures { count, at: now });
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of failures that are not forgotten yet.
    fn remembered(&mut self, now: Time, source: S, limits: &Limits) -> u32 {
        let Some(failures) = self.failures.get_mut(&source) else {
            return 0;
        };
        let step = limits.forgive.as_nanos().max(1);
        let forgiven = u32::try_from(now.since(failures.at).as_nanos() / step).unwrap_or(u32::MAX);
        let left = failures.count.saturating_sub(forgiven);
        if left == 0 {
            self.failures.remove(&source);
        } else if forgiven > 0 {
            *failures = Failures { count: left, at: now };
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn limits() -> Limits {
        Limits {
            guests: 4,
            guests_each: 2,
            failures: 3,
            forgive: Duration::from_secs(1),
            ..Limits::default()
        }
    }

    #[test]
    fn the_oldest_goes_first_of_its_own_source_and_then_of_all() {
        let (mut guests, limits) = (Guests::new(), limits());
        for (id, from, gone) in [
            (1, 1, None),
            (2, 2, None),
            (3, 1, None),
            (4, 1, Some(1)),
            (5, 3, None),
            (6, 4, Some(2)),
        ] {
            assert_eq!(
                guests.enter(LineId(id), Some(from), &limits),
                gone.map(LineId),
                "{id}"
            );
        }
        assert_eq!(guests.len(), 4);
        assert!(guests.leave(Time::ZERO, LineId(3), false, &limits));
        assert!(!guests.leave(Time::ZERO, LineId(3), true, &limits), "once");
        // Without a source, only the total number is limited.
        for id in 10..20 {
            let _ = guests.enter(LineId(id), None, &limits);
        }
        assert_eq!(guests.len(), 4);
    }

    #[test]
    fn a_source_that_fails_too_often_is_refused_until_that_is_forgotten() {
        let (mut guests, limits) = (Guests::new(), limits());
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        for id in 0..3 {
            assert!(guests.is_accepted(at(0), Some(1), &limits));
            guests.enter(LineId(id), Some(1), &limits);
            guests.leave(at(0), LineId(id), true, &limits);
        }
        assert!(!guests.is_accepted(at(0), Some(1), &limits));
        assert!(guests.is_accepted(at(0), Some(2), &limits), "others are accepted");
        assert!(
            guests.is_accepted(at(0), None, &limits),
            "and callers without a source always are"
        );
        assert!(guests.is_accepted(at(1), Some(1), &limits));
        assert!(guests.is_accepted(at(9), Some(1), &limits));
        assert!(guests.failures.is_empty(), "failures are forgotten");
    }

    #[test]
    fn memory_of_failures_is_bounded() {
        let (mut guests, limits) = (Guests::new(), limits());
        for source in 0..5000_u32 {
            guests.failed(Time::ZERO, source, &limits);
        }
        assert!(guests.failures.len() <= REMEMBERED);
    }
}
