//! Where messages to a peer change over from two copies to a read, by what the copies take.
//!
//! A message that is sent at once is copied into the lane and out of it: each line goes from core to core,
//! and how long that takes depends on where the cores are: a KiB some 45 ns next to each other, and up to 190
//! ns far apart; and less into the lane where its lines were prefetched ([`Producer::warm`]). A read by the
//! kernel costs a lot before its first byte, and little for each, as both ends copy; how much before, depends
//! on the processor and the kernel. So the sender measures all of it on its own messages, now and then: what
//! a KiB of a copy into the lane takes; what one out of the lane of the same peer takes, which is as far as
//! the other way; and how long memory was lent that a peer read alone. From these it computes the length from
//! which a read takes less. Virtual machines are moved: what was measured last counts.
//!
//! [`Producer::warm`]: doorbell_ring::lane::Producer::warm

use std::time::Duration;

/// Shortest copy, in bytes, that is measured.
const MEASURED: usize = 4 << 10;
/// Of how many samples the least counts: an interrupt, a fresh page or a receiver that is late makes one
/// longer, and nothing makes one shorter.
const SAMPLES: u8 = 8;
/// One in this many copies is measured once a pace is known.
const EVERY: u32 = 16;
/// One in this many messages that would be read is sent at once instead, to be measured: before a pace is
/// known, and afterwards.
const TRY: (u32, u32) = (8, 128);
/// What a read takes for each KiB, in nanoseconds, where both ends copy.
const READ_KIB: u32 = 60;
/// What is around it at both ends, while nothing is lent.
const AROUND: u32 = 600;
/// What it takes beyond its bytes: before that is measured; and at most, or a receiver that is always late
/// would count as a slow one.
const READ: (u32, u32) = (4500, 8000);
/// The shortest and the longest message, head included, about which the pace decides.
pub(crate) const LENGTHS: (usize, usize) = (12 << 10, (64 << 10) + 128);
/// The longest one that is sent at once before a pace is known.
const UNKNOWN: usize = 32 << 10;

/// Returns the longest message that takes less by two copies than by a read, where both copies of a KiB
/// together take `copies` nanoseconds, and a read `read` beyond its bytes.
fn longest_at_once(copies: u64, read: u32) -> usize {
    match copies.checked_sub(READ_KIB.into()) {
        None | Some(0) => LENGTHS.1,
        Some(lost) => ((u64::from(read) << 10) / lost).clamp(LENGTHS.0 as u64, LENGTHS.1 as u64) as usize,
    }
}

/// The least of some samples.
#[derive(Debug)]
struct Least {
    least: u32,
    samples: u8,
}

impl Least {
    const NONE: Self = Self {
        least: u32::MAX,
        samples: 0,
    };

    /// Takes a sample; returns the least once there are enough, and begins again.
    fn of(&mut self, sample: u32) -> Option<u32> {
        self.least = self.least.min(sample);
        self.samples += 1;
        let least = (self.samples == SAMPLES).then_some(self.least);
        if least.is_some() {
            *self = Self::NONE;
        }
        least
    }
}

/// The pace of the copies into one lane, and of the reads that are their alternative.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Bytes until the lane, and the peer's, has been around once: fresh pages are slow.
    fresh: usize,
    fresh_taken: usize,
    /// Of copies into the lane and out of the peer's, in nanoseconds for a KiB; of reads, in nanoseconds
    /// beyond their bytes.
    copying: Least,
    taking: Least,
    reading: Least,
    /// The last of each.
    copy: Option<u32>,
    take: Option<u32>,
    read: u32,
    /// The longest message that is sent at once by them.
    longest: usize,
    copies: u32,
    takes: u32,
    reads: u32,
    /// The next message is sent at once to be measured.
    tries: bool,
}

impl Pace {
    /// The pace of a lane of `data` bytes that nothing was sent over.
    pub(crate) fn new(data: usize) -> Self {
        Self {
            fresh: data,
            fresh_taken: data,
            copying: Least::NONE,
            taking: Least::NONE,
            reading: Least::NONE,
            copy: None,
            take: None,
            read: READ.0,
            longest: UNKNOWN,
            copies: 0,
            takes: 0,
            reads: 0,
            tries: false,
        }
    }

    /// The longest message that is sent at once, once that is measured.
    pub(crate) fn measured(&self) -> Option<usize> {
        self.copy.map(|_| self.longest)
    }

