//! Message lane: variable-length messages from one process to another, one cache line for a short one.
//!
//! ```text
//!   the producer's map (read-only for the consumer)
//!   ┌──────────┬──────────┬─   ─┬──────────┐ ┌────────────────────────────────────────────┐
//!   │  cell 0  │  cell 1  │  …  │  cell n  │ │ data: the rest of longer messages, in lines│
//!   └──────────┴──────────┴─   ─┴──────────┘ └────────────────────────────────────────────┘
//!   a cell, 32 bytes: [ lap mark : 32 | length : 32 ] [ the first 24 bytes of the message ]
//!
//!   the consumer's map (read-only for the producer)
//!   [ messages consumed : 32 | cells consumed : 32 ] [ data consumed : 64 ] [ … ]     a cache line
//!   [ attention : 64 ] [ … ]                                                         a cache line
//! ```
//!
//! The consumer polls the cell that comes next, not an index: one line moves from core to core per short
//! message, and two short messages share a line. A stale cell carries the mark of an older lap and can be
//! taken for nothing else.
//!
//! A message of up to 120 bytes goes on in the cells behind its first ([`Run`]): two lines at most where the
//! data area would be one more, and they lie one behind the other. The length's highest bit marks it.
//! Everything longer continues in the data area. Where that place is follows from the lengths alone, on both
//! sides: no offset travels, so none can be forged.
//!
//! The far side is taken to be hostile: each word of it is copied once and
//! checked, a message's first bytes are a private copy before anyone looks at them, and the rest is a
//! [`SharedSlice`].
//!
//! ```
//! use doorbell_ring::lane::{self, Geometry};
//! let (mut producer, mut consumer) = lane::pair(Geometry::new(8, 1024)?)?;
//! let mut message = producer.reserve(30)?.expect("an empty lane has room");
//! let (mut first, mut rest) = message.parts();
//! first.copy_from(&[7; 24]);
//! rest.copy_from(&[8; 6]);
//! message.commit();
//! let arrival = consumer.peek()?.expect("one message");
//! assert_eq!((arrival.first(), arrival.rest().to_vec()), (&[7u8; 24][..], vec![8; 6]));
//! consumer.release();
//! # Ok::<(), doorbell_ring::RingError>(())
//! ```

use crate::error::{RingError, check_capacity};
use crate::pad::CACHE_LINE;
use crate::storage::{Access, Area};
use crate::sync::{AtomicU64, Ordering};
use crate::view::{SharedSlice, SharedSliceMut};

mod backing;
mod run;

pub use backing::Backing;
use run::{RUN, bytes_of, run_cells};
pub use run::{RUN_BYTES, Run};

/// Bytes of a cell.
pub const CELL_BYTES: usize = 32;
/// Bytes of a message that travel in its cell.
pub const FIRST_BYTES: usize = 24;
/// Bytes of the consumer's control block.
pub const CONTROL_BYTES: usize = 2 * CACHE_LINE;

/// Longest rest, in bytes, that counts as short.
const AHEAD_BYTES: usize = 2 * CACHE_LINE;

/// Bytes of an answer whose lines are prefetched: as many as a core can have in flight.
const ASK_BYTES: usize = 16 * CACHE_LINE;
/// Shortest and longest rest whose lines are prefetched for the next message, in bytes. The lines of a
/// shorter one come while the message before is read, and earlier the consumer's processor takes them away
/// again: it prefetches what follows in the same page. The longest is a quarter of a small second-level
/// cache, and more than is copied rather than read.
const WARM_BYTES: (usize, usize) = (3 << 9, 64 << 10);

const WHAT: &str = "message lane";
/// Offset of the attention word: in a line of its own, because the producer looks at it for every message
/// and the consumer moves its indices often.
const ATTENTION: usize = CACHE_LINE;

/// What both ends have to agree on before they attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    cells: usize,
    data: usize,
}

impl Geometry {
    /// `cells` cells, and as many messages in flight where each takes one; what does not fit cells shares
    /// `data` bytes.
    ///
    /// # Errors
    /// [`RingError::Capacity`] unless both are powers of two, `cells` from 2 to 2²⁰, `data` from 128 to 2³⁰.
    pub fn new(cells: usize, data: usize) -> Result<Self, RingError> {
        check_capacity(WHAT, cells, 2, 1 << 20)?;
        check_capacity(WHAT, data, 2 * CACHE_LINE, 1 << 30)?;
        Ok(Self { cells, data })
    }

    /// Number of cells.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// Bytes for the parts beyond the first.
    #[must_use]
    pub fn data(&self) -> usize {
        self.data
    }

    /// Bytes of all cells.
    #[must_use]
    pub fn cells_bytes(&self) -> usize {
        self.cells * CELL_BYTES
    }

    /// Bytes of the producer's part: cells, then data.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.cells_bytes() + self.data
    }

    /// Longest message, in bytes. Half of the data area, so that one fits wherever the last one ended.
    #[must_use]
    pub fn longest(&self) -> usize {
        FIRST_BYTES + self.data / 2
    }
}

