//! The meeting of the ranks of a job: rank 0 serves a Unix socket, each rank sends its hello, and gets the
//! table of all hellos.
//!
//! ```text
//!   rank k ── hello {rank, size, incarnation, pid, rails} ─►  rank 0
//!   rank k ◄─ key, table [hello; size]  or  refusal "reason" ─  rank 0   when all are there, or time is up
//! ```
//!
//! Contradictory hellos (another size, another version, a rank twice, another value of a setting that must
//! be the same everywhere) end the meeting at once, with the same error at all ranks.
//!
//! Under a launcher that exchanges values, the ranks meet through it instead (`pmi`), and two hosts over
//! a connection (`tcp`). Processes that a running job has started meet it by an invitation (`spawn_child`,
//! `spawn_parent`). A rank that ends before it has joined ends the meeting, where the launcher reports that
//! (`ended`).
//!
//! The socket is abstract (`@name`) or a path, which is removed once all have joined. Both sides check that
//! the other runs as the same user (SO_PEERCRED). Frames are limited in length and not trusted until parsed;
//! every step has the same deadline. Nothing stays open afterwards: no listener, no thread.

mod ended;
#[cfg(fuzzing)]
pub mod fuzzing;
mod join;
mod networks;
pub mod pmi;
pub mod spawn_child;
pub mod spawn_parent;
pub mod tcp;
mod unix;
mod wire;

#[cfg(test)]
pub(crate) mod shelf;
#[cfg(test)]
mod spawn_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::message::Incarnation;
use doorbell_fabric::pairs::{Place, RAILS_MAX};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::random;

/// Most rails that one rank may publish.
pub const MOST_RAILS: usize = RAILS_MAX;

/// What one rank publishes about one of its rails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailEntry {
    /// The name of the rail at that rank.
    pub name: String,
    /// The wire format: rails of the same format can reach each other.
    pub wire: String,
    /// The rail's address.
    pub address: RailAddress,
    /// The life of the rail: peers of another life are refused.
    pub incarnation: u64,
    /// Capabilities by name (`get`, `put`, `atomics`).
    pub features: Vec<String>,
    /// Longest message that is sent at once, in bytes.
    pub eager: u64,
    /// The rail's network and limits, by which peers judge whether they can reach it.
    #[serde(default)]
    pub place: Place,
}

impl RailEntry {
    /// Returns the life of the rail in the type of the rails' contract.
    pub fn life(&self) -> Incarnation {
        Incarnation(self.incarnation)
    }
}

/// What one rank publishes about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankInfo {
    /// The number of the rank.
    pub rank: u32,
    /// The number of ranks in the job, as far as this rank knows.
    pub size: u32,
    /// The life of the process, a random number.
    pub incarnation: u64,
    /// The process's id, in its own pid namespace.
    pub pid: u32,
    /// The host that it runs on: the kernel's boot id.
    pub host: String,
    /// The cores that it may use there, as `0-3,8`; empty when the system reports none.
    #[serde(default)]
    pub cores: String,
    /// The version of its library.
    pub version: String,
    /// The path of its program.
    pub program: String,
    /// Settings that must be the same at all ranks, by name, with their values as text.
    pub agreed: BTreeMap<String, String>,
    /// The rank's rails.
    pub rails: Vec<RailEntry>,
}

impl RankInfo {
    /// Makes the hello of this process, with the settings that must be `agreed` and with `rails`.
    pub fn of_this_process(
        rank: u32,
        size: u32,
        agreed: BTreeMap<String, String>,
        rails: Vec<RailEntry>,
    ) -> Result<Self, Error> {
        Ok(Self {
            rank,
            size,
            incarnation: random::number()?,
            pid: std::process::id(),
            host: host_id(),
            cores: doorbell_fabric::cores::allowed().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program: std::env::current_exe()
                .map_or_else(|_| String::new(), |path| path.display().to_string()),
            agreed,
            rails,
        })
    }

    /// Checks a hello against rank 0's; returns the contradiction, if there is one.
    pub fn check(&self, zero: &Self) -> Result<(), String> {
        if self.version != zero.version {
            return Err(format!(
                "rank {} runs doorbell {}, rank 0 runs {}",
                self.rank, self.version, zero.version
            ));
        }
        if self.size != zero.size {
            return Err(format!(
                "DOORBELL_SIZE is {} at rank {} and {} at rank 0",
                self.size, self.rank, zero.size
            ));
        }
        if self.rank >= self.size {
            return Err(format!("rank {} is not in a job of {}", self.rank, self.size));
        }
        for (name, value) in &zero.agreed {
            let other = self.agreed.get(name).map_or("unknown", String::as_str);
            if other != value {
                return Err(format!(
                    "{name} is {other} at rank {} and {value} at rank 0",
                    self.rank
                ));
            }
        }
        if self.rails.len() > MOST_RAILS {
            return Err(format!(
                "rank {} has {} rails, and a rank may have {MOST_RAILS}: name those to be used (`--rail`, rails.list)",
                self.rank,
                self.rails.len()
            ));
        }
        Ok(())
    }
}

/// The secret of a job: drawn by rank 0, and given to all ranks. The connection ids and the MAC keys of
/// frames on a network are derived from it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key([u8; 32]);

