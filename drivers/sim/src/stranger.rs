//! Senders that a NIC has not opened, reported to its owner as rails of every kind do.
//!
//! The messages themselves wait elsewhere (module `conn`). A sender that continues to send is reported again,
//! as by rails where it has to call again, so that an owner that ignores a report is found out.

use std::collections::BTreeMap;
use std::time::Duration;

use doorbell_fabric::message::{Caller, Incarnation};
use doorbell_fabric::time::Time;

use crate::state::Net;

/// Time for which a sender that was reported is not reported again.
const PAUSE: Duration = Duration::from_millis(20);

/// Senders that are not open here, by their NICs.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    /// The time from which each sender is reported again.
    known: BTreeMap<u32, Time>,
    /// Senders to be reported, the oldest first.
    untold: Vec<u32>,
}

impl Strangers {
    /// A message of `nic` has come.
    pub(crate) fn note(&mut self, nic: u32, now: Time) {
        let again = self.known.entry(nic).or_insert(now);
        if now >= *again && !self.untold.contains(&nic) {
            *again = now + PAUSE;
            self.untold.push(nic);
        }
    }

    /// `nic` is open from here on.
    pub(crate) fn forget(&mut self, nic: u32) {
        self.known.remove(&nic);
        self.untold.retain(|one| *one != nic);
    }
}

impl Net {
    /// Something of `from` has reached `nic`: a call, when it is not open there.
    pub(crate) fn note_sender(&mut self, nic: u32, from: u32) {
        if !self.knows(nic, from) {
            let receiver = &mut self.nics[nic as usize];
            receiver.unknown.note(from, self.now);
        }
    }

    /// The next sender that the owner of `nic` has not opened, and that was not reported recently.
    pub(crate) fn stranger(&mut self, nic: u32) -> Option<Caller> {
        let untold = &mut self.nics[nic as usize].unknown.untold;
        if untold.is_empty() {
            return None;
        }
        let from = untold.remove(0);
        let from = &self.nics[from as usize];
        Some(name(
            from.plane,
            from.rank,
            self.lives[from.life as usize].incarnation,
        ))
    }
}

/// Returns the name of a NIC. All NICs of one life share its incarnation; each has a plane of its own.
pub(crate) fn name(plane: u32, rank: u32, life: Incarnation) -> Caller {
    let place = u64::from(plane) << 32 | u64::from(rank);
    Caller(u128::from(place) << 64 | u128::from(life.0))
}
