//! The error type of every handle on a job: what failed, on what, the system's word, the likely cause, and
//! what to do next.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use doorbell_am::{AmError, BootError, Unclean};
use doorbell_fabric::error::{Exit, RailError};
use doorbell_fabric::shown::shown;
use doorbell_oob::{LaunchError, OobError};
use doorbell_pml::OperationError;
use thiserror::Error;

use crate::types::{Source, Tag};

/// Which rank waits for what: the explanation of [`Error::Timeout`] and of the notice of a long wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The rank that waits.
    pub rank: u32,
    /// What it waits for.
    pub what: Awaited,
    /// How long the wait has lasted.
    pub waited: Duration,
    /// Status lines of the peers concerned, one each, with rail and state.
    pub peers: Vec<String>,
    /// Whether a rail to one of them has found that frames do not pass: more time does not help then.
    pub is_cut_off: bool,
    /// The last events that their rails recorded, at the limit: a heading for each rail, then one line per
    /// event, newest last.
    pub recent: Vec<String>,
}

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A message that matches.
    Receive {
        /// The source that the receive names.
        from: Source,
        /// The tag that the receive names.
        tag: Tag,
    },
    /// The end of a send.
    Send {
        /// The destination's rank.
        to: u32,
        /// The message's tag.
        tag: u64,
    },
    /// The appearance of a matching message.
    Probe {
        /// The source that the probe names.
        from: Source,
        /// The tag that the probe names.
        tag: Tag,
    },
    /// One of several requests.
    Requests {
        /// How many were pending.
        count: usize,
        /// The peers of these requests.
        peers: Peers,
    },
    /// A step of a collective operation.
    Collective {
        /// The operation's name.
        name: &'static str,
        /// The peer of the step.
        peer: u32,
        /// The step, from 0.
        step: u32,
    },
    /// The end of a one-sided operation.
    OneSided {
        /// The target's rank.
        peer: u32,
        /// The operation's name.
        name: &'static str,
    },
    /// The connection to a rank, which is opened when it is first needed.
    Meeting {
        /// The peer's rank.
        peer: u32,
    },
    /// The end of the requests that a scope or a call left behind.
    Abort(usize),
    /// An event of a Portals interface, or of active messages.
    Interface {
        /// The event, in words.
        what: &'static str,
    },
}

impl Awaited {
    /// Returns the ranks that the wait names, and whether others may be concerned as well.
    pub fn concerned(self) -> (Vec<u32>, bool) {
        match self {
            Self::Receive {
                from: Source::Rank(rank),
                ..
            }
            | Self::Probe {
                from: Source::Rank(rank),
                ..
            }
            | Self::Send { to: rank, .. }
            | Self::Collective { peer: rank, .. }
            | Self::OneSided { peer: rank, .. }
            | Self::Meeting { peer: rank } => (vec![rank], false),
            Self::Requests { peers, .. } => {
                let named = peers.ranks().to_vec();
                let others = named.is_empty() || peers.and_others();
                (named, others)
            }
            Self::Receive { .. } | Self::Probe { .. } | Self::Abort(_) | Self::Interface { .. } => {
                (Vec::new(), true)
            }
        }
    }
}

/// The peers of several requests: the first few distinct ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    ranks: [u32; Self::NAMED],
    known: usize,
    others: bool,
}

impl Peers {
    const NAMED: usize = 4;

    /// Returns the ranks that are named.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks[..self.known]
    }

    /// Whether there are more than [`Peers::ranks`]: further ones, or receives from any rank.
    pub fn and_others(&self) -> bool {
        self.others
    }
}

impl FromIterator<Option<u32>> for Peers {
    /// Collects the peers of requests; `None` stands for any rank.
    fn from_iter<I: IntoIterator<Item = Option<u32>>>(peers: I) -> Self {
        let mut all = Self::default();
        for peer in peers {
            match peer {
                Some(rank) if all.ranks().contains(&rank) => {}
                Some(rank) if all.known < Self::NAMED => {
                    all.ranks[all.known] = rank;
                    all.known += 1;
                }
                _ => all.others = true,
            }
        }
        all
    }
}

