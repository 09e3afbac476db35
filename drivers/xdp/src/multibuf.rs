//! Frames that come in several chunks (`XDP_PKT_CONTD`): each chunk's bytes are copied behind those of the
//! one before, and the chunk goes back at once.
//!
//! ```text
//!   none ── first of several ─► joining ── last one ─► a whole packet
//!    ▲ │                           │ too long, too many, a chunk that cannot be, no buffer
//!    │ └── first, and no buffer ─► ▼
//!    └────── last one ───────── passing by
//! ```
//!
//! The kernel gives each queue's frames one after the other, so that a queue has one that is not whole yet at
//! most. Where one of its chunks is lost, what comes next is taken for the rest: the lengths in the headers
//! do not fit then, or the checksum.

use doorbell_fabric::memory::RegionSlice;

use crate::layout::PIECES_MAX;

/// What a queue's frame is, as far as it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    /// There is no frame in several chunks.
    No,
    Joining {
        buffer: u32,
        length: usize,
        pieces: u32,
    },
    /// The frame is dropped; the next one begins after its last chunk.
    Passing,
}

/// What came of one more chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// There is more to come, or the frame was dropped.
    Nothing,
    /// The frame is broken, which is reported once.
    Broken,
    /// All of it is in this buffer.
    Whole { buffer: u32, length: usize },
}

/// The buffers, and each queue's frame.
pub(crate) struct Joins {
    /// Where in the memory the first buffer is, and bytes of each; 0: there are none.
    first: usize,
    size: usize,
    free: Vec<u32>,
    open: Box<[Open]>,
}

impl Joins {
    /// `count` buffers of `size` bytes, of which the first is at `first` in the memory.
    pub(crate) fn new((first, size): (usize, usize), count: usize, queues: usize) -> Self {
        Self {
            first,
            size,
            free: if size == 0 {
                Vec::new()
            } else {
                (0..count as u32).rev().collect()
            },
            open: vec![Open::No; queues].into(),
        }
    }

