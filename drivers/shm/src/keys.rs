//! Keys of leases: a keyed hash (SipHash-2-4) of a counter, so that no system call is needed for each, and
//! none follows from those that were seen.

use doorbell_fabric::error::RailError;
use siphasher::sip::SipHasher24;

/// The source of keys.
pub(crate) struct KeySource {
    /// Its key is random, and never shown.
    hasher: SipHasher24,
    count: u64,
}

impl KeySource {
    pub(crate) fn new() -> Result<Self, RailError> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(|error| RailError::System {
            rail: "shm".to_owned(),
            step: "get random bytes for memory keys",
            source: error.into(),
            remedy: "check that getrandom(2) is allowed in this container",
        })?;
        Ok(Self {
            hasher: SipHasher24::new_with_key(&secret),
            count: 0,
        })
    }

    /// Returns the next key.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.count += 1;
        self.hasher.hash(&self.count.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
