//! Settings of the listeners: paths, sockets, and limits per client.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The paths by which clients find the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketPaths {
    /// The Unix socket that `ib_acme` connects to.
    pub socket: PathBuf,
    /// The symbolic link to it that librdmacm connects to.
    pub socket_alias: PathBuf,
    /// The file with the TCP port, as text.
    pub port: PathBuf,
    /// The symbolic link to it that librdmacm reads.
    pub port_alias: PathBuf,
}

impl SocketPaths {
    /// Returns the default names, in this folder.
    ///
    /// ```
    /// use doorbell_acm::serve::SocketPaths;
    /// assert_eq!(SocketPaths::within("/run"), SocketPaths::default());
    /// assert_eq!(SocketPaths::default().socket.to_str(), Some("/run/ibacm-unix.sock"));
    /// ```
    pub fn within(folder: impl AsRef<Path>) -> Self {
        let of = |name: &str| folder.as_ref().join(name);
        Self {
            socket: of("ibacm-unix.sock"),
            socket_alias: of("ibacm.sock"),
            port: of("ibacm-tcp.port"),
            port_alias: of("ibacm.port"),
        }
    }
}

impl Default for SocketPaths {
    fn default() -> Self {
        Self::within("/run")
    }
}

/// The TCP port of the original ibacm.
pub const TCP_PORT: u16 = 6125;

/// A TCP socket to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// The port number; with 0 the system chooses one, which the port file contains.
    pub port: u16,
    /// Whether it listens on all IPv4 addresses. Anyone who reaches it can query it, so this is never the
    /// default.
    pub open: bool,
}

impl Default for Tcp {
    fn default() -> Self {
        Self {
            port: TCP_PORT,
            open: false,
        }
    }
}

/// The settings of the listeners.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The paths of the sockets and port files.
    pub places: SocketPaths,
    /// Whether there is a Unix socket.
    pub unix: bool,
    /// The TCP socket, if there is one.
    pub tcp: Option<Tcp>,
    /// Whether librdmacm is served too, by the two symbolic links.
    pub librdmacm: bool,
    /// The mode of the Unix socket: users that may write to it may send queries.
    pub mode: u32,
    /// The limits per client.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            places: SocketPaths::default(),
            unix: true,
            tcp: None,
            librdmacm: true,
            mode: 0o666,
            limits: Limits::default(),
        }
    }
}

/// Limits of what clients can cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of clients; further ones are disconnected at once.
    pub clients: usize,
    /// Maximum queries of a client that are open or whose answers are unread; beyond it, nothing more is read
    /// from it.
    pub questions: usize,
    /// Maximum bytes of unread answers of a client; beyond it, it is disconnected.
    pub unread: usize,
    /// Maximum time from the first byte of a query to its last.
    pub half: Duration,
    /// Maximum time until the system accepts an answer for a client.
    pub stuck: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 4096,
            questions: 64,
            unread: 256 << 10,
            half: Duration::from_secs(10),
            stuck: Duration::from_secs(10),
        }
    }
}
