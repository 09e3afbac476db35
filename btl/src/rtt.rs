//! Round-trip times, and when to send again (RFC 6298, with a floor for local networks).
//!
//! Times are those that the owner's `progress` gave, so a sample is as coarse as the calls of `progress` are
//! apart. A segment that was sent more than once gives no sample (Karn's algorithm): the answer is ambiguous.

use crate::config::{BtlConfig, nanos};

/// Estimates of one peer, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    smooth: u64,
    variation: u64,
    least: u64,
    /// The shortest of the samples being gathered, and of the round before.
    gathered: u32,
    recent: u32,
    samples: u16,
    backoff: u16,
    /// Retransmissions of the oldest segment after the short time, since the last answer.
    hurried: u8,
}

/// Samples of a round.
const ROUND: u16 = 8;

/// What the time-outs are kept within, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    first: u64,
    tail: u64,
    least: u64,
    most: u64,
}

impl Bounds {
    /// Those of the settings.
    pub(crate) fn new(config: &BtlConfig) -> Self {
        Self {
            first: nanos(config.retrans_timeout),
            tail: nanos(config.retrans_tail),
            least: nanos(config.retrans_least),
            most: nanos(config.retrans_most),
        }
    }

    /// The shortest time before a segment is retransmitted (ns).
    #[inline]
    pub(crate) fn shortest(&self) -> u64 {
        self.tail
    }
}

impl Rtt {
    pub(crate) const fn new() -> Self {
        Self {
            smooth: 0,
            variation: 0,
            least: u64::MAX,
            gathered: u32::MAX,
            recent: 0,
            samples: 0,
            backoff: 0,
            hurried: 0,
        }
    }

    /// A segment that was sent once was answered after `sample`.
    #[inline]
    pub(crate) fn sample(&mut self, sample: u64) {
        self.backoff = 0;
        if sample == 0 {
            // Sent and answered between two calls of `progress`: too short to be seen, and no measure of
            // anything but that there is no queue on the path.
            self.gathered = 1;
            self.variation -= self.variation / 4;
            self.smooth = (self.smooth - self.smooth / 8).max(1);
            return;
        }
        if self.smooth == 0 {
            (self.smooth, self.variation) = (sample, sample / 2);
        } else {
            let off = self.smooth.abs_diff(sample);
            self.variation = self.variation - self.variation / 4 + off / 4;
            self.smooth = self.smooth - self.smooth / 8 + sample / 8;
        }
        self.least = self.least.min(sample);
        self.gathered = self.gathered.min(u32::try_from(sample).unwrap_or(u32::MAX));
        self.samples += 1;
        if self.samples == ROUND {
            (self.recent, self.gathered, self.samples) = (self.gathered, u32::MAX, 0);
        }
    }

    /// Takes the round trip of a probe, which its peer answers at once.
    pub(crate) fn shortest(&mut self, trip: u64) {
        self.least = self.least.min(trip.max(1));
    }

    /// Something was answered, which ends the back-off.
    #[inline]
    pub(crate) fn answered(&mut self) {
        (self.backoff, self.hurried) = (0, 0);
    }

    /// The oldest segment is retransmitted after the short time, which is twice as long the next time.
    pub(crate) fn hurry(&mut self) {
        self.hurried += 1;
    }

    /// A time-out passed: the next one is twice as long.
    pub(crate) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// Time-outs in a row.
    pub(crate) fn timeouts(&self) -> u32 {
        self.backoff.into()
    }

    /// Returns how long to wait for an answer, the first time.
    #[inline]
    pub(crate) fn settled(&self, bounds: &Bounds) -> u64 {
        let base = match self.smooth {
            0 => bounds.first,
            smooth => smooth + 4 * self.variation,
        };
        base.clamp(bounds.least, bounds.most)
    }

    /// Returns how long to wait for an answer.
    #[inline]
    pub(crate) fn timeout(&self, bounds: &Bounds) -> u64 {
        let base = self.settled(bounds);
        base.saturating_mul(1 << self.backoff.min(20)).min(bounds.most)
    }

