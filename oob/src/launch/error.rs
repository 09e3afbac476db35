//! Errors of launchers: which launcher, at which step, and the remedy.

use std::io;
use std::time::Duration;

use doorbell_fabric::error::Exit;
use thiserror::Error;

use super::Kind;

/// Why a launcher cannot be used, or no longer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The requested launcher is not available.
    #[error("`job.launch = {kind}` is not possible here: {reason}; see `doorbell info` for what was found")]
    NotPossible {
        /// The launcher that was requested.
        kind: Kind,
        /// Why it is not available.
        reason: String,
    },
    /// A variable of the launcher is malformed.
    #[error("the launcher's variable {name} is `{value}`, but should be {expected}: was it changed by hand?")]
    Variable {
        /// The name of the variable.
        name: &'static str,
        /// The value of the variable.
        value: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A rank outside its job, or an impossible size.
    #[error(
        "the launcher ({kind}) reports rank {rank} of {size}, but a job has 1 to 65536 ranks, counted from 0"
    )]
    Place {
        /// The launcher that reports it.
        kind: Kind,
        /// The rank it reports.
        rank: u32,
        /// The size it reports.
        size: u32,
    },
    /// The launcher admits each process once, and has admitted this one.
    #[error(
        "this process has already joined its job through the launcher ({kind}), which is possible only once: create one world \
         for the whole run of the program"
    )]
    Taken {
        /// The launcher that was used.
        kind: Kind,
    },
    /// The inherited descriptor is unusable.
    #[error(
        "the launcher's descriptor {number} (PMI_FD) cannot be used: {reason}; start the program directly under the \
         launcher, not through a program that closes descriptors"
    )]
    Descriptor {
        /// The number of the descriptor.
        number: i32,
        /// Why it is unusable.
        reason: String,
    },
    /// The launcher closed its descriptor.
    #[error(
        "the launcher ({kind}) closed its descriptor before it answered `{step}`: it has ended, or is ending the \
         job; see its own output"
    )]
    Closed {
        /// The launcher that is gone.
        kind: Kind,
        /// The request it did not answer.
        step: &'static str,
    },
    /// A system call on the descriptor failed.
    #[error(
        "the descriptor of the launcher ({kind}) failed at `{step}`: {source}; check the launcher's output"
    )]
    Io {
        /// The launcher that was called.
        kind: Kind,
        /// The request that was sent.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The launcher did not answer in time.
    #[error(
        "the launcher ({kind}) did not answer `{step}` within {:.1} s: it is stopped or busy, or other ranks have not arrived \
         (raise DOORBELL_JOB_TIMEOUT if they are merely slow)",
        limit.as_secs_f64()
    )]
    Late {
        /// The launcher that was called.
        kind: Kind,
        /// The request that was sent.
        step: &'static str,
        /// The limit that passed.
        limit: Duration,
    },
    /// The answer is malformed.
    #[error(
        "the launcher's answer to `{step}` is not valid {kind}: {reason}; does PMI_FD belong to a launcher?"
    )]
    Garbled {
        /// The protocol of the launcher.
        kind: Kind,
        /// The request that was sent.
        step: &'static str,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The launcher refused a request.
    #[error(
        "the launcher ({kind}) refused `{step}` (rc {code}{}): check its output",
        quoted(message)
    )]
    Refused {
        /// The launcher that refused.
        kind: Kind,
        /// The request that was sent.
        step: &'static str,
        /// The return code.
        code: i64,
        /// The message of the launcher; may be empty.
        message: String,
    },
    /// No value has this key.
    #[error("rank {rank} has put no value `{key}` at the launcher ({kind}): does it run the same program?")]
    Absent {
        /// The launcher that received the request.
        kind: Kind,
        /// The rank whose value was requested.
        rank: u32,
        /// The key of the value.
        key: String,
    },
    /// A value is too long for the launcher, or for us.
    #[error("{what} of {length} bytes is too long for the launcher ({kind}), whose limit is {limit}")]
    TooLong {
        /// The launcher that was called.
        kind: Kind,
        /// What is too long.
        what: &'static str,
        /// Its length (bytes).
        length: usize,
        /// The maximum length (bytes).
        limit: usize,
    },
    /// A key has characters that the launcher's protocol does not allow.
    #[error("`{key}` is not a valid key for a launcher: use letters, digits, dots and dashes only")]
    Key {
        /// The key that was given.
        key: String,
    },
    /// A value is not in our encoding.
    #[error(
        "the value `{key}` of rank {rank} is malformed: {reason}; does every rank run the same doorbell?"
    )]
    Damaged {
        /// The rank that put the value.
        rank: u32,
        /// The key of the value.
        key: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The PMIx library is missing or unusable.
    #[error(
        "the PMIx library `{name}` cannot be used: {reason}; install it (Debian: libpmix2), or name it in \
         DOORBELL_PMIX_LIBRARY"
    )]
    Library {
        /// The name of the library.
        name: String,
        /// Why it is unusable.
        reason: String,
    },
    /// A call of libpmix failed.
    #[error("{call} failed: {text} ({status}); {remedy}")]
    Pmix {
        /// The name of the function.
        call: &'static str,
        /// The status it returned.
        status: i32,
        /// The library's text for the status.
        text: String,
        /// The remedy to propose.
        remedy: &'static str,
    },
    /// Rank and size are known, but values cannot be exchanged.
    #[error("values cannot be exchanged through {what}: {remedy}")]
    NoExchange {
        /// What is known, and from where.
        what: String,
        /// The remedy to propose.
        remedy: &'static str,
    },
    /// The launcher does not start processes of a running job.
    #[error("the launcher ({kind}) cannot start more ranks of a running job: {remedy}")]
    NoSpawn {
        /// The launcher that received the request.
        kind: Kind,
        /// The remedy to propose.
        remedy: &'static str,
    },
    /// The launcher refused to start processes.
    #[error("the launcher ({kind}) does not start the new ranks: {reason}")]
    NotSpawned {
        /// The launcher that refused.
        kind: Kind,
        /// Why it refused.
        reason: String,
    },
    /// The call is not valid in this state.
    #[error("cannot send `{step}` to the launcher ({kind}) {why}")]
    State {
        /// The launcher of the call.
        kind: Kind,
        /// The request of the call.
        step: &'static str,
        /// Why it is not valid now.
        why: &'static str,
    },
}

fn quoted(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!(", `{message}`")
    }
}

impl LaunchError {
    /// Returns a stable code for scripts.
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

    /// Returns the exit code of a program that ends with this error.
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
