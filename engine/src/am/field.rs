//! The conduit of this rank with the node below it, and its state before all ranks have attached.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;

use doorbell_am::{AmError, Attaching, Conduit};
use doorbell_am_portals::{Interface, Node};
use doorbell_fabric::event::DownReason;
use doorbell_fabric::ni::{Ni, Process};
use doorbell_fabric::time::Time;
use doorbell_job::binding::Binding;
use doorbell_job::connect::PeerPath;
use doorbell_job::counter_file::CounterPublisher;
use doorbell_job::error::Error;
use doorbell_job::handle::Job;
use doorbell_job::rails::AnyRail;
use doorbell_job::wait::PollableNode;
use rustix::fd::BorrowedFd;

use super::clients::Counter;
use crate::portals::{AboveNode, Ranks, is_cut_off, recorded, troubles};
use crate::shared_node::{Beside, Hold};

/// The interface below a conduit.
pub(super) type Below = Interface<AnyRail>;

/// Arrivals handled in one pass, at most.
const BUDGET: usize = 64;

/// A conduit, its ranks, and the paths to them.
pub(super) struct Field {
    pub(super) conduit: Conduit<Below>,
    pub(super) ranks: Arc<Ranks>,
    pub(super) paths: Vec<Vec<PeerPath>>,
    /// Whether handlers run on the progress thread, too.
    pub(super) handles_beside: bool,
    /// The number of the conduit's losses that were reported.
    pub(super) reported: usize,
    /// The mailbox of other threads' operations.
    pub(super) counter: Option<Counter>,
    /// The counter file, for other programs.
    pub(super) seen: Option<CounterPublisher>,
}

impl Field {
    pub(super) fn node(&self) -> &Node<AnyRail> {
        self.conduit.ni().node()
    }

    /// Creates the counter file, unless the settings have none, and returns its place.
    pub(super) fn publish(&mut self, job: &Job, binding: Option<&Binding>) -> Result<Option<PathBuf>, Error> {
        let place = *job.config().counters.place.get();
        self.seen = CounterPublisher::create(place, job.rank(), self, &self.paths, job.directory())?;
        if let (Some(seen), Some(binding)) = (&self.seen, binding) {
            seen.show_binding(binding)?;
        }
        Ok(self.seen.as_ref().map(|seen| seen.path().to_owned()))
    }

    /// Stores the totals into the counter file, if that is due.
    fn show_if_due(&mut self, now: Time) {
        if self.seen.as_mut().is_some_and(|seen| seen.is_due(now)) {
            self.show();
        }
    }

    /// Stores the totals into the counter file.
    fn show(&self) {
        if let Some(seen) = &self.seen {
            seen.store(self);
        }
    }

    /// The error that ends all waits, besides losses.
    #[inline]
    pub(super) fn trouble_now(&self) -> Option<AmError> {
        if let Err(error) = self.conduit.health() {
            return Some(error);
        }
        match self.conduit.leaving() {
            doorbell_am::Leaving::No => None,
            doorbell_am::Leaving::Underway { code, by } => Some(AmError::ShuttingDown { code, by }),
            doorbell_am::Leaving::Over(Ok(code)) => Some(AmError::ShuttingDown {
                code,
                by: self.conduit.rank(),
            }),
            doorbell_am::Leaving::Over(Err(unclean)) => Some(unclean.into()),
        }
    }
}

impl PollableNode for Field {
    #[inline]
    fn poll(&mut self) -> usize {
        let work = self.conduit.poll();
        match &mut self.counter {
            None => work,
            Some(counter) => {
                let served = counter.serve(&mut self.conduit);
                if counter.is_abandoned() {
                    self.counter = None;
                }
                work + served
            }
        }
    }

    #[inline]
    fn linger(&mut self, looks: u32) -> bool {
        self.conduit.linger(looks)
    }

    fn progress(&mut self, now: Time) -> usize {
        self.show_if_due(now);
        self.conduit.progress(now)
    }

    #[inline]
    fn wants_time(&self) -> bool {
        self.node().wants_time()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.conduit.next_deadline()
    }

    fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        self.show();
        self.conduit.flush();
        let calls = self.counter.as_ref().is_some_and(|counter| counter.arm(each));
        self.conduit.arm(each) || calls
    }

    fn disarm(&mut self) {
        self.conduit.disarm();
        if let Some(counter) = &self.counter {
            counter.disarm();
        }
    }

    fn lost(&mut self) -> Option<(u32, DownReason)> {
        let lost = self.conduit.lost().get(self.reported).copied()?;
        self.reported += 1;
        Some(lost)
    }

    fn ended(&mut self, rank: u32, reason: DownReason) {
        if let Some(process) = self.ranks.process(rank) {
            self.conduit.ni_mut().node_mut().ended(process, reason);
        }
    }

    #[inline]
    fn flush(&mut self) {
        self.conduit.flush();
    }

    #[inline]
    fn forget_held(&mut self) {
        self.conduit.ni_mut().node_mut().forget_held();
    }

    fn give_up_held(&mut self) {
        self.conduit.ni_mut().node_mut().give_up_held();
    }

    #[inline]
    fn holds_back(&mut self) -> bool {
        self.conduit.ni_mut().node_mut().holds_back()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        // Messages that a call has reported as sent count as accepted, even if the rails had no room for
        // them.
        if !self.conduit.drain(now) && now < by {
            return false;
        }
        let closed = self.conduit.ni_mut().node_mut().close(now, by);
        self.show();
        closed
    }

    fn troubles(&self) -> Vec<String> {
        troubles(self.node(), &self.paths, &self.ranks)
    }

    fn is_cut_off(&self) -> bool {
        is_cut_off(self.node(), &self.paths)
    }

    fn recorded(&self, rank: u32) -> Vec<String> {
        recorded(self.node(), &self.paths, rank)
    }
}

/// With `am.handlers = owner`, the progress thread runs no handler, and so serves no clients either: a
/// request to the own rank is handled where it is sent.
impl Beside for Field {
    fn poll_beside(&mut self) -> usize {
        match self.handles_beside {
            true => self.poll(),
            false => self.conduit.poll_data(),
        }
    }

    fn progress_beside(&mut self, now: Time) -> usize {
        if self.handles_beside {
            return self.progress(now);
        }
        self.show_if_due(now);
        self.conduit.progress_data(now)
    }

    fn arm_beside(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        if self.handles_beside {
            return self.arm(each);
        }
        self.show();
        self.conduit.flush();
        self.conduit.arm_data(each)
    }
}

/// The conduit itself, held for one call.
pub(super) struct ConduitHold<'a>(pub(super) Hold<'a, Field>);

impl Deref for ConduitHold<'_> {
    type Target = Conduit<Below>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0.conduit
    }
}

impl DerefMut for ConduitHold<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0.conduit
    }
}

/// A conduit whose ranks have not all attached yet.
pub(super) struct Gathering {
    pub(super) attaching: Attaching<Below>,
    pub(super) ranks: Arc<Ranks>,
    pub(super) paths: Vec<Vec<PeerPath>>,
}

impl AboveNode for Gathering {
    fn node(&mut self) -> impl DerefMut<Target = Node<AnyRail>> + '_ {
        self.attaching.ni_mut().node_mut()
    }

    fn process(&self, rank: u32) -> Option<Process> {
        self.ranks.process(rank)
    }
}

impl PollableNode for Gathering {
    fn poll(&mut self) -> usize {
        self.node().poll(BUDGET)
    }

    fn progress(&mut self, now: Time) -> usize {
        self.node().progress(now)
    }

    fn wants_time(&self) -> bool {
        // It takes few steps, and each reads the clock.
        true
    }

    fn next_deadline(&self) -> Option<Time> {
        // The node retransmits losses meanwhile.
        self.attaching.ni().node().next_deadline()
    }

    fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        self.node().arm(each)
    }

    fn disarm(&mut self) {
        self.node().disarm();
    }

    fn lost(&mut self) -> Option<(u32, DownReason)> {
        let lost = self.node().ni(crate::portals::INTERNAL).lost()?;
        Some((self.ranks.rank(lost.process)?, lost.reason))
    }

    fn ended(&mut self, rank: u32, reason: DownReason) {
        if let Some(process) = self.ranks.process(rank) {
            self.node().ended(process, reason);
        }
    }

    #[inline]
    fn flush(&mut self) {
        self.node().flush();
    }

    #[inline]
    fn forget_held(&mut self) {
        self.node().forget_held();
    }

    fn give_up_held(&mut self) {
        self.node().give_up_held();
    }

    #[inline]
    fn holds_back(&mut self) -> bool {
        self.node().holds_back()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        self.node().close(now, by)
    }

    fn troubles(&self) -> Vec<String> {
        troubles(self.attaching.ni().node(), &self.paths, &self.ranks)
    }

    fn is_cut_off(&self) -> bool {
        is_cut_off(self.attaching.ni().node(), &self.paths)
    }

    fn recorded(&self, rank: u32) -> Vec<String> {
        recorded(self.attaching.ni().node(), &self.paths, rank)
    }
}
