//! The rings of this end, which peers write to.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::time::Time;

use super::Sizes;
use super::layout::{LONGEST, SLOT, SLOTS, Tail, has_come, lap, place, take};
use crate::rc::head::{Head, RING_NUMBERS};
use crate::sys::Registered;

/// Sends of one ring after the other until the queue is looked at.
const STREAK: u32 = SLOTS as u32;
/// A peer writes no more sends than there are slots.
const FULL: u64 = SLOTS as u64;
/// Looks at a slot that is not whole before some of them are left out, and how many are left out at most.
const EAGER: u32 = 3;
const MOST_LEFT_OUT: u32 = 64;
/// Sends over the queue that wait for one over the ring, at most: no peer has more credits.
pub(crate) const MOST_EARLY: usize = 64;

/// A send that came over the queue, and waits for those over the ring before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Early {
    pub(crate) slot: u32,
    pub(crate) length: usize,
    pub(crate) head: Head,
}

/// Whether the peer writes to a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    /// It was requested to stop, and may not have.
    Pausing,
    Paused,
}

/// What to do with a send that came over the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Now,
    Later,
    /// No peer can have sent it.
    Never,
}

/// A ring of one peer.
#[derive(Debug)]
pub(crate) struct RingIn {
    pub(crate) peer: u32,
    memory: Arc<Registered>,
    first_lap: u32,
    /// Sends that were taken out of it.
    taken: u64,
    /// How often the next one had come, as its end has it, and was not whole; looks that are left out next.
    torn: u32,
    leaves_out: u32,
    early: VecDeque<Early>,
    pub(crate) state: State,
    /// Sends that are still shown once its connection is on the way to its end: no more than it had place
    /// for.
    last_sends: usize,
    /// Messages of the peer up to the last look.
    pub(crate) seen: u64,
    /// Sends that were taken up to the last look, and how long at least a hole has been there.
    looked: (u64, Time),
    hole: Duration,
}

impl RingIn {
    pub(crate) fn new(peer: u32, memory: Arc<Registered>, first_lap: u32, now: Time) -> Self {
        Self {
            peer,
            memory,
            first_lap,
            taken: 0,
            torn: 0,
            leaves_out: 0,
            early: VecDeque::with_capacity(MOST_EARLY),
            state: State::Open,
            last_sends: SLOTS + MOST_EARLY,
            seen: 0,
            looked: (0, now),
            hole: Duration::ZERO,
        }
    }

    /// The slot of a send, by the sends before it.
    #[inline]
    fn slot(&self, sends: u64) -> SharedBytes<'_> {
        self.memory.memory().as_shared().skip(place(sends)).take(SLOT)
    }

    /// Whether the end of the next slot has come, or a send over the queue can be shown.
    #[inline]
    fn has_something(&self) -> bool {
        has_come(self.slot(self.taken), lap(self.first_lap, self.taken)) || self.is_early_due()
    }

    #[inline]
    fn is_early_due(&self) -> bool {
        let front = self.early.front();
        front.is_some_and(|early| self.distance(&early.head) == 0)
    }

    /// Sends over the ring that come before one over the queue and were not taken.
    #[inline]
    fn distance(&self, head: &Head) -> u64 {
        head.ring_number().wrapping_sub(self.taken) % RING_NUMBERS
    }

    /// Copies the next send out of its slot, if it is whole; it stays the next one. One that is half written
    /// is whole soon; one that stays torn is copied at fewer and fewer looks.
    #[inline]
    pub(crate) fn peek(&mut self, into: &mut [u8; LONGEST]) -> Option<Tail> {
        if self.leaves_out > 0 {
            self.leaves_out -= 1;
            return None;
        }
        let lap = lap(self.first_lap, self.taken);
        let tail = take(self.slot(self.taken), lap, into);
        if tail.is_none() && has_come(self.slot(self.taken), lap) {
            self.was_torn();
        }
        tail
    }

    #[cold]
    fn was_torn(&mut self) {
        self.torn = self.torn.saturating_add(1);
        let doubled = 1 << self.torn.saturating_sub(EAGER).min(16);
        self.leaves_out = if self.torn > EAGER {
            MOST_LEFT_OUT.min(doubled)
        } else {
            0
        };
    }

    /// The next send was taken.
    #[inline]
    pub(crate) fn step(&mut self) {
        self.taken += 1;
        (self.torn, self.leaves_out) = (0, 0);
    }

    /// Takes the oldest send over the queue, if everything before it was taken.
    #[inline]
    pub(crate) fn next_early(&mut self) -> Option<Early> {
        let is_due = self.is_early_due();
        is_due.then(|| self.early.pop_front()).flatten()
    }

    /// Whether a send over the queue is the next one.
    pub(crate) fn turn_of(&self, head: &Head) -> Turn {
        match self.distance(head) {
            0 if self.early.is_empty() => Turn::Now,
            0..=FULL if self.early.len() < MOST_EARLY => Turn::Later,
            _ => Turn::Never,
        }
    }

    /// Keeps a send over the queue until it is the next one.
    pub(crate) fn keep(&mut self, early: Early) {
        self.early.push_back(early);
    }

    /// How long there has been a hole: the next send is missing, and one behind it has come; or it has come
    /// once, and was not whole. Time that this process stood still does not count.
    pub(crate) fn hole(&mut self, now: Time, longest_step: Duration) -> Duration {
        let (taken, at) = std::mem::replace(&mut self.looked, (self.taken, now));
        let is_behind = |ahead: u64| {
            let sends = self.taken + ahead;
            has_come(self.slot(sends), lap(self.first_lap, sends))
        };
        let next = take(
            self.slot(self.taken),
            lap(self.first_lap, self.taken),
            &mut [0; LONGEST],
        );
        let is_hole = next.is_none()
            && (self.torn > 0
                || !self.early.is_empty() && !self.is_early_due()
                || (0..SLOTS as u64).any(is_behind));
        self.hole = match is_hole && taken == self.taken {
            true => self.hole + now.since(at).min(longest_step),
            false => Duration::ZERO,
        };
        self.hole
    }
}

