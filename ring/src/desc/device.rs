//! The device's half of both rings, in software: for fakes, simulators and tests.
//!
//! A device is the other side of the protocol, so it belongs next to it. This one can also misbehave: it
//! overruns, and it scribbles over any word at any moment, as a broken or hostile device would.

use super::{Bit, Completions, Layout, Posts, Table, set};
use crate::error::RingError;
use crate::storage::{Access, Area};
use crate::sync::Ordering;

/// A posting ring and the device that reads it, over `area` (zeroed).
///
/// # Errors
/// As [`Posts::new`].
pub fn posts<L: Layout, const N: usize>(
    area: Area,
    count: usize,
) -> Result<(Posts<L, N>, PostReader<L, N>), RingError> {
    // SAFETY: both halves touch the ring by atomic words only.
    let theirs = unsafe { area.alias() };
    let ours = Posts::new(area, count)?;
    Ok((
        ours,
        PostReader {
            table: Table::new(theirs, count, Access::ReadWrite)?,
            fetched: 0,
        },
    ))
}

/// A completion ring and the device that writes it, over `area` (zeroed).
///
/// # Errors
/// As [`Completions::new`]; [`RingError::ReadOnly`].
pub fn completions<L: Layout, const N: usize>(
    area: Area,
    count: usize,
) -> Result<(Completions<L, N>, CompletionWriter<L, N>), RingError> {
    // SAFETY: both halves touch the ring by atomic words only.
    let theirs = unsafe { area.alias() };
    let ours = Completions::new(area, count)?;
    Ok((
        ours,
        CompletionWriter {
            table: Table::new(theirs, count, Access::ReadWrite)?,
            tail: 0,
        },
    ))
}

/// A device that fetches posted descriptors.
pub struct PostReader<L, const N: usize> {
    table: Table<L, N>,
    fetched: u32,
}

impl<L: Layout, const N: usize> PostReader<L, N> {
    /// Fetches the next descriptor, given what the doorbell register holds; `None` when all up to there are
    /// fetched. The register has to be read with Acquire before.
    pub fn fetch(&mut self, posted_index: u32) -> Option<(u32, [u8; N])> {
        let slot = self.table.slot(self.fetched);
        if slot == self.table.slot(posted_index) {
            return None;
        }
        let word = self.table.load(slot, 0, Ordering::Relaxed);
        let descriptor = self.table.copy(slot, 0, word);
        self.fetched = self.fetched.wrapping_add(1);
        Some((slot, descriptor))
    }

    /// Writes slot `slot` back, with the done bit set, if the layout has one.
    pub fn write_back(&mut self, slot: u32, mut descriptor: [u8; N]) {
        let mut last = 0;
        if let Some(done) = L::DONE {
            set(&mut descriptor, done, true);
            last = done.word();
        }
        self.table.write(slot, &descriptor, last);
    }

    /// Overwrites one word, as a broken device might.
    pub fn scribble(&mut self, slot: u32, word: usize, value: u64) {
        scribble(&self.table, slot, word, value);
    }
}

/// A device that writes completions.
pub struct CompletionWriter<L, const N: usize> {
    table: Table<L, N>,
    tail: u32,
}

impl<L: Layout, const N: usize> CompletionWriter<L, N> {
    /// Writes the next entry in the colour of this lap, without asking whether the last lap has been read.
    pub fn complete(&mut self, mut entry: [u8; N]) {
        let colour = L::COLOUR.unwrap_or(Bit::new(0, 0));
        set(&mut entry, colour, self.table.colour(self.tail));
        self.table.write(self.tail, &entry, colour.word());
        self.tail = self.tail.wrapping_add(1);
    }

    /// Overwrites one word, as a broken device might.
    pub fn scribble(&mut self, slot: u32, word: usize, value: u64) {
        scribble(&self.table, slot, word, value);
    }
}

/// Slot and word are taken modulo what there is.
fn scribble<L: Layout, const N: usize>(table: &Table<L, N>, slot: u32, word: usize, value: u64) {
    table.store(slot, word % super::Facts::<L, N>::WORDS, value, Ordering::Relaxed);
}
