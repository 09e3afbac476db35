//! The owner of the rails and the PML: one bounded pass, sleeping, explanations, the end. The same in both
//! modes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use doorbell_am_portals::Seen;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::map::process::Maker;
use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::{self, Message as _};
use doorbell_fabric::rail::{Armed, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_job::connect::{self, PeerPath, recorded};
use doorbell_job::control::LostPeers;
use doorbell_job::counter_file::CounterPublisher;
use doorbell_job::diagnose::PathStatus;
use doorbell_job::error::{Awaited, Error, Waiting};
use doorbell_job::meet::tcp::Life;
use doorbell_job::path_report;
use doorbell_job::rails::{AnyRail, Manage as _};
use doorbell_job::ranks::Directory;
use doorbell_job::types::Status;
use doorbell_job::wait::turns::{Clock, Patience, Waiter};
use doorbell_job::wait::waiter::{self, Pollable};
use doorbell_pml::{
    self as pml, Aborted, Claimed, LostReason, PathReport, PathState, Pml, RailId, Rank, RequestId,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::BorrowedFd;

use super::meeting::Meeting;
use super::watch::Watch;
use super::{Envelope, Look, RequestToken};

/// Descriptors that one sleep can watch; with more rails than that, a wait yields instead.
const WATCHED: usize = 16;
/// Peers named in one explanation, at most.
const EXPLAINED: usize = 8;
/// Bytes of the header in front of a plain message (pml/src/wire.rs).
const HEADER: usize = 16;
/// Recorded events in one error, at most.
const RECORDED: usize = 32;

/// The rails, the PML, and the clock.
pub(crate) struct Core {
    pub(crate) pml: Pml<AnyRail>,
    /// The process that opened these rails.
    pub(crate) maker: Maker,
    pub(crate) clock: Clock,
    pub(crate) patience: Patience,
    pub(crate) quiet: Duration,
    /// The counter file, for other programs.
    pub(crate) seen: Option<CounterPublisher>,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// What the ranks have published.
    pub(crate) directory: Directory,
    /// The paths to each rank, in order of preference.
    pub(crate) paths: Vec<Vec<PeerPath>>,
    /// Whether a thread of its own runs it.
    pub(crate) dedicated: bool,
    /// Requests of the raw interface that have ended (dedicated mode; inline, the PML's own queue serves).
    pub(crate) raw_completions: VecDeque<RequestId>,
    /// The connection to a rank on another host, which shows when that rank ends.
    pub(crate) life: Option<Life>,
    /// The ranks that the control plane reports as lost.
    pub(crate) lost_peers: LostPeers,
    /// Connects peers at their first use, in jobs that start without a full rank table.
    pub(crate) meeting: Option<Box<Meeting>>,
    /// The descriptor for foreign event loops.
    pub(crate) watch: Watch,
    /// The time at which a simulated clock stopped last for this rank.
    pub(crate) stopped: Option<Time>,
    /// Passes since the last one that read the clock, so that a caller that only ever tests still does
    /// housekeeping.
    pub(crate) tests: u32,
    /// Ranks that took nothing more during the whole limit of a call that was handing messages over, with the
    /// count of messages that they had taken by then: later calls do not wait for them again until they take
    /// more.
    pub(crate) overdue: Vec<(Rank, u64)>,
    /// Bytes of long messages posted since the last check whether earlier ones were acknowledged.
    pub(crate) unlooked: usize,
}

/// After this many bytes, a caller that posts long messages checks for acknowledgements: rails that keep what
/// they send until it has arrived then reuse the same memory while it is in the cache. A check costs some
/// hundred nanoseconds, sending this many bytes ten microseconds. Short messages are left alone, since a
/// check would end a batch, and so is shared memory, which gains nothing by it.
const LOOK_AFTER: usize = 64 * 1024;
pub(super) const LONG: usize = 4096;

/// Passes of a caller that only tests, per pass that reads the clock.
const HOUSEKEEP_EVERY: u32 = 64;
/// Checks in the short path of a wait, before the long one begins: some microseconds, several round trips
/// between cores that are far apart.
const SOON: u32 = 2000;
/// Polls in the short path of a rank that shares its core; each follows a few looks.
const TURNS: u32 = 4;
/// Most interruptions of the short path by a rail that needs the time.
const TIMES: u32 = 4;

impl Core {
    /// Makes one bounded pass, which reads the clock only if a rail requests it.
    #[inline]
    pub(crate) fn poll(&mut self) -> Work {
        let work = self.pml.poll();
        if self.pml.wants_time() {
            return work + self.housekeep();
        }
        work
    }

    /// Does the part of a pass that needs the time.
    #[inline(never)]
    fn housekeep(&mut self) -> Work {
        let now = self.clock.now();
        self.show(now);
        self.look_across(now);
        self.pml.housekeep(now) + self.meet_peers()
    }

    /// Makes one bounded pass with everything.
    pub(crate) fn progress(&mut self) -> Work {
        let (clock, rank, mut stopped) = (self.clock.clone(), self.rank, self.stopped);
        let mut quiet = |_: &Waiting| {};
        let mut waited = Waited::on(self, &mut quiet);
        let work = waiter::progress(&mut waited, &clock, rank, &mut stopped, Pollable::progress_at);
        self.stopped = stopped;
        work
    }

    /// Makes one bounded pass with everything, at a known time.
    pub(crate) fn progress_at(&mut self, now: Time) -> Work {
        self.show(now);
        self.look_across(now);
        // The rails' own work finds callers; they are connected in the same pass, before the process can
        // sleep.
        self.pml.progress(now) + self.meet_peers()
    }

    /// Marks ranks as ended that the connection or the control plane reports as ended.
    #[inline]
    fn look_across(&mut self, now: Time) {
        if let Some(life) = &mut self.life
            && let Some(reason) = life.look(now)
        {
            let peer = life.peer();
            self.pml.peer_ended(now, peer, reason);
        }
        if self.lost_peers.any() {
            for rank in self.lost_peers.take() {
                self.pml.peer_ended(now, rank, DownReason::Control);
            }
        }
    }

    /// Updates the counter file, at intervals.
    #[inline]
    fn show(&mut self, now: Time) {
        if let Some(seen) = &mut self.seen {
            seen.update(now, &self.pml);
        }
    }

    /// Makes one bounded pass for a caller that tests in a loop; every [`HOUSEKEEP_EVERY`]th reads the clock.
    #[inline]
    pub(crate) fn poll_or_progress(&mut self) -> Work {
        self.tests = self.tests.wrapping_add(1);
        if self.tests.is_multiple_of(HOUSEKEEP_EVERY) {
            self.progress()
        } else {
            self.poll()
        }
    }

    /// The short path of a blocking receive: checks a bounded number of times, and reads no clock. `None`: no
    /// message yet, or not the simplest case; posting the receive always works.
    #[inline(always)]
    pub(crate) fn recv_soon(&mut self, envelope: Envelope, loan: MutLoan) -> Option<Status> {
        let pml::Source::Rank(from) = envelope.source() else {
            return None;
        };
        if envelope.ignore != 0 {
            return None;
        }
        self.tests = self.tests.wrapping_add(1);
        if self.tests.is_multiple_of(HOUSEKEEP_EVERY) {
            self.housekeep();
        }
        if self.patience.shares_core() {
            return self.recv_in_turns(from, envelope, loan);
        }
        let looks = self.patience.spins.min(SOON);
        for _ in 0..TIMES {
            let (context, tag) = (envelope.context, envelope.tag);
            if let Some(len) = self.pml.recv_directly(from, context, tag, loan, looks) {
                let source = from.0;
                return Some(Status { source, tag, len });
            }
            if !self.pml.wants_time() {
                return None;
            }
            // A rail that needs the time looks for losses.
            self.housekeep();
        }
        None
    }

    /// As [`Core::recv_soon`], where ranks share cores.
    #[inline(never)]
    fn recv_in_turns(&mut self, from: Rank, envelope: Envelope, loan: MutLoan) -> Option<Status> {
        let (context, tag) = (envelope.context, envelope.tag);
        self.pml.flush_gathered();
        for _ in 0..TURNS {
            if let message::Look::Taken(len) = self.pml.recv_in_turns(from, context, tag, loan)? {
                let source = from.0;
                return Some(Status { source, tag, len });
            }
            if self.poll() == 0 {
                thread::yield_now();
            }
        }
        None
    }

    /// Does housekeeping for callers that only send, so that they notice credits, new peers and lost ones.
    #[inline]
    pub(crate) fn now_and_then(&mut self) {
        self.tests = self.tests.wrapping_add(1);
        if self.tests.is_multiple_of(HOUSEKEEP_EVERY) {
            self.progress();
        }
    }

    /// Does housekeeping after a message of `bytes` bytes was posted.
    #[inline]
    pub(crate) fn posted(&mut self, to: Rank, bytes: usize) {
        if bytes >= LONG && self.pml.is_far(to) {
            self.unlooked += bytes;
            if self.unlooked >= LOOK_AFTER {
                self.unlooked = 0;
                self.pml.poll_all();
            }
        }
        self.now_and_then();
    }

    /// Returns the status of a matching message, if one has arrived.
    #[inline]
    pub(crate) fn probe(&mut self, envelope: Envelope) -> Option<Status> {
        let found = self
            .pml
            .probe(envelope.source(), envelope.context, envelope.tag, envelope.ignore)?;
        Some(found.into())
    }

    /// Returns the status of a matching message, or the error when none can arrive any more.
    pub(crate) fn probe_or_lost(&mut self, envelope: Envelope) -> Option<Result<Status, Error>> {
        if let Some(status) = self.probe(envelope) {
            return Some(Ok(status));
        }
        self.lost(envelope).map(Err)
    }

    /// Returns the error of a receive when no message can arrive any more.
    #[inline]
    fn lost(&mut self, envelope: Envelope) -> Option<Error> {
        let pml::Source::Rank(rank) = envelope.source() else {
            return None;
        };
        let reason = self.pml.lost(rank)?;
        Some(self.explained(pml::PmlError::PeerLost { rank, reason }))
    }

    /// Takes a matching message out of matching, or returns the error when none can arrive any more.
    pub(crate) fn claim_or_lost(&mut self, envelope: Envelope) -> Option<Result<Claimed, Error>> {
        match self.claim(envelope) {
            Some(claimed) => Some(Ok(claimed)),
            None => self.lost(envelope).map(Err),
        }
    }

    /// Takes a matching message out of matching.
    pub(crate) fn claim(&mut self, envelope: Envelope) -> Option<Claimed> {
        self.pml
            .claim(envelope.source(), envelope.context, envelope.tag, envelope.ignore)
    }

    pub(crate) fn rail_name(&self, rail: RailId) -> String {
        self.pml
            .rail(rail)
            .map_or_else(String::new, |rail| rail.name().to_string())
    }

    /// Waits until `done` returns something.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the explanation, when `limit` passes first.
    #[inline]
    pub(crate) fn wait<R>(
        &mut self,
        limit: Duration,
        what: impl Fn() -> Awaited,
        notice: &mut dyn FnMut(&Waiting),
        mut done: impl FnMut(&mut Self) -> Option<R>,
    ) -> Result<R, Error> {
        self.pml.flush_gathered();
        if let Some(result) = done(self) {
            return Ok(result);
        }
        let clock = self.clock.clone();
        let waiter = Waiter::new(&clock, self.patience, limit, self.quiet);
        waiter::wait(
            &mut Waited::on(self, notice),
            waiter,
            what,
            |_, _| Seen::Something,
            |at| done(at.core),
        )
    }

    /// Waits until no rail holds back what was accepted for a rank (`None`: for any), for at most `limit`,
    /// since the caller of a blocking call may make no further call for a long time. What is still held back
    /// then stays with the rail, and each later call pushes it on; its bytes are copies, so the call is
    /// complete all the same.
    #[inline]
    pub(crate) fn hand_over(
        &mut self,
        to: Option<Rank>,
        limit: Duration,
        what: &dyn Fn() -> Awaited,
        notice: &mut dyn FnMut(&Waiting),
    ) {
        if self.pml.holds_back(to) {
            self.push_over(to, limit, what, notice);
        }
    }

    #[cold]
    #[inline(never)]
    fn push_over(
        &mut self,
        to: Option<Rank>,
        limit: Duration,
        what: &dyn Fn() -> Awaited,
        notice: &mut dyn FnMut(&Waiting),
    ) {
        if !self.waits_on(to) {
            if let Clock::Machine(_) = self.clock {
                self.poll();
            }
            return;
        }
        let clock = self.clock.clone();
        let waiter = Waiter::new(&clock, self.patience, limit, self.quiet);
        let holds = &mut |at: &mut Waited<'_>| at.core.waits_on(to);
        if !waiter::push_out(&mut Waited::on(self, notice), waiter, what, holds) {
            self.set_overdue(to);
        }
    }

    /// Whether a rail holds messages back for a rank (`None`: for any) that has taken something since a call
    /// last waited its whole limit for it.
    fn waits_on(&mut self, to: Option<Rank>) -> bool {
        let Some(rank) = to else {
            return self.pml.holds_back(None) && self.ranks().any(|rank| self.waits_on(Some(rank)));
        };
        if !self.pml.holds_back(Some(rank)) {
            return false;
        }
        let taken = self.pml.handed_over(rank);
        !self.overdue.contains(&(rank, taken))
    }

    /// Notes that a call has waited its whole limit for a rank (`None`: for all whose messages are held
    /// back).
    fn set_overdue(&mut self, to: Option<Rank>) {
        let Some(rank) = to else {
            return self.ranks().for_each(|rank| self.set_overdue(Some(rank)));
        };
        self.overdue.retain(|(of, _)| *of != rank);
        if self.pml.holds_back(Some(rank)) {
            let taken = self.pml.handed_over(rank);
            self.overdue.push((rank, taken));
        }
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.paths.len() as u32).map(Rank)
    }

    /// Sleeps until a rail (or `extra`) has something, a rail's own deadline comes, or `until`.
    #[cold]
    pub(crate) fn sleep(&mut self, now: Time, until: Time, extra: BorrowedFd<'_>) {
        let clock = self.clock.clone();
        let mut quiet = |_: &Waiting| {};
        let mut waited = Waited {
            extra: Some(extra),
            ..Waited::on(self, &mut quiet)
        };
        waiter::sleep(&mut waited, &clock, now, until);
    }

    /// Arms every source of wake-ups and sleeps; `false` when it did not sleep.
    fn sleep_for(&mut self, longest: Duration, extra: Option<BorrowedFd<'_>>) -> bool {
        if let Some(seen) = &self.seen {
            seen.store(&self.pml);
        }
        let mut life = self.life.take();
        let other = life.as_mut().and_then(Life::arm);
        let lost_peers = self.lost_peers.clone();
        let directory = self.meeting.as_ref().map(|meeting| meeting.directory.clone());
        let news = directory.as_ref().and_then(Directory::arm);
        let slept = self.sleep_armed(longest, [extra, other, lost_peers.arm(), news]);
        self.life = life;
        slept
    }

    /// Arms every rail and sleeps; `false` when it did not sleep.
    fn sleep_armed(&mut self, longest: Duration, extra: [Option<BorrowedFd<'_>>; 4]) -> bool {
        let mut fds: [Option<BorrowedFd<'_>>; WATCHED] = [None; WATCHED];
        let mut count = 0;
        let mut watch = |fd| {
            let place = fds.get_mut(count);
            count += 1;
            place.map(|place| *place = Some(fd)).is_some()
        };
        if !extra.into_iter().flatten().all(&mut watch) {
            return false;
        }
        for (_, rail) in self.pml.rails_mut() {
            match rail.arm() {
                Ok(Armed::Sleep(fd)) if watch(fd) => {}
                // It has work, or cannot be slept on.
                _ => return false,
            }
        }
        let Some(first) = fds[0] else { return false };
        let mut fds: [PollFd<'_>; WATCHED] =
            std::array::from_fn(|i| PollFd::from_borrowed_fd(fds[i].unwrap_or(first), PollFlags::IN));
        let timeout = doorbell_fabric::poll::timespec(longest);
        // An interrupted sleep is a short one.
        let _ = poll(&mut fds[..count], Some(&timeout));
        true
    }

    /// Builds the error of a wait that has reached its limit: the explanation, and what the rails recorded.
    #[cold]
    pub(crate) fn expired(&self, what: Awaited, waited: Duration) -> Error {
        Error::Timeout(Box::new(Waiting {
            recent: self.recent_of(&self.about(what)),
            ..self.explain(what, waited)
        }))
    }

    /// Describes a wait and what is known about the peers concerned.
    #[cold]
    pub(crate) fn explain(&self, what: Awaited, waited: Duration) -> Waiting {
        let about = self.about(what);
        let is_cut_off = about.iter().any(|rank| self.is_cut_off(*rank));
        let peers = if about.is_empty() {
            vec!["no peer is known to be lost, nor a rail to be down".to_owned()]
        } else {
            about.into_iter().map(|rank| self.describe(rank)).collect()
        };
        Waiting {
            rank: self.rank,
            what,
            waited,
            peers,
            is_cut_off,
            recent: Vec::new(),
        }
    }

    /// Whether the probes of the rail in use to a rank have found that frames do not pass.
    fn is_cut_off(&self, rank: u32) -> bool {
        let paths = self.pml.peer(Rank(rank)).map_or_else(Vec::new, |peer| peer.paths);
        let probed = |path: &PathReport| {
            let ours = self.path_over(rank, path.rail)?;
            self.pml.rail(path.rail)?.probed(ours.peer)
        };
        let mut current = paths.iter().filter(|path| path.current).filter_map(probed);
        current.any(|(passes, _)| !passes)
    }

    /// Returns the ranks that a wait is about, up to [`EXPLAINED`]: those it names, and if it may be about
    /// others, all that are lost or have a rail that is not up.
    fn about(&self, what: Awaited) -> Vec<u32> {
        let (mut about, others) = what.concerned();
        if others {
            let troubled = (0..self.size).filter(|rank| !about.contains(rank) && self.is_troubled(*rank));
            let troubled: Vec<u32> = troubled.take(EXPLAINED - about.len().min(EXPLAINED)).collect();
            about.extend(troubled);
        }
        about
    }

    fn is_troubled(&self, rank: u32) -> bool {
        self.pml.peer(Rank(rank)).is_some_and(|peer| {
            let not_up = |path: &PathReport| self.state_of(rank, path) != PathState::Up.as_str();
            peer.lost.is_some() || peer.paths.iter().any(not_up)
        })
    }

    /// Returns the latest recorded events of the rails to some ranks: [`RECORDED`] lines altogether, and a
    /// heading for each rail.
    #[cold]
    pub(crate) fn recent_of(&self, ranks: &[u32]) -> Vec<String> {
        let paths = |rank: &u32| self.paths.get(*rank as usize).map_or(&[][..], Vec::as_slice);
        let all: usize = ranks.iter().map(|rank| paths(rank).len()).sum();
        let most = RECORDED / all.max(1);
        let rail = |id| self.pml.rail(id);
        let of = |rank: &u32| recorded(rail, paths(rank), *rank, most);
        ranks.iter().flat_map(of).collect()
    }

    fn describe(&self, rank: u32) -> String {
        if rank == self.rank {
            return format!("rank {rank} is this rank itself");
        }
        let Some(peer) = self.pml.peer(Rank(rank)) else {
            return format!("rank {rank} is not in this job");
        };
        let facts = self.path_facts(rank);
        if let Some(reason) = peer.lost {
            let why = self.trouble_of_meeting(rank).unwrap_or(reason.as_str());
            return format!("rank {rank} is lost: {why}{facts}");
        }
        if self.pml.is_unmet(Rank(rank)) {
            let waits = match self.pml.is_wanted(Rank(rank)) {
                true => "its address was requested from the launcher",
                false => "its address was not requested",
            };
            return format!(
                "rank {rank} is not connected yet: {waits} ({} sends queued)",
                peer.queued
            );
        }
        let paths: Vec<String> = peer
            .paths
            .iter()
            .map(|path| format!("{} {}", self.rail_name(path.rail), self.state_of(rank, path)))
            .collect();
        format!(
            "rank {rank} over {} ({} sends queued, {} unexpected messages from it, {} held for an earlier one){facts}",
            paths.join(", "),
            peer.queued,
            peer.unexpected,
            peer.held
        )
    }

    /// Returns the state of a rail to a rank, in one word.
    fn state_of(&self, rank: u32, path: &PathReport) -> &'static str {
        let suspect = |ours: &PeerPath| {
            self.pml
                .rail(ours.rail)
                .is_some_and(|rail| rail.is_suspect(ours.peer))
        };
        match path.state {
            PathState::Up if self.path_over(rank, path.rail).is_some_and(suspect) => {
                PathState::Suspect.as_str()
            }
            state => state.as_str(),
        }
    }

    /// Returns the state of the rails to a rank. The caller fills in the names of their other ends.
    pub(crate) fn path_statuses(&self, rank: u32) -> Vec<PathStatus> {
        let paths = self.pml.peer(Rank(rank)).map_or_else(Vec::new, |peer| peer.paths);
        let within = |path: &PathReport| {
            let rail = self.pml.rail(path.rail);
            path.small && rail.is_some_and(|rail| rail.capabilities().features.within_host)
        };
        let alone = paths.iter().any(within);
        let turns = paths.iter().filter(|path| path.small).count() > 1;
        let now = |path: &PathReport| {
            let ours = self.path_over(rank, path.rail);
            let rail = self.pml.rail(path.rail);
            let known = ours.zip(rail);
            let report = known.map_or_else(Default::default, |(ours, rail)| rail.report(ours.peer));
            let state = self.state_of(rank, path);
            let probed = known.and_then(|(ours, rail)| rail.probed(ours.peer));
            PathStatus {
                rail: path.name.clone(),
                to: String::new(),
                state,
                role: if state == PathState::Up.as_str() {
                    role(path, alone, turns)
                } else {
                    state
                },
                carries: path.current,
                longest: rail.map_or(0, |rail| rail.in_one_frame().saturating_sub(HEADER)),
                probed: probed.map(|(_, text)| text),
                passes: probed.map(|(passes, _)| passes),
                measured_ns: path.latency_ns,
                acknowledged_ns: path_report::round_trip(&report).map(|whole| whole / 2),
                facts: path_report::facts(&report),
                gids: ours.map_or_else(Vec::new, |ours| {
                    connect::gids(&self.directory, self.rank, (rank, ours.other), &path.name)
                }),
            }
        };
        paths.iter().map(now).collect()
    }

    /// Returns the path to a rank over one of our rails.
    fn path_over(&self, rank: u32, rail: RailId) -> Option<&PeerPath> {
        let paths = self.paths.get(rank as usize)?;
        paths.iter().find(|ours| ours.rail == rail)
    }

    /// Describes what the rails to a rank report about the path to it: the one in use, and each that is not
    /// up.
    fn path_facts(&self, rank: u32) -> String {
        let paths = self.pml.peer(Rank(rank)).map_or_else(Vec::new, |peer| peer.paths);
        let facts = paths.iter().filter_map(|path| {
            let known = self.path_over(rank, path.rail)?;
            let rail = self.pml.rail(path.rail)?;
            let mut report = rail.report(known.peer);
            // A message that reached the PML and was invalid there came over this rail if there is no other.
            if self.pml.rails().count() == 1 {
                let drops = self.pml.counters().drops.impossible();
                report.impossible = report.impossible.map(|count| count + drops);
            }
            let wanted = path.current || self.state_of(rank, path) != "up" || report.link == Some(false);
            let counts = wanted.then(|| path_report::facts(&report)).flatten();
            let tables = rail
                .refuses_gids(known.peer)
                .then(|| {
                    connect::gid_tables(
                        &self.directory,
                        self.rank,
                        (rank, known.other),
                        rail.name().as_str(),
                    )
                })
                .flatten();
            let parts: Vec<String> = counts
                .into_iter()
                .chain(rail.trouble(known.peer).map(Cow::into_owned))
                .chain(tables)
                .collect();
            (!parts.is_empty()).then(|| format!("; {}: {}", rail.name(), parts.join("; ")))
        });
        facts.collect()
    }

    /// Ends a request now: when it returns, the engine does not access its memory any more.
    pub(crate) fn end(&mut self, token: RequestToken) {
        let id = RequestId::from_bits(token.0);
        if !self.maker.is_running() {
            // No rail in a child of `fork` accesses the memory.
            return;
        }
        while self.pml.abort(id) == Aborted::Wait {
            if self.progress() == 0 {
                thread::yield_now();
            }
        }
    }

    /// Takes the outcome of a request that has ended, and frees it.
    #[inline]
    pub(crate) fn take(&mut self, token: RequestToken) -> Option<Result<Status, Error>> {
        match self.take_well_ended(token) {
            Some(status) => Some(Ok(status)),
            None => self.take_otherwise(token),
        }
    }

    /// The outcome of a request that is under way or has failed.
    #[cold]
    fn take_otherwise(&mut self, token: RequestToken) -> Option<Result<Status, Error>> {
        let result = self.pml.test(RequestId::from_bits(token.0))?;
        Some(match result {
            Ok(status) => Ok(status.into()),
            Err(error) => Err(self.explained(error)),
        })
    }

    /// Adds what the rails know about a lost peer to an error.
    #[cold]
    pub(crate) fn explained(&self, error: impl Into<Error>) -> Error {
        match error.into() {
            Error::PeerLost {
                peer,
                why,
                what,
                remedy,
                ..
            } => {
                let broken = self.broken_on_purpose(peer);
                let why = self.trouble_of_meeting(peer).map_or(why, str::to_owned);
                let remedy = if remedy == LostReason::Link.advice() && self.knows_why(peer) {
                    "follow that rail's advice; a second rail would take over, and a longer DOORBELL_PATIENCE would \
                     wait for the link"
                } else {
                    remedy
                };
                Error::PeerLost {
                    why: broken.clone().unwrap_or(why) + &self.path_facts(peer),
                    peer,
                    what,
                    recent: self.recent_of(&[peer]),
                    remedy: broken.map_or(
                        remedy,
                        |_| "unset fault.inject, or name a second rail to go on with",
                    ),
                }
            }
            error => error,
        }
    }

    /// Whether a rail to a rank itself reports why it is down, and what to do.
    fn knows_why(&self, rank: u32) -> bool {
        let paths = self.paths.get(rank as usize).map_or(&[][..], |paths| paths);
        let mut rails = paths.iter().filter_map(|ours| self.pml.rail(ours.rail));
        rails.any(|rail| rail.own_reason().is_some())
    }

    /// Returns the reason for a lost peer whose rails were broken by `fault.inject`.
    fn broken_on_purpose(&self, rank: u32) -> Option<String> {
        let paths = self.paths.get(rank as usize)?;
        let mut rails = paths.iter().filter_map(|ours| self.pml.rail(ours.rail));
        let rail = rails.find(|rail| rail.is_broken_on_purpose())?;
        Some(format!("fault.inject broke {} on purpose", rail.name()))
    }

    /// Pushes out what was accepted and closes the connections to the peers, for at most `limit`.
    pub(crate) fn close(&mut self, limit: Duration) {
        // No peer is left that could take anything.
        let alone = self.life.as_ref().is_some_and(Life::is_over);
        self.push_out(if alone { Duration::ZERO } else { limit });
        if let Some(life) = self.life.take() {
            life.leave(limit);
        }
    }

    fn push_out(&mut self, limit: Duration) {
        let clock = self.clock.clone();
        waiter::close(&clock, limit, |now, by| {
            self.meet_peers();
            let closed = self.pml.close(now, by);
            if let Some(seen) = &self.seen {
                seen.store(&self.pml);
            }
            closed
        });
    }
}

/// The core during a wait, with the receiver of reports about long waits.
struct Waited<'a> {
    core: &'a mut Core,
    notice: &'a mut dyn FnMut(&Waiting),
    /// A further descriptor that ends a sleep.
    extra: Option<BorrowedFd<'a>>,
}

impl<'a> Waited<'a> {
    #[inline]
    fn on(core: &'a mut Core, notice: &'a mut dyn FnMut(&Waiting)) -> Self {
        Self {
            core,
            notice,
            extra: None,
        }
    }
}

impl Pollable for Waited<'_> {
    const LINGERS: bool = false;

    #[inline]
    fn poll(&mut self) -> Work {
        self.core.poll()
    }

    fn progress_at(&mut self, now: Time) -> Work {
        self.core.progress_at(now)
    }

    #[inline]
    fn wants_time(&self) -> bool {
        // `Core::poll` reads the clock itself where a rail needs it.
        false
    }

    fn next_deadline(&self) -> Option<Time> {
        self.core.pml.next_deadline()
    }

    fn must_poll(&self) -> bool {
        self.core.pml.must_poll()
    }

    fn sleep(&mut self, longest: Duration) -> bool {
        self.core.sleep_for(longest, self.extra)
    }

    fn disarm(&mut self) {
        self.core.pml.rails_mut().for_each(|(_, rail)| rail.disarm());
    }

    fn explain(&self, what: Awaited, waited: Duration) -> Waiting {
        self.core.explain(what, waited)
    }

    fn expired(&self, what: Awaited, waited: Duration) -> Error {
        self.core.expired(what, waited)
    }

    fn notice(&mut self, waiting: &Waiting) {
        (self.notice)(waiting);
    }

    fn here(&self) -> Result<(), Error> {
        match self.core.maker.is_running() {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    #[inline]
    fn hopeless(&self, _: Awaited) -> Option<Error> {
        None
    }
}

/// Returns the role of a rail that is up. Long messages are striped over all rails, unless a rail within the
/// host goes `alone`; small ones take the fastest, and equally fast ones in turn.
fn role(path: &PathReport, alone: bool, turns: bool) -> &'static str {
    match (path.small, alone, turns) {
        (true, true, _) => "everything",
        (false, true, _) => "spare",
        (true, false, false) => "small messages, stripes",
        (true, false, true) => "small messages in turn, stripes",
        (false, false, _) => "stripes, spare",
    }
}

impl Look for Core {
    #[inline]
    fn is_done(&mut self, token: RequestToken) -> bool {
        self.pml.is_done(RequestId::from_bits(token.0))
    }

    #[inline(always)]
    fn take_well_ended(&mut self, token: RequestToken) -> Option<Status> {
        Some(self.pml.take_well_ended(RequestId::from_bits(token.0))?.into())
    }
}
