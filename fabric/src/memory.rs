//! Memory that others may write, memory that users lend, and memory that we own: all `unsafe` code about
//! bytes.
//!
//! * [`SharedBytes`]: bytes that a peer process or a device may still write. Never a `&[u8]`; copied out
//!   once.
//! * [`ConstLoan`], [`MutLoan`]: a user's buffer, on loan to the stack between the start of a request and its
//!   end. The borrow itself is kept by `engine`'s `scope` module; the stack below only copies in and out. A
//!   loan has no lifetime, so making one is `unsafe`, unless the memory lives for ever.
//! * [`Region`], [`RegionSlice`]: owned, reference-counted memory, the only kind that a device or a peer's
//!   one-sided operation can access. It is never lent: its users hold a slice.
//! * [`Piece`]: a region while it is ours alone; [`View`]: a part of a peer's region, mapped to be read.
//!
//! All copies go through raw pointers: no reference to such memory ever exists, so that another process's
//! write in the middle of a copy gives wrong bytes (which the layers above check) and never undefined
//! behaviour of a reference. Each byte is fetched once (except for checksums, which decide nothing that
//! others could exploit): reads into arrays are volatile, and after a copy an empty assembly statement takes
//! the copy's address, so that the optimiser cannot read the source again instead of the copy. The same holds
//! between threads of one process: two of them may write one [`Region`], as two processes may. In the
//! language's memory model that is a race, and there is no other way to share memory with an untrusted
//! process; the code relies on the compiler giving such a load some value, which is private from then on.

mod checked;
mod copy;
mod elements;
mod piece;
mod region;
#[cfg(test)]
mod tests;
mod view;

use std::marker::PhantomData;
use std::ptr;

use doorbell_ring::{SharedSlice, SharedSliceMut};

use copy::{copy, fetch, sum};

pub use checked::AddressRange;
pub use piece::Piece;
pub use region::{Region, RegionSlice};
pub use view::View;

/// Bytes that a peer process or a device may still write while we look.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    start: *const u8,
    length: usize,
    life: PhantomData<&'a ()>,
}

impl<'a> SharedBytes<'a> {
    /// A view without bytes.
    pub const EMPTY: Self = Self {
        start: ptr::without_provenance(1),
        length: 0,
        life: PhantomData,
    };

    /// Bytes that are plainly ours, seen with the same care.
    #[inline]
    pub fn of(bytes: &'a [u8]) -> Self {
        Self {
            start: bytes.as_ptr(),
            length: bytes.len(),
            life: PhantomData,
        }
    }

    /// Bytes at `start`.
    ///
    /// # Safety
    /// `length` bytes from `start` must stay mapped and readable for `'a`. They may change at any time.
    #[inline]
    pub const unsafe fn new(start: *const u8, length: usize) -> Self {
        Self {
            start,
            length,
            life: PhantomData,
        }
    }

    /// Returns the number of bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address: for a driver's system call or device, which reads them while they are borrowed.
    #[inline]
    pub const fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// Returns the bytes without the first `n` (or none at all, when there are fewer).
    #[inline]
    pub fn skip(self, n: usize) -> Self {
        let n = n.min(self.length);
        Self {
            start: self.start.wrapping_add(n),
            length: self.length - n,
            life: PhantomData,
        }
    }

    /// The first `n` bytes (or all, when there are fewer).
    #[inline]
    pub fn take(self, n: usize) -> Self {
        Self {
            length: n.min(self.length),
            ..self
        }
    }

