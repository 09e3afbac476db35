//! Events of the control plane, and how operations end.

use crate::bytes::Bytes;
use crate::contact::Contact;
use crate::name::{Epoch, Name};
use crate::transport::{Command, TransportId};

/// A send, numbered by its node. Each ends with exactly one [`Event::Sent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendId(pub u64);

/// A posted receive, numbered by its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecvId(pub u64);

/// A broadcast of this process. Each ends with exactly one [`Event::BroadcastEnded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// How a send ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// The peer has it in its queues, in order.
    Delivered,
    /// It was not acknowledged in time, and may have arrived.
    TimedOut,
    /// There was no path to the peer in all that time.
    Unreachable,
    /// The peer is lost; it may have received it before.
    PeerLost,
    /// The peer has restarted; its predecessor may have received it.
    PeerRestarted,
    /// It was cancelled, and may have arrived.
    Cancelled,
    /// This node has ended; it may have arrived.
    Ended,
}

/// Why a send was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No process has this name.
    #[error("no process is named {0}: the rank is not below the number of ranks; check the rank")]
    UnknownPeer(Name),
    /// The tag is reserved for the control plane.
    #[error("tag {0} is reserved for the control plane: use one above {max}", max = crate::rml::RESERVED)]
    Reserved(u32),
    /// The message is too long.
    #[error(
        "a message of {length} bytes is longer than the limit of {limit}: split it, or send it over a rail"
    )]
    TooLong {
        /// The length of the message.
        length: usize,
        /// The maximum length.
        limit: usize,
    },
    /// The queue is full; [`Event::Room`] reports when to try again.
    #[error(
        "{waiting} bytes already wait for {peer}: wait until there is room; the peer or the path to it is slow"
    )]
    Full {
        /// The peer of the queue.
        peer: Name,
        /// The bytes that wait for it.
        waiting: usize,
    },
    /// The peer is lost.
    #[error("{0} is lost: it has ended, or no path leads to it; check its output")]
    Lost(Name),
    /// The node has ended.
    #[error("the control plane of this process has ended: nothing more can be sent")]
    Ended,
}

/// Why a receive was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// An equal receive is posted already.
    #[error("a receive of tag {tag} from {from} is already posted: cancel it, or wait for it")]
    Twice {
        /// The peers that it receives from.
        from: crate::name::From,
        /// The tag of the receive.
        tag: u32,
    },
    /// The tag is reserved for the control plane.
    #[error("tag {0} is reserved for the control plane: use one above {max}", max = crate::rml::RESERVED)]
    Reserved(u32),
}

/// An event that the node reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message has come, for a posted receive.
    Received {
        /// The receive that it matches. A one-shot receive is no longer posted.
        recv: RecvId,
        /// The sender of the message.
        from: Name,
        /// The tag of the message.
        tag: u32,
        /// The content of the message.
        body: Bytes,
    },
    /// A send has ended.
    Sent {
        /// The send that ended.
        send: SendId,
        /// The receiver of the message.
        to: Name,
        /// The tag of the message.
        tag: u32,
        /// How the send ended.
        status: Status,
    },
    /// A receive was cancelled.
    Cancelled {
        /// The receive that was cancelled.
        recv: RecvId,
    },
    /// There is room again for a peer, after a send that found none.
    Room {
        /// The peer that has room.
        peer: Name,
    },
    /// A broadcast has come; its sender gets it too. All ranks get broadcasts in the same order.
    Broadcast {
        /// The sender of the broadcast.
        from: Name,
        /// The tag of the broadcast.
        tag: u32,
        /// The content of the broadcast.
        body: Bytes,
    },
    /// A broadcast of this process has ended: all ranks have it but these.
    BroadcastEnded {
        /// The broadcast that ended.
        op: OpId,
        /// Ranks not known to have it: lost ones, and at the deadline those that did not answer.
        missing: Vec<u32>,
    },
    /// An all-gather has ended.
    Gathered {
        /// The number of the all-gather.
        id: u32,
        /// The contribution of each rank, by rank.
        table: Vec<(u32, Bytes)>,
        /// Ranks without a contribution: lost, or not in time.
        missing: Vec<u32>,
    },
    /// An all-gather has ended without a result, because none came from the root in time.
    GatherFailed {
        /// The number of the all-gather.
        id: u32,
        /// Ranks without a contribution, as far as this process knows.
        missing: Vec<u32>,
    },
    /// This process has a lifeline: its parent in the tree, or an ancestor in its place.
    LifelineUp {
        /// The process that is the lifeline.
        parent: Name,
    },
    /// All ancestors are lost. The [`Policy`](crate::config::Policy) decides what follows.
    LifelineLost,
    /// A peer is lost: all paths to it have failed, or its neighbours report so. Reported once for each loss.
    PeerLost {
        /// The peer that is lost.
        peer: Name,
        /// Its epoch, if known.
        epoch: Epoch,
    },
    /// A peer that was lost is back, in the same epoch.
    PeerBack {
        /// The peer that is back.
        peer: Name,
    },
    /// A peer has restarted. Everything in flight to its predecessor has ended.
    PeerRestarted {
        /// The peer that restarted.
        peer: Name,
        /// Its new epoch.
        epoch: Epoch,
    },
    /// The answer to a look-up, which is used from now on.
    Found {
        /// The addresses of the process.
        contact: Contact,
    },
}

/// An action that a node requires of its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Pass this command to the transport.
    Command(TransportId, Command),
    /// Report this event to the user.
    Event(Event),
}
