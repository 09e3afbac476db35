//! What can go wrong at the launchers' door: with whom, at what, and what to do.

use std::io;
use std::time::Duration;

use doorbell_fabric::error::Exit;
use thiserror::Error;

use super::Kind;

/// Why a launcher cannot be used, or no longer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A launcher that was named, and is not there.
    #[error("`job.launch = {kind}` is not possible here: {reason}; `doorbell info` says what was found")]
    NotPossible {
        /// The one that was named.
        kind: Kind,
        /// Why not.
        reason: String,
    },
    /// A variable of the launcher that says nothing sensible.
    #[error("the launcher's variable {name} is `{value}`, and should be {expected}: was it changed by hand?")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A rank outside its job, or a job of a size that cannot be.
    #[error(
        "the launcher ({kind}) says that this is rank {rank} of {size}, and a job has from 1 to 65536 ranks counted from 0"
    )]
    Place {
        /// Who says it.
        kind: Kind,
        /// The rank.
        rank: u32,
        /// The size.
        size: u32,
    },
    /// A launcher that lets a process in once, and has.
    #[error(
        "this process has already joined its job through the launcher ({kind}), which allows that once: make one world \
         for the whole run of the program"
    )]
    Taken {
        /// The launcher.
        kind: Kind,
    },
    /// The descriptor is not what it should be.
    #[error(
        "the launcher's descriptor {number} (PMI_FD) cannot be used: {reason}; start the program directly under the \
         launcher, not through a program that closes descriptors"
    )]
    Descriptor {
        /// Its number.
        number: i32,
        /// Why not.
        reason: String,
    },
    /// The launcher is gone.
    #[error(
        "the launcher ({kind}) closed its descriptor while we waited for its answer to `{step}`: it has ended, or ends the \
         job; see its own output"
    )]
    Closed {
        /// The launcher.
        kind: Kind,
        /// What it was asked.
        step: &'static str,
    },
    /// The system refused a step on the descriptor.
    #[error(
        "the descriptor of the launcher ({kind}) failed at `{step}`: {source}; see the launcher's own output"
    )]
    Io {
        /// The launcher.
        kind: Kind,
        /// What it was asked.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// No answer in time.
    #[error(
        "the launcher ({kind}) did not answer `{step}` within {:.1} s: it is stopped or busy, or other ranks have not come \
         (raise DOORBELL_JOB_TIMEOUT if they are merely slow)",
        limit.as_secs_f64()
    )]
    Late {
        /// The launcher.
        kind: Kind,
        /// What it was asked.
        step: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// An answer that does not parse.
    #[error("the launcher's answer to `{step}` is not {kind}: {reason}; is PMI_FD really a launcher's?")]
    Garbled {
        /// The protocol.
        kind: Kind,
        /// What it was asked.
        step: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The launcher says no.
    #[error(
        "the launcher ({kind}) refused `{step}` (rc {code}{}): see its own output",
        said(message)
    )]
    Refused {
        /// The launcher.
        kind: Kind,
        /// What it was asked.
        step: &'static str,
        /// Its code.
        code: i64,
        /// What it says about it; may be empty.
        message: String,
    },
    /// Nothing was put under a key.
    #[error(
        "rank {rank} has given nothing under `{key}` to the launcher ({kind}): does it run the same program?"
    )]
    Absent {
        /// The launcher.
        kind: Kind,
        /// The rank.
        rank: u32,
        /// The key.
        key: String,
    },
    /// A value that is too long for the launcher, or for us.
    #[error("{what} of {length} bytes does not go through the launcher ({kind}), which takes {limit}")]
    TooLong {
        /// The launcher.
        kind: Kind,
        /// What is too long.
        what: &'static str,
        /// Its length.
        length: usize,
        /// What fits.
        limit: usize,
    },
    /// A key that cannot be written in the launcher's protocol.
    #[error("`{key}` cannot be a key of a launcher: it needs letters, digits, dots and dashes only")]
    Key {
        /// The key.
        key: String,
    },
    /// A value that was written otherwise than we write them.
    #[error(
        "what rank {rank} gave under `{key}` is damaged: {reason}; does every rank run the same doorbell?"
    )]
    Damaged {
        /// The rank.
        rank: u32,
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Libpmix is not here, or is not what it should be.
    #[error(
        "the PMIx library `{name}` cannot be used: {reason}; install it (Debian: libpmix2), or name it in \
         DOORBELL_PMIX_LIBRARY"
    )]
    Library {
        /// The name that it was looked for by.
        name: String,
        /// Why not.
        reason: String,
    },
    /// Libpmix says no.
    #[error("{call} failed: {text} ({status}); {remedy}")]
    Pmix {
        /// The function.
        call: &'static str,
        /// Its status.
        status: i32,
        /// The library's words for it.
        text: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Rank and size are known, but nothing goes through this launcher.
    #[error("nothing can be exchanged through {what}: {remedy}")]
    NoExchange {
        /// What is known, and from where.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A launcher that starts nothing more once the job runs.
    #[error("the launcher ({kind}) cannot start more ranks of a running job: {remedy}")]
    NoSpawn {
        /// The launcher.
        kind: Kind,
        /// What to do.
        remedy: &'static str,
    },
    /// Processes that the launcher was asked for, and does not start.
    #[error("the launcher ({kind}) does not start the new ranks: {reason}")]
    NotSpawned {
        /// The launcher.
        kind: Kind,
        /// Why not.
        reason: String,
    },
    /// A call that does not belong here.
    #[error("the launcher ({kind}) cannot be asked to `{step}` {why}")]
    State {
        /// The launcher.
        kind: Kind,
        /// What it was asked.
        step: &'static str,
        /// Why not now.
        why: &'static str,
    },
}

fn said(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!(", `{message}`")
    }
}

