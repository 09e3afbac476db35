//! Launchers: how a process that was started by another program learns its rank, and exchanges a few bytes
//! with the other ranks.
//!
//! ```text
//!   variables ──► detect ──► Found {kind, rank, why not the others}
//!                               │ open
//!                               ▼
//!     dyn Launcher ── put, fence, get ──►  what a job needs to connect       abort, finalize
//!        │
//!        ├── pmix         libpmix, loaded on demand (Open MPI's mpirun, PRRTE, srun --mpi=pmix)
//!        ├── wire         the descriptor PMI_FD:  session (sans-IO) over the dialect
//!        │                    ├── pmi1          lines        (MPICH's hydra, srun --mpi=pmi2)
//!        │                    └── pmi2          frames       (srun --mpi=pmi2, hydra)
//!        ├── environment  rank and size from variables, and nothing else
//!        └── singleton    one process
//! ```
//!
//! Values are readable by the launcher and by every process it admits, and they are trusted: a launcher can
//! make the processes that it starts do anything anyway. Its messages are parsed as untrusted input all the
//! same, so that a broken launcher causes an error instead of a crash.
//!
//! Every call has a limit. After an error a launcher handle is unusable, and each further call returns an
//! error.

mod detect;
pub mod environment;
mod error;
mod invite;
pub(crate) mod pieces;
mod pmi1;
mod pmi2;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod pmix;
mod session;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod singleton;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod wire;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use detect::{Found, Wanted, detect, two_cores};
pub use error::LaunchError;
pub use invite::Newcomers;
pub(crate) use invite::{ABANDON, TOKEN, is_token, refusal_of};
pub use pmi1::Pmi1;
pub use pmi2::Pmi2;
pub use session::{Answer, Dialect, Program, Request, Session, Words};
pub(crate) use session::{is_plain, shown};

/// Maximum bytes of a value.
pub const LONGEST_VALUE: usize = 1 << 20;
/// Maximum number of processes of a job.
pub const MOST_RANKS: u32 = 65_536;

/// How a process learns its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The variables of `doorbell run`.
    Doorbell,
    /// A PMIx server, through libpmix.
    Pmix,
    /// A PMI-2 server on an inherited descriptor.
    Pmi2,
    /// A PMI-1 server on an inherited descriptor.
    Pmi1,
    /// Variables that have only rank and size.
    Environment,
    /// The process is alone.
    Singleton,
}

impl Kind {
    /// Lists all kinds, in the order of detection.
    pub const ALL: [Self; 6] = [
        Self::Doorbell,
        Self::Pmix,
        Self::Pmi2,
        Self::Pmi1,
        Self::Environment,
        Self::Singleton,
    ];

    /// Returns the name in settings and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Doorbell => "doorbell",
            Self::Pmix => "pmix",
            Self::Pmi2 => "pmi2",
            Self::Pmi1 => "pmi1",
            Self::Environment => "environment",
            Self::Singleton => "singleton",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The place of a process in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The rank of the process, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    /// Its index among the ranks of this host, from 0; `None` if the launcher does not provide it.
    pub local_rank: Option<u32>,
    /// The number of ranks on this host.
    pub local_size: Option<u32>,
    /// The launcher's name for the job; empty if it has none.
    pub job: String,
}

impl Place {
    /// Checks rank and size.
    pub(crate) fn checked(self, kind: Kind) -> Result<Self, LaunchError> {
        let Self { rank, size, .. } = self;
        if size == 0 || size > MOST_RANKS || rank >= size {
            return Err(LaunchError::Place { kind, rank, size });
        }
        Ok(self)
    }
}

/// The services of a launcher for one process of a job. Each call returns within its limit; after an error
/// other than [`LaunchError::Absent`] the launcher must not be called again, and further calls return an
/// error.
pub trait Launcher: Send + fmt::Debug {
    /// Returns the kind of the launcher.
    fn kind(&self) -> Kind;

    /// Returns the rank and size of this process.
    fn place(&self) -> &Place;

    /// Returns the name where the ranks can meet if values cannot be exchanged, the same for all of them;
    /// `None` if they can.
    ///
    /// # Errors
    /// [`LaunchError::NoExchange`] when neither is possible.
    fn meeting(&self) -> Result<Option<&str>, LaunchError> {
        Ok(None)
    }

    /// Puts a value of this rank, which the others can read after the next [`Launcher::fence`].
    ///
    /// # Errors
    /// [`LaunchError`], when the launcher refuses, answers incorrectly, ends, or is late.
    fn put(&mut self, key: &str, value: &[u8], limit: Duration) -> Result<(), LaunchError>;

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// The errors of [`Launcher::put`].
    fn fence(&mut self, limit: Duration) -> Result<(), LaunchError>;

    /// Returns a value that `rank` has put before the last fence.
    ///
    /// # Errors
    /// [`LaunchError::Absent`] when there is none; else the errors of [`Launcher::put`].
    fn get(&mut self, rank: u32, key: &str, limit: Duration) -> Result<Vec<u8>, LaunchError>;

