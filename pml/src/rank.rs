//! Ranks, and the sources that a receive matches.

use std::fmt;

/// The number of a process in the job, from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub u32);

impl Rank {
    /// Returns it as an index into a table of ranks.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "rank {}", self.0)
    }
}

/// The ranks whose messages a receive or probe takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Only those of this rank.
    Rank(Rank),
    /// Those of any rank. There is no order between messages of different ranks.
    Any,
}

impl From<Rank> for Source {
    #[inline]
    fn from(rank: Rank) -> Self {
        Self::Rank(rank)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => rank.fmt(out),
            Self::Any => out.write_str("any rank"),
        }
    }
}
