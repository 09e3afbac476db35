//! Waiting for what stands above the rails and moves only when it is asked to: a Portals node, or active messages over one.
//!
//! ```text
//!   until it is done:  poll ── nothing ─► spin, yield, sleep on the rails' descriptors   (progress.wait)
//!                        │
//!                        └─ now and then with the clock: losses, the connection to another host, the deadline
//! ```
//!
//! The same turns ([`turns`]) as those of a world's waits. Every wait has a deadline, and ends
//! early when a rank is lost that the program has not said it can do without.

mod sleep;
pub mod turns;

use std::io::Write as _;
use std::thread;
use std::time::Duration;

use doorbell_am_portals::Seen;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::map::process::Maker;
use doorbell_fabric::time::Time;
use doorbell_pml::LostReason;
use rustix::fd::{AsFd, BorrowedFd};

use self::sleep::Sleeper;
use self::turns::{Clock, Patience, Turn, Waiter, move_on};
use crate::config::Config;
use crate::error::{Awaited, Error, Waiting};
use crate::meet::remote::Life;

/// Called once when a wait has been quiet for long.
pub type Hook = Box<dyn FnMut(&Waiting) + Send>;

/// What is waited for, and moved meanwhile.
pub trait Driven {
    /// One bounded pass without the clock; returns what it found.
    fn poll(&mut self) -> usize;

    /// Looks up to `looks` times whether a poll would find something; `false` when it would not. A poll follows anyway.
    fn linger(&mut self, looks: u32) -> bool {
        let _ = looks;
        true
    }

    /// What needs the time; returns the work done.
    fn progress(&mut self, now: Time) -> usize;

    /// Whether a rail finds the time of the last `progress` old.
    fn wants_time(&self) -> bool;

    /// When `progress` has something to do next.
    fn next_deadline(&self) -> Option<Time>;

    /// Prepares to sleep: shows descriptors. Whether there is work already, or nothing can be slept on.
    fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool;

    /// Ends what `arm` prepared.
    fn disarm(&mut self);

    /// The next rank that is lost, told once.
    fn lost(&mut self) -> Option<(u32, DownReason)>;

    /// A rank has ended, which is known from elsewhere than its rails.
    fn ended(&mut self, rank: u32, reason: DownReason);

    /// Rings the doorbell for what waits for company.
    fn flush(&mut self);

    /// What rails hold back now is not the next call's to wait for.
    fn forget_held(&mut self);

    /// Whether messages that rails have accepted since [`Driven::forget_held`] leave only in later calls.
    fn holds_back(&mut self) -> bool;

    /// What is held back counts no more in [`Driven::holds_back`], until its peer takes something.
    fn give_up_held(&mut self);

    /// Pushes out what was accepted; whether all of it is.
    fn close(&mut self, now: Time, by: Time) -> bool;

    /// What is known about the peers whose rails are in trouble, one line each.
    fn troubles(&self) -> Vec<String>;

    /// Whether no rail to some rank lets frames pass, as their probes have it.
    fn is_cut_off(&self) -> bool;

    /// What the rails to a rank have recorded last.
    fn recorded(&self, rank: u32) -> Vec<String>;
}

/// A rank that can be reached no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRank {
    /// Which.
    pub rank: u32,
    /// Why.
    pub reason: DownReason,
}

/// The clock and the habits of this rank's waits.
pub struct Station {
    /// The process whose rails these are.
    maker: Maker,
    /// The clock of the job.
    pub clock: Clock,
    /// What an idle wait does.
    pub patience: Patience,
    /// After this long, a wait is reported once.
    pub quiet: Duration,
    /// Of waits that name no limit of their own.
    pub limit: Duration,
    /// The rank of this process.
    pub rank: u32,
    /// Ranks of the job.
    size: u32,
    /// The connection to a rank on another host.
    pub life: Option<Life>,
    /// Called with the report of a long wait.
    pub hook: Option<Hook>,
    sleeper: Option<Sleeper>,
    lost: Vec<LostRank>,
    /// Those that the program goes on without.
    excused: Vec<u32>,
    excuses_all: bool,
    /// Where a simulated clock stopped last for this rank.
    stopped: Option<Time>,
    /// Waits so far that did not end at once.
    waits: u32,
}

