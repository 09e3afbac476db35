//! Why a service was not asked, or did not answer.

use std::io;
use std::time::Duration;

use crate::status::Status;
use crate::wire::BadAnswer;

/// Why a service was not asked, or did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// What was written is no service.
    #[error("`{given}` is no service: give the path of a Unix socket, HOST or HOST:PORT")]
    Service {
        /// What was written.
        given: String,
    },
    /// Nobody is there.
    #[error("no service runs at {service} ({source}): start it there, or name the one that runs")]
    NotRunning {
        /// Where.
        service: String,
        /// The system's error.
        source: io::Error,
    },
    /// It is there, and not for this user.
    #[error("this user may not ask the service at {service} ({source}): look at the mode of its socket")]
    Permission {
        /// Where.
        service: String,
        /// The system's error.
        source: io::Error,
    },
    /// It cannot be reached.
    #[error("could not reach the service at {service}: {source}; check the host's name and the network")]
    Unreachable {
        /// Where.
        service: String,
        /// The system's error.
        source: io::Error,
    },
    /// No answer in time.
    #[error(
        "the service at {service} did not answer within {:.1} s: look at its output, or allow it more time",
        waited.as_secs_f64()
    )]
    Late {
        /// Where.
        service: String,
        /// How long was waited.
        waited: Duration,
    },
    /// It refuses.
    #[error("the service at {service} refuses: {status}; {}", remedy(*status))]
    Refused {
        /// Where.
        service: String,
        /// Why.
        status: Status,
    },
    /// What it says is no answer.
    #[error(
        "what the service at {service} says is no answer: {reason}; check that it is one for ibacm's clients"
    )]
    Wrong {
        /// Where.
        service: String,
        /// Why.
        reason: BadAnswer,
    },
    /// It went.
    #[error("the service at {service} ended the connection: look at its output, and ask again")]
    Closed {
        /// Where.
        service: String,
    },
    /// The connection broke.
    #[error("the connection to the service at {service} broke: {source}; ask again")]
    Broken {
        /// Where.
        service: String,
        /// The system's error.
        source: io::Error,
    },
}

impl ClientError {
    /// The status, where the service refused.
    #[must_use]
    pub const fn status(&self) -> Option<Status> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Why a connection could not be made.
    pub(super) fn unconnected(service: String, source: io::Error) -> Self {
        use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
        match source.kind() {
            NotFound | ConnectionRefused => Self::NotRunning { service, source },
            PermissionDenied => Self::Permission { service, source },
            _ => Self::Unreachable { service, source },
        }
    }
}

const fn remedy(status: Status) -> &'static str {
    match status {
        Status::NoMemory => "ask again when it has less to do",
        Status::Invalid => "check the question: the index, the port, the path",
        Status::NoData => "ask again, without asking for what is known only",
        Status::NotConnected => {
            "see that the interface that leads there is up, and that the service is to ask by it (--nic)"
        }
        Status::TimedOut => "check that the destination's service runs and is in the same partition",
        Status::SourceAddress => "name one of this host's addresses, or none",
        Status::SourceType => "name a source by name, IP address, GID or LID",
        Status::DestinationAddress => "check the destination and the routes to it",
        Status::DestinationType => "name a destination, and a source where it is no IP address",
    }
}
