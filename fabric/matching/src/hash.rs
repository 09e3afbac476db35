//! The seeded hash of keys: two multiplications.
//!
//! The key's 128 bits, each half masked with a secret, are multiplied and the product's halves folded; the
//! second multiplication breaks up what regular keys leave of their regularity. To choose keys that collide,
//! a sender has to know the secrets: with a random seed, any fixed set of keys spreads as random ones do. It
//! is no cryptographic hash: a sender that can time single look-ups precisely for long could learn something
//! about the seed, and then cost time, never correctness.

/// What the seed of a matcher becomes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hasher {
    origin: u64,
    bits: u64,
    spread: u64,
}

impl Hasher {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            origin: spread(seed),
            bits: spread(seed ^ LANE_STEP),
            spread: spread(!seed) | 1,
        }
    }

    /// Hash of an origin (see [`origin`]) and match bits, as seen by one lane of the tuple-space search.
    /// Lanes hash apart, so that the same masked key on two lanes does not crowd one place of the table.
    #[inline]
    pub(crate) fn key(&self, lane: u8, origin: u64, bits: u64) -> u32 {
        let origin = origin ^ self.origin.wrapping_add(LANE_STEP.wrapping_mul(u64::from(lane)));
        let product = u128::from(origin) * u128::from(bits ^ self.bits);
        let folded = (product >> 64) as u64 ^ product as u64;
        (folded.wrapping_mul(self.spread) >> 32) as u32
    }

    /// Hash of a source alone.
    #[inline]
    pub(crate) fn source(&self, source: u32) -> u32 {
        self.key(0, 0, u64::from(source))
    }
}

/// Table and source as one word, so that a key is compared with two comparisons.
#[inline]
pub(crate) const fn origin(table: u32, source: u32) -> u64 {
    (table as u64) << 32 | source as u64
}

/// Mixes a seed until every bit of it counts everywhere (the finaliser of `SplitMix64`).
const fn spread(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(LANE_STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// 2^64 divided by the golden ratio, odd: far from every small multiple of itself.
const LANE_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    /// The fullest of 4096 cells after 4096 keys; random placing gives about 7.
    fn fullest(seed: u64, keys: impl Iterator<Item = (u64, u64)>) -> u32 {
        let hasher = Hasher::new(seed);
        let mut cells = vec![0u32; 4096];
        for (origin, bits) in keys.take(4096) {
            cells[(hasher.key(0, origin, bits) >> 20) as usize] += 1;
        }
        cells.into_iter().max().unwrap()
    }

    #[test]
    fn regular_keys_spread_like_random_ones() {
        for seed in 0..64 {
            let families: [(&str, Vec<(u64, u64)>); 6] = [
                ("tags", (0..4096).map(|i| (1, i)).collect()),
                ("high bits", (0..4096).map(|i| (1, i << 52)).collect()),
                ("sources", (0..4096).map(|i| (origin(1, i), 7)).collect()),
                ("tables", (0..4096).map(|i| (origin(i, 3), 7)).collect()),
                ("source = tag", (0..4096).map(|i| (i, i)).collect()),
                ("strides", (0..4096).map(|i| (1, i * 4096)).collect()),
            ];
            for (name, keys) in families {
                let fullest = fullest(seed, keys.into_iter());
                assert!(
                    fullest <= 16,
                    "{name}: {fullest} keys in one cell with seed {seed}"
                );
            }
        }
    }

    #[test]
    fn keys_that_collide_under_one_seed_part_under_another() {
        let known = Hasher::new(1);
        let crowd: Vec<u64> = (0..1 << 20)
            .filter(|&bits| known.key(0, 1, bits) >> 20 == 5)
            .collect();
        assert!(crowd.len() > 128, "the attack needs a crowd, not {}", crowd.len());
        let other = Hasher::new(2);
        let still = crowd
            .iter()
            .filter(|&&bits| other.key(0, 1, bits) >> 20 == 5)
            .count();
        assert!(still < 16, "{still} of {} still collide", crowd.len());
    }
}
