//! Memory that others may write, memory that users lend, memory that we own: the only `unsafe` about bytes.
//!
//! * [`SharedBytes`]: bytes that a peer process or a device may still write. Never a `&[u8]`; copied out once.
//! * [`ConstLoan`], [`MutLoan`]: a user's buffer, on loan to the stack between the start of a request and its end.
//!   The borrow itself is kept by `engine`'s `scope` module; the stack below only copies in and out.
//! * [`Region`], [`RegionSlice`]: owned, reference-counted memory, the only kind that a device or a peer's
//!   one-sided access ever reaches.
//!
//! All copies go through raw pointers: no reference to such memory ever exists, so that somebody else's write in
//! the middle of a copy gives wrong bytes (which the layers above check) and never a broken promise to the compiler.
//! Each byte is fetched once: reads into arrays are volatile, and behind a copy stands an empty assembly statement
//! that takes the copy's address, so that the optimiser cannot look at the source again instead of at the copy.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use doorbell_ring::{SharedSlice, SharedSliceMut};

use crate::error::RailError;
use crate::map::{Map, Object, Protection};
use crate::message::AtomicOp;

/// Bytes that a peer process or a device may still write while we look.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    start: *const u8,
    length: usize,
    life: PhantomData<&'a ()>,
}

impl<'a> SharedBytes<'a> {
    /// No bytes.
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

    /// How many bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Without the first `n` bytes (or none at all, when there are fewer).
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

    /// Copies from offset `at` into `to`; returns how many bytes there were.
    #[inline]
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
        // SAFETY: `n` is within both: the shared range promised by the constructor, and the slot, which is this
        // side's to write until it is committed.
        unsafe { copy(from.start, to.as_mut_ptr(), n) };
        n
    }

    /// A private copy on the heap (not for the data path).
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        self.copy_to(0, &mut bytes);
        bytes
    }
}

impl<'a> From<SharedSlice<'a>> for SharedBytes<'a> {
    /// A slot of a ring, as everybody else sees shared bytes.
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

// SAFETY: a loan is a pointer that is only read, under the promise of `ConstLoan::new`, which names no thread.
unsafe impl Send for ConstLoan {}

impl ConstLoan {
    /// No bytes.
    pub const EMPTY: Self = Self {
        start: ptr::without_provenance(1),
        length: 0,
    };

    /// Lends `length` bytes at `start`.
    ///
    /// # Safety
    /// They must stay readable, and nobody may write them, for as long as this loan or a copy of it is used:
    /// until the request that it was given to has ended.
    #[inline]
    pub const unsafe fn new(start: *const u8, length: usize) -> Self {
        Self { start, length }
    }

    /// Lends bytes that live for ever.
    #[inline]
    pub const fn of_static(bytes: &'static [u8]) -> Self {
        Self {
            start: bytes.as_ptr(),
            length: bytes.len(),
        }
    }

    /// How many bytes.
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
    /// No room.
    pub const EMPTY: Self = Self {
        start: ptr::without_provenance_mut(1),
        length: 0,
    };

    /// Lends `length` bytes at `start`.
    ///
    /// # Safety
    /// They must stay writable, and belong to the stack alone, for as long as this loan or a copy of it is used:
    /// until the request that it was given to has ended. Copies of one loan stay on one thread at a time.
    #[inline]
    pub const unsafe fn new(start: *mut u8, length: usize) -> Self {
        Self { start, length }
    }

    /// How many bytes fit.
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

    /// What was written so far, to be read back (probe, checksum, sends from the same memory).
    #[inline]
    pub fn as_const(&self) -> ConstLoan {
        ConstLoan {
            start: self.start,
            length: self.length,
        }
    }

    /// Writes `bytes` at offset `at`; returns how many fitted. The two may overlap (a message to oneself).
    #[inline]
    pub fn write_shared(&self, at: usize, bytes: SharedBytes<'_>) -> usize {
        let to = self.part(at, bytes.length);
        // SAFETY: `to` is inside the loan, and `bytes` holds at least `to.length` readable bytes.
        unsafe { copy(bytes.start, to.start, to.length) };
        to.length
    }

    /// Writes plain bytes at offset `at`; returns how many fitted.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) -> usize {
        self.write_shared(at, SharedBytes::of(bytes))
    }
}

/// A word that may lie at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Loose<T>(T);

