//! The receiving half: frames lie where the kernel put them, and their chunks go back to it when they were looked at.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use doorbell_fabric::datagram::{Channel, Frame, Receive};
use doorbell_fabric::ether::{Arrived, HEADERS_IPV6, UDP};
use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::message::{PeerIndex, Refused};
use doorbell_fabric::pcapng::Way;
use doorbell_inet::{Inbox, InboxFrame, KeptFrame as XdpKept, RemoteEnd, SpareChunks, Tap, channel_index};
use rustc_hash::FxHashMap;

use crate::join::{Joined, Joins};
use crate::layout::BUFFERS;
use crate::queue::{Fills, Frames, GOES_ON, unpack};
use crate::stats::XdpStats;
use crate::sys;

/// Nobody who was opened.
pub(crate) const NOBODY: u32 = u32::MAX;

/// Most frames that one poll takes from all queues.
const BATCH: usize = 64;

/// In how many polls that found nothing a kernel that may sleep is asked whether it does: some devices look for chunks first
/// and say that they sleep then, so that chunks that were given back in between would be seen by nobody.
const ASK_EVERY: u32 = 64;

/// Bytes of a cache line.
const LINE: usize = 64;

/// So many chunks are given back at least before the kernel is told of them while frames come in: each time costs a cache
/// line that the other side has.
const GIVE_BACK: u32 = 32;

/// One queue's receiving side.
pub(crate) struct Source {
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) receive: Frames,
    pub(crate) fill: Fills,
    /// Chunks that were given back and the kernel does not know of.
    pub(crate) unpublished: u32,
    pub(crate) untold: u32,
    /// The kernel may sleep until it is told of chunks: only devices that take them themselves do.
    pub(crate) may_sleep: bool,
}

impl Source {
    /// Gives a chunk back. The ring has room for twice the chunks that its queue has: the kernel shows frames before it says
    /// that it has taken their chunks off this ring, so that each may be in it a second time.
    #[inline]
    fn give(&mut self, chunk: u32, size: usize) -> bool {
        let address = u64::from(chunk) * size as u64;
        let given = self.fill.push(address.to_ne_bytes()).is_ok();
        self.unpublished += u32::from(given);
        given
    }

    /// Tells the kernel what was taken and given back.
    #[inline]
    fn publish(&mut self) {
        if self.untold > 0 {
            self.receive.release();
            self.untold = 0;
        }
        if self.unpublished > 0 {
            self.fill.publish();
            self.unpublished = 0;
            self.wake();
        }
    }

    /// Wakes a kernel that sleeps until it is told of chunks.
    #[inline]
    fn wake(&self) {
        if self.may_sleep && self.fill.is_asleep() {
            // What it says to that is of no use: it is asked again soon.
            let _ = sys::wake_receiver(self.socket.as_fd());
        }
    }
}

/// The receiving half of an [`XdpRail`](crate::XdpRail).
pub struct XdpRx {
    pub(crate) sources: Vec<Source>,
    inboxes: [Inbox; 2],
    memory: RegionSlice,
    chunk: usize,
    /// Of each chunk: the queue whose kernel side has it.
    with: Box<[Option<u16>]>,
    spares: SpareChunks,
    /// Frames of several chunks, and buffers beside theirs for those that are kept.
    joins: Joins,
    spare_buffers: SpareChunks,
    names: FxHashMap<SocketAddr, u32>,
    /// Who sent the last frame: mostly the sender of the next one.
    last: (SocketAddr, u32),
    own: SocketAddr,
    /// Frames may come that were never on a wire, so that nobody has made their checksum.
    may_be_unfinished: bool,
    /// Each empty poll has the device looked at.
    busy_poll: bool,
    /// Chunks that are given back before the kernel is told of them.
    give_back: u32,
    /// The queue that is looked at first, and polls that found nothing.
    turn: usize,
    idle: u32,
    pub(crate) stats: XdpStats,
    /// What the kernel and the rings had counted at the end.
    ended: KernelCounts,
    pub(crate) tap: Option<Tap>,
}

