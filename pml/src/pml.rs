//! The PML: its rails, and one pass of progress over them.

use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::message::{Incarnation, Message};
use doorbell_fabric::pace::RAILS_MAX;
use doorbell_fabric::rail::Work;
use doorbell_fabric::time::Time;
use doorbell_paths::{PATHS_MAX, Seq};
use doorbell_paths::{act_on_words, extend_waits, tick};

use crate::arrivals::ArrivalHandler;
use crate::backlog::Queued;
use crate::blocking_recv::BlockingRecv;
use crate::config::PmlConfig;
use crate::core::Core;
use crate::counters::Counters;
use crate::error::PmlError;
use crate::hot::about;
use crate::launch::Launch;
use crate::paths::Path;
use crate::rails::{RailId, Rails};
use crate::rank::{RANKS_MOST, Rank};
use crate::rendezvous::tasks::Step;
use crate::request::Outcome;

/// Pause between two polls after which all rails are polled at once.
const PAUSE: Duration = Duration::from_micros(20);

/// The point-to-point message layer of one rank, over any number of rails. See the crate's first page.
#[derive(Debug)]
pub struct Pml<M: Message> {
    pub(crate) rails: Rails<M>,
    pub(crate) core: Core,
    /// Paths that were made while the links of their rails were down, until the next housekeeping.
    pub(crate) late_paths: Vec<(Rank, RailId)>,
}

impl<M: Message> Pml<M> {
    /// A PML without rails: it can send to itself.
    ///
    /// # Errors
    /// [`PmlError::BadConfig`], with the setting and the reason.
    pub fn new(config: PmlConfig) -> Result<Self, PmlError> {
        let refuse = |name, value: u64, reason| PmlError::BadConfig { name, value, reason };
        if config.rank.0 >= config.size {
            return Err(refuse(
                "rank",
                config.rank.0.into(),
                "it must be below the size of the job",
            ));
        }
        for (name, ranks) in [("size", config.size), ("peers_most", config.peers_most)] {
            if ranks > RANKS_MOST {
                return Err(refuse(name, ranks.into(), "at most 2^24 ranks"));
            }
        }
        if config.sources > 0xff {
            return Err(refuse(
                "sources",
                config.sources.into(),
                "only bits among the lowest eight",
            ));
        }
        if config.window < 1024 {
            return Err(refuse("window", config.window, "at least 1024 bytes"));
        }
        if config.hard_window < config.window {
            return Err(refuse("hard_window", config.hard_window, "not below the window"));
        }
        if config.hard_window > 1 << 36 {
            return Err(refuse(
                "hard_window",
                config.hard_window,
                "at most 64 GiB: sequence numbers have 32 bits",
            ));
        }
        if config.pipeline == 0 || config.pipeline > 16 {
            return Err(refuse("pipeline", config.pipeline as u64, "1 to 16"));
        }
        if config.poll_budget == 0 {
            return Err(refuse("poll_budget", 0, "at least 1"));
        }
        Ok(Self {
            rails: Rails::new(),
            core: Core::new(config),
            late_paths: Vec::new(),
        })
    }

    /// Adds a rail.
    ///
    /// # Errors
    /// [`PmlError::BadConfig`] for one more than 64.
    pub fn add_rail(&mut self, rail: M) -> Result<RailId, PmlError> {
        self.rails.add(rail).ok_or(PmlError::BadConfig {
            name: "rails",
            value: RAILS_MAX as u64 + 1,
            reason: "at most 64",
        })
    }

