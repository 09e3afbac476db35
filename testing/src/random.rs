//! Numbers that follow from a seed: a failing run is found again by its seed.

use std::ops::RangeInclusive;

/// A small generator (splitmix64): the same numbers for the same seed, everywhere and for ever. Not for
/// secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`; zero for a bound of zero. Slightly in favour of small ones, by less than
    /// `bound` / 2⁶⁴.
    pub const fn below(&mut self, bound: u64) -> u64 {
        let number = self.next_u64();
        if bound == 0 { 0 } else { number % bound }
    }

    /// An index of something `length` long; zero for a length of zero.
    pub const fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True once in `bound` times; never for a bound of zero.
    pub const fn one_in(&mut self, bound: u64) -> bool {
        bound > 0 && self.below(bound) == 0
    }

    /// True in `percent` of 100 times.
    pub const fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A number of this range, both ends included.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// A number of at most `most` bits (64 at most), each number of bits as likely as any other.
    pub fn of_bits(&mut self, most: u64) -> u64 {
        let bits = self.below(most + 1);
        self.next_u64() & u64::MAX.checked_shr(64 - bits as u32).unwrap_or(0)
    }

    /// From 0 up to, and without, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation (Vigna, `splitmix64.c`) for this seed.
    #[test]
    fn numbers_are_those_of_the_reference() {
        let mut random = Random::new(1_234_567);
        let numbers = [(); 3].map(|()| random.next_u64());
        let reference = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(numbers, reference);
    }

    #[test]
    fn bounds_hold() {
        let mut random = Random::new(7);
        assert!((0..1000).all(|_| random.below(3) < 3 && (0.0..1.0).contains(&random.unit())));
        assert_eq!(
            (random.below(0), random.index(1), random.one_in(0)),
            (0, 0, false)
        );
        assert!((0..1000).all(|_| (3..=5).contains(&random.within(3..=5)) && random.of_bits(3) < 8));
        assert_eq!(
            (random.of_bits(0), random.percent(0), random.percent(100)),
            (0, false, true)
        );
        let hits = (0..3000).filter(|_| random.one_in(3)).count();
        assert!((900..1100).contains(&hits), "{hits}");
    }
}
