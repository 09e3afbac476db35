//! Frames between two datagram NICs: rings, serialisation, and every fault there is.
//!
//! ```text
//!   post ─► send ring ─► (doorbell) ─► serialised ─► depart ─┬─► lost, cut, unreachable
//!             └ reaped: up to here, in order, the memory is free  └─► link ─► frame arrives ─► receive ring
//! ```
//! A body in a region is read when the frame departs, as a device would: a sender that writes a segment again before
//! it was reaped sends the wrong bytes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use doorbell_fabric::datagram::{Channel, FrameId};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::{Body, PeerIndex, Refused};

use crate::agenda::{Due, channel_index};
use crate::config::SimConfig;
use crate::conn::fill;
use crate::state::{Kind, Net};
use crate::trace::Happened;

/// The rings of one NIC, and the peers that it can name.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) send: [SendRing; 2],
    pub(crate) receive: [ReceiveRing; 2],
    /// Ranks, by peer number.
    ranks: Vec<u32>,
    peers: BTreeMap<u32, u32>,
    /// Fresh buffers left; kept buffers give theirs back when they are dropped.
    pub(crate) spare: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
pub(crate) struct SendRing {
    places: usize,
    /// Places of the last `reserve` that were not used yet.
    reserved: usize,
    used: usize,
    posted: u64,
    pub(crate) reaped: u64,
    /// Posted since the last doorbell.
    waiting: Vec<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct ReceiveRing {
    places: usize,
    /// Places that the owner looks at since its last poll.
    pub(crate) shown: usize,
    pub(crate) arrived: VecDeque<Arrived>,
}

/// A frame in a receive ring.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) from: Option<PeerIndex>,
    pub(crate) bytes: Arc<Vec<u8>>,
}

/// A frame in a send ring or on a link.
#[derive(Debug)]
pub(crate) struct FrameInFlight {
    id: u64,
    channel: Channel,
    from: u32,
    to_rank: u32,
    link: u32,
    bytes: Arc<Vec<u8>>,
    region: Option<RegionSlice>,
    /// The link's queue had no room for it.
    dropped: bool,
}

impl Queues {
    pub(crate) fn new(config: &SimConfig) -> Self {
        let send = |places| SendRing {
            places,
            ..SendRing::default()
        };
        let receive = |places| ReceiveRing {
            places,
            ..ReceiveRing::default()
        };
        Self {
            send: [send(config.priority_ring), send(config.data_ring)],
            receive: [receive(config.priority_ring), receive(config.data_ring)],
            ranks: Vec::new(),
            peers: BTreeMap::new(),
            spare: Arc::new(AtomicUsize::new(config.spare_buffers)),
        }
    }

    /// The peer number of `rank`, made at the first call.
    pub(crate) fn open(&mut self, rank: u32) -> PeerIndex {
        let peer = *self.peers.entry(rank).or_insert_with(|| {
            self.ranks.push(rank);
            self.ranks.len() as u32 - 1
        });
        PeerIndex(peer)
    }
}

impl SendRing {
    pub(crate) fn reserve(&mut self, n: usize) -> usize {
        self.reserved = n.min(self.places.saturating_sub(self.used));
        self.reserved
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }
}

impl Net {
    pub(crate) fn post_frame(
        &mut self,
        nic: u32,
        channel: Channel,
        peer: PeerIndex,
        head: &[u8],
        body: Body<'_>,
    ) -> Result<FrameId, Refused> {
        self.check_body(head.len(), &body, self.config.mtu)?;
        let state = &self.nics[nic as usize];
        let (plane, rank) = (state.plane, state.rank);
        let to_rank = *state.queues.ranks.get(peer.index()).ok_or(Refused::PeerDown)?;
        if state.queues.send[channel_index(channel)].reserved == 0 {
            self.stats(nic).refused_full += 1;
            return Err(Refused::Full);
        }
        let link = self.link(plane, rank, to_rank);
        let mut bytes = self.buffer();
        let region = fill(&mut bytes, head, body);
        let ring = &mut self.nics[nic as usize].queues.send[channel_index(channel)];
        ring.reserved -= 1;
        ring.used += 1;
        ring.posted += 1;
        let id = ring.posted;
        let frame = self.frames.insert(FrameInFlight {
            id,
            channel,
            from: nic,
            to_rank,
            link,
            bytes,
            region,
            dropped: false,
        });
        ring.waiting.push(frame);
        Ok(FrameId(id))
    }

    /// Hands everything posted to the NIC: the priority channel first.
    pub(crate) fn ring_doorbell(&mut self, nic: u32) {
        for channel in 0..2 {
            let ring =
                |net: &mut Self| std::mem::take(&mut net.nics[nic as usize].queues.send[channel].waiting);
            let mut waiting = ring(self);
            for frame in waiting.drain(..) {
                let state = &self.frames[frame];
                let (link, region) = (state.link, state.region.as_ref());
                let length = state.bytes.len() + region.map_or(0, RegionSlice::len);
                let leaves = if self.backlog(nic, link) > self.faults(link).queue {
                    self.frames[frame].dropped = true;
                    self.nics[nic as usize].busy
                } else {
                    self.serialise(nic, link, length)
                };
                self.agenda.push(leaves, Due::Depart { frame });
            }
            self.nics[nic as usize].queues.send[channel].waiting = waiting;
        }
        self.run_due();
    }