/// What a receiving half is made of.
pub(crate) struct Parts {
    pub(crate) sources: Vec<Source>,
    pub(crate) memory: RegionSlice,
    pub(crate) chunk: usize,
    /// How many chunks there are; the buffers for frames of several of them are behind.
    pub(crate) chunks: usize,
    /// Of each queue, the chunks that its fill ring begins with.
    pub(crate) filled: Vec<std::ops::Range<u32>>,
    pub(crate) spares: std::ops::Range<u32>,
    /// Bytes of a buffer, and buffers for frames that are kept; 0 bytes: there are none.
    pub(crate) buffer: usize,
    pub(crate) kept_buffers: usize,
    /// The rail's address with its first port.
    pub(crate) own: SocketAddr,
    /// Frames may come that were never on a wire.
    pub(crate) may_be_unfinished: bool,
}

/// What the kernel and the rings count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelCounts {
    /// Frames that were dropped for want of room, or because they are too long.
    pub(crate) drops: u64,
    /// What could not be true: entries that the kernel refused, and indices.
    pub(crate) nonsense: u64,
    /// How often a zero-copy device found no chunk to fill.
    pub(crate) starved: u64,
}

impl XdpRx {
    pub(crate) fn new(parts: Parts) -> Self {
        let mut with = vec![None; parts.chunks];
        let mut sources = parts.sources;
        for (queue, (source, chunks)) in sources.iter_mut().zip(&parts.filled).enumerate() {
            for chunk in chunks.clone() {
                if source.give(chunk, parts.chunk) {
                    with[chunk as usize] = Some(queue as u16);
                }
            }
            source.publish();
        }
        let most: usize = parts.filled.iter().map(|chunks| chunks.len()).sum();
        let least = parts.filled.iter().map(|chunks| chunks.len()).min().unwrap_or(0) as u32;
        let buffers = (parts.chunks * parts.chunk, parts.buffer);
        let spare_buffers = match parts.buffer {
            0 => 0..0,
            _ => BUFFERS as u32..(BUFFERS + parts.kept_buffers) as u32,
        };
        Self {
            joins: Joins::new(buffers, BUFFERS, sources.len()),
            spare_buffers: SpareChunks::new(spare_buffers),
            sources,
            inboxes: [Inbox::new(most), Inbox::new(most)],
            memory: parts.memory,
            chunk: parts.chunk,
            with: with.into(),
            spares: SpareChunks::new(parts.spares),
            names: FxHashMap::default(),
            last: (parts.own, NOBODY),
            own: parts.own,
            may_be_unfinished: parts.may_be_unfinished,
            busy_poll: false,
            give_back: GIVE_BACK.min(least / 8),
            turn: 0,
            idle: 0,
            stats: XdpStats::default(),
            ended: KernelCounts::default(),
            tap: None,
        }
    }

    /// Frames from `address` are this peer's.
    pub(crate) fn name(&mut self, address: SocketAddr, peer: u32) {
        self.names.insert(plain(address), peer);
        self.last = (self.own, NOBODY);
    }

    /// The peer with this address.
    pub(crate) fn named(&self, address: SocketAddr) -> Option<u32> {
        self.names.get(&plain(address)).copied()
    }

    /// Whether a poll would show something.
    pub(crate) fn has_more(&mut self) -> bool {
        self.inboxes.iter().any(Inbox::has_more)
            || self.sources.iter_mut().any(|source| source.receive.is_ready())
    }

    /// What the kernel and the rings have counted. Asks every socket.
    pub(crate) fn kernel_counts(&self) -> KernelCounts {
        self.sources.iter().fold(self.ended, |all, source| {
            let one = sys::counted(source.socket.as_fd()).unwrap_or_default();
            let rings = source.receive.nonsense() + source.fill.nonsense();
            // Where the kernel copies and no chunk is left, the frame is among the dropped ones.
            let starved = if source.may_sleep { one.starved } else { 0 };
            KernelCounts {
                drops: all.drops + one.dropped + one.ring_full,
                nonsense: all.nonsense + one.invalid + rings,
                starved: all.starved + starved,
            }
        })
    }

