//! Leases: which of our buffers a peer may pull, as words in the lane object that only we can write.

use std::collections::HashMap;

use doorbell_fabric::error::RailError;
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::{PeerIndex, RemoteKey};

use crate::map::WordsOf;

/// Lease words of a lane object: as many buffers can be exposed to one peer at a time.
pub(crate) const LEASES: usize = 64;

/// The word that a key lives in: the low bits of the key.
pub(crate) fn word_of(key: u64) -> usize {
    key as usize % LEASES
}

/// The free lease words of one lane.
#[derive(Debug)]
pub(crate) struct LeaseWords {
    taken: u64,
}

impl LeaseWords {
    pub(crate) fn new() -> Self {
        Self { taken: 0 }
    }

    /// Takes a free word and writes a key made from `random` into it; `None` when all are taken.
    pub(crate) fn grant(&mut self, words: &WordsOf, random: u64) -> Option<RemoteKey> {
        let slot = (!self.taken).trailing_zeros() as usize;
        if slot >= LEASES {
            return None;
        }
        // Never zero, which means "none": the bit above the slot number is always set.
        let key = random & !(2 * LEASES as u64 - 1) | LEASES as u64 | slot as u64;
        self.taken |= 1 << slot;
        words.store(slot, key);
        Some(RemoteKey(key))
    }

    /// Clears the key's word. From here on a puller that looks finds nothing, before or after its read.
    pub(crate) fn revoke(&mut self, words: &WordsOf, key: RemoteKey) {
        let slot = word_of(key.0);
        if words.load(slot) == key.0 {
            words.store(slot, 0);
            self.taken &= !(1 << slot);
        }
    }
}

/// Every key that is out, whose it is, and the region that it keeps alive.
#[derive(Debug, Default)]
pub(crate) struct Exposed {
    keys: HashMap<u64, (PeerIndex, Option<RegionSlice>)>,
    random: RandomWords,
}

impl Exposed {
    pub(crate) fn with_capacity(keys: usize) -> Self {
        Self {
            keys: HashMap::with_capacity(keys),
            random: RandomWords::default(),
        }
    }

    pub(crate) fn random(&mut self) -> Result<u64, RailError> {
        self.random.next()
    }

    pub(crate) fn insert(&mut self, key: RemoteKey, peer: PeerIndex, keep: Option<RegionSlice>) {
        self.keys.insert(key.0, (peer, keep));
    }

    pub(crate) fn remove(&mut self, key: RemoteKey) -> Option<PeerIndex> {
        self.keys.remove(&key.0).map(|(peer, _)| peer)
    }

    /// A dead peer holds nothing any more.
    pub(crate) fn forget(&mut self, peer: PeerIndex) {
        self.keys.retain(|_, (owner, _)| *owner != peer);
    }
}

/// Random words, fetched from the system 64 at a time.
#[derive(Debug)]
struct RandomWords {
    words: [u8; 512],
    used: usize,
}

impl Default for RandomWords {
    fn default() -> Self {
        Self {
            words: [0; 512],
            used: 512,
        }
    }
}

impl RandomWords {
    fn next(&mut self) -> Result<u64, RailError> {
        if self.used == self.words.len() {
            getrandom::fill(&mut self.words).map_err(|error| RailError::System {
                rail: "shm".to_owned(),
                step: "get random bytes for a memory key",
                source: error.into(),
                remedy: "check that getrandom(2) is allowed in this container",
            })?;
            self.used = 0;
        }
        let mut word = [0; 8];
        word.copy_from_slice(&self.words[self.used..self.used + 8]);
        self.words[self.used..self.used + 8].fill(0);
        self.used += 8;
        Ok(u64::from_ne_bytes(word))
    }
}
