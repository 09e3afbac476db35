//! The latency of a path: the least round trip of the last probes.
//!
//! The least, because whatever is more was waiting: for the peer's next poll, for our own look at the clock.
//! Two blocks of probes follow each other, so that a path that has become slower is noticed when the older
//! block is forgotten.

use crate::set::each;

/// Probes of one block.
const BLOCK: u32 = 4;

/// The measured round trip of one path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Latency {
    /// The least of the block before, and of this one (ns); zero: none.
    before: u64,
    now: u64,
    count: u32,
}

impl Latency {
    /// Adds a round trip, in nanoseconds.
    pub(crate) fn sample(&mut self, ns: u64) {
        let ns = ns.max(1);
        self.now = if self.now == 0 { ns } else { self.now.min(ns) };
        self.count += 1;
        if self.count == BLOCK {
            *self = Self {
                before: self.now,
                now: 0,
                count: 0,
            };
        }
    }

    /// Returns half of the least round trip (ns), once there is a block.
    pub(crate) fn half(&self) -> Option<u64> {
        match (self.before, self.now) {
            (0, _) => None,
            (before, 0) => Some(before / 2),
            (before, now) => Some(before.min(now) / 2),
        }
    }
}

/// Returns which of the paths in the set `among` are as good as the best, by their latencies (ns). The ones
/// `in_use` stay until they are clearly worse, the others have to be clearly as good: a path on the edge does
/// not go in and out.
pub fn as_good_as_best(among: u64, in_use: u64, latency: impl Fn(usize) -> u64) -> u64 {
    let best = each(among).map(&latency).min().unwrap_or(0);
    let (enter, leave) = (best + best / 8, best + best / 2);
    let good = each(among).filter(|at| {
        let bound = if in_use & 1 << at == 0 { enter } else { leave };
        latency(*at) <= bound
    });
    good.fold(0, |set, at| set | 1 << at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_least_of_two_blocks_and_forgets() {
        let mut latency = Latency::default();
        for ns in [900, 800, 2000] {
            latency.sample(ns);
            assert_eq!(latency.half(), None);
        }
        latency.sample(1000);
        assert_eq!(latency.half(), Some(400));
        for _ in 0..4 {
            latency.sample(5000);
        }
        assert_eq!(latency.half(), Some(2500));
        latency.sample(200);
        assert_eq!(latency.half(), Some(100));
    }

    #[test]
    fn the_edge_is_not_crossed_by_noise() {
        let of = |latencies: &'static [u64]| move |at: usize| latencies[at];
        assert_eq!(as_good_as_best(0b111, 0, of(&[1000, 1100, 1200])), 0b011);
        assert_eq!(as_good_as_best(0b111, 0b111, of(&[1000, 1100, 1200])), 0b111);
        assert_eq!(as_good_as_best(0b111, 0b111, of(&[1000, 1600, 1200])), 0b101);
        assert_eq!(as_good_as_best(0b010, 0b111, of(&[1, 7, 1])), 0b010);
        assert_eq!(as_good_as_best(0, 1, of(&[])), 0);
    }
}
