//! Events about links, peers and devices: what happened, and to how much of the rail.

use crate::message::PeerIndex;
use crate::time::Time;

/// How much of a rail an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The event is about one peer over this rail.
    Peer(PeerIndex),
    /// Every peer over this rail.
    Rail,
}

/// Why a peer is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// The peer closed the connection in order.
    Closed,
    /// The peer's process ended or its connection broke without a goodbye.
    Died,
    /// The peer broke the rules of the wire: an index, a length or a state that cannot be.
    Hostile,
    /// The peer did not answer within the bound.
    Silent,
    /// The connection was given up although both processes are alive: reported by the peer that did so
    /// ([`Message::abandon`](crate::message::Message::abandon), or a failure at its end).
    Abandoned,
    /// This process has no memory or descriptors left for the connection.
    Resources,
    /// The control plane has lost it, or all of the job with its lifeline: known from there, and not from a
    /// rail.
    Control,
}

impl DownReason {
    /// The reason as a sentence about the peer ("it").
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "it closed the connection",
            Self::Died => "its process has ended",
            Self::Hostile => "it broke the rules",
            Self::Silent => "it did not answer",
            Self::Abandoned => "the path was given up",
            Self::Resources => "no memory or descriptors for it",
            Self::Control => "the control plane has lost it",
        }
    }
}

/// The generation of the connection to one peer: the same number at both ends, and a later one each time it
/// comes up. It identifies the connection in a report that arrives late, over another rail.
///
/// Each end counts its own reconnects, and the sum of both counts is the generation: neither count ever
/// shrinks, one grows each time, and both ends add the same two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Life(pub u32);

impl Life {
    /// The generation of first contact.
    pub const FIRST: Self = Self(0);

    /// The generation after these numbers of reconnects at the two ends.
    #[must_use]
    pub const fn of(ours: u32, theirs: u32) -> Self {
        Self(ours.wrapping_add(theirs))
    }

    /// Whether it is earlier than `other`. The numbers wrap; numbers that are compared are less than half the
    /// range apart.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
}

/// The kinds of events of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The peer can be reached in both directions: the first handshake has completed, or one after it was
    /// down.
    PeerUp,
    /// The peer owes responses and sends none. It may compute without polling, or the path may be broken:
    /// this rail alone cannot decide that ([`Message::proved_alive`](crate::message::Message::proved_alive)).
    PeerSuspect,
    /// A suspect has answered.
    PeerRecovered,
    /// The peer cannot be reached any more over this rail.
    PeerDown(DownReason),
    /// The link is back.
    LinkUp,
    /// The link is gone.
    LinkDown,
    /// The device is gone (unplugged, VF removed).
    DeviceGone,
}

impl EventKind {
    /// The event in words, as flight recorders show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PeerUp => "up: it answers",
            Self::PeerDown(DownReason::Closed) => "down: it closed the connection",
            Self::PeerDown(DownReason::Died) => "down: its process has ended",
            Self::PeerDown(DownReason::Hostile) => "down: it broke the rules",
            Self::PeerDown(DownReason::Silent) => "down: it did not answer",
            Self::PeerDown(DownReason::Abandoned) => "down: the path was given up",
            Self::PeerDown(DownReason::Control) => "down: the control plane has lost it",
            Self::PeerDown(DownReason::Resources) => "down: no memory or descriptors for it",
            Self::PeerSuspect => "suspect: it owes answers",
            Self::PeerRecovered => "recovered: it answers again",
            Self::LinkUp => "link up",
            Self::LinkDown => "link down",
            Self::DeviceGone => "device gone",
        }
    }
}

/// An event, delivered once by [`Rail::event`](crate::rail::Rail::event).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailEvent {
    /// When the rail noticed.
    pub at: Time,
    /// How much of the rail it is about.
    pub scope: Scope,
    /// The kind of event.
    pub kind: EventKind,
    /// With [`EventKind::PeerUp`] of a message rail: the generation of the connection that came up, even if
    /// the rail has moved on before the event is read. [`Life::FIRST`] otherwise.
    pub life: Life,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_add_up_the_same_and_later_is_later() {
        assert_eq!((Life::of(3, 4), Life::of(0, 0)), (Life::of(4, 3), Life::FIRST));
        assert!(Life::of(3, 4).is_before(Life::of(3, 5)) && !Life(7).is_before(Life(7)));
        assert!(!Life::of(3, 5).is_before(Life::of(3, 4)));
    }

    #[test]
    fn the_numbers_wrap() {
        let last = Life::of(u32::MAX, 0);
        assert!(last.is_before(Life::of(u32::MAX, 1)) && !Life::FIRST.is_before(last));
        assert_eq!(Life::of(u32::MAX, 1), Life::FIRST);
    }
}
