//! Runs: messages of a few cells, one behind the other.
//!
//! ```text
//!   cell i, the first          cell i+1                 cell i+2
//!   [ mark | 24 bytes ]        [ 32 bytes ]             [ what is left ]
//! ```
//!
//! The bytes lie in one piece, and only the first cell has a mark, which is written last. What lies where
//! another cell has its mark is bytes of the message. A consumer comes to wait there one lap later, before it
//! is written again: if these bytes were the mark of that lap, it would take them for a message. The producer
//! looks at each such word, and sends a message that has one by the data area; so it does with one that would
//! go around the end of the ring. Neither happens often, and no byte is changed on its way.

use super::{
    Area, CACHE_LINE, CELL_BYTES, FIRST_BYTES, Ordering, Producer, RingError, lap_mark, mark, too_long,
    write_first,
};

/// Most cells that one message takes.
const MOST_CELLS: usize = 4;
/// Bytes of the longest message that travels in a run of cells, without the data area.
pub const RUN_BYTES: usize = MOST_CELLS * CELL_BYTES - 8;
/// In a cell's length: the message goes on in the cells behind this one, not in the data area.
pub(super) const RUN: usize = 1 << 31;
/// Words of a message that its first cell holds.
const FIRST_WORDS: usize = FIRST_BYTES / 8;
/// Words of a cell.
const CELL_WORDS: usize = CELL_BYTES / 8;
/// Cells of a line.
const LINE_CELLS: usize = CACHE_LINE / CELL_BYTES;
const _: () = assert!(LINE_CELLS == 2, "what is left of a line is one cell");

/// What became of a message that was to travel in a run of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// It was sent.
    Sent,
    /// There is no room now.
    Full,
    /// It has to go by [`Producer::reserve`].
    Unfit,
}

/// In a run's length: it takes one cell more than it needs, so that the next message has none of its lines.
pub(super) const SPACED: usize = 1 << 30;

/// Returns the bytes of a message by its length as it is written in a cell.
#[inline(always)]
pub(super) fn bytes_of(len: usize) -> usize {
    len & !(RUN | SPACED)
}

/// Returns the cells of a run by the length that is written in its first.
#[inline(always)]
pub(super) fn run_cells(len: usize) -> usize {
    cells_of(bytes_of(len)) + usize::from(len & SPACED != 0)
}

/// Returns the cells that `len` bytes need.
#[inline(always)]
fn cells_of(len: usize) -> usize {
    (len + 8).div_ceil(CELL_BYTES)
}

/// Whether a word of a message, where cell `index` has its mark, could be taken for that mark in this lap or
/// in the next. In later ones nothing can: the cell is written in every lap.
#[inline(always)]
fn is_like_mark(word: u64, index: u64, cells: usize) -> bool {
    ((word >> 32) as u32).wrapping_sub(lap_mark(index)) & !(cells as u32) == 0
}

impl Producer {
    /// Whether runs end with a line, so that the lines of two messages are different ones. A consumer that
    /// waits looks at the next message's first cell: while it is in the line of the last one's end, that line
    /// goes back and forth, unless the answer is written at once.
    #[inline(always)]
    pub fn space_runs(&mut self, is_spaced: bool) {
        self.is_spaced = is_spaced;
    }

    /// Sends a message of more than [`FIRST_BYTES`] and at most [`RUN_BYTES`] bytes in a run of cells. `word`
    /// returns its words by number (in memory order, with zeroes behind the last byte), each once.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] for another length, [`RingError::Corrupt`] if the consumer's indices are
    /// impossible.
    #[inline(always)]
    pub fn push_run(&mut self, len: usize, mut word: impl FnMut(usize) -> u64) -> Result<Run, RingError> {
        if len <= FIRST_BYTES || len > RUN_BYTES {
            return Err(too_long(len, RUN_BYTES));
        }
        let (needed, slot) = (cells_of(len), self.slot(self.tail));
        let is_spaced = self.is_spaced && (slot + needed) % LINE_CELLS != 0;
        let count = needed + usize::from(is_spaced);
        if slot + count > self.geometry.cells {
            return Ok(Run::Unfit);
        }
        if self.tail + count as u64 > self.limit && !self.cells_freed(count)? {
            return Ok(Run::Full);
        }
        let at = slot * CELL_BYTES;
        for i in FIRST_WORDS..len.div_ceil(8) {
            let (word, place) = (word(i), i + 1);
            let index = self.tail + (place / CELL_WORDS) as u64;
            if place % CELL_WORDS == 0 && is_like_mark(word, index, self.geometry.cells) {
                return Ok(Run::Unfit);
            }
            write_word(&self.cells, at + 8 * place, word);
        }
        if is_spaced {
            // A mark of no lap: no message begins there.
            let none = u64::from(lap_mark(self.tail + needed as u64) ^ 1 << 31) << 32;
            write_word(&self.cells, at + needed * CELL_BYTES, none);
        }
        // The consumer polls this cell: written earlier, its line would have to be fetched twice.
        write_first(&self.cells, at, [word(0), word(1), word(2)]);
        let said = len | RUN | if is_spaced { SPACED } else { 0 };
        // Release: as in `commit`. SAFETY: inside the cells, aligned, writable: checked by `attach`.
        unsafe { self.cells.word(at) }.store(mark(self.tail, said), Ordering::Release);
        self.tail += count as u64;
        self.more += count as u64 - 1;
        Ok(Run::Sent)
    }

    /// Returns the cells that a message of `len` bytes takes where it goes next.
    pub(super) fn cells_for(&self, len: usize) -> usize {
        let (needed, slot) = (cells_of(len), self.slot(self.tail));
        let count = needed + usize::from(self.is_spaced) * ((slot + needed) % LINE_CELLS);
        let fits = len <= RUN_BYTES && slot + count <= self.geometry.cells;
        if fits { count } else { 1 }
    }
}

/// Writes a word of a run, to be ordered by the mark that is stored after it.
#[cfg(not(loom))]
#[inline(always)]
fn write_word(cells: &Area, at: usize, word: u64) {
    // Relaxed: the mark orders it. SAFETY: inside the run of cells, aligned, writable: checked by `attach`
    // and `push_run`.
    unsafe { cells.word(at) }.store(word, Ordering::Relaxed);
}

#[cfg(loom)]
fn write_word(cells: &Area, at: usize, word: u64) {
    if at.is_multiple_of(CELL_BYTES) {
        // In the place of a mark, so what waits for the cell later may see it. SAFETY: a mark of the model.
        unsafe { cells.word(at) }.store(word, Ordering::Relaxed);
    }
    // SAFETY: inside the run of cells; loom checks that no thread reads it now.
    unsafe { cells.view_mut_at(at, 8) }.copy_from(&word.to_ne_bytes());
}