    /// Makes a peer known over a rail. The order in which this is called for the rails of a peer numbers
    /// them, and is the same at both ends; which of them carries what is measured. Our own rank needs none.
    ///
    /// # Errors [`PmlError::NoSuchRank`], [`PmlError::NoSuchRail`]; [`PmlError::Open`] when the rail refuses
    /// the address; [`PmlError::TooManyRails`]; [`PmlError::PeerLost`] for a peer that was forgotten.
    pub fn connect(
        &mut self,
        rank: Rank,
        rail: RailId,
        address: &RailAddress,
        incarnation: Incarnation,
    ) -> Result<(), PmlError> {
        if self.core.hot.get(rank).is_none() {
            return Err(self.no_such_rank(rank));
        }
        let rails = self.rails.len();
        let opened = self
            .rails
            .get_mut(rail)
            .ok_or(PmlError::NoSuchRail { rail: rail.0, rails })?;
        if rank == self.core.config.rank {
            return Ok(());
        }
        self.core.check_membership(rank)?;
        let paths = &self.core.peers[rank].paths;
        if paths.len() >= PATHS_MAX && paths.over(rail).is_none() {
            return Err(PmlError::TooManyRails {
                rank,
                most: PATHS_MAX,
            });
        }
        let peer = opened
            .open(address, incarnation)
            .map_err(|source| PmlError::Open {
                rank,
                rail: opened.name().to_string(),
                source,
            })?;
        self.rails.assign(rail, peer, rank);
        let path = Path::new(&self.core.config, rail, peer, self.rails.capabilities(rail));
        let paths = &mut self.core.peers[rank].paths;
        paths.put(path);
        if paths.len() > 1 {
            self.core.watch(rank);
        }
        if self.rails.is_down(rail) {
            self.late_paths.push((rank, rail));
        }
        self.core.refresh(rank);
        self.core.met(rank);
        Ok(())
    }

    /// Whether a rail has reported that its link is down, or its device gone.
    #[must_use]
    pub fn is_down(&self, rail: RailId) -> bool {
        self.rails.get(rail).is_some() && self.rails.is_down(rail)
    }

    /// Returns a rail.
    #[must_use]
    pub fn rail(&self, rail: RailId) -> Option<&M> {
        self.rails.get(rail)
    }

    /// A rail, to be armed. Its one-sided operations belong to the PML alone.
    pub fn rail_mut(&mut self, rail: RailId) -> Option<&mut M> {
        self.rails.get_mut(rail)
    }

    /// Returns all rails.
    pub fn rails(&self) -> impl Iterator<Item = (RailId, &M)> {
        self.rails.ids().zip(self.rails.iter())
    }

