//! The wheel: in which slot each guest waits, and which slot comes next.
//!
//! A slot is a ring of links with an end of its own in it, so that a link is taken out without regard to its
//! place:
//!
//! ```text
//!   links: [ ends of 21 · 64 slots | one per room ]
//!            end ⇄ room 5 ⇄ room 2 ⇄ (the same end)
//! ```
//!
//! Invariants, with `cursor` the time up to which all is done:
//!
//! 1. no guest waits for a time before the cursor (an earlier deadline counts as the cursor's time);
//! 2. above level 0, no slot with guests begins at or before the cursor, and none is more than 64 ahead of
//!    the cursor's: so the bit of the cursor's own slot means the one 64 ahead, and nothing is ambiguous;
//! 3. a slot's bit is set exactly when it has guests, a level's when it has a slot;
//! 4. `wake` is at or before the beginning of every slot with guests.
//!
//! The cursor may advance without touching anything, as long as it stays before `wake`: that is the tick
//! which costs one comparison. reference: slots by occupancy words as in tokio's wheel, 64 slots a level with
//! levels 8 apart as in the timer wheel of Linux, whose coarse upper levels are here made exact by moving
//! guests down when their slot begins.

use crate::slot::{LEVELS, Level, SLOTS};

/// Links that are ends of slots; those of rooms come behind.
const ENDS: u32 = LEVELS as u32 * SLOTS;

/// A link of a ring, by index.
#[derive(Clone, Copy)]
struct Link {
    next: u32,
    prev: u32,
}

/// What is to be done next.
pub(crate) enum Due {
    /// The guest of this room is to be evicted; it is still in the wheel.
    Room(u32),
    /// The guests of slots that begin now are to be moved down.
    Slots,
}

/// All slots of one hotel. Rooms are known by number; when their guests are due, the hotel knows.
pub(crate) struct Wheel {
    links: Box<[Link]>,
    /// One bit per slot, one word per level; padded to a power of two, so that an index can be masked.
    occupied: [u64; 32],
    /// One bit per level.
    levels: u32,
    /// The time up to which all is done.
    cursor: u64,
    /// The latest time that was passed to us. After the cursor only while a guest is due.
    now: u64,
    /// The time before which no slot with guests begins.
    wake: u64,
}

impl Wheel {
    /// Creates an empty wheel for `rooms` rooms; `None` when there is no memory.
    pub(crate) fn new(rooms: u32, now: u64) -> Option<Self> {
        let count = ENDS + rooms;
        let mut links = Vec::new();
        links.try_reserve_exact(count as usize).ok()?;
        links.extend((0..count).map(|at| Link { next: at, prev: at }));
        Some(Self {
            links: links.into_boxed_slice(),
            occupied: [0; 32],
            levels: 0,
            cursor: now,
            now,
            wake: u64::MAX,
        })
    }

    /// The latest time that was passed to the wheel.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Takes the time, and returns whether there is certainly nothing to do.
    #[inline]
    pub(crate) fn quiet(&mut self, now: u64) -> bool {
        self.now = self.now.max(now);
        let quiet = self.now < self.wake;
        if quiet {
            self.cursor = self.now;
        }
        quiet
    }

    /// Puts a room that is in no slot into the one for its deadline.
    #[inline(always)]
    pub(crate) fn place(&mut self, room: u32, deadline: u64) {
        let when = deadline.max(self.cursor);
        let level = Level::of(when - self.cursor);
        let slot = level.slot_of(when);
        self.wake = self.wake.min(level.start_of(slot));
        let end = level.number() * SLOTS + (slot % u64::from(SLOTS)) as u32;
        self.mark(end);
        let last = self.links[end as usize].prev;
        self.links[end as usize].prev = ENDS + room;
        self.links[last as usize].next = ENDS + room;
        self.links[(ENDS + room) as usize] = Link {
            next: end,
            prev: last,
        };
    }