    /// Whether a message of `length` bytes, head included, had better be read.
    pub(crate) fn prefers_read(&mut self, length: usize) -> bool {
        if length <= self.longest || length > LENGTHS.1 {
            return length > self.longest;
        }
        self.reads = self.reads.wrapping_add(1);
        let every = if self.copy.is_some() { TRY.1 } else { TRY.0 };
        self.tries = self.reads.is_multiple_of(every);
        !self.tries
    }

    /// Whether the copy of a message of `length` bytes that is about to leave is to be measured.
    #[inline]
    pub(crate) fn is_due(&mut self, length: usize) -> bool {
        length >= MEASURED && self.is_due_now(length)
    }

    fn is_due_now(&mut self, length: usize) -> bool {
        if self.fresh > 0 {
            self.fresh = self.fresh.saturating_sub(length);
            return false;
        }
        self.copies = self.copies.wrapping_add(1);
        std::mem::take(&mut self.tries) || self.copy.is_none() || self.copies.is_multiple_of(EVERY)
    }

    /// The copy of `length` bytes took this time.
    pub(crate) fn took(&mut self, length: usize, time: Duration) {
        if let Some(least) = self.copying.of(for_a_kib(length, time)) {
            self.copy = Some(least);
            self.decide();
        }
    }

    /// Whether the copy of a message of `length` bytes out of the peer's lane is to be measured.
    #[inline]
    pub(crate) fn is_taking_due(&mut self, length: usize) -> bool {
        length >= MEASURED && self.is_taking_due_now(length)
    }

    fn is_taking_due_now(&mut self, length: usize) -> bool {
        if self.fresh_taken > 0 {
            self.fresh_taken = self.fresh_taken.saturating_sub(length);
            return false;
        }
        self.takes = self.takes.wrapping_add(1);
        self.take.is_none() || self.takes.is_multiple_of(EVERY)
    }

    /// The copy of `length` bytes out of the peer's lane took this time. What is far from a copy the other
    /// way is none: a message that was dropped, or that had to wait for memory.
    pub(crate) fn was_taken(&mut self, length: usize, time: Duration) {
        let bounds = self
            .copy
            .map_or((0, u32::MAX), |copy| (copy / 2, copy.saturating_mul(4)));
        if let Some(least) = self.taking.of(for_a_kib(length, time).clamp(bounds.0, bounds.1)) {
            self.take = Some(least);
            self.decide();
        }
    }

    /// Memory of this length was lent for this time, and read alone.
    pub(crate) fn was_read(&mut self, length: usize, time: Duration) {
        if !(LENGTHS.0..=LENGTHS.1).contains(&length) {
            return;
        }
        let bytes = (length as u128 * u128::from(READ_KIB)) >> 10;
        let beyond = time.as_nanos().saturating_sub(bytes).min(READ.1.into());
        if let Some(least) = self.reading.of(beyond as u32) {
            self.read = least + AROUND;
            self.decide();
        }
    }

    fn decide(&mut self) {
        if let Some(copy) = self.copy {
            let copies = u64::from(copy) + u64::from(self.take.unwrap_or(copy));
            self.longest = longest_at_once(copies, self.read);
        }
    }
}