impl Key {
    /// Draws a random key.
    pub fn random() -> Result<Self, Error> {
        random::bytes().map(Self)
    }

    /// Makes the key of a simulated job, which is no secret.
    pub fn of_seed(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Self(key)
    }

    /// Makes a key from bytes that were derived elsewhere.
    pub const fn of_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, to derive other keys from.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

// Never prints the bytes, since logs contain this.
impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Key(…)")
    }
}

/// The result of the meeting, alike at every rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meeting {
    /// The job's key.
    pub key: Key,
    /// The hellos of all ranks, in the order of ranks.
    pub ranks: Vec<RankInfo>,
}

/// The notice that rank 0 sends to the ranks that joined, about those that did not.
#[derive(Serialize, Deserialize)]
struct Absent {
    missing: Vec<u32>,
    waited: Duration,
    note: String,
    /// Whether the launcher has reported that the missing rank has ended.
    has_ended: bool,
}

impl Absent {
    /// Decodes the error that rank 0 ends with.
    fn read(root: &Root, body: &[u8]) -> Error {
        match serde_json::from_slice(body) {
            Ok(absent) => Self::into_error(absent),
            Err(error) => root.meeting(format!(
                "rank 0 gave up, with a reason that does not parse: {error}"
            )),
        }
    }

    fn into_error(self) -> Error {
        if let (true, [rank]) = (self.has_ended, &self.missing[..]) {
            return Error::EndedEarly { rank: *rank };
        }
        Error::MissingRanks {
            missing: self.missing,
            waited: self.waited,
            note: self.note,
        }
    }
}

pub(crate) fn host_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    match id.trim() {
        "" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        id => id.to_owned(),
    }
}

/// The address at which the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// A name in the abstract namespace of the network namespace, which leaves nothing to clean up.
    Abstract(String),
    /// A socket file.
    Path(PathBuf),
}

impl Root {
    /// Parses the address of the meeting, in the format of `DOORBELL_ROOT`.
    ///
    /// # Errors
    /// When the text is no address of a Unix socket.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let root = match text.strip_prefix('@') {
            Some("") => {
                return Err(Error::Job {
                    reason: "DOORBELL_ROOT is `@` without a name".to_owned(),
                });
            }
            Some(name) => Self::Abstract(name.to_owned()),
            None if text.is_empty() => {
                return Err(Error::Job {
                    reason: "DOORBELL_ROOT is empty".to_owned(),
                });
            }
            None => Self::Path(PathBuf::from(text)),
        };
        root.address().map(|_| root)
    }

    fn address(&self) -> Result<SocketAddrUnix, Error> {
        let address = match self {
            Self::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
            Self::Path(path) => SocketAddrUnix::new(path.as_path()),
        };
        address.map_err(|_| Error::Job {
            reason: format!("DOORBELL_ROOT `{self}` is no address of a Unix socket (at most about 100 bytes, none of them zero)"),
        })
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            Self::Abstract(_) => None,
        }
    }

    /// Returns where a rank has to run to reach the address, for the error of one that does not.
    fn where_it_is_known(&self) -> &'static str {
        match self {
            Self::Abstract(_) => {
                "; the name is known in one network namespace of one host only: is this rank in that of rank 0?"
            }
            Self::Path(_) => {
                "; the path has to lead to the same file at all ranks: is this rank in rank 0's mount namespace?"
            }
        }
    }

    fn meeting(&self, reason: impl Into<String>) -> Error {
        Error::Meeting {
            root: self.to_string(),
            reason: reason.into(),
        }
    }

    fn disagreement(reason: impl Into<String>) -> Error {
        Error::Disagreement {
            reason: reason.into(),
        }
    }

    fn io(&self, step: &'static str, source: impl Into<std::io::Error>) -> Error {
        Error::Io {
            step,
            object: self.to_string(),
            source: source.into(),
            remedy: "check DOORBELL_ROOT, the folder's mode, and that no other job uses the same name",
        }
    }
}

impl std::fmt::Display for Root {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Abstract(name) => write!(out, "@{name}"),
            Self::Path(path) => OsStr::from_bytes(path.as_os_str().as_bytes()).display().fmt(out),
        }
    }
}

/// Meets the other ranks: sends them `own`, and returns the hellos of all ranks and the job's key.
///
/// # Errors
/// The ranks that did not join within `limit`; contradictory hellos; errors of the system.
pub fn meet(root: &Root, own: RankInfo, limit: Duration) -> Result<Meeting, Error> {
    let started = Instant::now();
    if own.rank == 0 {
        unix::serve(root, own, started, limit)
    } else {
        join::join(root, own, started, limit)
    }
}

/// Makes a non-blocking stream socket.
fn stream_socket(root: &Root) -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| root.io("make a Unix socket", error))
}

/// Returns the user at the other end of `socket`.
pub(crate) fn peer_uid(socket: &impl AsFd) -> rustix::io::Result<u32> {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
    // As plain numbers: the process id is 0 where the peer is in another pid namespace.
    let peer = getsockopt(socket, PeerCredentials);
    peer.map(|peer| peer.uid())
        .map_err(|errno| rustix::io::Errno::from_raw_os_error(errno as i32))
}

fn left(started: Instant, limit: Duration) -> Option<Duration> {
    limit
        .checked_sub(started.elapsed())
        .filter(|left| !left.is_zero())
}
