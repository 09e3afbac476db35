//! The bookkeeping of descriptor rings, which is the same for every card: which entries are in use, and what
//! they hold.
//!
//! ```text
//!   send ring      done ────► announced ────► posted      all count up; a slot is a count modulo the size
//!                  buffer free  the card's   ours
//!
//!   receive ring   taken ───► announced ────► given
//!                  buffer ours  the card's   not yet
//! ```
//!
//! A frame to send lies in the buffer of its slot, since slots come free in order. A received frame is looked
//! at in place and kept for as long as its reader likes, so the buffers of a receive ring move from slot to
//! slot.

use std::collections::VecDeque;

/// Frames posted so far on each of the two channels.
pub type Posted = [u64; 2];

/// Where the buffers of a send ring are.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Entries of the ring: a power of two.
    pub entries: usize,
    /// Offset of the first buffer in the rail's memory.
    pub buffers: usize,
    /// Bytes of a buffer.
    pub size: usize,
    /// Bus address of the first buffer.
    pub bus: u64,
}

/// The slots of a send ring.
#[derive(Debug)]
pub struct Slots {
    place: Place,
    /// Entries that may be in use at a time.
    most: usize,
    posted: u64,
    announced: u64,
    done: u64,
    /// The entries that the card reports on, oldest first.
    reports: VecDeque<u64>,
    /// For each slot, the number of frames posted up to and including it.
    frames: Box<[Posted]>,
    /// Frames whose buffers are free again.
    reaped: Posted,
    last: Posted,
}

impl Slots {
    /// An empty ring of which `unused` entries are never in use: one at least, or a full ring would look like
    /// an empty one.
    #[must_use]
    pub fn new(place: Place, unused: usize) -> Self {
        Self {
            place,
            most: place.entries - unused,
            posted: 0,
            announced: 0,
            done: 0,
            reports: VecDeque::with_capacity(place.entries),
            frames: vec![[0; 2]; place.entries].into(),
            reaped: [0; 2],
            last: [0; 2],
        }
    }

    /// Starts over with an empty ring, as after a reset of the card. It has released everything, and so all
    /// frames that were `posted`, here or in a ring that no longer exists.
    pub fn restart(&mut self, posted: Posted) {
        (self.posted, self.announced, self.done) = (0, 0, 0);
        self.reports.clear();
        (self.last, self.reaped) = (posted, posted);
    }

    /// Uses the buffers of another ring from now on, and starts over.
    pub fn move_to(&mut self, other: &Self) {
        (self.place, self.most) = (other.place, other.most);
        self.frames = vec![self.last; self.place.entries].into();
        self.reports = VecDeque::with_capacity(self.place.entries);
        self.restart(self.last);
    }

    /// The slot of a count.
    #[inline]
    fn slot(&self, count: u64) -> usize {
        count as usize & (self.place.entries - 1)
    }

    /// Entries of the ring.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.place.entries
    }

    /// Frames that can be posted now.
    #[inline]
    #[must_use]
    pub fn free(&self) -> usize {
        self.most.saturating_sub((self.posted - self.done) as usize)
    }

    /// Whether the card has released everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.posted == self.done
    }

    /// Entries that were announced to the card, and how many of them are done, since the ring started.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.announced, self.done)
    }

    /// Offset in the rail's memory of the next frame's buffer. There has to be a free entry.
    #[inline]
    #[must_use]
    pub fn buffer(&self) -> usize {
        self.place.buffers + self.slot(self.posted) * self.place.size
    }

    /// Bus address of the same buffer.
    #[inline]
    #[must_use]
    pub fn bus(&self) -> u64 {
        self.place.bus + (self.slot(self.posted) * self.place.size) as u64
    }

    /// The slot that is filled next: the ring's tail, once everything is posted.
    #[inline]
    #[must_use]
    pub fn next(&self) -> usize {
        self.slot(self.posted)
    }

    /// The last slot that was filled.
    #[inline]
    #[must_use]
    pub fn last(&self) -> usize {
        self.slot(self.posted.wrapping_sub(1))
    }

    /// Uses the next entry for the last of the frames `posted`; returns its slot.
    #[inline]
    pub fn push(&mut self, posted: Posted) -> usize {
        let slot = self.slot(self.posted);
        self.frames[slot] = posted;
        self.last = posted;
        self.posted += 1;
        slot
    }

    /// Uses the next entry for something that is no frame and that no report is waited for; returns its slot.
    /// The ring has to be empty.
    pub fn push_silent(&mut self) -> usize {
        let slot = self.push(self.last);
        self.done = self.posted;
        slot
    }

    /// Counts frames that were posted and are never given to the card: they are done when those before them
    /// are.
    #[inline]
    pub fn skip(&mut self, posted: Posted) {
        self.last = posted;
        if self.is_empty() {
            self.reaped = posted;
        } else {
            let slot = self.last();
            self.frames[slot] = posted;
        }
    }

    /// Whether the number of entries posted so far is a multiple of `entries`.
    #[inline]
    #[must_use]
    pub fn is_multiple_of(&self, entries: u64) -> bool {
        self.posted.is_multiple_of(entries)
    }

    /// The card reports when it is done with the last entry.
    #[inline]
    pub fn report(&mut self) {
        self.reports.push_back(self.posted - 1);
    }

    /// Entries that the card does not know yet.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.posted - self.announced
    }

    /// Announces everything posted: returns the tail to write to the card's register.
    #[inline]
    pub fn announce(&mut self) -> usize {
        self.announced = self.posted;
        self.slot(self.posted)
    }

    /// The tail that was announced last.
    #[must_use]
    pub fn tail(&self) -> usize {
        self.slot(self.announced)
    }

    /// The slot of the oldest entry that a report is expected of.
    #[inline]
    #[must_use]
    pub fn oldest(&self) -> Option<usize> {
        self.reports.front().map(|&count| self.slot(count))
    }

    /// The oldest report has come: its entry is done, and all before it.
    #[inline]
    pub fn complete_oldest(&mut self) {
        if let Some(count) = self.reports.pop_front() {
            self.done = count + 1;
            self.reaped = self.frames[self.slot(count)];
        }
    }

    /// The report on a slot has come; false where none was expected of it.
    #[inline]
    pub fn complete(&mut self, slot: usize) -> bool {
        let expected = |count: &u64| *count as usize & (self.place.entries - 1) == slot;
        let Some(at) = self.reports.iter().position(expected) else {
            return false;
        };
        let count = self.reports[at];
        if count >= self.announced {
            return false;
        }
        // One report covers all entries before it.
        self.reports.drain(..=at);
        self.done = count + 1;
        self.reaped = self.frames[self.slot(count)];
        true
    }

    /// Frames of a channel whose buffers are free again.
    #[inline]
    #[must_use]
    pub fn reaped(&self, channel: usize) -> u64 {
        self.reaped[channel]
    }
}

