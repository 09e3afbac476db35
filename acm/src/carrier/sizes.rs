//! The sizes of a probe: packets of every possible MTU are tried at the same time, on a fixed schedule.
//!
//! ```text
//!   256, 512, … up to the endpoint's  ──►  0 ms          the payloads, each with the headers of a packet
//!   those that have not come back     ──►  200, 500 ms
//!   the end      at   900 ms, or as soon as the largest that the system sends has come back
//! ```
//!
//! The caller gives up after a second ([`Options::probe`](crate::resolver::Options::probe)), so that a path
//! that passes only small packets is used with that size, and not dropped.

use std::time::Duration;

use doorbell_fabric::time::Time;

use super::{BESIDE, Probed, Trouble};
use crate::path::Mtu;

/// When packets are sent, after the start of a probe (ms).
pub(super) const SENT: [u64; 3] = [0, 200, 500];
/// When a probe ends if the largest has not come back (ms).
pub(super) const END: u64 = 900;
/// Payloads of the possible MTUs (bytes).
pub(super) const PAYLOADS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// The packets of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Bytes of the payload and of the headers between it and UDP or ICMP.
    pub(super) body: usize,
    sent: [Option<Time>; SENT.len()],
    round_trip: Option<Duration>,
    refused: Option<Trouble>,
}

impl Size {
    /// Whether it is still to be sent.
    pub(super) fn is_open(&self) -> bool {
        self.round_trip.is_none() && self.refused.is_none()
    }

    /// Records that the system does not send this size.
    pub(super) fn refuse(&mut self, why: Trouble) {
        self.refused = Some(why);
    }

    pub(super) fn is_sent(&mut self, attempt: usize, now: Time) {
        self.sent[attempt] = Some(now);
    }
}

/// All sizes of a probe, the smallest first.
#[derive(Debug)]
pub(super) struct Sizes {
    pub(super) each: Vec<Size>,
    begun: Time,
    attempts: usize,
}

impl Sizes {
    pub(super) fn up_to(mtu: Mtu, now: Time) -> Self {
        let payloads = PAYLOADS.into_iter().filter(|payload| *payload <= mtu.bytes());
        let size = |payload: u32| Size {
            body: payload as usize + BESIDE,
            sent: [None; SENT.len()],
            round_trip: None,
            refused: None,
        };
        Self {
            each: payloads.map(size).collect(),
            begun: now,
            attempts: 0,
        }
    }

    /// Returns when something is to be sent, or the probe ends.
    pub(super) fn deadline(&self) -> Time {
        let after = SENT.get(self.attempts).copied().unwrap_or(END);
        self.begun + Duration::from_millis(after)
    }

    /// Starts the attempt that is due and returns its number; `None` if none is.
    pub(super) fn attempt(&mut self, now: Time) -> Option<usize> {
        let due = !self.is_done() && self.attempts < SENT.len() && self.deadline() <= now;
        self.attempts += usize::from(due);
        due.then(|| self.attempts - 1)
    }

    /// Whether no further answer could change the result.
    pub(super) fn is_done(&self) -> bool {
        let mut sizes = self.each.iter().rev();
        let largest = sizes.find(|size| size.refused.is_none());
        largest.is_none_or(|size| size.round_trip.is_some())
    }

    /// Whether the probe has ended, by its result or by its time.
    pub(super) fn is_over(&self, now: Time) -> bool {
        self.is_done() || self.attempts == SENT.len() && self.deadline() <= now
    }

    /// Takes a packet that came back with this size index, attempt and length; returns whether it matches one
    /// that was sent.
    pub(super) fn came_back(&mut self, now: Time, at: u8, attempt: u8, body: usize) -> bool {
        let size = self
            .each
            .get_mut(usize::from(at))
            .filter(|size| size.body == body);
        let Some(size) = size else { return false };
        let Some(sent) = size.sent.get(usize::from(attempt)).copied().flatten() else {
            return false;
        };
        size.round_trip.get_or_insert(now.since(sent));
        true
    }

