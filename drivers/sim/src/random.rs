//! The simulator's own random numbers: xoshiro256++ seeded through splitmix64, both public domain (Blackman
//! and Vigna, "Scrambled linear pseudorandom number generators", 2021).
//!
//! Written out here, because a seed must mean the same run for ever, whatever a crate's next version does.

/// A small deterministic generator. Not for secrets.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut x = seed;
        Self {
            state: [
                splitmix(&mut x),
                splitmix(&mut x),
                splitmix(&mut x),
                splitmix(&mut x),
            ],
        }
    }

    /// A separate stream for the part of the network that `words` identify: traffic elsewhere does not change
    /// it.
    pub fn for_part(seed: u64, words: &[u64]) -> Self {
        let mut x = seed;
        let mixed = words.iter().fold(splitmix(&mut x), |mixed, &word| {
            let mut y = mixed ^ word;
            splitmix(&mut y)
        });
        Self::new(mixed)
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c1, d1) = (c ^ a, d ^ b);
        self.state = [a ^ d1, b ^ c1, c1 ^ (b << 17), d1.rotate_left(45)];
        result
    }

    /// A number below `bound` (zero for a bound of zero), by multiply and shift: the bias is below 2^-64 ×
    /// bound.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True with the given probability. Draws nothing at zero, so that a fault that is off changes no stream.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        if probability <= 0.0 {
            return false;
        }
        let unit = (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        unit < probability
    }

    /// Puts `items` into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

/// Makes a step of splitmix64.
pub(crate) fn splitmix(x: &mut u64) -> u64 {
    *x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *x;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_gives_its_published_first_words() {
        let mut x = 1_234_567;
        assert_eq!(splitmix(&mut x), 6_457_827_717_110_365_317);
        assert_eq!(splitmix(&mut x), 3_203_168_211_198_807_973);
    }

    #[test]
    fn xoshiro_gives_its_published_first_words() {
        let mut random = Random { state: [1, 2, 3, 4] };
        assert_eq!(random.next_u64(), 41_943_041);
        assert_eq!(random.next_u64(), 58_720_359);
        assert_eq!(random.next_u64(), 3_588_806_011_781_223);
    }

    #[test]
    fn below_and_chance_stay_near_their_means() {
        let mut random = Random::new(7);
        let mut counts = [0_u32; 10];
        (0..100_000).for_each(|_| counts[random.below(10) as usize] += 1);
        assert!(counts.iter().all(|&n| (9_500..10_500).contains(&n)), "{counts:?}");
        let hits = (0..100_000).filter(|_| random.chance(0.01)).count();
        assert!((880..1_120).contains(&hits), "{hits}");
        assert_eq!(random.below(0), 0);
        assert!(random.chance(1.0) && !random.chance(0.0));
    }

    #[test]
    fn parts_have_streams_of_their_own() {
        let first = |words: &[u64]| Random::for_part(1, words).next_u64();
        assert_ne!(first(&[0, 1]), first(&[1, 0]));
        assert_ne!(first(&[0, 1]), Random::for_part(2, &[0, 1]).next_u64());
        assert_eq!(first(&[0, 1]), first(&[0, 1]));
    }
}
