//! A plain model of the hotel, and what runs both side by side.

use std::collections::BTreeSet;

use doorbell_hotel::{Hotel, HotelError, Key};

/// One step of a run. Distances are from the present time; numbers choose among what there is.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    CheckIn { ahead: u64 },
    CheckInLate { back: u64 },
    CheckOut { which: usize },
    CheckOutStale { which: usize },
    ReBook { which: usize, ahead: u64 },
    ReBookLate { which: usize, back: u64 },
    ReBookStale { which: usize },
    EvictOne { by: u64 },
    Tick { by: u64 },
    TickBack { by: u64 },
    TickToNext,
    Clear,
}

/// A guest as the model has it.
#[derive(Debug, Clone, Copy)]
struct Guest {
    key: Key,
    number: u64,
    /// The deadline as it was booked.
    deadline: u64,
    /// The deadline as it counts: a deadline that had passed counts as of the booking.
    due: u64,
    /// The earliest time that the hotel may give as the next deadline on this guest's account.
    bound: u64,
}

/// A hotel and its model.
pub(crate) struct Pair {
    hotel: Hotel<u64>,
    guests: Vec<Option<Guest>>,
    queue: BTreeSet<(u64, u32)>,
    vacant: Vec<u32>,
    /// Keys of stays that have ended, the last few hundred.
    stale: Vec<Key>,
    /// Up to where all is done, and the latest time.
    cursor: u64,
    now: u64,
    numbers: u64,
    pub(crate) evictions: u64,
}

impl Pair {
    pub(crate) fn new(rooms: usize, now: u64) -> Self {
        Self {
            hotel: Hotel::new(rooms, now).unwrap(),
            guests: vec![None; rooms],
            queue: BTreeSet::new(),
            vacant: (0..rooms as u32).collect(),
            stale: Vec::new(),
            cursor: now,
            now,
            numbers: 0,
            evictions: 0,
        }
    }

    pub(crate) fn step(&mut self, step: &Step) {
        match *step {
            Step::CheckIn { ahead } => self.check_in(self.now.saturating_add(ahead)),
            Step::CheckInLate { back } => self.check_in(self.now.saturating_sub(back)),
            Step::CheckOut { which } => self.check_out(which),
            Step::CheckOutStale { which } => self.stale(which, |hotel, key| hotel.check_out(key).map(drop)),
            Step::ReBook { which, ahead } => self.re_book(which, self.now.saturating_add(ahead)),
            Step::ReBookLate { which, back } => self.re_book(which, self.now.saturating_sub(back)),
            Step::ReBookStale { which } => self.stale(which, |hotel, key| hotel.re_book(key, 0)),
            Step::EvictOne { by } => {
                self.evict(self.now.saturating_add(by));
            }
            Step::Tick { by } => self.tick(self.now.saturating_add(by)),
            Step::TickBack { by } => self.tick(self.now.saturating_sub(by)),
            Step::TickToNext => {
                let next = self.hotel.next_deadline().unwrap_or(self.now);
                self.tick(next.max(self.now));
            }
            Step::Clear => self.clear(),
        }
        self.compare();
    }

    fn booked(&self, key: Key, number: u64, deadline: u64) -> Guest {
        let due = deadline.max(self.cursor);
        let stay = due - self.cursor;
        let bound = if stay < 64 { due } else { due - stay / 8 };
        Guest {
            key,
            number,
            deadline,
            due,
            bound,
        }
    }

    fn check_in(&mut self, deadline: u64) {
        self.numbers += 1;
        let number = self.numbers;
        let answer = self.hotel.check_in(number, deadline);
        let Some(room) = self.vacant.pop() else {
            let refused = answer.expect_err("no room is vacant");
            assert_eq!(refused.0, number, "the guest comes back");
            return;
        };
        let key = answer.expect("a room is vacant");
        assert_eq!(key.room(), room, "the room that was left last");
        assert!(!self.stale.contains(&key), "keys are not given again");
        let guest = self.booked(key, number, deadline);
        self.queue.insert((guest.due, room));
        self.guests[room as usize] = Some(guest);
    }

    /// Chooses a guest that lives here.
    fn choose(&self, which: usize) -> Option<Guest> {
        let count = self.guests.len();
        (0..count).find_map(|at| self.guests[(which % count + at) % count])
    }

