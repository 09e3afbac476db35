//! Waiting: the loop that the waits of all handles share ([`waiter`]), its turns ([`turns`]), and the waits
//! of a layer above a Portals node ([`NodeWaiter`]).
//!
//! Every wait has a deadline. Those of a [`NodeWaiter`] end early when a rank is lost, unless the program
//! continues without that rank.

pub mod sleep;
pub mod turns;
pub mod waiter;

use std::io::Write as _;
use std::time::Duration;

use doorbell_am_portals::Seen;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::map::process::Maker;
use doorbell_fabric::time::Time;
use doorbell_pml::LostReason;
use rustix::fd::{AsFd, BorrowedFd};

use self::sleep::Sleeper;
use self::turns::{Clock, Patience, Waiter};
use self::waiter::Pollable;
use crate::config::Config;
use crate::error::{Awaited, Error, Waiting};
use crate::meet::tcp::Life;

/// A function that gets the report of a wait that takes long, once per wait.
pub type Hook = Box<dyn FnMut(&Waiting) + Send>;

/// A layer above a Portals node, as its waits drive it.
pub trait PollableNode {
    /// Makes one bounded pass without the clock; returns the work found.
    fn poll(&mut self) -> usize;

    /// Looks up to `looks` times whether a poll would find something; `false` when it would not. A poll
    /// follows in either case.
    fn linger(&mut self, looks: u32) -> bool {
        let _ = looks;
        true
    }

    /// Makes one bounded pass of what depends on the time; returns the work done.
    fn progress(&mut self, now: Time) -> usize;

    /// Whether a rail needs a later time than that of the last `progress`.
    fn wants_time(&self) -> bool;

    /// Returns when `progress` has something to do next.
    fn next_deadline(&self) -> Option<Time>;

    /// Prepares to sleep, and passes descriptors to `each`. Returns whether there is work already, or a rail
    /// that cannot be slept on.
    fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool;

    /// Ends what `arm` has prepared.
    fn disarm(&mut self);

    /// Returns the next rank that is lost, once for each.
    fn lost(&mut self) -> Option<(u32, DownReason)>;

    /// Reports that a rank has ended, for an end that was not noticed over its rails.
    fn ended(&mut self, rank: u32, reason: DownReason);

    /// Rings the doorbell for requests that were held for batching.
    fn flush(&mut self);

    /// Excludes what rails hold back now from the waits of later calls.
    fn forget_held(&mut self);

    /// Whether rails hold messages back that they have accepted since [`PollableNode::forget_held`].
    fn holds_back(&mut self) -> bool;

    /// Excludes what is held back from [`PollableNode::holds_back`], until its peer takes something.
    fn give_up_held(&mut self);

    /// Sends what was accepted; returns whether that is all.
    fn close(&mut self, now: Time, by: Time) -> bool;

    /// Returns what is known about the peers whose rails are in trouble, one line each.
    fn troubles(&self) -> Vec<String>;

    /// Whether the probes of some rank's rails have all failed, so that no rail to it lets frames pass.
    fn is_cut_off(&self) -> bool;

    /// Returns the last events that the rails to a rank have recorded.
    fn recorded(&self, rank: u32) -> Vec<String>;
}

/// A rank that cannot be reached any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRank {
    /// The number of the rank.
    pub rank: u32,
    /// How it was lost.
    pub reason: DownReason,
}

/// The clock, the limits and the lost ranks that all waits of this rank share.
pub struct NodeWaiter {
    /// The process that the rails belong to.
    maker: Maker,
    /// The clock of the job.
    pub clock: Clock,
    /// How long an idle wait spins and yields before it sleeps.
    pub patience: Patience,
    /// The time after which a wait is reported, once.
    pub quiet: Duration,
    /// The limit of waits that name none of their own.
    pub limit: Duration,
    /// The rank of this process.
    pub rank: u32,
    /// The number of ranks in the job.
    size: u32,
    /// The connection to a rank on another host.
    pub life: Option<Life>,
    /// Called with the report of a long wait.
    pub hook: Option<Hook>,
    sleeper: Option<Sleeper>,
    lost: Vec<LostRank>,
    /// The ranks that the program continues without.
    excused: Vec<u32>,
    excuses_all: bool,
    /// The time at which a simulated clock stopped last for this rank.
    stopped: Option<Time>,
    /// The number of waits so far that did not end at once.
    waits: u32,
}

