//! The launchers' door: how a process that somebody else started learns its rank, and hands a few bytes to the others.
//!
//! ```text
//!   variables ──► detect ──► Found {kind, rank, why the others not}
//!                               │ open
//!                               ▼
//!     dyn Launcher ── put, fence, get ──►  what a job needs to meet       abort, finalize
//!        │
//!        ├── pmix         libpmix, loaded when it is wanted (Open MPI's mpirun, PRRTE, srun --mpi=pmix)
//!        ├── wire         the descriptor PMI_FD:  session (sans-IO) over the dialect
//!        │                    ├── pmi1          lines        (MPICH's hydra, srun --mpi=pmi2)
//!        │                    └── pmi2          frames       (srun --mpi=pmi2, hydra)
//!        ├── environment  rank and size from variables, and nothing else
//!        └── singleton    one process
//! ```
//!
//! What is put is readable by the launcher and by whoever it lets read, and believed as it comes: a launcher that starts
//! the processes can make them do anything anyway. What it *says* is parsed as hostile input all the same, so that a
//! broken one ends in a sentence.
//!
//! Every call has a limit, and none waits longer. After an error a door is broken, and each further call says so.

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

pub use detect::{Found, Wanted, detect};
pub use error::LaunchError;
pub use invite::Newcomers;
pub(crate) use invite::{ABANDON, TOKEN, is_token, said_of};
pub use pmi1::Pmi1;
pub use pmi2::Pmi2;
pub use session::{Answer, Dialect, Program, Request, Session, Words};
pub(crate) use session::{is_plain, shown};

/// Longest value that is put or taken, in bytes.
pub const LONGEST_VALUE: usize = 1 << 20;
/// Most processes of one job.
pub const MOST_RANKS: u32 = 65_536;

/// By what a process learns who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The variables of `doorbell run`.
    Doorbell,
    /// A PMIx server, through libpmix.
    Pmix,
    /// A PMI-2 server at the other end of a descriptor.
    Pmi2,
    /// A PMI-1 server at the other end of a descriptor.
    Pmi1,
    /// Variables that tell rank and size only.
    Environment,
    /// By nothing: the process is alone.
    Singleton,
}

impl Kind {
    /// All, in the order in which they are looked for.
    pub const ALL: [Self; 6] = [
        Self::Doorbell,
        Self::Pmix,
        Self::Pmi2,
        Self::Pmi1,
        Self::Environment,
        Self::Singleton,
    ];

    /// Its name in settings and reports.
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

/// Who a process is in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its rank, from 0.
    pub rank: u32,
    /// How many ranks there are.
    pub size: u32,
    /// Which of the ranks of this host it is, from 0; `None` when the launcher does not say.
    pub local_rank: Option<u32>,
    /// How many ranks are on this host.
    pub local_size: Option<u32>,
    /// The launcher's name for the job; empty when it has none.
    pub job: String,
}

impl Place {
    /// Refuses what no job can be.
    pub(crate) fn checked(self, kind: Kind) -> Result<Self, LaunchError> {
        let Self { rank, size, .. } = self;
        if size == 0 || size > MOST_RANKS || rank >= size {
            return Err(LaunchError::Place { kind, rank, size });
        }
        Ok(self)
    }
}

/// What a launcher does for one process of a job. Each call returns within its limit; after an error other than
/// [`LaunchError::Absent`] the launcher is not to be used any more, and says so.
pub trait Launcher: Send + fmt::Debug {
    /// By what it was found.
    fn kind(&self) -> Kind;

    /// Who this process is.
    fn place(&self) -> &Place;

    /// Where the ranks can meet when values cannot be exchanged: a name that is the same for all of them. `None` where
    /// they can.
    ///
    /// # Errors
    /// [`LaunchError::NoExchange`] when there is neither.
    fn meeting(&self) -> Result<Option<&str>, LaunchError> {
        Ok(None)
    }