    /// All rails, to be armed before sleeping. The next pass polls each of them, whatever that costs.
    pub fn rails_mut(&mut self) -> impl Iterator<Item = (RailId, &mut M)> {
        self.rails.expect_all();
        self.rails.ids().zip(self.rails.iter_mut())
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> &PmlConfig {
        &self.core.config
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// Requests that were made and not freed yet.
    #[must_use]
    pub fn live_requests(&self) -> usize {
        self.core.requests.live() as usize
    }

    /// One bounded pass over all rails and all work that waits; reads no clock. The hot one.
    #[inline]
    pub fn poll(&mut self) -> Work {
        self.poll_for(self.core.config.poll_budget, &mut BlockingRecv::none())
    }

    /// Whether small messages to a rank leave this host: over a rail that keeps them until they are
    /// acknowledged.
    #[must_use]
    pub fn is_far(&self, to: Rank) -> bool {
        let hot = self.core.hot.get(to);
        let rail = hot.and_then(|hot| self.rails.get(hot.route().0));
        rail.is_some_and(|rail| !rail.capabilities().features.within_host)
    }

    /// Polls every rail, whatever that costs: what this is to find, acknowledgements, makes no rail busy.
    #[inline]
    pub fn poll_all(&mut self) -> Work {
        self.rails.expect_all();
        self.poll()
    }

    #[inline]
    pub(crate) fn poll_for(&mut self, budget: usize, waiting: &mut BlockingRecv) -> Work {
        // Not every pass polls every rail.
        self.flush_gathered();
        let core = &mut self.core;
        let mut work = self.rails.poll_each(|id, rail, ranks| {
            let mut arrivals = ArrivalHandler::new(core, waiting, ranks, id);
            let found = rail.poll(budget, &mut arrivals);
            core.clock.note_old(rail.wants_time());
            found
        });
        if !self.core.withdrawals.is_empty() {
            self.apply_withdrawals();
        }
        if !self.core.work.is_empty() {
            work += self.drain();
        }
        if !self.core.hand_overs.is_empty() {
            work += self.end_handed_over();
        }
        work
    }

    /// Housekeeping of the rails, their events, and a pass of [`Pml::poll`]. To be called every few
    /// microseconds of idling, and by [`Pml::next_deadline`].
    pub fn progress(&mut self, now: Time) -> Work {
        self.housekeep(now) + self.poll()
    }

    /// Housekeeping of the rails and their events, without a poll: for a caller that takes its messages one
    /// by one, where a poll would only move those behind the next one to where they cost more.
    pub fn housekeep(&mut self, now: Time) -> Work {
        let mut work = 0;
        if now.since(self.core.clock.now()) > PAUSE {
            self.rails.expect_all();
        }
        let before = self.core.clock.now();
        extend_waits(self, before, now);
        self.core.clock.set(now);
        for rail in self.rails.ids() {
            work += self.rails[rail].progress(now);
            while let Some(event) = self.rails[rail].event() {
                self.on_event(rail, event);
                work += 1;
            }
        }
        if !self.late_paths.is_empty() {
            self.break_late_paths();
        }
        if !self.core.flowing.is_empty() {
            self.look_at_flows();
        }
        if self.core.timers.has_words() {
            act_on_words(self, now);
        }
        if self.core.timers.is_due(now) {
            tick(self, now);
        }
        work
    }

    /// Whether a rail finds the time of the last housekeeping old ([`Rail::wants_time`]): who polls without
    /// reading the clock calls [`Pml::housekeep`] or [`Pml::progress`] then.
    ///
    /// [`Rail::wants_time`]: doorbell_fabric::rail::Rail::wants_time
    #[must_use]
    #[inline]
    pub fn wants_time(&self) -> bool {
        self.core.clock.is_old()
    }

    /// The next time at which [`Pml::progress`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let own = self.core.timers.next_deadline(self.core.clock.now());
        let rails = self.rails.iter().filter_map(M::next_deadline);
        rails.chain(own).min()
    }

    /// Whether there is work that only polling moves on, so that sleeping on the rails' descriptors would
    /// delay it.
    #[must_use]
    pub fn must_poll(&self) -> bool {
        !self.core.work.is_empty()
    }

    /// Whether something waits for a path to its peer that may come back.
    #[must_use]
    pub fn waits_for_a_path(&self) -> bool {
        self.core.waits_for_a_path()
    }

    /// Rings the doorbells of all rails. A poll does it, too.
    #[inline]
    pub fn flush(&mut self) {
        self.rails.flush();
    }

    /// Rings the doorbell for what was started last for a rank, or leaves that to what follows, to
    /// [`Pml::flush`] or to a poll, as [`Message::flush_soon`] decides: after an operation of
    /// [`Pml::put_loan`] and its like where more may follow.
    #[inline]
    pub fn flush_soon(&mut self, to: Rank) {
        let hot = self.core.hot.get(to).filter(|hot| hot.is_fast(0, 0));
        let Some((rail, peer)) = hot.map(|hot| hot.route()) else {
            return self.flush();
        };
        if let Some(rail) = self.rails.get_mut(rail) {
            let left = rail.flush_soon(peer);
            self.rails.note_gathered(!left);
        }
    }

    /// Flushes if messages wait to leave with others ([`Pml::post_loan`], [`Pml::send_with_more`]): for calls
    /// that neither send nor poll, and that may be the last for a long time.
    #[inline]
    pub fn flush_gathered(&mut self) {
        self.rails.flush_gathered();
    }

    /// Whether messages of the caller's that rails have accepted, for a rank (`None`: for any), leave only in
    /// later calls. A caller that will make none for long calls [`Pml::poll`] until there are none. Words of
    /// the protocol to a rank that was sent no message do not count: that rank may compute, and does not miss
    /// them meanwhile.
    #[inline]
    pub fn holds_back(&mut self, to: Option<Rank>) -> bool {
        self.rails.iter_mut().any(|rail| rail.holds_back(None)) && self.holds_back_for(to)
    }

    #[cold]
    #[inline(never)]
    fn holds_back_for(&mut self, to: Option<Rank>) -> bool {
        let held = |rank: Rank| {
            let was_sent = self
                .core
                .hot
                .get(rank)
                .is_some_and(|hot| hot.next_seq() != Seq(0));
            was_sent
                && self.core.peers[rank].paths.iter().any(|path| {
                    let (rail, peer) = path.route();
                    let rail = self.rails.get_mut(rail);
                    rail.is_some_and(|rail| rail.holds_back(Some(peer)))
                })
        };
        match to {
            Some(to) => std::iter::once(to).any(held),
            None => self.core.peers.ranks().any(held),
        }
    }

    /// Returns how far a rank has come with what rails carry to it: a number that grows whenever it takes
    /// something.
    #[cold]
    pub fn handed_over(&mut self, to: Rank) -> u64 {
        let mut taken = 0u64;
        for path in self.core.peers.get(to).iter().flat_map(|peer| peer.paths.iter()) {
            let (rail, peer) = path.route();
            if let Some(rail) = self.rails.get_mut(rail) {
                taken = taken.wrapping_add(rail.handed_over(peer).0);
            }
        }
        taken
    }

    /// Orderly end: pushes out what waits, also for a path that may come back, and waits for the peers to
    /// receive those sends that were reported as done and still need an answer; then closes the
    /// rails. To be called with a fresh `now` until it answers `true`, which it does at `by` at the latest.
    pub fn close(&mut self, now: Time, by: Time) -> bool {
        self.progress(now);
        let waits = || {
            self.must_poll()
                || self.core.waits_for_a_path()
                || self.core.waits_for_a_meeting()
                || self.core.has_promised(|_| true)
        };
        if now < by && waits() {
            return false;
        }
        let mut closed = true;
        for rail in self.rails.iter_mut() {
            closed &= rail.close(now, by);
        }
        closed
    }

    /// Does what waits for rails, for every listed peer.
    #[cold]
    #[inline(never)]
    pub(crate) fn drain(&mut self) -> Work {
        let mut work = self.send_answers();
        // Peers that are listed again meanwhile are looked at in the next pass.
        self.core.work.begin_pass();
        while let Some(rank) = self.core.work.next_in_pass(&mut self.core.hot) {
            work += self.drain_peer(rank);
        }
        self.apply_withdrawals();
        if work > 0 {
            self.flush();
        }
        work
    }

    fn drain_peer(&mut self, rank: Rank) -> Work {
        // Messages that wait for a path are listed again when it comes back.
        if self.core.hot[rank].is(about::LOST) || self.core.peers[rank].paths.first_up().is_none() {
            return 0;
        }
        let before = self.core.peers[rank].backlog.control_len();
        let mut again = !self.send_control(rank);
        let mut work = before.saturating_sub(self.core.peers[rank].backlog.control_len());
        for _ in 0..self.core.peers[rank].backlog.task_count() {
            // Gone, when the peer was lost in the middle.
            let Some(task) = self.core.peers[rank].backlog.pop_task() else {
                break;
            };
            match self.step(rank, task) {
                Step::Finished => work += 1,
                Step::Again(moved) => {
                    work += usize::from(moved);
                    again = true;
                    if !self.core.hot[rank].is(about::LOST) {
                        self.core.peers[rank].backlog.push_task(task);
                    }
                }
            }
        }
        work += self.send_queued(rank, &mut again);
        // Messages that the tasks queued are sent at once, not with the next pass.
        again |= !self.send_control(rank);
        if again {
            self.core.list(rank);
        }
        work
    }

    /// Starts the sends of which nothing has left, in order.
    fn send_queued(&mut self, rank: Rank, again: &mut bool) -> Work {
        let mut work = 0;
        while let Some(queued) = self.core.peers[rank].backlog.first_send() {
            let launch = match queued {
                // It was given up, and its place may be another one's.
                Queued::Send(id) if self.core.requests.get(id).is_none() => {
                    self.core.peers[rank].backlog.pop_send();
                    continue;
                }
                Queued::Send(id) => self.launch(rank, id),
                Queued::Data(data) => self.launch_data(rank, data),
            };
            if launch == Launch::Full || launch == Launch::NoCredit {
                *again |= launch == Launch::Full;
                return work;
            }
            self.core.peers[rank].backlog.pop_send();
            work += 1;
            if let (Queued::Send(id), Launch::Complete) = (queued, launch) {
                self.core.finish(id.index(), Outcome::Ok);
            }
        }
        self.core.reopen(rank);
        work
    }
}
