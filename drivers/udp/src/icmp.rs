//! ICMP "port unreachable" errors: hints that a peer has ended, reported as an event when they persist.
//!
//! A router, or anyone who guesses ports, can send such an error, so a single one means nothing. Three of
//! them over 20 ms with no frame of the peer in between are reported as [`EventKind::PeerDown`]; a later
//! frame of the peer as [`EventKind::PeerUp`]. The rail goes on sending to the peer; the layers above decide.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::time::Time;

/// How many errors, and over how long, before they are reported.
const REFUSALS: u32 = 3;
const LASTING: Duration = Duration::from_millis(20);

struct Suspect {
    peer: u32,
    first: Time,
    last: Time,
    refusals: u32,
    reported: bool,
}

/// Peers that answered with ICMP errors and have sent nothing since.
#[derive(Default)]
pub(crate) struct UnreachablePeers {
    suspects: Vec<Suspect>,
}

impl UnreachablePeers {
    /// Whether there are any.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Records an ICMP error of `peer`. Returns whether it is its first.
    pub(crate) fn refused(&mut self, peer: u32, now: Time) -> bool {
        if let Some(suspect) = self.suspects.iter_mut().find(|suspect| suspect.peer == peer) {
            suspect.refusals += 1;
            suspect.last = now;
            return false;
        }
        self.suspects.push(Suspect {
            peer,
            first: now,
            last: now,
            refusals: 1,
            reported: false,
        });
        true
    }

    /// Forgets a peer.
    pub(crate) fn forget(&mut self, peer: u32) {
        self.suspects.retain(|suspect| suspect.peer != peer);
    }

    /// Emits events about peers whose errors persist, and removes peers that have sent something.
    pub(crate) fn update(
        &mut self,
        mut heard: impl FnMut(u32) -> bool,
        mut emit: impl FnMut(u32, EventKind),
    ) {
        self.suspects.retain_mut(|suspect| {
            if heard(suspect.peer) {
                if suspect.reported {
                    emit(suspect.peer, EventKind::PeerUp);
                }
                return false;
            }
            if !suspect.reported
                && suspect.refusals >= REFUSALS
                && suspect.last.since(suspect.first) >= LASTING
            {
                suspect.reported = true;
                emit(suspect.peer, EventKind::PeerDown(DownReason::Died));
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_that_last_are_reported_and_a_frame_clears_them() {
        let mut unreachable = UnreachablePeers::default();
        let ms = |ms: u64| Time::from_nanos(ms * 1_000_000);
        let mut told = Vec::new();
        let mut at = |unreachable: &mut UnreachablePeers, now, heard: bool| {
            unreachable.update(|_| heard, |peer, kind| told.push((now, peer, kind)));
        };
        assert!(unreachable.refused(4, ms(0)));
        for now in 1..5 {
            assert!(!unreachable.refused(4, ms(now)));
            at(&mut unreachable, now, false);
        }
        at(&mut unreachable, 6, true);
        assert!(!unreachable.any());
        unreachable.refused(4, ms(10));
        unreachable.refused(4, ms(31));
        at(&mut unreachable, 31, false);
        unreachable.refused(4, ms(32));
        at(&mut unreachable, 32, false);
        at(&mut unreachable, 33, false);
        at(&mut unreachable, 40, true);
        let down = EventKind::PeerDown(DownReason::Died);
        assert_eq!(told, [(32, 4, down), (40, 4, EventKind::PeerUp)]);
    }
}
