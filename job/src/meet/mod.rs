//! How the ranks of a job find each other: rank 0 serves a Unix socket, everybody says hello, everybody gets the table.
//!
//! ```text
//!   rank k ── hello {rank, size, incarnation, pid, rails} ─►  rank 0
//!   rank k ◄─ key, table [hello; size]  or  refusal "why" ──  rank 0     when all have come, or the time is up
//! ```
//!
//! Ranks that do not fit together (another size, another version, a rank twice, another value of a setting that must
//! be the same everywhere) end the meeting at once, and all are told the same sentence.
//!
//! Where a launcher passes on values, they meet through it instead (`launched`), and two hosts over a
//! connection (`remote`). Processes that a running job had started meet it by an invitation (`invite`,
//! `host`). A rank that ends before it has come ends the meeting, where the launcher reports that (`ended`).
//!
//! The socket is abstract (`@name`) or a path, which is removed as soon as all have joined. Both sides check that the
//! other runs as the same user (SO_PEERCRED). Frames are length-limited and hostile until parsed; every step has the
//! same deadline. Nothing stays open afterwards: no listener, no thread.

mod ended;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod host;
pub mod invite;
mod join;
pub mod launched;
mod networks;
pub mod remote;
mod root;
mod wire;

#[cfg(test)]
mod invite_tests;
#[cfg(test)]
pub(crate) mod shelf;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::pairs::{Place, RAILS_MAX};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::random;

/// Most rails that one rank may publish.
pub const MOST_RAILS: usize = RAILS_MAX;

/// What one rank tells the others about one of its rails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailEntry {
    /// The rail's name there.
    pub name: String,
    /// What it speaks: rails that speak the same reach each other.
    pub wire: String,
    /// Its address.
    pub address: RailAddress,
    /// Which life of the rail: peers of another one are refused.
    pub incarnation: u64,
    /// Capabilities by name (`get`, `put`, `atomics`).
    pub features: Vec<String>,
    /// Largest message sent at once, in bytes.
    pub eager: u64,
    /// Where it is: what decides whom it reaches.
    #[serde(default)]
    pub place: Place,
}

/// What one rank tells the others about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Its rank.
    pub rank: u32,
    /// How many ranks it believes the job has.
    pub size: u32,
    /// Which life of the process: random.
    pub incarnation: u64,
    /// Its process id, in its own namespace.
    pub pid: u32,
    /// Which host it runs on: the kernel's boot id.
    pub host: String,
    /// The cores that it may use there, as `0-3,8`; empty when it does not know.
    #[serde(default)]
    pub cores: String,
    /// The library's version there.
    pub version: String,
    /// The program's path there.
    pub program: String,
    /// Settings that must be the same at all ranks, by name, with their values as text.
    pub agreed: BTreeMap<String, String>,
    /// Its rails.
    pub rails: Vec<RailEntry>,
}

impl Hello {
    /// This process's hello, with what must be `agreed` and with `rails`.
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
            cores: crate::cores::allowed(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program: std::env::current_exe()
                .map_or_else(|_| String::new(), |path| path.display().to_string()),
            agreed,
            rails,
        })
    }

    /// Whether a hello may enter the table of rank 0; the reason why not.
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

/// The secret of a job: drawn by rank 0, known to its ranks. What frames on a network are told apart by, and what
/// authenticates them, is derived from it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key([u8; 32]);

impl Key {
    /// A fresh one.
    pub fn random() -> Result<Self, Error> {
        random::bytes().map(Self)
    }

    /// One for a simulated job: no secret.
    pub fn of_seed(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Self(key)
    }

    /// One that was derived elsewhere.
    pub const fn of_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes, for those who derive from it.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

// Never its bytes: this ends up in logs.
impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Key(…)")
    }
}

/// What every rank knows after the meeting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meeting {
    /// The job's key.
    pub key: Key,
    /// Everybody's hello, in the order of ranks.
    pub ranks: Vec<Hello>,
}

/// What rank 0 tells those who came about those who did not.
#[derive(Serialize, Deserialize)]
struct Absent {
    missing: Vec<u32>,
    waited: Duration,
    note: String,
    /// The launcher has reported that the missing rank has ended.
    has_ended: bool,
}

impl Absent {
    /// The same error as rank 0 ends with.
    fn read(root: &Root, body: &[u8]) -> Error {
        match serde_json::from_slice(body) {
            Ok(absent) => Self::into_error(absent),
            Err(error) => root.meeting(format!("rank 0 gave up, but does not say why: {error}")),
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

/// Where the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// A name in the abstract namespace of the network namespace: nothing to clean up.
    Abstract(String),
    /// A socket file.
    Path(PathBuf),
}

impl Root {
    /// Reads where the ranks meet, as `DOORBELL_ROOT` has it.
    ///
    /// # Errors
    /// Text that is no address of a Unix socket.
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

    /// Where a rank has to be to find the meeting, for the error of one that does not.
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

/// Meets the other ranks: gives `own` to them and returns everybody's hello, and the job's key.
///
/// # Errors
/// Who did not come within `limit`; who refused whom and why; what the system said.
pub fn meet(root: &Root, own: Hello, limit: Duration) -> Result<Meeting, Error> {
    let started = Instant::now();
    if own.rank == 0 {
        root::serve(root, own, started, limit)
    } else {
        join::join(root, own, started, limit)
    }
}

/// A non-blocking stream socket.
fn stream_socket(root: &Root) -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| root.io("make a Unix socket", error))
}

/// The user at the other end of `socket`.
pub(crate) fn peer_uid(socket: &OwnedFd) -> rustix::io::Result<u32> {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
    // With plain numbers: the process's is 0 where it is of another pid namespace.
    let peer = getsockopt(socket, PeerCredentials);
    peer.map(|peer| peer.uid())
        .map_err(|errno| rustix::io::Errno::from_raw_os_error(errno as i32))
}

fn left(started: Instant, limit: Duration) -> Option<Duration> {
    limit
        .checked_sub(started.elapsed())
        .filter(|left| !left.is_zero())
}

/// The same time, as the system's calls take it.
pub fn as_timespec(time: Duration) -> rustix::event::Timespec {
    rustix::event::Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}