    /// Whether the next frame of a queue can be put together, should it come in several chunks.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.size == 0 || !self.free.is_empty()
    }

    /// Whether the next chunk of this queue is a later one of its frame.
    #[inline]
    pub(crate) fn is_open(&self, queue: u16) -> bool {
        self.open[usize::from(queue)] != Open::No
    }

    /// Returns where in the memory a buffer begins.
    #[inline]
    pub(crate) fn place(&self, buffer: u32) -> usize {
        self.first + buffer as usize * self.size
    }

    /// The next chunk of a queue's frame: `length` bytes at `at`. `goes_on`: it is not the last one.
    pub(crate) fn add(
        &mut self,
        memory: &RegionSlice,
        queue: u16,
        (at, length): (usize, usize),
        goes_on: bool,
    ) -> Joined {
        self.begin(queue);
        let open = &mut self.open[usize::from(queue)];
        let Open::Joining {
            buffer,
            length: before,
            pieces,
        } = *open
        else {
            return self.break_off(queue, goes_on);
        };
        if before + length > self.size || pieces == PIECES_MAX {
            return self.break_off(queue, goes_on);
        }
        let (pieces, place) = (pieces + 1, self.first + buffer as usize * self.size + before);
        let length = before + memory.write_shared(place, memory.as_shared().skip(at).take(length));
        if goes_on {
            *open = Open::Joining {
                buffer,
                length,
                pieces,
            };
            return Joined::Nothing;
        }
        *open = Open::No;
        Joined::Whole { buffer, length }
    }

    /// Takes a buffer for a frame that begins, where there is one.
    fn begin(&mut self, queue: u16) {
        let open = &mut self.open[usize::from(queue)];
        if *open == Open::No
            && let Some(buffer) = self.free.pop()
        {
            *open = Open::Joining {
                buffer,
                length: 0,
                pieces: 0,
            };
        }
    }

    /// Drops a queue's frame; `goes_on`: its last chunk is still to come.
    pub(crate) fn break_off(&mut self, queue: u16, goes_on: bool) -> Joined {
        let then = if goes_on { Open::Passing } else { Open::No };
        match std::mem::replace(&mut self.open[usize::from(queue)], then) {
            Open::Passing => return Joined::Nothing,
            Open::Joining { buffer, .. } => self.free.push(buffer),
            Open::No => {}
        }
        Joined::Broken
    }

    /// A buffer holds nothing any more.
    pub(crate) fn give(&mut self, buffer: u32) {
        self.free.push(buffer);
    }

    /// Whether there are any.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn has_buffers(&self) -> bool {
        self.size > 0
    }

    /// Buffers that are free or hold the beginning of a frame.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn buffers(&self) -> impl Iterator<Item = u32> {
        let begun = self.open.iter().filter_map(|open| match open {
            Open::Joining { buffer, .. } => Some(*buffer),
            Open::No | Open::Passing => None,
        });
        self.free.iter().copied().chain(begun)
    }

    /// Buffers that hold nothing.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::memory::Region;

    /// Sixteen bytes that come, and two buffers of eight.
    fn joins() -> (RegionSlice, Joins) {
        let memory = Region::new(32).unwrap().whole();
        memory.write(0, b"abcdefghijklmnop");
        (memory, Joins::new((16, 8), 2, 2))
    }

    #[test]
    fn chunks_are_put_together_in_order_for_each_queue_by_itself() {
        let (memory, mut joins) = joins();
        assert_eq!(joins.add(&memory, 0, (0, 3), true), Joined::Nothing);
        assert_eq!(joins.add(&memory, 1, (8, 5), true), Joined::Nothing);
        assert!(!joins.has_room() && joins.is_open(0) && joins.is_open(1));
        let Joined::Whole { buffer, length } = joins.add(&memory, 0, (6, 4), false) else {
            panic!("it is whole")
        };
        let bytes = memory.as_shared().skip(joins.place(buffer)).take(length).to_vec();
        assert_eq!(bytes, b"abcghij");
        let Joined::Whole {
            buffer: other,
            length,
        } = joins.add(&memory, 1, (0, 3), false)
        else {
            panic!("it is whole")
        };
        let bytes = memory.as_shared().skip(joins.place(other)).take(length).to_vec();
        assert_eq!(bytes, b"ijklmabc");
        assert!(!joins.is_open(0) && !joins.is_open(1) && joins.free() == 0);
        joins.give(buffer);
        joins.give(other);
        assert_eq!(joins.free(), 2);
    }

    #[test]
    fn a_chain_that_is_too_long_or_never_ends_is_reported_once_and_keeps_no_buffer() {
        let (memory, mut joins) = joins();
        // Nine bytes.
        assert_eq!(joins.add(&memory, 0, (0, 5), true), Joined::Nothing);
        assert_eq!(joins.add(&memory, 0, (0, 4), true), Joined::Broken);
        for _ in 0..1000 {
            assert_eq!(joins.add(&memory, 0, (0, 4), true), Joined::Nothing);
            assert_eq!(joins.free(), 2);
        }
        assert_eq!(joins.add(&memory, 0, (0, 1), false), Joined::Nothing);
        assert!(!joins.is_open(0));
        // Empty chunks add nothing, and are counted all the same.
        for _ in 0..PIECES_MAX {
            assert_eq!(joins.add(&memory, 0, (0, 0), true), Joined::Nothing);
        }
        assert_eq!(joins.add(&memory, 0, (0, 0), false), Joined::Broken);
        assert!(!joins.is_open(0) && joins.free() == 2);
    }

    #[test]
    fn without_a_buffer_a_frame_passes_by_and_the_next_one_is_taken() {
        let memory = Region::new(32).unwrap().whole();
        let mut none = Joins::new((16, 0), 2, 1);
        assert!(none.has_room(), "nothing that is expected needs one");
        assert_eq!(none.add(&memory, 0, (0, 1), true), Joined::Broken);
        assert!(none.is_open(0), "what follows is no frame by itself");
        assert_eq!(none.add(&memory, 0, (0, 1), false), Joined::Nothing);
        assert!(!none.is_open(0));
        let (memory, mut joins) = joins();
        assert_eq!(joins.add(&memory, 0, (0, 3), true), Joined::Nothing);
        assert_eq!(joins.break_off(0, true), Joined::Broken, "a chunk that cannot be");
        assert!(joins.is_open(0) && joins.free() == 2);
        assert_eq!(joins.break_off(0, false), Joined::Nothing);
        assert!(!joins.is_open(0));
    }
}
