//! What can go wrong with the conduit, and what to do about it.

use doorbell_fabric::error::RailError;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::ni::{NiError, NiFail};
use thiserror::Error;

use crate::credit::{CreditConfigError, NoCredits};
use crate::exit::Unclean;
use crate::settings::SettingsError;

/// The errors of the conduit.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AmError {
    /// A rank outside the job.
    #[error("rank {rank} is not in this job of {size}; ranks go from 0 to {}", size.saturating_sub(1))]
    NoSuchRank {
        /// The rank that does not exist.
        rank: u32,
        /// Processes of the job.
        size: u32,
    },
    /// More arguments than a message carries.
    #[error("{given} arguments: an active message carries at most 16, of 32 bits each")]
    TooManyArgs {
        /// The number of arguments.
        given: usize,
    },
    /// A payload that is too long for its kind of message.
    #[error("{what} of {given} bytes: the limit is {most}; see `max_{query}`, or send several")]
    TooLong {
        /// What was sent.
        what: &'static str,
        /// The length in bytes.
        given: u64,
        /// The longest that is allowed.
        most: u64,
        /// The query that returns the limit.
        query: &'static str,
    },
    /// Bytes that are only borrowed for the length of the call, and too many to be copied.
    #[error(
        "{given} borrowed bytes: at most {most} are copied; pass a place in the segment, or owned memory, for more"
    )]
    MustStay {
        /// The length in bytes.
        given: u64,
        /// The most that is copied.
        most: u64,
    },
    /// Outside the segment of its owner.
    #[error("{length} bytes from {offset} are outside the segment of rank {rank}, which has {size}")]
    OutsideSegment {
        /// The rank of the segment.
        rank: u32,
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
        /// Bytes of the segment.
        size: u64,
    },
    /// A handler's number is reserved or used twice.
    #[error("handler {0} cannot be registered: 0 is reserved, and each number is used once")]
    Handler(u8),
    /// A process is lost.
    #[error("rank {rank} is lost: {}", reason_of(*reason))]
    PeerLost {
        /// The rank that is lost.
        rank: u32,
        /// Why it is lost.
        reason: DownReason,
    },
    /// The job ends.
    #[error("the job ends with status {code}: rank {by} requested it")]
    ShuttingDown {
        /// The largest status so far.
        code: u8,
        /// The rank that requested it.
        by: u32,
    },
    /// The exit did not end in order.
    #[error(transparent)]
    Unclean(#[from] Unclean),
    /// An operation of the segment failed at its target.
    #[error("an operation on the segment of rank {rank} ended as {fail:?}")]
    Operation {
        /// The rank of the segment.
        rank: u32,
        /// How it ended.
        fail: NiFail,
    },
    /// A handle whose operation has ended, or of another conduit.
    #[error("this handle refers to no operation in progress: each is synchronised once")]
    Stale,
    /// More operations are in progress than 24 bits can number.
    #[error("65536 operations are not synchronised: synchronise some before starting more")]
    TooManyOperations,
    /// A call that does not fit what was called before.
    #[error("{0}")]
    Order(&'static str),
    /// The barrier's names do not agree.
    #[error("the processes are at different barriers: one of them passed another id")]
    BarrierMismatch,
    /// The caller ended a wait.
    #[error("the wait for {0} was ended by its caller")]
    Ended(Stall),
    /// The interface refused a call that has to succeed.
    #[error("{step}: {source}")]
    Interface {
        /// What was tried.
        step: &'static str,
        /// The interface's error.
        source: NiError,
    },
    /// The interface's limits are too small for the settings.
    #[error(
        "the interface has {what}={have}, and these settings need {need}: initialise it with `Config::needs`, or lower {lower}"
    )]
    Limits {
        /// The name of the limit.
        what: &'static str,
        /// What it is.
        have: u64,
        /// The value that is needed.
        need: u64,
        /// Which setting to lower.
        lower: &'static str,
    },
    /// More memory would be pinned than the system allows this process.
    #[error(
        "{need} bytes would be pinned ({segment} of the segment, {receive} of receive buffers, {send} of send buffers), and the limit of locked memory is {limit}: raise it (ulimit -l), or lower the segment, GASNET_PORTAL_AMRECV_SPACE or GASNET_PORTAL_SB_CHUNKS"
    )]
    Pinning {
        /// The sum of all bytes.
        need: u64,
        /// Bytes of the segment.
        segment: u64,
        /// Bytes of the receive buffers.
        receive: u64,
        /// Bytes of the send buffers.
        send: u64,
        /// What may be pinned.
        limit: u64,
    },
    /// More memory would be taken than the host has left.
    #[error(
        "{receive} bytes of receive buffers and {send} of send buffers are needed, and the host has {left} bytes of memory left: lower GASNET_PORTAL_BANKED_CREDITS, GASNET_PORTAL_CRED_PER_NODE or GASNET_PORTAL_AMRECV_SPACE, or GASNET_PORTAL_SB_CHUNKS"
    )]
    NoMemory {
        /// Bytes of the receive buffers.
        receive: u64,
        /// Bytes of the send buffers.
        send: u64,
        /// What the host has left.
        left: u64,
    },
    /// The segment mode is not one of this conduit.
    #[error(
        "the segment mode EVERYTHING would expose all memory of the process to its peers, which cannot be done safely here: use FAST, with a segment of the size that is needed"
    )]
    Everything,
    /// An allocation failed.
    #[error("memory for {what}: {source}")]
    Memory {
        /// The purpose of the memory.
        what: &'static str,
        /// Why it cannot be allocated.
        source: RailError,
    },
    /// A setting is wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The credits cannot be distributed.
    #[error(transparent)]
    CreditConfig(#[from] CreditConfigError),
    /// The credits of a request: a mistake of the conduit's own.
    #[error(transparent)]
    Credits(#[from] NoCredits),
    /// The start-up of the job failed.
    #[error("the start-up of the job failed: {0}")]
    Boot(#[from] BootError),
    /// Something that ends the conduit.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Why the start-up of a job failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BootError {
    /// The barrier outside the conduit failed.
    #[error("the launcher's barrier failed{}: {reason}", who(*rank))]
    External {
        /// The rank at fault, where known.
        rank: Option<u32>,
        /// The reason as a text.
        reason: String,
    },
    /// A rank is lost.
    #[error("rank {rank} is lost: {}", reason_of(*reason))]
    Lost {
        /// The rank that is lost.
        rank: u32,
        /// Why it is lost.
        reason: DownReason,
    },
    /// A rank has other settings.
    #[error("{what} is {theirs} at rank {rank} and {ours} here: give all ranks the same GASNET_ settings")]
    Disagree {
        /// The rank with other settings.
        rank: u32,
        /// What has to be alike.
        what: &'static str,
        /// What it is here.
        ours: u64,
        /// What it is there.
        theirs: u64,
    },
    /// A rank did not respond in time.
    #[error(
        "{waits_for} did not respond within {seconds} s, while {step}: check whether it still runs and polls"
    )]
    Silent {
        /// What it waited for.
        waits_for: WaitsFor,
        /// During which step.
        step: &'static str,
        /// How long it waited.
        seconds: u64,
    },
}

