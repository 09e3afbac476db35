//! Peers that are connected when they are needed, and not all at the start
//! ([`PmlConfig::lazy`](crate::PmlConfig::lazy)).
//!
//! ```text
//!   send to 7, or receive from 7   the owner                         rank 7
//!     waits, and 7 is wanted  ──►    looks up where 7 is
//!                                    connect(7, …)  ─── opened ───►
//!     is sent                 ◄──                                      a stranger calls: connect(…)
//! ```
//!
//! Nothing of this is on the way of a message to a peer that was connected: to one that was not, the fast
//! paths are closed.

use doorbell_fabric::message::Message;

use crate::core::Core;
use crate::error::LostReason;
use crate::hot::about;
use crate::pml::Pml;
use crate::rank::Rank;

/// Ranks that no rail is opened to.
#[derive(Debug)]
pub(crate) struct LazyPeers {
    /// Those that are wanted and were not reported to the owner.
    unreported: Vec<Rank>,
    /// All that are wanted and were not connected.
    pending: Vec<Rank>,
    /// Some ranks cannot be reached: they are lost, or were not connected yet.
    any_apart: bool,
}

impl LazyPeers {
    /// No rank is wanted; `any_apart`, where ranks are connected when they are needed.
    pub(crate) const fn new(any_apart: bool) -> Self {
        Self {
            unreported: Vec::new(),
            pending: Vec::new(),
            any_apart,
        }
    }

    /// Whether some ranks cannot be reached: they are lost, or were not connected yet.
    #[inline(always)]
    pub(crate) fn any_apart(&self) -> bool {
        self.any_apart
    }

    /// A rank is lost.
    pub(crate) fn set_apart(&mut self) {
        self.any_apart = true;
    }

    /// A rank is wanted.
    fn want(&mut self, rank: Rank) {
        self.unreported.push(rank);
        self.pending.push(rank);
    }

    /// Takes a rank that is to be reported to the owner.
    #[inline]
    fn next_wanted(&mut self) -> Option<Rank> {
        self.unreported.pop()
    }

    /// A rank is not wanted any more.
    fn forget(&mut self, rank: Rank) {
        self.unreported.retain(|other| *other != rank);
        self.pending.retain(|other| *other != rank);
    }

    /// All ranks that are wanted and were not connected.
    fn pending(&self) -> impl Iterator<Item = Rank> {
        self.pending.iter().copied()
    }
}

impl<M: Message> Pml<M> {
    /// The next rank for which something waits and to which no rail is opened: the owner finds out where it
    /// is, and calls [`Pml::connect`], or [`Pml::not_met`] when it cannot. Each is returned once.
    #[inline]
    pub fn wanted(&mut self) -> Option<Rank> {
        self.core.lazy.next_wanted()
    }

    /// Whether no rail was opened yet to a rank of the job that is connected only when it is needed.
    #[must_use]
    pub fn is_unmet(&self, rank: Rank) -> bool {
        let hot = self.core.hot.get(rank);
        hot.is_some_and(|hot| hot.is(about::UNMET) && !hot.is(about::LOST))
    }

    /// Whether something waits for a rank that is to be connected.
    #[must_use]
    pub fn is_wanted(&self, rank: Rank) -> bool {
        let hot = self.core.hot.get(rank);
        hot.is_some_and(|hot| hot.is(about::WANTED))
    }

    /// Whether sends that were accepted wait for their ranks to be connected.
    #[must_use]
    pub fn has_unmet_sends(&self) -> bool {
        self.core.waits_for_a_meeting()
    }

    /// The caller needs a rank for something of its own, as if something were to be sent to it.
    #[cold]
    pub fn want(&mut self, rank: Rank) {
        if self.core.hot.get(rank).is_some() {
            self.core.want(rank);
        }
    }

    /// A rank cannot be connected, or not over all of the rails that both ends count on: what waits for it
    /// ends with [`LostReason::Unmet`], and so does what needs it from now on.
    #[cold]
    pub fn not_met(&mut self, rank: Rank) {
        if self.core.hot.get(rank).is_some() && rank != self.core.config.rank {
            self.core.fail_peer(rank, LostReason::Unmet);
            self.apply_withdrawals();
        }
    }
}

impl Core {
    /// Something waits for a rank, which is wanted if it was not connected.
    #[inline]
    pub(crate) fn want(&mut self, rank: Rank) {
        let hot = &mut self.hot[rank];
        if hot.is(about::UNMET) && !hot.is(about::WANTED | about::LOST) {
            hot.set(about::WANTED);
            self.lazy.want(rank);
        }
    }

    /// A rail leads to a rank now: what waited for it can be sent.
    pub(crate) fn met(&mut self, rank: Rank) {
        if self.hot[rank].is(about::UNMET) {
            self.no_more_meeting(rank);
            self.list(rank);
        }
    }

    /// A rank was connected, or never will be.
    pub(crate) fn no_more_meeting(&mut self, rank: Rank) {
        self.hot[rank].clear(about::UNMET | about::WANTED);
        self.lazy.forget(rank);
    }

    /// Whether something that was accepted waits for a rank to be connected.
    pub(crate) fn waits_for_a_meeting(&self) -> bool {
        let waits = |rank: Rank| self.peers[rank].backlog.has_sends();
        self.lazy.pending().any(waits)
    }
}
