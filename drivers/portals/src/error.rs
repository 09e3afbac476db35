//! Errors of opening an interface.

use doorbell_fabric::error::Exit;
use thiserror::Error;

/// What failed while an interface was opened.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortalsError {
    /// No library, or one that is no libportals.
    #[error(
        "{name} cannot be used as a Portals library: {reason}; install the NIC vendor's, or pass its path"
    )]
    Library {
        /// The name, as it was given.
        name: String,
        /// The reason for the refusal.
        reason: String,
    },
    /// A call of the library.
    #[error("{call} of {library} returned {code} ({meaning}); {remedy}")]
    Call {
        /// Name of the function that failed.
        call: &'static str,
        /// The name of the library.
        library: String,
        /// The return code.
        code: i32,
        /// Its name in the header.
        meaning: &'static str,
        /// What to do next.
        remedy: &'static str,
    },
}

impl PortalsError {
    /// A short name that scripts may compare.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Library { .. } => "portals.library",
            Self::Call { .. } => "portals.call",
        }
    }

    /// The number with which a program ends.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        Exit::Rail
    }

    pub(crate) fn call(call: &'static str, library: &str, code: i32) -> Self {
        Self::Call {
            call,
            library: library.to_owned(),
            code,
            meaning: meaning(code),
            remedy: remedy(code),
        }
    }
}

/// The names of the return codes (reference: portals, section 2).
pub(crate) const fn meaning(code: i32) -> &'static str {
    match code {
        0 => "PTL_OK",
        1 => "PTL_ARG_INVALID",
        2 => "PTL_CT_NONE_REACHED",
        3 => "PTL_EQ_DROPPED",
        4 => "PTL_EQ_EMPTY",
        5 => "PTL_FAIL",
        6 => "PTL_IGNORED",
        7 => "PTL_IN_USE",
        8 => "PTL_LIST_TOO_LONG",
        9 => "PTL_NO_INIT",
        10 => "PTL_NO_SPACE",
        11 => "PTL_PID_IN_USE",
        12 => "PTL_PT_FULL",
        13 => "PTL_PT_EQ_NEEDED",
        14 => "PTL_PT_IN_USE",
        15 => "PTL_ABORTED",
        _ => "unknown code",
    }
}

const fn remedy(code: i32) -> &'static str {
    match code {
        1 => "check the interface's number and the requested kind",
        9 => "the library could not be initialised: see its own messages",
        10 => "request smaller limits, or raise the limit of locked memory (ulimit -l)",
        11 => "another process has this Portals process id: request any",
        _ => "see the library's own messages and the NIC's state",
    }
}
