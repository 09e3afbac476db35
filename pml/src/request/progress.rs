//! The progress of a transfer.

use std::ops::Range;

use doorbell_fabric::message::Inbound;

use crate::intervals::{Intervals, Rejected};

/// Holes that one ACK names: more are requested as one.
const HOLES_MOST: usize = 16;

/// The bytes that a receiver lacks, as ranges, lowest first.
#[derive(Debug)]
pub(crate) struct Holes {
    ranges: [(u64, u64); HOLES_MOST],
    count: usize,
}

impl Holes {
    /// The first one; an empty range at the end, when nothing is lacking.
    pub(crate) fn first(&self) -> Range<u64> {
        self.ranges[0].0..self.ranges[0].1
    }

    /// All but the first.
    pub(crate) fn rest(&self) -> &[(u64, u64)] {
        &self.ranges[1..self.count.max(1)]
    }
}

/// How far a transfer has come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Receive: bytes that are wanted. Send: end of the range that is leaving.
    until: u64,
    /// Receive: bytes that have arrived (in one-sided transfers, from the front). Send: the next byte to
    /// leave.
    moved: u64,
    /// Receive by fragments: what has arrived.
    arrived: Intervals,
    /// Send: further ranges that the receiver wants.
    wanted: Vec<(u64, u64)>,
    /// Send: bytes that were counted with the message, until its receiver reports how many it has counted.
    /// Receive: those that came with the announcement.
    counted: u64,
}

impl Progress {
    /// Makes it ready for the next request; keeps the memory of the ranges.
    pub(super) fn reset(&mut self) {
        (self.until, self.moved, self.counted) = (0, 0, 0);
        self.arrived.clear();
        self.wanted.clear();
    }

    /// Goes on at `moved`, up to `until`.
    pub(crate) fn set(&mut self, moved: u64, until: u64) {
        (self.moved, self.until) = (moved, until);
    }

    /// Every message fits, until it is known how much of it does.
    pub(crate) fn set_unbounded(&mut self) {
        self.until = u64::MAX;
    }

    /// The end of what is wanted.
    pub(crate) fn until(&self) -> u64 {
        self.until
    }

    /// The next byte to leave, or the number of those that have arrived.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> u64 {
        self.until - self.moved
    }

    /// Whether none are left.
    pub(crate) fn is_done(&self) -> bool {
        self.moved >= self.until
    }

    /// This many bytes more have moved.
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.moved += bytes;
    }

    /// Bytes from here on have to move again.
    pub(crate) fn go_back(&mut self, to: u64) {
        self.moved = to;
    }

    /// All bytes have moved.
    pub(crate) fn complete(&mut self) {
        self.moved = self.until;
    }

    /// The bytes that were counted with the announcement.
    pub(crate) fn counted(&self) -> u64 {
        self.counted
    }

    /// Notes the bytes that were counted with the announcement.
    pub(crate) fn set_counted(&mut self, bytes: u64) {
        self.counted = bytes;
    }

    /// Takes the bytes that were counted with the announcement: they are accounted for.
    pub(crate) fn take_counted(&mut self) -> u64 {
        std::mem::take(&mut self.counted)
    }

    // Sends.

    /// Takes the further ranges of an ACK, which begin at its byte `at` and have to be in order, apart, and
    /// within `bounds`. Returns whether they are; none of them is taken otherwise.
    pub(crate) fn want(&mut self, inbound: &Inbound<'_>, mut at: usize, bounds: Range<u64>) -> bool {
        const ONE: usize = 16;
        self.wanted.clear();
        let mut from = bounds.start;
        let word = |at| inbound.read::<8>(at).map(u64::from_le_bytes);
        while let Some((start, end)) = word(at).zip(word(at + 8)) {
            if self.wanted.len() == HOLES_MOST || start < from || start >= end || end > bounds.end {
                self.wanted.clear();
                return false;
            }
            self.wanted.push((start, end));
            (at, from) = (at + ONE, end);
        }
        true
    }

    /// Goes on to the next range that the receiver wants, if there is one.
    pub(crate) fn next_range(&mut self) -> bool {
        if self.wanted.is_empty() {
            return false;
        }
        let (from, until) = self.wanted.remove(0);
        self.set(from, until);
        true
    }

    /// Forgets the further ranges: the receiver will request them again.
    pub(crate) fn forget_wanted(&mut self) {
        self.wanted.clear();
    }

    // Receives.

    /// Nothing has arrived but the bytes up to `moved`, from the front.
    pub(crate) fn keep_front(&mut self) {
        self.arrived.clear();
        let _ = self.arrived.add(0, self.moved); // an empty list always has room for its first range
    }

    /// A fragment has arrived.
    ///
    /// # Errors
    /// [`Rejected`], and then none of its bytes is counted.
    pub(crate) fn fragment(&mut self, from: u64, to: u64) -> Result<(), Rejected> {
        self.arrived.add(from, to)?;
        self.moved += to - from;
        Ok(())
    }

    /// A read of our own has brought bytes behind those that are here.
    pub(crate) fn read(&mut self, bytes: u64) {
        let from = self.moved;
        self.moved += bytes;
        let _ = self.arrived.add(from, self.moved);
    }

    /// Counts what has arrived, wherever it lies.
    pub(crate) fn count_arrived(&mut self) {
        self.moved = self.arrived.total();
    }

    /// Goes on with what is lacking, or `from_zero`. Returns the bytes that are here.
    pub(crate) fn resume(&mut self, from_zero: bool) -> u64 {
        if from_zero {
            self.arrived.clear();
        }
        // One-sided transfers go from the front; only fragments can fill holes.
        self.moved = self.arrived.front();
        self.arrived.total()
    }

    /// The bytes that are lacking; as a rule, and at the first attempt always, all from `moved` on. What they
    /// leave out is what counts as moved from now on.
    pub(crate) fn holes(&mut self, is_first_attempt: bool) -> Holes {
        if self.arrived.front() != self.moved || is_first_attempt {
            self.keep_front();
        }
        let mut ranges = [(self.until, self.until); HOLES_MOST];
        let mut count = 0;
        for (place, hole) in ranges.iter_mut().zip(self.arrived.holes(self.until)) {
            (*place, count) = (hole, count + 1);
        }
        if count == HOLES_MOST {
            // The last one takes what is left, and what had arrived of it comes again.
            ranges[count - 1].1 = self.until;
            self.arrived.cut(ranges[count - 1].0);
        }
        self.moved = self.arrived.total();
        Holes { ranges, count }
    }
}