/// Fetches `N` bytes once, in as few words as there are: a volatile array would be fetched byte by byte.
///
/// # Safety
/// `N` bytes must be readable at `from`.
#[inline(always)]
unsafe fn fetch<const N: usize>(from: *const u8) -> [u8; N] {
    let mut bytes = [0; N];
    let mut at = 0;
    while at + 8 <= N {
        // SAFETY: the eight bytes at `at` are among the caller's N.
        let word = unsafe { load::<u64>(from.wrapping_add(at)) };
        bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        at += 8;
    }
    if at + 4 <= N {
        // SAFETY: the four bytes at `at` are among the caller's N.
        let word = unsafe { load::<u32>(from.wrapping_add(at)) };
        bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        at += 4;
    }
    while at < N {
        // SAFETY: the byte at `at` is among the caller's N.
        bytes[at] = unsafe { load::<u8>(from.wrapping_add(at)) };
        at += 1;
    }
    bytes
}

/// # Safety
/// A `T`, which is a plain number, must be readable at `from`; any alignment will do.
#[inline(always)]
unsafe fn load<T: Copy>(from: *const u8) -> T {
    // SAFETY: readable by the caller's promise, and the packed type has no alignment.
    unsafe { ptr::read_volatile(from.cast::<Loose<T>>()) }.0
}

/// `memmove`, with up to 32 bytes done in registers: a call costs more than a short payload. Least of many batches on
/// one core (the pairs of `benches/fabric.rs`): 1.3 to 2.3 ns against 3.5 ns by the call; from 33 bytes on the call
/// wins.
///
/// # Safety
/// `n` bytes must be readable at `from` and writable at `to`; the two may overlap.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, n: usize) {
    match n {
        // SAFETY: exactly the caller's promise.
        33.. => unsafe { ptr::copy(from, to, n) },
        // SAFETY: the caller's promise, for a length of one word to two.
        17..33 => unsafe { copy_ends::<u128>(from, to, n) },
        // SAFETY: as above.
        8..17 => unsafe { copy_ends::<u64>(from, to, n) },
        // SAFETY: as above.
        4..8 => unsafe { copy_ends::<u32>(from, to, n) },
        // SAFETY: as above.
        2..4 => unsafe { copy_ends::<u16>(from, to, n) },
        // SAFETY: as above.
        1 => unsafe { copy_ends::<u8>(from, to, n) },
        0 => {}
    }
    // SAFETY: the statement is empty; it only makes the compiler assume that the bytes at `to` were written again.
    unsafe { std::arch::asm!("/* {0} */", in(reg) to, options(nostack, preserves_flags)) };
}

/// Copies the first word and the last one, which meet or overlap in the middle. Both are fetched before one is
/// stored, so the two ranges may overlap too.
///
/// # Safety
/// As for [`copy`], and `n` is from one to two times the size of `T`.
#[inline(always)]
unsafe fn copy_ends<T: Copy>(from: *const u8, to: *mut u8, n: usize) {
    let last = n - size_of::<T>();
    // SAFETY: a word from the start is within `n` bytes.
    let head = unsafe { ptr::read_unaligned(from.cast::<T>()) };
    // SAFETY: the last word ends where the `n` bytes end.
    let tail = unsafe { ptr::read_unaligned(from.wrapping_add(last).cast::<T>()) };
    // SAFETY: as for the first load, on the other side.
    unsafe { ptr::write_unaligned(to.cast::<T>(), head) };
    // SAFETY: as for the second load, on the other side.
    unsafe { ptr::write_unaligned(to.wrapping_add(last).cast::<T>(), tail) };
}

/// Owned, reference-counted memory in a shared memory object: what devices and peers may reach.
///
/// Its bytes may be written by one-sided operations of peers at any time while it is exposed, so it is read and
/// written by copies, never as a slice; copies that meet on the same bytes give a mixture. Dropped (and given back to the system) with its last clone or slice.
#[derive(Clone, Debug)]
pub struct Region {
    inner: Arc<RegionInner>,
}

#[derive(Debug)]
struct RegionInner {
    map: Map,
    object: Object,
    length: usize,
}

impl RegionInner {
    #[inline]
    fn bytes(&self) -> SharedBytes<'_> {
        SharedBytes {
            start: self.map.as_ptr(),
            length: self.length,
            life: PhantomData,
        }
    }

    /// Not to be used longer than `self` lives.
    #[inline]
    fn room(&self) -> MutLoan {
        MutLoan {
            start: self.map.as_ptr(),
            length: self.length,
        }
    }
}

impl Region {
    /// Makes `length` bytes of zeroes.
    ///
    /// # Errors
    /// When memory runs out, with the size that was asked for.
    pub fn new(length: usize) -> Result<Self, RailError> {
        let object = Object::new("doorbell-region", length)?;
        let map = object.map(Protection::ReadWrite)?;
        Ok(Self {
            inner: Arc::new(RegionInner { map, object, length }),
        })
    }

