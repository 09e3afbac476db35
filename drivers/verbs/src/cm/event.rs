//! What contact requests of the rail, and reports to it.

use std::fmt;

use doorbell_fabric::event::{DownReason, Life};
use doorbell_fabric::message::PeerIndex;

use super::epoch::Epoch;
use super::mtu::{Diagnosis, Mtu};
use super::wire::Numbers;
use crate::gid::GidPair;

/// One attempt to be connected to a peer. The rail's answers name it, so that a late one is not taken for
/// another attempt's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) peer: PeerIndex,
    pub(crate) epoch: Epoch,
}

/// Why a connection is refused. The numbers are the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refusal {
    /// The other end would use another pair of GIDs.
    Gids = 1,
    /// The partitions are not the same, or both ends are limited members.
    Partition = 2,
    /// The other end has no memory or queue pairs left.
    Resources = 3,
    /// The peer has ended for good, as the other end knows it.
    Over = 4,
    /// A reason of a later version.
    Other = 255,
}

impl Refusal {
    pub(crate) const fn of(number: u8) -> Self {
        match number {
            1 => Self::Gids,
            2 => Self::Partition,
            3 => Self::Resources,
            4 => Self::Over,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Gids => "both ends choose different pairs of GIDs, so one of them has another table by now",
            Self::Partition => "the ports have no partition in common of which one is a full member",
            Self::Resources => "no queue pair or memory is left for the connection",
            Self::Over => "the peer's former connection has ended for good there",
            Self::Other => "the peer gives a reason that this version does not know",
        })
    }
}

/// Why an end has no connection any more. The numbers are the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Farewell {
    /// It has closed its rail, or forgotten the peer: nothing follows.
    Closed = 1,
    /// It has given the connection up, for whatever reason: another may follow.
    Abandoned = 2,
}

impl Farewell {
    /// Numbers of later versions are of connections that may be followed by others.
    pub(crate) const fn of(number: u8) -> Self {
        match number {
            1 => Self::Closed,
            _ => Self::Abandoned,
        }
    }

    /// How the end that receives it finds its peer.
    pub(crate) const fn reason(self) -> DownReason {
        match self {
            Self::Closed => DownReason::Closed,
            Self::Abandoned => DownReason::Abandoned,
        }
    }
}

/// What a queue pair is to be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connect {
    pub(crate) attempt: Attempt,
    /// The peer's numbers.
    pub(crate) to: Numbers,
    /// The GIDs, ours and theirs.
    pub(crate) gids: GidPair,
    pub(crate) mtu: Mtu,
    /// The key of our partition.
    pub(crate) partition: u16,
    /// The number of the connection that it becomes.
    pub(crate) life: Life,
}

/// What the rail has to do, or to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Make fresh queue pairs, and answer by [`Contact::made`](super::Contact::made).
    Make(Attempt),
    /// Connect them, once nothing has to be waited for, and answer by
    /// [`Contact::connected`](super::Contact::connected).
    Connect(Connect),
    /// Send a short message and one of the MTU over the connection, and report each that was
    /// acknowledged by [`Contact::passed`](super::Contact::passed).
    Prove(Attempt, Mtu),
    /// The connection carries messages.
    Up {
        attempt: Attempt,
        life: Life,
        mtu: Mtu,
        diagnosis: Option<Diagnosis>,
    },
    /// The queue pairs of an attempt are not needed any more: no layer above has seen it.
    Discard(Attempt),
    /// The connection is over, or the peer that was called did not answer; its queue pairs go.
    Down(Attempt, DownReason),
    /// No connection is made; the queue pairs of the attempt go, if it had any.
    Refused {
        attempt: Attempt,
        refusal: Refusal,
        /// Whether we refuse, and not the peer.
        by_us: bool,
    },
    /// A peer that was forgotten needs nothing any more: its number is free.
    Released(PeerIndex),
}
