//! Warm-up: blocks, until they stop getting better, with caps. Kept apart from the measurement, and reported.

use super::row::WarmUp;

/// The course of a warm-up; fed with the time of each block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warming {
    record: WarmUp,
    best: f64,
    idle: u32,
    nanos: f64,
    /// Exchanges of the first block, and of each at least.
    first: u64,
}

/// A block that is less than this share better than the best does not count as improvement.
const IMPROVEMENT: f64 = 0.02;
/// Blocks in a row without improvement after which the system counts as warm.
const STEADY: u32 = 4;
/// Maximum number of blocks.
const BLOCKS_MAX: u32 = 60;
/// Maximum nanoseconds in blocks.
const NANOS_MAX: f64 = 400e6;
/// Exchanges of the first block.
const FIRST: u64 = 4;
/// Messages from this size on take so long that one of them is a block.
const LONG: usize = 16 << 20;
/// The nanoseconds that later blocks aim at.
const BLOCK_NANOS: f64 = 4e6;

impl Warming {
    /// Creates the warm-up for messages of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            first: if bytes < LONG { FIRST } else { 1 },
            ..Self::default()
        }
    }

    /// Returns how many exchanges the next block takes; `None` when warm or at a cap.
    pub(crate) fn next(&self) -> Option<u64> {
        let done = self.idle >= STEADY || self.record.blocks >= BLOCKS_MAX || self.nanos >= NANOS_MAX;
        (!done).then(|| match self.record.last_ns {
            None => self.first,
            Some(last) => fitting(BLOCK_NANOS, last, self.first, 100_000),
        })
    }

    /// The longest that the next block may take, in nanoseconds.
    pub(crate) fn limit(&self) -> f64 {
        (NANOS_MAX - self.nanos).max(BLOCK_NANOS)
    }

    /// Takes the result of a block: `nanos` for `exchanges`.
    pub(crate) fn block(&mut self, exchanges: u64, nanos: f64) {
        let each = nanos / exchanges.max(1) as f64;
        let better = self.record.blocks == 0 || each < self.best * (1.0 - IMPROVEMENT);
        self.idle = if better { 0 } else { self.idle + 1 };
        self.best = if better { each } else { self.best };
        self.nanos += nanos;
        self.record.first_ns.get_or_insert(each);
        self.record.last_ns = Some(each);
        self.record.blocks += 1;
        self.record.exchanges += exchanges;
        self.record.steady = self.idle >= STEADY;
    }

    /// Returns the record of the warm-up so far.
    pub(crate) fn record(&self) -> WarmUp {
        self.record
    }

    /// The best time per exchange, in nanoseconds: what the slices are planned with.
    pub(crate) fn best(&self) -> f64 {
        self.best.max(1.0)
    }
}

/// Returns how many exchanges of `each` nanoseconds take about `nanos`, within bounds.
pub(crate) fn fitting(nanos: f64, each: f64, least: u64, most: u64) -> u64 {
    let count = nanos / each.max(1.0);
    if count.is_finite() {
        (count as u64).clamp(least, most)
    } else {
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_ends_when_improvement_stops() {
        let mut warming = Warming::new(8);
        let times = [500.0, 300.0, 200.0, 110.0, 101.0, 100.0];
        let mut blocks = 0;
        while let Some(exchanges) = warming.next() {
            let each = times[blocks.min(times.len() - 1)];
            warming.block(exchanges, each * exchanges as f64);
            blocks += 1;
        }
        assert!(warming.record().steady);
        assert_eq!(warming.record().first_ns, Some(500.0));
        assert_eq!((blocks, warming.best()), (9, 101.0));
    }

    #[test]
    fn it_ends_by_its_caps_when_it_never_settles() {
        let mut warming = Warming::new(8);
        let mut each = 1e9;
        while let Some(exchanges) = warming.next() {
            warming.block(exchanges, each * exchanges as f64);
            each *= 0.9;
        }
        assert!(!warming.record().steady);
        assert!(warming.record().blocks <= BLOCKS_MAX);
    }

    proptest! {
        #[test]
        fn strange_times_end_too(times in prop::collection::vec(prop::num::f64::ANY, 1..100)) {
            let mut warming = Warming::new(8);
            let mut at = 0;
            while let Some(exchanges) = warming.next() {
                prop_assert!(exchanges >= 1);
                warming.block(exchanges, times[at % times.len()]);
                at += 1;
                prop_assert!(at <= 100);
            }
        }
    }
}
