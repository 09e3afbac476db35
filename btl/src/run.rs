//! Runs: the chunks of a long message, and the parts of a put, that leave at once, out of the memory that
//! they are in. What is kept of them until they are acknowledged is copied when they are on their way, so
//! that the peer does not wait for that.

use doorbell_fabric::datagram::{Channel, FrameId, Run, Transmit};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Body, PeerIndex};
use zerocopy::IntoBytes;

use crate::core::Core;
use crate::pool::Id;
use crate::pooled_list::Node;
use crate::send::{HEAD, gather};
use crate::send_window::Segment;
use crate::stream::{KEPT, Source, Stream, TURNS};
use crate::transmit;
use crate::wire::{BASIC, Kind, Put};

/// Fewest frames that are posted as a run: one alone has nothing to share.
const LEAST: usize = 2;

/// The heads of the frames of a run, one after the other.
#[derive(Debug)]
pub(crate) struct Heads(Vec<u8>);

impl Heads {
    /// Room for those of the longest run, in passes of `quantum` segments.
    pub(crate) fn new(quantum: u32) -> Self {
        let each = BASIC + Kind::Put.header();
        Self(Vec::with_capacity(
            (transmit::TURNS * quantum) as usize * each + HEAD,
        ))
    }
}

impl Core {
    /// How many of `count` segments, of which none is listed yet, a peer may post at once as a run; 0 when
    /// they take their turns, as something waits before them, or their frames are to be sealed.
    pub(crate) fn room_for_run<T: Transmit>(&mut self, tx: &mut T, index: PeerIndex, count: usize) -> usize {
        let peer = &self.peers[index];
        if self.framing.seals() || peer.send.unsent().is_some() || !peer.may_send() {
            return 0;
        }
        let window = peer.congestion.window() - peer.send.flight();
        let most = (transmit::TURNS * self.config.quantum).min(window);
        let n = self.outbox.room(tx, Channel::Data, count.min(most as usize));
        if n < LEAST { 0 } else { n }
    }

    /// Posts the first `n` of a peer's segments that were not sent, which `room_for_run` has allowed. Their
    /// own headers are in them; `head`, in the first of them, and `body` are not yet.
    pub(crate) fn post_run<T: Transmit>(
        &mut self,
        tx: &mut T,
        index: PeerIndex,
        n: usize,
        head: &[u8],
        body: SharedBytes<'_>,
    ) {
        let Some(first) = self.peers[index].send.unsent() else {
            return;
        };
        let (own, size) = {
            let segment = &self.segments[first];
            (segment.kind().header(), BASIC + segment.length() as usize)
        };
        let mut heads = std::mem::take(&mut self.heads.0);
        heads.clear();
        let mut id = first;
        for i in 0..n {
            let next = self.segments[id].following();
            let header = self.depart(index, id);
            heads.extend_from_slice(header.as_bytes());
            heads.extend_from_slice(self.segments[id].own_header());
            if i == 0 {
                heads.extend_from_slice(head);
            }
            id = next;
        }
        let (front, others) = heads.split_at(BASIC + own + head.len());
        let most = n * (size - BASIC - own) - head.len();
        // What cannot be posted is lost, and goes again; but the sizes are right.
        let last = match Run::new(front, others, BASIC + own, size, body.take(most)) {
            Some(run) => self
                .outbox
                .post_run(tx, Channel::Data, self.peers[index].driver(), &run),
            None => FrameId(0),
        };
        self.heads.0 = heads;
        let mut id = first;
        for behind in (0..n as u64).rev() {
            self.segments[id].in_device_as(FrameId(last.0.saturating_sub(behind)));
            self.segments.note_post(id);
            self.clock.count_frame();
            id = self.segments[id].following();
        }
        self.arm_timeout(index);
    }

    /// Copies `head` and `body` into `n` segments from `first` on, behind their own headers.
    pub(crate) fn fill_segments(&mut self, first: Id<Segment>, n: usize, head: &[u8], body: &Body<'_>) {
        let (mut id, mut at) = (first, 0);
        for _ in 0..n {
            let segment = &mut self.segments[id];
            let to = segment.payload_mut();
            gather(to, head, body, at);
            at += to.len();
            id = segment.following();
        }
    }

    /// Posts the next parts of a peer's first transfer as a run, at most `most`; returns how many. 0: it is
    /// none of memory that stays, or has no room.
    pub(crate) fn put_run<T: Transmit>(&mut self, tx: &mut T, peer: PeerIndex, most: u32) -> u32 {
        let Some(first) = self.peers[peer].streams.first() else {
            return 0;
        };
        let Some(stream) = self.streams.get(first) else {
            return 0;
        };
        let (header, at) = (stream.put_header(), stream.sent());
        match stream.source() {
            Source::Loan(loan) => {
                let body = Body::Loan(loan.part(at, usize::MAX));
                self.put_body(tx, peer, first, header, &body, most)
            }
            Source::Region(slice) => match slice.slice(at, slice.len() - at) {
                Some(rest) => self.put_body(tx, peer, first, header, &Body::Region(&rest), most),
                None => 0,
            },
            Source::Copy(_) | Source::Exposed => 0,
        }
    }

    fn put_body<T: Transmit>(
        &mut self,
        tx: &mut T,
        peer: PeerIndex,
        stream: Id<Node<Stream>>,
        mut header: Put,
        body: &Body<'_>,
        most: u32,
    ) -> u32 {
        let own = Kind::Put.header();
        let size = self.framing.room() - own;
        let count = body.len().div_ceil(size).min(most as usize);
        let n = match self.places(peer, KEPT, count) {
            few if few < LEAST => 0,
            places => self.room_for_run(tx, peer, places),
        };
        let Some(bytes) = body.in_one_piece().filter(|_| n > 0) else {
            return 0;
        };
        let start = header.offset.get();
        let mut listed = 0;
        let mut begin = None;
        for i in 0..n {
            // There are as many, which was checked before.
            let Some(id) = self.blank(peer) else {
                break;
            };
            let at = i * size;
            let length = size.min(body.len() - at);
            header.offset = (start + at as u64).into();
            self.segments[id].draft(own).copy_from_slice(header.as_bytes());
            self.commit(peer, id, Kind::Put, own + length);
            begin = begin.or(Some(id));
            listed += 1;
        }
        let Some(begin) = begin else {
            return 0;
        };
        self.post_run(tx, peer, listed, &[], bytes);
        self.fill_segments(begin, listed, &[], body);
        let list = &mut self.peers[peer].streams;
        if listed * size >= body.len() {
            self.streams.remove(list, stream);
        } else {
            if let Some(stream) = self.streams.get(stream) {
                stream.advance((listed * size) as u64);
            }
            self.streams.rotate(list, TURNS);
        }
        listed as u32
    }
}
