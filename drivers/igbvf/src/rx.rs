//! The receiving half: frames lie where the device put them, and their chunks go back to it when they were looked at.

use std::net::SocketAddr;

use doorbell_fabric::datagram::{Channel, Frame, Receive};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::{PeerIndex, Refused};
use doorbell_inet::{Demux, Demuxed, Inbox, InboxFrame, KeptFrame, SpareChunks, UNKNOWN_PEER, channel_index};
use doorbell_vfio::{Block, Put, after_completion, before_doorbell};
use zerocopy::{FromBytes, IntoBytes};

use crate::desc::{
    CHECKED_TRANSPORT, DESCRIPTOR, DONE, END, RECEIVED_STATUS, ReceiveDescriptor, Received, WRONG_FRAME,
    WRONG_IP, WRONG_TRANSPORT,
};
use crate::regs::ReceiveQueue;
use crate::stats::IgbvfStats;

/// Most frames that one poll takes.
const BATCH: usize = 64;
/// So many chunks are given back at a time while frames come in: each time is a write of a register.
const GIVE_BACK: u64 = 32;
/// No chunk.
const NONE: u32 = u32::MAX;

/// Where the ring lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) entries: usize,
    pub(crate) ring: usize,
    pub(crate) chunks: usize,
    pub(crate) chunk: usize,
    /// The bus address of the first chunk.
    pub(crate) bus: u64,
    pub(crate) spare: usize,
}

/// The receiving half of an [`IgbvfRail`](crate::IgbvfRail).
pub struct IgbvfRx {
    /// `None` after the end.
    queue: Option<Block<ReceiveQueue>>,
    memory: RegionSlice,
    place: Place,
    /// Of each entry, the chunk that the device has by it.
    lent: Box<[u32]>,
    /// Chunks that the device may have next.
    fresh: Vec<u32>,
    taken: u64,
    /// The last entry was not the end of its packet, which is longer than a chunk: what follows is no beginning.
    amid: bool,
    given: u64,
    told: u64,
    inboxes: [Inbox; 2],
    spares: SpareChunks,
    pub(crate) demux: Demux,
    /// What of a descriptor's status is believed of checksums: nothing, where they are checked here.
    believes: u32,
    pub(crate) stats: IgbvfStats,
}

impl IgbvfRx {
    pub(crate) fn new(
        queue: Block<ReceiveQueue>,
        memory: RegionSlice,
        place: Place,
        own: SocketAddr,
        by_device: bool,
    ) -> Self {
        let in_ring = place.entries as u32;
        Self {
            queue: Some(queue),
            memory,
            place,
            lent: vec![NONE; place.entries].into(),
            fresh: (0..in_ring).rev().collect(),
            taken: 0,
            amid: false,
            given: 0,
            told: 0,
            inboxes: [Inbox::new(place.entries), Inbox::new(place.entries)],
            spares: SpareChunks::new(in_ring..in_ring + place.spare as u32),
            demux: Demux::new(own),
            believes: if by_device { VERDICT } else { 0 },
            stats: IgbvfStats::default(),
        }
    }

    pub(crate) fn queue(&self) -> Option<&Block<ReceiveQueue>> {
        self.queue.as_ref()
    }

    /// Begins anew, as the device does: it has let go of everything.
    pub(crate) fn restart(&mut self) {
        for at in self.taken..self.given {
            let slot = self.slot(at);
            self.fresh.push(std::mem::replace(&mut self.lent[slot], NONE));
        }
        (self.taken, self.given, self.told) = (0, 0, 0);
        self.amid = false;
    }

    /// Gives the device all chunks that are free.
    pub(crate) fn fill(&mut self) {
        self.give();
        self.tell();
    }

    /// Whether a poll would show something.
    pub(crate) fn has_more(&self) -> bool {
        self.inboxes.iter().any(Inbox::has_more) || self.is_ready()
    }

    #[inline]
    fn slot(&self, count: u64) -> usize {
        count as usize & (self.place.entries - 1)
    }

    #[inline]
    fn is_ready(&self) -> bool {
        let at = self.place.ring + self.slot(self.taken) * DESCRIPTOR + RECEIVED_STATUS;
        let status = self.memory.as_shared().read(at).map_or(0, u32::from_le_bytes);
        self.queue.is_some() && self.taken < self.given && status & DONE != 0
    }

    /// Writes descriptors for the chunks that are free. One entry is never used, or a full ring would look like an empty one.
    #[inline]
    fn give(&mut self) {
        while self.given - self.taken < self.place.entries as u64 - 1
            && let Some(chunk) = self.fresh.pop()
        {
            let descriptor = ReceiveDescriptor {
                packet: (self.place.bus + chunk as u64 * self.place.chunk as u64).into(),
                header: 0.into(),
            };
            let slot = self.slot(self.given);
            self.memory
                .write(self.place.ring + slot * DESCRIPTOR, descriptor.as_bytes());
            self.lent[slot] = chunk;
            self.given += 1;
        }
    }