    /// Copies `N` bytes at offset `at`, once, to a private array; `None` when they are not all inside.
    #[inline]
    pub fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        if at.checked_add(N)? > self.length {
            return None;
        }
        let from = self.start.wrapping_add(at);
        // SAFETY: the N bytes at `at` are inside the range that the constructor promised to be readable.
        Some(unsafe { fetch(from) })
    }

    /// All bytes, when there are at most eight, as one word in memory order; zeroes behind them. No loop, and
    /// nothing that is written narrow and read back wide: that would wait for the store buffer.
    #[inline(always)]
    pub fn read_short(&self) -> Option<u64> {
        let half = |at: usize| self.read(at).map(u32::from_le_bytes).map(u64::from);
        let byte = |at: usize| self.read(at).map(|[byte]: [u8; 1]| u64::from(byte));
        let value = match self.length {
            8 => return self.read(0).map(u64::from_ne_bytes),
            // The two halves overlap: the bytes that they share are the same in both.
            4..8 => half(0)? | half(self.length - 4)? << (8 * (self.length - 4)),
            // As do these three.
            1..4 => {
                let (middle, last) = (self.length / 2, self.length - 1);
                byte(0)? | byte(middle)? << (8 * middle) | byte(last)? << (8 * last)
            }
            0 => 0,
            _ => return None,
        };
        Some(value.to_le())
    }

    /// The eight bytes from offset `at` as one word in memory order; zeroes behind the last byte. No loop, as
    /// in [`SharedBytes::read_short`].
    #[inline(always)]
    pub fn word(&self, at: usize) -> u64 {
        if let Some(word) = self.read(at) {
            return u64::from_ne_bytes(word);
        }
        let left = self.length.saturating_sub(at);
        match self.length.checked_sub(8).and_then(|last| self.read(last)) {
            // The last eight bytes, without those before `at`.
            Some(word) if left > 0 => (u64::from_le_bytes(word) >> (64 - 8 * left)).to_le(),
            _ => self.skip(at).read_short().unwrap_or(0),
        }
    }

    /// Copies from offset `at` into `to`; returns how many bytes there were.
    #[inline(always)]
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> usize {
        let from = self.skip(at);
        let n = from.length.min(to.len());
        // SAFETY: `n` is within both: the shared range promised by the constructor, and the slice `to`.
        unsafe { copy(from.start, to.as_mut_ptr(), n) };
        n
    }

    /// Copies from offset `at` into a slot of a ring; returns how many bytes there were.
    #[inline]
    pub fn copy_to_slot(&self, at: usize, to: &mut SharedSliceMut<'_>) -> usize {
        let from = self.skip(at);
        let n = from.length.min(to.len());
        // SAFETY: `n` is within both: the shared range promised by the constructor, and the slot, which is
        // this side's to write until it is committed.
        unsafe { copy(from.start, to.as_mut_ptr(), n) };
        n
    }

    /// The sum for the internet checksum, as [`ether::sum`](crate::ether::sum) makes it of plain bytes,
    /// folded.
    #[inline]
    pub fn sum(&self) -> u16 {
        // SAFETY: the range is what the constructor promised to be readable.
        unsafe { sum(self.start, self.length) }
    }

    /// A private copy on the heap (not for the data path).
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        self.copy_to(0, &mut bytes);
        bytes
    }

    /// The bytes as a plain slice, for code that takes nothing else.
    ///
    /// # Safety
    /// Nothing may write them while the slice is used: neither this process nor, where the memory is shared,
    /// the one that it is shared with, which has to be trusted to keep its agreement.
    #[inline]
    pub const unsafe fn as_slice(&self) -> &'a [u8] {
        // SAFETY: readable for `'a` by the promise of the constructor, and not written by the caller's.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl<'a> From<SharedSlice<'a>> for SharedBytes<'a> {
    /// A slot of a ring, as shared bytes like any other.
    #[inline]
    fn from(slot: SharedSlice<'a>) -> Self {
        Self {
            start: slot.as_ptr(),
            length: slot.len(),
            life: PhantomData,
        }
    }
}

/// A user's bytes, lent to be read. A plain pair of pointer and length: copying it copies no byte.
#[derive(Clone, Copy, Debug)]
pub struct ConstLoan {
    start: *const u8,
    length: usize,
}

// SAFETY: a loan is a pointer that is only read, under the promise of `ConstLoan::new`, which names no
// thread.
unsafe impl Send for ConstLoan {}

impl ConstLoan {
    /// A loan without bytes.
    pub const EMPTY: Self = Self {
        start: ptr::without_provenance(1),
        length: 0,
    };

    /// Lends `length` bytes at `start`.
    ///
    /// # Safety
    /// They must stay readable, and nothing may write them, for as long as this loan or a copy of it is used:
    /// until the request or operation that it was given to has ended, or its exposure was withdrawn.
    #[inline]
    pub const unsafe fn new(start: *const u8, length: usize) -> Self {
        Self { start, length }
    }