/// Stands for no buffer in a slot.
const NONE: u32 = u32::MAX;

/// The buffers in a receive ring.
#[derive(Debug)]
pub struct Lent {
    /// For each slot, the buffer that the card has.
    buffers: Box<[u32]>,
    taken: u64,
    given: u64,
    announced: u64,
}

impl Lent {
    /// An empty ring of `entries` entries, a power of two.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        Self {
            buffers: vec![NONE; entries].into(),
            taken: 0,
            given: 0,
            announced: 0,
        }
    }

    /// Starts over with an empty ring, as after a reset of the card: its buffers go back to `free`.
    pub fn restart(&mut self, free: &mut Vec<u32>) {
        for count in self.taken..self.given {
            let slot = self.slot(count);
            free.push(std::mem::replace(&mut self.buffers[slot], NONE));
        }
        (self.taken, self.given, self.announced) = (0, 0, 0);
    }

    #[inline]
    fn slot(&self, count: u64) -> usize {
        count as usize & (self.buffers.len() - 1)
    }

    /// Entries of the ring.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.buffers.len()
    }

    /// Fills the ring with free buffers, last in first out: `describe` writes the descriptor of a buffer into
    /// a slot. One entry is never used, or a full ring would look like an empty one.
    #[inline]
    pub fn give(&mut self, free: &mut Vec<u32>, mut describe: impl FnMut(usize, u32)) {
        while self.given - self.taken < self.buffers.len() as u64 - 1
            && let Some(buffer) = free.pop()
        {
            let slot = self.slot(self.given);
            describe(slot, buffer);
            self.buffers[slot] = buffer;
            self.given += 1;
        }
    }

    /// Entries that were filled and that the card does not know yet.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.given - self.announced
    }

    /// Announces all filled entries: returns the tail to write to the card's register.
    #[inline]
    pub fn announce(&mut self) -> usize {
        self.announced = self.given;
        self.slot(self.given)
    }

    /// The tail that was announced last.
    #[must_use]
    pub fn tail(&self) -> usize {
        self.slot(self.announced)
    }

    /// The slot that the card fills next, where it has one.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Option<usize> {
        (self.taken < self.given).then(|| self.slot(self.taken))
    }

    /// Returns how far ahead of that slot another one is, where it was announced.
    #[inline]
    #[must_use]
    pub fn ahead(&self, slot: usize) -> Option<usize> {
        let mask = self.buffers.len() - 1;
        let ahead = slot.wrapping_sub(self.slot(self.taken)) & mask;
        (slot <= mask && (ahead as u64) < self.announced - self.taken).then_some(ahead)
    }

    /// The card is done with its next slot: returns the buffer.
    #[inline]
    pub fn take(&mut self) -> u32 {
        let slot = self.slot(self.taken);
        self.taken += 1;
        std::mem::replace(&mut self.buffers[slot], NONE)
    }

    /// Buffers that the card has given back since the ring started.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }
}
