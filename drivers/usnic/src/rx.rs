//! The receiving half: frames lie where the device put them, and their chunks go back to it when they were looked at.
//!
//! Each channel has a receive queue of its own, which a filter steers its frames to; where the function has three completion
//! queues, each also has one of those. (usNIC gives each channel one completion queue for what is sent and received. Here the two
//! halves of a rail are looked at apart, so what is sent has its own; the rule behind, room for everything at once, is kept.)
//!
//! Source: libfabric `usd_poll.c`.

use std::net::SocketAddr;

use doorbell_fabric::datagram::{Channel, Frame, Receive};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::{PeerIndex, Refused};
use doorbell_inet::{Demux, Demuxed, Inbox, InboxFrame, KeptFrame, SpareChunks, UNKNOWN_PEER, channel_index};

use crate::cq::CompletionRing;
use crate::desc::{CLASSIFIED, Completion, RECEIVED, State};
use crate::rq::{ReceiveRing, Taken};
use crate::stats::UsnicStats;

/// Most frames that one poll takes.
const BATCH: usize = 64;
/// Ethernet's addresses, and the tag that may follow.
const MACS: usize = 12;
const TAG: usize = 4;

/// Where the chunks are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) chunks: usize,
    pub(crate) chunk: usize,
    /// Bytes of a chunk that the device may write.
    pub(crate) room: usize,
    pub(crate) in_rings: usize,
    pub(crate) spare: usize,
}

/// The receiving half of a [`UsnicRail`](crate::UsnicRail).
pub struct UsnicRx {
    /// By channel; none after the end.
    pub(crate) rings: Vec<ReceiveRing>,
    /// One for each channel, or one for both.
    pub(crate) done: Vec<CompletionRing>,
    memory: RegionSlice,
    place: Place,
    /// An ordinary vNIC reports frames by another type.
    accepts_plain: bool,
    /// The device's word on checksums counts.
    believes: bool,
    /// Chunks that the device may have next.
    fresh: Vec<u32>,
    inboxes: [Inbox; 2],
    spares: SpareChunks,
    pub(crate) demux: Demux,
    /// The queues are off: nothing is taken from them or given to them.
    pub(crate) is_off: bool,
    /// The device tells of its queues what cannot be: they have to be made anew.
    pub(crate) is_astray: bool,
    pub(crate) stats: UsnicStats,
}

impl UsnicRx {
    pub(crate) fn new(
        rings: Vec<ReceiveRing>,
        done: Vec<CompletionRing>,
        memory: RegionSlice,
        place: Place,
        own: SocketAddr,
        (believes, accepts_plain): (bool, bool),
    ) -> Self {
        let in_rings = place.in_rings as u32;
        Self {
            rings,
            done,
            memory,
            place,
            accepts_plain,
            believes,
            fresh: (0..in_rings).rev().collect(),
            inboxes: [Inbox::new(place.in_rings), Inbox::new(place.in_rings)],
            spares: SpareChunks::new(in_rings..in_rings + place.spare as u32),
            demux: Demux::new(own),
            is_off: true,
            is_astray: false,
            stats: UsnicStats::default(),
        }
    }

    /// Begins anew, with all queues disabled.
    pub(crate) fn program(&mut self, interrupts: &[Option<u32>]) -> Result<(), doorbell_vfio::Error> {
        for (number, done) in self.done.iter_mut().enumerate() {
            done.program(interrupts.get(number).copied().flatten())?;
        }
        for ring in &mut self.rings {
            ring.program(&mut self.fresh)?;
        }
        self.is_astray = false;
        Ok(())
    }

    /// Gives the device all chunks that are free, and tells it.
    pub(crate) fn fill(&mut self) {
        self.give();
        self.rings.iter_mut().for_each(ReceiveRing::tell);
    }

    /// The shorter ring first: what is left over is the longer one's, whoever has kept how much.
    #[inline]
    fn give(&mut self) {
        for ring in &mut self.rings {
            ring.give(&mut self.fresh);
        }
    }

    /// Whether a poll would show something.
    pub(crate) fn has_more(&self) -> bool {
        self.inboxes.iter().any(Inbox::has_more)
            || !self.is_off && self.done.iter().any(CompletionRing::is_ready)
    }

    /// Whether a completion queue stands still with entries behind.
    pub(crate) fn is_stuck(&self) -> bool {
        self.done.iter().any(CompletionRing::is_stuck)
    }

