//! What becomes of the conduit's errors.

use doorbell_am::{AmError, BootError};

use crate::error::Error;
use crate::station::{Driven, LostRank, Station};

/// An error of the conduit, with what is known about a rank that is lost.
pub(super) fn told<D: Driven>(station: &Station, driven: &D, error: AmError) -> Error {
    match error {
        AmError::PeerLost { rank, reason } | AmError::Boot(BootError::Lost { rank, reason }) => {
            station.peer_lost(driven, LostRank { rank, reason })
        }
        error => error.into(),
    }
}
