//! Events about links, peers and devices: what happened, and to how much of the rail.

use crate::message::PeerIndex;
use crate::time::Time;

/// How much of a rail an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One peer over this rail.
    Peer(PeerIndex),
    /// Every peer over this rail.
    Rail,
}

/// Why a peer is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// It said goodbye.
    Closed,
    /// Its process ended or its connection broke without a goodbye.
    Died,
    /// It broke the rules of the wire: an index, a length or a state that cannot be.
    Hostile,
    /// It did not answer within the bound.
    Silent,
    /// The way was given up, and its two processes live: told by the peer that did so
    /// ([`Message::abandon`](crate::message::Message::abandon), or what broke at its end).
    Abandoned,
    /// This process has no memory or descriptors left to talk to it.
    Resources,
    /// The control plane has lost it, or all of the job with its lifeline: known from there, and not from a rail.
    Control,
}

/// Which of the connections that followed each other over the way to one peer: the same number at both ends, and a later one
/// for each that came up. So who hears of the end of one, over another rail and late, knows which one is meant.
///
/// Where each end counts how often it began anew, and a connection is named by both counts, their sum is such a number:
/// neither count ever shrinks, one grows each time, and both ends add the same two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Life(pub u32);

impl Life {
    /// That of first contact.
    pub const FIRST: Self = Self(0);

    /// The life in which the two ends have begun anew so many times.
    #[must_use]
    pub const fn of(ours: u32, theirs: u32) -> Self {
        Self(ours.wrapping_add(theirs))
    }

    /// Whether it came before `other`. The numbers wrap; no two that are compared are half of them apart.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The peer can be reached: first contact was made, or contact anew after it was down, in both directions.
    PeerUp,
    /// The peer owes answers and gives none. It may compute without polling, or the way may be broken: this rail alone
    /// cannot tell ([`Message::proved_alive`](crate::message::Message::proved_alive)).
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

/// One event, delivered once by [`Rail::event`](crate::rail::Rail::event).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailEvent {
    /// When the rail noticed.
    pub at: Time,
    /// How much of the rail it is about.
    pub scope: Scope,
    /// What happened.
    pub kind: EventKind,
    /// With [`EventKind::PeerUp`] of a rail that carries messages: which connection it is that came up. It is of that
    /// moment, and stays what it was when the rail has moved on before the event is read. [`Life::FIRST`] otherwise.
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
