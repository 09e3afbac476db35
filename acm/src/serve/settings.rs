//! Where the service is found, and what a client may cost.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The files by which clients find the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The Unix socket: what `ib_acme` connects to.
    pub socket: PathBuf,
    /// The symbolic link to it that librdmacm connects to.
    pub socket_alias: PathBuf,
    /// The file with the TCP port, as text.
    pub port: PathBuf,
    /// The symbolic link to it that librdmacm reads.
    pub port_alias: PathBuf,
}

impl Places {
    /// The usual names, in this folder.
    ///
    /// ```
    /// use doorbell_acm::serve::Places;
    /// assert_eq!(Places::within("/run"), Places::default());
    /// assert_eq!(Places::default().socket.to_str(), Some("/run/ibacm-unix.sock"));
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

impl Default for Places {
    fn default() -> Self {
        Self::within("/run")
    }
}

/// The TCP port of the original.
pub const TCP_PORT: u16 = 6125;

/// A TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// The port; with 0 the system chooses one, which the port file tells.
    pub port: u16,
    /// Whether all IPv4 addresses are listened on. Whoever reaches one can ask, so it is never so unasked.
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

/// What is opened.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Files.
    pub places: Places,
    /// Whether there is a Unix socket.
    pub unix: bool,
    /// Whether there is a TCP socket, and which.
    pub tcp: Option<Tcp>,
    /// Whether librdmacm is served too: the two symbolic links.
    pub librdmacm: bool,
    /// Mode of the Unix socket: who may write to it may ask.
    pub mode: u32,
    /// What a client may cost.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            places: Places::default(),
            unix: true,
            tcp: None,
            librdmacm: true,
            mode: 0o666,
            limits: Limits::default(),
        }
    }
}

/// What a client may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients at once; who comes then is left at once.
    pub clients: usize,
    /// Questions of a client that are open, or whose answers it has not read; it is not read from any further then.
    pub questions: usize,
    /// Bytes of answers that a client has not read; it is left then.
    pub unread: usize,
    /// From the first byte of a question to its last.
    pub half: Duration,
    /// Until the system takes an answer for a client.
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