impl fmt::Display for Peers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ranks(), self.others) {
            ([], _) => Ok(()),
            (named, false) => write!(out, " with {}", ranks(named)),
            (named, true) => write!(out, " with {} and others", ranks(named)),
        }
    }
}

impl fmt::Display for Awaited {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Receive { from, tag } => write!(out, "a message from {from} with {tag}"),
            Self::Send { to, tag } => write!(out, "its message with tag {tag:#x} to be taken by rank {to}"),
            Self::Probe { from, tag } => write!(out, "a message from {from} with {tag} to appear"),
            Self::Requests { count, peers } => write!(out, "one of {count} requests{peers}"),
            Self::Collective { name, peer, step } => write!(out, "rank {peer} in step {step} of {name}"),
            Self::OneSided { peer, name } => write!(out, "its {name} at rank {peer}"),
            Self::Meeting { peer } => write!(out, "what rank {peer} has published"),
            Self::Interface { what } => out.write_str(what),
            Self::Abort(count) => write!(out, "{count} abandoned requests to let go of their buffers"),
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "rank {} has waited {:.1} s for {}",
            self.rank,
            self.waited.as_secs_f64(),
            self.what
        )?;
        self.peers.iter().try_for_each(|peer| write!(out, "; {peer}"))?;
        out.write_str(&below(&self.recent))
    }
}

/// Formats the lines that stand below a sentence.
fn below(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n  {line}")).collect()
}