    /// Takes what has come by a channel's completion queue, and by the other one where nothing has, and sorts it by channel.
    #[inline]
    fn pull(&mut self, channel: usize) {
        let mut left = BATCH;
        let count = self.done.len();
        for turn in 0..count {
            self.pull_from((channel + turn) % count, &mut left);
            if left < BATCH {
                break;
            }
        }
        self.give();
        for ring in &mut self.rings {
            if left == BATCH || ring.has_batch() {
                ring.tell();
            }
        }
    }

    #[inline]
    fn pull_from(&mut self, number: usize, left: &mut usize) {
        while *left > 0 && self.inboxes.iter().all(Inbox::has_room) {
            let Some(entry) = self.done[number].take() else {
                return;
            };
            *left -= 1;
            self.take(number, &entry);
        }
    }

    /// One entry that the device wrote.
    #[inline]
    fn take(&mut self, number: usize, entry: &Completion) {
        let is_frame = entry.kind() == CLASSIFIED || self.accepts_plain && entry.kind() == RECEIVED;
        let queue = entry.number();
        let of_this = |ring: &&mut ReceiveRing| ring.cq() as usize == number;
        let ring = self.rings.get_mut(queue).filter(of_this).filter(|_| is_frame);
        let chunk = match ring.map(|ring| ring.take(entry.descriptor())) {
            Some(Taken::Chunk(chunk)) => chunk,
            other => return self.strange(other),
        };
        if !entry.is_whole() || entry.length() > self.place.room {
            self.stats.nonsense += 1;
        } else {
            let is_taken = match entry.state() {
                State::Good => self.sort(chunk, entry.length(), self.believes),
                // Neighbours' words have no checksums that the device knows of. All others are looked at here.
                State::Unchecked | State::Doubtful => self.sort(chunk, entry.length(), false),
                State::Cut => {
                    self.stats.cut += 1;
                    false
                }
                State::Spoilt => {
                    self.stats.spoilt += 1;
                    false
                }
            };
            if is_taken {
                return;
            }
        }
        self.fresh.push(chunk);
    }

    /// An entry that cannot be. Where frames are missing before it, the device and we do not mean the same chunks any more.
    #[cold]
    fn strange(&mut self, taken: Option<Taken>) {
        self.stats.nonsense += 1;
        self.is_astray |= taken == Some(Taken::Gap);
    }

    /// A packet in a chunk: its frame goes to the channel. Returns whether it is one.
    #[inline]
    fn sort(&mut self, chunk: u32, length: usize, believed: bool) -> bool {
        let place = self.place.chunks + chunk as usize * self.place.chunk;
        let packet = self.memory.as_shared().skip(place).take(length);
        match self.demux.classify(packet, believed) {
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
            Demuxed::Malformed if self.untag(place, length) => {
                // The same without its tag; nobody but us has looked at it behind that.
                return self.sort_untagged(chunk, length - TAG);
            }
            Demuxed::Malformed => self.stats.malformed += 1,
        }
        false
    }

    /// A packet that came with the tag of VLAN 0, which a vNIC in trunk mode puts on everything, is moved together over it.
    #[cold]
    fn untag(&self, place: usize, length: usize) -> bool {
        let head = self
            .memory
            .as_shared()
            .skip(place)
            .take(length)
            .read::<{ MACS + TAG }>(0);
        let Some(head) = head.filter(|head| {
            head[MACS..MACS + 2] == [0x81, 0] && head[MACS + 2] & 0xf == 0 && head[MACS + 3] == 0
        }) else {
            return false;
        };
        self.memory.write(place + TAG, &head[..MACS]);
        true
    }

    #[cold]
    fn sort_untagged(&mut self, chunk: u32, length: usize) -> bool {
        let place = self.place.chunks + chunk as usize * self.place.chunk + TAG;
        let packet = self.memory.as_shared().skip(place).take(length);
        match self.demux.classify(packet, false) {
            Demuxed::Frame {
                channel,
                from,
                at,
                length,
                ..
            } => {
                self.stats.received += 1;
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

    /// Gives up the queues.
    pub(crate) fn release(&mut self) {
        self.is_off = true;
        self.rings.clear();
        self.done.clear();
        self.demux.clear();
    }
}

impl Receive for UsnicRx {
    type Kept = KeptFrame;

    #[inline]
    fn poll(&mut self, channel: Channel, budget: usize) -> usize {
        let at = channel_index(channel);
        let fresh = &mut self.fresh;
        let waits = self.inboxes[at].end_poll(|entry| fresh.push(entry.chunk));
        if !waits && budget > 0 && !self.is_off {
            self.pull(at);
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
