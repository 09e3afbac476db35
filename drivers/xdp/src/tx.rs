//! The sending half: frames are written with their headers into chunks of the memory that the kernel reads,
//! and one system call has it look at all of them.
//!
//! ```text
//!   post ─► chunk ─► send ring      doorbell ─► index, and a call where the kernel sleeps
//!     ▲                                              │
//!     └──── free chunks ◄── completion ring ◄────────┘
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use doorbell_fabric::datagram::{Channel, FrameId, Transmit};
use doorbell_fabric::ether::{HEADERS_IPV6, Headers};
use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::message::{Body, PeerIndex, Refused};
use doorbell_fabric::pcapng;
use doorbell_inet::{PeerHeaders, RemoteEnd, Tap, for_each_part, has_too_many_parts};

use crate::layout::PIECES_MAX;
use crate::queue::{Completions, GOES_ON, Sends, pack};
use crate::stats::XdpStats;
use crate::sys;

/// Most calls of one doorbell: a kernel that takes less than this many times its own budget is called again
/// later.
const CALLS_MAX: u32 = 64;

/// The sending half of an [`XdpRail`](crate::XdpRail).
pub struct XdpTx {
    pub(crate) ways: Vec<PeerHeaders>,
    /// `None` after the end.
    line: Option<Line>,
    /// Chunks that were published to the kernel, frames among them, and whether it refused to look at them:
    /// the interface is down, or gone.
    published: u64,
    frames: u64,
    refused: bool,
    /// For each slot in the ring, whether a frame continues after it. Empty if frames have one chunk each.
    goes_on: Box<[bool]>,
    /// Chunks that were pushed so far.
    pushed: u64,
    /// What the rings counted, after the end.
    nonsense: u64,
    memory: RegionSlice,
    chunk: usize,
    /// Chunks that hold nothing, by number, and the first chunk that is ours to send from.
    free: Vec<u32>,
    first: u32,
    /// For each of our chunks, whether the kernel has it, and on which channel it ends a frame.
    lent: Box<[Option<Lent>]>,
    /// Chunks that the kernel has.
    under_way: usize,
    rooms: [usize; 2],
    posted: [u64; 2],
    outstanding: [u64; 2],
    limit: usize,
    /// The most chunks of a frame.
    pieces: usize,
    /// The device polls the ring while it is awake; the kernel never does.
    may_be_awake: bool,
    pub(crate) stats: XdpStats,
    pub(crate) tap: Option<Tap>,
}

/// What a chunk that the kernel has is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lent {
    /// A frame of this channel, or its end.
    End(u8),
    /// A frame that goes on.
    Part,
}

/// The first queue's sending side.
pub(crate) struct Line {
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) send: Sends,
    pub(crate) completion: Completions,
}

/// What a sending half is made of.
pub(crate) struct Parts {
    pub(crate) line: Option<Line>,
    pub(crate) memory: RegionSlice,
    pub(crate) chunk: usize,
    /// The chunks that are for sending.
    pub(crate) chunks: std::ops::Range<u32>,
    pub(crate) limit: usize,
    /// The most chunks of a frame.
    pub(crate) pieces: u32,
    pub(crate) zero_copy: bool,
}