/// So many of them lead to one look at the clock at least.
const HOUSEKEEP_EVERY: u32 = 128;

impl Station {
    /// Of rank `rank` in a job of `size`, with the limits of the settings.
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

    /// # Errors
    /// [`Error::Forked`] in a child of the process that made it.
    #[inline]
    pub fn here(&self) -> Result<(), Error> {
        match self.maker.is_running() {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    /// The ranks that are lost.
    pub fn lost(&self) -> &[LostRank] {
        &self.lost
    }

    /// No wait ends any more because this rank is lost.
    pub fn excuse(&mut self, rank: u32) {
        if !self.excused.contains(&rank) {
            self.excused.push(rank);
        }
    }

    /// No wait ends any more because a rank is lost.
    pub fn excuse_all(&mut self) {
        self.excuses_all = true;
    }

    /// One bounded pass with everything.
    pub fn progress<D: Driven>(&mut self, driven: &mut D) -> usize {
        if self.here().is_err() {
            return 0;
        }
        if let Clock::Virtual(net) = &self.clock {
            move_on(net, self.rank, driven.next_deadline(), &mut self.stopped);
        }
        let now = self.clock.now();
        let work = driven.poll() + self.progress_at(driven, now);
        if let Clock::Virtual(net) = &self.clock {
            net.set_alarm(self.rank, driven.next_deadline());
        }
        work
    }

    fn progress_at<D: Driven>(&mut self, driven: &mut D, now: Time) -> usize {
        if let Some(life) = &mut self.life
            && let Some(reason) = life.look(now)
        {
            driven.ended(life.peer().0, reason);
        }
        let work = driven.progress(now);
        while let Some((rank, reason)) = driven.lost() {
            self.lost.push(LostRank { rank, reason });
        }
        work
    }

    /// Waits until `done` says so.
    ///
    /// # Errors
    /// [`Error::PeerLost`] when a rank is lost; [`Error::Timeout`] when `limit` passes first.
    #[inline]
    pub fn wait<D: Driven, R>(
        &mut self,
        driven: &mut D,
        limit: Duration,
        what: Awaited,
        done: impl FnMut(&mut D) -> Option<R>,
    ) -> Result<R, Error> {
        self.wait_by(driven, limit, what, lingers, done)
    }

    /// The same, where there is a way of its own to look again and again for what is waited for.
    #[inline]
    pub fn wait_by<D: Driven, R>(
        &mut self,
        driven: &mut D,
        limit: Duration,
        what: Awaited,
        linger: impl FnMut(&mut D, u32) -> Seen,
        done: impl FnMut(&mut D) -> Option<R>,
    ) -> Result<R, Error> {
        self.here()?;
        let result = self.look_until(driven, limit, what, linger, done);
        // A wait that finds everything done makes no progress; what waits for company leaves all the same.
        driven.flush();
        result
    }

    /// Repeats a call that does not wait until it finds room. What it has begun leaves, at most after
    /// `limit`, or waits with the rail for company. What was held back before is not this call's: it may be
    /// for a rank that computes.
    ///
    /// # Errors
    /// As [`Station::wait`].
    #[inline]
    pub fn begin<D: Driven, R>(
        &mut self,
        driven: &mut D,
        limit: Duration,
        what: Awaited,
        begun: impl FnMut(&mut D) -> Option<R>,
    ) -> Result<R, Error> {
        self.here()?;
        driven.forget_held();
        let result = self.look_until(driven, limit, what, lingers, begun)?;
        self.hand_over(driven, limit, what);
        Ok(result)
    }

    #[inline]
    fn look_until<D: Driven, R>(
        &mut self,
        driven: &mut D,
        limit: Duration,
        what: Awaited,
        mut linger: impl FnMut(&mut D, u32) -> Seen,
        mut done: impl FnMut(&mut D) -> Option<R>,
    ) -> Result<R, Error> {
        self.here()?;
        if let Some(result) = done(driven) {
            return Ok(result);
        }
        self.waits = self.waits.wrapping_add(1);
        if self.waits.is_multiple_of(HOUSEKEEP_EVERY) {
            // Waits that all are short never come to look at the clock.
            let now = self.clock.now();
            self.progress_at(driven, now);
        }
        let clock = self.clock.clone();
        let mut waiter = Waiter::new(&clock, self.patience, limit, self.quiet);
        let looks = waiter.looks();
        loop {
            let mut turns = 1;
            if looks > 0 {
                match linger(driven, looks) {
                    Seen::Something => {}
                    Seen::Nothing => turns = looks,
                    Seen::Counted(_) => {
                        if let Some(result) = done(driven) {
                            return Ok(result);
                        }
                    }
                }
            }
            let work = driven.poll();
            if let Some(result) = done(driven) {
                return Ok(result);
            }
            match waiter.turn_after(turns, work > 0) {
                Turn::Again if !driven.wants_time() => {}
                Turn::Again => {
                    let now = self.clock.now();
                    self.progress_at(driven, now);
                }
                turn => {
                    self.slow_turn(driven, turn, &waiter, what)?;
                    if let Some(lost) = self.missed(what) {
                        // What it still brought counts.
                        return done(driven).ok_or_else(|| self.peer_lost(driven, lost));
                    }
                }
            }
        }
    }

    /// A call that has sent does not return while a rail holds messages back, for at most `limit`: its caller
    /// may not come by again for long. What is still held back then stays with the rail, and each later call
    /// moves it on.
    #[inline]
    pub fn hand_over<D: Driven>(&mut self, driven: &mut D, limit: Duration, what: Awaited) {
        if driven.holds_back() {
            self.push_out(driven, limit, what);
        }
    }

    #[cold]
    #[inline(never)]
    fn push_out<D: Driven>(&mut self, driven: &mut D, limit: Duration, what: Awaited) {
        if let Clock::Virtual(_) = self.clock {
            // One thread drives all ranks of a simulation: no other rank can act while this one waits.
            return;
        }
        let clock = self.clock.clone();
        let mut waiter = Waiter::new(&clock, self.patience, limit, self.quiet);
        while driven.holds_back() {
            let turn = waiter.turn(driven.poll() > 0);
            if self.slow_turn(driven, turn, &waiter, what).is_err() {
                driven.give_up_held();
                return;
            }
        }
    }

    /// A rank that is lost and not excused. One that has taken leave is missed by those alone who wait for it in particular:
    /// it has done its part. When nobody else is left, what has not come by now never will.
    fn missed(&self, what: Awaited) -> Option<LostRank> {
        let alone = self.lost.len() + 1 >= self.size as usize;
        let waits_for = |lost: &&LostRank| match what {
            Awaited::Collective { peer, .. } if lost.reason == DownReason::Closed => peer == lost.rank,
            _ => alone || lost.reason != DownReason::Closed,
        };
        let mut lost = self.lost.iter().filter(|_| !self.excuses_all).filter(waits_for);
        lost.find(|lost| !self.excused.contains(&lost.rank)).copied()
    }

    #[cold]
    fn slow_turn<D: Driven>(
        &mut self,
        driven: &mut D,
        turn: Turn,
        waiter: &Waiter<'_>,
        what: Awaited,
    ) -> Result<(), Error> {
        match turn {
            Turn::Again => {}
            Turn::Housekeep(now) => _ = self.progress_at(driven, now),
            Turn::Yield(now) => {
                if self.progress_at(driven, now) == 0 {
                    thread::yield_now();
                }
            }
            Turn::Sleep(now, until) => {
                if self.progress_at(driven, now) == 0 {
                    self.sleep(driven, now, until);
                }
            }
            Turn::Quiet(now) => {
                let waiting = self.explain(driven, what, waiter.waited(now));
                self.complain(&waiting);
                // The callback may have forked, and this be the child.
                self.here()?;
            }
            Turn::Expired(now) => {
                return Err(self.expired(driven, what, waiter.waited(now)));
            }
        }
        Ok(())
    }

    /// Sleeps until a rail has something, a deadline of the rails comes, or `until`.
    #[cold]
    fn sleep<D: Driven>(&mut self, driven: &mut D, now: Time, until: Time) {
        let until = driven.next_deadline().map_or(until, |due| due.min(until));
        if let Clock::Virtual(net) = &self.clock {
            // One thread drives all ranks of a simulation: nobody else can act, so the time simply passes.
            let next = net.next_event().map_or(until, |event| event.min(until));
            net.advance_to(next);
            return;
        }
        if self.sleeper.is_none() {
            self.sleeper = Sleeper::new().ok();
        }
        let (Some(sleeper), life) = (&mut self.sleeper, &mut self.life) else {
            thread::yield_now();
            return;
        };
        sleeper.begin();
        if let Some(descriptor) = life.as_mut().and_then(Life::arm) {
            sleeper.watch(descriptor.as_fd());
        }
        let works = driven.arm(&mut |descriptor| sleeper.watch(descriptor));
        if works || !sleeper.sleep(until.since(now)) {
            thread::yield_now();
        }
        driven.disarm();
    }

    /// The error of a wait that has reached its limit: the explanation, and what the rails to those concerned
    /// recorded.
    #[cold]
    pub fn expired<D: Driven>(&self, driven: &D, what: Awaited, waited: Duration) -> Error {
        let (about, _) = what.concerned();
        let recent = about.into_iter().flat_map(|rank| driven.recorded(rank));
        Error::Timeout(Box::new(Waiting {
            recent: recent.collect(),
            ..self.explain(driven, what, waited)
        }))
    }

    #[cold]
    fn explain<D: Driven>(&self, driven: &D, what: Awaited, waited: Duration) -> Waiting {
        let mut peers: Vec<String> = self.lost.iter().map(describe).collect();
        peers.extend(driven.troubles());
        if peers.is_empty() {
            peers.push("no peer is known to be lost, nor a rail to be in trouble".to_owned());
        }
        Waiting {
            rank: self.rank,
            what,
            waited,
            peers,
            is_cut_off: driven.is_cut_off(),
            recent: Vec::new(),
        }
    }

    /// Says once who waits for what.
    #[cold]
    fn complain(&mut self, waiting: &Waiting) {
        match &mut self.hook {
            Some(hook) => hook(waiting),
            // In one write, because several ranks may say something at once.
            None => _ = std::io::stderr().write_all(format!("doorbell: {waiting}\n").as_bytes()),
        }
    }

    /// The error of a wait that a lost rank has ended.
    #[cold]
    pub fn peer_lost<D: Driven>(&self, driven: &D, lost: LostRank) -> Error {
        let reason = LostReason::Peer(lost.reason);
        Error::PeerLost {
            peer: lost.rank,
            why: reason.as_str().to_owned(),
            what: "what was asked of it has ended as undeliverable".to_owned(),
            recent: driven.recorded(lost.rank),
            remedy: reason.advice(),
        }
    }

    /// Pushes out what was accepted and takes leave of the peers, for at most `limit`.
    pub fn close<D: Driven>(&mut self, driven: &mut D, limit: Duration) {
        let alone = self.life.as_ref().is_some_and(Life::is_over);
        let by = self.clock.now() + if alone { Duration::ZERO } else { limit };
        loop {
            let now = self.clock.now();
            if driven.close(now, by) || now >= by {
                break;
            }
            match &self.clock {
                Clock::Virtual(net) => {
                    let next = net.next_event().map_or(by, |event| event.min(by));
                    net.advance_to(next);
                }
                Clock::Machine(_) => thread::yield_now(),
            }
        }
        if let Some(life) = self.life.take() {
            life.leave(limit);
        }
    }
}

#[inline]
fn lingers<D: Driven>(driven: &mut D, looks: u32) -> Seen {
    match driven.linger(looks) {
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
