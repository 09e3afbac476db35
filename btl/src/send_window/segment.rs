//! Segments: one frame each, kept until it is acknowledged, in a pool that all peers share and that grows to
//! its bound when it is needed.
//!
//! ```text
//!   free ──► queued ──► posted ──► acked ──► free, when all of its message is acknowledged
//!                        │  ▲ └──► sacked: arrived behind a gap
//!                   lost ▼  │ posted again, on the data channel
//!                       resend
//! ```

use std::collections::VecDeque;

use doorbell_fabric::datagram::{Channel, FrameId};
use doorbell_fabric::message::PeerIndex;

use crate::pool::{Id, Pool};
use crate::seq::Seq;
use crate::wire::{BASIC, Kind};

/// Posts whose time is made exact by the next `progress`; more than these keep the time of the one before.
const STAMPED: usize = 256;

/// Where a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The segment is in the pool.
    Free,
    /// Waits for the window.
    Queued,
    /// Posted, and not known to have arrived.
    Posted,
    /// Taken for lost: in the queue of segments to be sent again.
    Resend,
    /// Arrived, but something before it has not.
    Sacked,
    /// Arrived, as has everything before it; the rest of its message has not.
    Acked,
}

/// What makes a segment one that its peer acknowledges at once.
pub(super) mod mark {
    /// It was sent more than once.
    pub(in super::super) const AGAIN: u8 = 1;
    /// Its sender waits for the acknowledgement.
    pub(in super::super) const ASKED: u8 = 2;
}

/// One frame, and what is known of its way.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The frame: basic header (written when it is posted), own header, payload, room for a MAC.
    frame: Box<[u8]>,
    /// Bytes of `frame` after the basic header.
    length: u32,
    pub(super) kind: Kind,
    pub(super) state: State,
    /// Bits of [`mark`].
    pub(super) marks: u8,
    pub(super) channel: Channel,
    pub(super) seq: Seq,
    pub(super) peer: PeerIndex,
    /// Number among the transmissions to this peer on this channel.
    pub(super) order: u64,
    /// When it was sent last (ns).
    pub(super) sent_at: u64,
    /// The post that may still be in the device.
    post: FrameId,
    /// The message that ends with it, or zero.
    pub(super) ends: u64,
    /// The next of the same peer.
    pub(super) next: Id<Self>,
}