/// Everything that can go wrong. [`Error::code`] is stable for scripts; [`Error::remedy`] is the next step.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting or variable that does not exist.
    #[error("there is no {kind} `{}`{place}{}", shown(given), suggestion(nearest))]
    UnknownName {
        /// The kind of name.
        kind: &'static str,
        /// The name as given.
        given: String,
        /// The name that was probably meant, or empty.
        nearest: String,
        /// Where the name stands, or empty.
        place: String,
    },
    /// A value that a setting does not accept.
    #[error("`{}` is no value for {name} ({origin}): expected {expected}", shown(given))]
    BadValue {
        /// The setting's name.
        name: &'static str,
        /// The text as given.
        given: String,
        /// Where it came from.
        origin: String,
        /// What was expected.
        expected: String,
    },
    /// A configuration file that does not parse.
    #[error("{}:{line}: {reason}", path.display())]
    ConfigFile {
        /// The path of the file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Why the line does not parse.
        reason: String,
    },
    /// A configuration file that is no text file, or cannot be read.
    #[error("cannot read configuration file `{}`: {reason}", path.display())]
    ConfigUnreadable {
        /// The file's path.
        path: PathBuf,
        /// Why it cannot be read.
        reason: String,
    },
    /// A system call outside the data path.
    #[error("could not {step} ({object}): {source}; {remedy}")]
    Io {
        /// The step that failed.
        step: &'static str,
        /// The object of the step.
        object: String,
        /// The system's error.
        source: io::Error,
        /// What to do next.
        remedy: &'static str,
    },
    /// A description of the job that is incomplete or contradictory.
    #[error(
        "the description of the job is not consistent: {reason}; a launcher sets DOORBELL_RANK, DOORBELL_SIZE and DOORBELL_ROOT together"
    )]
    Job {
        /// What is missing or contradictory.
        reason: String,
    },
    /// Ranks that did not join in time.
    #[error(
        "{} did not come within {:.1} s: {} started? does each see the same DOORBELL_ROOT and DOORBELL_SIZE?{note}",
        ranks(missing), waited.as_secs_f64(), if missing.len() == 1 { "was it" } else { "were they" }
    )]
    MissingRanks {
        /// The missing ranks.
        missing: Vec<u32>,
        /// How long this rank waited.
        waited: Duration,
        /// What else arrived at the meeting point, such as connections of other jobs or versions; empty when
        /// nothing did.
        note: String,
    },
    /// A rank has ended, with exit status 0, before it had joined the job.
    #[error("rank {rank} ended with exit status 0 before it had joined the job")]
    EndedEarly {
        /// The rank that ended.
        rank: u32,
    },
    /// Rank 0 could not be reached or did not answer in time.
    #[error("rank 0 did not {step} at {root} within {:.1} s: was it started, with the same DOORBELL_ROOT?{note}", waited.as_secs_f64())]
    NoRoot {
        /// What it did not do.
        step: &'static str,
        /// The address of the meeting point.
        root: String,
        /// How long this rank waited.
        waited: Duration,
        /// The last error of the system, or empty.
        note: String,
    },
    /// Ranks that were started with contradictory descriptions or settings. Every rank reports the same.
    #[error("the ranks of this job do not agree: {reason}")]
    Disagreement {
        /// Which ranks contradict each other, and in what.
        reason: String,
    },
    /// A failure of the meeting: the other side closed its connection, or broke the protocol.
    #[error("the ranks could not meet at {root}: {reason}")]
    Meeting {
        /// The address of the meeting point.
        root: String,
        /// Why the meeting failed.
        reason: String,
    },
    /// An error of the connection to the other host.
    #[error(transparent)]
    Oob(#[from] OobError),
    /// An error of the launcher that started the process.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A rank that joined and then found that it cannot take part.
    #[error("rank {rank} cannot take part: {reason}")]
    Withdrawn {
        /// The rank that cannot.
        rank: u32,
        /// The exit status that follows at that rank.
        exit: Exit,
        /// The reason, as that rank reported it.
        reason: String,
    },
    /// Ranks that a running job wanted started, and that did not join it. All old ranks get the same error;
    /// their world goes on.
    #[error("no new ranks have joined: {reason}")]
    NotSpawned {
        /// The exit status of a program that ends because of this.
        exit: Exit,
        /// The reason, and what to do.
        reason: String,
    },
    /// A meeting over a connection that the other side refused.
    #[error("{address} refused: {reason}")]
    Refused {
        /// The other side's address.
        address: SocketAddr,
        /// The exit status that follows at the other side.
        exit: Exit,
        /// The reason, as the other side reported it.
        reason: String,
    },
    /// A server that is busy with another client.
    #[error("{address} is occupied: {reason}")]
    Occupied {
        /// The server's address.
        address: SocketAddr,
        /// What it is busy with, as it reported.
        reason: String,
    },
    /// A rail could not be used.
    #[error(transparent)]
    Rail(#[from] RailError),
    /// A peer that no rail reaches.
    #[error("no rail reaches rank {peer}: {reasons}")]
    NoRail {
        /// The peer's rank.
        peer: u32,
        /// Each rail, with the reason that it does not reach the peer.
        reasons: String,
    },
    /// A core for the progress thread that is not available.
    #[error(
        "the progress thread cannot run on core {core} (progress.core): {reason}; allowed cores: {allowed:?}"
    )]
    Core {
        /// The core's number.
        core: u32,
        /// Why it is not available.
        reason: &'static str,
        /// The cores that are available.
        allowed: Vec<usize>,
    },
    /// Too few cores for a progress thread of its own.
    #[error("the progress thread of this rank has no core of its own: {reason}")]
    NoCore {
        /// How many cores are there, how many are needed, and what to do.
        reason: String,
    },
    /// A rank outside the job.
    #[error("there is no rank {rank} in a job of {size} (0 to {})", size - 1)]
    NoSuchRank {
        /// The rank that was given.
        rank: u32,
        /// The number of ranks.
        size: u32,
    },
    /// A peer that is gone; the request ended with it.
    #[error("rank {peer} is lost ({why}): {what}{}", below(recent))]
    PeerLost {
        /// The peer's rank.
        peer: u32,
        /// How the peer was lost.
        why: String,
        /// What ended with it.
        what: String,
        /// The last events that the rails to it recorded: a heading for each rail, then one line per event,
        /// newest last.
        recent: Vec<String>,
        /// What to do next.
        remedy: &'static str,
    },
    /// A wait reached its deadline.
    #[error("deadline passed: {0}")]
    Timeout(Box<Waiting>),
    /// A message longer than the buffer; the bytes that fit were delivered.
    #[error("a message of {length} bytes from rank {source_rank} (tag {tag:#x}) met a buffer of {capacity}")]
    Truncated {
        /// The sender's rank.
        source_rank: u32,
        /// The message's tag.
        tag: u64,
        /// The message's length in bytes.
        length: u64,
        /// The buffer's length in bytes.
        capacity: u64,
    },
    /// A message that was damaged on its way; the damaged bytes are in the buffer.
    #[error(
        "a message of {length} bytes from rank {source_rank} (tag {tag:#x}) arrived damaged: its checksum is {found:#010x}, and {announced:#010x} was sent"
    )]
    Corrupt {
        /// The sender's rank.
        source_rank: u32,
        /// The message's tag.
        tag: u64,
        /// The message's length in bytes.
        length: u64,
        /// CRC-32C of the bytes that were sent.
        announced: u32,
        /// CRC-32C of the bytes that arrived.
        found: u32,
    },
    /// A request that was cancelled.
    #[error("the request was cancelled before it found its message")]
    Cancelled,
    /// An operation that the rail or the build does not support.
    #[error("{what} is not offered by {by}")]
    Unsupported {
        /// What is not supported.
        what: &'static str,
        /// The rail or the build that does not support it.
        by: String,
    },
    /// A setting for something that this kind of job does not have.
    #[error("{what} is not offered by a job of Portals interfaces or active messages")]
    NoSuchMode {
        /// The feature, with its setting.
        what: &'static str,
    },
    /// A one-sided operation that failed.
    #[error("rank {peer} has not done a one-sided operation: {reason}")]
    OneSided {
        /// The target's rank.
        peer: u32,
        /// Why it was not done.
        reason: OperationError,
    },
    /// An error of active messages.
    #[error(transparent)]
    Am(Box<AmError>),
    /// A call that a Portals interface refused.
    #[error("{what}: {reason}")]
    Interface {
        /// The call that was refused, or its object.
        what: &'static str,
        /// The reason, and what to do.
        reason: String,
    },
    /// A range that is not inside its buffer, or a layout that does not fit.
    #[error("{what}")]
    Layout {
        /// What does not fit.
        what: String,
    },
    /// A handle of the raw interface whose object is gone.
    #[error("{what}")]
    Stale {
        /// The object that is gone.
        what: String,
    },
    /// A resource that is exhausted at the moment.
    #[error("{what}")]
    Full {
        /// The resource that is full.
        what: String,
    },
    /// The dedicated progress thread has ended.
    #[error("the progress thread of this world has ended: {reason}")]
    Ended {
        /// Why the thread ended.
        reason: String,
    },
    /// A call from a callback of the same world.
    #[error("re-entrant call: a callback must not use the world that called it")]
    Busy,
    /// An address of a process that no rail of this member leads to.
    #[error(
        "{peer} is {}: no rail of this process leads there", if *is_namespace {
            "in another network namespace of this host, which counts as another host"
        } else {
            "on another host"
        }
    )]
    Elsewhere {
        /// The process, without its token.
        peer: String,
        /// Whether it is on this host, in another network namespace.
        is_namespace: bool,
    },
    /// A call in a child of `fork`, with a handle that its parent made.
    #[error(
        "this process is a child of fork, and the job is its parent's: rails, connections and threads are not here"
    )]
    Forked,
}

