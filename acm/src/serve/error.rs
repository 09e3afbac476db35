//! Why the service could not open its doors.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::settings::Places;

/// Bytes of the name of a Unix socket, at most (unix(7): `sun_path`, without the zero that ends it).
pub const SOCKET_MAX: usize = 107;
/// What `systemd` has for a process.
const INIT: i32 = 1;

/// The process that listens at a socket, as the kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: i32,
    /// What it is called, where that can be read.
    pub name: Option<String>,
    /// Whether it is called as this process is.
    pub is_like_us: bool,
}

fn by(holder: Option<&Holder>) -> String {
    let Some(holder) = holder else {
        return String::new();
    };
    let name = holder.name.as_deref().unwrap_or_default().escape_debug();
    format!(" (process {} {name}", holder.pid).trim_end().to_owned() + ")"
}

/// How it is stopped, where that is known: what is at ibacm's own place and is not one of ours is ibacm.
fn how(path: &Path, holder: Option<&Holder>) -> &'static str {
    let usual = Places::default();
    let is_usual = path == usual.socket || path == usual.socket_alias;
    match holder {
        Some(holder) if holder.is_like_us => "",
        _ if is_usual => " (systemctl stop ibacm.service ibacm.socket)",
        Some(Holder { pid: INIT, .. }) => " (systemctl list-sockets shows the unit)",
        _ => "",
    }
}

/// Why the service could not open its doors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Somebody answers there.
    #[error(
        "a service is running at `{}` already{}: stop it first{}, or serve at another path",
        path.display(), by(holder.as_ref()), how(path, holder.as_ref())
    )]
    InUse {
        /// The socket.
        path: PathBuf,
        /// Whose it is, where that is known.
        holder: Option<Holder>,
    },
    /// The name is longer than the system's.
    #[error(
        "`{}` has {} bytes, and the name of a Unix socket has at most {SOCKET_MAX}: serve at a shorter path",
        path.display(), path.as_os_str().len()
    )]
    TooLong {
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
    #[error(
        "could not watch a socket: {0}; {advice}",
        advice = doorbell_fabric::error::advice(.0).unwrap_or("check open descriptors (ulimit -n)")
    )]
    Watch(io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(path: &str, holder: Option<Holder>) -> String {
        let path = path.into();
        ServeError::InUse { path, holder }.to_string()
    }

    #[test]
    fn only_ibacm_is_stopped_as_ibacm() {
        let holder = |pid, name: &str, is_like_us| {
            Some(Holder {
                pid,
                name: Some(name.to_owned()),
                is_like_us,
            })
        };
        let other = said("/tmp/s", holder(7, "ours", true));
        assert!(
            other.contains("(process 7 ours): stop it first, or serve"),
            "{other}"
        );
        for (path, holder) in [
            ("/tmp/s", None),
            ("/tmp/s", holder(7, "ibacm", false)),
            ("/run/ibacm.sock", holder(7, "ours", true)),
        ] {
            assert!(
                !said(path, holder.clone()).contains("systemctl"),
                "{path} {holder:?}"
            );
        }
        for holder in [None, holder(7, "ibacm", false), holder(INIT, "systemd", false)] {
            let said = said("/run/ibacm-unix.sock", holder);
            assert!(said.contains("systemctl stop ibacm.service"), "{said}");
        }
        assert!(said("/tmp/s", holder(INIT, "systemd", false)).contains("list-sockets"));
    }
}