    #[inline]
    fn tell(&mut self) {
        if let Some(queue) = self.queue.as_ref().filter(|_| self.told < self.given) {
            before_doorbell();
            queue.tail.put(self.slot(self.given) as u32);
            self.told = self.given;
        }
    }

    /// Takes what has come, up to a batch, and sorts it by channel.
    #[inline]
    fn pull(&mut self) {
        let mut left = BATCH;
        while left > 0 && self.is_ready() && self.inboxes.iter().all(Inbox::has_room) {
            left -= 1;
            self.take();
        }
        self.give();
        if left == BATCH || self.given - self.told >= GIVE_BACK {
            self.tell();
        }
    }

    /// One entry that the device is done with.
    #[inline]
    fn take(&mut self) {
        after_completion();
        let slot = self.slot(self.taken);
        self.taken += 1;
        let chunk = std::mem::replace(&mut self.lent[slot], NONE);
        let bytes = self.memory.as_shared().read(self.place.ring + slot * DESCRIPTOR);
        let told = bytes.and_then(|bytes: [u8; DESCRIPTOR]| Received::read_from_bytes(&bytes).ok());
        let (status, length) =
            told.map_or((0, 0), |told| (told.status.get(), usize::from(told.length.get())));
        let goes_on = std::mem::replace(&mut self.amid, status & END == 0);
        let is_whole = status & (DONE | END) == DONE | END && length <= self.place.chunk && !goes_on;
        if !is_whole {
            self.stats.nonsense += 1;
        } else if status & WRONG_FRAME != 0 {
            self.stats.malformed += 1;
        } else if self.sort(chunk, length, status) {
            return;
        }
        self.fresh.push(chunk);
    }

    /// A packet in a chunk: its frame goes to the channel. Returns whether it is one.
    #[inline]
    fn sort(&mut self, chunk: u32, length: usize, status: u32) -> bool {
        let place = self.place.chunks + chunk as usize * self.place.chunk;
        let packet = self.memory.as_shared().skip(place).take(length);
        match self
            .demux
            .classify(packet, status & self.believes == CHECKED_TRANSPORT)
        {
            Demuxed::Frame {
                channel,
                from,
                at,
                length,
                by_device,
            } => {
                self.stats.received += 1;
                self.stats.checked_by_device += u64::from(by_device);
                self.inboxes[channel].push(InboxFrame {
                    chunk,
                    queue: 0,
                    kept: false,
                    from,
                    at: (place + at) as u32,
                    length: length as u32,
                });
                return true;
            }
            Demuxed::Neighbour => {}
            Demuxed::Corrupt => self.stats.corrupt += 1,
            Demuxed::Malformed => self.stats.malformed += 1,
        }
        false
    }

    /// Gives up the queue.
    pub(crate) fn release(&mut self) {
        self.queue = None;
        self.demux.clear();
    }
}

/// What the device says of checksums.
const VERDICT: u32 = CHECKED_TRANSPORT | WRONG_TRANSPORT | WRONG_IP;

impl Receive for IgbvfRx {
    type Kept = KeptFrame;

    #[inline]
    fn poll(&mut self, channel: Channel, budget: usize) -> usize {
        let at = channel_index(channel);
        let fresh = &mut self.fresh;
        let waits = self.inboxes[at].end_poll(|entry| fresh.push(entry.chunk));
        if !waits && budget > 0 && self.queue.is_some() {
            self.pull();
        }
        self.inboxes[at].show(budget)
    }

    #[inline]
    fn frame(&self, channel: Channel, i: usize) -> Option<Frame<'_>> {
        let entry = self.inboxes[channel_index(channel)].shown(i)?;
        let bytes = self.memory.as_shared().skip(entry.at as usize);
        Some(Frame {
            from: (entry.from != UNKNOWN_PEER).then_some(PeerIndex(entry.from)),
            bytes: bytes.take(entry.length as usize),
        })
    }

    fn keep(&mut self, channel: Channel, i: usize) -> Result<KeptFrame, Refused> {
        let inbox = &mut self.inboxes[channel_index(channel)];
        let entry = *inbox.shown(i).ok_or(Refused::BadMemory)?;
        let frame = self.memory.slice(entry.at as usize, entry.length as usize);
        let (kept, fresh) = self.spares.swap(entry.chunk, frame.ok_or(Refused::BadMemory)?)?;
        inbox.keep(i, fresh);
        Ok(kept)
    }
}