    /// Whether receives have a queue of the device to poll; from then on each empty poll does. Where the kernel copies, it knows
    /// only after the first frame.
    pub(crate) fn polls_busily(&mut self) -> bool {
        let mut sources = self.sources.iter();
        self.busy_poll |= sources.any(|source| sys::has_queue_to_poll(source.socket.as_fd()));
        self.busy_poll
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sources.iter().map(|source| source.socket.as_fd())
    }

    /// Takes what has come, up to a batch of all queues, and sorts it by channel.
    #[inline]
    fn pull(&mut self) {
        let (count, mut left) = (self.sources.len(), BATCH);
        for at in 0..count {
            let queue = (self.turn + at) % count;
            while left > 0 && self.inboxes.iter().all(Inbox::has_room) && self.joins.has_room() {
                let Some(descriptor) = self.sources[queue].receive.take() else {
                    break;
                };
                self.sources[queue].untold += 1;
                left -= 1;
                self.take(queue as u16, unpack(&descriptor));
            }
        }
        let found = left < BATCH;
        self.turn = if count > 1 { (self.turn + 1) % count } else { 0 };
        for source in &mut self.sources {
            if !found || source.untold.max(source.unpublished) >= self.give_back {
                source.publish();
            }
        }
        if !found {
            self.found_nothing();
        }
    }

    #[inline]
    fn found_nothing(&mut self) {
        self.idle = self.idle.wrapping_add(1);
        if self.idle.is_multiple_of(ASK_EVERY) {
            self.sources.iter().for_each(Source::wake);
        }
        if self.busy_poll {
            self.sources
                .iter()
                .for_each(|source| drop(sys::wake_receiver(source.socket.as_fd())));
        }
    }

    /// One entry of a ring: the frame goes to its channel, or its chunk goes back.
    #[inline]
    fn take(&mut self, queue: u16, (address, length, options): (u64, u32, u32)) {
        // Chunks are powers of two.
        let number = usize::try_from(address >> self.chunk.trailing_zeros()).unwrap_or(usize::MAX);
        let inside = self.chunk - (address as usize & (self.chunk - 1));
        let goes_on = options & GOES_ON != 0;
        let known = self.with.get_mut(number);
        let Some(with) = known.filter(|with| with.is_some()) else {
            // A chunk that the kernel does not have: it is nobody's to give back.
            self.stats.nonsense += 1;
            self.broken(queue, goes_on);
            return;
        };
        *with = None;
        let (number, place, length) = (number as u32, address as usize, length as usize);
        if length > inside {
            self.stats.malformed += 1;
            self.broken(queue, goes_on);
            self.give(queue, number);
        } else if goes_on || self.joins.is_open(queue) {
            self.take_part(queue, (place, length), goes_on);
            self.give(queue, number);
        } else if !self.sort(queue, number, (place, length), false) {
            self.give(queue, number);
        }
    }

    /// Whatever frame of several chunks the queue had begun, it does not come whole.
    #[cold]
    fn broken(&mut self, queue: u16, goes_on: bool) {
        if goes_on || self.joins.is_open(queue) {
            self.joins.break_off(queue, goes_on);
        }
    }

    /// One of several chunks of a frame.
    fn take_part(&mut self, queue: u16, part: (usize, usize), goes_on: bool) {
        match self.joins.add(&self.memory, queue, part, goes_on) {
            Joined::Nothing => {}
            Joined::Broken => self.stats.malformed += 1,
            Joined::Whole { buffer, length } => {
                let place = self.joins.place(buffer);
                if !self.sort(queue, self.with.len() as u32 + buffer, (place, length), true) {
                    self.joins.give(buffer);
                }
            }
        }
    }

    /// A packet in a chunk (or a buffer): its frame goes to the channel. Returns whether it is one. `joined`: it was put together.
    #[inline]
    fn sort(&mut self, queue: u16, chunk: u32, (place, length): (usize, usize), joined: bool) -> bool {
        let Some((channel, from, at, length)) = self.read(place, length, joined) else {
            return false;
        };
        self.inboxes[channel].push(InboxFrame {
            chunk,
            queue,
            kept: false,
            from,
            at: at as u32,
            length: length as u32,
        });
        true
    }

