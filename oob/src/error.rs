//! Errors of the control plane: what failed, on what, the likely cause, and the remedy.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use doorbell_fabric::error::{Exit, RailError};
use thiserror::Error;

/// An error of the control plane.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OobError {
    /// The key file is malformed.
    #[error("`{}` is not a key file: {reason}; create one with `doorbell key FILE`", path.display())]
    KeyFile {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Other users can read or write the key file.
    #[error("the key in `{}` is accessible to other users (mode {mode:04o}): chmod 600 `{}`", path.display(), path.display())]
    KeyOpen {
        /// The path of the file.
        path: PathBuf,
        /// The mode of the file.
        mode: u32,
    },
    /// The key file belongs to another user.
    #[error("`{}` belongs to another user (uid {owner}): make your own copy and chmod 600 it", path.display())]
    KeyOwner {
        /// The path of the file.
        path: PathBuf,
        /// The user id of its owner.
        owner: u32,
    },
    /// The key file exists, and would be overwritten.
    #[error(
        "`{}` already exists, and its key may be in use: give another file, or --force to replace it",
        path.display()
    )]
    KeyExists {
        /// The path of the file.
        path: PathBuf,
    },
    /// The system refused an operation on a key file.
    #[error("cannot {step} the key file `{}`: {source}; check the path and its permissions", path.display())]
    KeyIo {
        /// The operation that failed.
        step: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel returned no random bytes.
    #[error("cannot read random bytes from the kernel: {0}; check that getrandom(2) is allowed here")]
    Random(String),
    /// An address beyond loopback was given without a key.
    #[error(
        "{address} is not on loopback, and only loopback is used without a key: create one with `doorbell key FILE`, and copy it \
         to both hosts and give `--key-file FILE` on both"
    )]
    KeyNeeded {
        /// The address that was given.
        address: SocketAddr,
    },
    /// The address is malformed.
    #[error(
        "`{given}` is not an address: {reason}; give ADDR:PORT, as in 10.0.0.1:7117, [fe80::1%eth0]:7117 or host:7117"
    )]
    Address {
        /// The text that was given.
        given: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; {remedy}")]
    Listen {
        /// The address to listen on.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
        /// The remedy to propose.
        remedy: &'static str,
    },
    /// The connection could not be made.
    #[error("cannot connect to {address}: {source}; {remedy}")]
    Connect {
        /// The address to connect to.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
        /// The remedy to propose.
        remedy: &'static str,
    },
    /// Nothing answered in time.
    #[error("{address} did not {step} within {:.1} s; {remedy}", waited.as_secs_f64())]
    Late {
        /// The address of the other side.
        address: String,
        /// What it did not do.
        step: &'static str,
        /// The time waited.
        waited: Duration,
        /// The remedy to propose.
        remedy: &'static str,
    },
    /// A system call failed on an open connection.
    #[error("the connection to {address} broke, cannot {step}: {source}; check the other side's output")]
    Broken {
        /// The address of the other side.
        address: SocketAddr,
        /// The operation that failed.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The other side has a different key.
    #[error("the other side has a different key: give both the same key file")]
    WrongKey,
    /// Only one side has a key.
    #[error(
        "{} has a key and {} has none: give `--key-file FILE` with the same key to both, or to neither",
        if *here { "this side" } else { "the other side" }, if *here { "the other side" } else { "this side" }
    )]
    KeyMissing {
        /// Whether this side has the key.
        here: bool,
    },
    /// The other side uses another version of the session protocol.
    #[error(
        "the other side speaks session version {theirs}, this side version {ours}: use the same doorbell on both"
    )]
    Version {
        /// The version of this side.
        ours: u16,
        /// The version of the other side.
        theirs: u16,
    },
    /// The other side's session has another purpose.
    #[error(
        "the other side provides another service (purpose {theirs}, not {ours}): check the address and the port"
    )]
    Purpose {
        /// The purpose of this side.
        ours: u16,
        /// The purpose of the other side.
        theirs: u16,
    },
    /// The received bytes are not a session.
    #[error("the other side does not speak doorbell's protocol ({what}): check the address and the port")]
    Stranger {
        /// What was received.
        what: &'static str,
    },
    /// The connection ended during the handshake.
    #[error(
        "the other side closed the connection during the handshake: is it `doorbell`, and still running?"
    )]
    Unanswered,
    /// A handshake failed, with the address of the other side, since only one of several hosts may be
    /// affected.
    #[error("{address}: {error}")]
    With {
        /// The address of the other side.
        address: SocketAddr,
        /// The error of the handshake.
        error: Box<Self>,
    },
    /// The handshake did not complete in time.
    #[error("the handshake did not complete within {:.1} s: the other side is busy, stopped, or not `doorbell`", limit.as_secs_f64())]
    HandshakeLate {
        /// The limit of the handshake.
        limit: Duration,
    },
    /// A record that was not sealed by the other side at this position.
    #[error("a record was changed, repeated or dropped on the way (record {record}): the session is over")]
    Forged {
        /// The number of the record, counted from 0.
        record: u64,
    },
    /// The stream ended without the record that closes a session.
    #[error("the connection was cut: the other side ended without closing the session; check its output")]
    Truncated,
    /// The message is longer than the limit.
    #[error("a message of {length} bytes is longer than the limit of {limit}")]
    TooLong {
        /// Its length so far (bytes).
        length: usize,
        /// The maximum length.
        limit: usize,
    },
    /// Too many bytes wait to be sent.
    #[error("{waiting} bytes already wait for the other side, which does not read")]
    Full {
        /// The bytes that wait.
        waiting: usize,
    },
    /// The session has used up its records.
    #[error("the session has reached its maximum number of records: connect again")]
    Exhausted,
    /// A call that is invalid in this state.
    #[error("{0}")]
    State(&'static str),
    /// A setting of the control plane is invalid.
    #[error("invalid setting `{setting}` = `{given}` of the control plane: {reason}")]
    Setting {
        /// The name of the setting.
        setting: &'static str,
        /// The value that was given.
        given: String,
        /// What is wrong with it, and what to write instead.
        reason: String,
    },
    /// The network interfaces cannot be listed or watched.
    #[error("cannot {step} the network interfaces: {source}; check that netlink(7) is allowed here")]
    Nics {
        /// The operation that failed.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// No interface matches the selection.
    #[error(
        "no network interface of this host matches `{chosen}`, or it has no address of the selected family: `ip addr` lists \
         them; name others by `control.nics` (DOORBELL_CONTROL_NICS), with `doorbell run --hosts` by `--nic`"
    )]
    NoNic {
        /// The selection of interfaces.
        chosen: String,
    },
    /// No port of the range can be listened on.
    #[error(
        "cannot listen on {address} ({nic}) at any port of the range {ports}: {source}; widen `control.ports` \
         (DOORBELL_CONTROL_PORTS), with `doorbell run --hosts` `--ports`, and look with `ss -ltnp` at who has them"
    )]
    Ports {
        /// The address to listen on.
        address: IpAddr,
        /// The interface it belongs to.
        nic: String,
        /// The range of ports.
        ports: String,
        /// The system's error for the last port.
        source: io::Error,
    },
    /// A connect without any answer.
    #[error(
        "{address} did not answer over {nic} within {:.1} s: its host is down, or a firewall drops the packets; \
         `nft add rule inet filter input tcp dport {} accept` lets it in (`control.ports`, with `doorbell run --hosts` `--ports`, is a fixed range)",
        waited.as_secs_f64(), address.port()
    )]
    Filtered {
        /// The address to connect to.
        address: SocketAddr,
        /// The interface that was used.
        nic: String,
        /// The time waited.
        waited: Duration,
    },
    /// A rail, or a peer's address on it, cannot be opened.
    #[error(transparent)]
    Rail(#[from] RailError),
    /// A rail that leads out of the host was configured without a key.
    #[error(
        "the rail `{rail}` leads out of this host, and without a key the control plane uses only rails within it: \
         `doorbell key FILE` makes one, which all hosts need"
    )]
    RailKey {
        /// The name of the rail.
        rail: String,
    },
    /// The messages of a rail are too short for segments of a session.
    #[error(
        "the rail `{rail}` carries messages of at most {length} bytes, but a segment of the control plane has at least {least}: \
         name another rail"
    )]
    RailShort {
        /// The name of the rail.
        rail: String,
        /// Its maximum message length (bytes).
        length: usize,
        /// The length needed (bytes).
        least: usize,
    },
    /// A thread cannot be started.
    #[error(
        "cannot start {what}: {source}; {}",
        doorbell_fabric::error::advice(source).unwrap_or("check `ulimit -u` and the free memory")
    )]
    Thread {
        /// The thread, or what it needs.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl OobError {
    /// Returns the error with the other side's address in front, unless it names it already.
    #[must_use]
    pub fn with(self, address: SocketAddr) -> Self {
        match self {
            Self::Broken { .. } | Self::Late { .. } | Self::With { .. } => self,
            error => Self::With {
                address,
                error: Box::new(error),
            },
        }
    }

    /// Returns the exit code of a program that ends with this error.
    pub fn exit(&self) -> Exit {
        match self {
            Self::With { error, .. } => error.exit(),
            Self::KeyFile { .. } | Self::KeyOpen { .. } | Self::KeyOwner { .. } | Self::KeyExists { .. } => {
                Exit::Usage
            }
            Self::KeyNeeded { .. } | Self::Address { .. } | Self::WrongKey | Self::KeyMissing { .. } => {
                Exit::Usage
            }
            Self::Version { .. } | Self::Purpose { .. } => Exit::Usage,
            Self::Late { .. } | Self::HandshakeLate { .. } => Exit::TimedOut,
            Self::KeyIo { source, .. } => Exit::of_named_file(source),
            Self::Random(_) | Self::Listen { .. } | Self::Connect { .. } => Exit::System,
            Self::Stranger { .. } | Self::Unanswered | Self::Forged { .. } | Self::Truncated => {
                Exit::PeerLost
            }
            Self::Broken { .. } | Self::TooLong { .. } | Self::Full { .. } => Exit::PeerLost,
            Self::Setting { .. } | Self::NoNic { .. } | Self::Ports { .. } => Exit::Usage,
            Self::Filtered { .. } => Exit::TimedOut,
            Self::Rail(_) | Self::RailShort { .. } => Exit::Rail,
            Self::RailKey { .. } => Exit::Usage,
            Self::Nics { .. } | Self::Thread { .. } => Exit::System,
            Self::Exhausted | Self::State(_) => Exit::System,
        }
    }
}
