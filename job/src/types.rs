//! The small types of the interface: the sources and tags that a receive accepts, and the status that it
//! returns.

use std::fmt;

/// Most ranks of one job.
pub const MOST_RANKS: u32 = 65_536;

/// The sources that a receive or probe accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Exactly this rank.
    Rank(u32),
    /// The rank whose message comes first.
    Any,
}

impl From<u32> for Source {
    fn from(rank: u32) -> Self {
        Self::Rank(rank)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(out, "rank {rank}"),
            Self::Any => out.write_str("any rank"),
        }
    }
}

/// Which tags a receive or probe accepts: 64 bits, of which some may be ignored.
///
/// ```
/// use doorbell_job::Tag;
/// assert!(Tag::exact(7).accepts(7) && !Tag::exact(7).accepts(8));
/// assert!(Tag::any().accepts(u64::MAX));
/// assert!(Tag::masked(0x10, 0x0f).accepts(0x1b) && !Tag::masked(0x10, 0x0f).accepts(0x20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    /// The bits that must be equal, where they are not ignored.
    pub bits: u64,
    /// The bits that may differ.
    pub ignore: u64,
}

impl Tag {
    /// Accepts this tag only.
    pub const fn exact(bits: u64) -> Self {
        Self { bits, ignore: 0 }
    }

    /// Accepts every tag.
    pub const fn any() -> Self {
        Self {
            bits: 0,
            ignore: u64::MAX,
        }
    }

    /// Accepts tags that equal `bits` wherever `ignore` has a zero.
    pub const fn masked(bits: u64, ignore: u64) -> Self {
        Self { bits, ignore }
    }

    /// Whether a message with the tag `bits` is accepted.
    pub const fn accepts(self, bits: u64) -> bool {
        (self.bits ^ bits) & !self.ignore == 0
    }
}

impl From<u64> for Tag {
    fn from(bits: u64) -> Self {
        Self::exact(bits)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ignore {
            0 => write!(out, "tag {:#x}", self.bits),
            u64::MAX => out.write_str("any tag"),
            ignore => write!(out, "tag {:#x} (ignoring the bits {ignore:#x})", self.bits),
        }
    }
}

/// The envelope that a finished receive or probe found. For a send: the receiver's rank, the tag and the
/// length sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The sender's rank (for a send: the receiver's).
    pub source: u32,
    /// The message's tag.
    pub tag: u64,
    /// Length in bytes.
    pub len: usize,
}
