//! Views of bytes that another process or a device may be writing.
//!
//! A `&[u8]` promises the compiler that nobody writes the bytes while the reference lives; here nobody can
//! promise that. So these views hold a raw pointer and only ever *copy*: each byte is fetched from the shared
//! memory exactly once per call, into private memory, and is judged there.
//!
//! "Exactly once" has to be enforced against the optimiser as well: after an ordinary `memcpy` it may read
//! the *source* again instead of the copy, and a check of the copy would then say nothing about the value
//! used later. Small reads are volatile; large copies end in an empty assembly statement that takes the
//! copy's address and so may have changed it: what is read afterwards has to come from the copy.

use std::marker::PhantomData;

#[cfg(not(loom))]
use real as imp;
#[cfg(loom)]
use simulated as imp;

/// Read-only view of bytes that another process or a device may be writing.
///
/// `Copy` like a reference, but never a reference: the only way in is to copy the bytes out.
///
/// ```
/// use doorbell_ring::view::SharedSlice;
/// let bytes = [7u8, 0, 1, 0, 9];
/// let view = SharedSlice::from_private(&bytes);
/// let length = u16::from_le_bytes(view.read(2).unwrap());
/// let mut tail = [0u8; 8];
/// assert_eq!((length, view.copy_to(&mut tail)), (1, 5));
/// ```
#[derive(Clone, Copy)]
pub struct SharedSlice<'a> {
    raw: imp::Raw,
    len: usize,
    life: PhantomData<&'a ()>,
}

/// View of bytes that this side may write, and others may read or write too.
pub struct SharedSliceMut<'a> {
    raw: imp::Raw,
    len: usize,
    life: PhantomData<&'a mut ()>,
}

impl<'a> SharedSlice<'a> {
    /// Number of bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies as many bytes as both sides have, from the start; returns how many.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let n = self.len.min(to.len());
        // SAFETY: `n` is at most this view's length (kept by the constructors) and `to`'s.
        unsafe { self.raw.copy_to(to.as_mut_ptr(), n) };
        n
    }

    /// Copies `N` bytes from offset `at`, each fetched once; `None` if they do not all lie inside.
    #[inline]
    #[must_use]
    pub fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        if self.len < N || at > self.len - N {
            return None;
        }
        // SAFETY: `at + N` is at most the view's length, checked above.
        let raw = unsafe { self.raw.offset(at) };
        // SAFETY: as above.
        Some(unsafe { raw.read::<N>() })
    }

    /// The `len` bytes from offset `at`; `None` if they do not all lie inside.
    #[inline]
    #[must_use]
    pub fn slice(&self, at: usize, len: usize) -> Option<SharedSlice<'a>> {
        if self.len < len || at > self.len - len {
            return None;
        }
        // SAFETY: `at` is at most the view's length, checked above.
        let raw = unsafe { self.raw.offset(at) };
        Some(Self {
            raw,
            len,
            life: PhantomData,
        })
    }

    /// A private copy. Allocates: for set-up, tests and tools, not for the data path.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.len];
        self.copy_to(&mut copy);
        copy
    }
}

impl<'a> SharedSliceMut<'a> {
    /// Number of bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes as many bytes as both sides have, from the start; returns how many.
    #[inline]
    pub fn copy_from(&mut self, from: &[u8]) -> usize {
        let n = self.len.min(from.len());
        // SAFETY: `n` is at most this view's length (kept by the constructors) and `from`'s.
        unsafe { self.raw.copy_from(from.as_ptr(), n) };
        n
    }

    /// Writes `bytes` at offset `at`; returns whether they all lay inside (if not, nothing is written).
    #[inline]
    #[must_use]
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        if self.len < bytes.len() || at > self.len - bytes.len() {
            return false;
        }
        // SAFETY: `at` is at most the view's length, checked above.
        let raw = unsafe { self.raw.offset(at) };
        // SAFETY: `at + bytes.len()` is at most the view's length, checked above.
        unsafe { raw.copy_from(bytes.as_ptr(), bytes.len()) };
        true
    }

    /// Returns the same bytes for reading. The far side may have changed what was written since.
    #[inline]
    #[must_use]
    pub fn as_shared(&self) -> SharedSlice<'_> {
        SharedSlice {
            raw: self.raw,
            len: self.len,
            life: PhantomData,
        }
    }

    /// A shorter-lived view of the `len` bytes from offset `at`; `None` if they do not all lie inside.
    #[inline]
    #[must_use]
    pub fn slice(&mut self, at: usize, len: usize) -> Option<SharedSliceMut<'_>> {
        if self.len < len || at > self.len - len {
            return None;
        }
        // SAFETY: `at` is at most the view's length, checked above.
        let raw = unsafe { self.raw.offset(at) };
        Some(SharedSliceMut {
            raw,
            len,
            life: PhantomData,
        })
    }
}

