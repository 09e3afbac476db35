//! The sending half: frames are written with their headers into chunks of the memory that the kernel reads, and one system call
//! has it look at all of them.
//!
//! ```text
//!   post ─► chunk ─► send ring      doorbell ─► index, and a call where the kernel sleeps
//!     ▲                                              │
//!     └──── free chunks ◄── completion ring ◄────────┘
//! ```

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use doorbell_fabric::datagram::{Channel, FrameId, Transmit};
use doorbell_fabric::ether::{HEADERS_6, Headers, Mac};
use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::message::{Body, PeerIndex, Refused};
use doorbell_fabric::pcapng;
use doorbell_inet::{Other, Tap};

use crate::queue::{Completions, Sends, pack};
use crate::stats::XdpStats;
use crate::sys;

/// Most pieces of a gathered body.
pub(crate) const PARTS_MAX: usize = 64;

/// Most calls of one doorbell: a kernel that takes less than this many times its own budget is asked again later.
const CALLS_MAX: u32 = 64;

#[inline]
pub(crate) fn channel_index(channel: Channel) -> usize {
    match channel {
        Channel::Priority => 0,
        Channel::Data => 1,
    }
}

/// A peer: the headers of its two channels, whole when the hardware address is known.
pub(crate) struct Way {
    pub(crate) headers: [Headers; 2],
    pub(crate) is_known: bool,
    /// Its addresses.
    pub(crate) to: [SocketAddr; 2],
}

impl Way {
    pub(crate) fn set_macs(&mut self, own: Mac, theirs: Mac) {
        self.is_known = true;
        for headers in &mut self.headers {
            headers.set_macs(own, theirs);
        }
    }
}

/// The sending half of an [`XdpRail`](crate::XdpRail).
pub struct XdpTx {
    pub(crate) ways: Vec<Way>,
    /// `None` after the end.
    line: Option<Line>,
    /// Frames that the kernel was told of, and whether it refused to look at them: the interface is down, or gone.
    published: u64,
    refused: bool,
    /// What the rings counted, after the end.
    nonsense: u64,
    memory: RegionSlice,
    chunk: usize,
    /// Chunks that hold nothing, by number, and the first chunk that is ours to send from.
    free: Vec<u32>,
    first: u32,
    /// Of each of our chunks: whether the kernel has it, and for which channel.
    lent: Box<[Option<u8>]>,
    rooms: [usize; 2],
    posted: [u64; 2],
    outstanding: [u64; 2],
    limit: usize,
    /// The device looks at the ring by itself while it is awake; the kernel never does.
    may_be_awake: bool,
    pub(crate) stats: XdpStats,
    pub(crate) tap: Option<Tap>,
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
    pub(crate) zero_copy: bool,
}

