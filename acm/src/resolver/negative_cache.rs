//! The negative cache: a failed lookup is remembered, longer each time, so that repeated queries for a dead
//! host do not each cause a multicast.

use std::time::Duration;

use doorbell_fabric::time::Time;

use super::entry::Key;
use super::lru::{Lru, Rank};
use crate::status::Status;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FailedLookup {
    pub(super) status: Status,
    pub(super) since: Time,
    pub(super) until: Time,
    lasts: Duration,
}

pub(super) struct NegativeCache(Lru<Key, FailedLookup>);

impl NegativeCache {
    pub(super) fn new(most: usize) -> Self {
        Self(Lru::new(most))
    }

    /// Records another failed lookup.
    pub(super) fn add(&mut self, now: Time, key: Key, status: Status, first: Duration, last: Duration) {
        // After a long time without failures the back-off starts again.
        let before = self.0.get(&key).filter(|old| now.since(old.until) < last);
        let lasts = before.map_or(first, |old| old.lasts * 2).min(last);
        let refusal = FailedLookup {
            status,
            since: now,
            until: now + lasts,
            lasts,
        };
        self.0.insert(key, refusal, Rank::Newest);
    }

    /// Returns the failure that is cached, if it is still valid.
    pub(super) fn get(&self, now: Time, key: &Key) -> Option<FailedLookup> {
        self.0.get(key).copied().filter(|refusal| refusal.until > now)
    }

    /// Removes an entry, when a message of the destination was received.
    pub(super) fn remove(&mut self, key: &Key) {
        self.0.remove(key);
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Key) -> bool) {
        self.0.retain(|key, _| keep(key));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &FailedLookup)> {
        self.0.iter()
    }

    pub(super) fn memory(&self) -> usize {
        self.0.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::resolver::EndpointId;

    #[test]
    fn longer_each_time_and_anew_after_a_while() {
        let second = Duration::from_secs(1);
        let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
        let key = Key {
            endpoint: EndpointId(1),
            address: Address::Lid(1),
        };
        let mut negative_cache = NegativeCache::new(2);
        let mut lasts = |now: u64| {
            negative_cache.add(at(now), key.clone(), Status::TimedOut, second, 4 * second);
            let refusal = negative_cache.get(at(now), &key).unwrap();
            assert_eq!(negative_cache.get(refusal.until, &key), None);
            refusal.until.since(at(now)).as_secs()
        };
        assert_eq!([lasts(0), lasts(1), lasts(3), lasts(7)], [1, 2, 4, 4]);
        assert_eq!(lasts(20), 1, "no query for a long time");
        negative_cache.remove(&key);
        assert_eq!(negative_cache.get(at(20), &key), None);
    }
}