#[cfg(not(loom))]
impl<'a> SharedSlice<'a> {
    /// A view of private bytes (a simulator's frame, for example), to be passed to code that
    /// expects the worst.
    #[inline]
    #[must_use]
    pub fn from_private(bytes: &'a [u8]) -> Self {
        // SAFETY: the reference keeps the bytes valid for reads for `'a`.
        unsafe { Self::from_raw(bytes.as_ptr(), bytes.len()) }
    }

    /// A view of `len` bytes at `pointer`.
    ///
    /// # Safety
    /// The bytes must stay mapped and readable for `'a`. They may be written at any time from *outside* this
    /// process (or by a device); inside this process, some protocol has to keep writers away while the view
    /// is read.
    #[inline]
    #[must_use]
    pub unsafe fn from_raw(pointer: *const u8, len: usize) -> Self {
        Self {
            raw: imp::Raw::new(pointer.cast_mut()),
            len,
            life: PhantomData,
        }
    }

    /// The address, for system calls and descriptors. Not to be made a reference of.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.raw.as_ptr()
    }
}

#[cfg(not(loom))]
impl<'a> SharedSliceMut<'a> {
    /// A view of private bytes, to be passed to code that expects the worst.
    #[inline]
    #[must_use]
    pub fn from_private(bytes: &'a mut [u8]) -> Self {
        // SAFETY: the exclusive reference keeps the bytes valid for reads and writes for `'a`.
        unsafe { Self::from_raw(bytes.as_mut_ptr(), bytes.len()) }
    }

    /// A view of `len` bytes at `pointer`.
    ///
    /// # Safety
    /// The conditions of [`SharedSlice::from_raw`], and the bytes must be writable, by nothing else in this
    /// process for `'a`.
    #[inline]
    #[must_use]
    pub unsafe fn from_raw(pointer: *mut u8, len: usize) -> Self {
        Self {
            raw: imp::Raw::new(pointer),
            len,
            life: PhantomData,
        }
    }

    /// The address, for system calls and descriptors. Not to be made a reference of.
    #[inline]
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.raw.as_ptr()
    }
}

impl std::fmt::Debug for SharedSlice<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedSlice({} bytes)", self.len)
    }
}

impl std::fmt::Debug for SharedSliceMut<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedSliceMut({} bytes)", self.len)
    }
}

/// Views as they are outside loom: an address.
#[cfg(not(loom))]
mod real {
    #[derive(Clone, Copy)]
    pub(super) struct Raw(*mut u8);

    impl Raw {
        #[inline(always)]
        pub(super) fn new(pointer: *mut u8) -> Self {
            Self(pointer)
        }

        #[inline(always)]
        pub(super) fn as_ptr(self) -> *mut u8 {
            self.0
        }

        /// # Safety
        /// `at` must lie within, or one past, the bytes that the view was made of.
        #[inline(always)]
        pub(super) unsafe fn offset(self, at: usize) -> Self {
            // SAFETY: the caller keeps `at` within the allocation or mapping.
            Self(unsafe { self.0.add(at) })
        }

        /// # Safety
        /// `n` bytes must be readable here and writable, privately, at `to`.
        #[inline(always)]
        pub(super) unsafe fn copy_to(self, to: *mut u8, n: usize) {
            // SAFETY: both ranges are valid by the caller's promise; `to` is private memory, so they are
            // apart.
            unsafe { std::ptr::copy_nonoverlapping(self.0, to, n) };
            // SAFETY: the statement is empty; it only makes the compiler assume that `to` was rewritten.
            unsafe { std::arch::asm!("/* {0} */", in(reg) to, options(nostack, preserves_flags)) };
        }

