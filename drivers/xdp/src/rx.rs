//! The receive rings: frames lie where the kernel put them, and their chunks go back to it when they were
//! looked at.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use doorbell_fabric::ether::UDP;
use doorbell_fabric::memory::RegionSlice;
use doorbell_inet::Demux;
use doorbell_packet::{Arrivals, Packet, PacketRx, ReceiveQueues, Shown};

use crate::layout::BUFFERS;
use crate::multibuf::{Joined, Joins};
use crate::queue::{Fills, Frames, GOES_ON, unpack};
use crate::sys;

/// Number of empty polls after which a kernel that may sleep is checked for it: some devices look for chunks
/// first and only then set the flag that they sleep, so that chunks that were given back in between would not
/// be found.
const ASK_EVERY: u32 = 64;

/// At least this many chunks are given back before the ring's index is published while frames come in: each
/// time costs a cache line that the other side has.
const GIVE_BACK: u32 = 32;

/// The receiving side of a queue.
pub(crate) struct Source {
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) receive: Frames,
    pub(crate) fill: Fills,
    /// Chunks that were given back and are not published to the kernel yet.
    pub(crate) unpublished: u32,
    pub(crate) untold: u32,
    /// The kernel may sleep until it is notified of chunks: only devices that take them themselves do.
    pub(crate) may_sleep: bool,
}

impl Source {
    /// Gives a chunk back. The ring has room for twice the chunks that its queue has: the kernel shows frames
    /// before it frees the entries of their chunks in this ring, so that each may be in it a second time.
    #[inline]
    fn give(&mut self, chunk: u32, size: usize) -> bool {
        let address = u64::from(chunk) * size as u64;
        let given = self.fill.push(address.to_ne_bytes()).is_ok();
        self.unpublished += u32::from(given);
        given
    }

    /// Publishes to the kernel what was taken and given back.
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

    /// Wakes a kernel that sleeps until it is notified of chunks.
    #[inline]
    fn wake(&self) {
        if self.may_sleep && self.fill.is_asleep() {
            // The result is of no use: the flag is checked again soon.
            let _ = sys::wake_receiver(self.socket.as_fd());
        }
    }
}

/// The receiving half of an [`XdpRail`](crate::XdpRail).
pub type XdpRx = PacketRx<Queues>;

/// The receive rings of all queues. Buffers are chunks by their numbers, and behind them those in which
/// frames of several chunks are put together.
pub struct Queues {
    pub(crate) sources: Vec<Source>,
    memory: RegionSlice,
    chunk: usize,
    /// The queue whose kernel side has a chunk, for each chunk.
    with: Box<[Option<u16>]>,
    /// Frames of several chunks.
    joins: Joins,
    /// Each empty poll has the device looked at.
    busy_poll: bool,
    /// Chunks that are given back before they are published to the kernel.
    give_back: u32,
    /// The queue that is looked at first, and polls that found nothing.
    turn: usize,
    idle: u32,
    /// What the kernel and the rings had counted at the end.
    ended: KernelCounts,
}

/// What a receiving half is made of.
pub(crate) struct Parts {
    pub(crate) sources: Vec<Source>,
    pub(crate) memory: RegionSlice,
    pub(crate) chunk: usize,
    /// How many chunks there are; the buffers for frames of several of them are behind.
    pub(crate) chunks: usize,
    /// The chunks that the fill ring of each queue begins with.
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
    /// Frames that were dropped because there was no room, or because they are too long.
    pub(crate) drops: u64,
    /// What could not be true: entries that the kernel refused, and indices.
    pub(crate) nonsense: u64,
    /// How often a zero-copy device found no chunk to fill.
    pub(crate) starved: u64,
}

/// A receiving half.
pub(crate) fn receiver(parts: Parts) -> XdpRx {
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
    let behind = (parts.chunks + BUFFERS) as u32;
    let kept = if parts.buffer == 0 { 0 } else { parts.kept_buffers };
    let queues = Queues {
        joins: Joins::new(buffers, BUFFERS, sources.len()),
        sources,
        memory: parts.memory.clone(),
        chunk: parts.chunk,
        with: with.into(),
        busy_poll: false,
        give_back: GIVE_BACK.min(least / 8),
        turn: 0,
        idle: 0,
        ended: KernelCounts::default(),
    };
    let spares = [parts.spares, behind..behind + kept as u32];
    let demux = Demux::beside_kernel(parts.own, parts.may_be_unfinished);
    PacketRx::with(queues, parts.memory, most, spares, demux)
}

impl Queues {
    /// Returns what the kernel and the rings have counted. Reads it from every socket.
    pub(crate) fn kernel_counts(&self) -> KernelCounts {
        self.sources.iter().fold(self.ended, |all, source| {
            let one = sys::counted(source.socket.as_fd()).unwrap_or_default();
            let rings = source.receive.nonsense() + source.fill.nonsense();
            // If the kernel copies and no chunk is left, it counts the frame as dropped.
            let starved = if source.may_sleep { one.starved } else { 0 };
            KernelCounts {
                drops: all.drops + one.dropped + one.ring_full,
                nonsense: all.nonsense + one.invalid + rings,
                starved: all.starved + starved,
            }
        })
    }

