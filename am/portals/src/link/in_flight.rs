//! What is under way to one peer: which numbers each path carries, and how much all of them together may.
//!
//! A rail counts the messages that it accepted for a peer by itself ([`MsgId`]), and reports a watermark of
//! those that were taken. A [`Run`] records which of the peer's numbers these are: as long as one path
//! carries them all, there is one run, and it costs a comparison a message.
//!
//! The receiver holds what arrives ahead of an earlier message, so the sender sees to it that this is
//! bounded: what was sent since the oldest message that is not known to be taken is at most a [`WINDOW`]. How
//! much that is, is known at some numbers only, the marks; one is made each [`STEP`], and the window is
//! looked at no more often.

use std::collections::VecDeque;

use doorbell_fabric::message::MsgId;

/// What all messages between the oldest that is not known to be taken and the newest may be charged.
pub(crate) const WINDOW: u64 = 8 << 20;
/// What a message is charged beside its bytes.
pub(crate) const COST: u64 = 256;
/// The charge from one mark to the next.
const STEP: u64 = WINDOW / 16;
/// Numbers that a window has room for: no honest message is so far ahead of another.
pub(crate) const AHEAD_MOST: u32 = (WINDOW / COST) as u32;

/// Returns what a message is charged.
#[inline(always)]
pub(crate) const fn charge(length: usize) -> u64 {
    length as u64 + COST
}

/// Messages that follow each other in a rail's numbers and in the peer's alike.
#[derive(Clone, Copy, Debug)]
struct Run {
    id: u64,
    seq: u32,
    /// Bytes that the way had been given before.
    bytes: u64,
}

/// The messages of one way.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    runs: VecDeque<Run>,
    /// The last that has a number of the peer's.
    last: u64,
    /// Bytes that the way was given, as far as it carries long messages with others.
    bytes: u64,
}

impl Flight {
    /// A message begins a new run, or goes on with the last one.
    pub(crate) fn add(&mut self, id: MsgId, seq: u32, bytes: u64) {
        let follows = |run: &Run| id.0.wrapping_sub(run.id) == u64::from(seq.wrapping_sub(run.seq));
        if !self.runs.back().is_some_and(follows) || bytes > 0 {
            let run = Run {
                id: id.0,
                seq,
                bytes: self.bytes,
            };
            self.runs.push_back(run);
        }
        self.bytes += bytes;
        self.last = self.last.max(id.0);
    }

    /// Messages up to this one were sent, in the last run.
    pub(crate) fn extend(&mut self, last: u64) {
        self.last = self.last.max(last);
    }

    /// The number of the oldest message that is not known to be taken. Forgets what is. What was sent again
    /// is older than what the way had been given before, so it need not be the first.
    pub(crate) fn oldest(&mut self, watermark: MsgId) -> Option<u32> {
        let next = watermark.0 + 1;
        if !self.forget(next) {
            return None;
        }
        let first = |run: &Run| run.seq.wrapping_add(next.saturating_sub(run.id) as u32);
        let older = |one: u32, other: u32| (one.wrapping_sub(other) as i32) < 0;
        let all = self.runs.iter().map(first);
        all.reduce(|oldest, seq| if older(seq, oldest) { seq } else { oldest })
    }

    /// Forgets runs that are over; whether anything is under way. The newest run is kept: it goes on.
    fn forget(&mut self, next: u64) -> bool {
        while self.runs.get(1).is_some_and(|second| second.id <= next) {
            self.runs.pop_front();
        }
        !self.runs.is_empty() && next <= self.last
    }

    /// Like `oldest`, where the watermark has to be read from the rail.
    pub(crate) fn oldest_over(&mut self, watermark: impl FnOnce() -> MsgId) -> Option<u32> {
        if self.runs.is_empty() {
            return None;
        }
        self.oldest(watermark())
    }

    /// Bytes under way, roughly: a run counts until it is over.
    pub(crate) fn bytes(&mut self, watermark: MsgId) -> u64 {
        if !self.forget(watermark.0 + 1) {
            return 0;
        }
        self.runs.front().map_or(0, |run| self.bytes - run.bytes)
    }

    /// The way was given up, and what it carried was given back.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }
}

/// The window of one peer.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// A number, and what had been charged before it.
    marks: VecDeque<(u32, u64)>,
}