        /// # Safety
        /// `n` bytes must be writable here and readable, privately, at `from`.
        #[inline(always)]
        pub(super) unsafe fn copy_from(self, from: *const u8, n: usize) {
            // SAFETY: both ranges are valid by the caller's promise; `from` is private memory, so they are
            // apart.
            unsafe { std::ptr::copy_nonoverlapping(from, self.0, n) };
        }

        /// # Safety
        /// `N` bytes must be readable here.
        #[inline(always)]
        pub(super) unsafe fn read<const N: usize>(self) -> [u8; N] {
            let mut bytes = [0; N];
            let mut at = 0;
            // In words, largest first: a volatile array would be fetched byte by byte.
            while at + 8 <= N {
                // SAFETY: `at + 8` is at most `N`.
                bytes[at..at + 8].copy_from_slice(&unsafe { self.fetch::<u64>(at) }.to_ne_bytes());
                at += 8;
            }
            if at + 4 <= N {
                // SAFETY: `at + 4` is at most `N`.
                bytes[at..at + 4].copy_from_slice(&unsafe { self.fetch::<u32>(at) }.to_ne_bytes());
                at += 4;
            }
            if at + 2 <= N {
                // SAFETY: `at + 2` is at most `N`.
                bytes[at..at + 2].copy_from_slice(&unsafe { self.fetch::<u16>(at) }.to_ne_bytes());
                at += 2;
            }
            if at < N {
                // SAFETY: `at` is below `N`.
                bytes[at] = unsafe { self.fetch::<u8>(at) };
            }
            bytes
        }

        /// Fetches an integer from offset `at`, once, whatever its alignment.
        ///
        /// # Safety
        /// Its bytes must be readable there.
        #[inline(always)]
        unsafe fn fetch<W: Copy>(self, at: usize) -> W {
            // SAFETY: inside the view by the caller's promise.
            let word = unsafe { self.0.add(at) }.cast::<Unaligned<W>>();
            // SAFETY: readable by the caller's promise; the packed type has no alignment to keep.
            unsafe { std::ptr::read_volatile(word) }.0
        }
    }

    #[derive(Clone, Copy)]
    #[repr(C, packed)]
    struct Unaligned<W>(W);
}

/// Views under loom: granules of checked cells, so that loom reports any access that no ordering protects.
#[cfg(loom)]
mod simulated {
    use crate::storage::Cells;
    use std::ptr::NonNull;

    #[derive(Clone, Copy)]
    pub(super) struct Raw {
        cells: NonNull<Cells>,
        at: usize,
    }

    impl Raw {
        pub(super) fn new(cells: &Cells, at: usize) -> Self {
            Self {
                cells: NonNull::from(cells),
                at,
            }
        }

        fn cells(&self) -> &Cells {
            // SAFETY: the view's lifetime is bounded by the area's, which owns the cells.
            unsafe { self.cells.as_ref() }
        }

        pub(super) unsafe fn offset(self, at: usize) -> Self {
            Self {
                at: self.at + at,
                ..self
            }
        }

        pub(super) unsafe fn copy_to(self, to: *mut u8, n: usize) {
            // SAFETY: `n` bytes are writable at `to` by the caller's promise.
            let to = unsafe { std::slice::from_raw_parts_mut(to, n) };
            self.cells().read(self.at, to);
        }

        pub(super) unsafe fn copy_from(self, from: *const u8, n: usize) {
            // SAFETY: `n` bytes are readable at `from` by the caller's promise.
            let from = unsafe { std::slice::from_raw_parts(from, n) };
            self.cells().write(self.at, from);
        }

        pub(super) unsafe fn read<const N: usize>(self) -> [u8; N] {
            let mut out = [0; N];
            self.cells().read(self.at, &mut out);
            out
        }
    }
}

#[cfg(loom)]
impl<'a> SharedSlice<'a> {
    pub(crate) fn of_cells(cells: &'a crate::storage::Cells, at: usize, len: usize) -> Self {
        Self {
            raw: imp::Raw::new(cells, at),
            len,
            life: PhantomData,
        }
    }
}

#[cfg(loom)]
impl<'a> SharedSliceMut<'a> {
    pub(crate) fn of_cells(cells: &'a crate::storage::Cells, at: usize, len: usize) -> Self {
        Self {
            raw: imp::Raw::new(cells, at),
            len,
            life: PhantomData,
        }
    }
}