    /// Whether receives have a queue of the device to poll; from then on each empty poll does. Where the
    /// kernel copies, it knows only after the first frame.
    pub(crate) fn polls_busily(&mut self) -> bool {
        let mut sources = self.sources.iter();
        self.busy_poll |= sources.any(|source| sys::has_queue_to_poll(source.socket.as_fd()));
        self.busy_poll
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sources.iter().map(|source| source.socket.as_fd())
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

    /// Takes an entry of a ring: the frame goes to its channel, or its chunk goes back.
    #[inline]
    fn take(&mut self, queue: u16, (address, length, options): (u64, u32, u32), arrivals: &mut Arrivals) {
        // Chunks are powers of two.
        let number = usize::try_from(address >> self.chunk.trailing_zeros()).unwrap_or(usize::MAX);
        let inside = self.chunk - (address as usize & (self.chunk - 1));
        let goes_on = options & GOES_ON != 0;
        let known = self.with.get_mut(number);
        let Some(with) = known.filter(|with| with.is_some()) else {
            // A chunk that the kernel does not have: it cannot give it back.
            arrivals.counts.nonsense += 1;
            self.broken(queue, goes_on);
            return;
        };
        *with = None;
        let (number, at, length) = (number as u32, address as usize, length as usize);
        if length > inside {
            arrivals.counts.malformed += 1;
            self.broken(queue, goes_on);
        } else if goes_on || self.joins.is_open(queue) {
            self.take_part(queue, (at, length), goes_on, arrivals);
        } else {
            let packet = Packet {
                buffer: number,
                queue,
                at,
                length,
                is_checked: false,
                is_joined: false,
            };
            if show(packet, arrivals) {
                return;
            }
        }
        self.give(queue, number);
    }

    /// Whatever frame of several chunks the queue had begun, it does not come whole.
    #[cold]
    fn broken(&mut self, queue: u16, goes_on: bool) {
        if goes_on || self.joins.is_open(queue) {
            self.joins.break_off(queue, goes_on);
        }
    }

    /// Takes one of several chunks of a frame.
    fn take_part(&mut self, queue: u16, part: (usize, usize), goes_on: bool, arrivals: &mut Arrivals) {
        match self.joins.add(&self.memory, queue, part, goes_on) {
            Joined::Nothing => {}
            Joined::Broken => arrivals.counts.malformed += 1,
            Joined::Whole { buffer, length } => {
                let packet = Packet {
                    buffer: self.with.len() as u32 + buffer,
                    queue,
                    at: self.joins.place(buffer),
                    length,
                    is_checked: false,
                    is_joined: true,
                };
                if !show(packet, arrivals) {
                    self.joins.give(buffer);
                }
            }
        }
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

    /// The chunks that the kernel has, and the buffers of frames that are not whole.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn buffers(&self) -> impl Iterator<Item = u32> {
        let lent = self.with.iter().zip(0..).filter(|(with, _)| with.is_some());
        let here = self.with.len() as u32;
        lent.map(|(_, chunk)| chunk)
            .chain(self.joins.buffers().map(move |buffer| here + buffer))
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn has_buffers(&self) -> bool {
        self.joins.has_buffers()
    }

    /// Gives up the sockets.
    pub(crate) fn release(&mut self) {
        self.ended = self.kernel_counts();
        self.sources.clear();
    }
}

/// Shows a packet; returns whether it is a frame.
#[inline]
fn show(packet: Packet, arrivals: &mut Arrivals) -> bool {
    match arrivals.packet(packet) {
        Shown::Taken => return true,
        Shown::Dropped => {}
        Shown::Malformed => arrivals.counts.malformed += 1,
    }
    false
}

impl ReceiveQueues for Queues {
    /// Takes what has come by all queues, which serve both channels.
    #[inline]
    fn poll(&mut self, _: usize, arrivals: &mut Arrivals) {
        let count = self.sources.len();
        for at in 0..count {
            let queue = (self.turn + at) % count;
            while arrivals.wants_more() && self.joins.has_room() {
                let Some(descriptor) = self.sources[queue].receive.take() else {
                    break;
                };
                self.sources[queue].untold += 1;
                arrivals.count();
                self.take(queue as u16, unpack(&descriptor), arrivals);
            }
        }
        let found = arrivals.has_any();
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

    fn is_ready(&mut self) -> bool {
        self.sources.iter_mut().any(|source| source.receive.is_ready())
    }

    #[inline]
    fn fill(&mut self, buffer: u32, queue: u16) {
        let Some(with) = self.with.get_mut(buffer as usize) else {
            self.joins.give(buffer - self.with.len() as u32);
            return;
        };
        // After the end there is no queue to give it to.
        if let Some(source) = self.sources.get_mut(usize::from(queue))
            && source.give(buffer, self.chunk)
        {
            *with = Some(queue);
        }
    }

    #[inline]
    fn pool(&self, buffer: u32) -> usize {
        usize::from(buffer as usize >= self.with.len())
    }
}
