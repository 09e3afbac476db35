//! The conduit's errors as errors of the engine.

use doorbell_am::{AmError, BootError};
use doorbell_job::error::Error;
use doorbell_job::wait::{Driven, LostRank, Station};

/// Converts an error of the conduit; an error of a lost rank gets what the rails know about it.
pub(super) fn explained<D: Driven>(station: &Station, driven: &D, error: AmError) -> Error {
    match error {
        AmError::PeerLost { rank, reason } | AmError::Boot(BootError::Lost { rank, reason }) => {
            station.peer_lost(driven, LostRank { rank, reason })
        }
        error => error.into(),
    }
}
