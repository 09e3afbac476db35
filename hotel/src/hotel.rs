//! Rooms, guests and the reception. Where guests wait for their deadline is the wheel's business.
//!
//! Check-in and check-out are inlined always: a call hands key and result over in memory, in pieces that the
//! reader has to wait for, and takes half as long again.

use std::fmt;

use crate::error::{HotelError, Overbooked};
use crate::key::{Key, Lock, MOST_ROOMS};
use crate::wheel::{Due, Wheel};

/// A fixed number of rooms for guests with deadlines.
///
/// ```text
///   vacant: stack of room numbers      rooms: lock, deadline, guest      wheel: who is due when
/// ```
///
/// Of the vacant rooms the one that was left last is given first: its lines are in the cache. A new hotel
/// begins with its highest room.
///
/// Times are nanoseconds; the crate's first page states the rules for them.
pub struct Hotel<T> {
    rooms: Box<[Room<T>]>,
    /// Numbers of vacant rooms: the first `vacancies` of them.
    vacant: Box<[u32]>,
    vacancies: usize,
    wheel: Wheel,
}

/// One room, with its guest while it is taken.
struct Room<T> {
    lock: Lock,
    deadline: u64,
    guest: Option<T>,
}

/// A guest that was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the guest has left the hotel"]
pub struct Evicted<T> {
    /// The key that the guest had. It opens nothing any more.
    pub key: Key,
    /// The guest that was evicted.
    pub guest: T,
    /// The deadline that has passed, in nanoseconds, as it was booked.
    pub deadline: u64,
}

impl<T> Hotel<T> {
    /// Creates a hotel with `rooms` rooms, all vacant, at time `now` (ns). This is the only call that
    /// allocates.
    ///
    /// # Errors
    ///
    /// [`HotelError::Rooms`] for none or more than [`MOST_ROOMS`]; [`HotelError::NoMemory`].
    pub fn new(rooms: usize, now: u64) -> Result<Self, HotelError> {
        let count = match u32::try_from(rooms) {
            Ok(count) if (1..=MOST_ROOMS).contains(&rooms) => count,
            _ => return Err(HotelError::Rooms { asked: rooms }),
        };
        let no_memory = HotelError::NoMemory { rooms };
        let (mut inner, mut vacant) = (Vec::new(), Vec::new());
        inner.try_reserve_exact(rooms).map_err(|_| no_memory)?;
        vacant.try_reserve_exact(rooms).map_err(|_| no_memory)?;
        inner.extend((0..count).map(|number| Room {
            lock: Lock::new(number),
            deadline: 0,
            guest: None,
        }));
        vacant.extend(0..count);
        Ok(Self {
            rooms: inner.into_boxed_slice(),
            vacant: vacant.into_boxed_slice(),
            vacancies: rooms,
            wheel: Wheel::new(count, now).ok_or(no_memory)?,
        })
    }

    /// Gives the guest a room until `deadline` (ns). A deadline that has passed is due at the next tick.
    ///
    /// # Errors
    ///
    /// [`Overbooked`] with the guest, when no room is vacant.
    #[inline(always)]
    pub fn check_in(&mut self, guest: T, deadline: u64) -> Result<Key, Overbooked<T>> {
        match self.vacancy() {
            Some(vacancy) => Ok(vacancy.check_in(guest, deadline)),
            None => Err(Overbooked(guest)),
        }
    }

