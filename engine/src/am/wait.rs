//! How calls of the conduit wait, and what becomes of its errors.

use std::thread;
use std::time::Duration;

use doorbell_am::{AmError, BootError, Stall, Wait};
use doorbell_fabric::time::Time;

use crate::error::{Awaited, Error};
use crate::progress::{Clock, Turn, Waiter};
use crate::station::{Driven, LostRank, Station};

/// A call cannot sleep on descriptors that the conduit owns meanwhile: it looks again after this time.
const NAP: Duration = Duration::from_micros(50);

/// The wait of one call.
pub(super) struct Patient<'a> {
    waiter: Waiter<'a>,
    clock: &'a Clock,
}

impl<'a> Patient<'a> {
    #[inline]
    pub(super) fn new(clock: &'a Clock, station: &Station) -> Self {
        Self {
            waiter: Waiter::new(clock, station.patience, station.limit, Duration::MAX),
            clock,
        }
    }

    pub(super) fn waited(&self) -> Duration {
        self.waiter.waited(self.clock.now())
    }
}

impl Wait for Patient<'_> {
    fn wait(&mut self, _: Stall) -> Option<Time> {
        match self.waiter.turn(false) {
            Turn::Again => Some(self.clock.now()),
            Turn::Housekeep(now) | Turn::Quiet(now) => Some(now),
            Turn::Yield(now) => {
                thread::yield_now();
                Some(now)
            }
            Turn::Sleep(now, _) => {
                if matches!(self.clock, Clock::Machine(_)) {
                    thread::sleep(NAP);
                }
                Some(now)
            }
            Turn::Expired(_) => None,
        }
    }
}

/// What a call waited for.
pub(super) fn at_call(stall: Stall) -> Awaited {
    let what = match stall {
        Stall::Credits => "credits of the rank that its message goes to",
        _ => "tickets, chunks or descriptors of its conduit",
    };
    Awaited::Interface { what }
}

/// An error of the conduit, with what is known about a rank that is lost.
pub(super) fn told<D: Driven>(station: &Station, driven: &D, error: AmError) -> Error {
    match error {
        AmError::PeerLost { rank, reason } | AmError::Boot(BootError::Lost { rank, reason }) => {
            station.peer_lost(driven, LostRank { rank, reason })
        }
        error => error.into(),
    }
}
