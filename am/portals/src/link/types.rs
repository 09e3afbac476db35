//! Types shared by a link and the layer above it.

use std::time::Duration;

use doorbell_fabric::message::{Inbound, OpError, OpId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian};

/// A peer of this link: dense, from zero, in the order of `add_peer`. The first one is this process itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PeerId(pub(crate) u32);

impl PeerId {
    /// This process itself: what is sent to it is queued, and shown by [`Link::poll`](super::Link::poll).
    pub(crate) const SELF: Self = Self(0);

    /// Returns the index into a table of peers.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A rail of a node: its number in the order of `add_rail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RailId(pub u16);

impl RailId {
    /// Returns the index into a table of rails.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct First {
    /// The kind of message: below 0x80 it belongs to the layer above, from there on to the link itself.
    pub(crate) kind: u8,
    /// The layer above's.
    pub(crate) flags: u8,
    /// The layer above's.
    pub(crate) short: little_endian::U16,
    /// The link's: the number among the messages to this peer.
    pub(crate) seq: little_endian::U32,
}
const _: () = assert!(size_of::<First>() == FIRST_LEN);

impl First {
    /// Whether it is a word of the link's own.
    pub(super) const fn is_own(self) -> bool {
        self.kind >= OWN_KINDS
    }
}

/// Bytes of [`First`].
pub(crate) const FIRST_LEN: usize = 8;
/// The kinds from here on are the link's own.
const OWN_KINDS: u8 = 0x80;
/// Longest head of a message, in bytes: what every rail takes.
pub(crate) const HEAD_MOST: usize = 64;

/// The link's own words: a [`First`], whose `short` names a path. They have no place among the numbers.
pub(super) mod kind {
    /// The path, in the connection whose number `seq` is, is given up.
    pub(crate) const BROKEN: u8 = 0x80;
    /// Requests an answer over the path, with this `seq`.
    pub(crate) const PROBE: u8 = 0x81;
    /// The reply to such a probe.
    pub(crate) const ECHO: u8 = 0x82;
}

/// Where a link delivers.
pub(crate) trait Upper {
    /// A message of `peer`, in order and exactly once. The first eight bytes of `inbound` are `first`.
    fn message(&mut self, peer: PeerId, first: First, inbound: Inbound<'_>);

    /// A one-sided operation that [`Link::get`](super::Link::get) started has ended.
    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>);
}

/// Settings of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkConfig {
    /// How long a peer without a way is waited for; zero: not at all.
    pub(crate) patience: Duration,
    /// Bytes of urgent messages that may wait for one peer's ways, and of messages to this process itself.
    pub(crate) backlog: usize,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(10),
            backlog: 4 << 20,
        }
    }
}

/// What sizes suit the ways of a peer, in bytes, head and body together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Longest message: a longer one is refused. The least of all ways, so that what one gives back another
    /// can carry.
    pub(crate) message: usize,
    /// Largest message that is better sent at once than announced.
    pub(crate) eager: usize,
    /// Best size of a fragment.
    pub(crate) fragment: usize,
    /// The length from which on a get is better than fragments; `None` where no path offers it.
    pub(crate) get_from: Option<usize>,
}

impl Sizes {
    /// The sizes of messages to this process itself, and to a peer without paths.
    pub(super) const OWN: Self = Self {
        message: 128 << 10,
        eager: 16 << 10,
        fragment: 64 << 10,
        get_from: None,
    };
}