    /// Channel, peer, place and length of the frame in a packet that is for this rail and intact.
    #[inline]
    fn read(&mut self, place: usize, length: usize, joined: bool) -> Option<(usize, u32, usize, usize)> {
        let packet = self.memory.as_shared().skip(place).take(length);
        // The second line of a short frame is fetched beside the first, and not after it: both come from afar.
        std::hint::black_box(packet.read::<1>(LINE));
        let mut headers = [0; HEADERS_IPV6];
        let n = packet.copy_to(0, &mut headers);
        let Some(arrived) = Arrived::read(&headers[..n], length) else {
            self.stats.malformed += 1;
            return None;
        };
        let channel = usize::from(arrived.to.port().wrapping_sub(self.own.port()));
        let rest = length.checked_sub(arrived.at + arrived.length);
        // Links pad what is short. What was put together is not; a rest is another frame's, and chunks between were lost.
        let is_odd = rest.is_none_or(|rest| joined && rest > 0);
        if channel > 1 || arrived.to.ip() != self.own.ip() || is_odd {
            self.stats.malformed += 1;
            return None;
        }
        let frame = packet.skip(arrived.at).take(arrived.length);
        match judge(&arrived, frame, self.own.is_ipv4(), self.may_be_unfinished) {
            Sum::Right => {}
            Sum::Unfinished => self.stats.unfinished += 1,
            Sum::Wrong => {
                self.stats.corrupt += 1;
                return None;
            }
        }
        let from = self.sender(arrived.from);
        self.stats.received += 1;
        let at = place + arrived.at;
        if self.tap.is_some() {
            self.show(channel, (from, arrived.from), at, arrived.length);
        }
        Some((channel, from, at, arrived.length))
    }

    #[cold]
    fn show(&self, channel: usize, (from, address): (u32, SocketAddr), at: usize, length: usize) {
        if let Some(tap) = &self.tap {
            let other = if from == NOBODY {
                RemoteEnd::Unknown(Some(address))
            } else {
                RemoteEnd::Peer(from)
            };
            let frame = self.memory.as_shared().skip(at).take(length);
            tap.frame(Way::In, channel, other, &frame.to_vec());
        }
    }

    #[inline]
    fn sender(&mut self, from: SocketAddr) -> u32 {
        if self.last.0 != from {
            let known = self.names.get(&from).copied();
            self.stats.strangers += u64::from(known.is_none());
            match known {
                Some(peer) => self.last = (from, peer),
                None => return NOBODY,
            }
        }
        self.last.1
    }

    /// Takes the next packet off the rings, copies what is behind its headers, and gives its chunk back.
    #[inline]
    pub(crate) fn take_packet(&mut self, headers: usize, into: &mut [u8]) -> Option<usize> {
        for queue in 0..self.sources.len() {
            let source = &mut self.sources[queue];
            let Some(descriptor) = source.receive.take() else {
                source.publish();
                continue;
            };
            source.untold += 1;
            let (address, length, _) = unpack(&descriptor);
            let packet = self
                .memory
                .as_shared()
                .skip(address as usize)
                .take(length as usize);
            packet.copy_to(headers, into);
            // By UDP's own length: the link pads what is short.
            let told = packet.read(headers - 4).map_or(0, u16::from_be_bytes);
            let chunk = u32::try_from(address >> self.chunk.trailing_zeros()).unwrap_or(u32::MAX);
            if (chunk as usize) < self.with.len() {
                self.give(queue as u16, chunk);
            }
            return Some(usize::from(told).saturating_sub(UDP));
        }
        None
    }

    #[inline]
    fn give(&mut self, queue: u16, chunk: u32) {
        if self.sources[usize::from(queue)].give(chunk, self.chunk) {
            self.with[chunk as usize] = Some(queue);
        }
    }