    pub(super) fn result(&self) -> Probed {
        let passed = || self.each.iter().filter(|size| size.round_trip.is_some());
        let trouble = match self.each.last() {
            Some(full) if full.round_trip.is_some() => None,
            Some(full) if passed().next().is_some() => Some(full.refused.unwrap_or(Trouble::FullLost)),
            _ => {
                let refused = self.each.first().and_then(|small| small.refused);
                Some(refused.unwrap_or(Trouble::Silent))
            }
        };
        Probed {
            round_trip: passed().filter_map(|size| size.round_trip).min(),
            largest: passed().map(|size| size.body).max().unwrap_or(0),
            trouble,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn start() -> Time {
        Time::from_nanos(5)
    }

    /// All sizes, each sent once.
    fn sent() -> Sizes {
        let mut sizes = Sizes::up_to(Mtu::MAX, start());
        let attempt = sizes.attempt(start()).unwrap();
        sizes
            .each
            .iter_mut()
            .for_each(|size| size.is_sent(attempt, start()));
        sizes
    }

    #[test]
    fn it_ends_before_its_caller_gives_up() {
        let limit = crate::resolver::Options::default().probe;
        assert!(Duration::from_millis(END) + 50 * MS < limit, "{limit:?}");
        assert!(SENT.into_iter().all(|at| at < END));
    }

    #[test]
    fn only_what_was_sent_comes_back() {
        let mut sizes = sent();
        let now = start() + MS;
        assert!(!sizes.came_back(now, 1, 0, 256 + BESIDE), "another size");
        assert!(!sizes.came_back(now, 0, 1, 256 + BESIDE), "not sent yet");
        assert!(!sizes.came_back(now, 0, 200, 256 + BESIDE), "never sent");
        assert!(!sizes.came_back(now, 9, 0, 256 + BESIDE), "there is none");
        assert!(sizes.each.iter().all(Size::is_open));
        assert!(sizes.came_back(now, 0, 0, 256 + BESIDE));
        assert_eq!(sizes.result().round_trip, Some(MS));
    }

    #[test]
    fn the_largest_that_comes_back_is_the_end_and_otherwise_time_is() {
        let mut sizes = sent();
        let now = start() + MS;
        assert!(sizes.came_back(now, 2, 0, 1024 + BESIDE));
        assert!(!sizes.is_over(now), "a larger one may come");
        assert!(sizes.came_back(now, 4, 0, 4096 + BESIDE));
        assert!(sizes.is_over(now));
        assert_eq!(
            (sizes.result().trouble, sizes.result().largest),
            (None, 4096 + BESIDE)
        );
        let mut sizes = sent();
        sizes.came_back(now, 2, 0, 1024 + BESIDE);
        let mut attempts = Vec::new();
        while !sizes.is_over(sizes.deadline()) {
            attempts.extend(sizes.attempt(sizes.deadline()));
        }
        assert_eq!(
            (attempts, sizes.deadline()),
            (vec![1, 2], start() + END as u32 * MS)
        );
        let result = sizes.result();
        assert_eq!(
            (result.trouble, result.largest),
            (Some(Trouble::FullLost), 1024 + BESIDE)
        );
    }

    #[test]
    fn what_the_system_does_not_send_is_not_waited_for() {
        let mut sizes = sent();
        sizes.each[3].refuse(Trouble::FullRefused);
        sizes.each[4].refuse(Trouble::FullRefused);
        assert!(sizes.came_back(start(), 2, 0, 1024 + BESIDE) && sizes.is_done());
        assert_eq!(sizes.result().trouble, Some(Trouble::FullRefused));
        sizes.each.iter_mut().for_each(|size| size.refuse(Trouble::NoWay));
        assert_eq!(Sizes::up_to(Mtu::MIN, start()).each.len(), 1);
        let mut none = Sizes::up_to(Mtu::MIN, start());
        none.each[0].refuse(Trouble::NoWay);
        assert!(none.is_done() && none.result().trouble == Some(Trouble::NoWay));
    }
}