impl Error {
    /// Returns the name of the setting whose value is bad.
    pub fn setting(&self) -> Option<&'static str> {
        match self {
            Self::BadValue { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Makes the error of a failed system call. The advice follows from the system's error number; `remedy`
    /// is used where that gives no hint of the cause.
    pub fn io(step: &'static str, object: &str, source: io::Error, remedy: &'static str) -> Self {
        Self::Io {
            step,
            object: object.to_owned(),
            remedy: doorbell_fabric::error::advice(&source).unwrap_or(remedy),
            source,
        }
    }

    /// Returns a stable code for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownName { .. } => "config.unknown-name",
            Self::BadValue { .. } => "config.bad-value",
            Self::ConfigFile { .. } | Self::ConfigUnreadable { .. } => "config.file",
            Self::Io { .. } => "system",
            Self::Job { .. } => "job.description",
            Self::MissingRanks { .. } => "job.missing-ranks",
            Self::EndedEarly { .. } => "job.ended-early",
            Self::NoRoot { .. } => "job.no-root",
            Self::Disagreement { .. } => "job.disagreement",
            Self::Meeting { .. } => "job.meeting",
            Self::Oob(_) => "oob",
            Self::Launch(error) => error.code(),
            Self::Withdrawn { .. } => "job.withdrawn",
            Self::NotSpawned { .. } => "job.not-spawned",
            Self::Refused { .. } => "job.refused",
            Self::Occupied { .. } => "job.occupied",
            Self::Rail(error) => error.code(),
            Self::NoRail { .. } => "rail.none",
            Self::Core { .. } | Self::NoCore { .. } => "progress.core",
            Self::NoSuchRank { .. } => "rank.unknown",
            Self::PeerLost { .. } => "peer.lost",
            Self::Timeout(_) => "timeout",
            Self::Truncated { .. } => "message.truncated",
            Self::Corrupt { .. } => "message.corrupt",
            Self::Cancelled => "request.cancelled",
            Self::Unsupported { .. } => "unsupported",
            Self::NoSuchMode { .. } => "mode",
            Self::OneSided { .. } => "one-sided",
            Self::Am(_) => "am",
            Self::Interface { .. } => "interface",
            Self::Layout { .. } => "layout",
            Self::Stale { .. } => "stale",
            Self::Full { .. } => "full",
            Self::Ended { .. } => "progress.ended",
            Self::Busy => "world.busy",
            Self::Elsewhere { .. } => "lobby.elsewhere",
            Self::Forked => "world.forked",
        }
    }

