//! Keys: one stay of one guest in one room.
//!
//! ```text
//!   63                           20 19            0
//!  ┌───────────────────────────────┬───────────────┐
//!  │ stay: odd while the room has a│ room          │
//!  │ guest, even while it is free  │               │
//!  └───────────────────────────────┴───────────────┘
//! ```
//!
//! A room keeps its present key, and each check-in and each leaving adds one to the stay: whether a key is
//! good is one comparison of words.

use std::fmt;
use std::num::NonZeroU64;

/// Bits of the room's number.
const ROOM_BITS: u32 = 20;

/// One more stay.
const STEP: NonZeroU64 = match NonZeroU64::new(1 << ROOM_BITS) {
    Some(step) => step,
    None => unreachable!(),
};

/// Most rooms that a hotel can have: a key has 20 bits for the room.
pub const MOST_ROOMS: usize = 1 << ROOM_BITS;

/// Names one stay of one guest, and opens nothing once that guest has left.
///
/// A number of 64 bits, and `Option<Key>` takes no more. The stay has 44 bits: a key would be good again when
/// its room has been taken 2⁴³ times since, which takes a day of doing nothing else, on one room, at 10 ns
/// each.
///
/// A hotel cannot distinguish a key of another hotel from its own: each hotel's keys are for that hotel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Key(NonZeroU64);

impl Key {
    /// Number of the room, from 0, for tables beside the hotel. Rooms are taken again; keys are not given
    /// again.
    #[inline]
    #[must_use]
    pub fn room(self) -> u32 {
        (self.0.get() & (MOST_ROOMS as u64 - 1)) as u32
    }

    /// Number of the stay in this room; odd in every key that a hotel gave out.
    #[inline]
    #[must_use]
    pub fn stay(self) -> u64 {
        self.0.get() >> ROOM_BITS
    }
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "room {}, stay {}", self.room(), self.stay())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Key({self})")
    }
}

/// The lock of a room: the key that opens it, or, while the room is vacant, what no key equals.
#[derive(Clone, Copy)]
pub(crate) struct Lock(u64);

impl Lock {
    /// The lock of a room that no guest has had yet.
    pub(crate) const fn new(room: u32) -> Self {
        Self(room as u64)
    }

    /// Whether the key opens it.
    #[inline]
    pub(crate) fn opens(self, key: Key) -> bool {
        self.0 == key.0.get()
    }

    /// Makes the next change: a guest comes, or goes. Stays begin again at 0 after 2⁴⁴.
    #[inline]
    pub(crate) fn change(&mut self) {
        self.0 = self.0.wrapping_add(STEP.get());
    }

    /// The key of the guest that lives there.
    #[inline]
    pub(crate) fn key(self) -> Key {
        // The lowest bit of a stay is set while a guest lives there; setting it again proves that to the
        // type.
        Key(STEP | self.0)
    }
}

const _: () = assert!(
    size_of::<Option<Key>>() == 8,
    "a segment stores its key or none in 8 bytes"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_opens_for_the_present_key_only() {
        let mut lock = Lock::new(7);
        lock.change();
        let first = lock.key();
        assert_eq!((first.room(), first.stay()), (7, 1));
        assert!(lock.opens(first));
        lock.change();
        assert!(!lock.opens(first), "the room is vacant");
        lock.change();
        assert!(!lock.opens(first) && lock.opens(lock.key()));
        assert_eq!(lock.key().to_string(), "room 7, stay 3");
    }

    #[test]
    fn stays_wrap_without_touching_the_room() {
        let last = (1 << 20) - 1;
        let mut lock = Lock(u64::MAX << ROOM_BITS | u64::from(last));
        assert_eq!(lock.key().stay(), (1 << 44) - 1, "a guest lives there");
        lock.change();
        assert_eq!(lock.0, u64::from(last));
        lock.change();
        assert_eq!((lock.key().room(), lock.key().stay()), (last, 1));
    }
}
