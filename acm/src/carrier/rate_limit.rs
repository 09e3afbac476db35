//! A rate limit per sender: a number of frames per second, and a burst.
//!
//! A sender is an address at one endpoint: a host that claims this address on another link has another limit.
//! It has a slot in a table of fixed size, by a hash that outsiders cannot predict. Two senders in one slot
//! share one limit. Memory does not grow, whatever source addresses a flood claims.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use doorbell_fabric::time::Time;

use super::EndpointId;

/// Number of slots.
const PLACES: usize = 4096;

/// A slot for each sender: the time by which all its frames so far were allowed.
#[derive(Debug)]
pub(super) struct RateLimiter {
    due: Box<[Time]>,
    hash: RandomState,
    /// Time between two frames at the allowed rate.
    apart: Duration,
    /// How far ahead of that time a sender may be: the burst.
    ahead: Duration,
}

impl RateLimiter {
    /// Allows each sender `rate` frames per second, and `burst` at once.
    pub(super) fn new(hash: RandomState, rate: u32, burst: u32) -> Self {
        let apart = Duration::from_secs(1) / rate.max(1);
        Self {
            due: vec![Time::ZERO; PLACES].into(),
            hash,
            apart,
            ahead: apart * burst.max(1),
        }
    }

    /// Whether another frame of this sender is within its limit.
    pub(super) fn allow(&mut self, now: Time, from: (EndpointId, IpAddr)) -> bool {
        let place = self.hash.hash_one(from) as usize % PLACES;
        let due = self.due[place].max(now) + self.apart;
        let fits = due.since(now) <= self.ahead;
        if fits {
            self.due[place] = due;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut limiter = RateLimiter::new(RandomState::new(), 100, 10);
        let (ip, mut now) = (IpAddr::from([10, 0, 0, 1]), Time::from_nanos(1));
        let from = (EndpointId(1), ip);
        let passed = |limiter: &mut RateLimiter, now| (0..1000).filter(|_| limiter.allow(now, from)).count();
        assert_eq!(passed(&mut limiter, now), 10);
        let mut others = (2..9).map(EndpointId);
        assert!(
            others.any(|other| limiter.allow(now, (other, ip))),
            "on another link"
        );
        now += Duration::from_millis(50);
        assert_eq!(passed(&mut limiter, now), 5);
        now += Duration::from_secs(3600);
        assert_eq!(passed(&mut limiter, now), 10);
    }

    #[test]
    fn a_flood_from_everywhere_takes_no_memory() {
        let mut limiter = RateLimiter::new(RandomState::new(), 1, 1);
        let now = Time::from_nanos(1);
        let passed = (0..100_000u32)
            .filter(|from| limiter.allow(now, (EndpointId(1), IpAddr::from(from.to_be_bytes()))))
            .count();
        assert!(passed <= PLACES && limiter.due.len() == PLACES, "{passed}");
    }
}