/// Nanoseconds for each KiB.
fn for_a_kib(length: usize, time: Duration) -> u32 {
    let nanos = (time.as_nanos() << 10) / length.max(1) as u128;
    u32::try_from(nanos).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_the_copies_the_shorter_the_messages_that_are_sent_at_once() {
        let table = [
            // Nanoseconds for a KiB copied twice, and of a read beyond its bytes; bytes.
            (0, 4500, LENGTHS.1),
            (60, 4500, LENGTHS.1),
            (90, 3800, LENGTHS.1),
            (130, 2500, 36_571),
            (180, 4500, 38_400),
            (300, 6000, 25_600),
            (500, 4500, LENGTHS.0),
            (90, 0, LENGTHS.0),
            (2 * u64::from(u32::MAX), u32::MAX, LENGTHS.0),
        ];
        for (copies, read, longest) in table {
            assert_eq!(longest_at_once(copies, read), longest, "{copies} and {read} ns");
        }
    }

    #[test]
    fn reads_that_are_dear_or_cheap_move_the_length() {
        let mut pace = Pace::new(0);
        measure(&mut pace, 130);
        assert!(!pace.prefers_read(23_000) && pace.prefers_read(23_100));
        // 60 ns for each KiB of them, and 400 or 6,400 beyond, and 600 around.
        for (nanos, at_once, read) in [(2320, LENGTHS.0, 13_000), (8320, 35_800, 35_900)] {
            for late in 0..u64::from(SAMPLES) {
                pace.was_read(32 << 10, Duration::from_nanos(nanos + 1000 * late));
            }
            assert!(
                !pace.prefers_read(at_once) && pace.prefers_read(read),
                "{nanos} ns"
            );
        }
        // Of other lengths nothing is learned, and a receiver that is late does not count.
        for _ in 0..SAMPLES {
            pace.was_read(LENGTHS.1 + 1, Duration::ZERO);
        }
        assert!(!pace.prefers_read(29_000));
        for _ in 0..SAMPLES {
            pace.was_read(32 << 10, Duration::from_secs(1));
        }
        assert_eq!(pace.read, READ.1 + AROUND);
    }

    /// Measures as many copies as make a pace.
    fn measure(pace: &mut Pace, nanos_for_a_kib: u64) {
        for sample in 0..u64::from(SAMPLES) {
            // All but one of them are disturbed.
            let time = 16 * nanos_for_a_kib + if sample == 2 { 0 } else { 100_000 };
            pace.took(16 << 10, Duration::from_nanos(time));
        }
    }

    #[test]
    fn the_fastest_of_some_copies_decides_and_the_last_ones_count() {
        let mut pace = Pace::new(0);
        assert_eq!(pace.measured(), None);
        assert!(!pace.prefers_read(UNKNOWN) && pace.prefers_read(UNKNOWN + 1));
        measure(&mut pace, 45);
        assert_eq!(pace.measured(), Some(LENGTHS.1));
        assert!(!pace.prefers_read(LENGTHS.1) && pace.prefers_read(LENGTHS.1 + 1));
        measure(&mut pace, 300);
        assert!(!pace.prefers_read(LENGTHS.0) && pace.prefers_read(16 << 10));
        measure(&mut pace, 45);
        assert!(!pace.prefers_read(64 << 10));
    }

    #[test]
    fn copies_out_of_the_peers_lane_count_as_those_it_makes() {
        let mut pace = Pace::new(0);
        measure(&mut pace, 40);
        assert_eq!(
            pace.measured(),
            Some(LENGTHS.1),
            "as long as they are taken to be alike"
        );
        assert!((0..SAMPLES).all(|_| pace.is_taking_due(8 << 10)));
        for sample in 0..u64::from(SAMPLES) {
            pace.was_taken(8 << 10, Duration::from_nanos(8 * 150 + sample * 1000));
        }
        // 190 for each KiB.
        assert_eq!(pace.measured(), Some(35_446));
        for _ in 0..SAMPLES {
            pace.was_taken(64 << 10, Duration::ZERO);
        }
        assert_eq!(pace.take, Some(20), "half of the other way, at least");
        assert!(!pace.is_taking_due(MEASURED - 1));
        let due = (0..160).filter(|_| pace.is_taking_due(8 << 10)).count();
        assert_eq!(due, 10);
    }

    #[test]
    fn the_first_lap_short_messages_and_most_of_the_others_are_not_measured() {
        let mut pace = Pace::new(40_000);
        assert!(!pace.is_due(30_000) && !pace.is_due(MEASURED - 1) && !pace.is_due(30_000));
        assert!((0..10).all(|_| pace.is_due(MEASURED)));
        measure(&mut pace, 45);
        let due = (0..160).filter(|_| pace.is_due(MEASURED)).count();
        assert_eq!(due, 10);
    }

    /// One in this many messages that would be read is sent and measured, or a pace that has become better
    /// would never be noticed.
    #[test]
    fn what_is_read_is_tried_at_times() {
        let mut pace = Pace::new(0);
        measure(&mut pace, 190);
        let mut tried = 0;
        for _ in 0..10 * TRY.1 {
            if !pace.prefers_read(24 << 10) {
                tried += 1;
                assert!(pace.is_due(24 << 10));
            }
        }
        assert_eq!(tried, 10);
        assert!((0..1000).all(|_| pace.prefers_read(LENGTHS.1 + 1)));
    }
}