    /// Starts more processes, which get the invitation by [`Launcher::invitation`]. Returns when the launcher
    /// has accepted the request; whether they run and connect is for the inviting ranks to see.
    ///
    /// # Errors
    /// [`LaunchError::NoSpawn`] if the launcher cannot; [`LaunchError::NotSpawned`] if it refuses, which
    /// leaves it usable; else the errors of [`Launcher::put`].
    fn spawn(&mut self, newcomers: &Newcomers<'_>, limit: Duration) -> Result<(), LaunchError> {
        let _ = (newcomers, limit);
        Err(LaunchError::NoSpawn {
            kind: self.kind(),
            remedy: invite::ELSEWHERE,
        })
    }

    /// Returns why the processes of this token will not start, if the launcher knows that.
    ///
    /// # Errors
    /// The errors of [`Launcher::put`].
    fn failure(&mut self, token: &str, limit: Duration) -> Result<Option<String>, LaunchError> {
        let _ = (token, limit);
        Ok(None)
    }

    /// Cancels the wait for the processes of this token: the launcher ends those that have not joined, if its
    /// protocol has a request for that.
    ///
    /// # Errors
    /// The errors of [`Launcher::put`].
    fn abandon(&mut self, token: &str, limit: Duration) -> Result<(), LaunchError> {
        let _ = (token, limit);
        Ok(())
    }

    /// Reaps the processes that it started itself and that have ended.
    fn tidy(&mut self) {}

    /// Returns the invitation of this process; `None` for one of the first ranks.
    ///
    /// # Errors
    /// The errors of [`Launcher::put`].
    fn invitation(&mut self, limit: Duration) -> Result<Option<Vec<u8>>, LaunchError> {
        let _ = limit;
        Ok(None)
    }

    /// Requests the end of the whole job with this exit status and reason. The launcher may end this process
    /// before the call returns; otherwise the caller has to end it.
    ///
    /// # Errors
    /// The errors of [`Launcher::put`].
    fn abort(&mut self, code: u8, text: &str, limit: Duration) -> Result<(), LaunchError>;

    /// Announces that this process ends regularly: its end is no failure from here on.
    ///
    /// # Errors
    /// The errors of [`Launcher::put`].
    fn finalize(&mut self, limit: Duration) -> Result<(), LaunchError>;
}

/// Connects to the launcher that was detected.
///
/// # Errors
/// [`LaunchError`]; [`LaunchError::Taken`] when this process has connected before: launchers admit each
/// process once.
pub fn open(found: &Found, limit: Duration) -> Result<Box<dyn Launcher>, LaunchError> {
    match found.kind {
        Kind::Doorbell => Err(LaunchError::NotPossible {
            kind: Kind::Doorbell,
            reason: "its ranks meet at DOORBELL_ROOT, and exchange no values through it".to_owned(),
        }),
        Kind::Pmix if found.invitation.is_some() => Ok(Box::new(singleton::Singleton::of(found))),
        Kind::Pmix => Ok(Box::new(pmix::Pmix::open(found, limit)?)),
        Kind::Pmi2 => Ok(Box::new(wire::Wire::<Pmi2>::inherited(found, limit)?)),
        Kind::Pmi1 => Ok(Box::new(wire::Wire::<Pmi1>::inherited(found, limit)?)),
        Kind::Environment => Ok(Box::new(environment::Environment::open(found)?)),
        Kind::Singleton => Ok(Box::new(singleton::Singleton::of(found))),
    }
}

/// Opens the descriptor that a launcher of [`Kind::Doorbell`] leaves to its ranks in addition, for requests
/// of the running job.
///
/// # Errors
/// [`LaunchError::NoSpawn`] when there is none, or it belongs to another process; else the errors of
/// [`open`].
pub fn open_beside(
    rank: u32,
    variables: &dyn Fn(&str) -> Option<String>,
    limit: Duration,
) -> Result<Box<dyn Launcher>, LaunchError> {
    let wanted = Wanted {
        kind: Some(Kind::Pmi1),
        ..Wanted::default()
    };
    match detect(&wanted, variables) {
        Ok(found) if found.rank == rank => open(&found, limit),
        Ok(_) | Err(LaunchError::NotPossible { .. }) => Err(LaunchError::NoSpawn {
            kind: Kind::Doorbell,
            remedy: "these ranks were started by hand: start them with `doorbell run`",
        }),
        Err(error) => Err(error),
    }
}

/// Whether this process has been admitted by a launcher.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Marks this process as admitted; undone when connecting fails before anything was sent to the launcher.
fn take_place(kind: Kind) -> Result<(), LaunchError> {
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Err(LaunchError::Taken { kind });
    }
    Ok(())
}

fn give_place_back() {
    TAKEN.store(false, Ordering::Release);
}
