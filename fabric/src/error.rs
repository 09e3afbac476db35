//! Errors of rails: what failed, on what, the system's word, the likely cause and what to do next.

use std::io;

use thiserror::Error;

use crate::name::KINDS;

/// Why a rail could not be opened, or could not do something off the data path.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RailError {
    /// The name starts with no known kind of driver.
    #[error("`{given}` names no kind of rail; the nearest is `{nearest}` (kinds: {})", KINDS.join(", "))]
    UnknownKind {
        /// What was given.
        given: String,
        /// The nearest valid kind.
        nearest: &'static str,
    },
    /// A kind that this build does not contain, or an object that the driver cannot use.
    #[error("rail `{rail}` cannot be used: {reason}; {remedy}")]
    Unusable {
        /// The rail's name.
        rail: String,
        /// The reason.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// An address that is not one of this rail's.
    #[error("`{address}` is not an address of rail `{rail}`: {reason}")]
    BadAddress {
        /// The rail's name.
        rail: String,
        /// The address.
        address: String,
        /// Why not.
        reason: &'static str,
    },
    /// The peer does not answer or refuses.
    #[error("rail `{rail}` cannot reach {peer}: {reason}; {remedy}")]
    Unreachable {
        /// The rail's name.
        rail: String,
        /// The peer.
        peer: String,
        /// Why.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Shared memory could not be had.
    #[error(
        "could not {step} ({object}, {length} bytes): {source}; check free memory, the container's memory limit, and `ulimit -n` and `-v`"
    )]
    Memory {
        /// The step.
        step: &'static str,
        /// The object's label.
        object: String,
        /// The size asked for, in bytes.
        length: usize,
        /// The system's error.
        source: io::Error,
    },
    /// A peer broke the rules.
    #[error("a peer {what}; its connection is dropped: it runs another version, or it is not one of ours")]
    Hostile {
        /// What it did.
        what: &'static str,
    },
    /// A system call failed.
    #[error("could not {step} on rail `{rail}`: {source}; {remedy}")]
    System {
        /// The rail's name.
        rail: String,
        /// The step.
        step: &'static str,
        /// The system's error.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
}

impl RailError {
    /// An unknown kind, with the nearest valid one.
    pub fn unknown_kind(given: &str) -> Self {
        let kind = given.split(':').next().unwrap_or(given);
        let nearest = KINDS
            .into_iter()
            .min_by_key(|known| strsim::damerau_levenshtein(kind, known))
            .unwrap_or(KINDS[0]);
        Self::UnknownKind {
            given: given.to_owned(),
            nearest,
        }
    }

    /// A failed step on shared memory.
    pub fn memory(step: &'static str, object: &str, length: usize, source: io::Error) -> Self {
        Self::Memory {
            step,
            object: object.to_owned(),
            length,
            source,
        }
    }

    /// A peer that broke the rules.
    pub fn hostile(what: &'static str) -> Self {
        Self::Hostile { what }
    }
}
