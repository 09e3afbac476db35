//! Why the service could not open its doors.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why the service could not open its doors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Somebody answers there.
    #[error(
        "a service is running at `{}` already: stop it first (systemctl stop ibacm.service ibacm.socket), or serve \
         at another path", path.display()
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is in the way.
    #[error("`{}` is there and is no {what}: it is not replaced; move it away or serve at another path", path.display())]
    InTheWay {
        /// The path.
        path: PathBuf,
        /// What it would be replaced by.
        what: &'static str,
    },
    /// The system refused a file.
    #[error("could not {step} `{}`: {source}; check that the folder is there and that this user may write to it", path.display())]
    File {
        /// The step.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused a TCP socket.
    #[error(
        "could not listen on {address}: {source}; look with `ss -ltnp` who does, or set another server_port"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A descriptor that was handed over is of no use.
    #[error(
        "descriptor {at} of those handed over is no listening stream socket: look at the socket unit's Listen lines"
    )]
    Given {
        /// Counted from 0.
        at: usize,
    },
    /// What hands sockets over said something that cannot be.
    #[error(
        "could not take the sockets that were handed over: {0}; look at LISTEN_FDS and at the socket unit"
    )]
    Activation(String),
    /// Nothing to listen on.
    #[error("there is nothing to listen on: set server_mode to unix, loop or open")]
    NoDoor,
    /// The runtime refused a socket.
    #[error("could not watch a socket: {0}; check how many descriptors are open (ulimit -n)")]
    Watch(io::Error),
}