    /// Whether the kernel side of a queue has this chunk.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn is_with_kernel(&self, chunk: usize) -> bool {
        self.with.get(chunk).is_some_and(Option::is_some)
    }

    /// Whether each chunk and each buffer is somewhere, and once.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn census(&self, (chunks, buffers): (usize, usize)) {
        let (mut seen, here) = (vec![0; chunks + buffers], self.with.len() as u32);
        let lent = self.with.iter().zip(0..).filter(|(with, _)| with.is_some());
        let waits = self.inboxes.iter().flat_map(Inbox::chunks);
        let behind = |buffer: u32| here + buffer;
        let all = lent
            .map(|(_, chunk)| chunk)
            .chain(waits)
            .chain(self.spares.chunks())
            .chain(self.spare_buffers.chunks().map(behind))
            .chain(self.joins.buffers().map(behind));
        all.for_each(|chunk| seen[chunk as usize] += 1);
        let buffers = if self.joins.has_buffers() { buffers } else { 0 };
        let first = seen[..chunks + buffers].iter().position(|&count| count != 1);
        assert_eq!(first, None, "of {chunks} chunks and {buffers} buffers");
    }

    /// Gives up the sockets.
    pub(crate) fn release(&mut self) {
        self.ended = self.kernel_counts();
        self.sources.clear();
        self.names.clear();
    }
}

/// What a checksum says.
enum Sum {
    Right,
    /// The sender's kernel left it to a device, and there was none on the way.
    Unfinished,
    Wrong,
}

#[inline]
fn judge(arrived: &Arrived, frame: SharedBytes<'_>, is_ipv4: bool, may_be_unfinished: bool) -> Sum {
    // IPv4 allows to have none: a sender whose rail makes none adds a checksum of its own to the frame.
    let none_is_right = is_ipv4 && !arrived.has_checksum();
    if none_is_right || arrived.is_intact(frame.sum().into()) {
        Sum::Right
    } else if may_be_unfinished && arrived.has_checksum() && arrived.is_partial_checksum() {
        Sum::Unfinished
    } else {
        Sum::Wrong
    }
}

/// Without a scope, which means something on this host only.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

impl Receive for XdpRx {
    type Kept = XdpKept;

    #[inline]
    fn poll(&mut self, channel: Channel, budget: usize) -> usize {
        let at = channel_index(channel);
        let (sources, with, size) = (&mut self.sources, &mut self.with, self.chunk);
        let (joins, chunks) = (&mut self.joins, with.len() as u32);
        let waits = self.inboxes[at].end_poll(|entry| {
            let Some(with) = with.get_mut(entry.chunk as usize) else {
                joins.give(entry.chunk - chunks);
                return;
            };
            // After the end there is nobody to give it to.
            if let Some(source) = sources.get_mut(usize::from(entry.queue))
                && source.give(entry.chunk, size)
            {
                *with = Some(entry.queue);
            }
        });
        if !waits && budget > 0 {
            self.pull();
        }
        self.inboxes[at].show(budget)
    }

    #[inline]
    fn frame(&self, channel: Channel, i: usize) -> Option<Frame<'_>> {
        let entry = self.inboxes[channel_index(channel)].shown(i)?;
        Some(Frame {
            from: (entry.from != NOBODY).then_some(PeerIndex(entry.from)),
            bytes: self
                .memory
                .as_shared()
                .skip(entry.at as usize)
                .take(entry.length as usize),
        })
    }

    fn keep(&mut self, channel: Channel, i: usize) -> Result<XdpKept, Refused> {
        let inbox = &mut self.inboxes[channel_index(channel)];
        let entry = *inbox.shown(i).ok_or(Refused::BadMemory)?;
        let frame = self
            .memory
            .slice(entry.at as usize, entry.length as usize)
            .ok_or(Refused::BadMemory)?;
        let chunks = self.with.len() as u32;
        let (kept, fresh) = match entry.chunk.checked_sub(chunks) {
            None => self.spares.swap(entry.chunk, frame)?,
            Some(buffer) => {
                let (kept, fresh) = self.spare_buffers.swap(buffer, frame)?;
                (kept, chunks + fresh)
            }
        };
        inbox.keep(i, fresh);
        Ok(kept)
    }
}