    /// Returns how long the oldest segment waits before it is retransmitted although nothing shows a loss
    /// (RFC 8985, section 7.2): two round trips, `doublings` times doubled, and once more after each such
    /// retransmission. `None` when the time-out is no later.
    #[inline]
    pub(crate) fn tail(&self, bounds: &Bounds, doublings: u8) -> Option<u64> {
        if self.backoff > 0 || self.smooth == 0 {
            return None;
        }
        let wait = self.prompt(bounds) << (doublings + self.hurried).min(32);
        (wait < self.settled(bounds)).then_some(wait)
    }

    /// Returns what a peer that looks all the time takes to answer: two round trips, and no less than the
    /// floor.
    #[inline]
    pub(crate) fn prompt(&self, bounds: &Bounds) -> u64 {
        (2 * self.smooth).max(bounds.tail)
    }

    /// Time by which a later transmission must have been made for its arrival to show that an earlier one is
    /// lost.
    #[inline]
    pub(crate) fn reordering(&self, bounds: &Bounds) -> u64 {
        2 * self.smooth.max(bounds.least / 4)
    }

    /// The shortest round trip that was seen; for ever before the first.
    #[inline]
    pub(crate) fn least(&self) -> u64 {
        self.least
    }

    /// The smoothed round-trip time, when there is one.
    pub(crate) fn smooth(&self) -> Option<u64> {
        (self.smooth > 0).then_some(self.smooth)
    }

    /// Whether the last round trips took so much longer than the shortest that there must be a queue:
    /// more than twice as long, and by more than the clock's and the acknowledgement's own delay. The
    /// shortest of them are what counts: long ones come from a peer that computes, while a queue makes all of
    /// them long.
    #[inline]
    pub(crate) fn queueing(&self, noise: u64) -> bool {
        u64::from(self.recent.min(self.gathered)) > self.least.saturating_mul(2).saturating_add(noise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        first: 5_000_000,
        tail: 30_000,
        least: 200_000,
        most: 250_000_000,
    };

    #[test]
    fn the_timeout_follows_the_samples_within_its_bounds() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.timeout(&BOUNDS), 5_000_000);
        rtt.sample(10_000);
        assert_eq!(rtt.timeout(&BOUNDS), 200_000, "the floor");
        (0..50).for_each(|_| rtt.sample(1_000_000));
        assert!((1_000_000..1_300_000).contains(&rtt.timeout(&BOUNDS)), "{rtt:?}");
        assert!(rtt.queueing(100_000), "{rtt:?}");
    }

    #[test]
    fn it_doubles_until_something_is_answered() {
        let mut rtt = Rtt::new();
        rtt.sample(10_000);
        (0..3).for_each(|_| rtt.back_off());
        assert_eq!((rtt.timeout(&BOUNDS), rtt.timeouts()), (1_600_000, 3));
        (0..70).for_each(|_| rtt.back_off());
        assert_eq!(rtt.timeout(&BOUNDS), 250_000_000, "the ceiling");
        rtt.answered();
        assert_eq!(rtt.timeout(&BOUNDS), 200_000);
    }

    #[test]
    fn the_tail_is_hurried_while_the_time_out_is_farther() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.tail(&BOUNDS, 0), None, "nothing is known");
        rtt.sample(10_000);
        assert_eq!(rtt.tail(&BOUNDS, 0), Some(30_000), "the floor");
        assert_eq!(rtt.tail(&BOUNDS, 2), Some(120_000), "it was in vain twice");
        assert_eq!(rtt.tail(&BOUNDS, 3), None, "the time-out comes first");
        rtt.hurry();
        assert_eq!(rtt.tail(&BOUNDS, 0), Some(60_000), "twice as long the next time");
        (0..2).for_each(|_| rtt.hurry());
        assert_eq!(rtt.tail(&BOUNDS, 0), None);
        rtt.answered();
        (0..50).for_each(|_| rtt.sample(60_000));
        assert_eq!(rtt.tail(&BOUNDS, 0).map(|wait| wait / 1000), Some(119));
        (0..50).for_each(|_| rtt.sample(150_000));
        assert_eq!(rtt.tail(&BOUNDS, 0), None);
    }
}