/// A lane within one process, in heap blocks of the exact size.
///
/// # Errors
/// [`RingError::NoMemory`].
#[cfg(not(loom))]
pub fn pair(geometry: Geometry) -> Result<(Producer, Consumer), RingError> {
    let lane = Area::heap(geometry.bytes())?;
    pair_in(geometry, lane, Area::heap(CONTROL_BYTES)?)
}

/// Both ends within one process, in the memory given: cells and data; the consumer's control block.
///
/// # Errors
/// Those of [`Producer::attach`].
pub fn pair_in(geometry: Geometry, lane: Area, control: Area) -> Result<(Producer, Consumer), RingError> {
    // SAFETY: the two ends of one lane: marks and indices order what they do with cells and data.
    let lane_far = unsafe { lane.alias() }.into_read_only();
    // SAFETY: as above.
    let control_far = unsafe { control.alias() }.into_read_only();
    Ok((
        Producer::attach(geometry, lane, control_far)?,
        Consumer::attach(geometry, control, lane_far)?,
    ))
}

/// Where the parts beyond the first lie: the same sum on both sides.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Offset in the data area.
    at: usize,
    /// Length in bytes.
    len: usize,
    /// The data index after it.
    end: u64,
}

#[inline(always)]
fn place(data: usize, index: u64, message: usize) -> Place {
    let len = message.saturating_sub(FIRST_BYTES);
    let lines = len.next_multiple_of(CACHE_LINE);
    let at = index as usize & (data - 1);
    if at + lines <= data {
        Place {
            at,
            len,
            end: index + lines as u64,
        }
    } else {
        Place {
            at: 0,
            len,
            end: index + (data - at + lines) as u64,
        }
    }
}

/// The word of a cell whose message is complete.
#[inline(always)]
fn mark(index: u64, len: usize) -> u64 {
    u64::from(lap_mark(index)) << 32 | len as u64
}

/// Differs from lap to lap and from the zero of a fresh cell, for 2³² cells.
#[inline(always)]
fn lap_mark(index: u64) -> u32 {
    (index as u32).wrapping_add(1)
}

/// The end that sends.
pub struct Producer {
    cells: Area,
    data: Area,
    control: Area,
    geometry: Geometry,
    /// Cells committed: the truth.
    tail: u64,
    /// Those of them that go on with a message: `tail` without them is the number of messages.
    more: u64,
    /// Data index after the last of them.
    data_tail: u64,
    /// Where the rest of each cell's message begins. The consumer's two indices cannot be taken at one moment
    /// (it may have died between the two stores), so what it left is not found by adding up from them. Empty
    /// as long as there is no memory for rests.
    rests: Vec<u32>,
    /// The consumer's indices as last copied and believed.
    seen: u64,
    data_seen: u64,
    messages_seen: u64,
    /// Where the next message and its data have to end without another look: by what was seen, and by what
    /// there is memory for.
    limit: u64,
    data_limit: u64,
    /// What there is memory for.
    backed: Backing,
    /// Bytes of the rest of the last message that had one: the next may be like it. And how many bytes of the
    /// next one's place have been prefetched.
    likely: u32,
    /// Whether runs of cells end with a line.
    is_spaced: bool,
    warmed: u32,
}

impl Producer {
    /// Attaches to a fresh, zeroed lane: `lane` is written here, `control` (the consumer's) only read.
    ///
    /// # Errors
    /// [`RingError::TooSmall`], [`RingError::Misaligned`] (cache lines), [`RingError::ReadOnly`] or
    /// [`RingError::NoMemory`].
    pub fn attach(geometry: Geometry, lane: Area, control: Area) -> Result<Self, RingError> {
        let all = Backing {
            cells: geometry.cells,
            data: geometry.data,
        };
        Self::attach_partly(geometry, lane, control, all)
    }

    /// Attaches like [`Producer::attach`] to a lane of which only a part has memory yet: it is used from its
    /// beginning, and looks full where that part ends, until [`Producer::extend`].
    ///
    /// The consumer polls the cell that comes next, so the last cell with memory is not used before there is
    /// more, and no cell without memory is ever looked at.
    ///
    /// # Errors
    /// Those of [`Producer::attach`], and [`RingError::TooSmall`] for less than two cells.
    pub fn attach_partly(
        geometry: Geometry,
        mut lane: Area,
        control: Area,
        backed: Backing,
    ) -> Result<Self, RingError> {
        lane.check(
            "message lane, cells and data",
            geometry.bytes(),
            CACHE_LINE,
            Access::ReadWrite,
        )?;
        control.check(
            "message lane, consumer's control block",
            CONTROL_BYTES,
            CACHE_LINE,
            Access::ReadOnly,
        )?;
        let cells = lane.split_to(geometry.cells_bytes())?;
        let mut producer = Self {
            cells,
            data: lane,
            control,
            geometry,
            tail: 0,
            more: 0,
            data_tail: 0,
            likely: 0,
            is_spaced: false,
            warmed: 0,
            rests: Vec::new(),
            seen: 0,
            data_seen: 0,
            messages_seen: 0,
            limit: 0,
            data_limit: 0,
            backed: Backing { cells: 0, data: 0 },
        };
        producer.extend(backed)?;
        Ok(producer)
    }

