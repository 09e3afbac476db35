//! The posting side: we write descriptors, the device reads them.

use super::{Facts, Layout, Table, set};
use crate::error::{Full, RingError};
use crate::storage::{Access, Area};
use crate::sync::{Ordering, fence};

/// Ring of posted descriptors of `N` bytes.
///
/// One descriptor less than the ring has can be outstanding, so that "one past the last" equal to "next to
/// fetch" means empty, as devices take it (reference: vic, section 4.5).
pub struct Posts<L, const N: usize> {
    table: Table<L, N>,
    /// Oldest descriptor that the device may still use.
    head: u32,
    /// Next descriptor to be posted.
    tail: u32,
    /// What the device was last told of tail.
    rung: u32,
    /// What was posted, by slot: the memory itself may have been written by the device since.
    shadow: Box<[[u8; N]]>,
}

/// A doorbell that is due: what to write to the device's register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doorbell {
    /// Slot one past the last posted descriptor.
    pub index: u32,
    /// Descriptors that this doorbell makes known.
    pub posted: u32,
}

impl<L: Layout, const N: usize> Posts<L, N> {
    /// Posts into the first `count` descriptors of `area`, and zeroes them.
    ///
    /// # Errors
    /// [`RingError::Capacity`] unless `count` is a power of two from 2 to 2²⁴; [`RingError::TooSmall`];
    /// [`RingError::Misaligned`] (words need 8 bytes); [`RingError::ReadOnly`]; [`RingError::NoMemory`].
    pub fn new(area: Area, count: usize) -> Result<Self, RingError> {
        let table = Table::<L, N>::new(area, count, Access::ReadWrite)?;
        let mut shadow = Vec::new();
        shadow.try_reserve_exact(count).map_err(|_| RingError::NoMemory {
            what: L::NAME,
            bytes: count * N,
        })?;
        shadow.resize(count, [0; N]);
        for index in 0..count as u32 {
            table.write(index, &[0; N], 0);
        }
        Ok(Self {
            table,
            head: 0,
            tail: 0,
            rung: 0,
            shadow: shadow.into_boxed_slice(),
        })
    }

    /// Descriptors that can be posted now. Posting as many as this tells cannot fail.
    #[inline]
    #[must_use]
    pub fn free(&self) -> u32 {
        self.table.mask - self.outstanding()
    }

    /// Descriptors posted and not completed.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Descriptors posted since the last doorbell.
    #[inline]
    #[must_use]
    pub fn unannounced(&self) -> u32 {
        self.tail.wrapping_sub(self.rung)
    }

    /// Writes the next descriptor and returns its slot. The colour bit, if the layout has one, is set for
    /// this lap; the done bit is cleared. The device need not look before the next [`doorbell`](Self::doorbell).
    ///
    /// # Errors
    /// [`Full`] hands the descriptor back.
    #[inline]
    pub fn post(&mut self, mut descriptor: [u8; N]) -> Result<u32, Full<[u8; N]>> {
        if self.free() == 0 {
            return Err(Full(descriptor));
        }
        if let Some(colour) = L::COLOUR {
            set(&mut descriptor, colour, self.table.colour(self.tail));
        }
        if let Some(done) = L::DONE {
            set(&mut descriptor, done, false);
        }
        let slot = self.table.slot(self.tail);
        self.table.write(self.tail, &descriptor, Self::LAST);
        // SAFETY: a slot number is masked to below the count, which is the shadow's length.
        let shadow = unsafe { self.shadow.get_unchecked_mut(slot as usize) };
        *shadow = descriptor;
        self.tail = self.tail.wrapping_add(1);
        Ok(slot)
    }

    /// The doorbell that is due, if descriptors were posted since the last: to be written to the device's
    /// register right away. One doorbell covers all posts of a batch.
    ///
    /// The descriptors are visible to other processors before this returns. Towards a device that is enough on
    /// x86-64 with an uncached register; elsewhere the register write has to bring its own I/O barrier.
    #[inline]
    pub fn doorbell(&mut self) -> Option<Doorbell> {
        let posted = self.unannounced();
        if posted == 0 {
            return None;
        }
        self.rung = self.tail;
        // Release pairs with the device reading the register before the descriptors (a fake: with an Acquire of
        // the word that stands for the register). Without it, it could fetch what a slot held a lap ago.
        fence(Ordering::Release);
        Some(Doorbell {
            index: self.table.slot(self.tail),
            posted,
        })
    }

