//! What each request waits for: for the errors of deadlines, as plain data and in words.

use std::fmt;
use std::time::Duration;

use doorbell_fabric::message::Message;
use doorbell_paths::{PathState, each};

use crate::error::LostReason;
use crate::pml::Pml;
use crate::rails::RailId;
use crate::rank::{Rank, Source};
use crate::request::{RequestId, State};

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// Nothing: it has ended.
    Nothing,
    /// Receive: a message that matches.
    Message,
    /// Multi-receive: messages, until the buffer is used up.
    Messages,
    /// Receive: further fragments of the message.
    Fragments,
    /// Receive: our own read of the sender's memory.
    Read,
    /// Receive: the sender's write into our memory.
    Write,
    /// Send: room in the rail to the peer.
    Rail,
    /// Send: a rail to the peer that is up.
    Path,
    /// Send: the peer has too much of ours unreceived.
    Credit,
    /// Send: the receiver has not matched the message.
    Match,
    /// Send: the receiver has not finished reading our memory (or has not matched the message).
    Reader,
    /// Send: fragments are leaving.
    Leaving,
    /// Send: our own write into the receiver's memory.
    Writing,
    /// Operation: its target to do it.
    Target,
    /// Both ends agree to go on over another rail.
    Restart,
}

/// No rail to a peer is up, and one may come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoPath {
    /// The rails over which the peer is called.
    pub called: Vec<String>,
    /// Why the last of its rails went down.
    pub reason: LostReason,
    /// Time that is left for one to come back, before the peer is lost.
    pub left: Duration,
}

/// What a request waits for, and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The request that waits.
    pub request: RequestId,
    /// The rank whose request it is.
    pub rank: Rank,
    /// The other side, when it is known.
    pub peer: Source,
    /// The context of the request.
    pub context: u16,
    /// The tag of the message, or that a receive waits for.
    pub tag: u64,
    /// What it waits for.
    pub waiting: Waiting,
    /// Length of the message; zero when unknown.
    pub length: u64,
    /// Bytes of it that have moved.
    pub moved: u64,
    /// The rail in use to the peer.
    pub rail: Option<String>,
    /// Set when there is none, and one may come back.
    pub no_path: Option<NoPath>,
    /// Messages to us that no receive has matched, from this peer (from all, when it is not known).
    pub unexpected: usize,
    /// Sends to the peer of which nothing has left.
    pub queued: usize,
}

impl fmt::Display for Explanation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank,
            peer,
            tag,
            context,
            ..
        } = self;
        match self.waiting {
            Waiting::Nothing => return write!(out, "{rank}: the request has ended"),
            Waiting::Message => write!(out, "{rank} waits for a message from {peer}")?,
            Waiting::Messages => write!(out, "{rank} waits for messages from {peer} into one buffer")?,
            Waiting::Fragments => write!(out, "{rank} waits for the rest of a message from {peer}")?,
            Waiting::Read => write!(out, "{rank} reads a message from the memory of {peer}")?,
            Waiting::Write => write!(out, "{rank} waits for {peer} to write a message into its memory")?,
            Waiting::Rail => write!(out, "{rank} waits for room on the rail to {peer}: does it poll?")?,
            Waiting::Path => write!(out, "{rank} waits until {peer} can be reached")?,
            Waiting::Credit => write!(out, "{rank} waits for {peer} to receive earlier messages")?,
            Waiting::Match => write!(out, "{rank} waits for {peer} to post a receive for its message")?,
            Waiting::Reader => write!(out, "{rank} waits for {peer} to receive and read its message")?,
            Waiting::Leaving => write!(out, "{rank} is sending a message to {peer}")?,
            Waiting::Writing => write!(out, "{rank} writes a message into the memory of {peer}")?,
            Waiting::Target => write!(out, "{rank} waits for {peer} to do a one-sided operation")?,
            Waiting::Restart => write!(out, "{rank} and {peer} agree to go on over another rail")?,
        }
        write!(out, " (context {context}, tag {tag:#x}")?;
        if self.length > 0 {
            write!(out, ", {} of {} bytes", self.moved, self.length)?;
        }
        if let Some(rail) = &self.rail {
            write!(out, ", rail {rail}")?;
        }
        write!(out, "; {} unexpected", self.unexpected)?;
        if self.queued > 0 {
            write!(out, ", {} sends queued", self.queued)?;
        }
        out.write_str(")")?;
        self.no_path.as_ref().map_or(Ok(()), |no_path| no_path.fmt(out))
    }
}

impl fmt::Display for NoPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (called, left) = (self.called.join(", "), self.left.as_millis());
        write!(
            out,
            ": no rail to it is up ({}); it is called over {called} for {left} ms more, and is lost then",
            self.reason.as_str()
        )
    }
}

/// A rail to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReport {
    /// The number of the rail.
    pub rail: RailId,
    /// The name of the rail.
    pub name: String,
    /// Whether it may carry messages.
    pub up: bool,
    /// How it is.
    pub state: PathState,
    /// Half of the round trip of its probes, in nanoseconds, once it was measured.
    pub latency_ns: Option<u64>,
    /// Bytes per second of long messages over it, once measured beside another path.
    pub bandwidth: Option<u64>,
    /// Whether it is the one in use.
    pub current: bool,
    /// Whether small messages take it: alone, or in turn with others.
    pub small: bool,
}

