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
use doorbell_fabric::message::PeerIndex;

use crate::pool::{Id, Pool};
use crate::seq::Seq;
use crate::wire::Kind;

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
    pub(crate) peer: PeerIndex,
    /// Number among the transmissions to this peer on this channel.
    pub(crate) order: u64,
    /// When it was sent last (ns).
    pub(crate) sent_at: u64,
    /// The post that may still be in the device.
    pub(crate) post: FrameId,
    /// The message that ends with it, or zero.
    pub(crate) ends: u64,
    /// The next of the same peer.
    pub(crate) next: Id<Self>,
}

impl Segment {
    fn new(mtu: usize) -> Self {
        Self {
            frame: vec![0; mtu].into_boxed_slice(),
            length: 0,
            kind: Kind::Frag,
            state: State::Free,
            again: false,
            channel: Channel::Data,
            seq: Seq(0),
            peer: PeerIndex(0),
            order: 0,
            sent_at: 0,
            post: FrameId(0),
            ends: 0,
            next: Id::NONE,
        }
    }
}

/// All segments.
#[derive(Debug)]
pub(crate) struct Segments {
    pool: Pool<Segment>,
    mtu: usize,
}

impl Segments {
    pub(crate) fn new(most: usize, mtu: usize) -> Self {
        Self {
            pool: Pool::new(most),
            mtu,
        }
    }

    /// How many can be taken.
    #[inline]
    pub(crate) fn available(&self) -> usize {
        self.pool.available()
    }

    /// How many are not free.
    pub(crate) fn active(&self) -> usize {
        self.pool.active()
    }

    /// Takes a free segment: the one used last, whose frame is in the cache.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Id<Segment>> {
        let mtu = self.mtu;
        self.pool.take(|| Segment::new(mtu))
    }

    /// Gives one back.
    #[inline]
    pub(crate) fn give(&mut self, id: Id<Segment>) {
        self.pool[id].state = State::Free;
        self.pool.give(id);
    }
}

impl std::ops::Index<Id<Segment>> for Segments {
    type Output = Segment;
    #[inline]
    fn index(&self, id: Id<Segment>) -> &Segment {
        &self.pool[id]
    }
}

impl std::ops::IndexMut<Id<Segment>> for Segments {
    #[inline]
    fn index_mut(&mut self, id: Id<Segment>) -> &mut Segment {
        &mut self.pool[id]
    }
}
