//! The completion side: the device writes, we poll by colour.

use super::{Facts, Layout, Table};
use crate::error::RingError;
use crate::storage::{Access, Area};
use crate::sync::Ordering;

/// Completion ring: entries of `N` bytes that the device writes.
///
/// The device does not know how far this side has read. The ring has to be at least as large as the number
/// of completions that can be outstanding; if it is not, entries are overwritten unseen, and no reader can
/// tell (reference: vic, section 4.6).
pub struct Completions<L, const N: usize> {
    table: Table<L, N>,
    /// Entries taken so far; its lap says which colour is new.
    next: u32,
}

impl<L: Layout, const N: usize> Completions<L, N> {
    const COLOUR: super::Bit = match L::COLOUR {
        Some(colour) => colour,
        None => panic!("a completion ring needs a colour bit"),
    };

    /// Polls the first `count` entries of `area`, which the device has not written yet. Zeroes them if this
    /// side may write; if the map is read-only, they have to be zero.
    ///
    /// # Errors
    /// [`RingError::Capacity`] unless `count` is a power of two from 2 to 2²⁴; [`RingError::TooSmall`];
    /// [`RingError::Misaligned`] (words need 8 bytes).
    pub fn new(area: Area, count: usize) -> Result<Self, RingError> {
        let table = Table::new(area, count, Access::ReadOnly)?;
        if table.area.access() == Access::ReadWrite {
            for index in 0..count as u32 {
                table.write(index, &[0; N], Self::COLOUR.word());
            }
        }
        Ok(Self { table, next: 0 })
    }

    /// Takes the next entry, if the device has written it: a private copy, each word fetched once.
    ///
    /// Any bytes may come; the caller decodes, and checks every field, from the copy.
    #[inline]
    pub fn poll(&mut self) -> Option<[u8; N]> {
        let (at, bit) = (Self::COLOUR.word(), Self::COLOUR.in_word());
        // Acquire pairs with the device writing this word last (in a fake: with Release). With Relaxed, the words
        // of the lap before could be copied beside the new colour.
        let word = self.table.load(self.next, at, Ordering::Acquire);
        if (word & bit != 0) != self.table.colour(self.next) {
            return None;
        }
        let entry = self.table.copy(self.next, at, word);
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Takes up to `out.len()` entries; returns how many.
    #[inline]
    pub fn poll_into(&mut self, out: &mut [[u8; N]]) -> usize {
        for (n, entry) in out.iter_mut().enumerate() {
            match self.poll() {
                Some(polled) => *entry = polled,
                None => return n,
            }
        }
        out.len()
    }

    /// Slot of the next entry.
    #[inline]
    #[must_use]
    pub fn position(&self) -> u32 {
        self.table.slot(self.next)
    }

    /// Number of entries.
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
        self.count() as usize * Facts::<L, N>::WORDS * super::WORD
    }
}

impl<L: Layout, const N: usize> std::fmt::Debug for Completions<L, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {} entries of {N} bytes, next {}",
            L::NAME,
            self.count(),
            self.position()
        )
    }
}