    /// Goes on with another control block: a lane can be filled before its consumer is there, with a private
    /// block of zeroes in its place.
    ///
    /// # Errors
    /// Those of [`Producer::attach`].
    pub fn set_control(&mut self, control: Area) -> Result<(), RingError> {
        control.check(
            "message lane, consumer's control block",
            CONTROL_BYTES,
            CACHE_LINE,
            Access::ReadOnly,
        )?;
        self.control = control;
        Ok(())
    }

    /// Returns what the ends agreed on.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Messages committed so far.
    #[inline]
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.tail - self.more
    }

    /// Prefetches the line of the next cell, to be written soon. The consumer has it, because it polls it,
    /// and getting it back takes as long as getting a message across: a sender that is about to answer has
    /// that time while it still reads the message. `rest`: how many bytes of the answer will not fit its
    /// cell, as far as that can be known; the lines of the first KiB of them are prefetched too.
    #[inline(always)]
    pub fn expect_to_send(&self, rest: usize) {
        let cell = self.cell(self.tail);
        // SAFETY: inside the cells and aligned: checked by `attach`.
        prefetch_to_write(unsafe { self.cells.word(cell) });
        if rest != 0 {
            self.expect_rest(cell, rest);
        }
    }

    /// Whether [`Producer::warm`] has something to do.
    #[inline(always)]
    #[must_use]
    pub fn is_cold(&self) -> bool {
        self.warmed < self.likely
    }

    /// Prefetches some lines of the place of the next message's rest, if that is as long as the last one's:
    /// for an owner that waits. The consumer read them a lap ago and so has them; got back while nothing is
    /// to be done they cost nothing, and while the message is copied each costs a way between the cores.
    ///
    /// ```
    /// use doorbell_ring::lane::{self, Geometry};
    /// let (mut producer, _consumer) = lane::pair(Geometry::new(8, 4096)?)?;
    /// assert!(!producer.is_cold(), "nothing was sent");
    /// producer.reserve(1600)?.expect("an empty lane has room").commit();
    /// while producer.is_cold() {
    ///     producer.warm();
    /// }
    /// # Ok::<(), doorbell_ring::RingError>(())
    /// ```
    #[inline(never)]
    pub fn warm(&mut self) {
        let place = place(
            self.geometry.data,
            self.data_tail,
            FIRST_BYTES + self.likely as usize,
        );
        // What the consumer may still read is left alone; an impossible index is for the next send to report.
        if place.end > self.data_limit {
            let _ = self.look();
        }
        if place.end > self.data_limit {
            self.warmed = self.likely;
            return;
        }
        let (from, until) = (self.warmed as usize, self.likely as usize);
        for at in (from..until).step_by(CACHE_LINE).take(ASK_BYTES / CACHE_LINE) {
            // SAFETY: inside the data area and aligned: a place is, and begins with a line.
            prefetch_to_write(unsafe { self.data.word(place.at + at) });
        }
        self.warmed = (self.warmed + ASK_BYTES as u32).min(self.likely);
    }

    /// A call of its own: what most messages do not need, they need not make room for.
    #[inline(never)]
    fn expect_rest(&self, cell: usize, rest: usize) {
        if rest <= RUN_BYTES - FIRST_BYTES {
            // A run of up to four cells has two or three lines: the first cell's, the next, the last cell's.
            let last = (cell + CELL_BYTES + rest - 1) / CELL_BYTES * CELL_BYTES;
            for line in [cell + CACHE_LINE, last] {
                if line <= last && line < self.geometry.cells_bytes() {
                    // SAFETY: inside the cells and aligned: checked by `attach`.
                    prefetch_to_write(unsafe { self.cells.word(line) });
                }
            }
            return;
        }
        let mask = self.geometry.data - 1;
        let mut at = self.data_tail as usize & mask;
        for _ in 0..rest.min(ASK_BYTES).div_ceil(CACHE_LINE) {
            // SAFETY: inside the data area and aligned: its length is a power of two and indices are whole
            // lines.
            prefetch_to_write(unsafe { self.data.word(at) });
            at = (at + CACHE_LINE) & mask;
        }
    }

    /// Sends a message of at most [`FIRST_BYTES`] bytes, given as the cell's three words (in memory order);
    /// `false` if the lane is full.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] for a longer one, [`RingError::Corrupt`] if the consumer's index is
    /// impossible.
    #[inline(always)]
    pub fn push_short(&mut self, len: usize, words: [u64; 3]) -> Result<bool, RingError> {
        if len > FIRST_BYTES {
            return Err(too_long(len, FIRST_BYTES));
        }
        if self.tail >= self.limit && !self.cell_freed()? {
            return Ok(false);
        }
        write_first(&self.cells, self.cell(self.tail), words);
        self.commit(len);
        Ok(true)
    }

    /// Room for a message of `len` bytes, to be written in place; `None` if the lane is full.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] for one longer than [`Geometry::longest`], [`RingError::Corrupt`] if the
    /// consumer's indices are impossible.
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<Option<Reserved<'_>>, RingError> {
        if len > self.geometry.longest() {
            return Err(too_long(len, self.geometry.longest()));
        }
        let place = place(self.geometry.data, self.data_tail, len);
        if !self.has_room(place) && !self.room_freed(place)? {
            return Ok(None);
        }
        Ok(Some(Reserved {
            producer: self,
            place,
            len,
        }))
    }

    #[inline(always)]
    fn has_room(&self, place: Place) -> bool {
        self.tail < self.limit && (place.len == 0 || place.end <= self.data_limit)
    }

    #[cold]
    fn cell_freed(&mut self) -> Result<bool, RingError> {
        self.cells_freed(1)
    }

    #[cold]
    fn cells_freed(&mut self, count: usize) -> Result<bool, RingError> {
        self.look()?;
        Ok(self.tail + count as u64 <= self.limit)
    }

    fn room_freed(&mut self, place: Place) -> Result<bool, RingError> {
        self.look()?;
        Ok(self.has_room(place))
    }

    /// Copies the consumer's indices, once each; they must lie from the last ones seen to ours.
    fn look(&mut self) -> Result<(), RingError> {
        // Acquire pairs with the Release of `Consumer::publish`: the consumer has copied what it reports as
        // consumed; with Relaxed a cell or its data could be overwritten under its hands. SAFETY: `attach`
        // and `set_control` checked size and alignment; the word is only read.
        let consumed = unsafe { self.control.word(0) }.load(Ordering::Acquire);
        // SAFETY: as above.
        let data = unsafe { self.control.word(8) }.load(Ordering::Acquire);
        let (cells, messages) = (consumed as u32, (consumed >> 32) as u32);
        self.seen = believe_half("message lane, cells consumed", cells, self.seen, self.tail)?;
        self.messages_seen = believe_half(
            "message lane, messages consumed",
            messages,
            self.messages_seen,
            self.committed(),
        )?;
        self.data_seen = believe(
            "message lane, data consumed",
            data,
            self.data_seen,
            self.data_tail,
        )?;
        self.set_limits();
        Ok(())
    }

    /// Messages that the consumer reports as consumed: the watermark.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if its index is impossible.
    pub fn consumed(&mut self) -> Result<u64, RingError> {
        self.look()?;
        Ok(self.messages_seen)
    }

    /// The consumer's attention word, as it is now.
    #[inline]
    #[must_use]
    pub fn attention(&self) -> u64 {
        // Relaxed: a hint. A caller that needs certainty orders it against the commit with a fence (or makes
        // the far side do it). SAFETY: `attach` and `set_control` checked size and alignment; the word is
        // only read.
        unsafe { self.control.word(ATTENTION) }.load(Ordering::Relaxed)
    }

    /// Shows every message not known to be consumed, oldest first: its number (from 0), and its bytes in two
    /// parts. Reads this side's own memory, which no other process can write. Returns how many were consumed,
    /// by the same look that decides what is shown.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if the consumer's indices are impossible; nothing was shown then.
    pub fn unconsumed(
        &mut self,
        mut each: impl FnMut(u64, &[u8], SharedSlice<'_>),
    ) -> Result<u64, RingError> {
        self.look()?;
        // Counted from this side's own cells: the number that the consumer reports may be any.
        let first = self.committed() - self.heads().count() as u64;
        for (number, cell) in self.heads().enumerate() {
            let (len, bytes) = read_cell(&self.cells, self.cell(cell));
            let rest = match bytes_of(len).saturating_sub(FIRST_BYTES) {
                0 => self.data.view(0, 0)?,
                rest if len & RUN != 0 => self.cells.view(self.cell(cell) + CELL_BYTES, rest)?,
                rest => self.data.view(self.rests[self.slot(cell)] as usize, rest)?,
            };
            let len = bytes_of(len);
            each(first + number as u64, &bytes[..len.min(FIRST_BYTES)], rest);
        }
        Ok(first)
    }

    /// The cells with which the messages begin that are not known to be consumed. Others have no mark of this
    /// lap.
    fn heads(&self) -> impl Iterator<Item = u64> {
        (self.seen..self.tail).filter(|&index| {
            // SAFETY: inside the cells and aligned: checked by `attach`.
            let word = unsafe { self.cells.word(self.cell(index)) }.load(Ordering::Relaxed);
            (word >> 32) as u32 == lap_mark(index)
        })
    }

    #[inline(always)]
    fn slot(&self, index: u64) -> usize {
        index as usize & (self.geometry.cells - 1)
    }

    #[inline(always)]
    fn cell(&self, index: u64) -> usize {
        self.slot(index) * CELL_BYTES
    }

    /// The last step of a send: from here on the consumer sees the message.
    #[inline(always)]
    fn commit(&mut self, len: usize) {
        let at = self.cell(self.tail);
        // Release pairs with the Acquire in `Consumer::peek`: the message is complete when its mark is seen.
        // SAFETY: inside the cells, aligned, writable: checked by `attach`.
        unsafe { self.cells.word(at) }.store(mark(self.tail, len), Ordering::Release);
        self.tail += 1;
    }
}