impl Segment {
    fn new(mtu: usize) -> Self {
        Self {
            frame: vec![0; mtu].into_boxed_slice(),
            length: 0,
            kind: Kind::Frag,
            state: State::Free,
            marks: 0,
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

    /// Makes it a segment of this kind, for this channel, with which message `ends` ends (0: none); returns
    /// the `length` bytes after the basic header, to be written.
    #[inline(always)]
    pub(crate) fn fill(&mut self, kind: Kind, channel: Channel, length: usize, ends: u64) -> &mut [u8] {
        self.length = length as u32;
        (self.kind, self.channel, self.ends) = (kind, channel, ends);
        &mut self.frame[BASIC..BASIC + length]
    }

    /// The first `length` bytes after the basic header, to be written before it is known what they are.
    #[inline]
    pub(crate) fn draft(&mut self, length: usize) -> &mut [u8] {
        &mut self.frame[BASIC..BASIC + length]
    }

    /// Bytes after the basic header.
    #[inline]
    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    /// Returns what a peer's upper layer gets of it: the bytes behind its own header.
    pub(super) fn payload(&self) -> &[u8] {
        &self.frame[BASIC + self.kind.header()..BASIC + self.length as usize]
    }

    /// Its own header, which is behind the basic one.
    #[inline]
    pub(crate) fn own_header(&self) -> &[u8] {
        &self.frame[BASIC..BASIC + self.kind.header()]
    }

    /// What is behind its own header, to be written.
    #[inline]
    pub(crate) fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.frame[BASIC + self.kind.header()..BASIC + self.length as usize]
    }

    /// The next of the same peer.
    #[inline]
    pub(crate) fn following(&self) -> Id<Self> {
        self.next
    }

    /// The whole frame as it is sent, with room for a MAC of `mac` bytes at its end.
    #[inline(always)]
    pub(crate) fn frame(&mut self, mac: usize) -> &mut [u8] {
        &mut self.frame[..BASIC + self.length as usize + mac]
    }

    /// The kind of its frame.
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The channel that it is, or was last, sent on.
    #[inline]
    pub(crate) fn channel(&self) -> Channel {
        self.channel
    }

    /// Its sequence number.
    #[inline]
    pub(crate) fn seq(&self) -> Seq {
        self.seq
    }

    /// The peer that it is for.
    #[inline]
    pub(crate) fn peer(&self) -> PeerIndex {
        self.peer
    }

    /// Whether it was sent more than once.
    #[inline]
    pub(crate) fn was_sent_again(&self) -> bool {
        self.marks & mark::AGAIN != 0
    }

    /// Its peer is to acknowledge it as soon as it has taken it.
    pub(crate) fn ask(&mut self) {
        self.marks |= mark::ASKED;
    }

    /// Whether its peer is to acknowledge it as soon as it has taken it: since that is awaited, or since it
    /// was sent more than once.
    #[inline]
    pub(crate) fn is_urgent(&self) -> bool {
        self.marks != 0
    }

    /// Returns when it was sent last (ns).
    #[inline]
    pub(crate) fn sent_at(&self) -> u64 {
        self.sent_at
    }

    /// Whether it waits to be sent again; what was acknowledged meanwhile does not.
    pub(crate) fn is_lost(&self) -> bool {
        self.state == State::Resend
    }

    /// Whether the device still holds its last post, when it has reaped up to these on each channel.
    pub(crate) fn is_in_device(&self, reaped: [FrameId; 2]) -> bool {
        self.post > reaped[self.channel.index()]
    }

    /// It is sent again now: on the data channel, whatever it took first.
    pub(crate) fn send_again(&mut self) {
        self.channel = Channel::Data;
        self.marks |= mark::AGAIN;
    }

    /// The device took it as this post.
    #[inline]
    pub(crate) fn in_device_as(&mut self, post: FrameId) {
        self.post = post;
    }
}

/// All segments: those of peers' lists, those that are free, and which of them are to be sent again.
#[derive(Debug)]
pub(crate) struct Segments {
    pool: Pool<Segment>,
    mtu: usize,
    /// Segments to be retransmitted; some were acknowledged since they got here.
    lost: VecDeque<Id<Segment>>,
    /// Posted since the last `progress`: when that was, it will know better.
    unstamped: Vec<Id<Segment>>,
}

impl Segments {
    /// Segments with frames of `mtu` bytes, `most` of them at most.
    pub(crate) fn new(most: usize, mtu: usize) -> Self {
        Self {
            pool: Pool::new(most),
            mtu,
            lost: VecDeque::new(),
            unstamped: Vec::with_capacity(STAMPED),
        }
    }

    /// Returns how many can be taken.
    #[inline]
    pub(crate) fn available(&self) -> usize {
        self.pool.available()
    }

    /// Returns how many are not free.
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

    /// Returns how many are in the queue of those to be sent again.
    #[inline]
    pub(crate) fn lost(&self) -> usize {
        self.lost.len()
    }

    /// Takes the next out of the queue of those to be sent again.
    pub(crate) fn next_lost(&mut self) -> Option<Id<Segment>> {
        self.lost.pop_front()
    }

    /// Puts one at the end of the queue of those to be sent again.
    pub(crate) fn push_lost(&mut self, id: Id<Segment>) {
        self.lost.push_back(id);
    }

    /// The time of this post is to be made exact by the next `progress`.
    #[inline]
    pub(crate) fn note_post(&mut self, id: Id<Segment>) {
        if self.unstamped.len() < self.unstamped.capacity() {
            self.unstamped.push(id);
        }
    }

    /// Stamps what was posted since the last `progress`, which was at `before`: it was posted by `now` at the
    /// latest.
    pub(crate) fn stamp(&mut self, before: u64, now: u64) {
        while let Some(id) = self.unstamped.pop() {
            let segment = &mut self.pool[id];
            if segment.sent_at == before {
                segment.sent_at = now;
            }
        }
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
