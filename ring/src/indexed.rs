//! Rings whose two sides publish their positions in index words, as between a process and the kernel
//! (AF_XDP).
//!
//! ```text
//!   │ producer │ … │ consumer │ … │ flags │ … │ entry 0 │ entry 1 │ …   one area; offsets by the other side
//! ```
//!
//! The indices are words of 32 bits that run on and wrap; an entry's slot is its index modulo the ring.
//! Either side's own index is kept in a private field and only ever stored to memory; what the far side
//! stores is believed only where it could be true, and counted in [`nonsense`](Producer::nonsense) where it
//! could not.

//!
//! An entry is copied word by word, each word exactly once, and decoded from the copy. All access is by
//! atomic words, so that a far side that writes at the wrong moment can cause wrong bytes, which are the
//! decoder's to refuse, and nothing worse.

use crate::error::{Full, RingError, check_capacity};
use crate::storage::{Access, Area};
use crate::sync::{AtomicU64, Ordering, fence};

const WORD: usize = 8;

/// Where in the area the index words and the entries are, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The producer's index.
    pub producer: usize,
    /// The consumer's index.
    pub consumer: usize,
    /// Flags of the far side: [`ASLEEP`].
    pub flags: usize,
    /// The first entry; behind the words.
    pub entries: usize,
}

/// The flag of a far side that sleeps until it is woken (`XDP_RING_NEED_WAKEUP`).
pub const ASLEEP: u32 = 1;

/// What both sides have.
struct Ring<const N: usize> {
    words: Area,
    places: Places,
    entries: Area,
    mask: u32,
    nonsense: u64,
}

impl<const N: usize> Ring<N> {
    const WORDS: usize = {
        assert!(
            N > 0 && N.is_multiple_of(WORD),
            "an entry is a whole number of 8-byte words"
        );
        N / WORD
    };

    fn new(what: &'static str, mut area: Area, count: usize, places: Places) -> Result<Self, RingError> {
        let words = area.split_to(places.entries)?;
        for at in [places.producer, places.consumer, places.flags] {
            words.view(at, 4)?;
            if !(words.address() + at).is_multiple_of(4) {
                return Err(RingError::Misaligned {
                    what,
                    address: words.address() + at,
                    align: 4,
                });
            }
        }
        words.check(what, 0, 1, Access::ReadWrite)?;
        check_capacity(what, count, 2, 1 << 24)?;
        area.check(what, count * Self::WORDS * WORD, WORD, Access::ReadWrite)?;
        Ok(Self {
            words,
            places,
            entries: area,
            mask: count as u32 - 1,
            nonsense: 0,
        })
    }

    /// Word `word` of the slot of `index`.
    ///
    /// # Safety
    /// `word` must be below `WORDS`.
    #[inline(always)]
    unsafe fn word(&self, index: u32, word: usize) -> &AtomicU64 {
        let at = (index & self.mask) as usize * N + word * WORD;
        // SAFETY: `new` checked that all slots lie inside, aligned, and may be written; the index is masked,
        // and the word is one of the slot's by the caller's promise.
        unsafe { self.entries.word(at) }
    }

