//! What a search leaves open: two patterns with equal masks can share one hash table.

use crate::hash::{Hasher, origin};
use crate::{MatchKey, Pattern};

/// Ignored source bits and ignored match bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Masks {
    pub(crate) source_ignore: u32,
    pub(crate) ignore: u64,
}

impl Masks {
    /// Nothing left open.
    pub(crate) const EXACT: Self = Self {
        source_ignore: 0,
        ignore: 0,
    };

    /// The masks of a pattern.
    #[inline]
    pub(crate) fn of(pattern: &Pattern) -> Self {
        Self {
            source_ignore: pattern.source_ignore,
            ignore: pattern.ignore,
        }
    }

    /// A key with the open bits cleared.
    #[inline]
    pub(crate) fn apply(self, key: &MatchKey) -> Masked {
        Masked {
            origin: origin(key.table, key.source & !self.source_ignore),
            bits: key.bits & !self.ignore,
        }
    }
}

/// A key or pattern with open bits cleared, as two words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Masked {
    /// Table (high half) and source.
    pub(crate) origin: u64,
    pub(crate) bits: u64,
}

impl Masked {
    /// A pattern with its own open bits cleared.
    #[inline]
    pub(crate) fn of(pattern: &Pattern) -> Self {
        Masks::of(pattern).apply(&MatchKey::new(pattern.table, pattern.source, pattern.bits))
    }

    /// A whole key.
    #[inline]
    pub(crate) fn exact(key: &MatchKey) -> Self {
        Masks::EXACT.apply(key)
    }

    /// True when both words are equal. Written with words on purpose: compared as one vector, a key that was
    /// just stored word by word would stall the load.
    #[inline]
    pub(crate) fn is(self, other: Self) -> bool {
        (self.origin ^ other.origin) | (self.bits ^ other.bits) == 0
    }

    /// Its hash on one lane.
    #[inline]
    pub(crate) fn hash(self, hasher: &Hasher, lane: u8) -> u32 {
        hasher.key(lane, self.origin, self.bits)
    }
}