    /// Takes a room out of its slot.
    #[inline(always)]
    pub(crate) fn remove(&mut self, room: u32) {
        let Link { next, prev } = self.links[(ENDS + room) as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        if next == prev {
            // Both neighbours are the slot's end: no other room was there.
            self.unmark(next);
        }
    }

    /// A time at or before the earliest deadline.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        self.earliest().map(|(_, start)| start)
    }

    /// Returns what has to be done at the time that was passed to the wheel; `None` when all is done.
    pub(crate) fn due(&mut self) -> Option<Due> {
        let earliest = self.earliest();
        let start = earliest.map_or(u64::MAX, |(_, start)| start);
        self.wake = start;
        match earliest {
            Some((end, start)) if start <= self.now => {
                self.cursor = start;
                if end < SLOTS {
                    return Some(Due::Room(self.links[end as usize].next - ENDS));
                }
                Some(Due::Slots)
            }
            _ => {
                self.cursor = self.now;
                None
            }
        }
    }

    /// Moves the guests of all slots that begin at the cursor, which has just reached them, to narrower ones.
    ///
    /// All of them at once, since the cursor must not be in a slot whose guests are still there. No guest
    /// is moved into such a slot: one that stays above level 0 goes at least 8 slots ahead, and, as the
    /// cursor is at the beginning of the wider slot that they leave, fewer than 64.
    pub(crate) fn spread(&mut self, mut deadline_of: impl FnMut(u32) -> u64) {
        let mut levels = self.levels & !1;
        while levels != 0 {
            let level = Level::new(levels.trailing_zeros());
            levels &= levels - 1;
            let slot = level.slot_of(self.cursor);
            if level.start_of(slot) != self.cursor {
                return; // nor does a wider one begin here
            }
            let end = level.number() * SLOTS + (slot % u64::from(SLOTS)) as u32;
            self.empty(end, &mut deadline_of);
        }
    }

    /// Places all guests of a slot again.
    fn empty(&mut self, end: u32, deadline_of: &mut impl FnMut(u32) -> u64) {
        let mut at = self.links[end as usize].next;
        if at == end {
            return;
        }
        self.links[end as usize] = Link { next: end, prev: end };
        self.unmark(end);
        while at != end {
            let next = self.links[at as usize].next;
            self.place(at - ENDS, deadline_of(at - ENDS));
            at = next;
        }
    }

    /// The end of the slot with guests that begins first, and when. Of slots that begin together the widest,
    /// so that level 0 is the answer only when nothing is to be moved.
    #[inline]
    fn earliest(&self) -> Option<(u32, u64)> {
        let mut best = None;
        let mut levels = self.levels;
        while levels != 0 {
            let level = Level::new(levels.trailing_zeros());
            levels &= levels - 1;
            // Above level 0 the cursor's own slot is the last one, 64 ahead.
            let first = level.slot_of(self.cursor) + u64::from(level.number() != 0);
            let bits = self.occupied[level.number() as usize & 31].rotate_right((first % 64) as u32);
            // No overflow: the slot has a guest, and its deadline is a number.
            let slot = first + u64::from(bits.trailing_zeros());
            let start = level.start_of(slot);
            if best.is_none_or(|(_, earliest)| start <= earliest) {
                best = Some((level.number() * SLOTS + (slot % 64) as u32, start));
            }
        }
        best
    }

    #[inline(always)]
    fn mark(&mut self, end: u32) {
        let level = end / SLOTS;
        self.occupied[level as usize & 31] |= 1 << (end % SLOTS);
        self.levels |= 1 << level;
    }

    #[inline(always)]
    fn unmark(&mut self, end: u32) {
        let level = end / SLOTS;
        let word = &mut self.occupied[level as usize & 31];
        *word &= !(1 << (end % SLOTS));
        let empty = *word == 0;
        self.levels &= !(u32::from(empty) << level);
    }
}

const _: () = assert!(LEVELS <= 32 && SLOTS == u64::BITS, "bits of the occupancy words");
const _: () = assert!(size_of::<Link>() == 8);

#[cfg(test)]
mod tests;
