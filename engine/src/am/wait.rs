//! The conduit's errors as errors of the engine.

use doorbell_am::{AmError, BootError};
use doorbell_job::error::Error;
use doorbell_job::wait::{LostRank, NodeWaiter, PollableNode};

/// Converts an error of the conduit; an error of a lost rank gets what the rails know about it.
pub(super) fn explained<D: PollableNode>(waiter: &NodeWaiter, node: &D, error: AmError) -> Error {
    match error {
        AmError::PeerLost { rank, reason } | AmError::Boot(BootError::Lost { rank, reason }) => {
            waiter.peer_lost(node, LostRank { rank, reason })
        }
        error => error.into(),
    }
}