/// What is known of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// The rank of the peer.
    pub rank: Rank,
    /// Why it is lost, if it is.
    pub lost: Option<LostReason>,
    /// The rails to the peer.
    pub paths: Vec<PathReport>,
    /// Sends of which nothing has left.
    pub queued: usize,
    /// Bytes charged to us by its window and not reported as received.
    pub unreported: u64,
    /// Messages from it that no receive has matched.
    pub unexpected: usize,
    /// Messages from it that wait for an earlier one.
    pub held: usize,
}

impl<M: Message> Pml<M> {
    /// Returns what a request waits for, or `None` for a stale id. Not for the data path: it allocates.
    #[must_use]
    pub fn explain(&self, id: RequestId) -> Option<Explanation> {
        let slot = self.core.requests.get(id)?;
        let record = self.core.requests.peek_record(id.index());
        let waiting = match slot.state() {
            State::Free | State::Done | State::Held => Waiting::Nothing,
            State::Posted => Waiting::Message,
            State::Multi => Waiting::Messages,
            State::Fragments => Waiting::Fragments,
            State::Getting => Waiting::Read,
            State::PutExposed => Waiting::Write,
            State::Queued if self.core.peers[slot.peer()].paths.alone().is_some() => Waiting::Path,
            State::Queued if self.is_unmet(slot.peer()) => Waiting::Path,
            State::Queued if self.core.may_announce(slot.peer()) => Waiting::Rail,
            State::Queued => Waiting::Credit,
            State::AwaitAck | State::SelfWait => Waiting::Match,
            State::AwaitFin => Waiting::Reader,
            State::Streaming => Waiting::Leaving,
            State::Putting => Waiting::Writing,
            State::AwaitAnswer | State::AwaitReply => Waiting::Target,
            State::Replying => Waiting::Rail,
            State::SendRestart | State::RecvRestart => Waiting::Restart,
        };
        let posted = slot
            .entry()
            .filter(|_| matches!(waiting, Waiting::Message | Waiting::Messages));
        let peer = match posted {
            Some(entry) => self.asked_for(entry),
            None => Source::Rank(slot.peer()),
        };
        let (rail, no_path, queued, unexpected) = match peer {
            Source::Any => (None, None, 0, self.core.matcher.unexpected_load().messages),
            Source::Rank(rank) | Source::Endpoint(rank, _) => {
                let known = &self.core.peers[rank];
                let path = known.paths.current_up();
                (
                    path.map(|path| self.rail_name(path.rail())),
                    self.no_path(rank),
                    known.backlog.send_count(),
                    self.core.kept_of(rank),
                )
            }
        };
        let known = !matches!(waiting, Waiting::Message | Waiting::Messages);
        Some(Explanation {
            request: id,
            rank: self.core.me(),
            peer,
            context: slot.context(),
            tag: slot.tag(),
            waiting,
            length: if known { slot.length() } else { 0 },
            moved: if known { record.progress.moved() } else { 0 },
            rail,
            no_path,
            unexpected,
            queued,
        })
    }

    fn no_path(&self, rank: Rank) -> Option<NoPath> {
        let peer = &self.core.peers[rank];
        let (until, reason, called) = peer.paths.alone()?;
        let name = |at: usize| self.rail_name(peer.paths[at].rail());
        Some(NoPath {
            called: each(called).map(name).collect(),
            reason,
            left: until.since(self.core.clock.now()),
        })
    }

    fn asked_for(&self, entry: doorbell_matching::EntryHandle) -> Source {
        let found = self.core.matcher.posted().find(|(handle, _)| *handle == entry);
        match found {
            Some((_, entry)) if entry.pattern.source_ignore == 0 => Source::of_number(entry.pattern.source),
            _ => Source::Any,
        }
    }

    /// Returns why a rank is lost, if it is: no message from it will arrive any more.
    #[must_use]
    pub fn lost(&self, rank: Rank) -> Option<LostReason> {
        if !self.core.lazy.any_apart() {
            return None;
        }
        self.core.peers.get(rank)?.lost()
    }

    /// Returns what is known of a peer; `None` for a rank that is not in the job. Not for the data path: it
    /// allocates.
    #[must_use]
    pub fn peer(&self, rank: Rank) -> Option<PeerReport> {
        let peer = self.core.peers.get(rank)?;
        let hot = &self.core.hot[rank];
        Some(PeerReport {
            rank,
            lost: peer.lost(),
            paths: peer
                .paths
                .iter()
                .enumerate()
                .map(|(at, path)| PathReport {
                    rail: path.rail(),
                    name: self.rail_name(path.rail()),
                    up: path.is_up(),
                    state: peer.state(at),
                    latency_ns: peer.paths.measured(at),
                    bandwidth: peer.paths.measured_rate(at),
                    current: at == peer.paths.current() && path.is_up(),
                    small: peer.paths.takes_small(at),
                })
                .collect(),
            queued: peer.backlog.send_count(),
            unreported: hot.charged().saturating_sub(peer.reported()),
            unexpected: self.core.kept_of(rank),
            held: peer.held.count(),
        })
    }

    /// Returns how a rail to a peer is, and half of the round trip of its probes in nanoseconds, once it was
    /// measured: a part of [`Pml::peer`], for callers that look often. `None` for a rail that does not lead
    /// there.
    #[must_use]
    pub fn path(&self, rank: Rank, rail: RailId) -> Option<(PathState, Option<u64>)> {
        let peer = self.core.peers.get(rank)?;
        let at = peer.paths.over(rail)?;
        Some((peer.state(at), peer.paths.measured(at)))
    }

    fn rail_name(&self, rail: RailId) -> String {
        self.rails[rail].name().to_string()
    }
}
