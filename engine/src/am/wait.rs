//! What becomes of the conduit's errors.

use doorbell_am::{AmError, BootError};
use doorbell_job::error::Error;
use doorbell_job::wait::{Driven, LostRank, Station};

/// An error of the conduit, with what is known about a rank that is lost.
pub(super) fn told<D: Driven>(station: &Station, driven: &D, error: AmError) -> Error {
    match error {
        AmError::PeerLost { rank, reason } | AmError::Boot(BootError::Lost { rank, reason }) => {
            station.peer_lost(driven, LostRank { rank, reason })
        }
        error => error.into(),
    }
}
