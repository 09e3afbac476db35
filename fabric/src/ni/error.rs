//! Why a call of an interface was refused. The names and numbers are the return codes of the public header
//! (reference: portals, section 2).

use thiserror::Error;

/// Why a call did nothing.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NiError {
    /// An argument is none that there is.
    #[error("{0} is not valid here: see the call's description for what it takes")]
    ArgInvalid(&'static str),
    /// No table entry is free, or not the requested one.
    #[error("all entries of the portal table are taken: free one, or request a larger max_pt_index")]
    PtFull,
    /// The requested table entry is in use.
    #[error(
        "this entry of the portal table is taken, or still has list entries: choose another, or unlink them first"
    )]
    PtInUse,
    /// Flow control needs an event queue.
    #[error("flow control reports PT_DISABLED in an event queue: give the portal table entry one")]
    PtEqNeeded,
    /// Operations or headers still refer to the entry.
    #[error(
        "operations or unexpected headers still refer to this entry: try again when their events have come"
    )]
    InUse,
    /// A limit of the interface is reached.
    #[error(
        "{0} is at the limit that the interface reports: release some, or request more when it is initialised"
    )]
    NoSpace(&'static str),
    /// The list is as long as the limit allows.
    #[error(
        "the list is as long as max_list_size allows: unlink entries, or request more when the interface is initialised"
    )]
    ListTooLong,
    /// The map of a logical interface is not set, or the interface is not there.
    #[error("this interface is not ready: a logical one needs its map first")]
    NoInit,
    /// The call was made before, and can be made only once.
    #[error("this was set before, and cannot be changed")]
    Ignored,
    /// The process id is taken.
    #[error("another process of this node has this process id: request PID_ANY, or another one")]
    PidInUse,
    /// Something failed that has no name of its own.
    #[error("the interface failed: {0}")]
    Fail(&'static str),
    /// The process has called Abort.
    #[error("waits of this process were ended by PtlAbort")]
    Aborted,
    /// There is no room now: nothing was taken; try again after a poll. The C library waits instead.
    #[error("no room for another operation now: poll, and try again")]
    Full,
}

impl NiError {
    /// The return code of the C binding.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::ArgInvalid(_) => 1,
            Self::Fail(_) => 5,
            Self::Ignored => 6,
            Self::InUse => 7,
            Self::ListTooLong => 8,
            Self::NoInit => 9,
            Self::NoSpace(_) | Self::Full => 10,
            Self::PidInUse => 11,
            Self::PtFull => 12,
            Self::PtEqNeeded => 13,
            Self::PtInUse => 14,
            Self::Aborted => 15,
        }
    }
}