    /// Lends bytes that live for ever.
    ///
    /// ```compile_fail,E0597
    /// use doorbell_fabric::memory::ConstLoan;
    /// let loan = {
    ///     let bytes = [7; 8];
    ///     ConstLoan::of_static(&bytes)
    /// };
    /// assert_eq!(loan.len(), 8);
    /// ```
    #[inline]
    pub const fn of_static(bytes: &'static [u8]) -> Self {
        Self {
            start: bytes.as_ptr(),
            length: bytes.len(),
        }
    }

    /// Returns the number of bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address, as a number: for exposing it to a peer's pull.
    #[inline]
    pub fn address(&self) -> usize {
        self.start.addr()
    }

    /// The part from `at`, at most `length` bytes; shorter (or empty) at the end.
    #[inline]
    pub fn part(&self, at: usize, length: usize) -> Self {
        let at = at.min(self.length);
        Self {
            start: self.start.wrapping_add(at),
            length: length.min(self.length - at),
        }
    }

    /// The bytes, as bytes that may change: what a copy into a ring reads from.
    #[inline]
    pub fn as_shared(&self) -> SharedBytes<'_> {
        SharedBytes {
            start: self.start,
            length: self.length,
            life: PhantomData,
        }
    }

    /// Copies from offset `at` into `to`; returns how many bytes there were.
    #[inline]
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> usize {
        self.as_shared().copy_to(at, to)
    }
}

/// A user's buffer, lent to be written.
#[derive(Clone, Copy, Debug)]
pub struct MutLoan {
    start: *mut u8,
    length: usize,
}

// SAFETY: the promise of `MutLoan::new` gives exclusive use to the stack, whichever of its threads works.
unsafe impl Send for MutLoan {}

impl MutLoan {
    /// A loan without room.
    pub const EMPTY: Self = Self {
        start: ptr::without_provenance_mut(1),
        length: 0,
    };

    /// Lends `length` bytes at `start`.
    ///
    /// # Safety
    /// They must stay writable, and belong to the stack alone, for as long as this loan or a copy of it is
    /// used: until the request or operation that it was given to has ended, or its exposure was withdrawn.
    /// Copies of one loan stay on one thread at a time.
    #[inline]
    pub const unsafe fn new(start: *mut u8, length: usize) -> Self {
        Self { start, length }
    }

    /// Lends memory that lives for ever, and gives it up for ever: what is in it is reached through the loan
    /// from now on. For tests and measurements, which leak it.
    ///
    /// ```
    /// use doorbell_fabric::memory::MutLoan;
    /// let loan = MutLoan::of_static(vec![0; 4].leak());
    /// assert_eq!(loan.write(1, b"lent"), 3);
    /// assert_eq!(loan.as_shared().to_vec(), b"\0len");
    /// ```
    ///
    /// ```compile_fail,E0597
    /// use doorbell_fabric::memory::MutLoan;
    /// let loan = {
    ///     let mut bytes = [7; 8];
    ///     MutLoan::of_static(&mut bytes)
    /// };
    /// assert_eq!(loan.len(), 8);
    /// ```
    #[inline]
    pub const fn of_static(bytes: &'static mut [u8]) -> Self {
        Self {
            start: bytes.as_mut_ptr(),
            length: bytes.len(),
        }
    }

