//! Segments: one frame each, kept until it is acknowledged, in a slab that all peers share and that grows to its bound
//! when it is needed.
//!
//! ```text
//!   free ──► queued ──► posted ──► acked ──► free, when all of its message is acknowledged
//!                        │  ▲ └──► sacked: arrived behind a gap
//!                   lost ▼  │ posted again, on the data channel
//!                       resend
//! ```
//! A peer's segments are one list in the order of their numbers: acknowledged ones of a message that is not complete
//! (kept, so that the message can be given back), those under way, those that wait.

use doorbell_fabric::datagram::{Channel, FrameId};

use crate::seq::Seq;
use crate::wire::Kind;

/// No segment.
pub(crate) const NONE: u32 = u32::MAX;

/// Where a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// In the slab.
    Free,
    /// Waits for the window.
    Queued,
    /// Under way.
    Posted,
    /// Taken for lost: in the list of resends.
    Resend,
    /// Arrived, but something before it has not.
    Sacked,
    /// Arrived, as has everything before it; the rest of its message has not.
    Acked,
}

/// One frame, and what is known of its way.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The frame: basic header (written when it is posted), own header, payload, room for a MAC.
    pub(crate) frame: Box<[u8]>,
    /// Bytes of `frame` after the basic header.
    pub(crate) length: u32,
    pub(crate) kind: Kind,
    pub(crate) state: State,
    /// It was sent more than once.
    pub(crate) again: bool,
    pub(crate) channel: Channel,
    pub(crate) seq: Seq,
    pub(crate) peer: u32,
    /// Number among the transmissions to this peer on this channel.
    pub(crate) order: u64,
    /// When it was sent last (ns).
    pub(crate) sent_at: u64,
    /// The post that may still be in the device.
    pub(crate) post: FrameId,
    /// The message that ends with it, or zero.
    pub(crate) ends: u64,
    /// The next of the same peer.
    pub(crate) next: u32,
}

/// All segments.
#[derive(Debug)]
pub(crate) struct Segments {
    all: Vec<Segment>,
    free: Vec<u32>,
    most: usize,
    mtu: usize,
}

impl Segments {
    pub(crate) fn new(most: usize, mtu: usize) -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
            most,
            mtu,
        }
    }

    /// How many can be taken.
    #[inline]
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.most - self.all.len()
    }

    /// How many are not free.
    pub(crate) fn active(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// How many were made.
    #[cfg(test)]
    pub(crate) fn made(&self) -> usize {
        self.all.len()
    }

    /// One of its own; the one used last is used first.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        match self.free.pop() {
            Some(index) => Some(index),
            None => self.make(),
        }
    }

    #[cold]
    fn make(&mut self) -> Option<u32> {
        if self.all.len() == self.most {
            return None;
        }
        self.all.push(Segment {
            frame: vec![0; self.mtu].into_boxed_slice(),
            length: 0,
            kind: Kind::Frag,
            state: State::Free,
            again: false,
            channel: Channel::Data,
            seq: Seq(0),
            peer: 0,
            order: 0,
            sent_at: 0,
            post: FrameId(0),
            ends: 0,
            next: NONE,
        });
        // A list of all has room for all, so that giving back never allocates.
        self.free.reserve(self.all.len() - self.free.len());
        Some(self.all.len() as u32 - 1)
    }

    /// Gives one back.
    #[inline]
    pub(crate) fn give(&mut self, index: u32) {
        let segment = &mut self.all[index as usize];
        segment.state = State::Free;
        self.free.push(index);
    }
}

impl std::ops::Index<u32> for Segments {
    type Output = Segment;
    #[inline]
    fn index(&self, index: u32) -> &Segment {
        &self.all[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Segments {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Segment {
        &mut self.all[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_made_when_needed_and_used_again() {
        let mut segments = Segments::new(3, 64);
        assert_eq!((segments.available(), segments.made()), (3, 0));
        let taken: Vec<u32> = std::iter::from_fn(|| segments.take()).collect();
        assert_eq!((taken.len(), segments.available(), segments.made()), (3, 0, 3));
        segments.give(taken[1]);
        assert_eq!((segments.available(), segments.take()), (1, Some(taken[1])));
    }
}