impl LaunchError {
    /// A stable code for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotPossible { .. } => "launch.not-possible",
            Self::Variable { .. } | Self::Place { .. } => "launch.variables",
            Self::Taken { .. } => "launch.taken",
            Self::Descriptor { .. } => "launch.descriptor",
            Self::Closed { .. } => "launch.closed",
            Self::Io { .. } => "launch.system",
            Self::Late { .. } => "launch.late",
            Self::Garbled { .. } => "launch.garbled",
            Self::Refused { .. } | Self::Pmix { .. } => "launch.refused",
            Self::Absent { .. } => "launch.absent",
            Self::TooLong { .. } | Self::Key { .. } => "launch.value",
            Self::Damaged { .. } => "launch.damaged",
            Self::Library { .. } => "launch.library",
            Self::NoExchange { .. } => "launch.no-exchange",
            Self::NoSpawn { .. } => "launch.no-spawn",
            Self::NotSpawned { .. } => "launch.not-spawned",
            Self::State { .. } => "launch.state",
        }
    }

    /// With which number a program ends because of this.
    pub fn exit(&self) -> Exit {
        match self {
            Self::NotPossible { .. } | Self::Variable { .. } | Self::Place { .. } | Self::Taken { .. } => {
                Exit::Usage
            }
            Self::NoExchange { .. } | Self::Key { .. } | Self::TooLong { .. } => Exit::Usage,
            Self::NoSpawn { .. } | Self::NotSpawned { .. } => Exit::Usage,
            Self::Late { .. } => Exit::TimedOut,
            Self::Closed { .. } | Self::Garbled { .. } | Self::Refused { .. } => Exit::PeerLost,
            Self::Absent { .. } | Self::Damaged { .. } => Exit::PeerLost,
            Self::Descriptor { .. } | Self::Io { .. } | Self::Library { .. } => Exit::System,
            Self::Pmix { .. } | Self::State { .. } => Exit::System,
        }
    }
}