/// Room for one message: write both parts, then [`Reserved::commit`]. Dropped without, nothing was sent.
pub struct Reserved<'a> {
    producer: &'a mut Producer,
    place: Place,
    len: usize,
}

impl Reserved<'_> {
    /// The two parts to be written: the first [`FIRST_BYTES`] (or fewer) and the rest.
    #[inline]
    pub fn parts(&mut self) -> (SharedSliceMut<'_>, SharedSliceMut<'_>) {
        let producer = &*self.producer;
        let at = producer.cell(producer.tail) + 8;
        // SAFETY: inside the cell, writable; this value borrows the producer exclusively, and the consumer
        // keeps away from a cell and its data until the mark.
        let first = unsafe { producer.cells.view_mut_at(at, self.len.min(FIRST_BYTES)) };
        // SAFETY: `place` is inside the data area, which is apart from the cells; as above.
        let rest = unsafe { producer.data.view_mut_at(self.place.at, self.place.len) };
        (first, rest)
    }

    /// Sends a message of at least [`FIRST_BYTES`], whose rest has been written: these words (in memory
    /// order) are its first bytes. The consumer polls the cell: written earlier, its line would be gone again
    /// by the time of the mark, and would have to be fetched twice.
    #[inline]
    pub fn commit_with(self, first: [u64; 3]) {
        debug_assert!(
            self.len >= FIRST_BYTES,
            "the first bytes of a short message are not three words"
        );
        write_first(
            &self.producer.cells,
            self.producer.cell(self.producer.tail),
            first,
        );
        self.commit();
    }

    /// Sends the message, both parts of which have been written.
    #[inline]
    pub fn commit(self) {
        let slot = self.producer.slot(self.producer.tail);
        // Below the size of the data area, which is at most 2³⁰.
        if let Some(rest) = self.producer.rests.get_mut(slot) {
            *rest = self.place.at as u32;
        }
        self.producer.data_tail = self.place.end;
        if self.place.len >= WARM_BYTES.0 {
            // Below 2³².
            self.producer.likely = self.place.len.min(WARM_BYTES.1) as u32;
            self.producer.warmed = 0;
        }
        self.producer.commit(self.len);
    }
}

