//! What comes back: messages, and how things end.

use crate::bytes::Bytes;
use crate::event::{RecvError, SendError, Status};
use crate::name::Name;
use crate::{net, node};

/// It was not begun, because it could not even be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// The mailbox is full.
    #[error("the control plane has more to do than its mailbox holds: wait for what was asked for before")]
    Full,
    /// It has ended.
    #[error("the control plane of this process has ended: nothing can be asked of it any more")]
    Ended,
}

/// A message that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who sent it.
    pub from: Name,
    /// Its tag.
    pub tag: u32,
    /// What it says.
    pub body: Bytes,
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReceived {
    /// It was not posted.
    #[error(transparent)]
    NotPosted(#[from] RecvError),
    /// It was cancelled.
    #[error("the receive was cancelled")]
    Cancelled,
    /// This process's control plane has ended.
    #[error("the control plane of this process has ended: nothing comes any more")]
    Ended,
}

/// How an all-gather ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathered {
    /// What each rank gave, by rank; `None` when there is no result.
    pub table: Option<Vec<(u32, Bytes)>>,
    /// Ranks that gave nothing.
    pub missing: Vec<u32>,
}

/// What has been counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// By the node.
    pub node: node::Counters,
    /// By the transport `tcp`.
    pub tcp: net::Counters,
}

/// How a send ends.
pub type Sent = Result<Status, SendError>;
/// How a receive ends.
pub type Received = Result<Message, NotReceived>;
/// How a broadcast ends: with the ranks that are not known to have it.
pub type Spread = Result<Vec<u32>, SendError>;
