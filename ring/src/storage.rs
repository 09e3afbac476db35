//! Where a ring lies: memory behind one small trait, cut into areas.
//!
//! ```text
//!   Heap ───────┐   exact-size heap block: one byte past the end is caught by AddressSanitizer
//!   Mapped ─────┼─► Storage ─► Area ─ split_to ─► Area, Area, …  ─► rings, descriptor queues, slabs
//!   yours ──────┘   a map made elsewhere (shared memfd between guard pages, device memory)
//! ```
//!
//! Mapping memory is not this crate's work. The code that maps it passes an address, a length and an owner
//! that keeps the map alive; from there on an [`Area`] is used like any owned value. Areas are not `Clone`:
//! a byte belongs to one area, so two rings cannot be placed over each other by accident. The far side of a
//! ring has an area of its own, over its own map of the same pages.
//!
//! Under `--cfg loom` an area is a set of loom's cells instead, with the same methods.

use crate::error::RingError;
use crate::sync::{AtomicU32, AtomicU64};
use crate::view::{SharedSlice, SharedSliceMut};

#[cfg(loom)]
pub use simulated::{Area, Cells};
#[cfg(not(loom))]
pub use {
    real::Area,
    real::{Heap, Mapped, Storage},
};

/// Whether this process may write an area.
///
/// Each side of a shared ring maps its own pages read-write and the far side's read-only, so that its own
/// bugs cannot reach the peer's indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Mapped for reading only: a write would end the process.
    ReadOnly,
    /// Mapped for reading and writing.
    ReadWrite,
}

impl Area {
    /// Checks that `bytes` bytes, aligned to `align`, are there, with the access that the part needs.
    pub(crate) fn check(
        &self,
        what: &'static str,
        bytes: usize,
        align: usize,
        access: Access,
    ) -> Result<(), RingError> {
        if self.len() < bytes {
            return Err(RingError::TooSmall {
                what,
                needed: bytes,
                got: self.len(),
            });
        }
        if !self.address().is_multiple_of(align) {
            return Err(RingError::Misaligned {
                what,
                address: self.address(),
                align,
            });
        }
        if access == Access::ReadWrite && self.access() == Access::ReadOnly {
            return Err(RingError::ReadOnly { what });
        }
        Ok(())
    }

    /// The `len` bytes from offset `at`, to copy out of.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] if they do not all lie inside.
    #[inline]
    pub fn view(&self, at: usize, len: usize) -> Result<SharedSlice<'_>, RingError> {
        if self.len() < len || at > self.len() - len {
            return Err(self.outside(at, len));
        }
        // SAFETY: the range was checked just above.
        Ok(unsafe { self.view_at(at, len) })
    }

    /// The `len` bytes from offset `at`, to copy into.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] if they do not all lie inside, [`RingError::ReadOnly`] if the area is.
    #[inline]
    pub fn view_mut(&mut self, at: usize, len: usize) -> Result<SharedSliceMut<'_>, RingError> {
        if self.len() < len || at > self.len() - len {
            return Err(self.outside(at, len));
        }
        if self.access() == Access::ReadOnly {
            return Err(RingError::ReadOnly { what: "area" });
        }
        // SAFETY: the range and the access were checked just above; `&mut self` keeps other users of this
        // process away.
        Ok(unsafe { self.view_mut_at(at, len) })
    }

    #[cold]
    fn outside(&self, at: usize, len: usize) -> RingError {
        RingError::TooSmall {
            what: "area",
            needed: at.saturating_add(len),
            got: self.len(),
        }
    }
}

impl std::fmt::Debug for Area {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Area({} bytes, {:?})", self.len(), self.access())
    }
}

#[cfg(not(loom))]
mod real {
    use super::{Access, AtomicU32, AtomicU64, RingError, SharedSlice, SharedSliceMut};
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::any::Any;
    use std::ptr::NonNull;
    use std::sync::Arc;

    use crate::pad::CACHE_LINE;