/// The clock is read at least once in this many waits.
const HOUSEKEEP_EVERY: u32 = 128;

impl NodeWaiter {
    /// Makes the state of rank `rank` in a job of `size`, with the limits of the settings.
    pub fn new(clock: Clock, patience: Patience, config: &Config, (rank, size): (u32, u32)) -> Self {
        Self {
            maker: Maker::this(),
            clock,
            patience,
            quiet: *config.wait.quiet.get(),
            limit: *config.wait.deadline.get(),
            rank,
            size,
            life: None,
            hook: None,
            sleeper: None,
            lost: Vec::new(),
            excused: Vec::new(),
            excuses_all: false,
            stopped: None,
            waits: 0,
        }
    }

    /// Checks that this is the process that the rails belong to.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child of it.
    #[inline]
    pub fn here(&self) -> Result<(), Error> {
        match self.maker.is_running() {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    /// Returns the ranks that are lost.
    pub fn lost(&self) -> &[LostRank] {
        &self.lost
    }

    /// Keeps the loss of this rank from ending waits.
    pub fn excuse(&mut self, rank: u32) {
        if !self.excused.contains(&rank) {
            self.excused.push(rank);
        }
    }

    /// Keeps the loss of any rank from ending waits.
    pub fn excuse_all(&mut self) {
        self.excuses_all = true;
    }

    /// Makes one bounded pass with everything.
    pub fn progress<D: PollableNode>(&mut self, node: &mut D) -> usize {
        if self.here().is_err() {
            return 0;
        }
        let (clock, rank, mut stopped) = (self.clock.clone(), self.rank, self.stopped);
        let mut attended = self.attend(node);
        let work = waiter::progress(&mut attended, &clock, rank, &mut stopped, |at, now| {
            at.node.poll() + at.progress_at(now)
        });
        self.stopped = stopped;
        work
    }

    fn attend<'a, D: PollableNode>(&'a mut self, node: &'a mut D) -> Attended<'a, D> {
        Attended { waiter: self, node }
    }

    /// Waits until `done` returns something.
    ///
    /// # Errors
    /// [`Error::PeerLost`] when a rank is lost; [`Error::Timeout`] when `limit` passes first.
    #[inline]
    pub fn wait<D: PollableNode, R>(
        &mut self,
        node: &mut D,
        limit: Duration,
        what: Awaited,
        done: impl FnMut(&mut D) -> Option<R>,
    ) -> Result<R, Error> {
        self.wait_by(node, limit, what, lingers, done)
    }

    /// As [`NodeWaiter::wait`], with a `linger` of the caller's that looks repeatedly for what it waits for.
    #[inline]
    pub fn wait_by<D: PollableNode, R>(
        &mut self,
        node: &mut D,
        limit: Duration,
        what: Awaited,
        linger: impl FnMut(&mut D, u32) -> Seen,
        done: impl FnMut(&mut D) -> Option<R>,
    ) -> Result<R, Error> {
        self.here()?;
        let result = self.look_until(node, limit, what, linger, done);
        // A wait that finds everything done makes no progress; requests that were held for batching leave all
        // the same.
        node.flush();
        result
    }

    /// Repeats a call that does not wait until it finds room. What it has started leaves before this returns,
    /// after `limit` at most, or is held by the rail for batching. This does not wait for what was held back
    /// before: that may be for a rank that computes.
    ///
    /// # Errors
    /// Those of [`NodeWaiter::wait`].
    #[inline]
    pub fn begin<D: PollableNode, R>(
        &mut self,
        node: &mut D,
        limit: Duration,
        what: Awaited,
        begun: impl FnMut(&mut D) -> Option<R>,
    ) -> Result<R, Error> {
        self.here()?;
        node.forget_held();
        let result = self.look_until(node, limit, what, lingers, begun)?;
        self.hand_over(node, limit, what);
        Ok(result)
    }

    #[inline]
    fn look_until<D: PollableNode, R>(
        &mut self,
        node: &mut D,
        limit: Duration,
        what: Awaited,
        mut linger: impl FnMut(&mut D, u32) -> Seen,
        mut done: impl FnMut(&mut D) -> Option<R>,
    ) -> Result<R, Error> {
        self.here()?;
        if let Some(result) = done(node) {
            return Ok(result);
        }
        let clock = self.clock.clone();
        let waiter = Waiter::new(&clock, self.patience, limit, self.quiet);
        self.waits = self.waits.wrapping_add(1);
        let is_due = self.waits.is_multiple_of(HOUSEKEEP_EVERY);
        let mut attended = self.attend(node);
        if is_due {
            // Waits that are all short never read the clock by themselves.
            attended.progress_at(clock.now());
        }
        waiter::wait(
            &mut attended,
            waiter,
            || what,
            |at, looks| linger(at.node, looks),
            |at| done(at.node),
        )
    }

    /// Waits while a rail holds messages of this call back, for at most `limit`: the caller may not make
    /// another call for long. What is still held back then stays with the rail, and each later call moves it
    /// on.
    #[inline]
    pub fn hand_over<D: PollableNode>(&mut self, node: &mut D, limit: Duration, what: Awaited) {
        if node.holds_back() {
            let clock = self.clock.clone();
            let waiter = Waiter::new(&clock, self.patience, limit, self.quiet);
            let mut attended = self.attend(node);
            let holds = &mut |at: &mut Attended<'_, D>| at.node.holds_back();
            if !waiter::push_out(&mut attended, waiter, &|| what, holds) {
                node.give_up_held();
            }
        }
    }

    /// Returns a lost and not excused rank that ends a wait for `what`. A rank that has disconnected in order
    /// has done its part: it ends only waits for that very rank. When all other ranks are gone, what has not
    /// arrived by now never will.
    fn missed(&self, what: Awaited) -> Option<LostRank> {
        let alone = self.lost.len() + 1 >= self.size as usize;
        let waits_for = |lost: &&LostRank| match what {
            Awaited::Collective { peer, .. } if lost.reason == DownReason::Closed => peer == lost.rank,
            _ => alone || lost.reason != DownReason::Closed,
        };
        let mut lost = self.lost.iter().filter(|_| !self.excuses_all).filter(waits_for);
        lost.find(|lost| !self.excused.contains(&lost.rank)).copied()
    }

    /// Makes the error of a wait that has reached its limit: the explanation, and what the rails to the ranks
    /// concerned recorded.
    #[cold]
    pub fn expired<D: PollableNode>(&self, node: &D, what: Awaited, waited: Duration) -> Error {
        let (about, _) = what.concerned();
        let recent = about.into_iter().flat_map(|rank| node.recorded(rank));
        Error::Timeout(Box::new(Waiting {
            recent: recent.collect(),
            ..self.explain(node, what, waited)
        }))
    }

    #[cold]
    fn explain<D: PollableNode>(&self, node: &D, what: Awaited, waited: Duration) -> Waiting {
        let mut peers: Vec<String> = self.lost.iter().map(describe).collect();
        peers.extend(node.troubles());
        if peers.is_empty() {
            peers.push("no peer is known to be lost, nor a rail to be in trouble".to_owned());
        }
        Waiting {
            rank: self.rank,
            what,
            waited,
            peers,
            is_cut_off: node.is_cut_off(),
            recent: Vec::new(),
        }
    }

    /// Reports a long wait to the hook, or on stderr.
    #[cold]
    fn complain(&mut self, waiting: &Waiting) {
        match &mut self.hook {
            Some(hook) => hook(waiting),
            // One write for the whole line, since several ranks may print at once.
            None => _ = std::io::stderr().write_all(format!("doorbell: {waiting}\n").as_bytes()),
        }
    }

    /// Makes the error of a wait that a lost rank has ended.
    #[cold]
    pub fn peer_lost<D: PollableNode>(&self, node: &D, lost: LostRank) -> Error {
        let reason = LostReason::Peer(lost.reason);
        Error::PeerLost {
            peer: lost.rank,
            why: reason.as_str().to_owned(),
            what: "its pending operations have ended as undeliverable".to_owned(),
            recent: node.recorded(lost.rank),
            remedy: reason.advice(),
        }
    }

    /// Sends what was accepted and disconnects from the peers, for at most `limit`.
    pub fn close<D: PollableNode>(&mut self, node: &mut D, limit: Duration) {
        let alone = self.life.as_ref().is_some_and(Life::is_over);
        let most = if alone { Duration::ZERO } else { limit };
        waiter::close(&self.clock, most, |now, by| node.close(now, by));
        if let Some(life) = self.life.take() {
            life.leave(limit);
        }
    }
}

/// A layer, with the state that its waits share.
struct Attended<'a, D> {
    waiter: &'a mut NodeWaiter,
    node: &'a mut D,
}

impl<D: PollableNode> Pollable for Attended<'_, D> {
    const LINGERS: bool = true;

