//! The receiving half: frames lie where the card put them, and their buffers go back to it when they were
//! looked at.

use std::net::SocketAddr;
use std::ops::Range;

use doorbell_fabric::datagram::{Channel, Frame, Receive};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::{PeerIndex, Refused};
use doorbell_inet::{Demux, Demuxed, Inbox, InboxFrame, KeptFrame, SpareChunks, UNKNOWN_PEER};

/// Most entries that one poll takes off the rings.
const BATCH: usize = 64;

/// The receive rings of a card, for all channels together.
pub trait ReceiveQueues {
    /// Takes what has come, at most as long as `arrivals` [wants more](Arrivals::wants_more), and shows each
    /// packet to it ([`Arrivals::packet`]); looks at the ring of `channel` first, where each has one. A
    /// buffer whose packet is not taken, or whose entry cannot be true, is given back at once. At the end
    /// buffers that were given back are announced to the card: all of them if nothing had come, whole batches
    /// otherwise, as each time is a write of a register.
    fn poll(&mut self, channel: usize, arrivals: &mut Arrivals);

    /// Whether a poll would find something.
    fn is_ready(&mut self) -> bool;

    /// Gives a buffer back that came by a queue, which the next `poll` hands to the card at the latest.
    fn fill(&mut self, buffer: u32, queue: u16);

    /// Returns which of the two pools of spare buffers takes the place of this one when its frame is kept.
    #[inline]
    fn pool(&self, _buffer: u32) -> usize {
        0
    }
}

/// What the receiving half counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounts {
    /// Frames that were received.
    pub received: u64,
    /// Frames whose UDP checksum was wrong.
    pub corrupt: u64,
    /// Of the frames received, those whose checksum the card had checked.
    pub checked_by_device: u64,
    /// Packets that are no whole datagram for this rail, and no request for its address.
    pub malformed: u64,
    /// What the card wrote and cannot be true.
    pub nonsense: u64,
    /// Of the frames received, those of senders that are no peers.
    pub strangers: u64,
    /// Of the frames received, those whose checksum their sender left to a device that they never passed.
    pub unfinished: u64,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// It is a frame, and its buffer is in use until it was looked at.
    Taken,
    /// It is none for a channel, and was counted where it is not what it should be; its buffer is free.
    Dropped,
    /// It is no datagram and no neighbour's message, and was not counted: its driver may know a reason.
    Malformed,
}

/// A packet in the rail's memory.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// The number of its buffer.
    pub buffer: u32,
    /// The queue that it came by, where the card has several that are filled apart.
    pub queue: u16,
    /// The offset of its first byte.
    pub at: usize,
    /// The number of its bytes.
    pub length: usize,
    /// The card has checked its checksums and found them right.
    pub is_checked: bool,
    /// It was put together from several buffers, so no link has padded it.
    pub is_joined: bool,
}

/// The packets of a poll, sorted by channel.
pub struct Arrivals {
    memory: RegionSlice,
    left: usize,
    inboxes: [Inbox; 2],
    pub(crate) demux: Demux,
    /// What is counted.
    pub counts: ReceiveCounts,
}

impl Arrivals {
    /// Whether a batch is not full, and both channels have room for one more frame.
    #[inline]
    #[must_use]
    pub fn wants_more(&self) -> bool {
        self.left > 0 && self.inboxes.iter().all(Inbox::has_room)
    }

    /// Counts an entry that was taken off a ring, whatever it holds.
    #[inline]
    pub fn count(&mut self) {
        self.left -= 1;
    }

    /// Whether any entry was counted in this poll.
    #[inline]
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.left < BATCH
    }

    /// Shows a packet.
    #[inline]
    pub fn packet(&mut self, packet: Packet) -> Shown {
        let bytes = self.memory.as_shared().skip(packet.at).take(packet.length);
        match self.demux.classify(bytes, packet.is_checked, packet.is_joined) {
            Demuxed::Frame {
                channel,
                from,
                at,
                length,
                by_device,
            } => {
                self.counts.received += 1;
                self.counts.checked_by_device += u64::from(by_device);
                self.inboxes[channel].push(InboxFrame {
                    chunk: packet.buffer,
                    queue: packet.queue,
                    kept: false,
                    from,
                    at: (packet.at + at) as u32,
                    length: length as u32,
                });
                Shown::Taken
            }
            Demuxed::Neighbour => Shown::Dropped,
            Demuxed::Corrupt => {
                self.counts.corrupt += 1;
                Shown::Dropped
            }
            Demuxed::Malformed => Shown::Malformed,
        }
    }
}