    /// A room that is certainly free, for a caller that must know so before there is a guest; `None` when all
    /// are taken. Dropping it changes nothing.
    #[inline(always)]
    pub fn vacancy(&mut self) -> Option<Vacancy<'_, T>> {
        let top = self.vacancies.checked_sub(1)?;
        let room = self.vacant[top];
        Some(Vacancy { hotel: self, room })
    }

    /// Takes the guest out, before its deadline.
    ///
    /// # Errors
    ///
    /// [`HotelError::Stale`] when the guest has left, and nothing is changed; [`HotelError::NoSuchRoom`].
    #[inline(always)]
    pub fn check_out(&mut self, key: Key) -> Result<T, HotelError> {
        let number = key.room();
        let Some(room) = self.rooms.get_mut(number as usize) else {
            return Err(self.no_such_room(key));
        };
        if !room.lock.opens(key) {
            return Err(HotelError::Stale(key));
        }
        // The lock opened, so a guest lives there.
        let guest = room.guest.take().ok_or(HotelError::Stale(key))?;
        room.lock.change();
        self.leave(number);
        Ok(guest)
    }

    /// Gives a guest another deadline (ns), earlier or later; it keeps its room and key.
    ///
    /// # Errors
    ///
    /// Those of [`Hotel::check_out`].
    #[inline(always)]
    pub fn re_book(&mut self, key: Key, deadline: u64) -> Result<(), HotelError> {
        self.room_mut(key)?.deadline = deadline;
        self.wheel.remove(key.room());
        self.wheel.place(key.room(), deadline);
        Ok(())
    }

    /// Looks at a guest.
    ///
    /// # Errors
    ///
    /// Those of [`Hotel::check_out`].
    #[inline]
    pub fn knock(&self, key: Key) -> Result<&T, HotelError> {
        self.room(key)?.guest.as_ref().ok_or(HotelError::Stale(key))
    }

    /// Looks at a guest, to change it in place.
    ///
    /// # Errors
    ///
    /// Those of [`Hotel::check_out`].
    #[inline]
    pub fn knock_mut(&mut self, key: Key) -> Result<&mut T, HotelError> {
        self.room_mut(key)?.guest.as_mut().ok_or(HotelError::Stale(key))
    }

    /// Returns the deadline that a guest has booked, in nanoseconds.
    ///
    /// # Errors
    ///
    /// Those of [`Hotel::check_out`].
    #[inline]
    pub fn deadline(&self, key: Key) -> Result<u64, HotelError> {
        self.room(key).map(|room| room.deadline)
    }

    /// Evicts one guest that is due at `now` (ns), the earliest; `None` when no guest is due.
    ///
    /// Call it until it gives `None`, or as often as there is room for the work that follows: a guest that is
    /// left is due at the next call. In order of deadlines; those of the same nanosecond, and those whose
    /// deadline had passed when they booked (they count as of that moment), in no particular order. The guest
    /// has left, and its room is vacant, when the call returns, so that it can be checked in again at once.
    /// A guest that is checked in again with a deadline that has passed is evicted again by the same loop.
    #[inline]
    pub fn evict(&mut self, now: u64) -> Option<Evicted<T>> {
        if self.wheel.quiet(now) {
            return None;
        }
        self.evict_due()
    }

    /// Evicts all guests that are due at `now` (ns), in the order of [`Hotel::evict`], and returns how many.
    #[inline]
    pub fn tick(&mut self, now: u64, mut each: impl FnMut(Evicted<T>)) -> usize {
        let mut count = 0;
        while let Some(evicted) = self.evict(now) {
            each(evicted);
            count += 1;
        }
        count
    }

    /// Returns when to tick next, in nanoseconds; `None` when the hotel is empty.
    ///
    /// A lower bound: never later than the earliest deadline, and earlier by at most 1/8 of the time that lay
    /// between booking and deadline (exact for the last 64 ns). So a tick at this time may evict no guest;
    /// the next answer is then a later one, and after at most 10 of them it is exact. Before the present time
    /// only by deadlines that had passed when they were booked.
    #[inline]
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.wheel.next()
    }

    /// The latest time that was passed to the hotel, in nanoseconds.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u64 {
        self.wheel.now()
    }

    /// Returns the number of rooms.
    #[inline]
    #[must_use]
    pub fn rooms(&self) -> usize {
        self.rooms.len()
    }

    /// Returns the number of vacant rooms.
    #[inline]
    #[must_use]
    pub fn vacancies(&self) -> usize {
        self.vacancies
    }

    /// Returns the number of guests.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.rooms.len() - self.vacancies
    }

    /// Whether all rooms are vacant.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.vacancies == self.rooms.len()
    }

    /// All guests with key and deadline (ns), by room: for reports, and for moving everything elsewhere.
    /// Looks at every room.
    pub fn guests(&self) -> impl Iterator<Item = (Key, &T, u64)> {
        let taken = |room: &'_ Room<T>| room.guest.is_some();
        let rooms = self.rooms.iter().filter(move |room| taken(room));
        rooms.filter_map(|room| Some((room.lock.key(), room.guest.as_ref()?, room.deadline)))
    }

    /// Drops all guests; their keys open nothing any more. The time stays. Looks at every room.
    pub fn clear(&mut self) {
        for (room, inner) in (0u32..).zip(0..self.rooms.len()) {
            if self.rooms[inner].guest.is_some() {
                drop(self.vacate(room));
            }
        }
    }

    /// The room that a key opens.
    #[inline]
    fn room(&self, key: Key) -> Result<&Room<T>, HotelError> {
        match self.rooms.get(key.room() as usize) {
            Some(room) if room.lock.opens(key) => Ok(room),
            Some(_) => Err(HotelError::Stale(key)),
            None => Err(self.no_such_room(key)),
        }
    }

    /// The room that a key opens.
    #[inline]
    fn room_mut(&mut self, key: Key) -> Result<&mut Room<T>, HotelError> {
        self.room(key)?;
        Ok(&mut self.rooms[key.room() as usize])
    }

    #[cold]
    fn no_such_room(&self, key: Key) -> HotelError {
        HotelError::NoSuchRoom {
            key,
            rooms: self.rooms.len() as u32,
        }
    }

    /// Takes the guest out of a room, if there is one.
    #[inline]
    fn vacate(&mut self, number: u32) -> Option<T> {
        let room = &mut self.rooms[number as usize];
        let guest = room.guest.take()?;
        room.lock.change();
        self.leave(number);
        Some(guest)
    }

    /// Cancels the timer of a room whose guest has just left, and makes it vacant.
    #[inline(always)]
    fn leave(&mut self, number: u32) {
        self.wheel.remove(number);
        self.vacant[self.vacancies] = number;
        self.vacancies += 1;
    }

    /// The slow half of [`Hotel::evict`]: something may be due.
    #[inline(never)]
    fn evict_due(&mut self) -> Option<Evicted<T>> {
        loop {
            match self.wheel.due()? {
                Due::Room(number) => {
                    let room = &self.rooms[number as usize];
                    let (key, deadline) = (room.lock.key(), room.deadline);
                    let guest = self.vacate(number)?;
                    return Some(Evicted { key, guest, deadline });
                }
                Due::Slots => {
                    let rooms = &self.rooms;
                    self.wheel.spread(|number| rooms[number as usize].deadline);
                }
            }
        }
    }
}