    /// Returns what to do next.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::UnknownName { .. } | Self::BadValue { .. } | Self::ConfigFile { .. } => {
                "`doorbell info --config` lists every setting with its unit and origin"
            }
            Self::ConfigUnreadable { .. } => "name a text file of at most 1 MiB in DOORBELL_CONFIG, or none",
            Self::Io { remedy, .. } | Self::PeerLost { remedy, .. } => remedy,
            Self::Job { .. } => "start the job with `doorbell run -n N PROGRAM`, or set all three variables",
            Self::MissingRanks { .. } => "start the missing ranks, or raise DOORBELL_JOB_TIMEOUT",
            Self::EndedEarly { .. } => "start the same program, with the same arguments, at every rank",
            Self::NoRoot { .. } => "start rank 0, or raise DOORBELL_JOB_TIMEOUT",
            Self::Disagreement { .. } => {
                "give all ranks the same version, layer (`--layer`), user, DOORBELL_SIZE and settings, and distinct DOORBELL_RANKs"
            }
            Self::Meeting { .. } => "look at the output of rank 0: how did it end?",
            Self::Oob(_) => "check the address, the key and the network between the two hosts",
            Self::Launch(_) => "docs/launchers.md has how to start under each launcher",
            Self::Withdrawn { .. } => "look at that rank's own output",
            Self::NotSpawned { .. } => {
                "look at the output of the new ranks and of the launcher, and try again"
            }
            Self::Refused { .. } => "look at the other side's own output",
            Self::Occupied { .. } => "try again later, or serve on another port",
            Self::Rail(_) | Self::NoRail { .. } => {
                "`doorbell info` lists every rail with its verdict and reason"
            }
            Self::Core { .. } => "name one of the allowed cores, or leave progress.core unset",
            Self::NoCore { .. } => "`doorbell run --show-binding` shows which cores the ranks of a host get",
            Self::NoSuchRank { .. } => "check the rank against `world.size()`",
            Self::Timeout(waiting) if waiting.is_cut_off => {
                "follow the advice about the rail above; a longer wait.deadline does not help"
            }
            Self::Timeout(_) => {
                "look at what the named peers do; raise wait.deadline only if they are merely slow"
            }
            Self::Truncated { .. } => "probe for the length first, or give a longer buffer",
            Self::Corrupt { .. } => {
                "check that the sender leaves its buffer alone until the send has ended, then its memory and devices"
            }
            Self::Cancelled => "nothing to do: the program cancelled it",
            Self::NoSuchMode { .. } => {
                "leave that setting out, or send tagged messages instead (`--layer pml`)"
            }
            Self::Unsupported { .. } => "use another rail, or send messages instead",
            Self::OneSided { .. } => {
                "compare it with the window: its length and access, and whether its owner has closed it"
            }
            Self::Am(error) if matches!(**error, AmError::ShuttingDown { .. }) => {
                "nothing: the job ends; `Am::exit` takes part in that, and returns the status of all"
            }
            Self::Am(error) if matches!(**error, AmError::PeerLost { .. }) => {
                "look at that rank's own output"
            }
            Self::Am(_) | Self::Interface { .. } => {
                "docs/active-messages.md has the limits and settings of interfaces"
            }
            Self::Layout { .. } => "check offsets and lengths against the buffer",
            Self::Stale { .. } => "use each number once, and only in the world that gave it out",
            Self::Full { .. } => "make progress, then try again",
            Self::Ended { .. } => "this is a defect: please report it with the thread's message above",
            Self::Busy => "collect what the callback saw and act after the call",
            Self::Elsewhere { .. } => {
                "name a rail of a network in both processes (FI_DOORBELL_RAILS or DOORBELL_RAILS=shm,udp:eth0), or run both on one host, and containers with `--network host`"
            }
            Self::Forked => {
                "call the library in the process that joined the job; a child gets its data from there, or starts a program"
            }
        }
    }

    /// Formats the error as one sentence: what failed, and what to do next, unless the error names it
    /// already.
    pub fn sentence(&self) -> String {
        const SHOWS_RAILS: &str = "`doorbell info`";
        let text = self.to_string();
        let remedy = self.remedy();
        // A rail's error ends with its own remedy.
        let said = matches!(self, Self::Rail(_) | Self::Oob(_))
            || text.contains(remedy)
            || (remedy.contains(SHOWS_RAILS) && text.contains(SHOWS_RAILS));
        if said {
            return text;
        }
        // The lines after the sentence stand by themselves.
        match text.split_once('\n') {
            Some((sentence, lines)) => format!("{sentence}; {remedy}\n{lines}"),
            None => format!("{text}; {remedy}"),
        }
    }

    /// Returns the exit status of a program that ends because of this: one list for all programs of doorbell.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Rail(error) => error.exit(),
            Self::Oob(error) => error.exit(),
            Self::Launch(error) => error.exit(),
            Self::Refused { exit, .. } | Self::Withdrawn { exit, .. } => *exit,
            Self::NotSpawned { exit, .. } => *exit,
            Self::Occupied { .. } => Exit::TimedOut,
            Self::UnknownName { .. } | Self::BadValue { .. } | Self::Job { .. } => Exit::Usage,
            Self::ConfigFile { .. } | Self::ConfigUnreadable { .. } | Self::Disagreement { .. } => {
                Exit::Usage
            }
            Self::NoSuchRank { .. } | Self::Layout { .. } | Self::Stale { .. } | Self::Core { .. } => {
                Exit::Usage
            }
            Self::Truncated { .. } | Self::Cancelled | Self::Busy | Self::Forked | Self::Full { .. } => {
                Exit::Usage
            }
            Self::Corrupt { .. } => Exit::Verdict,
            Self::NoSuchMode { .. } | Self::NoCore { .. } => Exit::Usage,
            Self::NoRail { .. } | Self::Elsewhere { .. } | Self::Unsupported { .. } => Exit::Rail,
            Self::PeerLost { .. }
            | Self::OneSided { .. }
            | Self::Meeting { .. }
            | Self::EndedEarly { .. } => Exit::PeerLost,
            Self::MissingRanks { .. } | Self::NoRoot { .. } | Self::Timeout(_) => Exit::TimedOut,
            Self::Am(error) => of_am(error),
            Self::Io { .. } | Self::Ended { .. } | Self::Interface { .. } => Exit::System,
        }
    }

    /// Returns the exit status as a number; for a job that a rank or an interrupt has ended, the status that
    /// the job ends with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Am(error) => match **error {
                AmError::ShuttingDown { code, .. } => code,
                _ => self.exit().number(),
            },
            _ => self.exit().number(),
        }
    }
}