/// The end that receives.
pub struct Consumer {
    cells: Area,
    data: Area,
    control: Area,
    geometry: Geometry,
    /// Cells consumed: the truth.
    head: u64,
    /// Those of them that went on with a message: `head` without them is the number of messages.
    more: u64,
    data_head: u64,
    /// The data index after the message last peeked at, and its cells beyond the first.
    next_data: u64,
    next_more: u64,
    /// Whether these two count: the message that was shown does not fit one cell, and was not released. (If
    /// its sender changes it meanwhile, what was shown is what is released.)
    is_long: bool,
    published: u64,
    /// Amounts from which on the consumed indices are published.
    publish_at: u64,
    data_publish_at: u64,
    /// Whether the last long message had a short rest. Then the next one may, and while it is looked for,
    /// the line where its rest will begin is prefetched: it then comes together with the cell, not after it.
    /// As long as nothing is written there, it stays here and this costs nothing. A longer rest is fetched
    /// faster from its beginning by the machine itself.
    ahead: Ahead,
}

/// Where the rest of the next message will probably be.
#[derive(Clone, Copy)]
enum Ahead {
    /// There is none, or a long one.
    Nowhere,
    /// In the data area.
    Data,
    /// In the one cell behind the next.
    Cell,
    /// In several cells behind the next.
    Cells,
}

/// What [`Consumer::expect`] saw.
#[derive(Debug, Clone, Copy)]
pub enum Look<'a> {
    /// No message is there.
    Nothing,
    /// A message is there, but not the expected one.
    Other,
    /// The expected message, all of it in its cell.
    Short {
        /// Its length in bytes, from 16 to [`FIRST_BYTES`].
        len: usize,
        /// Its bytes from 16 on (in memory order).
        last: u64,
    },
    /// The expected message.
    Long {
        /// Its length in bytes, above [`FIRST_BYTES`].
        len: usize,
        /// Its bytes from 16 to [`FIRST_BYTES`] (in memory order).
        last: u64,
        /// Its bytes from [`FIRST_BYTES`] on.
        rest: SharedSlice<'a>,
    },
}

/// A message in place, until [`Consumer::release`].
pub struct Arrival<'a> {
    len: usize,
    first: [u8; FIRST_BYTES],
    rest: SharedSlice<'a>,
}

