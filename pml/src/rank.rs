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

/// The senders whose messages a receive or probe takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Only those of this rank; where senders have endpoints
    /// ([`PmlConfig::sources`](crate::PmlConfig::sources)), of its endpoint 0.
    Rank(Rank),
    /// Those of any rank, and of any endpoint. There is no order between messages of different ranks.
    Any,
    /// Only those of this endpoint of a rank.
    Endpoint(Rank, u8),
}

/// The number of bits of a rank, in what matching compares: those above are the sender's endpoint.
const RANK_BITS: u32 = 24;

/// The most ranks that there can be.
pub(crate) const RANKS_MOST: u32 = 1 << RANK_BITS;

impl Source {
    /// The one sender that matches, as matching numbers it; `None` for any.
    #[inline]
    pub(crate) const fn number(self) -> Option<u32> {
        match self {
            Self::Rank(rank) => Some(rank.0),
            Self::Endpoint(rank, endpoint) => Some(number(rank, endpoint)),
            Self::Any => None,
        }
    }

    /// The sender that matching numbers so.
    pub(crate) const fn of_number(number: u32) -> Self {
        let (rank, endpoint) = (Rank(number % RANKS_MOST), (number >> RANK_BITS) as u8);
        match endpoint {
            0 => Self::Rank(rank),
            endpoint => Self::Endpoint(rank, endpoint),
        }
    }

    /// The rank whose messages match; `None` for any.
    #[inline]
    #[must_use]
    pub const fn rank(self) -> Option<Rank> {
        match self {
            Self::Rank(rank) | Self::Endpoint(rank, _) => Some(rank),
            Self::Any => None,
        }
    }
}

/// An endpoint of a rank, as matching numbers senders.
#[inline]
pub(crate) const fn number(rank: Rank, endpoint: u8) -> u32 {
    rank.0 | (endpoint as u32) << RANK_BITS
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
            Self::Endpoint(rank, endpoint) => write!(out, "endpoint {endpoint} of {rank}"),
        }
    }
}