impl XdpTx {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            ways: Vec::new(),
            line: parts.line,
            published: 0,
            refused: false,
            nonsense: 0,
            memory: parts.memory,
            chunk: parts.chunk,
            // The one that was let go of last is used first: it is still in the cache.
            free: parts.chunks.clone().rev().collect(),
            first: parts.chunks.start,
            lent: vec![None; parts.chunks.len()].into(),
            rooms: [0; 2],
            posted: [0; 2],
            outstanding: [0; 2],
            limit: parts.limit,
            may_be_awake: parts.zero_copy,
            stats: XdpStats::default(),
            tap: None,
        }
    }

    /// Whether the kernel has not looked at everything yet, and would when asked.
    pub(crate) fn is_backed_up(&mut self) -> bool {
        !self.refused && self.waiting() > 0
    }

    /// Frames that the kernel was told of and has not taken.
    fn waiting(&mut self) -> u32 {
        self.line.as_mut().map_or(0, |line| line.send.pending())
    }

    /// Has the kernel look at what waits, whatever it said to that before; returns how many frames it took.
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
        !self.refused && self.free.is_empty()
    }

    /// Whether the kernel and the device have let go of everything, or never will.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.reap();
        self.refused || !self.is_backed_up() && self.outstanding == [0, 0]
    }

    /// Frames that the kernel took so far, and entries of the rings that could not be true.
    pub(crate) fn counts(&self) -> (u64, u64) {
        match &self.line {
            Some(line) => (
                self.published - u64::from(line.send.waiting()),
                line.send.nonsense() + line.completion.nonsense(),
            ),
            None => (self.published - self.stats.unsendable, self.nonsense),
        }
    }

    /// Takes back the chunks that the kernel has let go of.
    #[inline]
    fn reap(&mut self) {
        if self.outstanding == [0, 0] {
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
                Some(channel) => {
                    self.outstanding[usize::from(channel)] -= 1;
                    self.free.push(number);
                }
                // Not one that it had.
                None => self.stats.nonsense += 1,
            }
        }
        line.completion.release();
    }

    /// Has the kernel send what is in the ring; returns how many frames it took.
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

    /// Has the kernel look at the ring; returns whether it makes sense to ask again.
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
        let mut put = |bytes: SharedBytes<'_>| at += self.memory.write_shared(at, bytes);
        put(SharedBytes::of(head));
        match body {
            Body::Empty => {}
            Body::Bytes(bytes) => put(SharedBytes::of(bytes)),
            Body::Loan(loan) => put(loan.as_shared()),
            Body::Parts(parts) => parts.iter().for_each(|part| put(part.as_shared())),
            Body::Shared(bytes) => put(bytes),
            Body::Region(slice) => put(slice.as_shared()),
        }
        let length = at - start;
        // What was written is summed up, and not what it was copied from, which others may change.
        let sum = self.memory.as_shared().skip(start).take(length).sum();
        self.memory
            .write(place, &headers.before(length, Some(sum.into())));
        headers.len() + length
    }

    #[cold]
    fn show(&self, place: usize, length: usize, channel: usize, peer: PeerIndex) {
        if let Some(tap) = &self.tap {
            let headers = self.ways[peer.index()].headers[channel].len();
            let frame = self
                .memory
                .as_shared()
                .skip(place + headers)
                .take(length - headers);
            tap.frame(pcapng::Way::Out, channel, Other::Peer(peer.0), &frame.to_vec());
        }
    }

    /// The packet of a frame to `peer`, whole.
    pub(crate) fn packet(&self, peer: PeerIndex, frame: &[u8], packet: &mut Vec<u8>) {
        packet.clear();
        if let Some(way) = self.ways.get(peer.index()) {
            let sum = SharedBytes::of(frame).sum();
            packet.extend_from_slice(&way.headers[0].before(frame.len(), Some(sum.into())));
            packet.extend_from_slice(frame);
        }
    }

    /// Sends a packet as it is; returns whether there was room.
    #[inline]
    pub(crate) fn send_packet(&mut self, packet: &[u8]) -> bool {
        self.reap();
        let Some(number) = self.free.pop() else {
            self.flush();
            return false;
        };
        let place = number as usize * self.chunk;
        let length = self.memory.write(place, &packet[..packet.len().min(self.chunk)]);
        let posted = self.push(number, length, 0);
        self.doorbell();
        posted
    }

    /// Puts the chunk `number` with a packet of that length into the ring.
    #[inline]
    fn push(&mut self, number: u32, length: usize, channel: usize) -> bool {
        let place = u64::from(number) * self.chunk as u64;
        let pushed = match &mut self.line {
            Some(line) => line.send.push(pack(place, length as u32)).is_ok(),
            None => false,
        };
        if pushed {
            self.lent[(number - self.first) as usize] = Some(channel as u8);
            self.outstanding[channel] += 1;
        } else {
            self.free.push(number);
        }
        pushed
    }

    /// Gives up the queue and everything that waits in it.
    pub(crate) fn release(&mut self) {
        (_, self.nonsense) = self.counts();
        if let Some(line) = &self.line {
            self.stats.unsendable += u64::from(line.send.waiting());
        }
        self.rooms = [0; 2];
        self.ways.clear();
        self.line = None;
    }
}

impl Transmit for XdpTx {
    #[inline]
    fn reserve(&mut self, channel: Channel, n: usize) -> usize {
        let at = channel_index(channel);
        self.reap();
        let others = self.rooms[1 - at];
        let free = self.line.as_mut().map_or(0, |line| line.send.free(n as u32));
        let room = self.free.len().min(free as usize);
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
        let too_many = matches!(body, Body::Parts(parts) if parts.len() > PARTS_MAX);
        if head.len() + body.len() > self.limit || too_many {
            return Err(Refused::TooLong);
        }
        let at = channel_index(channel);
        let way = self.ways.get(peer.index()).ok_or(Refused::PeerDown)?;
        self.rooms[at] = self.rooms[at].checked_sub(1).ok_or(Refused::Full)?;
        self.posted[at] += 1;
        let id = FrameId(self.posted[at]);
        if !way.is_known {
            // Frames may be lost, and this one is; the kernel is finding out where the next one goes.
            self.stats.unresolved += 1;
            return Ok(id);
        }
        // Room was reserved, so there is a chunk.
        let number = self.free.pop().ok_or(Refused::Full)?;
        let place = number as usize * self.chunk;
        let length = self.write(place, &way.headers[at], head, body);
        if self.tap.is_some() {
            self.show(place, length, at, peer);
        }
        if self.push(number, length, at) {
            Ok(id)
        } else {
            Err(Refused::Full)
        }
    }

    #[inline]
    fn doorbell(&mut self) {
        let published = self.line.as_mut().map_or(0, |line| line.send.publish());
        if published > 0 {
            self.published += u64::from(published);
            self.flush();
        }
    }

    #[inline]
    fn reaped(&mut self, channel: Channel) -> FrameId {
        if self.is_backed_up() {
            self.flush();
        }
        self.reap();
        let at = channel_index(channel);
        FrameId(self.posted[at] - self.outstanding[at])
    }
}

const _: () = assert!(HEADERS_6 == 62);