impl<'a> Arrival<'a> {
    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the message has no byte.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its first bytes, up to [`FIRST_BYTES`]: a private copy.
    #[inline]
    #[must_use]
    pub fn first(&self) -> &[u8] {
        &self.first[..self.len.min(FIRST_BYTES)]
    }

    /// Whether it lies in a run of several cells.
    #[inline]
    #[must_use]
    pub fn is_run(&self) -> bool {
        self.len > FIRST_BYTES && self.len <= RUN_BYTES
    }

    /// The rest, where the producer wrote it.
    #[inline]
    #[must_use]
    pub fn rest(&self) -> SharedSlice<'a> {
        self.rest
    }
}

impl Consumer {
    /// Attaches to a lane: `control` is written here, `lane` only read.
    ///
    /// # Errors
    /// [`RingError::TooSmall`], [`RingError::Misaligned`] (cache lines) or [`RingError::ReadOnly`].
    pub fn attach(geometry: Geometry, control: Area, mut lane: Area) -> Result<Self, RingError> {
        lane.check(
            "message lane, cells and data",
            geometry.bytes(),
            CACHE_LINE,
            Access::ReadOnly,
        )?;
        control.check(
            "message lane, consumer's control block",
            CONTROL_BYTES,
            CACHE_LINE,
            Access::ReadWrite,
        )?;
        let cells = lane.split_to(geometry.cells_bytes())?;
        Ok(Self {
            cells,
            data: lane,
            control,
            geometry,
            head: 0,
            more: 0,
            data_head: 0,
            next_data: 0,
            next_more: 0,
            is_long: false,
            published: 0,
            publish_at: (geometry.cells as u64).div_ceil(8),
            data_publish_at: (geometry.data / 8) as u64,
            ahead: Ahead::Nowhere,
        })
    }