    /// Copies the slot of `index`, each word once. Relaxed: covered by the Acquire of the producer's index.
    #[inline(always)]
    fn read(&self, index: u32) -> [u8; N] {
        let mut entry = [0; N];
        for (at, bytes) in entry.chunks_exact_mut(WORD).enumerate() {
            // SAFETY: as many words as the entry has.
            let word = unsafe { self.word(index, at) };
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        entry
    }

    /// Writes the slot of `index`. Relaxed: covered by the Release of the producer's index.
    #[inline(always)]
    fn write(&self, index: u32, entry: &[u8; N]) {
        for (at, bytes) in entry.chunks_exact(WORD).enumerate() {
            let mut value = [0; WORD];
            value.copy_from_slice(bytes);
            // SAFETY: as many words as the entry has.
            let word = unsafe { self.word(index, at) };
            word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn load(&self, at: usize) -> u32 {
        // Acquire pairs with the far side's Release: entries before it were written, or have been read. With
        // Relaxed, an entry could be read that is not there yet, or written over while it is still being
        // read.
        // SAFETY: `new` checked the places.
        unsafe { self.words.half(at) }.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn store(&self, at: usize, value: u32) {
        // SAFETY: `new` checked the places, and that the area may be written.
        unsafe { self.words.half(at) }.store(value, Ordering::Release);
    }

    /// Whether the other side has to be woken. Whatever was stored before the call is visible to a side that
    /// sets its flag and then checks the ring a last time, or its flag is visible here. Some check first
    /// (drivers that refill their queues): they are checked again later.
    #[inline]
    fn is_asleep(&self) -> bool {
        // Without the fence both could look before the other's store is seen.
        fence(Ordering::SeqCst);
        self.load(self.places.flags) & ASLEEP != 0
    }

    #[inline]
    fn count(&self) -> u32 {
        self.mask + 1
    }
}

/// The side that writes entries of `N` bytes.
pub struct Producer<const N: usize> {
    ring: Ring<N>,
    /// Entries written so far, those published to the far side, and those it is known to have taken.
    next: u32,
    told: u32,
    taken: u32,
}

impl<const N: usize> Producer<N> {
    /// Writes into a ring of `count` unused entries. Errors call it `what`.
    ///
    /// # Errors
    /// [`RingError::Capacity`] unless `count` is a power of two from 2 to 2²⁴; [`RingError::TooSmall`];
    /// [`RingError::Misaligned`]; [`RingError::ReadOnly`].
    pub fn new(what: &'static str, area: Area, count: usize, places: Places) -> Result<Self, RingError> {
        Ok(Self {
            ring: Ring::new(what, area, count, places)?,
            next: 0,
            told: 0,
            taken: 0,
        })
    }

    /// Returns how many entries can be pushed now; reads the far side's index only when it is not known to
    /// have taken `wanted`.
    #[inline]
    pub fn free(&mut self, wanted: u32) -> u32 {
        let free = |side: &Self| side.ring.count() - side.next.wrapping_sub(side.taken);
        if free(self) < wanted {
            self.look();
        }
        free(self)
    }

    /// Entries that were pushed and are not taken yet.
    #[inline]
    pub fn outstanding(&mut self) -> u32 {
        if self.next != self.taken {
            self.look();
        }
        self.next.wrapping_sub(self.taken)
    }

    /// Entries published to the far side that it has not taken.
    #[inline]
    pub fn pending(&mut self) -> u32 {
        if self.told != self.taken {
            self.look();
        }
        self.told.wrapping_sub(self.taken)
    }

    /// The number of entries that wait, for callers without exclusive access.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> u32 {
        let taken = self.ring.load(self.ring.places.consumer);
        let (all, more) = (self.told.wrapping_sub(self.taken), taken.wrapping_sub(self.taken));
        // An impossible index is ignored.
        if more <= all { all - more } else { all }
    }

    #[inline]
    fn look(&mut self) {
        let taken = self.ring.load(self.ring.places.consumer);
        if taken.wrapping_sub(self.taken) <= self.told.wrapping_sub(self.taken) {
            self.taken = taken;
        } else {
            self.ring.nonsense += 1;
        }
    }

    /// Writes the next entry; the far side does not see it before [`publish`](Self::publish).
    ///
    /// # Errors
    /// [`Full`] hands the entry back.
    #[inline]
    pub fn push(&mut self, entry: [u8; N]) -> Result<(), Full<[u8; N]>> {
        if self.free(1) == 0 {
            return Err(Full(entry));
        }
        self.ring.write(self.next, &entry);
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Publishes everything that was pushed; returns how many entries were not published before.
    #[inline]
    pub fn publish(&mut self) -> u32 {
        let new = self.next.wrapping_sub(self.told);
        if new > 0 {
            self.ring.store(self.ring.places.producer, self.next);
            self.told = self.next;
        }
        new
    }

    /// Whether the far side has to be woken to see what was published.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.ring.is_asleep()
    }

    /// Returns how often the far side's index could not be true.
    pub fn nonsense(&self) -> u64 {
        self.ring.nonsense
    }
}

/// The side that reads entries of `N` bytes.
pub struct Consumer<const N: usize> {
    ring: Ring<N>,
    /// Entries taken so far, those published to the far side as taken, and those that are available.
    next: u32,
    told: u32,
    there: u32,
}

impl<const N: usize> Consumer<N> {
    /// Reads from a ring of `count` unused entries. Errors call it `what`.
    ///
    /// # Errors
    /// Those of [`Producer::new`].
    pub fn new(what: &'static str, area: Area, count: usize, places: Places) -> Result<Self, RingError> {
        Ok(Self {
            ring: Ring::new(what, area, count, places)?,
            next: 0,
            told: 0,
            there: 0,
        })
    }

    /// Takes the next entry, if it is there: a private copy, each word fetched once. Any bytes may come.
    #[inline]
    pub fn take(&mut self) -> Option<[u8; N]> {
        if self.next == self.there && !self.look() {
            return None;
        }
        let entry = self.ring.read(self.next);
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Reads the far side's index; returns whether there is something to take.
    #[inline]
    fn look(&mut self) -> bool {
        let there = self.ring.load(self.ring.places.producer);
        // It may have written one ring full beyond what was published as taken.
        if there.wrapping_sub(self.told) <= self.ring.count()
            && there.wrapping_sub(self.there) <= self.ring.count()
        {
            self.there = there;
        } else {
            self.ring.nonsense += 1;
        }
        self.next != self.there
    }

    /// Whether an entry is there, without taking it.
    #[inline]
    pub fn is_ready(&mut self) -> bool {
        self.next != self.there || self.look()
    }

    /// Publishes what was taken, so that the far side may overwrite it.
    #[inline]
    pub fn release(&mut self) {
        if self.next != self.told {
            self.ring.store(self.ring.places.consumer, self.next);
            self.told = self.next;
        }
    }

    /// Returns how often the far side's index could not be true.
    pub fn nonsense(&self) -> u64 {
        self.ring.nonsense
    }
}

/// Both sides of one ring in this process, for fakes and tests, with everything where the caller wants it.
///
/// # Errors
/// Those of [`Producer::new`].
pub fn pair<const N: usize>(
    what: &'static str,
    area: Area,
    count: usize,
    places: Places,
) -> Result<(Producer<N>, Consumer<N>), RingError> {
    // SAFETY: both sides touch the ring by atomic words only.
    let other = unsafe { area.alias() };
    Ok((
        Producer::new(what, area, count, places)?,
        Consumer::new(what, other, count, places)?,
    ))
}

/// Bytes of an area for `count` entries of `N` bytes behind `entries` bytes of words.
#[must_use]
pub fn bytes_of<const N: usize>(entries: usize, count: usize) -> usize {
    entries + count * N
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const PLACES: Places = Places {
        producer: 0,
        consumer: 64,
        flags: 68,
        entries: 128,
    };
    const COUNT: usize = 8;

    type Sides = (Producer<16>, Consumer<16>);

    fn sides() -> (Sides, Area) {
        let area = Area::heap(bytes_of::<16>(PLACES.entries, COUNT)).unwrap();
        // SAFETY: words only, which are atomic.
        let memory = unsafe { area.alias() };
        (pair("test", area, COUNT, PLACES).unwrap(), memory)
    }

    fn set(memory: &Area, at: usize, value: u32) {
        // SAFETY: inside the area and aligned.
        unsafe { memory.half(at) }.store(value, Ordering::Relaxed);
    }

    /// Against a queue, over many laps and the wrap of the indices, with every query.
    #[test]
    fn entries_come_out_once_and_in_order() {
        let ((mut producer, mut consumer), memory) = sides();
        // Shortly before the indices wrap.
        for index in [&mut producer.next, &mut producer.told, &mut producer.taken] {
            *index = u32::MAX - 20;
        }
        for index in [&mut consumer.next, &mut consumer.told, &mut consumer.there] {
            *index = u32::MAX - 20;
        }
        set(&memory, PLACES.producer, u32::MAX - 20);
        set(&memory, PLACES.consumer, u32::MAX - 20);
        let (mut hidden, mut shown, mut held) = (VecDeque::new(), VecDeque::new(), 0);
        let mut random = doorbell_testing::Random::new(7);
        for step in 0..10_000u64 {
            match random.below(4) {
                0 => {
                    let room = COUNT - hidden.len() - shown.len() - held;
                    assert_eq!(producer.free(COUNT as u32) as usize, room);
                    let pushed = producer.push([step as u8; 16]);
                    assert_eq!(pushed.is_ok(), room > 0);
                    hidden.extend(pushed.is_ok().then_some(step as u8));
                }
                1 => {
                    assert_eq!(producer.publish() as usize, hidden.len());
                    shown.append(&mut hidden);
                }
                2 => {
                    assert_eq!(consumer.is_ready(), !shown.is_empty());
                    let taken = consumer.take().map(|entry| (entry[0], entry[15]));
                    held += usize::from(taken.is_some());
                    assert_eq!(taken, shown.pop_front().map(|number| (number, number)));
                }
                _ => {
                    consumer.release();
                    held = 0;
                }
            }
            assert_eq!(producer.outstanding() as usize, hidden.len() + shown.len() + held);
            assert_eq!(producer.pending() as usize, shown.len() + held);
        }
        assert_eq!((producer.nonsense(), consumer.nonsense()), (0, 0));
    }

    /// Whatever a far side writes as its index, nothing beyond the ring is read or written.
    #[test]
    fn an_index_that_cannot_be_true_changes_nothing() {
        let ((mut producer, mut consumer), memory) = sides();
        (0..3).for_each(|n| producer.push([n; 16]).unwrap());
        producer.publish();
        for wrong in [4, 9, u32::MAX, 1 << 31] {
            set(&memory, PLACES.consumer, wrong);
            assert_eq!((producer.waiting(), producer.outstanding()), (3, 3), "{wrong}");
        }
        set(&memory, PLACES.consumer, 0);
        assert_eq!(producer.free(8), 5);
        for wrong in [9, u32::MAX, 1 << 31] {
            set(&memory, PLACES.producer, wrong);
            assert!(!consumer.is_ready(), "{wrong}");
            assert_eq!(consumer.take(), None);
        }
        assert_eq!((producer.nonsense(), consumer.nonsense()), (4, 6));
        set(&memory, PLACES.producer, 3);
        assert_eq!(consumer.take(), Some([0; 16]));
        // Behind what it had published: impossible too.
        set(&memory, PLACES.producer, 0);
        (1..3).for_each(|n| assert_eq!(consumer.take(), Some([n; 16])));
        assert_eq!(consumer.take(), None);
        assert_eq!(consumer.nonsense(), 7);
    }

    #[test]
    fn the_far_side_shows_when_it_sleeps() {
        let ((producer, _), memory) = sides();
        assert!(!producer.is_asleep());
        set(&memory, PLACES.flags, ASLEEP);
        assert!(producer.is_asleep());
    }

    #[test]
    fn places_outside_of_the_area_are_refused() {
        let area = || Area::heap(bytes_of::<16>(PLACES.entries, COUNT)).unwrap();
        let new = |area, count, places| Producer::<16>::new("test", area, count, places).map(drop);
        assert!(new(area(), COUNT, PLACES).is_ok());
        assert!(matches!(new(area(), 16, PLACES), Err(RingError::TooSmall { .. })));
        assert!(matches!(new(area(), 7, PLACES), Err(RingError::Capacity { .. })));
        let places = Places { flags: 126, ..PLACES };
        assert!(matches!(
            new(area(), COUNT, places),
            Err(RingError::TooSmall { .. })
        ));
        let places = Places {
            consumer: 66,
            ..PLACES
        };
        assert!(matches!(
            new(area(), COUNT, places),
            Err(RingError::Misaligned { .. })
        ));
        let places = Places {
            entries: 1 << 20,
            ..PLACES
        };
        assert!(matches!(
            new(area(), COUNT, places),
            Err(RingError::TooSmall { .. })
        ));
        assert!(matches!(
            new(area().into_read_only(), COUNT, PLACES),
            Err(RingError::ReadOnly { .. })
        ));
    }
}
