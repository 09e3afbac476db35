//! "Port unreachable" answers: hints that a peer has ended, told as an event when they last.
//!
//! A router or anybody who guesses ports can send such an answer, so one means nothing. Three of them over 20 ms, and
//! nothing heard from the peer in between, is told as [`EventKind::PeerDown`]; a frame of the peer after that, as
//! [`EventKind::PeerUp`]. The rail itself goes on sending to the peer: what to make of it is for the layers above.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::time::Time;

/// How many refusals, and over how long, before they are told.
const REFUSALS: u32 = 3;
const LASTING: Duration = Duration::from_millis(20);

struct Suspect {
    peer: u32,
    first: Time,
    last: Time,
    refusals: u32,
    told: bool,
}

/// Peers that refused frames and were not heard since.
#[derive(Default)]
pub(crate) struct Hints {
    suspects: Vec<Suspect>,
}

impl Hints {
    /// Whether there is anything to judge.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// `peer` refused a frame. Returns whether it is a new suspect.
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
            told: false,
        });
        true
    }

    /// Tells what is certain enough; forgets whoever was heard.
    pub(crate) fn judge(&mut self, mut heard: impl FnMut(u32) -> bool, mut tell: impl FnMut(u32, EventKind)) {
        self.suspects.retain_mut(|suspect| {
            if heard(suspect.peer) {
                if suspect.told {
                    tell(suspect.peer, EventKind::PeerUp);
                }
                return false;
            }
            if !suspect.told && suspect.refusals >= REFUSALS && suspect.last.since(suspect.first) >= LASTING {
                suspect.told = true;
                tell(suspect.peer, EventKind::PeerDown(DownReason::Died));
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_that_last_are_told_and_a_frame_takes_them_back() {
        let mut hints = Hints::default();
        let ms = |ms: u64| Time::from_nanos(ms * 1_000_000);
        let mut told = Vec::new();
        let mut at = |hints: &mut Hints, now, heard: bool| {
            hints.judge(|_| heard, |peer, kind| told.push((now, peer, kind)));
        };
        assert!(hints.refused(4, ms(0)));
        for now in 1..5 {
            assert!(!hints.refused(4, ms(now)));
            at(&mut hints, now, false);
        }
        at(&mut hints, 6, true);
        assert!(!hints.any());
        hints.refused(4, ms(10));
        hints.refused(4, ms(31));
        at(&mut hints, 31, false);
        hints.refused(4, ms(32));
        at(&mut hints, 32, false);
        at(&mut hints, 33, false);
        at(&mut hints, 40, true);
        let down = EventKind::PeerDown(DownReason::Died);
        assert_eq!(told, [(32, 4, down), (40, 4, EventKind::PeerUp)]);
    }
}