    /// Length in bytes, as it was asked for.
    #[inline]
    pub fn len(&self) -> usize {
        self.inner.length
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.inner.length == 0
    }

    /// The shared memory object behind it, to be passed to a device or a peer.
    pub fn object(&self) -> &Object {
        &self.inner.object
    }

    /// `length` bytes from `at`; `None` when they are not all inside.
    #[inline]
    pub fn slice(&self, at: usize, length: usize) -> Option<RegionSlice> {
        let end = at.checked_add(length)?;
        (end <= self.len()).then(|| RegionSlice {
            region: self.clone(),
            at,
            length,
        })
    }

    /// All of it.
    #[inline]
    pub fn whole(&self) -> RegionSlice {
        RegionSlice {
            at: 0,
            length: self.len(),
            region: self.clone(),
        }
    }

    /// Copies bytes from offset `at` out; returns how many there were.
    pub fn read(&self, at: usize, to: &mut [u8]) -> usize {
        self.inner.bytes().copy_to(at, to)
    }

    /// Copies bytes in at offset `at`; returns how many fitted.
    pub fn write(&self, at: usize, bytes: &[u8]) -> usize {
        self.inner.room().write(at, bytes)
    }
}

/// A part of a [`Region`], which it keeps alive.
#[derive(Clone, Debug)]
pub struct RegionSlice {
    region: Region,
    at: usize,
    length: usize,
}

impl RegionSlice {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The region it is part of.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Where in the region it starts.
    #[inline]
    pub fn offset(&self) -> usize {
        self.at
    }

    /// `length` bytes from `at`, counted in this slice; `None` when they are not all inside.
    #[inline]
    pub fn slice(&self, at: usize, length: usize) -> Option<Self> {
        let end = at.checked_add(length)?;
        (end <= self.length).then(|| Self {
            region: self.region.clone(),
            at: self.at + at,
            length,
        })
    }

    /// The bytes, to be copied out.
    #[inline]
    pub fn as_shared(&self) -> SharedBytes<'_> {
        self.region.inner.bytes().skip(self.at).take(self.length)
    }

    /// Copies from offset `at` of the slice into `to`; returns how many bytes there were.
    #[inline]
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> usize {
        self.as_shared().copy_to(at, to)
    }

    /// Writes `bytes` at offset `at` of the slice; returns how many fitted.
    #[inline]
    pub fn write_shared(&self, at: usize, bytes: SharedBytes<'_>) -> usize {
        self.as_mut().write_shared(at, bytes)
    }

    /// Writes plain bytes at offset `at` of the slice; returns how many fitted.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) -> usize {
        self.write_shared(at, SharedBytes::of(bytes))
    }

    /// Executes an atomic on the eight bytes at offset `at` of the slice; returns the old value. `None` when they
    /// are not all inside, or not aligned in the region.
    #[inline]
    pub fn atomic(&self, at: usize, what: AtomicOp) -> Option<u64> {
        let inside = at.checked_add(8)? <= self.length;
        if !inside || !(self.at + at).is_multiple_of(8) {
            return None;
        }
        let word = self.region.inner.map.as_ptr().wrapping_add(self.at + at);
        // SAFETY: inside the map and aligned, by the checks and because maps start on a page; mapped while `self`
        // lives. Everybody else reaches these bytes through raw pointers or atomics of this size.
        let word = unsafe { AtomicU64::from_ptr(word.cast()) };
        Some(match what {
            AtomicOp::Add(by) => word.fetch_add(by, SeqCst),
            AtomicOp::And(with) => word.fetch_and(with, SeqCst),
            AtomicOp::Or(with) => word.fetch_or(with, SeqCst),
            AtomicOp::Xor(with) => word.fetch_xor(with, SeqCst),
            AtomicOp::Swap(to) => word.swap(to, SeqCst),
            AtomicOp::CompareSwap { expected, desired } => {
                match word.compare_exchange(expected, desired, SeqCst, SeqCst) {
                    Ok(old) | Err(old) => old,
                }
            }
        })
    }

    /// The bytes as a loan to be read. The caller keeps the slice (or a clone) for as long as the loan is used;
    /// after that the address may not be mapped any more. Where no loan is needed, [`RegionSlice::as_shared`] and
    /// the copying calls keep the slice by themselves.
    #[inline]
    pub fn as_const(&self) -> ConstLoan {
        self.as_mut().as_const()
    }

    /// The bytes as a loan to be written; as [`RegionSlice::as_const`].
    #[inline]
    pub fn as_mut(&self) -> MutLoan {
        self.region.inner.room().part(self.at, self.length)
    }
}

#[cfg(test)]
mod tests;
