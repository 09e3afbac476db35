//! What the control plane tells whoever uses it, and how things end.

use crate::bytes::Bytes;
use crate::contact::Contact;
use crate::name::{Epoch, Name};
use crate::transport::{Command, TransportId};

/// A send, numbered by its node. Each one ends with exactly one [`Event::Sent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendId(pub u64);

/// A posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecvId(pub u64);

/// A broadcast of ours. Each one ends with exactly one [`Event::BroadcastEnded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// How a send ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// The peer has it: it is in its queues, in order.
    Delivered,
    /// Not acknowledged in time. It may have arrived.
    TimedOut,
    /// In all that time there was no way to the peer.
    Unreachable,
    /// The peer is lost. It may have arrived before.
    PeerLost,
    /// The peer has begun a new life. Its predecessor may have got it.
    PeerRestarted,
    /// It was cancelled. It may have arrived.
    Cancelled,
    /// This node ends. It may have arrived.
    Ended,
}

/// Why a send was not even begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// A name that nobody has.
    #[error("{0} is nobody: the rank is not below the number of ranks; check the rank")]
    Nobody(Name),
    /// A tag of the control plane itself.
    #[error("tag {0} is reserved for the control plane: use one above {max}", max = crate::rml::RESERVED)]
    Reserved(u32),
    /// Too long.
    #[error(
        "a message of {length} bytes is longer than the limit of {limit}: send it in parts, or over a rail"
    )]
    TooLong {
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// As much waits as is allowed; [`Event::Room`] tells when to try again.
    #[error(
        "{waiting} bytes wait for {peer} already: wait until there is room; it, or the way to it, is slow"
    )]
    Full {
        /// For whom.
        peer: Name,
        /// How much waits for it.
        waiting: usize,
    },
    /// The peer is lost.
    #[error("{0} is lost: it ended, or no way leads to it; its output says more")]
    Lost(Name),
    /// The node has ended.
    #[error("the control plane of this process has ended: nothing can be sent any more")]
    Ended,
}

/// Why a receive was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// There is an equal one.
    #[error("a receive of tag {tag} from {from} is posted already: cancel it, or wait for it")]
    Twice {
        /// From whom.
        from: crate::name::From,
        /// The tag.
        tag: u32,
    },
    /// A tag of the control plane itself.
    #[error("tag {0} is reserved for the control plane: use one above {max}", max = crate::rml::RESERVED)]
    Reserved(u32),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message, for a posted receive.
    Received {
        /// Which receive. A one-shot one is posted no longer.
        recv: RecvId,
        /// Who sent it.
        from: Name,
        /// Its tag.
        tag: u32,
        /// The message.
        body: Bytes,
    },
    /// A send has ended.
    Sent {
        /// Which.
        send: SendId,
        /// To whom.
        to: Name,
        /// Its tag.
        tag: u32,
        /// How.
        status: Status,
    },
    /// A receive was cancelled.
    Cancelled {
        /// Which.
        recv: RecvId,
    },
    /// After a send that found no room for this peer: there is room.
    Room {
        /// For whom.
        peer: Name,
    },
    /// A broadcast, also to the one who made it. All ranks get broadcasts in the same order.
    Broadcast {
        /// Who made it.
        from: Name,
        /// Its tag.
        tag: u32,
        /// What it says.
        body: Bytes,
    },
    /// A broadcast of ours has ended: it is at all ranks but these.
    BroadcastEnded {
        /// Which.
        op: OpId,
        /// Ranks that are not known to have it: those that are lost, and at the deadline those that did not answer.
        missing: Vec<u32>,
    },
    /// An all-gather has ended.
    Gathered {
        /// Which.
        id: u32,
        /// What each rank gave, by rank.
        table: Vec<(u32, Bytes)>,
        /// Ranks that gave nothing: lost, or not in time.
        missing: Vec<u32>,
    },
    /// An all-gather has ended without a result; in time nothing came from the root.
    GatherFailed {
        /// Which.
        id: u32,
        /// Ranks from which nothing has come as far as this process knows.
        missing: Vec<u32>,
    },
    /// This process has a lifeline: its parent in the tree, or the ancestor that took its place.
    LifelineUp {
        /// Who.
        parent: Name,
    },
    /// All ancestors are lost. What follows is the [`Policy`](crate::config::Policy)'s.
    LifelineLost,
    /// A peer is lost: all ways to it have failed, or those who had one say so. Told once for each loss.
    PeerLost {
        /// Who.
        peer: Name,
        /// In which life, as far as known.
        epoch: Epoch,
    },
    /// A peer that was lost is there, in the same life.
    PeerBack {
        /// Who.
        peer: Name,
    },
    /// A peer has begun a new life. What was under way to its predecessor has ended.
    PeerRestarted {
        /// Who.
        peer: Name,
        /// Which life this is.
        epoch: Epoch,
    },
    /// An answer to a look-up: it is used from now on.
    Found {
        /// Where it can be reached.
        contact: Contact,
    },
}

/// What a node wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Hand this to the transport.
    Command(TransportId, Command),
    /// Tell the user.
    Event(Event),
}
