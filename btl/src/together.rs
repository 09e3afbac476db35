//! Long messages of which all chunks have come when the first is looked at: shown where they lie, without the
//! copy that puts the chunks of others together.

use doorbell_fabric::datagram::{Channel, Receive};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Arrivals, Inbound, PeerIndex};

use crate::core::Core;
use crate::peer::about;
use crate::receive::BATCH;
use crate::seq::Seq;
use crate::wire::{BASIC, Chunk, Kind, Parsed, flag, parse};

/// A message whose chunks lie one behind the other among the frames of one poll.
struct Together<'a> {
    pieces: [SharedBytes<'a>; BATCH],
    count: usize,
    /// What the last chunk acknowledges, and the flags of all of them.
    ack: Option<Seq>,
    flags: u8,
}

/// The chunk that a frame is, with what its headers state.
fn chunk(bytes: SharedBytes<'_>) -> Option<(Parsed, Chunk, SharedBytes<'_>)> {
    let parsed = parse(&bytes).ok().filter(|parsed| parsed.kind == Kind::Chunk)?;
    let payload = bytes.skip(BASIC).take(parsed.length);
    let header: Chunk = zerocopy::transmute!(payload.read::<12>(0)?);
    Some((parsed, header, payload.skip(12)))
}

/// The `count` chunks of a message of which `first` is the first, from frame `i` on.
fn gather<'a, R: Receive>(
    rx: &'a R,
    i: usize,
    count: usize,
    first: &(Parsed, Chunk),
) -> Option<Together<'a>> {
    let (parsed, header) = first;
    let (total, size) = (header.total.get() as usize, usize::from(header.size.get()));
    let mut together = Together {
        pieces: [SharedBytes::EMPTY; BATCH],
        count,
        ack: None,
        flags: 0,
    };
    for (n, piece) in together.pieces[..count].iter_mut().enumerate() {
        let (one, its, bytes) = chunk(rx.frame(Channel::Data, i + n)?.bytes)?;
        let same = one.connection == parsed.connection && its == *header;
        let right =
            one.sequence == parsed.sequence.plus(n as u32) && bytes.len() == size.min(total - n * size);
        if !same || !right {
            return None;
        }
        *piece = bytes;
        together.ack = one.ack.or(together.ack);
        together.flags |= one.flags;
    }
    Some(together)
}

impl Core {
    /// Shows the message whose chunks are frame `i` of the `n` that this poll shows on the data channel and
    /// those behind it, if all of them are there, and it is their turn. Returns how many frames it took; 0
    /// when they are to be looked at one by one.
    pub(crate) fn take_together<R: Receive, S: Arrivals>(
        &mut self,
        rx: &R,
        i: usize,
        n: usize,
        sink: &mut S,
    ) -> usize {
        self.find_together(rx, i, n, sink).unwrap_or(0)
    }

    fn find_together<R: Receive, S: Arrivals>(
        &mut self,
        rx: &R,
        i: usize,
        n: usize,
        sink: &mut S,
    ) -> Option<usize> {
        let (parsed, header, _) = chunk(rx.frame(Channel::Data, i)?.bytes)?;
        let (total, size) = (header.total.get() as usize, usize::from(header.size.get()));
        if size == 0 || total > self.config.eager_limit || self.framing.must_check(&parsed) {
            return None;
        }
        let count = total.div_ceil(size);
        let (first, seq) = (Seq(header.first.get()), parsed.sequence);
        let peer = self.peers.recent(parsed.connection)?;
        if first != seq || count < 2 || count > BATCH.min(n - i) || !self.takes_at_once(peer, seq) {
            return None;
        }
        let together = gather(rx, i, count, &(parsed, header))?;
        if self.framing.must_check(&Parsed {
            flags: together.flags,
            ..parsed
        }) {
            return None;
        }
        self.show_together(peer, seq, &together, sink);
        Some(count)
    }

    /// Whether nothing is missing before a segment of a peer, and nothing but taking it is to be done.
    fn takes_at_once(&self, peer: PeerIndex, seq: Seq) -> bool {
        let state = &self.peers[peer];
        !state.is(about::GONE)
            && !self.phase.is_closing()
            && !state.recv.has_bye()
            && !state.recv.has_gap()
            && state.recv.awaited() == seq
    }

    fn show_together<S: Arrivals>(
        &mut self,
        peer: PeerIndex,
        first: Seq,
        together: &Together<'_>,
        sink: &mut S,
    ) {
        self.mark_alive(peer);
        if let Some(ack) = together.ack {
            self.on_ack(peer, ack);
        }
        self.counters.frames_received += together.count as u64;
        self.counters.messages_delivered += 1;
        let pieces = &together.pieces[..together.count];
        sink.message(peer, Inbound::in_pieces(pieces));
        for (n, piece) in pieces.iter().enumerate() {
            let long = Kind::Chunk.header() + piece.len() > self.config.priority_limit;
            let state = &mut self.peers[peer];
            state.recv.take(first.plus(n as u32), &mut self.bitmaps);
            state.recv.count(long);
        }
        self.owe_ack(peer, together.flags & flag::URGENT != 0, true, true);
    }
}