    /// Gives a value of this rank to the others, who have it after the next [`Launcher::fence`].
    ///
    /// # Errors
    /// What the launcher refused, or said wrongly; its end; [`LaunchError::Late`].
    fn put(&mut self, key: &str, value: &[u8], limit: Duration) -> Result<(), LaunchError>;

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Launcher::put`].
    fn fence(&mut self, limit: Duration) -> Result<(), LaunchError>;

    /// A value that `rank` has put before the last fence.
    ///
    /// # Errors
    /// [`LaunchError::Absent`] when it has not; otherwise as [`Launcher::put`].
    fn get(&mut self, rank: u32, key: &str, limit: Duration) -> Result<Vec<u8>, LaunchError>;

    /// Starts more processes, which find the invitation by [`Launcher::invitation`]. It returns when the launcher has
    /// taken the order: that they run, and come, is for whoever invites them to see.
    ///
    /// # Errors
    /// [`LaunchError::NoSpawn`] where the launcher cannot; [`LaunchError::NotSpawned`] where it refuses, which leaves it
    /// usable; otherwise as [`Launcher::put`].
    fn spawn(&mut self, newcomers: &Newcomers<'_>, limit: Duration) -> Result<(), LaunchError> {
        let _ = (newcomers, limit);
        Err(LaunchError::NoSpawn {
            kind: self.kind(),
            remedy: invite::ELSEWHERE,
        })
    }

    /// Why processes that were asked for under this token will not come, where the launcher knows.
    ///
    /// # Errors
    /// As [`Launcher::put`].
    fn failure(&mut self, token: &str, limit: Duration) -> Result<Option<String>, LaunchError> {
        let _ = (token, limit);
        Ok(None)
    }

    /// Nobody waits any more for the processes that were asked for under this token: the launcher ends those that have
    /// not joined, where it has a word for that.
    ///
    /// # Errors
    /// As [`Launcher::put`].
    fn abandon(&mut self, token: &str, limit: Duration) -> Result<(), LaunchError> {
        let _ = (token, limit);
        Ok(())
    }

    /// Collects what has ended of the processes that it has started itself.
    fn tidy(&mut self) {}

    /// With what this process was invited by those who had it started; `None` for one of the first.
    ///
    /// # Errors
    /// As [`Launcher::put`].
    fn invitation(&mut self, limit: Duration) -> Result<Option<Vec<u8>>, LaunchError> {
        let _ = limit;
        Ok(None)
    }

    /// Asks for the end of the whole job with this exit status, and says why. The launcher may end this process before
    /// the call returns; otherwise the caller has to end it.
    ///
    /// # Errors
    /// As [`Launcher::put`].
    fn abort(&mut self, code: u8, text: &str, limit: Duration) -> Result<(), LaunchError>;

    /// Takes leave: from here on the end of this process is no failure.
    ///
    /// # Errors
    /// As [`Launcher::put`].
    fn finalize(&mut self, limit: Duration) -> Result<(), LaunchError>;
}

/// Opens the door that was found: connects, where there is something to be connected to.
///
/// # Errors
/// Why it does not open; [`LaunchError::Taken`] when this process has been through before: launchers let each in once.
pub fn open(found: &Found, limit: Duration) -> Result<Box<dyn Launcher>, LaunchError> {
    match found.kind {
        Kind::Doorbell => Err(LaunchError::NotPossible {
            kind: Kind::Doorbell,
            reason: "its ranks meet at DOORBELL_ROOT, and exchange nothing through it".to_owned(),
        }),
        Kind::Pmix if found.invitation.is_some() => Ok(Box::new(singleton::Singleton::of(found))),
        Kind::Pmix => Ok(Box::new(pmix::Pmix::open(found, limit)?)),
        Kind::Pmi2 => Ok(Box::new(wire::Wire::<Pmi2>::inherited(found, limit)?)),
        Kind::Pmi1 => Ok(Box::new(wire::Wire::<Pmi1>::inherited(found, limit)?)),
        Kind::Environment => Ok(Box::new(environment::Environment::open(found)?)),
        Kind::Singleton => Ok(Box::new(singleton::Singleton::of(found))),
    }
}

/// Opens the descriptor that a launcher of [`Kind::Doorbell`] leaves to its ranks beside everything else: for what is
/// asked while the job runs.
///
/// # Errors
/// [`LaunchError::NoSpawn`] when there is none, or it is another process's; otherwise as [`open`].
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

/// Whether this process has been let in by a launcher.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the one place that a launcher has for this process; given back when what follows fails before the launcher
/// was told anything.
fn take_place(kind: Kind) -> Result<(), LaunchError> {
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Err(LaunchError::Taken { kind });
    }
    Ok(())
}

fn give_place_back() {
    TAKEN.store(false, Ordering::Release);
}
