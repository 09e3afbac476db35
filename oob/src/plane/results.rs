//! Results: messages, and how operations end.

use crate::bytes::Bytes;
use crate::event::{RecvError, SendError, Status};
use crate::name::Name;
use crate::{lines, node};

/// Why a request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// The mailbox is full.
    #[error("the mailbox of the control plane is full: wait for earlier requests")]
    Full,
    /// The control plane has ended.
    #[error("the control plane of this process has ended: it takes no more requests")]
    Ended,
}

/// A message that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender of the message.
    pub from: Name,
    /// The tag of the message.
    pub tag: u32,
    /// The content of the message.
    pub body: Bytes,
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReceived {
    /// The receive was not posted.
    #[error(transparent)]
    NotPosted(#[from] RecvError),
    /// The receive was cancelled.
    #[error("the receive was cancelled")]
    Cancelled,
    /// The control plane of this process has ended.
    #[error("the control plane of this process has ended: no more messages are received")]
    Ended,
}

/// The result of an all-gather.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathered {
    /// The contribution of each rank, by rank; `None` if there is no result.
    pub table: Option<Vec<(u32, Bytes)>>,
    /// Ranks without a contribution.
    pub missing: Vec<u32>,
}

/// The counters of a control plane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// The counters of the node.
    pub node: node::Counters,
    /// The counters of the transport `tcp`.
    pub tcp: lines::Counters,
}

/// The result of a send.
pub type Sent = Result<Status, SendError>;
/// The result of a receive.
pub type Received = Result<Message, NotReceived>;
/// The result of a broadcast: the ranks not known to have it.
pub type Spread = Result<Vec<u32>, SendError>;
