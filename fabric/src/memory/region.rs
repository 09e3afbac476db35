//! Memory that we own and count: the only kind that a device or a peer's one-sided access ever reaches.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use super::{MutLoan, Room, SharedBytes};
use crate::error::RailError;
use crate::map::{Map, Object, Protection};
use crate::message::AtomicOp;

/// Owned, reference-counted memory in a shared memory object: what devices and peers may reach.
///
/// Its bytes may be written by one-sided operations of peers at any time while it is exposed, so it is read
/// and written by copies, never as a slice; copies that meet on the same bytes give a mixture. Dropped (and
/// given back to the system) with its last clone or slice.
#[derive(Clone, Debug)]
pub struct Region {
    inner: Arc<RegionInner>,
}

#[derive(Debug)]
struct RegionInner {
    map: Map,
    object: Object,
    length: usize,
    /// Whether no other process can map it to write it.
    is_sealed: bool,
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

    /// Not to be used longer than `self` lives, so it does not leave this file.
    #[inline]
    fn room(&self) -> MutLoan {
        MutLoan {
            start: self.map.as_ptr(),
            length: self.length,
        }
    }
}

impl Region {
    /// Allocates `length` zero bytes.
    ///
    /// # Errors
    /// When memory runs out, with the requested size.
    pub fn new(length: usize) -> Result<Self, RailError> {
        Self::of(Object::new("doorbell-region", length)?, length)
    }

    /// Allocates `length` zero bytes that no other process can map to write them.
    pub(super) fn sealed(length: usize) -> Result<Self, RailError> {
        let object = Object::new("doorbell-piece", length)?;
        let map = object.map(Protection::ReadWrite)?;
        // After our own map, which stays writable.
        object.seal_against_new_writers()?;
        let inner = RegionInner {
            map,
            object,
            length,
            is_sealed: true,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Whether this is the only handle, and no other process can map the memory to write it.
    pub(super) fn is_exclusive(&mut self) -> bool {
        Arc::get_mut(&mut self.inner).is_some_and(|inner| inner.is_sealed)
    }

    /// Whether it was made as a [`Piece`](super::Piece), to be lent to receivers.
    #[inline]
    pub fn is_piece(&self) -> bool {
        self.inner.is_sealed
    }

    /// The first byte.
    #[inline]
    pub(super) fn start(&self) -> *mut u8 {
        self.inner.map.as_ptr()
    }

    /// Allocates a region in huge pages, for what a device reaches: fewer entries in its IOMMU.
    ///
    /// # Errors
    /// When fewer huge pages are free than are needed.
    pub fn huge(length: usize) -> Result<Self, RailError> {
        Self::of(Object::huge("doorbell-region", length)?, length)
    }

    fn of(object: Object, length: usize) -> Result<Self, RailError> {
        let map = object.map(Protection::ReadWrite)?;
        let inner = RegionInner {
            map,
            object,
            length,
            is_sealed: false,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The requested length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.inner.length
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.inner.length == 0
    }

    /// Whether there is another clone or slice of it.
    #[inline]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.inner) > 1
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
///
/// There is no loan of it: where a loan would do, the slice itself goes along
/// ([`Body::Region`](crate::message::Body::Region), [`Landing::Region`](crate::message::Landing::Region),
/// [`Exposure::Region`](crate::message::Exposure::Region)), so that the memory is mapped for as long as it
/// can be reached. A look at its bytes ends before the slice does:
///
/// ```compile_fail,E0597
/// use doorbell_fabric::memory::Region;
/// let bytes = {
///     let slice = Region::new(8)?.whole();
///     slice.as_shared() // the region would be unmapped here
/// };
/// assert_eq!(bytes.len(), 8);
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
///
/// ```
/// use doorbell_fabric::memory::Region;
/// use doorbell_fabric::message::Landing;
/// let landing = {
///     let slice = Region::new(8)?.whole();
///     Landing::Region(slice) // goes along
/// };
/// assert_eq!(landing.write(0, b"all eight"), 8);
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
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

    /// Returns where in the region it starts.
    #[inline]
    pub fn offset(&self) -> usize {
        self.at
    }

    /// Returns the bytes as room for a message, as long as it is borrowed.
    #[inline(always)]
    pub fn room(&self) -> Room<'_> {
        Room {
            loan: self.loan(),
            life: PhantomData,
        }
    }

    /// The bytes of the slice, which are inside the region since it was made. Not to be used longer than
    /// `self` lives, so it does not leave this file.
    #[inline(always)]
    fn loan(&self) -> MutLoan {
        MutLoan {
            start: self.region.inner.map.as_ptr().wrapping_add(self.at),
            length: self.length,
        }
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
    #[inline(always)]
    pub fn as_shared(&self) -> SharedBytes<'_> {
        SharedBytes {
            start: self.region.inner.map.as_ptr().wrapping_add(self.at),
            length: self.length,
            life: PhantomData,
        }
    }

    /// Copies from offset `at` of the slice into `to`; returns how many bytes there were.
    #[inline]
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> usize {
        self.as_shared().copy_to(at, to)
    }

    /// Writes `bytes` at offset `at` of the slice; returns how many fitted.
    #[inline]
    pub fn write_shared(&self, at: usize, bytes: SharedBytes<'_>) -> usize {
        self.loan().write_shared(at, bytes)
    }

    /// Writes plain bytes at offset `at` of the slice; returns how many fitted.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) -> usize {
        self.write_shared(at, SharedBytes::of(bytes))
    }

    /// Executes an atomic on the eight bytes at offset `at` of the slice; returns the old value. `None` when
    /// they are not all inside, or not aligned in the region.
    #[inline]
    pub fn atomic(&self, at: usize, what: AtomicOp) -> Option<u64> {
        let inside = at.checked_add(8)? <= self.length;
        if !inside || !(self.at + at).is_multiple_of(8) {
            return None;
        }
        let word = self.region.inner.map.as_ptr().wrapping_add(self.at + at);
        // SAFETY: inside the map and aligned, by the checks and because maps start on a page; mapped while
        // `self` lives. All other code reaches these bytes through raw pointers or atomics of this size.
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

    /// Changes the element of `width` bytes at offset `at` in one atomic step; see [`MutLoan::update`].
    #[inline]
    pub fn update(&self, at: usize, width: usize, change: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        let room = self.region.inner.room().part(self.at, self.length);
        room.update(at, width, change)
    }

    /// The address of its first byte, as a number to send to a peer.
    #[inline]
    pub fn address(&self) -> usize {
        self.as_mut_ptr().addr()
    }

    /// The address of its first byte: for a driver's system call or device, which keeps the slice while it
    /// uses it.
    #[inline]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.region.inner.map.as_ptr().wrapping_add(self.at)
    }
}
