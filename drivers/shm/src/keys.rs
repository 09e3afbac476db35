//! Keys of leases: a keyed hash (SipHash-2-4) of a counter, so that no system call is needed for each, and
//! none follows from those that were seen.

use doorbell_fabric::error::RailError;

/// The source of keys.
pub(crate) struct KeySource {
    /// Random, and never shown.
    secret: [u64; 2],
    count: u64,
}

impl KeySource {
    pub(crate) fn new() -> Result<Self, RailError> {
        let mut secret = [[0; 8]; 2];
        for half in &mut secret {
            getrandom::fill(half).map_err(|error| RailError::System {
                rail: "shm".to_owned(),
                step: "get random bytes for memory keys",
                source: error.into(),
                remedy: "check that getrandom(2) is allowed in this container",
            })?;
        }
        Ok(Self {
            secret: secret.map(u64::from_le_bytes),
            count: 0,
        })
    }

    /// Returns the next key.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.count += 1;
        hash(self.secret, self.count)
    }
}

/// SipHash-2-4 of the eight bytes of a word, in little-endian order.
fn hash([first, second]: [u64; 2], word: u64) -> u64 {
    /// What the length of the message, 8 bytes, adds as the last word.
    const LENGTH: u64 = 8 << 56;
    let mut state = [
        first ^ 0x736f_6d65_7073_6575,
        second ^ 0x646f_7261_6e64_6f6d,
        first ^ 0x6c79_6765_6e65_7261,
        second ^ 0x7465_6462_7974_6573,
    ];
    for word in [word, LENGTH] {
        state[3] ^= word;
        round(&mut state);
        round(&mut state);
        state[0] ^= word;
    }
    state[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut state));
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

#[inline(always)]
fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published vector for eight bytes: key 00 … 0f, message 00 … 07.
    #[test]
    fn it_is_siphash_2_4() {
        let secret = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(hash(secret, 0x0706_0504_0302_0100), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn two_sources_have_nothing_in_common() {
        let (mut one, mut other) = (KeySource::new().unwrap(), KeySource::new().unwrap());
        let keys: Vec<u64> = (0..1000).flat_map(|_| [one.next(), other.next()]).collect();
        let mut distinct = keys.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), keys.len());
    }
}