    /// The next message, if it has come: its first bytes copied, the rest in place.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if its length is impossible.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Arrival<'_>>, RingError> {
        let at = (self.head as usize & (self.geometry.cells - 1)) * CELL_BYTES;
        // Acquire pairs with the Release in `Producer::commit`: with Relaxed, bytes of the lap before could
        // be read. SAFETY: inside the cells and aligned: checked by `attach`.
        let word = unsafe { self.cells.word(at) }.load(Ordering::Acquire);
        if (word >> 32) as u32 != lap_mark(self.head) {
            self.prefetch_rest();
            return Ok(None);
        }
        let len = word as u32 as usize;
        if len <= FIRST_BYTES {
            let first = read_first(&self.cells, at);
            // SAFETY: no bytes at the start of the data area.
            let rest = unsafe { self.data.view_at(0, 0) };
            return Ok(Some(Arrival { len, first, rest }));
        }
        if !self.is_possible(at, len) {
            return Err(self.impossible(len));
        }
        let first = read_first(&self.cells, at);
        let rest = self.rest(at, len);
        let len = bytes_of(len);
        Ok(Some(Arrival { len, first, rest }))
    }

    /// Whether a message longer than its cell can have this length, as it is written in a cell.
    #[inline(always)]
    fn is_possible(&self, at: usize, len: usize) -> bool {
        if len & RUN == 0 {
            return len <= self.geometry.longest();
        }
        let (len, cells) = (bytes_of(len), run_cells(len));
        len > FIRST_BYTES && len <= RUN_BYTES && at + cells * CELL_BYTES <= self.geometry.cells_bytes()
    }

    #[cold]
    fn impossible(&self, len: usize) -> RingError {
        let most = if len & RUN == 0 {
            self.geometry.longest()
        } else {
            RUN_BYTES
        };
        corrupt("message lane, length", len as u64, 0, most as u64)
    }

    /// The rest of a message of a possible length.
    #[inline(always)]
    fn rest(&mut self, at: usize, len: usize) -> SharedSlice<'_> {
        self.is_long = true;
        if len & RUN != 0 {
            self.next_data = self.data_head;
            self.next_more = run_cells(len) as u64 - 1;
            let len = bytes_of(len);
            self.ahead = match self.next_more {
                1 => Ahead::Cell,
                _ => Ahead::Cells,
            };
            // SAFETY: inside the cells: `is_possible`.
            return unsafe { self.cells.view_at(at + CELL_BYTES, len - FIRST_BYTES) };
        }
        let place = place(self.geometry.data, self.data_head, len);
        (self.next_data, self.next_more) = (place.end, 0);
        self.ahead = if place.len <= AHEAD_BYTES {
            Ahead::Data
        } else {
            Ahead::Nowhere
        };
        // SAFETY: `place` is inside the data area for every length up to the longest: `is_possible`.
        unsafe { self.data.view_at(place.at, place.len) }
    }

    /// Looks for the next message, up to `looks` times with `pauses` pause instructions in between, and
    /// returns whether it begins with these two words (in memory order) and is at most `most` bytes long; one
    /// line is read, and for a longer message the place of its rest is returned. After [`Look::Short`] and
    /// [`Look::Long`], it is shown in place until [`Consumer::release`]; every other message is left for
    /// [`Consumer::peek`].
    ///
    /// Without a pause, loads run ahead of the one that counts and compete with the producer for the line.
    #[inline(always)]
    pub fn expect(&mut self, head: [u64; 2], most: usize, looks: u32, pauses: u32) -> Look<'_> {
        let at = (self.head as usize & (self.geometry.cells - 1)) * CELL_BYTES;
        let expected = lap_mark(self.head);
        let mut left = looks;
        let word = loop {
            // Acquire: as in `peek`.
            // SAFETY: inside the cells and aligned: checked by `attach`.
            let word = unsafe { self.cells.word(at) }.load(Ordering::Acquire);
            if (word >> 32) as u32 == expected {
                break word;
            }
            left = left.saturating_sub(1);
            if left == 0 {
                return Look::Nothing;
            }
            self.prefetch_rest();
            for _ in 0..pauses {
                std::hint::spin_loop();
            }
        };
        let len = word as u32 as usize;
        let words = read_words(&self.cells, at);
        let is_expected = words[0] == head[0] && words[1] == head[1];
        let last = words[2];
        if len <= FIRST_BYTES {
            return if is_expected && len >= 16 && len <= most {
                Look::Short { len, last }
            } else {
                Look::Other
            };
        }
        let bytes = bytes_of(len);
        if !is_expected || bytes > most {
            // An announcement, perhaps, and more of them to come.
            if len <= FIRST_BYTES + AHEAD_BYTES {
                self.ahead = Ahead::Data;
            }
            return Look::Other;
        }
        if !self.is_possible(at, len) {
            return Look::Other; // for `peek` to refuse
        }
        let rest = self.rest(at, len);
        Look::Long {
            len: bytes,
            last,
            rest,
        }
    }

    /// Checks up to `looks` times, with a pause after each, whether the next message is there, complete or
    /// impossible. When the last one had a rest, the place of the next one's rest is prefetched, too.
    #[inline(always)]
    #[must_use]
    pub fn linger(&self, looks: u32) -> bool {
        for _ in 0..looks {
            if self.is_ready() {
                return true;
            }
            // An answer that is given while a poll runs is written later than one to a call that waits: lines
            // of several cells would have gone back and forth by then.
            if !matches!(self.ahead, Ahead::Cells) {
                self.prefetch_rest();
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Prefetches the place of the next message's rest, when the last one had a short one.
    #[inline(always)]
    fn prefetch_rest(&self) {
        let word = match self.ahead {
            Ahead::Nowhere => return,
            // SAFETY: inside the data area and aligned: its length is a power of two and indices are whole
            // lines.
            Ahead::Data => unsafe { self.data.word(self.data_head as usize & (self.geometry.data - 1)) },
            Ahead::Cell | Ahead::Cells => {
                let next = self.head as usize + CACHE_LINE / CELL_BYTES;
                // SAFETY: inside the cells and aligned: checked by `attach`.
                unsafe { self.cells.word((next & (self.geometry.cells - 1)) * CELL_BYTES) }
            }
        };
        prefetch_to_read(word);
    }

    /// Whether a message is there, complete or impossible: reads one word.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let at = (self.head as usize & (self.geometry.cells - 1)) * CELL_BYTES;
        // Relaxed: nothing is read on the strength of it; `peek` and `expect` look again.
        // SAFETY: inside the cells and aligned: checked by `attach`.
        let word = unsafe { self.cells.word(at) }.load(Ordering::Relaxed);
        (word >> 32) as u32 == lap_mark(self.head)
    }

    /// Done with the message that [`Consumer::peek`] showed. The producer learns of it an eighth of the lane
    /// later, or at the next [`Consumer::publish`]: publishing it every time would move a line per message.
    #[inline]
    pub fn release(&mut self) {
        self.head += 1;
        let mut is_due = false;
        if self.is_long {
            self.head += self.next_more;
            self.more += self.next_more;
            self.data_head = self.next_data;
            self.is_long = false;
            is_due = self.data_head >= self.data_publish_at;
        }
        if is_due || self.head >= self.publish_at {
            self.publish();
        }
    }

    /// Publishes what was consumed, unless that is published already; returns whether something was
    /// published.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.published == self.head {
            return false;
        }
        let consumed = self.consumed() << 32 | u64::from(self.head as u32);
        // Release pairs with the Acquire in `Producer::look`; see there. Cells are published before their
        // data: the producer then never writes to the data of a message that it would still show as not
        // consumed, wherever between the two this side stops. SAFETY: size, alignment and access of the
        // control block were checked by `attach`.
        unsafe { self.control.word(0) }.store(consumed, Ordering::Release);
        // SAFETY: as above.
        unsafe { self.control.word(8) }.store(self.data_head, Ordering::Release);
        self.published = self.head;
        self.publish_at = self.head + (self.geometry.cells as u64).div_ceil(8);
        self.data_publish_at = self.data_head + (self.geometry.data / 8) as u64;
        true
    }

    /// Messages consumed so far.
    #[inline]
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.head - self.more
    }

    /// Cells consumed so far: where the next message is looked for.
    #[inline]
    #[must_use]
    pub fn cells(&self) -> u64 {
        self.head
    }

    /// Sets the attention word, which the producer looks at after each message. Its meaning is the users'.
    #[inline]
    pub fn set_attention(&mut self, attention: u64) {
        // Relaxed: a hint, as in `Producer::attention`. A caller that is about to sleep orders it against its
        // last check with a full barrier; nothing less would do. SAFETY: size, alignment and access of the
        // control block were checked by `attach`.
        unsafe { self.control.word(ATTENTION) }.store(attention, Ordering::Relaxed);
    }
}