    #[inline]
    fn poll(&mut self) -> usize {
        self.node.poll()
    }

    fn progress_at(&mut self, now: Time) -> usize {
        if let Some(life) = &mut self.waiter.life
            && let Some(reason) = life.look(now)
        {
            self.node.ended(life.peer().0, reason);
        }
        let work = self.node.progress(now);
        while let Some((rank, reason)) = self.node.lost() {
            self.waiter.lost.push(LostRank { rank, reason });
        }
        work
    }

    #[inline]
    fn wants_time(&self) -> bool {
        self.node.wants_time()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.node.next_deadline()
    }

    fn must_poll(&self) -> bool {
        // A rail that cannot be slept on reports that when it is armed.
        false
    }

    fn sleep(&mut self, longest: Duration) -> bool {
        let waiter = &mut *self.waiter;
        if waiter.sleeper.is_none() {
            waiter.sleeper = Sleeper::new().ok();
        }
        let Some(sleeper) = &mut waiter.sleeper else {
            return false;
        };
        sleeper.begin();
        if let Some(descriptor) = waiter.life.as_mut().and_then(Life::arm) {
            sleeper.watch(descriptor.as_fd());
        }
        let works = self.node.arm(&mut |descriptor| sleeper.watch(descriptor));
        !works && sleeper.sleep(longest)
    }

    fn disarm(&mut self) {
        self.node.disarm();
    }

    fn explain(&self, what: Awaited, waited: Duration) -> Waiting {
        self.waiter.explain(self.node, what, waited)
    }

    fn expired(&self, what: Awaited, waited: Duration) -> Error {
        self.waiter.expired(self.node, what, waited)
    }

    fn notice(&mut self, waiting: &Waiting) {
        self.waiter.complain(waiting);
    }

    fn here(&self) -> Result<(), Error> {
        self.waiter.here()
    }

    fn hopeless(&self, what: Awaited) -> Option<Error> {
        let lost = self.waiter.missed(what)?;
        Some(self.waiter.peer_lost(self.node, lost))
    }
}

#[inline]
fn lingers<D: PollableNode>(node: &mut D, looks: u32) -> Seen {
    match node.linger(looks) {
        true => Seen::Something,
        false => Seen::Nothing,
    }
}

fn describe(lost: &LostRank) -> String {
    format!(
        "rank {} is lost: {}",
        lost.rank,
        LostReason::Peer(lost.reason).as_str()
    )
}
