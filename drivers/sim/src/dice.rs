//! Choices of a test's script, every one of which follows from the seed.

use std::time::Duration;

use crate::random::splitmix;

/// A generator of 64 bits of state (splitmix64), for what a test does to what it tests. The network's own
/// chances are [`Random`](crate::Random)'s. The same seed means the same choices for ever. Not for secrets.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The choices of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5dee_ce66)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        splitmix(&mut self.0)
    }

    /// A number below `bound`; zero for a bound of zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound.max(1)
    }

    /// An index into something of `length` entries; zero for none.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True once in `bound` times on average; never, and without drawing a number, for a bound of zero.
    pub fn one_in(&mut self, bound: u64) -> bool {
        bound > 0 && self.below(bound) == 0
    }

    /// A time from `from` to `to` microseconds, both included; `from` where `to` is less.
    pub fn micros(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from + self.below(to.saturating_sub(from).saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        let mut dice = Dice::new(1);
        let first: Vec<u64> = (0..4).map(|_| dice.below(1_000)).collect();
        assert_eq!(first, [561, 673, 552, 996]);
        assert_eq!((dice.below(0), dice.index(0), dice.one_in(1)), (0, 0, true));
        let before = dice.clone().next_u64();
        assert!(!dice.one_in(0), "never");
        assert_eq!(dice.next_u64(), before, "and nothing was drawn");
        assert_eq!(dice.micros(7, 7), Duration::from_micros(7));
    }
}
