//! A send buffer in chunks of one size: which are in use, and for what (gasnet.md sections 1 and 3).

use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::message::Landing;

/// A buffer of equal chunks and the list of those that are free.
#[derive(Debug)]
pub(crate) struct Chunks {
    memory: RegionSlice,
    size: u32,
    /// Numbers of free chunks; the last one is taken first, so that few chunks stay warm.
    free: Vec<u32>,
    count: u32,
}

impl Chunks {
    /// Over `memory`, which holds `count` chunks of `size` bytes.
    pub(crate) fn new(memory: RegionSlice, size: u32, count: u32) -> Self {
        Self {
            memory,
            size,
            free: (0..count).rev().collect(),
            count,
        }
    }

    /// Takes a chunk; its number.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Returns a chunk to the free list.
    #[inline]
    pub(crate) fn give(&mut self, chunk: u32) {
        debug_assert!(chunk < self.count && self.free.len() < self.count as usize);
        self.free.push(chunk);
    }

    /// Returns how many are free.
    #[inline]
    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Returns the number of chunks.
    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of each.
    #[inline]
    pub(crate) const fn size(&self) -> u32 {
        self.size
    }

    /// The offset of a chunk in the buffer.
    #[inline]
    pub(crate) const fn offset(&self, chunk: u32) -> u32 {
        chunk * self.size
    }

    /// The chunk at this offset, if there is one.
    #[inline]
    pub(crate) const fn at(&self, offset: u64) -> Option<u32> {
        let size = self.size as u64;
        let chunk = offset / size;
        if chunk * size != offset || chunk >= self.count as u64 {
            return None;
        }
        Some(chunk as u32)
    }

    /// The whole buffer.
    #[inline]
    pub(crate) const fn memory(&self) -> &RegionSlice {
        &self.memory
    }

    /// A chunk's bytes from `at` on.
    #[inline]
    pub(crate) fn bytes(&self, chunk: u32, at: usize) -> SharedBytes<'_> {
        self.memory
            .as_shared()
            .skip(self.offset(chunk) as usize)
            .take(self.size as usize)
            .skip(at)
    }
}

/// What a chunk of the requests' buffer is used for.
#[derive(Clone, Debug, Default)]
pub(crate) enum ChunkUse {
    /// The chunk is not in use.
    #[default]
    Free,
    /// A request to this rank, whose reply will land in it.
    Request(u32),
    /// The bytes of a put.
    Put,
    /// The landing of a get, to be copied out. (The original keeps the address in the chunk's last eight
    /// bytes; here the destination, which may be a counted reference, stays outside of what a peer can
    /// write.)
    Get(Landing),
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::error::RailError;
    use doorbell_fabric::memory::Region;

    #[test]
    fn chunks_are_taken_once_and_found_by_their_offset() -> Result<(), RailError> {
        let mut chunks = Chunks::new(Region::new(4096)?.whole(), 1024, 4);
        let taken: Vec<u32> = std::iter::from_fn(|| chunks.take()).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        assert_eq!((chunks.free(), chunks.count(), chunks.size()), (0, 4, 1024));
        assert_eq!(chunks.offset(3), 3072);
        assert_eq!(chunks.at(3072), Some(3));
        for wrong in [1, 4096, u64::MAX - 1023] {
            assert_eq!(chunks.at(wrong), None, "{wrong}");
        }
        chunks.memory().write(2048 + 1000, b"abc");
        assert_eq!(chunks.bytes(2, 1000).len(), 24, "a view ends with the chunk");
        assert_eq!(chunks.bytes(2, 1000).take(3).to_vec(), b"abc");
        chunks.give(2);
        assert_eq!(chunks.take(), Some(2));
        Ok(())
    }
}
