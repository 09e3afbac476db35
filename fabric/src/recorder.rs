//! A flight recorder: the last notable events of a rail, for the explanation of a failure.
//!
//! ```text
//!   cold paths ── record(at, peer, event) ─► ┌──┬──┬──┬──┐   one ring, allocated at the start; the oldest
//!                                            └──┴──┴──┴──┘   entry goes
//!   the failure ◄── lines(peer, now, most), formatted only then
//! ```
//!
//! Recording formats and allocates nothing. Repetitions (one time-out after another, a thousand frames of an
//! unknown sender) are counted in one entry, so that noise does not push out what explains it.

use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::message::PeerIndex;
use crate::time::Time;

/// How many of the latest entries are searched for one that a new event continues.
const BACK: usize = 16;

/// Age beyond which an entry is not continued, even by a similar event.
const PAUSE: Duration = Duration::from_secs(10);

/// What a [`Recorder`] stores: a small value that is formatted only when it is shown.
pub trait Event: Copy + fmt::Display {
    /// Merges a later event of the same kind, and returns whether it did.
    fn absorb(&mut self, later: &Self) -> bool;
}

/// An event with its time, its peer, and how often it occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded<E> {
    /// When it occurred first.
    pub first: Time,
    /// When it occurred last.
    pub last: Time,
    /// How often it happened.
    pub times: u32,
    /// The peer that it is about; `None` for the rail itself, or if unknown.
    pub peer: Option<PeerIndex>,
    /// What it was.
    pub event: E,
}

impl<E: Event> Recorded<E> {
    /// Formats it as one line, with times before `now`. Events before the recorder knew the time have none.
    pub fn line(&self, now: Time) -> String {
        let mut line = if self.first == Time::ZERO {
            format!("{:>19}: ", "at first")
        } else {
            format!("{:>12} before: ", seconds(now.since(self.first)))
        };
        let whole = if self.peer.is_none() { "(rail) " } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(line, "{whole}{}", self.event);
        if self.times > 1 {
            let until = seconds(now.since(self.last));
            let _ = write!(line, " ({} times, the last {until} before)", self.times);
        }
        line
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.6} s", time.as_secs_f64())
}

/// The last events. Bounded; it belongs to one thread, as the rail does.
#[derive(Clone, Debug)]
pub struct Recorder<E> {
    /// The events in the order of arrival up to `size`; then `next` is the oldest.
    rooms: Vec<Recorded<E>>,
    size: usize,
    next: usize,
}

impl<E: Event> Recorder<E> {
    /// Keeps up to `size` events; none at all with zero.
    pub fn new(size: usize) -> Self {
        Self {
            rooms: Vec::with_capacity(size),
            size,
            next: 0,
        }
    }

    /// Keeps an event.
    #[cold]
    pub fn record(&mut self, at: Time, peer: Option<PeerIndex>, event: E) {
        if self.size == 0 || self.went_on(at, peer, &event) {
            return;
        }
        let room = Recorded {
            first: at,
            last: at,
            times: 1,
            peer,
            event,
        };
        if self.rooms.len() < self.size {
            self.rooms.push(room);
        } else {
            self.rooms[self.next] = room;
            self.next = (self.next + 1) % self.size;
        }
    }

    /// Whether the event was more of what one of the latest rooms holds.
    fn went_on(&mut self, at: Time, peer: Option<PeerIndex>, event: &E) -> bool {
        let (newer, older) = self.rooms.split_at_mut(self.next);
        let latest = newer.iter_mut().rev().chain(older.iter_mut().rev()).take(BACK);
        for room in latest {
            if room.peer == peer && at.since(room.last) < PAUSE && room.event.absorb(event) {
                (room.last, room.times) = (at, room.times.saturating_add(1));
                return true;
            }
        }
        false
    }

    /// All that is kept, oldest first.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = &Recorded<E>> {
        let (newer, older) = self.rooms.split_at(self.next);
        older.iter().chain(newer)
    }

    /// The last `most` events about a peer and about the rail itself, one line each, newest last.
    #[cold]
    pub fn lines(&self, peer: PeerIndex, now: Time, most: usize) -> Vec<String> {
        let about = self
            .all()
            .rev()
            .filter(|room| room.peer.is_none_or(|whose| whose == peer));
        let mut lines: Vec<String> = about.take(most).map(|room| room.line(now)).collect();
        lines.reverse();
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers above 99 go on with each other.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Number(u32);

    impl fmt::Display for Number {
        fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(out, "number {}", self.0)
        }
    }

    impl Event for Number {
        fn absorb(&mut self, later: &Self) -> bool {
            let same = self.0 > 99 && later.0 > 99;
            if same {
                *self = *later;
            }
            same
        }
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn the_last_are_kept_in_order_and_nothing_grows() {
        let mut recorder = Recorder::new(8);
        for n in 0..90 {
            recorder.record(at(n.into()), None, Number(n));
            let kept: Vec<u32> = recorder.all().map(|room| room.event.0).collect();
            let expected: Vec<u32> = ((n + 1).saturating_sub(8)..=n).collect();
            assert_eq!(kept, expected);
        }
        assert_eq!(recorder.rooms.capacity(), 8);
        let mut none = Recorder::new(0);
        none.record(at(1), None, Number(1));
        assert_eq!(none.all().count(), 0);
    }

    #[test]
    fn more_of_the_same_is_counted_in_one_room_wherever_that_is() {
        for before in 0..20 {
            let mut recorder = Recorder::new(8);
            (0..before).for_each(|n| recorder.record(at(0), None, Number(n)));
            let (one, other) = (Some(PeerIndex(1)), Some(PeerIndex(2)));
            recorder.record(at(10), one, Number(100));
            recorder.record(at(11), other, Number(100));
            recorder.record(at(12), one, Number(5));
            recorder.record(at(13), one, Number(101));
            let kept: Vec<_> = recorder.all().filter(|room| room.peer.is_some()).collect();
            let found: Vec<_> = kept.iter().map(|room| (room.event.0, room.times)).collect();
            assert_eq!(found, [(101, 2), (100, 1), (5, 1)], "after {before}");
            assert_eq!((kept[0].first, kept[0].last), (at(10), at(13)));
            // After a pause it is news.
            recorder.record(at(13) + PAUSE, one, Number(102));
            assert_eq!(recorder.all().last().map(|room| room.event.0), Some(102));
        }
    }

    #[test]
    fn lines_are_of_one_peer_and_the_rail_and_bounded() {
        let mut recorder = Recorder::new(8);
        recorder.record(at(1), Some(PeerIndex(1)), Number(1));
        recorder.record(at(2), Some(PeerIndex(2)), Number(2));
        recorder.record(at(3), None, Number(103));
        recorder.record(at(4), None, Number(104));
        recorder.record(at(5), Some(PeerIndex(1)), Number(5));
        let lines = recorder.lines(PeerIndex(1), at(1_005), 2);
        assert_eq!(
            lines,
            [
                "  1.002000 s before: (rail) number 104 (2 times, the last 1.001000 s before)",
                "  1.000000 s before: number 5",
            ]
        );
        assert_eq!(recorder.lines(PeerIndex(1), at(1_005), 9).len(), 3);
        recorder.record(Time::ZERO, None, Number(7));
        assert_eq!(
            recorder.lines(PeerIndex(1), at(1_005), 1),
            ["           at first: (rail) number 7"]
        );
    }
}