    /// The model's side of a departure.
    fn left(&mut self, guest: Guest) {
        let room = guest.key.room();
        assert!(self.queue.remove(&(guest.due, room)));
        self.guests[room as usize] = None;
        self.vacant.push(room);
        if self.stale.len() >= 300 {
            self.stale.swap_remove(self.numbers as usize % 300);
        }
        self.stale.push(guest.key);
        assert_eq!(self.hotel.knock(guest.key), Err(HotelError::Stale(guest.key)));
    }

    fn check_out(&mut self, which: usize) {
        let Some(guest) = self.choose(which) else { return };
        assert_eq!(self.hotel.knock(guest.key), Ok(&guest.number));
        assert_eq!(self.hotel.check_out(guest.key), Ok(guest.number));
        self.left(guest);
    }

    fn stale(&mut self, which: usize, call: fn(&mut Hotel<u64>, Key) -> Result<(), HotelError>) {
        if self.stale.is_empty() {
            return;
        }
        let key = self.stale[which % self.stale.len()];
        assert_eq!(call(&mut self.hotel, key), Err(HotelError::Stale(key)));
        assert_eq!(self.hotel.knock_mut(key), Err(HotelError::Stale(key)));
        assert_eq!(self.hotel.deadline(key), Err(HotelError::Stale(key)));
    }

    fn re_book(&mut self, which: usize, deadline: u64) {
        let Some(guest) = self.choose(which) else { return };
        self.hotel.re_book(guest.key, deadline).unwrap();
        let room = guest.key.room();
        self.queue.remove(&(guest.due, room));
        let guest = self.booked(guest.key, guest.number, deadline);
        self.queue.insert((guest.due, room));
        self.guests[room as usize] = Some(guest);
    }

    /// One eviction; whether there was one.
    fn evict(&mut self, now: u64) -> bool {
        let evicted = self.hotel.evict(now);
        self.now = self.now.max(now);
        let due = self
            .queue
            .first()
            .map(|&(due, _)| due)
            .filter(|&due| due <= self.now);
        assert_eq!(
            evicted.is_some(),
            due.is_some(),
            "at {now}: {evicted:?}, the earliest {due:?}"
        );
        let (Some(evicted), Some(due)) = (evicted, due) else {
            self.cursor = self.now;
            return false;
        };
        self.cursor = due;
        let guest = self.guests[evicted.key.room() as usize].expect("a guest lived there");
        assert_eq!(
            (evicted.key, evicted.guest, evicted.deadline),
            (guest.key, guest.number, guest.deadline)
        );
        assert_eq!(guest.due, due, "in the order of deadlines");
        self.left(guest);
        self.evictions += 1;
        true
    }

    fn tick(&mut self, now: u64) {
        while self.evict(now) {
            self.compare();
        }
        assert_eq!(
            self.hotel.tick(now, |evicted| panic!("{evicted:?}")),
            0,
            "all is done"
        );
    }

    fn clear(&mut self) {
        self.hotel.clear();
        for guest in self.guests.clone().into_iter().flatten() {
            self.left(guest);
        }
    }

    fn compare(&self) {
        let hotel = &self.hotel;
        assert_eq!(
            (hotel.len(), hotel.vacancies()),
            (self.queue.len(), self.vacant.len())
        );
        assert_eq!((hotel.is_empty(), hotel.now()), (self.queue.is_empty(), self.now));
        let earliest = self.queue.first().map(|&(due, _)| due);
        let next = hotel.next_deadline();
        assert_eq!(next.is_some(), earliest.is_some());
        if let (Some(next), Some(earliest)) = (next, earliest) {
            assert!(
                self.cursor <= next && next <= earliest,
                "{} {next} {earliest}",
                self.cursor
            );
        }
    }

    /// What takes too long for every step.
    pub(crate) fn compare_all(&self) {
        let ours = self.guests.iter().flatten();
        let ours = ours.map(|guest| (guest.key, guest.number, guest.deadline));
        let theirs = self
            .hotel
            .guests()
            .map(|(key, &number, deadline)| (key, number, deadline));
        assert!(theirs.eq(ours));
        let bound = self.guests.iter().flatten().map(|guest| guest.bound).min();
        assert!(self.hotel.next_deadline() >= bound, "no earlier than 1/8 before");
        for guest in self.guests.iter().flatten() {
            assert_eq!(self.hotel.deadline(guest.key), Ok(guest.deadline));
        }
    }
}