/// A hint: nothing is read or written, on no machine does anything depend on it, and where there is no way to
/// give it, it is not given.
#[inline(always)]
fn prefetch_to_write(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: an address that is valid; the instruction changes nothing, and is a no-op where it is not
    // known.
    unsafe {
        std::arch::asm!("prefetchw [{0}]", in(reg) word, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = word;
}

/// Prefetches the line of a word for reading.
#[inline(always)]
fn prefetch_to_read(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: an address that is valid; the instruction changes nothing.
    unsafe {
        std::arch::asm!("prefetcht0 [{0}]", in(reg) word, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = word;
}

/// A cell's length and first bytes; of this side's own memory, or after the mark was seen.
fn read_cell(cells: &Area, at: usize) -> (usize, [u8; FIRST_BYTES]) {
    // SAFETY: the callers pass offsets of cells, which `attach` checked to be inside and aligned.
    let word = unsafe { cells.word(at) }.load(Ordering::Relaxed);
    (word as u32 as usize, read_first(cells, at))
}

#[cfg(not(loom))]
#[inline(always)]
fn write_first(cells: &Area, at: usize, words: [u64; 3]) {
    for (i, word) in words.into_iter().enumerate() {
        // Relaxed: the mark, stored after, orders it.
        // SAFETY: inside the cell, aligned, writable: checked by `attach`.
        unsafe { cells.word(at + 8 * (i + 1)) }.store(word, Ordering::Relaxed);
    }
}

#[cfg(loom)]
fn write_first(cells: &Area, at: usize, words: [u64; 3]) {
    for (i, word) in words.into_iter().enumerate() {
        // SAFETY: inside the cell; loom checks that no thread reads it now.
        unsafe { cells.view_mut_at(at + 8 * (i + 1), 8) }.copy_from(&word.to_ne_bytes());
    }
}

#[cfg(not(loom))]
#[inline(always)]
fn read_words(cells: &Area, at: usize) -> [u64; 3] {
    [8, 16, 24].map(|word| {
        // Relaxed: ordered by the mark. Atomic, so that a far side that writes now gives wrong bytes, not a
        // data race. SAFETY: inside the cell, aligned: the callers pass offsets of cells.
        unsafe { cells.word(at + word) }.load(Ordering::Relaxed)
    })
}

#[cfg(loom)]
fn read_words(cells: &Area, at: usize) -> [u64; 3] {
    let bytes = read_first(cells, at);
    [0, 8, 16].map(|word| u64::from_ne_bytes(std::array::from_fn(|i| bytes[word + i])))
}

#[cfg(not(loom))]
#[inline(always)]
fn read_first(cells: &Area, at: usize) -> [u8; FIRST_BYTES] {
    let mut first = [0; FIRST_BYTES];
    for (bytes, word) in first.chunks_exact_mut(8).zip(read_words(cells, at)) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    first
}

#[cfg(loom)]
fn read_first(cells: &Area, at: usize) -> [u8; FIRST_BYTES] {
    let mut first = [0; FIRST_BYTES];
    // SAFETY: inside the cell. Checked cells rather than words: loom then reports a read that no mark
    // ordered.
    unsafe { cells.view_at(at + 8, FIRST_BYTES) }.copy_to(&mut first);
    first
}

#[inline(always)]
fn believe(what: &'static str, value: u64, low: u64, high: u64) -> Result<u64, RingError> {
    if value.wrapping_sub(low) > high.wrapping_sub(low) {
        return Err(corrupt(what, value, low, high));
    }
    Ok(value)
}

/// The lower half of an index, completed by the last one believed.
#[inline(always)]
fn believe_half(what: &'static str, half: u32, low: u64, high: u64) -> Result<u64, RingError> {
    let value = low + u64::from(half.wrapping_sub(low as u32));
    believe(what, value, low, high)
}

#[cold]
fn corrupt(what: &'static str, value: u64, low: u64, high: u64) -> RingError {
    RingError::Corrupt {
        what,
        value,
        low,
        high,
    }
}

#[cold]
fn too_long(asked: usize, most: usize) -> RingError {
    RingError::TooSmall {
        what: "message lane, one message",
        needed: asked,
        got: most,
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