/// What a step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// A rank of the job.
    Rank(u32),
    /// The launcher's barrier.
    Launcher,
}

impl std::fmt::Display for WaitsFor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rank(rank) => write!(out, "rank {rank}"),
            Self::Launcher => out.write_str("the launcher's barrier"),
        }
    }
}

/// A fault that ends the whole conduit: every later call returns it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Fault {
    /// A request found no receive buffer.
    #[error(
        "a request found no receive buffer and was dropped into the catch-all entry: a process sends more than its credits, or flow control is off; turn GASNET_PORTAL_FLOW_CONTROL on, or raise GASNET_PORTAL_AMRECV_SPACE"
    )]
    CatchBasin,
    /// An event queue overflowed.
    #[error(
        "the event queue {0} overflowed, and events are lost: a process sends more than its credits allow"
    )]
    EventsLost(&'static str),
    /// The interface failed.
    #[error("the interface failed: {0}")]
    Interface(NiError),
    /// A portal table entry was disabled.
    #[error("portal table entry {0} was disabled by the interface: its queue or its list ran out")]
    Disabled(u32),
}

/// What a call waits for, or would wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stall {
    /// Credits of the peer: its replies bring them.
    Credits,
    /// Send tickets, returned by operations in progress.
    Tickets,
    /// A chunk of the send buffer, returned by replies.
    Chunk,
    /// A temporary descriptor.
    Temporary,
    /// The interface has no room: a poll makes some.
    Interface,
    /// Reply resources, for a message to oneself.
    Reply,
    /// Operations that are to be synchronised.
    Operations,
    /// The other processes at a barrier.
    Barrier,
    /// The other processes at the exit.
    Exit,
}

impl std::fmt::Display for Stall {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Credits => "credits of the peer",
            Self::Tickets => "send tickets",
            Self::Chunk => "a chunk of the send buffer",
            Self::Temporary => "a temporary descriptor",
            Self::Interface => "room in the interface",
            Self::Reply => "reply resources",
            Self::Operations => "operations under way",
            Self::Barrier => "the others at the barrier",
            Self::Exit => "the others at the exit",
        })
    }
}

/// The outcome of a call that does not wait: done, or what it would have to wait for. Nothing was taken then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a stalled call has done nothing"]
pub enum Try<T> {
    /// The operation is done, with this outcome.
    Done(T),
    /// The operation would have to wait for this.
    Stalled(Stall),
}

impl<T> Try<T> {
    /// The result, if it is done.
    #[inline]
    pub fn done(self) -> Option<T> {
        match self {
            Self::Done(value) => Some(value),
            Self::Stalled(_) => None,
        }
    }

    /// Replaces the outcome.
    #[inline]
    pub fn map<U>(self, with: impl FnOnce(T) -> U) -> Try<U> {
        match self {
            Self::Done(value) => Try::Done(with(value)),
            Self::Stalled(stall) => Try::Stalled(stall),
        }
    }

    /// Whether it was done.
    #[inline]
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }
}

fn who(rank: Option<u32>) -> String {
    rank.map_or_else(String::new, |rank| format!(" at rank {rank}"))
}

const fn reason_of(reason: DownReason) -> &'static str {
    match reason {
        DownReason::Closed => {
            "it closed its end; call a barrier before the end, so that no rank exits before the others have received everything"
        }
        DownReason::Died => "its process ended or its connection broke; see its last output",
        DownReason::Hostile => "it violated the protocol; check that both run the same version",
        DownReason::Silent => "it did not respond within the limit; check whether it still runs and polls",
        DownReason::Abandoned => "its connection was given up; check the network between",
        DownReason::Resources => {
            "this process has no memory or descriptors left for its connection; raise its limits"
        }
        DownReason::Control => "the control plane lost it; see how its process ended",
    }
}
