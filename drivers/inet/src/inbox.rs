//! Received frames of one channel, in the device's buffers until the application has seen them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::message::Refused;

/// A received frame that the application keeps; dropping it frees its chunk.
#[derive(Debug)]
pub struct KeptFrame {
    frame: RegionSlice,
    /// Its reference count shows the receiving half when the chunk is free.
    _lent: Arc<()>,
}

impl KeptFrame {
    /// The frame's bytes.
    pub fn bytes(&self) -> SharedBytes<'_> {
        self.frame.as_shared()
    }
}

/// A frame in a chunk.
#[derive(Clone, Copy, Debug)]
pub struct InboxFrame {
    /// The chunk, or another buffer id of the driver.
    pub chunk: u32,
    /// The queue that received it.
    pub queue: u16,
    /// Whether the application keeps it.
    pub kept: bool,
    /// Index of the sending peer, or [`UNKNOWN_PEER`](crate::UNKNOWN_PEER).
    pub from: u32,
    /// Offset of its bytes in the memory.
    pub at: u32,
    /// Length in bytes.
    pub length: u32,
}

/// A queue of frames in arrival order; the first `shown` of them are visible to the caller of the last poll.
#[derive(Debug)]
pub struct Inbox {
    entries: VecDeque<InboxFrame>,
    capacity: usize,
    shown: usize,
}

impl Inbox {
    /// Creates an empty queue of up to `capacity` frames; it allocates only here.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            entries: VecDeque::with_capacity(capacity),
            capacity,
            shown: 0,
        }
    }

    /// Ends the last poll and passes the frames that it showed to `given`. Returns whether more frames are
    /// queued.
    #[inline]
    pub fn end_poll(&mut self, mut given: impl FnMut(&InboxFrame)) -> bool {
        for _ in 0..std::mem::take(&mut self.shown) {
            if let Some(entry) = self.entries.pop_front() {
                given(&entry);
            }
        }
        !self.entries.is_empty()
    }

    /// Whether the queue can take another frame.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.entries.len() < self.capacity
    }

    /// Appends a frame.
    #[inline]
    pub fn push(&mut self, entry: InboxFrame) {
        self.entries.push_back(entry);
    }

    /// Whether frames are queued that the last poll did not show.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.shown < self.entries.len()
    }

    /// Shows up to `budget` frames and returns how many.
    #[inline]
    pub fn show(&mut self, budget: usize) -> usize {
        self.shown = budget.min(self.entries.len());
        self.shown
    }

    /// The `i`th shown frame, unless the application keeps it.
    #[inline]
    pub fn shown(&self, i: usize) -> Option<&InboxFrame> {
        let entry = self.entries.get(i).filter(|_| i < self.shown)?;
        (!entry.kept).then_some(entry)
    }

    /// Iterates over the chunks of the queued frames.
    pub fn chunks(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().map(|entry| entry.chunk)
    }

    /// Marks the `i`th shown frame as kept; `fresh` replaces its chunk.
    pub fn keep(&mut self, i: usize, fresh: u32) {
        let entry = &mut self.entries[i];
        (entry.chunk, entry.kept) = (fresh, true);
    }
}

/// Spare chunks that replace those of kept frames.
#[derive(Debug)]
pub struct SpareChunks {
    /// Free chunks, and unused tokens for them.
    fresh: Vec<u32>,
    tokens: Vec<Arc<()>>,
    /// Chunks of kept frames; a chunk is free again once its token's reference count is 1.
    lent: Vec<(u32, Arc<()>)>,
}

impl SpareChunks {
    /// Creates the pool with all of `chunks` free.
    #[must_use]
    pub fn new(chunks: std::ops::Range<u32>) -> Self {
        Self {
            tokens: chunks.clone().map(|_| Arc::new(())).collect(),
            lent: Vec::with_capacity(chunks.len()),
            fresh: chunks.collect(),
        }
    }

    /// Keeps the frame at `frame` in `chunk`; returns it, and the chunk that replaces its own.
    ///
    /// # Errors
    /// [`Refused::Full`] when all spare chunks are in use.
    pub fn swap(&mut self, chunk: u32, frame: RegionSlice) -> Result<(KeptFrame, u32), Refused> {
        if self.fresh.is_empty() {
            self.reclaim();
        }
        let (fresh, token) = self.fresh.pop().zip(self.tokens.pop()).ok_or(Refused::Full)?;
        self.lent.push((chunk, Arc::clone(&token)));
        Ok((KeptFrame { frame, _lent: token }, fresh))
    }

    /// Iterates over all chunks of the pool.
    pub fn chunks(&self) -> impl Iterator<Item = u32> {
        let lent = self.lent.iter().map(|(chunk, _)| *chunk);
        self.fresh.iter().copied().chain(lent)
    }

    fn reclaim(&mut self) {
        let mut at = 0;
        while at < self.lent.len() {
            if Arc::strong_count(&self.lent[at].1) > 1 {
                at += 1;
                continue;
            }
            // Pairs with the release in `Arc`'s drop: the reader's loads happen before the kernel writes the
            // chunk again.
            fence(Ordering::Acquire);
            let (chunk, token) = self.lent.swap_remove(at);
            self.fresh.push(chunk);
            self.tokens.push(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::memory::Region;

    fn entry(chunk: u32) -> InboxFrame {
        InboxFrame {
            chunk,
            queue: 0,
            kept: false,
            from: 7,
            at: chunk * 64,
            length: 4,
        }
    }

    #[test]
    fn what_was_shown_is_given_back_and_the_rest_waits() {
        let mut inbox = Inbox::new(4);
        (0..3).for_each(|chunk| inbox.push(entry(chunk)));
        assert_eq!((inbox.show(2), inbox.has_more()), (2, true));
        assert_eq!(inbox.shown(1).map(|entry| entry.chunk), Some(1));
        assert!(inbox.shown(2).is_none());
        inbox.keep(0, 9);
        assert!(inbox.shown(0).is_none(), "kept");
        let mut given = Vec::new();
        assert!(inbox.end_poll(|entry| given.push(entry.chunk)));
        assert_eq!((inbox.show(9), inbox.has_more()), (1, false));
        assert!(!inbox.end_poll(|entry| given.push(entry.chunk)));
        assert_eq!(given, [9, 1, 2], "the fresh chunk for the one that was kept");
        assert_eq!(inbox.show(1), 0);
    }

    #[test]
    fn a_chunk_that_is_kept_comes_back_when_it_is_dropped() {
        let memory = Region::new(4096).unwrap().whole();
        let frame = || memory.slice(64, 4).unwrap();
        memory.write(64, b"kept");
        let mut spares = SpareChunks::new(10..12);
        let (a, first) = spares.swap(1, frame()).unwrap();
        let (b, second) = spares.swap(2, frame()).unwrap();
        assert_eq!([first, second], [11, 10]);
        assert_eq!(spares.swap(3, frame()).unwrap_err(), Refused::Full);
        assert_eq!(a.bytes().to_vec(), b"kept");
        drop(a);
        let (_c, third) = spares.swap(3, frame()).unwrap();
        assert_eq!(third, 1, "the chunk of the one that was dropped");
        drop(b);
        assert_eq!(spares.swap(4, frame()).unwrap().1, 2);
    }
}
