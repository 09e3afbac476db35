//! A way: a peer over one rail, with its state.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, Life};
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::time::Time;
use doorbell_paths::state::TRANSITIONS;
use doorbell_paths::table::next;
use doorbell_paths::{PathEvent, PathState};

use super::flight::Flight;

/// The first back-off before a way that broke is called, and the longest.
pub(crate) const BACK_OFF: Duration = Duration::from_millis(50);
pub(crate) const BACK_OFF_MOST: Duration = Duration::from_secs(1);
/// How long a way that came back has to stay good before it is used; doubled each time that it breaks again within
/// [`CALM`], up to [`HOLD_MOST`].
pub(crate) const HOLD: Duration = Duration::from_millis(500);
const HOLD_MOST: Duration = Duration::from_secs(2);
const CALM: Duration = Duration::from_secs(20);

/// Why a way, or with the last of them a peer, is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Our link.
    Link,
    /// Our device.
    Device,
    /// What a rail said of the peer.
    Peer(DownReason),
    /// A rail that gives nothing back had messages under way: they cannot be told from those that arrived.
    NotReclaimable,
}

impl Why {
    /// Whether what broke for this reason does not come back.
    pub(crate) fn is_for_good(self) -> bool {
        match self {
            Self::Device => true,
            Self::Link | Self::NotReclaimable => false,
            Self::Peer(reason) => matches!(
                reason,
                DownReason::Closed | DownReason::Died | DownReason::Hostile | DownReason::Control
            ),
        }
    }

    /// Whether a peer whose last way broke for this reason may be heard of again; `more`: not all of its ways are gone for
    /// good. What is said of the process is said of all of them.
    pub(crate) fn leaves_hope(self, more: bool) -> bool {
        let ended = matches!(
            self,
            Self::Peer(DownReason::Closed | DownReason::Died | DownReason::Control) | Self::NotReclaimable
        );
        more && !ended
    }

    /// As the layer above is told. Whose fault is this process's own is as if given up: both processes live.
    pub(crate) fn reason(self) -> DownReason {
        match self {
            Self::Peer(reason) => reason,
            Self::Link | Self::Device | Self::NotReclaimable => DownReason::Abandoned,
        }
    }
}

/// One way of a peer.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) rail: u16,
    pub(crate) index: PeerIndex,
    pub(crate) state: PathState,
    pub(crate) flight: Flight,
    /// The last connection that was up, as its rail numbers them, which is the same at the other end.
    pub(crate) life: Life,
    /// Since when it is in this state; when something is to be done about it.
    pub(crate) since: Time,
    pub(crate) due: Time,
    /// How long to wait before the next call, and how long it has to stay good before it is used again.
    pub(crate) back_off: Duration,
    pub(crate) hold: Duration,
    fell: Option<Time>,
    /// It does not come back.
    pub(crate) dead: bool,
    /// Whether anything ever proved that it works in both directions.
    pub(crate) met: bool,
    /// When the probe under way left, when the last one did, its number, and how many were answered in this state.
    pub(crate) asked: Option<Time>,
    pub(crate) probed: Time,
    pub(crate) number: u32,
    pub(crate) answers: u32,
    /// When the peer last answered a probe over it.
    pub(crate) heard: Time,
    /// What arrived: a probe of the peer to be answered, and the answer to ours.
    pub(crate) to_answer: Option<u32>,
    pub(crate) answered: Option<u32>,
    /// The peer gave this connection up: that of now, or one that has not come up at this end.
    given_up: Option<Life>,
}

impl Way {
    pub(crate) fn new(rail: u16, index: PeerIndex) -> Self {
        Self {
            rail,
            index,
            state: PathState::Up,
            flight: Flight::default(),
            life: Life::FIRST,
            since: Time::ZERO,
            due: Time::ZERO,
            back_off: BACK_OFF,
            hold: HOLD,
            fell: None,
            dead: false,
            met: false,
            asked: None,
            probed: Time::ZERO,
            number: 0,
            answers: 0,
            heard: Time::ZERO,
            to_answer: None,
            answered: None,
            given_up: None,
        }
    }

