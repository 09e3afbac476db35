//! Senders that call and are not open here: ids of connections whose frames were dropped.
//!
//! ```text
//!   a frame of an unknown id ─► dropped, and sent again by its sender until the peer is opened, or given up
//!        └ it may begin something ─► noted ─► reported once (`stranger`) ─► after 20 ms: may be noted again
//!                                      └ opened meanwhile: forgotten
//! ```
//!
//! For rails whose connections have ids that both ends derive from a key, their addresses and their
//! incarnations: the id alone identifies the caller to the owner, once it knows the address. It cannot be
//! guessed, and proves nothing. Whatever comes costs one look through the notes, of which there are few, and
//! at most one call of the owner's look-up. Ids of no peer are reported as well: of former lives, of another
//! job on the port, of damaged frames.
//!
//! Where more ids come than are noted, those that were reported are dropped first, and one that waits to be
//! reported is never evicted: what found no room is noted when its sender repeats it.

use std::time::Duration;

use crate::message::Caller;
use crate::time::Time;

/// Ids that are noted at most: as many as one poll receives frames.
const MOST: usize = 64;
/// How long an id is not noted again: a prober's first frames come within milliseconds of each other.
const PAUSE: Duration = Duration::from_millis(20);

/// The id of a connection that is not open here.
#[derive(Clone, Copy, Debug)]
struct Note {
    connection: u64,
    reported: bool,
    /// The time from which it is reported again.
    again: Time,
}

/// Ids of connections that are not open here, of which frames came recently.
#[derive(Clone, Debug)]
pub struct Strangers {
    notes: Vec<Note>,
    unreported: usize,
}

impl Strangers {
    /// No ids; room for all that are noted.
    #[must_use]
    pub fn new() -> Self {
        Self {
            notes: Vec::with_capacity(MOST),
            unreported: 0,
        }
    }

    /// Notes an id of a connection that is not open here.
    pub fn note(&mut self, connection: u64, now: Time) {
        let note = Note {
            connection,
            reported: false,
            again: now + PAUSE,
        };
        let known = self.notes.iter().position(|one| one.connection == connection);
        let place = match known {
            Some(at) if !self.notes[at].reported || now < self.notes[at].again => return,
            Some(at) => Some(at),
            None if self.notes.len() < MOST => None,
            None => match self.oldest_reported() {
                Some(at) => Some(at),
                None => return,
            },
        };
        match place {
            Some(at) => self.notes[at] = note,
            None => self.notes.push(note),
        }
        self.unreported += 1;
    }

    fn oldest_reported(&self) -> Option<usize> {
        let reported = self.notes.iter().enumerate().filter(|(_, note)| note.reported);
        reported.min_by_key(|(_, note)| note.again).map(|(at, _)| at)
    }

    /// Returns the next sender that was not reported yet.
    #[inline]
    pub fn report(&mut self) -> Option<Caller> {
        if self.unreported == 0 {
            return None;
        }
        self.next().map(name)
    }

    #[cold]
    fn next(&mut self) -> Option<u64> {
        let unreported = self.notes.iter_mut().filter(|note| !note.reported);
        let note = unreported.min_by_key(|note| note.again)?;
        note.reported = true;
        self.unreported -= 1;
        Some(note.connection)
    }

    /// Drops an id: its connection is open from here on.
    pub fn forget(&mut self, connection: u64) {
        if let Some(at) = self.notes.iter().position(|note| note.connection == connection) {
            let note = self.notes.swap_remove(at);
            self.unreported -= usize::from(!note.reported);
        }
    }
}

impl Default for Strangers {
    fn default() -> Self {
        Self::new()
    }
}

/// A connection's id as the name of its sender.
#[must_use]
pub fn name(connection: u64) -> Caller {
    Caller(u128::from(connection))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn reported(strangers: &mut Strangers) -> Vec<u64> {
        std::iter::from_fn(|| strangers.report().map(|caller| caller.0 as u64)).collect()
    }

    #[test]
    fn each_is_reported_once_and_again_after_a_while() {
        let mut strangers = Strangers::new();
        for now in [5, 6, 7] {
            strangers.note(1, at(now));
            strangers.note(2, at(now));
        }
        assert_eq!(reported(&mut strangers), [1, 2]);
        strangers.note(1, Time::ZERO + PAUSE + Duration::from_nanos(4));
        assert!(reported(&mut strangers).is_empty());
        strangers.note(1, Time::ZERO + PAUSE + Duration::from_nanos(5));
        strangers.note(1, Time::ZERO + 3 * PAUSE);
        assert_eq!(reported(&mut strangers), [1]);
        assert_eq!(strangers.notes.len(), 2);
    }

    #[test]
    fn a_connection_that_is_opened_is_not_reported() {
        let mut strangers = Strangers::new();
        (1..=3).for_each(|id| strangers.note(id, Time::ZERO));
        strangers.forget(2);
        strangers.forget(7);
        assert_eq!(reported(&mut strangers), [1, 3]);
        strangers.forget(1);
        assert_eq!((strangers.notes.len(), strangers.unreported), (1, 0));
    }

    #[test]
    fn a_flood_evicts_what_was_reported_and_nothing_else() {
        let mut strangers = Strangers::new();
        let room = strangers.notes.capacity();
        let most = MOST as u64;
        (0..10 * most).for_each(|id| strangers.note(id, Time::ZERO));
        assert_eq!(reported(&mut strangers), (0..most).collect::<Vec<_>>());
        // All of them were reported; each newcomer takes the place of the one that was noted first.
        (0..3).for_each(|id| strangers.note(id, Time::ZERO + PAUSE));
        (1000..1000 + most - 3)
            .for_each(|id| strangers.note(id, Time::ZERO + PAUSE + Duration::from_nanos(1)));
        strangers.note(2000, Time::ZERO + PAUSE + Duration::from_nanos(1));
        let expected: Vec<u64> = (0..3).chain(1000..1000 + most - 3).collect();
        assert_eq!(reported(&mut strangers), expected);
        assert_eq!((strangers.notes.len(), strangers.notes.capacity()), (MOST, room));
    }
}
