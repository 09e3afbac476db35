//! One path: its state, its connections, back-off and hold.

use std::time::Duration;

use doorbell_fabric::event::Life;
use doorbell_fabric::time::Time;

use crate::probe::{PROOFS, Probes};
use crate::state::{PathEvent, PathState, TRANSITIONS};
use crate::table::next;

/// The first back-off before a path that broke is called, and the longest.
const BACK_OFF: Duration = Duration::from_millis(50);
const BACK_OFF_MOST: Duration = Duration::from_secs(1);
/// How long a path that came back has to stay good before it is used; doubled each time that it breaks again
/// within [`CALM`], up to [`HOLD_MOST`]: with the longest back-off and a second or two of a loaded host, it
/// carries its share within five seconds of its link's return (`cargo xtask rails`).
const HOLD: Duration = Duration::from_millis(500);
const HOLD_MOST: Duration = Duration::from_secs(2);
const CALM: Duration = Duration::from_secs(20);

/// What becomes of the peer's word that it gave a connection up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// There is none, or it is of a connection that has not come up here yet: it is kept until then.
    Nothing,
    /// It is late: another connection came up meanwhile.
    Late,
    /// The connection of now is given up.
    Now,
}

/// One path of a peer.
#[derive(Debug)]
pub(crate) struct Path {
    state: PathState,
    /// The last connection that was up, as its rail numbers them: the same number at the other end.
    life: Life,
    /// Since when it is in this state; when something is to be done about it.
    since: Time,
    due: Time,
    /// How long to wait before the next call, and how long it has to stay good before it is used again.
    back_off: Duration,
    hold: Duration,
    /// When it last broke.
    broke: Option<Time>,
    /// It does not come back.
    dead: bool,
    pub(crate) probes: Probes,
    /// The peer gave this connection up: that of now, or one that has not come up at this end.
    given_up: Option<Life>,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            state: PathState::Up,
            life: Life::FIRST,
            since: Time::ZERO,
            due: Time::ZERO,
            back_off: BACK_OFF,
            hold: HOLD,
            broke: None,
            dead: false,
            probes: Probes::default(),
            given_up: None,
        }
    }
}

impl Path {
    pub(crate) fn state(&self) -> PathState {
        self.state
    }

    pub(crate) fn life(&self) -> Life {
        self.life
    }

    pub(crate) fn since(&self) -> Time {
        self.since
    }

    pub(crate) fn due(&self) -> Time {
        self.due
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }

    /// It does not come back. Returns whether that is new.
    pub(crate) fn mark_dead(&mut self) -> bool {
        !std::mem::replace(&mut self.dead, true)
    }

    /// A connection came up.
    pub(crate) fn begin(&mut self, life: Life) {
        self.life = life;
    }

    /// Something is to be done about it then.
    pub(crate) fn wake_at(&mut self, due: Time) {
        self.due = due;
    }

    /// Its link is back: the back-off starts again.
    pub(crate) fn hurry(&mut self) {
        self.back_off = BACK_OFF;
    }

    /// Returns when a returning path has stayed good for long enough, and how far apart its probes are
    /// meanwhile.
    pub(crate) fn returns(&self) -> (Time, Duration) {
        (self.since + self.hold, self.hold / (PROOFS + 1))
    }

    /// Moves on, if the table has the transition. Returns the state that was left.
    pub(crate) fn turn(&mut self, now: Time, event: PathEvent) -> Option<PathState> {
        let (from, to) = (self.state, next(TRANSITIONS, self.state, event)?);
        match (from, to) {
            (PathState::Probing, PathState::Down) => {
                self.back_off = (self.back_off * 2).min(BACK_OFF_MOST);
            }
            (_, PathState::Down) => self.fall(now),
            _ => {}
        }
        (self.state, self.since) = (to, now);
        self.probes.restart();
        self.due = if to == PathState::Down {
            now + self.back_off
        } else {
            now
        };
        Some(from)
    }