    /// Moves on, if the table says so. Whether it did.
    pub(crate) fn turn(&mut self, now: Time, event: PathEvent) -> bool {
        let Some(to) = next(TRANSITIONS, self.state, event) else {
            return false;
        };
        match (self.state, to) {
            (PathState::Probing, PathState::Down) => self.back_off = (self.back_off * 2).min(BACK_OFF_MOST),
            (_, PathState::Down) => self.fall(now),
            _ => {}
        }
        (self.state, self.since) = (to, now);
        (self.asked, self.answers, self.answered) = (None, 0, None);
        self.due = if to == PathState::Down {
            now + self.back_off
        } else {
            now
        };
        true
    }

    /// It breaks while it was good: how soon it is called, and for how long it has to stay good.
    fn fall(&mut self, now: Time) {
        let calm = self.fell.is_none_or(|fell| now.since(fell) > CALM);
        self.hold = if calm {
            HOLD
        } else {
            (self.hold * 2).clamp(HOLD, HOLD_MOST)
        };
        self.back_off = BACK_OFF;
        self.fell = Some(now);
        self.to_answer = None;
        self.forget_given_up();
    }

    /// The peer says that it gave a connection up. `false` when it is late: there has been another one since.
    pub(crate) fn hear_broken(&mut self, life: Life) -> bool {
        if life.is_before(self.life) {
            return false;
        }
        if self.given_up.is_none_or(|known| known.is_before(life)) {
            self.given_up = Some(life);
        }
        true
    }

    /// Whether the peer gave the connection of now up, which is news. Word of one that has not come up here yet is kept
    /// until it does.
    pub(crate) fn is_given_up(&mut self) -> bool {
        let Some(life) = self.given_up else {
            return false;
        };
        if life.is_before(self.life) {
            // Another one came up between the word and this look.
            self.given_up = None;
            return false;
        }
        let stands = !matches!(self.state, PathState::Down | PathState::Probing);
        if stands {
            self.given_up = None;
        } else {
            self.forget_given_up();
        }
        stands
    }

    /// The connection of now is over: of what the peer said it gave up, only a later one is news.
    fn forget_given_up(&mut self) {
        self.given_up = self.given_up.filter(|life| self.life.is_before(*life));
    }

    /// Whether time has nothing to do for it.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state == PathState::Up
            && self.to_answer.is_none()
            && self.answered.is_none()
            && self.given_up.is_none()
            || self.dead && self.state == PathState::Down
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_breaks_again_and_again_has_to_prove_itself_for_longer() {
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let mut way = Way::new(0, PeerIndex(0));
        let mut holds = Vec::new();
        for round in 0..4 {
            assert!(way.turn(at(round * 1000), PathEvent::Broken));
            holds.push(way.hold.as_millis());
            assert!(way.turn(at(round * 1000 + 100), PathEvent::Reached));
            assert!(way.turn(at(round * 1000 + 600), PathEvent::Steady));
        }
        assert_eq!(holds, [500, 1000, 2000, 2000]);
        assert!(way.turn(at(60_000), PathEvent::Broken));
        assert_eq!(way.hold, HOLD);
    }

    #[test]
    fn calls_back_off_and_begin_anew_with_the_next_fall() {
        let now = Time::ZERO;
        let mut way = Way::new(0, PeerIndex(0));
        way.turn(now, PathEvent::Broken);
        let mut waits = Vec::new();
        for _ in 0..6 {
            waits.push(way.due.since(now).as_millis());
            assert!(way.turn(now, PathEvent::Called) && way.turn(now, PathEvent::Unanswered));
        }
        assert_eq!(waits, [50, 100, 200, 400, 800, 1000]);
        assert!(way.turn(now, PathEvent::Reached) && way.turn(now, PathEvent::Broken));
        assert_eq!(way.due.since(now), BACK_OFF);
    }

    #[test]
    fn late_word_of_an_earlier_connection_breaks_nothing() {
        let mut way = Way::new(0, PeerIndex(0));
        assert!(way.hear_broken(Life(0)) && way.is_given_up() && !way.is_given_up());
        way.turn(Time::ZERO, PathEvent::Broken);
        // Of one that is still to come up here.
        assert!(way.hear_broken(Life(2)) && !way.is_given_up());
        way.life = Life(2);
        way.turn(Time::ZERO, PathEvent::Reached);
        assert!(way.is_given_up());
        way.life = Life(4);
        assert!(!way.hear_broken(Life(3)) && !way.is_given_up());
    }
}
