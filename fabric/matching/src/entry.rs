//! Posted entries and what the matcher answers.

use std::fmt;
use std::num::NonZeroU64;

use crate::{MatchKey, Pattern};

/// The list that an entry is on. Arrivals search `Priority` first, whatever was posted when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum List {
    /// Receives that the user waits for. Posting here first searches the kept messages.
    Priority,
    /// Buffers for messages without a posted receive (Portals). Posting here never searches.
    Overflow,
}

/// The side that decides where in the entry's room a message lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The sender: at the offset that arrives with the message (0 for plain receives).
    Remote,
    /// The entry: one message behind the other (Portals' `MANAGE_LOCAL`, libfabric's `FI_MULTI_RECV`).
    Managed {
        /// Bytes that must stay free: with less room left the entry is unlinked. 0: it never is.
        min_free: u64,
    },
}

/// One receive or match-list entry, as posted by the caller.
///
/// Start from [`Entry::once`] or [`Entry::persistent`]; the other fields have methods that change one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Which keys it takes.
    pub pattern: Pattern,
    /// Bytes of its room.
    pub length: u64,
    /// The caller's number for it; comes back with every match and with the cancel.
    pub token: u64,
    /// Where it is posted.
    pub list: List,
    /// Unlinked by its first match.
    pub use_once: bool,
    /// Skip this entry for messages that do not fit, instead of cutting them.
    pub no_truncate: bool,
    /// The side that places messages in the room.
    pub space: Space,
    /// Bytes of the room already filled; counts only with [`Space::Managed`].
    pub filled: u64,
}

impl Entry {
    /// A receive: priority list, used once, longer messages are cut.
    #[inline]
    #[must_use]
    pub const fn once(pattern: Pattern, length: u64, token: u64) -> Self {
        Self {
            pattern,
            length,
            token,
            list: List::Priority,
            use_once: true,
            no_truncate: false,
            space: Space::Remote,
            filled: 0,
        }
    }

    /// An entry that stays until it is cancelled; the sender's offset is where messages land.
    #[inline]
    #[must_use]
    pub const fn persistent(pattern: Pattern, length: u64, token: u64) -> Self {
        Self {
            use_once: false,
            ..Self::once(pattern, length, token)
        }
    }

    /// Makes an entry that places messages one behind the other until fewer than `min_free` bytes are left.
    #[inline]
    #[must_use]
    pub const fn managed(self, min_free: u64) -> Self {
        Self {
            space: Space::Managed { min_free },
            ..self
        }
    }

    /// Makes messages that do not fit skip the entry.
    #[inline]
    #[must_use]
    pub const fn no_truncate(self) -> Self {
        Self {
            no_truncate: true,
            ..self
        }
    }

    /// Puts the entry on the overflow list.
    #[inline]
    #[must_use]
    pub const fn overflow(self) -> Self {
        Self {
            list: List::Overflow,
            ..self
        }
    }

    /// True for the ordinary receive, which takes the short way: fully given, on the priority list, used
    /// once, cutting what is too long.
    #[inline(always)]
    pub(crate) const fn is_plain(&self) -> bool {
        self.pattern.is_exact() && self.is_ordinary()
    }

    /// True for the ordinary receive, whatever it leaves open.
    #[inline(always)]
    pub(crate) const fn is_ordinary(&self) -> bool {
        matches!(self.list, List::Priority)
            && self.use_once
            && !self.no_truncate
            && matches!(self.space, Space::Remote)
    }

    /// Returns where a message of `length` bytes, sent to `remote_offset`, lands in this entry now; `None`
    /// when the entry must be skipped because the message does not fit.
    #[inline]
    #[must_use]
    pub fn place(&self, remote_offset: u64, length: u64) -> Option<Placement> {
        let offset = match self.space {
            Space::Remote => remote_offset,
            Space::Managed { .. } => self.filled,
        };
        let room = self.length.saturating_sub(offset);
        if self.no_truncate && length > room {
            return None;
        }
        let accepted = length.min(room);
        let used_up = match self.space {
            Space::Managed { min_free } => room - accepted < min_free,
            Space::Remote => false,
        };
        Some(Placement {
            offset,
            length: accepted,
            unlinked: self.use_once || used_up,
        })
    }

    /// Places a message as [`Entry::place`] does and counts its bytes as filled. This is how a caller fits
    /// kept messages into a persistent entry before it is linked; see [`crate::Matcher::post`].
    #[inline]
    pub fn take(&mut self, remote_offset: u64, length: u64) -> Option<Placement> {
        let placement = self.place(remote_offset, length)?;
        if matches!(self.space, Space::Managed { .. }) {
            self.filled += placement.length;
        }
        Some(placement)
    }
}

/// Where one message lands in one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// First byte in the entry's room.
    pub offset: u64,
    /// Bytes accepted; fewer than arrived means the message was cut.
    pub length: u64,
    /// This message uses the entry up.
    pub unlinked: bool,
}

/// The posted entry that took an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Match {
    /// The entry's token.
    pub token: u64,
    /// The entry; stale already when `unlinked`.
    pub handle: EntryHandle,
    /// First byte in the entry's room.
    pub offset: u64,
    /// Bytes accepted; fewer than arrived means the message was cut.
    pub length: u64,
    /// The entry is off its list now: used once, or its room fell below `min_free`.
    pub unlinked: bool,
    /// The list it was found on. After `Overflow` the caller normally keeps the message too.
    pub list: List,
}

/// The entry that would take an arrival, as [`Matcher::look`](crate::Matcher::look) found it. It is good for
/// as long as nothing else is done with the matcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// What the arrival gets if the entry takes it; the entry is still on its list.
    pub hit: Match,
    /// Its chain's place among the heads.
    pub(crate) place: Option<usize>,
}

/// What became of a posted entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Posted {
    /// A kept message matched. It is removed, and the entry is *not* linked.
    Found(Unexpected),
    /// Nothing kept matched; the entry now waits on its list.
    Linked(EntryHandle),
}

/// A message that arrived before a receive for it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unexpected {
    /// Its handle; stale already when the call that returned it removed the message.
    pub handle: UnexpectedHandle,
    /// Its match key.
    pub key: MatchKey,
    /// Its length in bytes, as given to `keep`.
    pub length: u64,
    /// The caller's number for it.
    pub token: u64,
}

/// Names one posted entry. The number in it is never used twice in the life of a matcher, so an old handle
/// can never name a newer entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryHandle {
    pub(crate) number: NonZeroU64,
    pub(crate) slot: u32,
}

/// Names one kept message. The number in it is never used twice in the life of a matcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnexpectedHandle {
    pub(crate) number: NonZeroU64,
    pub(crate) slot: u32,
}

impl fmt::Display for EntryHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "posted entry {} (slot {})", self.number, self.slot)
    }
}

impl fmt::Display for UnexpectedHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kept message {} (slot {})", self.number, self.slot)
    }
}
