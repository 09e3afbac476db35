//! Slabs of byte buffers: private ones, and ones in memory that a device or a peer may write.

use super::{FreeList, Handle, no_memory, out, refuse};
use crate::error::RingError;
use crate::storage::{Access, Area};
use crate::view::{SharedSlice, SharedSliceMut};

/// Fixed number of equal byte buffers that only this process sees.
pub struct Buffers {
    bytes: Box<[u8]>,
    size: usize,
    uses: Uses,
}

impl Buffers {
    /// `count` zeroed buffers of `size` bytes.
    ///
    /// # Errors
    /// [`RingError::Size`] unless `count` is from 1 to [`MOST_SLOTS`](super::MOST_SLOTS) and `size` from 1 to 2³⁰;
    /// [`RingError::NoMemory`].
    pub fn new(count: usize, size: usize) -> Result<Self, RingError> {
        let uses = Uses::new(count)?;
        check_size(size)?;
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(count * size)
            .map_err(|_| no_memory(count * size))?;
        bytes.resize(count * size, 0);
        Ok(Self {
            bytes: bytes.into_boxed_slice(),
            size,
            uses,
        })
    }

    /// Takes a buffer, which holds what its last user left there; `None` if all are taken.
    #[inline]
    pub fn take(&mut self) -> Option<Handle> {
        self.uses.take()
    }

    /// Gives a buffer back; the handle and its copies are stale from then on.
    ///
    /// # Errors
    /// [`RingError::Stale`], [`RingError::NoSuchSlot`].
    #[inline]
    pub fn give_back(&mut self, handle: Handle) -> Result<(), RingError> {
        self.uses.give_back(handle)
    }

    /// The bytes of a buffer.
    ///
    /// # Errors
    /// As [`give_back`](Self::give_back).
    #[inline]
    pub fn get(&self, handle: Handle) -> Result<&[u8], RingError> {
        let at = self.uses.check(handle)? * self.size;
        Ok(&self.bytes[at..at + self.size])
    }

    /// The bytes of a buffer, to change.
    ///
    /// # Errors
    /// As [`give_back`](Self::give_back).
    #[inline]
    pub fn get_mut(&mut self, handle: Handle) -> Result<&mut [u8], RingError> {
        let at = self.uses.check(handle)? * self.size;
        Ok(&mut self.bytes[at..at + self.size])
    }

    /// Bytes of one buffer.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Buffers that can be taken.
    #[inline]
    #[must_use]
    pub fn left(&self) -> usize {
        self.uses.free.left()
    }
}

/// Fixed number of equal byte buffers in memory that a device or a peer may write.
pub struct SharedBuffers {
    area: Area,
    size: usize,
    uses: Uses,
}

impl SharedBuffers {
    /// Cuts `area` into as many buffers of `size` bytes as fit, without touching it.
    ///
    /// # Errors
    /// [`RingError::Size`] unless `size` is from 1 to 2³⁰ and gives 1 to [`MOST_SLOTS`](super::MOST_SLOTS) buffers;
    /// [`RingError::ReadOnly`]; [`RingError::NoMemory`].
    pub fn new(area: Area, size: usize) -> Result<Self, RingError> {
        check_size(size)?;
        area.check("buffer slab", size, 1, Access::ReadWrite)?;
        let uses = Uses::new(area.len() / size)?;
        Ok(Self { area, size, uses })
    }

    /// Takes a buffer, which holds what its last user left there; `None` if all are taken.
    #[inline]
    pub fn take(&mut self) -> Option<Handle> {
        self.uses.take()
    }

    /// Gives a buffer back; the handle and its copies are stale from then on. The device must have let go of it.
    ///
    /// # Errors
    /// [`RingError::Stale`], [`RingError::NoSuchSlot`].
    #[inline]
    pub fn give_back(&mut self, handle: Handle) -> Result<(), RingError> {
        self.uses.give_back(handle)
    }

    /// The bytes of a buffer, to copy out of.
    ///
    /// # Errors
    /// As [`give_back`](Self::give_back).
    #[inline]
    pub fn get(&self, handle: Handle) -> Result<SharedSlice<'_>, RingError> {
        let at = self.uses.check(handle)? * self.size;
        // SAFETY: there are as many buffers as fit the area, and the slot is one of them.
        Ok(unsafe { self.area.view_at(at, self.size) })
    }

    /// The bytes of a buffer, to copy into.
    ///
    /// # Errors
    /// As [`give_back`](Self::give_back).
    #[inline]
    pub fn get_mut(&mut self, handle: Handle) -> Result<SharedSliceMut<'_>, RingError> {
        let at = self.uses.check(handle)? * self.size;
        // SAFETY: as in `get`; `new` checked that the area is writable; `&mut self` keeps other views away.
        Ok(unsafe { self.area.view_mut_at(at, self.size) })
    }

    /// Offset of a buffer from the start of the area, in bytes: for descriptors.
    ///
    /// # Errors
    /// As [`give_back`](Self::give_back).
    #[inline]
    pub fn offset(&self, handle: Handle) -> Result<usize, RingError> {
        Ok(self.uses.check(handle)? * self.size)
    }

    /// Bytes of one buffer.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Buffers in all.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        self.uses.generations.len()
    }

    /// Buffers that can be taken.
    #[inline]
    #[must_use]
    pub fn left(&self) -> usize {
        self.uses.free.left()
    }

    /// The area, for its address and length.
    #[must_use]
    pub fn area(&self) -> &Area {
        &self.area
    }
}

/// Who uses which slot, for slots whose contents lie elsewhere. Odd generations are taken.
struct Uses {
    generations: Box<[u64]>,
    free: FreeList,
}

impl Uses {
    fn new(count: usize) -> Result<Self, RingError> {
        let free = FreeList::new(count)?;
        let mut generations = Vec::new();
        generations
            .try_reserve_exact(count)
            .map_err(|_| no_memory(count * 8))?;
        generations.resize(count, 0);
        Ok(Self {
            generations: generations.into_boxed_slice(),
            free,
        })
    }

    #[inline(always)]
    fn take(&mut self) -> Option<Handle> {
        let index = self.free.take()?;
        let generation = &mut self.generations[index as usize];
        *generation += 1;
        Some(out(index, *generation))
    }

    /// The slot of a handle that is in use.
    #[inline(always)]
    fn check(&self, handle: Handle) -> Result<usize, RingError> {
        let current = self.generations.get(handle.index() as usize).copied();
        if current == Some(handle.generation()) && handle.generation() % 2 == 1 {
            Ok(handle.index() as usize)
        } else {
            Err(refuse(handle, current, self.generations.len()))
        }
    }

    #[inline(always)]
    fn give_back(&mut self, handle: Handle) -> Result<(), RingError> {
        let slot = self.check(handle)?;
        self.generations[slot] += 1;
        self.free.give_back(handle.index(), self.generations[slot]);
        Ok(())
    }
}

fn check_size(size: usize) -> Result<(), RingError> {
    const MOST: usize = 1 << 30;
    if size == 0 || size > MOST {
        return Err(RingError::Size {
            what: "buffer slab, size of a buffer",
            asked: size,
            unit: 1,
            most: MOST,
        });
    }
    Ok(())
}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffers({} left, {} bytes each)", self.left(), self.size)
    }
}

impl std::fmt::Debug for SharedBuffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "SharedBuffers({} of {} left, {} bytes each)",
            self.left(),
            self.count(),
            self.size
        )
    }
}
