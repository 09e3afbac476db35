//! What can go wrong in the control plane: on what, the likely cause, and what to do next.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use doorbell_fabric::error::{Exit, RailError};
use thiserror::Error;

/// Why something of the control plane could not be done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OobError {
    /// A key file that cannot be used as it is.
    #[error("`{}` is no key file: {reason}; `doorbell key FILE` makes one", path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A key file that others can read or write.
    #[error("the key in `{}` is open to others (mode {mode:04o}): chmod 600 `{}`", path.display(), path.display())]
    KeyOpen {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A key file of another user.
    #[error("`{}` belongs to another user (uid {owner}): make a copy of your own and chmod 600 it", path.display())]
    KeyOwner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// A key file that would be overwritten.
    #[error(
        "`{}` is there already, and its key may be in use: name another file, or say --force to replace it",
        path.display()
    )]
    KeyExists {
        /// The file.
        path: PathBuf,
    },
    /// The system refused something about a key file.
    #[error("could not {step} the key file `{}`: {source}; check the path and its permissions", path.display())]
    KeyIo {
        /// The step.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No random numbers.
    #[error("the kernel gave no random bytes: {0}; check that getrandom(2) is allowed here")]
    Random(String),
    /// Something beyond loopback without a key.
    #[error(
        "{address} is not on loopback, and without a key only loopback is used: `doorbell key FILE` makes one; copy it \
         to both hosts and give `--key-file FILE` on both"
    )]
    KeyNeeded {
        /// The address.
        address: SocketAddr,
    },
    /// An address that is none.
    #[error(
        "`{given}` is no address: {reason}; give ADDR:PORT, as in 10.0.0.1:7117, [fe80::1%eth0]:7117 or host:7117"
    )]
    Address {
        /// What was given.
        given: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The address cannot be listened on.
    #[error("could not listen on {address}: {source}; {remedy}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// Nobody could be connected to.
    #[error("could not connect to {address}: {source}; {remedy}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// Nothing answered in time.
    #[error("{address} did not {step} within {:.1} s; {remedy}", waited.as_secs_f64())]
    Late {
        /// The other side.
        address: String,
        /// What it did not do.
        step: &'static str,
        /// How long was waited.
        waited: Duration,
        /// What to do.
        remedy: &'static str,
    },
    /// The system refused a step on a connection that was there.
    #[error(
        "the connection to {address} broke while we wanted to {step}: {source}; look at the other side's output"
    )]
    Broken {
        /// The other side.
        address: SocketAddr,
        /// The step.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The other side has another key.
    #[error("the other side has another key: give both the same key file")]
    WrongKey,
    /// One side has a key and the other none.
    #[error(
        "{} has a key and {} has none: give `--key-file FILE` with the same key on both, or on neither",
        if *here { "this side" } else { "the other side" }, if *here { "the other side" } else { "this side" }
    )]
    KeyMissing {
        /// Whether it is this side that has one.
        here: bool,
    },
    /// The other side speaks another version of the session.
    #[error(
        "the other side speaks version {theirs} of the session, this one version {ours}: use the same doorbell on both"
    )]
    Version {
        /// Ours.
        ours: u16,
        /// Theirs.
        theirs: u16,
    },
    /// The other side wants to talk about something else.
    #[error(
        "the other side serves something else (purpose {theirs}, not {ours}): check the address and the port"
    )]
    Purpose {
        /// Ours.
        ours: u16,
        /// Theirs.
        theirs: u16,
    },
    /// What came is not a session at all.
    #[error("the other side does not speak our protocol ({what}): check the address and the port")]
    Stranger {
        /// What was found.
        what: &'static str,
    },
    /// The connection ended during the handshake.
    #[error(
        "the other side closed the connection before the handshake was over: is it `doorbell`, and alive?"
    )]
    Unanswered,
    /// A handshake that failed, with whom: of several hosts, it may be one alone.
    #[error("{address}: {error}")]
    With {
        /// The other side.
        address: SocketAddr,
        /// What it was.
        error: Box<Self>,
    },
    /// The handshake was not over in time.
    #[error("the handshake was not over within {:.1} s: the other side is busy, stopped, or not `doorbell`", limit.as_secs_f64())]
    HandshakeLate {
        /// The limit.
        limit: Duration,
    },
    /// A record that the other side did not seal in this place.
    #[error("a record was changed, repeated or left out on the way (record {record}): the session is over")]
    Forged {
        /// Which record, counted from 0.
        record: u64,
    },
    /// The stream ended without the word that ends a session.
    #[error("the connection was cut: the other side ended without taking leave; look at its own output")]
    Truncated,
    /// A message longer than the limit.
    #[error("a message of {length} bytes is longer than the limit of {limit}")]
    TooLong {
        /// Its length so far, in bytes.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// More waits to be sent than is allowed.
    #[error("{waiting} bytes wait for the other side already: it does not read")]
    Full {
        /// Bytes waiting.
        waiting: usize,
    },
    /// The number of records that one session may carry is used up.
    #[error("the session has sent all the records it may: connect again")]
    Exhausted,
    /// A call that does not belong here.
    #[error("{0}")]
    State(&'static str),
    /// A setting of the control plane that cannot be used.
    #[error("the setting `{setting}` of the control plane is `{given}`: {reason}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What was given.
        given: String,
        /// What is wrong with it, and what to write.
        reason: String,
    },
    /// The interfaces could not be listed or watched.
    #[error("could not {step} the network interfaces: {source}; netlink(7) has to be allowed here")]
    Nics {
        /// The step.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// No interface is chosen.
    #[error(
        "no network interface of this host is `{chosen}`, or it has no address of the wanted family: `ip addr` lists \
         them; name others by `control.nics` (DOORBELL_CONTROL_NICS), with `doorbell run --hosts` by `--nic`"
    )]
    NoNic {
        /// The choice.
        chosen: String,
    },
    /// None of the ports can be listened on.
    #[error(
        "could not listen on {address} ({nic}) at any port of the range {ports}: {source}; widen `control.ports` \
         (DOORBELL_CONTROL_PORTS), with `doorbell run --hosts` `--ports`, and look with `ss -ltnp` at who has them"
    )]
    Ports {
        /// The address.
        address: IpAddr,
        /// Its interface.
        nic: String,
        /// The range.
        ports: String,
        /// The system's error for the last one.
        source: io::Error,
    },
    /// A connect that nobody answered at all.
    #[error(
        "{address} did not answer over {nic} within {:.1} s: its host is down, or a firewall there drops it; \
         `nft add rule inet filter input tcp dport {} accept` lets it in (`control.ports`, with `doorbell run --hosts` `--ports`, is a fixed range)",
        waited.as_secs_f64(), address.port()
    )]
    Filtered {
        /// The address.
        address: SocketAddr,
        /// The interface that it was tried over.
        nic: String,
        /// How long was waited.
        waited: Duration,
    },
    /// A rail that could not be opened, or a peer's address on it.
    #[error(transparent)]
    Rail(#[from] RailError),
    /// A rail that leads out of the host without a key.
    #[error(
        "the rail `{rail}` leads out of this host, and without a key only rails within it carry the control plane: \
         `doorbell key FILE` makes one, which all hosts need"
    )]
    RailKey {
        /// The rail.
        rail: String,
    },
    /// A rail whose messages are too short for pieces of a session.
    #[error(
        "the rail `{rail}` carries messages of {length} bytes at most, and a piece of the control plane has at least {least}: \
         name another rail"
    )]
    RailShort {
        /// The rail.
        rail: String,
        /// Its longest message.
        length: usize,
        /// What is needed.
        least: usize,
    },
    /// No thread could be started.
    #[error(
        "could not start {what}: {source}; {}",
        doorbell_fabric::error::advice(source).unwrap_or("look at `ulimit -u` and at memory")
    )]
    Thread {
        /// Which thread, or what it needs.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl OobError {
    /// The same with the other side's address before it, unless it is in the sentence anyway.
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

    /// With which number a program ends because of this.
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
            Self::KeyIo { .. } | Self::Random(_) | Self::Listen { .. } | Self::Connect { .. } => Exit::System,
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
