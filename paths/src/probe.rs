//! Probes of one path: requests that are answered over the same path, for a sign of life, for the proof that
//! a returning path works, and for the round trip.

use std::time::Duration;

use doorbell_fabric::time::Time;

use crate::latency::Latency;

/// How long a call may take; a probe that takes longer is sent again.
pub(crate) const ANSWER: Duration = Duration::from_millis(250);
/// Probes that a returning path has to answer, spread over its hold.
pub(crate) const PROOFS: u32 = 4;

/// The probes of one path.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    /// Whether anything ever proved that the path works in both directions; if not, since when probes try to.
    met: bool,
    unmet: Option<Time>,
    /// When the probe under way left, when the last one was tried, and its number.
    asked: Option<Time>,
    tried: Time,
    number: u32,
    /// Probes answered in the path's present state, and when the last one ever was.
    answers: u32,
    answered_at: Time,
    /// What had been sent and received when the last probe left.
    traffic: u64,
    latency: Latency,
    /// What has arrived: a probe of the peer to be answered, and the answer to ours.
    to_answer: Option<u32>,
    answered: Option<u32>,
}

impl Probes {
    /// Whether anything ever proved that the path works in both directions.
    pub(crate) fn met(&self) -> bool {
        self.met
    }

    /// The path works in both directions. Returns whether that is new.
    pub(crate) fn meet(&mut self) -> bool {
        !std::mem::replace(&mut self.met, true)
    }

    /// Since when a path that never worked is probed for that.
    pub(crate) fn unmet_since(&self) -> Option<Time> {
        self.unmet.filter(|_| !self.met)
    }

    /// The path has another state: earlier probes count no more.
    pub(crate) fn restart(&mut self) {
        (self.asked, self.unmet, self.answers, self.answered) = (None, None, 0, None);
    }

    /// The path broke: a probe of the peer needs no answer any more.
    pub(crate) fn forget_question(&mut self) {
        self.to_answer = None;
    }

    /// Returns the number of the probe to be sent now. `None` less than `pace` after the last one, and while
    /// one that was not answered is waited for: its time is what is to be measured.
    pub(crate) fn next(&mut self, now: Time, pace: Duration) -> Option<u32> {
        let waits = self
            .asked
            .is_some_and(|asked| now.since(asked) < ANSWER.max(pace));
        if waits || self.tried + pace > now {
            return None;
        }
        self.tried = now;
        self.number = self.number.wrapping_add(1);
        Some(self.number)
    }

    /// The probe has left.
    pub(crate) fn left(&mut self, now: Time) {
        self.asked = Some(now);
        self.unmet.get_or_insert(now);
    }

    /// Whether there was traffic since the last probe left, by a sum of what was sent and received.
    pub(crate) fn has_traffic(&self, traffic: u64) -> bool {
        self.traffic != traffic
    }

    /// A probe has left when that was the sum of what was sent and received.
    pub(crate) fn note_traffic(&mut self, traffic: u64) {
        self.traffic = traffic;
    }

    /// A probe of the peer arrived, or waits on for room.
    pub(crate) fn question(&mut self, number: u32) {
        self.to_answer = Some(number);
    }

    /// The answer to one of our probes arrived.
    pub(crate) fn answer(&mut self, number: u32) {
        self.answered = Some(number);
    }

    /// Takes the probe of the peer that is to be answered.
    pub(crate) fn take_question(&mut self) -> Option<u32> {
        self.to_answer.take()
    }

    /// Takes the answer to the probe under way, and measures it. Returns whether it came, and is the first
    /// ever.
    pub(crate) fn take_answer(&mut self, now: Time) -> Option<bool> {
        let asked = self.asked.filter(|_| self.answered == Some(self.number));
        self.answered = None;
        let took = now.since(asked?);
        self.asked = None;
        self.answers += 1;
        self.answered_at = now;
        self.latency
            .sample(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        Some(self.meet())
    }

    /// Whether the peer answered as many probes as a returning path has to.
    pub(crate) fn proved(&self) -> bool {
        self.answers >= PROOFS
    }

    /// Returns when the peer last answered a probe.
    pub(crate) fn answered_at(&self) -> Time {
        self.answered_at
    }

    /// Half of the least round trip (ns), once it was measured.
    pub(crate) fn latency(&self) -> Option<u64> {
        self.latency.half()
    }

    /// Whether nothing has arrived that waits to be acted upon.
    pub(crate) fn is_quiet(&self) -> bool {
        self.to_answer.is_none() && self.answered.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_probe_without_an_answer_is_waited_for_and_then_sent_again() {
        let mut probes = Probes::default();
        let pace = Duration::from_millis(20);
        assert_eq!(probes.next(at(10), pace), None, "too early");
        assert_eq!(probes.next(at(20), pace), Some(1));
        probes.left(at(20));
        assert_eq!(probes.next(at(269), pace), None);
        assert_eq!(probes.next(at(270), pace), Some(2));
        probes.left(at(270));
        // The answer to the first one is late.
        probes.answer(1);
        assert_eq!(probes.take_answer(at(280)), None);
        probes.answer(2);
        assert_eq!(probes.take_answer(at(290)), Some(true));
        assert_eq!(probes.unmet_since(), None);
        probes.answer(2);
        assert_eq!(probes.take_answer(at(300)), None, "twice");
    }

    #[test]
    fn four_answers_are_a_proof_and_another_state_begins_anew() {
        let mut probes = Probes::default();
        for number in 1..=4 {
            assert!(!probes.proved());
            assert_eq!(
                probes.next(at(100 * u64::from(number)), Duration::ZERO),
                Some(number)
            );
            probes.left(at(100 * u64::from(number)));
            probes.answer(number);
            assert_eq!(
                probes.take_answer(at(100 * u64::from(number) + 1)),
                Some(number == 1)
            );
        }
        assert!(probes.proved() && probes.latency() == Some(500_000));
        probes.restart();
        assert!(!probes.proved());
    }
}
