//! What a job of many rails needs of an end beside what every player does: a PML has it, and a domain of the
//! libfabric provider.

use std::time::Duration;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::time::Time;
use doorbell_job::rails::AnyRail;
use doorbell_pml::{Pml, Rank};

use crate::end::End;
use crate::failure::Kind;

/// An end of a job of many rails.
pub(crate) trait Seat: End + Sized {
    /// What it does beside the plan.
    type Aside: Beside<Self>;

    /// Returns the PML that it stands on, to be looked at.
    fn pml(&self) -> &Pml<AnyRail>;

    /// The number by which the PML knows a rank.
    fn number(&self, rank: u32) -> Rank {
        Rank(rank)
    }

    /// Checks that it has as many requests open as its owner counts.
    fn check(&self, open: usize) -> Result<(), String>;

    /// Another rank has died, as a job's control plane reports it.
    fn peer_died(&mut self, now: Time, rank: u32);

    /// It dies itself: from now on it is not used.
    fn die(&mut self) {}
}

/// Messages beside the plan, and what is done with them.
pub(crate) trait Beside<E>: Sized {
    /// For a rank of a job that lasts about so long; `None` for a seed that has nothing beside its plan.
    fn of(seed: u64, rank: u32, ranks: u32, lasts: Duration) -> Option<Self>;

    /// Sends now and then, and takes what came in one way or another.
    fn step(&mut self, end: &mut E, now: Time) -> Result<(), Kind>;

    /// The plan is done: nothing is sent any more, and what is there is thrown away.
    fn clear_up(&mut self, end: &mut E) -> Result<(), Kind>;

    /// Requests that are open and not aborted.
    fn open(&self) -> usize;

    /// Bytes that were sent.
    fn bytes(&self) -> u64;

    /// Returns what was sent, by one to another of which both live, and has not come; where that is counted.
    fn missing(_: &[Option<Self>], _: &dyn Fn(u32, u32) -> bool) -> Option<String> {
        None
    }
}

impl Seat for Pml<AnyRail> {
    type Aside = super::aside::Aside;

    fn pml(&self) -> &Self {
        self
    }

    fn check(&self, open: usize) -> Result<(), String> {
        let used = self.in_use();
        match used.requests == open {
            true => Ok(()),
            false => Err(format!("has {open} requests open, and {used:?}")),
        }
    }

    fn peer_died(&mut self, now: Time, rank: u32) {
        self.peer_ended(now, Rank(rank), DownReason::Died);
    }
}