impl From<AmError> for Error {
    fn from(error: AmError) -> Self {
        Self::Am(Box::new(error))
    }
}

/// Returns the exit status of a program that ends because of an error of active messages.
fn of_am(error: &AmError) -> Exit {
    match error {
        AmError::PeerLost { .. } | AmError::ShuttingDown { .. } | AmError::Operation { .. } => Exit::PeerLost,
        AmError::Unclean(Unclean::Lost { .. }) | AmError::Boot(BootError::Lost { .. }) => Exit::PeerLost,
        AmError::Boot(BootError::Disagree { .. }) => Exit::Usage,
        AmError::Unclean(Unclean::Silent { .. }) | AmError::Boot(_) | AmError::Ended(_) => Exit::TimedOut,
        AmError::Interface { .. } | AmError::Memory { .. } | AmError::Fault(_) => Exit::System,
        // What is left is about arguments, settings and limits.
        _ => Exit::Usage,
    }
}

/// Returns the end of a sentence that names the likely intention.
pub(crate) fn suggestion(nearest: &str) -> String {
    if nearest.is_empty() {
        return String::new();
    }
    format!("; the nearest is `{nearest}`")
}

/// "rank 3", "ranks 3 and 5", "ranks 1, 2 and 9", "ranks 1, 2, 3 and 61 more".
pub fn ranks(list: &[u32]) -> String {
    const SHOWN: usize = 8;
    match list {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        many => {
            let shown = if many.len() > SHOWN { SHOWN } else { many.len() - 1 };
            let head: Vec<String> = many[..shown].iter().map(u32::to_string).collect();
            let tail = if many.len() > SHOWN {
                format!("{} more", many.len() - shown)
            } else {
                many[shown].to_string()
            };
            format!("ranks {} and {tail}", head.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranks_are_named() {
        let error = Error::MissingRanks {
            missing: vec![3, 5],
            waited: Duration::from_secs(10),
            note: String::new(),
        };
        let text = error.to_string();
        assert!(
            text.starts_with("ranks 3 and 5 did not come within 10.0 s: were they started?"),
            "{text}"
        );
        assert_eq!(ranks(&[7]), "rank 7");
        assert_eq!(ranks(&[1, 2, 9]), "ranks 1, 2 and 9");
        assert_eq!(
            ranks(&(0..100).collect::<Vec<_>>()),
            "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"
        );
    }

    #[test]
    fn a_given_text_is_one_short_line() {
        let given = format!("x\nINJECTED {}", "0".repeat(300));
        let bad = Error::BadValue {
            name: "wait.close",
            given: given.clone(),
            origin: "FI_DOORBELL_CLOSE".to_owned(),
            expected: "a time".to_owned(),
        };
        let unknown = Error::UnknownName {
            kind: "setting",
            given,
            nearest: String::new(),
            place: String::new(),
        };
        for said in [bad.sentence(), unknown.sentence()] {
            assert!(
                said.contains("`x\\nINJECTED 000") && !said.contains('\n'),
                "{said}"
            );
            assert!(
                said.chars().count() < 220 && said.contains("`doorbell info --config`"),
                "{said}"
            );
        }
    }

    #[test]
    fn a_timeout_says_who_waits_for_what() {
        let waiting = Waiting {
            rank: 2,
            what: Awaited::Receive {
                from: Source::Rank(1),
                tag: Tag::exact(7),
            },
            waited: Duration::from_millis(1500),
            peers: vec!["rank 1 over shm: up".to_owned()],
            is_cut_off: false,
            recent: vec!["on shm:".to_owned(), "1 s before: up".to_owned()],
        };
        let error = Error::Timeout(Box::new(waiting));
        assert_eq!(
            error.to_string(),
            "deadline passed: rank 2 has waited 1.5 s for a message from rank 1 with tag 0x7; rank 1 over shm: up\n  \
             on shm:\n  1 s before: up"
        );
        assert_eq!((error.code(), error.exit_code()), ("timeout", 5));
        assert!(error.remedy().contains("raise wait.deadline"));
        let Error::Timeout(mut waiting) = error else {
            unreachable!()
        };
        waiting.is_cut_off = true;
        assert!(!Error::Timeout(waiting).remedy().contains("raise"));
    }
}
