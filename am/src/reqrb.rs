//! The receive buffers of requests and their recycling (gasnet.md section 4).
//!
//! ```text
//!   attached ──(less than a chunk is free: AUTO_UNLINK)──► unlinked
//!   unlinked ──(all that landed in it is done)──► attached again
//! ```
//!
//! Each is a match entry that places messages itself and is unlinked when less than one chunk is left; so a
//! message that is no longer than a chunk always fits the first one. Only that automatic unlinking is used:
//! unlinking by hand races with what is on its way (a defect of the original).
//!
//! When is all done that landed in a buffer? In Portals 4 AUTO_UNLINK may come before the events of messages
//! that are still under way. Messages lie back to back, so the buffer is done when the lengths of those that
//! are done add up to the end of the last of them, and that end is where the buffer had to be unlinked: no
//! gap is left. Messages without bytes need none.

use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::ni::EntryHandle;

/// A receive buffer of requests.
#[derive(Debug)]
struct Buffer {
    memory: RegionSlice,
    entry: Option<EntryHandle>,
    /// Bytes of messages that are done.
    done: u64,
    /// The end of the farthest of them.
    end: u64,
    unlinked: bool,
}

/// All receive buffers.
#[derive(Debug)]
pub(crate) struct ReqRb {
    buffers: Vec<Buffer>,
    chunk: u64,
    /// How often one was attached again.
    recycled: u64,
}

impl ReqRb {
    /// Buffers over these pieces of memory, none attached yet.
    pub(crate) fn new(memory: Vec<RegionSlice>, chunk: u32) -> Self {
        let buffers = memory.into_iter().map(|memory| Buffer {
            memory,
            entry: None,
            done: 0,
            end: 0,
            unlinked: true,
        });
        Self {
            buffers: buffers.collect(),
            chunk: u64::from(chunk),
            recycled: 0,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Bytes of a chunk: a buffer with fewer free is unlinked.
    pub(crate) const fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Returns how often a buffer was attached again.
    pub(crate) const fn recycled(&self) -> u64 {
        self.recycled
    }

    /// The memory of a buffer.
    pub(crate) fn memory(&self, buffer: usize) -> Option<&RegionSlice> {
        self.buffers.get(buffer).map(|buffer| &buffer.memory)
    }

    /// Bytes that landed.
    #[inline]
    pub(crate) fn bytes(&self, buffer: usize, place: u64, length: u64) -> Option<SharedBytes<'_>> {
        let memory = &self.buffers.get(buffer)?.memory;
        let end = place.checked_add(length)?;
        if end > memory.len() as u64 {
            return None;
        }
        Some(memory.as_shared().skip(place as usize).take(length as usize))
    }

    /// Records that the buffer was attached, afresh.
    pub(crate) fn attached(&mut self, buffer: usize, entry: EntryHandle) {
        if let Some(buffer) = self.buffers.get_mut(buffer) {
            self.recycled += u64::from(buffer.entry.is_some());
            buffer.entry = Some(entry);
            buffer.done = 0;
            buffer.end = 0;
            buffer.unlinked = false;
        }
    }

    /// Records that a message in it is done. Returns whether the buffer is to be attached again.
    #[inline]
    #[must_use]
    pub(crate) fn done(&mut self, buffer: usize, place: u64, length: u64) -> bool {
        if length == 0 {
            return false;
        }
        let chunk = self.chunk;
        let Some(buffer) = self.buffers.get_mut(buffer) else {
            return false;
        };
        buffer.done += length;
        buffer.end = buffer.end.max(place.saturating_add(length));
        buffer.unlinked && buffer.is_done(chunk)
    }

    /// Records that the interface has unlinked it. Returns whether it is to be attached again.
    #[must_use]
    pub(crate) fn unlinked(&mut self, buffer: usize) -> bool {
        let chunk = self.chunk;
        let Some(buffer) = self.buffers.get_mut(buffer) else {
            return false;
        };
        buffer.unlinked = true;
        buffer.is_done(chunk)
    }
}

impl Buffer {
    fn is_done(&self, chunk: u64) -> bool {
        let whole = self.memory.len() as u64;
        self.done == self.end && whole.saturating_sub(self.end) < chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::error::RailError;
    use doorbell_fabric::memory::Region;

    fn one() -> Result<ReqRb, RailError> {
        let mut buffers = ReqRb::new(vec![Region::new(4096)?.whole()], 1024);
        buffers.attached(0, EntryHandle(7));
        Ok(buffers)
    }

    #[test]
    fn a_buffer_is_done_when_everything_in_it_is() -> Result<(), RailError> {
        let mut buffers = one()?;
        assert!(!buffers.done(0, 0, 1024));
        assert!(!buffers.done(0, 1024, 1024));
        assert!(!buffers.done(0, 2048, 1000), "1048 are left: still attached");
        assert!(!buffers.unlinked(0), "the last one, of 900 bytes, is under way");
        assert!(!buffers.done(0, 3948, 0), "no bytes, no use of the buffer");
        assert!(buffers.done(0, 3048, 900));
        Ok(())
    }

    #[test]
    fn what_is_done_out_of_order_waits_for_the_gaps() -> Result<(), RailError> {
        let mut buffers = one()?;
        assert!(!buffers.unlinked(0));
        assert!(!buffers.done(0, 3072, 1000), "3072 bytes before it are not");
        assert!(!buffers.done(0, 4, 3068), "4 bytes at the front are not");
        assert!(buffers.done(0, 0, 4));
        buffers.attached(0, EntryHandle(8));
        assert_eq!(buffers.recycled(), 1);
        assert!(!buffers.done(0, 0, 4), "afresh");
        Ok(())
    }

    #[test]
    fn only_bytes_of_the_buffer_are_shown() -> Result<(), RailError> {
        let buffers = one()?;
        assert_eq!(buffers.bytes(0, 4000, 96).map(|bytes| bytes.len()), Some(96));
        assert!(buffers.bytes(0, 4000, 97).is_none());
        assert!(buffers.bytes(0, u64::MAX, 2).is_none());
        assert!(buffers.bytes(1, 0, 1).is_none());
        Ok(())
    }
}