impl Window {
    /// Opens the window for message `next`, which is charged `cost` beyond `charged`; `oldest` is the first
    /// not known to be taken, if there is one. `None`: it may not be sent. Otherwise the charge up to which
    /// messages may be sent without another check.
    pub(crate) fn open(&mut self, next: u32, charged: u64, cost: u64, oldest: Option<u32>) -> Option<u64> {
        let Some(oldest) = oldest else {
            self.marks.clear();
            self.marks.push_back((next, charged));
            return Some(charged + STEP.max(cost));
        };
        let is_past = |mark: &(u32, u64)| (mark.0.wrapping_sub(oldest) as i32) <= 0;
        while self.marks.get(1).is_some_and(is_past) {
            self.marks.pop_front();
        }
        let (_, base) = *self.marks.front()?;
        let end = base + WINDOW;
        if charged + cost > end {
            return None;
        }
        self.marks.push_back((next, charged));
        Some(end.min(charged + STEP.max(cost)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_tell_the_oldest_across_ways_and_across_the_wrap() {
        let mut flight = Flight::default();
        assert_eq!(flight.oldest(MsgId(0)), None);
        flight.add(MsgId(1), u32::MAX - 1, 0);
        flight.add(MsgId(2), u32::MAX, 0);
        flight.add(MsgId(3), 0, 0);
        assert_eq!(flight.runs.len(), 1);
        // A word without a number, and numbers that went over another way.
        flight.add(MsgId(5), 7, 0);
        flight.extend(6);
        let seen: Vec<_> = (0..7).map(|mark| flight.oldest(MsgId(mark))).collect();
        let word = Some(1); // what follows is not older
        assert_eq!(
            seen,
            [
                Some(u32::MAX - 1),
                Some(u32::MAX),
                Some(0),
                word,
                Some(7),
                Some(8),
                None
            ]
        );
        flight.add(MsgId(7), 9, 0);
        assert_eq!((flight.oldest(MsgId(6)), flight.runs.len()), (Some(9), 1));
        flight.clear();
        assert_eq!(flight.oldest(MsgId(6)), None);
    }

    #[test]
    fn what_was_sent_again_is_the_oldest_wherever_it_stands() {
        let mut flight = Flight::default();
        for at in 0..5 {
            flight.add(MsgId(1 + at), 100 + at as u32, 0);
        }
        // Of another way that broke, across the wrap.
        flight.add(MsgId(6), u32::MAX, 0);
        flight.add(MsgId(7), 0, 0);
        flight.add(MsgId(8), 105, 0);
        let seen: Vec<_> = (0..9).map(|mark| flight.oldest(MsgId(mark))).collect();
        let again = Some(u32::MAX);
        assert_eq!(
            seen,
            [again, again, again, again, again, again, Some(0), Some(105), None]
        );
    }

    #[test]
    fn bytes_under_way_are_those_of_runs_that_are_not_over() {
        let mut flight = Flight::default();
        for at in 0..4 {
            flight.add(MsgId(1 + at), at as u32 * 2, 1000);
        }
        assert_eq!(flight.bytes(MsgId(0)), 4000);
        assert_eq!(flight.bytes(MsgId(2)), 2000);
        assert_eq!(flight.bytes(MsgId(4)), 0);
    }

    #[test]
    fn no_more_than_a_window_is_sent_and_it_opens_again() {
        let mut window = Window::default();
        let (mut charged, mut limit, mut next, cost) = (0, 0, 0_u32, charge(100));
        let mut oldest = None;
        loop {
            if charged + cost > limit {
                match window.open(next, charged, cost, oldest) {
                    Some(end) => limit = end,
                    None => break,
                }
            }
            (charged, next) = (charged + cost, next + 1);
            oldest = Some(0);
        }
        assert!(charged <= WINDOW && charged > WINDOW - 2 * cost, "{charged}");
        assert!(window.marks.len() <= 18);
        assert_eq!(window.open(next, charged, cost, Some(10)), None);
        assert!(window.open(next, charged, cost, Some(next / 2)).is_some());
        assert!(window.open(next, charged, 9 * WINDOW, Some(next - 1)).is_none());
        assert_eq!(
            window.open(next, charged, 9 * WINDOW, None),
            Some(charged + 9 * WINDOW)
        );
    }
}
