//! The time of a BTL: that of its owner's last `progress`. There is no other clock in here.
//!
//! The silence of a peer is measured in *attended* time, which stops while the owner is late: its own
//! absence must not count as silence of its peers.

use doorbell_fabric::rail::PollCost;
use doorbell_fabric::time::Time;

/// How long the owner may be late for a deadline before its absence is not counted as the peer's silence
/// (ns).
const LATE: u64 = 10_000_000;

/// Frames, or polls that cost as much, that take some ten microseconds: after more of them, round trips would
/// be measured too long.
const TIMELY: u32 = 32;

/// About what a frame takes (ns).
const FRAME: u32 = 150;

/// The time, and how old it may be.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The time of the last `progress` (ns).
    now: u64,
    /// The time for which the owner has attended to this rail (ns).
    attended: u64,
    /// Frames sent and received since the last `progress`, and what its empty polls cost, in frames; and one
    /// of those.
    moved: u32,
    poll_weight: u32,
}

impl Clock {
    /// A clock at zero, for a rail whose polls have this cost.
    pub(crate) fn new(poll: PollCost) -> Self {
        let poll_weight = match poll {
            PollCost::Memory => 0,
            PollCost::SystemCall(nanos) => (nanos / FRAME).clamp(1, TIMELY / 4),
        };
        Self {
            now: 0,
            attended: 0,
            moved: 0,
            poll_weight,
        }
    }

    /// The time of the last `progress` (ns).
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// The time of the last `progress`.
    pub(crate) fn time(&self) -> Time {
        Time::from_nanos(self.now)
    }

    /// The time for which the owner has attended to this rail (ns).
    #[inline]
    pub(crate) fn attended(&self) -> u64 {
        self.attended
    }

    /// The time that is `nanos` from now (ns).
    #[inline]
    pub(crate) fn after(&self, nanos: u64) -> u64 {
        self.now.saturating_add(nanos)
    }

    /// Takes the time. The owner was `expected` by then (ns), or not at all. Returns the time before, if it
    /// went on.
    pub(crate) fn advance(&mut self, now: Time, expected: Option<u64>) -> Option<u64> {
        let now = now.nanos().max(self.now);
        let passed = now - self.now;
        let in_time = match expected {
            Some(wake) => wake.saturating_sub(self.now).saturating_add(LATE),
            None => u64::MAX,
        };
        self.attended += passed.min(in_time);
        self.moved = 0;
        let before = std::mem::replace(&mut self.now, now);
        (passed > 0).then_some(before)
    }

    /// Counts a frame that was sent.
    #[inline]
    pub(crate) fn count_frame(&mut self) {
        self.moved += 1;
    }

    /// Counts frames that were received.
    #[inline]
    pub(crate) fn count_frames(&mut self, frames: usize) {
        self.moved += frames as u32;
    }

    /// Counts a poll.
    #[inline]
    pub(crate) fn count_poll(&mut self) {
        self.moved = self.moved.saturating_add(self.poll_weight);
    }

    /// Whether the time is too old to measure by.
    #[inline]
    pub(crate) fn is_old(&self) -> bool {
        self.moved >= TIMELY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_of_the_owner_is_not_attended() {
        let mut clock = Clock::new(PollCost::Memory);
        assert_eq!(clock.advance(Time::from_nanos(5), None), Some(0));
        assert_eq!((clock.now(), clock.attended()), (5, 5));
        assert_eq!(
            clock.advance(Time::from_nanos(3), None),
            None,
            "time does not go back"
        );
        clock.advance(Time::from_nanos(10 * LATE), Some(LATE));
        assert_eq!((clock.now(), clock.attended()), (10 * LATE, 2 * LATE));
        assert_eq!(clock.after(u64::MAX), u64::MAX);
    }

    #[test]
    fn frames_and_dear_polls_make_the_time_old() {
        let mut clock = Clock::new(PollCost::SystemCall(4 * FRAME));
        (0..3).for_each(|_| clock.count_poll());
        clock.count_frames(TIMELY as usize - 13);
        assert!(!clock.is_old());
        clock.count_frame();
        assert!(clock.is_old());
        clock.advance(Time::ZERO, None);
        assert!(!clock.is_old(), "the owner has come by");
    }
}