impl XdpTx {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            ways: Vec::new(),
            line: parts.line,
            published: 0,
            frames: 0,
            refused: false,
            goes_on: vec![false; if parts.pieces > 1 { parts.chunks.len() } else { 0 }].into(),
            pushed: 0,
            nonsense: 0,
            memory: parts.memory,
            chunk: parts.chunk,
            // The one that was released last is used first: it is still in the cache.
            free: parts.chunks.clone().rev().collect(),
            first: parts.chunks.start,
            lent: vec![None; parts.chunks.len()].into(),
            under_way: 0,
            rooms: [0; 2],
            posted: [0; 2],
            outstanding: [0; 2],
            limit: parts.limit,
            pieces: parts.pieces as usize,
            may_be_awake: parts.zero_copy,
            stats: XdpStats::default(),
            tap: None,
        }
    }

    /// Whether the kernel has not looked at everything yet, and would when called.
    pub(crate) fn is_backed_up(&mut self) -> bool {
        !self.refused && self.waiting() > 0
    }

    /// Chunks that were published to the kernel and that it has not taken.
    fn waiting(&mut self) -> u32 {
        self.line.as_mut().map_or(0, |line| line.send.pending())
    }

    /// Has the kernel look at what waits, whatever it returned before; returns how many chunks it took.
    pub(crate) fn retry(&mut self) -> usize {
        let before = self.waiting();
        if before > 0 && self.wake() {
            self.flush();
        }
        (before - self.waiting()) as usize
    }

    /// Whether nothing can be posted before chunks come back.
    pub(crate) fn is_starved(&mut self) -> bool {
        self.reap();
        !self.refused && self.free.len() < self.pieces
    }

    /// Whether the kernel and the device have released everything, or never will.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.reap();
        self.refused || !self.is_backed_up() && self.under_way == 0
    }

    /// Frames that the kernel took so far, and entries of the rings that could not be true.
    pub(crate) fn counts(&self) -> (u64, u64) {
        match &self.line {
            Some(line) => (
                self.frames - self.waiting_frames(line),
                line.send.nonsense() + line.completion.nonsense(),
            ),
            None => (self.frames - self.stats.unsendable, self.nonsense),
        }
    }

    /// Frames that were published to the kernel and not all of whose chunks it has taken.
    fn waiting_frames(&self, line: &Line) -> u64 {
        let chunks = u64::from(line.send.waiting());
        if self.goes_on.is_empty() {
            return chunks;
        }
        self.ends_in(self.published - chunks..self.published)
    }

    /// Takes back the chunks that the kernel has released.
    #[inline]
    fn reap(&mut self) {
        if self.under_way == 0 {
            return;
        }
        let Some(line) = &mut self.line else { return };
        while let Some(address) = line.completion.take() {
            let number = (u64::from_ne_bytes(address) >> self.chunk.trailing_zeros()) as u32;
            let slot = number.checked_sub(self.first).map(|slot| slot as usize);
            match slot
                .and_then(|slot| self.lent.get_mut(slot))
                .and_then(Option::take)
            {
                Some(lent) => {
                    if let Lent::End(channel) = lent {
                        self.outstanding[usize::from(channel)] -= 1;
                    }
                    self.under_way -= 1;
                    self.free.push(number);
                }
                // Not one that it had.
                None => self.stats.nonsense += 1,
            }
        }
        line.completion.release();
    }

    /// Has the kernel send what is in the ring; returns how many chunks it took.
    pub(crate) fn flush(&mut self) -> usize {
        let before = self.waiting();
        let mut left = before;
        for _ in 0..CALLS_MAX {
            let Some(line) = &mut self.line else { break };
            if left == 0 || self.may_be_awake && !line.send.is_asleep() || !self.wake() {
                break;
            }
            let now = self.waiting();
            if now == left {
                self.stats.send_full += 1;
                break;
            }
            left = now;
        }
        (before - left) as usize
    }

    /// Has the kernel look at the ring; returns whether it makes sense to call again.
    #[inline]
    fn wake(&mut self) -> bool {
        let Some(line) = &self.line else {
            return false;
        };
        self.stats.send_calls += 1;
        let Err(error) = sys::wake_sender(line.socket.as_fd()) else {
            self.refused = false;
            return true;
        };
        match error.raw_os_error() {
            // It took its budget, or the link dropped what it took.
            Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => true,
            // No room for what was sent: that comes back first.
            Some(libc::ENOBUFS) => {
                self.reap();
                true
            }
            // The interface is down, or gone; what is in the ring stays there.
            _ => {
                self.refused = true;
                false
            }
        }
    }

    /// Writes a frame into the chunk at `place`; returns its length with headers.
    #[inline]
    fn write(&self, place: usize, headers: &Headers, head: &[u8], body: Body<'_>) -> usize {
        let start = place + headers.len();
        let mut at = start;
        for_each_part(head, body, |bytes| at += self.memory.write_shared(at, bytes));
        let length = at - start;
        // The sum is over the bytes written, and not over their source, which others may change.
        let sum = self.sum(start, length);
        self.memory.write(place, &headers.for_frame(length, Some(sum)));
        headers.len() + length
    }

    /// Writes a frame that is longer than a chunk into `chunks`, one after the other; returns its length with
    /// headers.
    fn write_long(&self, chunks: &[u32], headers: &Headers, head: &[u8], body: Body<'_>) -> usize {
        let (size, start) = (self.chunk, headers.len());
        let place = |at: usize| {
            chunks
                .get(at / size)
                .map(|&chunk| chunk as usize * size + at % size)
        };
        let mut at = start;
        for_each_part(head, body, |mut bytes| {
            while !bytes.is_empty()
                && let Some(place) = place(at)
            {
                let n = self.memory.write_shared(place, bytes.take(size - at % size));
                (at, bytes) = (at + n, bytes.skip(n));
            }
        });
        // All but the last have an even number of bytes, so that their sums add up to that of the whole.
        let parts = parts_of(start..at, size);
        let sum: u64 = parts.filter_map(|(at, n)| Some(self.sum(place(at)?, n))).sum();
        self.memory.write(
            chunks[0] as usize * size,
            &headers.for_frame(at - start, Some(sum)),
        );
        at
    }

    #[inline]
    fn sum(&self, place: usize, length: usize) -> u64 {
        self.memory.as_shared().skip(place).take(length).sum().into()
    }

    #[cold]
    fn show(&self, chunks: &[u32], length: usize, channel: usize, peer: PeerIndex) {
        if let Some(tap) = &self.tap {
            let headers = self.ways[peer.index()].headers[channel].len();
            let mut frame = Vec::with_capacity(length);
            for (at, n) in parts_of(headers..length, self.chunk) {
                let place = chunks[at / self.chunk] as usize * self.chunk + at % self.chunk;
                frame.extend(self.memory.as_shared().skip(place).take(n).to_vec());
            }
            tap.frame(pcapng::Direction::Out, channel, RemoteEnd::Peer(peer.0), &frame);
        }
    }

    /// Bytes of the longest frame that fits one chunk behind its headers.
    pub(crate) fn in_one_chunk(&self, headers: usize) -> usize {
        self.limit.min(self.chunk - headers)
    }

    /// The packet of a frame to `peer`, whole.
    pub(crate) fn packet(&self, peer: PeerIndex, frame: &[u8], packet: &mut Vec<u8>) {
        packet.clear();
        if let Some(way) = self.ways.get(peer.index()) {
            let sum = SharedBytes::of(frame).sum();
            packet.extend_from_slice(&way.headers[0].for_frame(frame.len(), Some(sum.into())));
            packet.extend_from_slice(frame);
        }
    }

    /// Sends a packet as it is, `count` times; returns how many there was room for.
    #[inline]
    pub(crate) fn send_packets(&mut self, packet: &[u8], count: usize) -> usize {
        self.reap();
        let mut posted = 0;
        while posted < count {
            let Some(number) = self.free.pop() else { break };
            let place = number as usize * self.chunk;
            let length = self.memory.write(place, &packet[..packet.len().min(self.chunk)]);
            if !self.push(number, length, Lent::End(0)) {
                break;
            }
            posted += 1;
        }
        self.outstanding[0] += posted as u64;
        if posted > 0 {
            self.doorbell();
        } else {
            self.flush();
        }
        posted
    }

    /// Puts the chunk `number` with that many bytes into the ring.
    #[inline]
    fn push(&mut self, number: u32, length: usize, lent: Lent) -> bool {
        let place = u64::from(number) * self.chunk as u64;
        let options = if lent == Lent::Part { GOES_ON } else { 0 };
        let pushed = match &mut self.line {
            Some(line) => line.send.push(pack(place, length as u32, options)).is_ok(),
            None => false,
        };
        if pushed {
            self.lent[(number - self.first) as usize] = Some(lent);
            self.under_way += 1;
            if !self.goes_on.is_empty() {
                let at = self.pushed % self.goes_on.len() as u64;
                self.goes_on[at as usize] = lent == Lent::Part;
                self.pushed += 1;
            }
        } else {
            self.free.push(number);
        }
        pushed
    }

    /// Puts a frame that is longer than a chunk into the ring, for which there has to be room.
    #[cold]
    fn post_long(&mut self, at: usize, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<(), Refused> {
        let headers = self.ways[peer.index()].headers[at];
        let count = (headers.len() + head.len() + body.len()).div_ceil(self.chunk);
        let room = self.line.as_mut().map_or(0, |line| line.send.free(count as u32));
        let mut chunks = [0; PIECES_MAX as usize];
        let (Some(chunks), Some(first)) = (chunks.get_mut(..count), self.free.len().checked_sub(count))
        else {
            return Err(Refused::Full);
        };
        if (room as usize) < count {
            return Err(Refused::Full);
        }
        chunks.copy_from_slice(&self.free[first..]);
        self.free.truncate(first);
        let length = self.write_long(chunks, &headers, head, body);
        if self.tap.is_some() {
            self.show(chunks, length, at, peer);
        }
        for (number, &chunk) in chunks.iter().enumerate() {
            let rest = length - number * self.chunk;
            if rest > self.chunk {
                self.push(chunk, self.chunk, Lent::Part);
            } else {
                self.push(chunk, rest, Lent::End(at as u8));
            }
        }
        Ok(())
    }

    /// Counts this many more chunks as published to the kernel.
    #[inline]
    fn count(&mut self, published: u32) {
        let chunks = self.published..self.published + u64::from(published);
        self.published = chunks.end;
        self.frames += if self.goes_on.is_empty() {
            u64::from(published)
        } else {
            self.ends_in(chunks)
        };
    }

    /// Returns how many frames end in these chunks, which were published to the kernel and are still in the
    /// ring.
    fn ends_in(&self, chunks: std::ops::Range<u64>) -> u64 {
        let places = self.goes_on.len() as u64;
        chunks.filter(|at| !self.goes_on[(at % places) as usize]).count() as u64
    }

    /// Gives up the queue and everything that waits in it.
    pub(crate) fn release(&mut self) {
        (_, self.nonsense) = self.counts();
        if let Some(line) = &self.line {
            self.stats.unsendable += self.waiting_frames(line);
        }
        self.rooms = [0; 2];
        self.ways.clear();
        self.line = None;
    }
}

