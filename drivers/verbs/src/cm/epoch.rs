//! The number of an end's attempts to be connected: each is used for one connection at most.

use doorbell_fabric::event::Life;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Which attempt of one end. It never shrinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch {
    /// Greater each time the end has forgotten the peer and opened it again.
    pub(crate) term: u32,
    /// Attempts of this term that ended.
    pub(crate) count: u32,
}

impl Epoch {
    /// The first of a term.
    pub(crate) const fn first(term: u32) -> Self {
        Self { term, count: 0 }
    }

    /// The one that follows; `None` where the numbers have ended.
    pub(crate) fn next(self) -> Option<Self> {
        let count = self.count.checked_add(1)?;
        Some(Self { count, ..self })
    }

    /// The number of the connection that two ends made in these attempts, the same at both.
    pub(crate) const fn life(self, theirs: Self) -> Life {
        Life::of(self.count, theirs.count)
    }
}

/// On the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawEpoch {
    term: U32,
    count: U32,
}

impl From<Epoch> for RawEpoch {
    fn from(epoch: Epoch) -> Self {
        Self {
            term: epoch.term.into(),
            count: epoch.count.into(),
        }
    }
}

impl From<RawEpoch> for Epoch {
    fn from(raw: RawEpoch) -> Self {
        Self {
            term: raw.term.get(),
            count: raw.count.get(),
        }
    }
}