/// The rings of a rail.
pub(crate) struct Rings {
    list: Vec<RingIn>,
    pub(crate) sizes: Sizes,
    /// Peers that have sent enough for one.
    pub(crate) wanted: Vec<u32>,
    /// The send whose messages are being shown.
    copy: Box<[u8; LONGEST]>,
    /// Sends over rings since the queue was looked at.
    streak: u32,
    /// Behind the ring that a send was taken out of last.
    turn: usize,
    /// Whether this process has prepared to sleep since the last look.
    pub(crate) has_slept: bool,
}

impl Rings {
    pub(crate) fn new(sizes: Sizes) -> Self {
        Self {
            list: Vec::new(),
            sizes,
            wanted: Vec::new(),
            copy: Box::new([0; LONGEST]),
            streak: 0,
            turn: 0,
            has_slept: false,
        }
    }

    /// Whether there are any.
    #[inline]
    pub(crate) fn are_used(&self) -> bool {
        !self.list.is_empty()
    }

    /// Whether there is room for one more.
    pub(crate) fn has_room(&self) -> bool {
        self.list.len() < self.sizes.peers
    }

    /// Whether rings are looked at before the queue.
    #[inline]
    pub(crate) fn are_first(&self) -> bool {
        self.are_used() && self.streak < STREAK
    }

    /// The queue is looked at.
    #[inline]
    pub(crate) fn look_at_queue(&mut self) {
        self.streak = 0;
    }

    /// A send was taken out of the ring at this place: the next look begins behind it.
    #[inline]
    pub(crate) fn took(&mut self, at: usize) {
        self.streak += 1;
        self.turn = at + 1;
    }

    /// The place of a ring that may have something: in turn from the first one on, one load for each.
    #[inline]
    pub(crate) fn find(&self, from: usize) -> Option<usize> {
        let (count, first) = (self.list.len(), self.first());
        let place = |step: usize| match first + step {
            at if at < count => at,
            at => at - count,
        };
        (from..count).map(place).find(|at| self.list[*at].has_something())
    }

    /// The ring that is looked at first.
    #[inline]
    fn first(&self) -> usize {
        if self.turn < self.list.len() { self.turn } else { 0 }
    }

    /// How many steps from the first one a place is.
    pub(crate) fn steps_to(&self, at: usize) -> usize {
        match at.checked_sub(self.first()) {
            Some(steps) => steps,
            None => at + self.list.len() - self.first(),
        }
    }

    #[inline]
    pub(crate) fn at(&mut self, at: usize) -> (&mut RingIn, &mut [u8; LONGEST]) {
        (&mut self.list[at], &mut self.copy)
    }

    #[inline]
    pub(crate) fn of(&mut self, peer: u32) -> Option<&mut RingIn> {
        self.list.iter_mut().find(|ring| ring.peer == peer)
    }

    /// The place of the ring of a peer whose connection is on the way to its end, if it may have sends that
    /// are to be shown: others that know its key may write to it without end.
    pub(crate) fn place_of_ending(&self, peer: u32) -> Option<usize> {
        self.list
            .iter()
            .position(|ring| ring.peer == peer && ring.last_sends > 0)
    }

    /// A send of such a ring was opened.
    pub(crate) fn took_of_ending(&mut self, peer: u32) {
        if let Some(ring) = self.of(peer) {
            ring.last_sends = ring.last_sends.saturating_sub(1);
        }
    }

    pub(crate) fn add(&mut self, ring: RingIn) {
        self.list.push(ring);
    }

    /// Forgets a peer's ring; returns the sends over the queue that waited for it.
    pub(crate) fn remove(&mut self, peer: u32) -> VecDeque<Early> {
        let at = self.list.iter().position(|ring| ring.peer == peer);
        at.map(|at| self.list.swap_remove(at).early).unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Has one that is open pause; returns its peer.
    pub(crate) fn pause_one(&mut self) -> Option<u32> {
        let ring = self.list.iter_mut().find(|ring| ring.state == State::Open)?;
        ring.state = State::Pausing;
        Some(ring.peer)
    }

    /// Whether a peer may write to one: that raises no event, so the rings have to be looked at.
    pub(crate) fn are_watched(&self) -> bool {
        self.list.iter().any(|ring| ring.state != State::Paused)
    }

    /// The bytes of the send that was copied last.
    #[inline]
    pub(crate) fn copied(&self, length: usize) -> SharedBytes<'_> {
        SharedBytes::of(&self.copy[..length.min(LONGEST)])
    }
}

#[cfg(test)]
impl RingIn {
    pub(crate) fn begin_with(&mut self, first_lap: u32) {
        self.first_lap = first_lap;
    }

    /// How often the next send was copied and was not whole.
    pub(crate) fn torn(&self) -> u32 {
        self.torn
    }

    pub(crate) fn first_lap(&self) -> u32 {
        self.first_lap
    }

    pub(crate) fn memory(&self) -> &doorbell_fabric::memory::RegionSlice {
        self.memory.memory()
    }
}