    /// It breaks while it was good: how soon it is called, and how long it has to stay good afterwards.
    fn fall(&mut self, now: Time) {
        let calm = self.broke.is_none_or(|broke| now.since(broke) > CALM);
        self.hold = if calm {
            HOLD
        } else {
            (self.hold * 2).clamp(HOLD, HOLD_MOST)
        };
        self.back_off = BACK_OFF;
        self.broke = Some(now);
        self.probes.forget_question();
        self.forget_given_up();
    }

    /// The peer reports that it gave a connection up. `false` when the word is late: there has been another
    /// one since.
    pub(crate) fn note_given_up(&mut self, life: Life) -> bool {
        if life.is_before(self.life) {
            return false;
        }
        if self.given_up.is_none_or(|known| known.is_before(life)) {
            self.given_up = Some(life);
        }
        true
    }

    /// Looks at the peer's word that it gave a connection up.
    pub(crate) fn take_given_up(&mut self) -> GivenUp {
        let Some(life) = self.given_up else {
            return GivenUp::Nothing;
        };
        if life.is_before(self.life) {
            self.given_up = None;
            return GivenUp::Late;
        }
        if matches!(self.state, PathState::Down | PathState::Probing) {
            self.forget_given_up();
            return GivenUp::Nothing;
        }
        self.given_up = None;
        GivenUp::Now
    }

    /// The connection of now is over: of what the peer gave up, only a later one matters.
    fn forget_given_up(&mut self) {
        self.given_up = self.given_up.filter(|life| self.life.is_before(*life));
    }

    /// Whether time does nothing to it.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state == PathState::Up && self.probes.is_quiet() && self.given_up.is_none()
            || self.dead && self.state == PathState::Down
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_breaks_again_and_again_has_to_prove_itself_for_longer() {
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let mut path = Path::default();
        let mut holds = Vec::new();
        for round in 0..4 {
            assert!(path.turn(at(round * 1000), PathEvent::Broken).is_some());
            holds.push(path.hold.as_millis());
            assert!(path.turn(at(round * 1000 + 100), PathEvent::Reached).is_some());
            assert!(path.turn(at(round * 1000 + 600), PathEvent::Steady).is_some());
        }
        assert_eq!(holds, [500, 1000, 2000, 2000]);
        assert!(path.turn(at(60_000), PathEvent::Broken).is_some());
        assert_eq!(path.hold, HOLD);
    }

    #[test]
    fn calls_back_off_and_begin_anew_when_it_breaks_the_next_time() {
        let now = Time::ZERO;
        let mut path = Path::default();
        path.turn(now, PathEvent::Broken);
        let mut waits = Vec::new();
        for _ in 0..6 {
            waits.push(path.due.since(now).as_millis());
            path.turn(now, PathEvent::Called).expect("it is down");
            path.turn(now, PathEvent::Unanswered).expect("it is called");
        }
        assert_eq!(waits, [50, 100, 200, 400, 800, 1000]);
        path.turn(now, PathEvent::Reached).expect("it is down");
        path.turn(now, PathEvent::Broken).expect("it returns");
        assert_eq!(path.due.since(now), BACK_OFF);
    }

    #[test]
    fn a_late_word_about_an_earlier_connection_breaks_nothing() {
        let mut path = Path::default();
        assert!(path.note_given_up(Life(0)));
        assert_eq!(path.take_given_up(), GivenUp::Now);
        assert_eq!(path.take_given_up(), GivenUp::Nothing);
        path.turn(Time::ZERO, PathEvent::Broken);
        // Of one that has not come up here yet.
        assert!(path.note_given_up(Life(2)));
        assert_eq!(path.take_given_up(), GivenUp::Nothing);
        path.begin(Life(2));
        path.turn(Time::ZERO, PathEvent::Reached);
        assert_eq!(path.take_given_up(), GivenUp::Now);
        assert!(path.note_given_up(Life(3)));
        path.begin(Life(4));
        assert_eq!(path.take_given_up(), GivenUp::Late);
        assert!(!path.note_given_up(Life(3)));
    }

    #[test]
    fn a_question_that_came_before_the_path_broke_is_not_answered_after_its_return() {
        let mut path = Path::default();
        path.probes.question(7);
        path.turn(Time::ZERO, PathEvent::Broken);
        assert_eq!(path.probes.take_question(), None);
    }
}