/// The receiving half of a [`PacketRail`](crate::PacketRail).
pub struct PacketRx<Q> {
    /// The card's rings.
    pub queues: Q,
    /// The queues are off: nothing is taken from them.
    pub is_off: bool,
    pub(crate) arrivals: Arrivals,
    spares: [SpareChunks; 2],
}

impl<Q: ReceiveQueues> PacketRx<Q> {
    /// Makes the receiving half of these rings, whose buffers are in `memory`: numbers 0 to `buffers` are for
    /// the rings, and `spare` more for frames that are kept. `own` is the socket of the priority channel; the
    /// data channel has the next port.
    pub fn new(queues: Q, memory: RegionSlice, (buffers, spare): (usize, usize), own: SocketAddr) -> Self {
        let first = buffers as u32;
        let spares = [first..first + spare as u32, 0..0];
        Self::with(queues, memory, buffers, spares, Demux::new(own))
    }

    /// Makes one with two [pools](ReceiveQueues::pool) of spare buffers, for at most `frames` frames at a
    /// time on each channel.
    pub fn with(
        queues: Q,
        memory: RegionSlice,
        frames: usize,
        spares: [Range<u32>; 2],
        demux: Demux,
    ) -> Self {
        Self {
            queues,
            is_off: false,
            arrivals: Arrivals {
                memory,
                left: BATCH,
                inboxes: [Inbox::new(frames), Inbox::new(frames)],
                demux,
                counts: ReceiveCounts::default(),
            },
            spares: spares.map(SpareChunks::new),
        }
    }

    /// Whether a poll would show something.
    pub fn has_more(&mut self) -> bool {
        self.arrivals.inboxes.iter().any(Inbox::has_more) || !self.is_off && self.queues.is_ready()
    }

    /// Returns the counters so far.
    pub fn counts(&self) -> ReceiveCounts {
        let demux = &self.arrivals.demux;
        ReceiveCounts {
            strangers: demux.unknown_senders,
            unfinished: demux.partial_checksums,
            ..self.arrivals.counts
        }
    }

    /// Returns what is known of its senders.
    pub fn demux(&mut self) -> &mut Demux {
        &mut self.arrivals.demux
    }

    /// The buffers in which frames wait, and the spare ones: all that the card and its driver do not have.
    pub fn buffers(&self) -> impl Iterator<Item = u32> {
        let waiting = self.arrivals.inboxes.iter().flat_map(Inbox::chunks);
        waiting.chain(self.spares.iter().flat_map(SpareChunks::chunks))
    }

    /// Stops receiving, and forgets all peers.
    pub fn release(&mut self) {
        self.is_off = true;
        self.arrivals.demux.clear();
    }
}

impl<Q: ReceiveQueues> Receive for PacketRx<Q> {
    type Kept = KeptFrame;

    #[inline]
    fn poll(&mut self, channel: Channel, budget: usize) -> usize {
        let channel = channel.index();
        let queues = &mut self.queues;
        let waits = self.arrivals.inboxes[channel].end_poll(|entry| queues.fill(entry.chunk, entry.queue));
        if !waits && budget > 0 && !self.is_off {
            self.arrivals.left = BATCH;
            self.queues.poll(channel, &mut self.arrivals);
        }
        self.arrivals.inboxes[channel].show(budget)
    }

    #[inline]
    fn frame(&self, channel: Channel, i: usize) -> Option<Frame<'_>> {
        let entry = self.arrivals.inboxes[channel.index()].shown(i)?;
        let bytes = self.arrivals.memory.as_shared().skip(entry.at as usize);
        Some(Frame {
            from: (entry.from != UNKNOWN_PEER).then_some(PeerIndex(entry.from)),
            bytes: bytes.take(entry.length as usize),
        })
    }

    fn keep(&mut self, channel: Channel, i: usize) -> Result<KeptFrame, Refused> {
        let inbox = &mut self.arrivals.inboxes[channel.index()];
        let entry = *inbox.shown(i).ok_or(Refused::BadMemory)?;
        let frame = self
            .arrivals
            .memory
            .slice(entry.at as usize, entry.length as usize);
        let spares = &mut self.spares[self.queues.pool(entry.chunk)];
        let (kept, fresh) = spares.swap(entry.chunk, frame.ok_or(Refused::BadMemory)?)?;
        inbox.keep(i, fresh);
        Ok(kept)
    }
}
