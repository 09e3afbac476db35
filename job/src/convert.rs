//! Conversions of the PML's statuses and errors to the user's.

use doorbell_pml::{self as pml, PmlError};

use crate::error::Error;
use crate::types::Status;

impl From<pml::Status> for Status {
    #[inline]
    fn from(status: pml::Status) -> Self {
        of(status.source, status.tag, status.length)
    }
}

impl From<pml::Envelope> for Status {
    #[inline]
    fn from(found: pml::Envelope) -> Self {
        of(found.source, found.tag, found.length)
    }
}

#[inline]
fn of(source: pml::Rank, tag: u64, length: u64) -> Status {
    Status {
        source: source.0,
        tag,
        len: usize::try_from(length).unwrap_or(usize::MAX),
    }
}

impl From<PmlError> for Error {
    #[cold]
    fn from(error: PmlError) -> Self {
        match error {
            PmlError::NoSuchRank { rank, size } => Self::NoSuchRank { rank, size },
            PmlError::NoRail { rank } => Self::NoRail {
                peer: rank.0,
                reasons: "none of its rails could be opened".to_owned(),
            },
            PmlError::Open { source, .. } => Self::Rail(source),
            PmlError::PeerLost { rank, reason } => Self::PeerLost {
                peer: rank.0,
                why: reason.as_str().to_owned(),
                what: "what was under way may or may not have arrived".to_owned(),
                recent: Vec::new(),
                remedy: reason.advice(),
            },
            PmlError::SendAborted { source_rank, tag } => Self::PeerLost {
                peer: source_rank.0,
                why: "it abandoned its message".to_owned(),
                what: format!("the message with tag {tag:#x} was under way and is not complete"),
                recent: Vec::new(),
                remedy: "look at the sender's own output for the reason",
            },
            PmlError::Rejected { rank, tag } => Self::PeerLost {
                peer: rank.0,
                why: "it has closed what the message was for".to_owned(),
                what: format!("the message with tag {tag:#x} was not received"),
                recent: Vec::new(),
                remedy: "look at the receiver's own output for the reason",
            },
            PmlError::Truncated {
                source_rank,
                tag,
                length,
                room,
                ..
            } => Self::Truncated {
                source_rank: source_rank.0,
                tag,
                length,
                capacity: room,
            },
            PmlError::Corrupt {
                source_rank,
                tag,
                length,
                announced,
                found,
            } => Self::Corrupt {
                source_rank: source_rank.0,
                tag,
                length,
                announced,
                found,
            },
            PmlError::Operation { rank, reason } => Self::OneSided { peer: rank.0, reason },
            PmlError::Cancelled { .. } => Self::Cancelled,
            PmlError::StaleRequest(_) | PmlError::StaleMessage => Self::Stale {
                what: error.to_string(),
            },
            PmlError::InjectFull { .. } => Self::Full {
                what: error.to_string(),
            },
            PmlError::BadLayout { .. }
            | PmlError::MultiPieces { .. }
            | PmlError::InjectTooLong { .. }
            | PmlError::BadOperation { .. } => Self::Layout {
                what: error.to_string(),
            },
            other => Self::Job {
                reason: other.to_string(),
            },
        }
    }
}