impl<T> fmt::Debug for Hotel<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Hotel")
            .field("rooms", &self.rooms())
            .field("guests", &self.len())
            .field("now", &self.now())
            .field("next_deadline", &self.next_deadline())
            .finish()
    }
}

/// A room that is free: checking in cannot fail.
#[must_use = "a vacancy that is dropped stays vacant"]
pub struct Vacancy<'a, T> {
    hotel: &'a mut Hotel<T>,
    room: u32,
}

impl<T> Vacancy<'_, T> {
    /// The key that the guest will have, for guests that carry their own.
    #[inline]
    #[must_use]
    pub fn key(&self) -> Key {
        let mut lock = self.hotel.rooms[self.room as usize].lock;
        lock.change();
        lock.key()
    }

    /// Gives the room to a guest, until `deadline` (ns).
    #[inline(always)]
    pub fn check_in(self, guest: T, deadline: u64) -> Key {
        let room = &mut self.hotel.rooms[self.room as usize];
        room.lock.change();
        room.deadline = deadline;
        room.guest = Some(guest);
        let key = room.lock.key();
        self.hotel.vacancies -= 1;
        self.hotel.wheel.place(self.room, deadline);
        key
    }
}

impl<T> fmt::Debug for Vacancy<'_, T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Vacancy({})", self.key())
    }
}

const _: () = assert!(
    size_of::<Room<u64>>() == 32,
    "two rooms a cache line for a guest of a word"
);