/// Returns where each part of a range of a packet begins that lies in one chunk of `size` bytes, and how many
/// bytes it has.
fn parts_of(range: std::ops::Range<usize>, size: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let n = (size - at % size).min(range.end.saturating_sub(at));
        let part = (n > 0).then_some((at, n));
        at += n;
        part
    })
}

impl Transmit for XdpTx {
    #[inline]
    fn reserve(&mut self, channel: Channel, n: usize) -> usize {
        let at = channel.index();
        self.reap();
        let others = self.rooms[1 - at];
        let wanted = n.saturating_mul(self.pieces).min(self.lent.len());
        let free = self.line.as_mut().map_or(0, |line| line.send.free(wanted as u32));
        let mut room = self.free.len().min(free as usize);
        if self.pieces > 1 {
            // Each may be as long as can be.
            room /= self.pieces;
        }
        self.rooms[at] = n.min(room.saturating_sub(others));
        if self.rooms[at] < n && self.is_backed_up() {
            self.flush();
        }
        self.rooms[at]
    }

    #[inline]
    fn post(
        &mut self,
        channel: Channel,
        peer: PeerIndex,
        head: &[u8],
        body: Body<'_>,
    ) -> Result<FrameId, Refused> {
        if head.len() + body.len() > self.limit || has_too_many_parts(&body) {
            return Err(Refused::TooLong);
        }
        let at = channel.index();
        let path = self.ways.get(peer.index()).ok_or(Refused::PeerDown)?;
        self.rooms[at] = self.rooms[at].checked_sub(1).ok_or(Refused::Full)?;
        self.posted[at] += 1;
        let id = FrameId(self.posted[at]);
        if !path.is_known {
            // Frames may be lost, and this one is; the kernel is finding out where the next one goes.
            self.stats.unresolved += 1;
            return Ok(id);
        }
        // Room was reserved, so there are chunks.
        if path.headers[at].len() + head.len() + body.len() > self.chunk {
            self.post_long(at, peer, head, body)?;
            self.outstanding[at] += 1;
            return Ok(id);
        }
        let number = self.free.pop().ok_or(Refused::Full)?;
        let place = number as usize * self.chunk;
        let length = self.write(place, &path.headers[at], head, body);
        if self.tap.is_some() {
            self.show(&[number], length, at, peer);
        }
        if self.push(number, length, Lent::End(at as u8)) {
            self.outstanding[at] += 1;
            Ok(id)
        } else {
            Err(Refused::Full)
        }
    }

    #[inline]
    fn doorbell(&mut self) {
        let published = self.line.as_mut().map_or(0, |line| line.send.publish());
        if published > 0 {
            self.count(published);
            self.flush();
        }
    }

    /// A driver that sends from the ring itself empties it while it is awake. In copy mode the kernel takes
    /// frames only within one of our calls, so the consumer index that is read here is one that was written
    /// on this core, as a rule.
    #[inline]
    fn is_backed_up(&mut self) -> bool {
        let empties_itself =
            self.may_be_awake && self.line.as_ref().is_none_or(|line| !line.send.is_asleep());
        !empties_itself && Self::is_backed_up(self)
    }

    #[inline]
    fn reaped(&mut self, channel: Channel) -> FrameId {
        if self.is_backed_up() {
            self.flush();
        }
        self.reap();
        let at = channel.index();
        FrameId(self.posted[at] - self.outstanding[at])
    }
}

const _: () = assert!(HEADERS_IPV6 == 62);
