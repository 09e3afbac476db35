//! Long messages over several paths at a time: each part takes the path on which it will be there first, by
//! what each path has carried recently, and a slow path is not given what the others will have carried before
//! it.
//!
//! Shares that are fixed beforehand (reference: bfo, section 6) are right as long as nothing changes; here
//! the next part is decided by what is under way now, so that a path which slows down gets less at once.

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_fabric::message::MsgId;
use doorbell_fabric::time::Time;

use crate::set::each;

/// A rate is measured over this time at least, without a pause.
const SAMPLE: Duration = Duration::from_millis(1);

/// A part under way.
#[derive(Clone, Copy, Debug)]
struct Flying {
    number: MsgId,
    bytes: u32,
}

/// The parts of long messages under way over one path, and how fast they go.
#[derive(Debug, Default)]
pub struct Flow {
    flying: VecDeque<Flying>,
    /// Bytes under way.
    bytes: u64,
    /// Bytes that arrived since, while it was never empty.
    done: u64,
    since: Time,
    /// Bytes per second; zero: not measured.
    rate: u64,
}

impl Flow {
    /// A part has left: the rail's number of its message, and its length (shorter than 4 GiB).
    pub fn left(&mut self, now: Time, number: MsgId, bytes: usize) {
        if self.flying.is_empty() {
            (self.done, self.since) = (0, now);
        }
        let bytes = bytes as u32;
        self.bytes += u64::from(bytes);
        self.flying.push_back(Flying { number, bytes });
    }

    /// Everything up to `watermark` has arrived. Returns whether the rate was measured again.
    pub fn arrived(&mut self, now: Time, watermark: MsgId) -> bool {
        while let Some(first) = self.flying.front().filter(|first| first.number <= watermark) {
            self.bytes -= u64::from(first.bytes);
            self.done += u64::from(first.bytes);
            self.flying.pop_front();
        }
        let took = now.since(self.since);
        // One that ends early is the end of a message: a part of the time that it is short of will do.
        let enough = if self.flying.is_empty() {
            SAMPLE / 4
        } else {
            SAMPLE
        };
        let measured = self.done > 0 && took >= enough;
        if measured {
            self.sample(took);
            (self.done, self.since) = (0, now);
        }
        measured
    }

    fn sample(&mut self, took: Duration) {
        let rate = u128::from(self.done) * 1_000_000_000 / took.as_nanos().max(1);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        self.rate = if self.rate == 0 {
            rate
        } else {
            self.rate - self.rate / 4 + rate / 4
        };
    }

    /// The path broke: its rail gives back what was under way.
    pub fn clear(&mut self) {
        self.bytes = 0;
        self.flying.clear();
    }

    /// Returns the rate in bytes per second, once measured.
    #[must_use]
    pub fn rate(&self) -> Option<u64> {
        (self.rate > 0).then_some(self.rate)
    }

    /// Returns the number of parts under way.
    #[must_use]
    pub fn count(&self) -> usize {
        self.flying.len()
    }

    /// Returns the bytes under way.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// What decides about one path of several.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Bytes under way over it.
    pub flying: u64,
    /// Its rate, in bytes per second.
    pub rate: u64,
    /// The most bytes of one part.
    pub part: u64,
    /// Whether one more part may leave over it.
    pub is_open: bool,
}

/// Returns how long `bytes` take at a rate (bytes per second), in nanoseconds.
#[must_use]
#[inline]
pub fn time_of(bytes: u64, rate: u64) -> u128 {
    u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))
}

/// Returns the path of `set` on which the next part of a message, of which `left` bytes are left, will be
/// there first; `None`: the ones that are worth it have enough under way.
pub fn first_there(set: u64, left: u64, share: impl Fn(usize) -> Share) -> Option<usize> {
    let there = |share: Share| time_of(share.flying + left.min(share.part), share.rate);
    // When everything would be there, if all went on at their rates.
    let (bytes, rates) = each(set).map(&share).fold((left, 0u64), |(bytes, rates), share| {
        (bytes + share.flying, rates.saturating_add(share.rate))
    });
    let first = each(set).map(|at| there(share(at))).min()?;
    let all = time_of(bytes, rates).max(first);
    let is_worth_it = |at: &usize| {
        let share = share(*at);
        share.is_open && there(share) <= all
    };
    each(set).filter(is_worth_it).min_by_key(|at| there(share(*at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_what_arrives_while_it_is_busy() {
        let at = |us: u64| Time::from_nanos(us * 1000);
        let mut flow = Flow::default();
        for number in 1..=10 {
            flow.left(at(0), MsgId(number), 1000);
        }
        flow.arrived(at(500), MsgId(5));
        assert_eq!((flow.rate(), flow.bytes()), (None, 5000), "too short");
        flow.arrived(at(1000), MsgId(10));
        assert_eq!((flow.rate(), flow.bytes()), (Some(10_000_000), 0));
        // A pause does not count.
        flow.left(at(50_000), MsgId(11), 1000);
        flow.arrived(at(51_000), MsgId(11));
        assert_eq!(flow.rate(), Some(7_500_000 + 250_000));
        flow.left(at(60_000), MsgId(12), 1000);
        flow.clear();
        assert_eq!((flow.bytes(), flow.count()), (0, 0));
    }

    #[test]
    fn each_path_gets_what_it_has_carried_when_the_others_have() {
        let mut flying = [0_u64; 3];
        let rates = [8_000, 4_000, 100];
        let mut parts = [0; 3];
        let mut left = 120_000;
        while left > 0 {
            let share = |at: usize| Share {
                flying: flying[at],
                rate: rates[at],
                part: 1000,
                is_open: true,
            };
            let at = first_there(0b111, left, share).expect("all are open");
            flying[at] += 1000;
            parts[at] += 1;
            left -= 1000;
        }
        assert_eq!(parts, [80, 40, 0]);
    }

    #[test]
    fn a_slow_path_is_not_given_the_end_and_a_closed_one_nothing() {
        let share = |at: usize| Share {
            flying: [5000, 0][at],
            rate: [1_000_000, 10][at],
            part: 1000,
            is_open: at == 1,
        };
        assert_eq!(first_there(0b11, 1000, share), None, "it waits for the quick one");
        assert_eq!(first_there(0b10, 1000, share), Some(1));
        assert_eq!(first_there(0, 1000, share), None);
    }
}