    /// Memory that rings can be placed in.
    ///
    /// # Safety
    /// Implementation: the `len()` bytes from `base()` stay mapped, at that address, with at least the
    /// access that `access()` returns, until the value is dropped; all three methods always give the same
    /// answers; and inside this process nothing else reads or writes the bytes meanwhile, except through
    /// the one [`Area`] made of the value. (Other processes and devices may do what they like.)
    ///
    /// Use: none. Callers reach the bytes through [`Area`].
    pub unsafe trait Storage: Send + Sync + 'static {
        /// Address of the first byte.
        fn base(&self) -> NonNull<u8>;
        /// Number of bytes.
        fn len(&self) -> usize;
        /// Whether there are no bytes.
        fn is_empty(&self) -> bool {
            self.len() == 0
        }
        /// Returns what this process may do with them.
        fn access(&self) -> Access;
    }

    /// An exact-size, zeroed, cache-line-aligned heap block.
    #[derive(Debug)]
    pub struct Heap {
        base: NonNull<u8>,
        layout: Layout,
    }

    // SAFETY: the block is owned by this value alone, like a `Box<[u8]>`.
    unsafe impl Send for Heap {}
    // SAFETY: as above; a shared reference gives out no access to the bytes.
    unsafe impl Sync for Heap {}

    impl Heap {
        /// Allocates `len` zeroed bytes.
        ///
        /// # Errors
        /// [`RingError::Size`] if `len` is 0 or absurd, [`RingError::NoMemory`] if there is no memory.
        pub fn zeroed(len: usize) -> Result<Self, RingError> {
            let most = isize::MAX as usize - CACHE_LINE;
            let layout = match Layout::from_size_align(len, CACHE_LINE) {
                Ok(layout) if len > 0 => layout,
                _ => {
                    return Err(RingError::Size {
                        what: "heap storage",
                        asked: len,
                        unit: 1,
                        most,
                    });
                }
            };
            // SAFETY: the layout's size is not zero, checked above.
            let base = unsafe { alloc_zeroed(layout) };
            match NonNull::new(base) {
                Some(base) => Ok(Self { base, layout }),
                None => Err(RingError::NoMemory {
                    what: "heap storage",
                    bytes: len,
                }),
            }
        }
    }

    impl Drop for Heap {
        fn drop(&mut self) {
            // SAFETY: allocated in `zeroed` with this very layout, and freed here only.
            unsafe { dealloc(self.base.as_ptr(), self.layout) };
        }
    }

    // SAFETY: the block lives as long as the value, is writable, and its address is given to `Area` only.
    unsafe impl Storage for Heap {
        fn base(&self) -> NonNull<u8> {
            self.base
        }
        fn len(&self) -> usize {
            self.layout.size()
        }
        fn access(&self) -> Access {
            Access::ReadWrite
        }
    }

    /// Memory mapped elsewhere, with the owner that keeps the map alive.
    pub struct Mapped {
        base: NonNull<u8>,
        len: usize,
        access: Access,
        _owner: Arc<dyn Any + Send + Sync>,
    }

    // SAFETY: the owner is `Send + Sync`, and the promise of `new` does not name a thread.
    unsafe impl Send for Mapped {}
    // SAFETY: as above; a shared reference gives out no access to the bytes.
    unsafe impl Sync for Mapped {}

    impl Mapped {
        /// Takes over `len` bytes at `base`.
        ///
        /// # Safety
        /// As long as `owner` lives, the bytes stay mapped at this address, readable, and writable if
        /// `access` permits it; and inside this process nothing else reads or writes them meanwhile. Other
        /// processes and devices may write them at any time.
        #[must_use]
        pub unsafe fn new(
            base: NonNull<u8>,
            len: usize,
            access: Access,
            owner: Arc<dyn Any + Send + Sync>,
        ) -> Self {
            Self {
                base,
                len,
                access,
                _owner: owner,
            }
        }
    }

    // SAFETY: promised by the caller of `Mapped::new`; the owner lives as long as the value.
    unsafe impl Storage for Mapped {
        fn base(&self) -> NonNull<u8> {
            self.base
        }
        fn len(&self) -> usize {
            self.len
        }
        fn access(&self) -> Access {
            self.access
        }
    }

    /// A run of bytes of a [`Storage`], owned: nothing else in this process touches them.
    pub struct Area {
        base: NonNull<u8>,
        len: usize,
        access: Access,
        owner: Arc<dyn Storage>,
    }

    // SAFETY: the storage is `Send + Sync`, and the bytes are reached through this area only.
    unsafe impl Send for Area {}
    // SAFETY: `&Area` gives only copies out and atomics; writing bytes takes `&mut Area`.
    unsafe impl Sync for Area {}

    impl Area {
        /// All of a storage.
        #[must_use]
        pub fn new(storage: impl Storage) -> Self {
            Self {
                base: storage.base(),
                len: storage.len(),
                access: storage.access(),
                owner: Arc::new(storage),
            }
        }

        /// A zeroed heap block of exactly `len` bytes.
        ///
        /// # Errors
        /// Those of [`Heap::zeroed`].
        pub fn heap(len: usize) -> Result<Self, RingError> {
            Ok(Self::new(Heap::zeroed(len)?))
        }

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

        /// Returns what this process may do with the bytes.
        #[inline]
        #[must_use]
        pub fn access(&self) -> Access {
            self.access
        }

        /// Address of the first byte in this process, for descriptors and registration.
        #[inline]
        #[must_use]
        pub fn address(&self) -> usize {
            self.base.as_ptr() as usize
        }

        /// Cuts the first `n` bytes off as an area of their own; this one keeps the rest.
        ///
        /// # Errors
        /// [`RingError::TooSmall`] if there are fewer.
        pub fn split_to(&mut self, n: usize) -> Result<Self, RingError> {
            if n > self.len {
                return Err(RingError::TooSmall {
                    what: "area",
                    needed: n,
                    got: self.len,
                });
            }
            let front = Self {
                base: self.base,
                len: n,
                access: self.access,
                owner: Arc::clone(&self.owner),
            };
            // SAFETY: `n` is at most the length, so the address stays inside or one past the storage.
            self.base = unsafe { self.base.add(n) };
            self.len -= n;
            Ok(front)
        }

        /// A second area over the same bytes.
        ///
        /// # Safety
        /// Inside this process the two areas must not be used against each other: a ring's two ends, whose
        /// indices order their accesses, or words only (which are atomic).
        #[must_use]
        pub unsafe fn alias(&self) -> Self {
            Self {
                base: self.base,
                len: self.len,
                access: self.access,
                owner: Arc::clone(&self.owner),
            }
        }

        /// Returns the same bytes, which this process cannot write from now on.
        #[must_use]
        pub fn into_read_only(mut self) -> Self {
            self.access = Access::ReadOnly;
            self
        }

        /// The word at offset `at`.
        ///
        /// # Safety
        /// `at + 8` must be at most `len`, the address a multiple of 8, and the word stored to only if
        /// `access` allows it.
        #[inline(always)]
        pub(crate) unsafe fn word(&self, at: usize) -> &AtomicU64 {
            debug_assert!(at + 8 <= self.len);
            // SAFETY: inside the storage by the caller's promise.
            let word = unsafe { self.base.add(at) }.cast::<AtomicU64>();
            debug_assert!(word.is_aligned());
            // SAFETY: aligned and mapped by the caller's promise, for as long as `self` holds the owner;
            // whatever else happens to the word in this process happens through atomics.
            unsafe { word.as_ref() }
        }

        /// The word of 32 bits at offset `at`.
        ///
        /// # Safety
        /// The conditions of [`word`](Self::word), with 4 for 8.
        #[inline(always)]
        pub(crate) unsafe fn half(&self, at: usize) -> &AtomicU32 {
            debug_assert!(at + 4 <= self.len);
            // SAFETY: inside the storage by the caller's promise.
            let half = unsafe { self.base.add(at) }.cast::<AtomicU32>();
            debug_assert!(half.is_aligned());
            // SAFETY: as in `word`.
            unsafe { half.as_ref() }
        }

        /// The `len` bytes at offset `at`.
        ///
        /// # Safety
        /// They must lie inside.
        #[inline(always)]
        pub(crate) unsafe fn view_at(&self, at: usize, len: usize) -> SharedSlice<'_> {
            debug_assert!(len <= self.len && at <= self.len - len);
            // SAFETY: inside the storage by the caller's promise.
            let pointer = unsafe { self.base.add(at) };
            // SAFETY: mapped for as long as `self` holds the owner.
            unsafe { SharedSlice::from_raw(pointer.as_ptr(), len) }
        }

        /// The `len` bytes at offset `at`, to write.
        ///
        /// # Safety
        /// They must lie inside, `access` must be read-write, and no other view of them may be in use in
        /// this process.
        #[inline(always)]
        pub(crate) unsafe fn view_mut_at(&self, at: usize, len: usize) -> SharedSliceMut<'_> {
            debug_assert!(len <= self.len && at <= self.len - len);
            // SAFETY: inside the storage by the caller's promise.
            let pointer = unsafe { self.base.add(at) };
            // SAFETY: mapped for as long as `self` holds the owner, writable by the caller's promise.
            unsafe { SharedSliceMut::from_raw(pointer.as_ptr(), len) }
        }
    }
}

#[cfg(loom)]
mod simulated;
