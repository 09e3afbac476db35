//! Errors of the listeners: why the service cannot listen.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::settings::SocketPaths;

/// Maximum bytes of a Unix socket's path (unix(7): `sun_path`, without the terminating zero).
pub const SOCKET_MAX: usize = 107;
/// The process number of `systemd`.
const INIT: i32 = 1;

/// The process that listens on a socket, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process number.
    pub pid: i32,
    /// The process's name, if it can be read.
    pub name: Option<String>,
    /// Whether it runs the same program as this process.
    pub is_like_us: bool,
}

fn by(holder: Option<&Holder>) -> String {
    let Some(holder) = holder else {
        return String::new();
    };
    let name = holder.name.as_deref().unwrap_or_default().escape_debug();
    format!(" (process {} {name}", holder.pid).trim_end().to_owned() + ")"
}

/// Returns how to stop the holder, if that is known: at ibacm's own path, a program that is not ours is
/// ibacm.
fn how(path: &Path, holder: Option<&Holder>) -> &'static str {
    let usual = SocketPaths::default();
    let is_usual = path == usual.socket || path == usual.socket_alias;
    match holder {
        Some(holder) if holder.is_like_us => "",
        _ if is_usual => " (systemctl stop ibacm.service ibacm.socket)",
        Some(Holder { pid: INIT, .. }) => " (see systemctl list-sockets for its unit)",
        _ => "",
    }
}

/// Why the service cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Another process listens there.
    #[error(
        "a service already listens at `{}`{}: stop it first{}, or use another path",
        path.display(), by(holder.as_ref()), how(path, holder.as_ref())
    )]
    InUse {
        /// The path of the socket.
        path: PathBuf,
        /// The process that listens, if it is known.
        holder: Option<Holder>,
    },
    /// The path is too long for a Unix socket.
    #[error(
        "`{}` has {} bytes, but the path of a Unix socket has at most {SOCKET_MAX}: use a shorter path",
        path.display(), path.as_os_str().len()
    )]
    TooLong {
        /// The path of the socket.
        path: PathBuf,
    },
    /// A file of another kind is in the way.
    #[error("`{}` exists and is not a {what}, so it is not replaced; move it away or use another path", path.display())]
    InTheWay {
        /// The path of the file.
        path: PathBuf,
        /// The kind of file that would replace it.
        what: &'static str,
    },
    /// A file operation failed.
    #[error("cannot {step} `{}`: {source}; check that the folder exists and that this user may write to it", path.display())]
    File {
        /// The operation that failed.
        step: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused a TCP socket.
    #[error(
        "cannot listen on {address}: {source}; find with `ss -ltnp` which process does, or set another server_port"
    )]
    Listen {
        /// The address to listen on.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A descriptor that was passed is not usable.
    #[error(
        "passed descriptor {at} is not a listening stream socket: check the Listen lines of the socket unit"
    )]
    Given {
        /// The index among the passed descriptors, from 0.
        at: usize,
    },
    /// The descriptors passed by the environment cannot be used.
    #[error("cannot use the passed sockets: {0}; check LISTEN_FDS and the socket unit")]
    Activation(String),
    /// No listener is enabled.
    #[error("no listener is enabled: set server_mode to unix, loop or open")]
    NoListener,
    /// The runtime cannot register a socket.
    #[error(
        "cannot register a socket: {0}; {advice}",
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
            other.contains("(process 7 ours): stop it first, or use"),
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