    /// Returns the number of bytes that fit.
    #[inline]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing fits.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address: for a driver's system call that fills it.
    #[inline]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.start
    }

    /// The part from `at`, at most `length` bytes; shorter (or empty) at the end.
    #[inline]
    pub fn part(&self, at: usize, length: usize) -> Self {
        let at = at.min(self.length);
        Self {
            start: self.start.wrapping_add(at),
            length: length.min(self.length - at),
        }
    }

    /// The bytes, to be copied out.
    #[inline]
    pub fn as_shared(&self) -> SharedBytes<'_> {
        SharedBytes {
            start: self.start,
            length: self.length,
            life: PhantomData,
        }
    }

    /// Returns what was written so far, to be read back (probe, checksum, sends from the same memory).
    #[inline]
    pub fn as_const(&self) -> ConstLoan {
        ConstLoan {
            start: self.start,
            length: self.length,
        }
    }

    /// Writes `bytes` at offset `at`; returns how many fitted. The two may overlap (a message to oneself).
    #[inline(always)]
    pub fn write_shared(&self, at: usize, bytes: SharedBytes<'_>) -> usize {
        let to = self.part(at, bytes.length);
        // SAFETY: `to` is inside the loan, and `bytes` holds at least `to.length` readable bytes.
        unsafe { copy(bytes.start, to.start, to.length) };
        to.length
    }

    /// Writes exactly `N` bytes at the start; `false`, and nothing written, when they do not fit. No call, no
    /// loop.
    #[inline(always)]
    pub fn write_array<const N: usize>(&self, bytes: [u8; N]) -> bool {
        if N > self.length {
            return false;
        }
        // SAFETY: `N` bytes are inside the loan, checked above, which `new` promised to be writable and the
        // stack's.
        unsafe { ptr::write_unaligned(self.start.cast::<[u8; N]>(), bytes) };
        true
    }

    /// Writes the first `length` bytes of a word in memory order; `false`, and nothing written, when they do
    /// not fit or are more than eight. The counterpart of [`SharedBytes::read_short`].
    #[inline(always)]
    pub fn write_short(&self, word: u64, length: usize) -> bool {
        if length == 8 {
            return self.write_array(word.to_ne_bytes());
        }
        if length > 8 || length > self.length {
            return false;
        }
        let mut rest = u64::from_le(word);
        let mut at = 0;
        if length & 4 != 0 {
            self.part(at, 4).write_array((rest as u32).to_le_bytes());
            (rest, at) = (rest >> 32, at + 4);
        }
        if length & 2 != 0 {
            self.part(at, 2).write_array((rest as u16).to_le_bytes());
            (rest, at) = (rest >> 16, at + 2);
        }
        if length & 1 != 0 {
            self.part(at, 1).write_array([rest as u8]);
        }
        true
    }

    /// Writes plain bytes at offset `at`; returns how many fitted.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) -> usize {
        self.write_shared(at, SharedBytes::of(bytes))
    }
}

/// Room for a message that arrives inside one call: of a loan, or of a region that is borrowed meanwhile.
///
/// ```
/// use doorbell_fabric::memory::Region;
/// let slice = Region::new(8)?.whole();
/// let room = slice.room();
/// assert_eq!((room.part(6, 4).len(), room.part(9, 1).len()), (2, 0));
/// assert!(room.write_short(u64::from_le_bytes(*b"short\0\0\0").to_le(), 5) && !room.write_array([0; 9]));
/// let mut bytes = [0; 5];
/// slice.copy_to(0, &mut bytes);
/// assert_eq!(&bytes, b"short");
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    loan: MutLoan,
    life: PhantomData<&'a ()>,
}

impl Room<'_> {
    /// Returns the number of bytes that fit.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.loan.len()
    }

    /// Whether nothing fits.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.loan.is_empty()
    }

    /// The part from `at`, at most `length` bytes; shorter (or empty) at the end.
    #[inline(always)]
    pub fn part(&self, at: usize, length: usize) -> Self {
        Self {
            loan: self.loan.part(at, length),
            life: PhantomData,
        }
    }

    /// Writes an array; see [`MutLoan::write_array`].
    #[inline(always)]
    pub fn write_array<const N: usize>(&self, bytes: [u8; N]) -> bool {
        self.loan.write_array(bytes)
    }

    /// Writes a short word; see [`MutLoan::write_short`].
    #[inline(always)]
    pub fn write_short(&self, word: u64, length: usize) -> bool {
        self.loan.write_short(word, length)
    }

    /// Writes bytes of shared memory; see [`MutLoan::write_shared`].
    #[inline(always)]
    pub fn write_shared(&self, at: usize, bytes: SharedBytes<'_>) -> usize {
        self.loan.write_shared(at, bytes)
    }
}

impl From<MutLoan> for Room<'static> {
    #[inline(always)]
    fn from(loan: MutLoan) -> Self {
        Self {
            loan,
            life: PhantomData,
        }
    }
}
