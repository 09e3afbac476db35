//! What a hotel can refuse, and the ordinary "no vacancy" that is no error of the program.

use std::fmt;

use crate::{Key, MOST_ROOMS};

/// Why a call was refused. The hotel is unchanged in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HotelError {
    /// A number of rooms that no hotel can have.
    #[error("hotel: {asked} rooms are not usable: give 1 to {MOST_ROOMS}")]
    Rooms {
        /// The number of rooms requested.
        asked: usize,
    },

    /// The allocator had no memory left.
    #[error("hotel: no memory for {rooms} rooms; make the window smaller or raise the memory limit")]
    NoMemory {
        /// The number of rooms requested.
        rooms: usize,
    },

    /// The guest has left: evicted, or checked out before. Nothing was done to the guest that lives there
    /// now.
    #[error(
        "{0}: this stay has ended, by eviction or an earlier check-out; treat what brought the key as late, and do \
         not use a key twice"
    )]
    Stale(Key),

    /// There is no such room: the key is of another hotel.
    #[error("{key}: there is no such room, this hotel has {rooms}; the key is of another hotel")]
    NoSuchRoom {
        /// The key that was given.
        key: Key,
        /// The number of rooms of this hotel.
        rooms: u32,
    },
}

/// All rooms are taken: an ordinary result that hands the guest back.
///
/// Back-pressure is a value, not an error: check in again after a guest has left.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Overbooked<T>(pub T);

impl<T> fmt::Debug for Overbooked<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Overbooked(..)")
    }
}

impl<T> fmt::Display for Overbooked<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("hotel: all rooms are taken; check in again after a guest has left")
    }
}

impl<T> std::error::Error for Overbooked<T> {}
