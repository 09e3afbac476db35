//! The frames of one channel that were taken from the rings and are not given back yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::message::Refused;

/// A received frame whose chunk was taken out of the rings; dropping it lets the chunk be used again.
#[derive(Debug)]
pub struct KeptFrame {
    frame: RegionSlice,
    /// Shared with the half that lent the chunk, which counts who has it.
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
    /// The chunk, or what else its driver knows the place by.
    pub chunk: u32,
    /// The queue that it came by.
    pub queue: u16,
    /// Whether it was kept.
    pub kept: bool,
    /// The peer, or whatever says that there is none.
    pub from: u32,
    /// Where in the memory its bytes are.
    pub at: u32,
    /// How many there are.
    pub length: u32,
}

/// Frames in the order in which they came; the first few of them, those that the last poll showed, are visible.
#[derive(Debug)]
pub struct Inbox {
    entries: VecDeque<InboxFrame>,
    capacity: usize,
    shown: usize,
}

impl Inbox {
    /// An empty one that never holds more than `most` frames, and takes memory once.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            entries: VecDeque::with_capacity(capacity),
            capacity,
            shown: 0,
        }
    }

    /// Ends the last poll: what it showed is `given` back. Returns whether frames wait that were never shown.
    #[inline]
    pub fn end_poll(&mut self, mut given: impl FnMut(&InboxFrame)) -> bool {
        for _ in 0..std::mem::take(&mut self.shown) {
            if let Some(entry) = self.entries.pop_front() {
                given(&entry);
            }
        }
        !self.entries.is_empty()
    }

    /// Whether it can take another one without more memory.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.entries.len() < self.capacity
    }

    /// One more, behind all others.
    #[inline]
    pub fn push(&mut self, entry: InboxFrame) {
        self.entries.push_back(entry);
    }

    /// Whether frames wait that are not shown.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.shown < self.entries.len()
    }

    /// Shows up to `budget` of the frames that wait.
    #[inline]
    pub fn show(&mut self, budget: usize) -> usize {
        self.shown = budget.min(self.entries.len());
        self.shown
    }

    /// The `i`th shown frame, unless it was kept.
    #[inline]
    pub fn shown(&self, i: usize) -> Option<&InboxFrame> {
        let entry = self.entries.get(i).filter(|_| i < self.shown)?;
        (!entry.kept).then_some(entry)
    }

    /// The chunks in it.
    pub fn chunks(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().map(|entry| entry.chunk)
    }

    /// The `i`th shown frame is kept; `fresh` takes its chunk's place.
    pub fn keep(&mut self, i: usize, fresh: u32) {
        let entry = &mut self.entries[i];
        (entry.chunk, entry.kept) = (fresh, true);
    }
}

/// Chunks beside the rings, for frames that are kept.
#[derive(Debug)]
pub struct SpareChunks {
    /// Chunks that nobody has, and tokens for them.
    fresh: Vec<u32>,
    tokens: Vec<Arc<()>>,
    /// Chunks that somebody may still have.
    lent: Vec<(u32, Arc<()>)>,
}

impl SpareChunks {
    /// All of these are free.
    #[must_use]
    pub fn new(chunks: std::ops::Range<u32>) -> Self {
        Self {
            tokens: chunks.clone().map(|_| Arc::new(())).collect(),
            lent: Vec::with_capacity(chunks.len()),
            fresh: chunks.collect(),
        }
    }

    /// Keeps the frame at `frame` in `chunk`; returns it, and the chunk that takes its place.
    ///
    /// # Errors
    /// [`Refused::Full`] where all are kept.
    pub fn swap(&mut self, chunk: u32, frame: RegionSlice) -> Result<(KeptFrame, u32), Refused> {
        if self.fresh.is_empty() {
            self.reclaim();
        }
        let (fresh, token) = self.fresh.pop().zip(self.tokens.pop()).ok_or(Refused::Full)?;
        self.lent.push((chunk, Arc::clone(&token)));
        Ok((KeptFrame { frame, _lent: token }, fresh))
    }

    /// All of its chunks.
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
            // What the one who dropped it read of it was read before the kernel has it again.
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
