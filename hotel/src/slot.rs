//! Slots: which one a deadline belongs to. Plain arithmetic, no state.
//!
//! ```text
//!  level  a slot is   for deadlines this far away
//!    0       1 ns        0 to  63 ns
//!    1       8 ns       64 to 511 ns
//!    2      64 ns      512 ns to 4 µs
//!    4       4 µs       33 µs to 262 µs
//!    6     262 µs      2.1 ms to 16.8 ms
//!   20     2⁶⁰ ns      the rest of 64 bits
//! ```
//!
//! On each level, time is cut into slots of `8^level` ns, numbered from time 0. A deadline goes to the lowest
//! level on which it is fewer than 64 slots away, so that (above level 0) at least 8 slots lie between: its
//! slot begins when at most 1/8 of the way is left.

/// Levels that 64 bits of nanoseconds need.
pub(crate) const LEVELS: usize = 21;

/// Slots of a level: as many as a word has bits.
pub(crate) const SLOTS: u32 = 64;

/// A level, as the logarithm (to the base 2) of its slots' width: 3 for each level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level(u32);

impl Level {
    /// The level by number.
    #[inline]
    pub(crate) fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the level for deadlines `distance` ns ahead.
    #[inline]
    pub(crate) fn of(distance: u64) -> Self {
        let highest = 63 - (distance | 63).leading_zeros();
        Self(highest / 3 - 1)
    }

    /// Returns the number of the level.
    #[inline]
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// Number of the slot in which a time is, from time 0.
    #[inline]
    pub(crate) fn slot_of(self, time: u64) -> u64 {
        time >> (3 * self.0)
    }

    /// Returns the time at which a slot begins.
    #[inline]
    pub(crate) fn start_of(self, slot: u64) -> u64 {
        slot << (3 * self.0)
    }
}

const _: () = assert!(
    64 <= 6 + 3 * (LEVELS - 1),
    "the highest level reaches to the end of time"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_change_at_powers_of_eight() {
        for (level, first) in (1..LEVELS as u32).map(|level| (level, 8u64 << (3 * level))) {
            assert_eq!(Level::of(first - 1).number(), level - 1);
            assert_eq!(Level::of(first).number(), level);
        }
        assert_eq!(Level::of(0).number(), 0);
        assert_eq!(Level::of(u64::MAX).number(), LEVELS as u32 - 1);
    }

    #[test]
    fn slots_are_eight_to_sixty_four_ahead() {
        for cursor in [
            0,
            1,
            63,
            64,
            511,
            1_000_003,
            0x0fff_ffff_ffff,
            u64::MAX - (1 << 62),
        ] {
            for distance in (0..62).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]) {
                let level = Level::of(distance);
                let ahead = level.slot_of(cursor + distance) - level.slot_of(cursor);
                let allowed = if level.number() == 0 { 0..=63 } else { 8..=64 };
                assert!(
                    allowed.contains(&ahead),
                    "{cursor} + {distance}: {level:?}, {ahead}"
                );
            }
        }
    }
}
