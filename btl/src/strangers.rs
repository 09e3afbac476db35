//! Who calls and is not open: connection ids of frames that were dropped because nobody here has them.
//!
//! ```text
//!   a frame of an unknown id ─► dropped, and sent again by its sender until the peer is opened, or given up
//!        └ it may begin something ─► noted ─► told once (`stranger`) ─► 20 ms of silence about it ─► may be noted again
//!                                      └ opened meanwhile: forgotten
//! ```
//!
//! Both ends derive the id of a connection from the job's key, their addresses and their incarnations, so the id alone
//! says to the owner who calls, once it knows the address. It cannot be guessed, but nothing here was checked: the MAC of
//! a frame needs the peer. Whatever comes costs one look through the notes, of which there are few, and at most one call
//! of the owner's look-up. Ids that nobody has are told as well: of former lives, of another job on the port, of frames
//! that were damaged.
//!
//! Where more ids come than are noted, those that were told are forgotten first, and one that waits to be told is never
//! driven out: what found no room is noted when its sender repeats it.

use std::time::Duration;

use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::message::Caller;

use crate::btl::Btl;
use crate::core::Core;
use crate::wire::{Kind, Parsed};

/// So many ids are noted: what one poll receives at most.
const MOST: usize = 64;
/// For so long an id is not noted again (ns): a prober's first frames come within milliseconds of each other.
const PAUSE: u64 = Duration::from_millis(20).as_nanos() as u64;

/// An id of nobody's.
#[derive(Clone, Copy, Debug)]
struct Note {
    connection: u64,
    told: bool,
    /// From here on it is news again (ns).
    again: u64,
}

/// Ids that were heard of lately.
#[derive(Debug)]
pub(crate) struct Strangers {
    notes: Vec<Note>,
    untold: usize,
}

impl Strangers {
    pub(crate) fn new() -> Self {
        Self {
            notes: Vec::with_capacity(MOST),
            untold: 0,
        }
    }

    /// An id was heard of, which nobody here has.
    fn note(&mut self, connection: u64, now: u64) {
        let note = Note {
            connection,
            told: false,
            again: now.saturating_add(PAUSE),
        };
        let known = self.notes.iter().position(|one| one.connection == connection);
        let place = match known {
            Some(at) if !self.notes[at].told || now < self.notes[at].again => return,
            Some(at) => Some(at),
            None if self.notes.len() < MOST => None,
            None => match self.oldest_told() {
                Some(at) => Some(at),
                None => return,
            },
        };
        match place {
            Some(at) => self.notes[at] = note,
            None => self.notes.push(note),
        }
        self.untold += 1;
    }

    fn oldest_told(&self) -> Option<usize> {
        let told = self.notes.iter().enumerate().filter(|(_, note)| note.told);
        told.min_by_key(|(_, note)| note.again).map(|(at, _)| at)
    }

    /// The next id that was not told yet.
    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.untold == 0 {
            return None;
        }
        self.tell()
    }

    #[cold]
    fn tell(&mut self) -> Option<u64> {
        let untold = self.notes.iter_mut().filter(|note| !note.told);
        let note = untold.min_by_key(|note| note.again)?;
        note.told = true;
        self.untold -= 1;
        Some(note.connection)
    }

    /// Somebody has this id from here on.
    pub(crate) fn forget(&mut self, connection: u64) {
        if let Some(at) = self.notes.iter().position(|note| note.connection == connection) {
            let note = self.notes.swap_remove(at);
            self.untold -= usize::from(!note.told);
        }
    }
}

impl Core {
    /// A frame of a connection that nobody has here. What only answers begins nothing: it is of one that has ended.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_stranger(&mut self, parsed: &Parsed) {
        let begins = match parsed.kind {
            Kind::Frag | Kind::Chunk | Kind::Put | Kind::Get | Kind::Atomic | Kind::Ping | Kind::Call => true,
            Kind::Ack | Kind::Data | Kind::End | Kind::Bye | Kind::Pong => false,
        };
        if begins && !self.phase.is_closing() {
            self.strangers.note(parsed.connection, self.clock.now());
        }
    }
}

impl<D: Datagram> Btl<D> {
    /// See [`Message::stranger`](doorbell_fabric::message::Message::stranger).
    #[inline]
    pub(crate) fn next_stranger(&mut self) -> Option<Caller> {
        self.core.strangers.next().map(name)
    }
}

/// A connection id as the name of who sends on it.
pub(crate) fn name(connection: u64) -> Caller {
    Caller(u128::from(connection))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(strangers: &mut Strangers) -> Vec<u64> {
        std::iter::from_fn(|| strangers.next()).collect()
    }

    #[test]
    fn each_is_told_once_and_again_after_a_while() {
        let mut strangers = Strangers::new();
        for now in [5, 6, 7] {
            strangers.note(1, now);
            strangers.note(2, now);
        }
        assert_eq!(told(&mut strangers), [1, 2]);
        strangers.note(1, PAUSE + 4);
        assert_eq!(told(&mut strangers), []);
        strangers.note(1, PAUSE + 5);
        strangers.note(1, 3 * PAUSE);
        assert_eq!(told(&mut strangers), [1]);
        assert_eq!(strangers.notes.len(), 2);
    }

    #[test]
    fn whoever_is_opened_is_not_told() {
        let mut strangers = Strangers::new();
        (1..=3).for_each(|id| strangers.note(id, 0));
        strangers.forget(2);
        strangers.forget(7);
        assert_eq!(told(&mut strangers), [1, 3]);
        strangers.forget(1);
        assert_eq!((strangers.notes.len(), strangers.untold), (1, 0));
    }

    #[test]
    fn a_flood_drives_out_what_was_told_and_nothing_else() {
        let mut strangers = Strangers::new();
        let room = strangers.notes.capacity();
        let most = MOST as u64;
        (0..10 * most).for_each(|id| strangers.note(id, 0));
        assert_eq!(told(&mut strangers), (0..most).collect::<Vec<_>>());
        // All of them are told; each newcomer takes the place of the one that was noted first.
        (0..3).for_each(|id| strangers.note(id, PAUSE));
        (1000..1000 + most - 3).for_each(|id| strangers.note(id, PAUSE + 1));
        strangers.note(2000, PAUSE + 1);
        let expected: Vec<u64> = (0..3).chain(1000..1000 + most - 3).collect();
        assert_eq!(told(&mut strangers), expected);
        assert_eq!((strangers.notes.len(), strangers.notes.capacity()), (MOST, room));
    }
}