    pub(crate) fn depart(&mut self, place: u32) {
        let frame = &mut self.frames[place];
        let (nic, link, to_rank, id) = (frame.from, frame.link, frame.to_rank, frame.id);
        let ring = &mut self.nics[nic as usize].queues.send[channel_index(frame.channel)];
        ring.used -= 1;
        ring.reaped = id;
        if let Some(slice) = frame.region.take() {
            let bytes = Arc::make_mut(&mut frame.bytes);
            let at = bytes.len();
            bytes.resize(at + slice.len(), 0);
            slice.copy_to(0, &mut bytes[at..]);
        }
        let (length, dropped) = (frame.bytes.len(), frame.dropped);
        self.stats(nic).frames_sent += 1;
        let plane = self.nics[nic as usize].plane;
        let Some(to) = self.find(Kind::Datagram, plane, to_rank, None) else {
            self.stats(nic).unreachable += 1;
            return self.drop_frame(place, nic);
        };
        self.note(Happened::Frame, nic, to, id, length);
        if dropped {
            self.stats(nic).queue_dropped += 1;
            return self.drop_frame(place, to);
        }
        if self.nics[nic as usize].ended.is_some() || !self.passes(nic, to, link) {
            self.stats(nic).unreachable += 1;
            return self.drop_frame(place, to);
        }
        let faults = self.faults(link);
        if faults.mtu.is_some_and(|mtu| length > mtu) {
            self.stats(nic).cut += 1;
            return self.drop_frame(place, to);
        }
        if self.links[link as usize].random.chance(faults.loss) {
            self.stats(nic).lost += 1;
            return self.drop_frame(place, to);
        }
        if self.links[link as usize].random.chance(faults.duplicate) {
            self.stats(nic).duplicated += 1;
            let twin = self.frames[place].twin();
            let twin = self.frames.insert(twin);
            self.launch(twin);
        }
        self.launch(place);
    }

    /// Puts a frame (or one copy of it) on its link.
    fn launch(&mut self, place: u32) {
        let (nic, link) = (self.frames[place].from, self.frames[place].link);
        let corrupt = self.faults(link).corrupt;
        let random = &mut self.links[link as usize].random;
        let bytes = &mut self.frames[place].bytes;
        if !bytes.is_empty() && random.chance(corrupt) {
            let bytes = Arc::make_mut(bytes);
            for _ in 0..=random.below(3) {
                let bit = random.below(bytes.len() as u64 * 8);
                bytes[bit as usize / 8] ^= 1 << (bit % 8);
            }
            self.stats(nic).corrupted += 1;
        }
        let at = self.transit(link, self.now);
        self.agenda.push(at, Due::Frame { frame: place });
    }

    fn drop_frame(&mut self, place: u32, to: u32) {
        if let Some(frame) = self.frames.remove(place) {
            self.note(
                Happened::FrameDropped,
                frame.from,
                to,
                frame.id,
                frame.bytes.len(),
            );
            self.recycle(frame.bytes);
        }
    }

    pub(crate) fn frame_arrives(&mut self, place: u32) {
        let frame = &self.frames[place];
        let (nic, link, to_rank, id) = (frame.from, frame.link, frame.to_rank, frame.id);
        let (from_plane, from_rank) = (self.nics[nic as usize].plane, self.nics[nic as usize].rank);
        let channel = channel_index(frame.channel);
        // Whoever has the address now: a datagram does not know of lives.
        let to = self
            .find(Kind::Datagram, from_plane, to_rank, None)
            .unwrap_or(nic);
        if !self.passes(nic, to, link) {
            self.stats(nic).unreachable += 1;
            return self.drop_frame(place, to);
        }
        let queues = &self.nics[to as usize].queues;
        let ring = &queues.receive[channel];
        if ring.arrived.len() + ring.shown >= ring.places {
            self.stats(to).overrun += 1;
            return self.drop_frame(place, to);
        }
        let from = queues.peers.get(&from_rank).map(|&peer| PeerIndex(peer));
        if let Some(frame) = self.frames.remove(place) {
            self.note(Happened::FrameArrived, nic, to, id, frame.bytes.len());
            self.stats(to).frames_delivered += 1;
            let arrived = Arrived {
                from,
                bytes: frame.bytes,
            };
            self.nics[to as usize].queues.receive[channel]
                .arrived
                .push_back(arrived);
        }
    }

    /// A NIC is no more: what waits in its rings is gone; what is on a link goes on.
    pub(crate) fn drop_frames(&mut self, nic: u32) {
        for channel in 0..2 {
            let queues = &mut self.nics[nic as usize].queues;
            queues.receive[channel].arrived.clear();
            queues.send[channel].places = 0;
            queues.send[channel].reserved = 0;
            let waiting = std::mem::take(&mut queues.send[channel].waiting);
            queues.send[channel].used -= waiting.len();
            for frame in waiting {
                self.drop_frame(frame, nic);
            }
        }
    }
}

impl FrameInFlight {
    /// The same frame once more; bytes are shared until one of the two is corrupted.
    fn twin(&self) -> Self {
        Self {
            bytes: self.bytes.clone(),
            region: None,
            ..*self
        }
    }
}
