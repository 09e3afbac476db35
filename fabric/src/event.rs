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
}