    /// The device reports that it is done with slot `slot` and all before it; returns how many descriptors
    /// that gives back.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if that slot is not outstanding and announced: nothing is given back.
    #[inline]
    pub fn complete(&mut self, slot: u32) -> Result<u32, RingError> {
        let announced = self.rung.wrapping_sub(self.head);
        // For a slot that is out of range this is some number; the range is checked beside it.
        let ahead = slot.wrapping_sub(self.head) & self.table.mask;
        if slot > self.table.mask || ahead >= announced {
            return Err(self.not_outstanding(slot));
        }
        self.head = self.head.wrapping_add(ahead + 1);
        Ok(ahead + 1)
    }

    /// Takes the oldest announced descriptor back, if the device has set its [`DONE`](Layout::DONE) bit: its
    /// slot, and a private copy of what the device left there, each word fetched once.
    #[inline]
    pub fn poll_done(&mut self) -> Option<(u32, [u8; N])> {
        if self.head == self.rung {
            return None;
        }
        let slot = self.table.slot(self.head);
        let entry = self.done(self.head)?;
        self.head = self.head.wrapping_add(1);
        Some((slot, entry))
    }

    /// What the device left in slot `slot`, if that is announced and its [`DONE`](Layout::DONE) bit is set. For
    /// devices that report on some descriptors only: [`complete`](Self::complete) then gives back up to there.
    #[inline]
    #[must_use]
    pub fn peek_done(&self, slot: u32) -> Option<[u8; N]> {
        let announced = self.rung.wrapping_sub(self.head);
        let ahead = slot.wrapping_sub(self.head) & self.table.mask;
        if slot > self.table.mask || ahead >= announced {
            return None;
        }
        self.done(slot)
    }

    /// What was last posted into slot `slot`: the private copy.
    #[inline]
    #[must_use]
    pub fn shadow(&self, slot: u32) -> Option<&[u8; N]> {
        self.shadow.get(slot as usize)
    }

    /// Forgets everything and zeroes the ring. Only once the device is known to be stopped.
    pub fn reset(&mut self) {
        (self.head, self.tail, self.rung) = (0, 0, 0);
        for index in 0..self.count() {
            self.table.write(index, &[0; N], Self::LAST);
        }
        self.shadow.fill([0; N]);
    }

    /// Number of descriptors in the ring; one less can be outstanding.
    #[inline]
    #[must_use]
    pub fn count(&self) -> u32 {
        self.table.mask + 1
    }

    /// Address of the ring in this process, for the device's base register by way of the DMA map.
    #[must_use]
    pub fn address(&self) -> usize {
        self.table.area.address()
    }

    /// Bytes of the ring.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.count() as usize * N
    }

    /// Word written last: that with the colour, if there is one.
    const LAST: usize = match L::COLOUR {
        Some(colour) => colour.word(),
        None => Facts::<L, N>::WORDS - 1,
    };

    const DONE: super::Bit = match L::DONE {
        Some(done) => done,
        None => super::Bit::new(0, 0),
    };

    #[inline(always)]
    fn done(&self, index: u32) -> Option<[u8; N]> {
        const { assert!(L::DONE.is_some(), "the layout has no done bit") };
        let at = Self::DONE.word();
        // Acquire pairs with the device writing this word last; with Relaxed, the other words could be those that
        // were posted.
        let word = self.table.load(index, at, Ordering::Acquire);
        (word & Self::DONE.in_word() != 0).then(|| self.table.copy(index, at, word))
    }

    #[cold]
    fn not_outstanding(&self, slot: u32) -> RingError {
        RingError::Corrupt {
            what: L::NAME,
            value: u64::from(slot),
            low: u64::from(self.table.slot(self.head)),
            high: u64::from(self.table.slot(self.rung.wrapping_sub(1))),
        }
    }
}

impl<L: Layout, const N: usize> std::fmt::Debug for Posts<L, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {} descriptors of {N} bytes, {} outstanding, {} unannounced",
            L::NAME,
            self.count(),
            self.outstanding(),
            self.unannounced()
        )
    }
}
