//! Frames between two datagram NICs: rings, serialisation, and every fault there is.
//!
//! ```text
//!   post ─► send ring ─► (doorbell) ─► serialised ─► depart ─┬─► lost, cut, unreachable
//!             └ reaped: up to here, in order, the memory is free  └─► link ─► frame arrives ─► receive ring
//! ```
//! A body in a region is read when the frame departs, as a device would: a sender that writes a segment again
//! before it was reaped sends the wrong bytes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use doorbell_fabric::datagram::{Channel, FrameId};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::{Body, PeerIndex, Refused};
use doorbell_fabric::pcapng::Direction;
use doorbell_fabric::time::Time;

use crate::agenda::Due;
use crate::config::{Faults, SimConfig};
use crate::conn::fill;
use crate::fault::{Aim, Effect, Fate, Marks};
use crate::pipe::Place;
use crate::state::{Kind, Link, Net};
use crate::trace::Happened;

/// The rings of one NIC, and the peers that it can name.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) send: [SendRing; 2],
    pub(crate) receive: [ReceiveRing; 2],
    /// Ranks, by peer number.
    ranks: Vec<u32>,
    peers: BTreeMap<u32, u32>,
    /// Numbers of peers that were forgotten.
    free: Vec<u32>,
    /// Fresh buffers left; kept buffers return theirs when they are dropped.
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
    pub(crate) id: u64,
    /// The frame's number in the network, and that of the frame that it is a copy of (or its own).
    pub(crate) serial: u64,
    pub(crate) origin: u64,
    pub(crate) channel: Channel,
    pub(crate) from: u32,
    pub(crate) to_rank: u32,
    pub(crate) link: u32,
    pub(crate) bytes: Arc<Vec<u8>>,
    pub(crate) region: Option<RegionSlice>,
    /// The link's queue had no room for it.
    pub(crate) dropped: bool,
    /// Whether it has been through its receiver's port.
    pub(crate) queued: bool,
    /// How many frames it still lets pass.
    pub(crate) behind: u32,
    pub(crate) marks: Marks,
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
            free: Vec::new(),
            send: [send(config.priority_ring), send(config.data_ring)],
            receive: [receive(config.priority_ring), receive(config.data_ring)],
            ranks: Vec::new(),
            peers: BTreeMap::new(),
            spare: Arc::new(AtomicUsize::new(config.spare_buffers)),
        }
    }

    /// The peer number of `rank`, made at the first call.
    pub(crate) fn open(&mut self, rank: u32) -> PeerIndex {
        let peer = *self.peers.entry(rank).or_insert_with(|| match self.free.pop() {
            Some(peer) => {
                self.ranks[peer as usize] = rank;
                peer
            }
            None => {
                self.ranks.push(rank);
                self.ranks.len() as u32 - 1
            }
        });
        PeerIndex(peer)
    }

    /// Frees a peer's number.
    pub(crate) fn forget(&mut self, peer: PeerIndex) {
        let rank = self.ranks.get(peer.index());
        if let Some(rank) = rank.filter(|rank| self.peers.get(rank) == Some(&peer.0)) {
            self.peers.remove(rank);
            self.free.push(peer.0);
        }
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
        if state.queues.send[channel.index()].reserved == 0 {
            self.stats(nic).refused_full += 1;
            return Err(Refused::Full);
        }
        let link = self.link(plane, rank, to_rank);
        let mut bytes = self.buffer();
        let region = fill(&mut bytes, head, body);
        let ring = &mut self.nics[nic as usize].queues.send[channel.index()];
        ring.reserved -= 1;
        ring.used += 1;
        ring.posted += 1;
        let id = ring.posted;
        self.frames_made += 1;
        let frame = self.frames.insert(FrameInFlight {
            id,
            serial: self.frames_made,
            origin: self.frames_made,
            channel,
            from: nic,
            to_rank,
            link,
            bytes,
            region,
            dropped: false,
            queued: false,
            behind: 0,
            marks: Marks::default(),
        });
        ring.waiting.push(frame);
        Ok(FrameId(id))
    }

    /// Reserves room for up to `n` frames.
    pub(crate) fn reserve(&mut self, nic: u32, channel: Channel, n: usize) -> usize {
        let room = self.nics[nic as usize].queues.send[channel.index()].reserve(n);
        self.stats(nic).reserves_short += u64::from(room < n);
        room
    }

    /// Passes everything posted to the NIC, and processes what is due.
    pub(crate) fn ring_doorbell(&mut self, nic: u32) {
        self.hand_over(nic);
        self.run_due();
    }

    /// The NIC takes what was posted, the priority channel first; a stalled one takes nothing.
    pub(crate) fn hand_over(&mut self, nic: u32) {
        if self.nics[nic as usize].stalled {
            return;
        }
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
    }

    pub(crate) fn depart(&mut self, place: u32) {
        let frame = &mut self.frames[place];
        let (nic, link, to_rank, id) = (frame.from, frame.link, frame.to_rank, frame.id);
        let ring = &mut self.nics[nic as usize].queues.send[frame.channel.index()];
        ring.used -= 1;
        ring.reaped = id;
        if let Some(slice) = frame.region.take() {
            let bytes = Arc::make_mut(&mut frame.bytes);
            let at = bytes.len();
            bytes.resize(at + slice.len(), 0);
            slice.copy_to(0, &mut bytes[at..]);
        }
        let length = frame.bytes.len();
        self.stats(nic).frames_sent += 1;
        let plane = self.nics[nic as usize].plane;
        let to = self.find(Kind::Datagram, plane, to_rank, None);
        self.note(Happened::Frame, nic, to.unwrap_or(nic), id, length);
        match self.set_out(place, to, link) {
            Ok((leaves, effect)) => {
                self.tap(place, nic, Direction::Out, None);
                self.multiply(place, leaves, effect);
            }
            Err(fate) => {
                self.tap(place, nic, Direction::Out, Some(fate));
                self.drop_frame(place, to.unwrap_or(nic), fate);
            }
        }
    }

    /// Whether a frame gets onto its link; then when, and what an aim does to it.
    fn set_out(&mut self, place: u32, to: Option<u32>, link: u32) -> Result<(Time, Option<Effect>), Fate> {
        let frame = &self.frames[place];
        let (nic, length) = (frame.from, frame.bytes.len());
        if frame.dropped {
            return Err(Fate::QueueFull);
        }
        let open = |to| self.nics[nic as usize].ended.is_none() && self.passes(nic, to, link);
        if !to.is_some_and(open) {
            return Err(Fate::Unreachable);
        }
        let faults = self.faults(link);
        if faults.mtu.is_some_and(|mtu| length > mtu) {
            return Err(Fate::Cut);
        }
        let effect = faults.aim.and_then(|aim| self.aimed(place, link, &aim));
        if let Some(fate) = self.links[link as usize].lose(&faults) {
            return Err(fate);
        }
        if effect == Some(Effect::Lose) {
            return Err(Fate::Aimed);
        }
        let plane = self.links[link as usize].plane;
        let leaves = match faults.trunk {
            None => self.now,
            Some((number, pipe)) => self
                .enter(Place::Trunk(plane, number), pipe, length)
                .ok_or(Fate::TrunkFull)?,
        };
        Ok((leaves, effect))
    }

    /// Returns what the aim of a link does to a frame.
    fn aimed(&mut self, place: u32, link: u32, aim: &Aim) -> Option<Effect> {
        let frame = &self.frames[place];
        if !aim.pick.takes(frame.channel, &frame.bytes) {
            return None;
        }
        let nic = frame.from;
        let state = &mut self.links[link as usize];
        state.picked += 1;
        if !aim.hits(state.picked) {
            return None;
        }
        self.stats(nic).aimed += 1;
        Some(aim.effect)
    }

    pub(crate) fn drop_frame(&mut self, place: u32, to: u32, fate: Fate) {
        if let Some(frame) = self.frames.remove(place) {
            fate.count(self.stats(frame.from));
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

    /// A frame that got as far as its receiver's port is not taken.
    fn refuse(&mut self, place: u32, to: u32, fate: Fate) {
        self.tap(place, to, Direction::In, Some(fate));
        self.drop_frame(place, to, fate);
    }

    pub(crate) fn frame_arrives(&mut self, place: u32) {
        let frame = &self.frames[place];
        let (nic, link, to_rank, id) = (frame.from, frame.link, frame.to_rank, frame.id);
        let (queued, length) = (frame.queued, frame.bytes.len());
        let (from_plane, from_rank) = (self.nics[nic as usize].plane, self.nics[nic as usize].rank);
        let channel = frame.channel.index();
        // Whichever incarnation has the address now: datagrams do not distinguish them.
        let to = self
            .find(Kind::Datagram, from_plane, to_rank, None)
            .unwrap_or(nic);
        if let Some(port) = self.faults(link).port
            && !queued
        {
            let Some(at) = self.enter(Place::Port(from_plane, to_rank), port, length) else {
                return self.refuse(place, to, Fate::PortFull);
            };
            self.frames[place].queued = true;
            self.agenda.push(at, Due::Frame { frame: place });
            return;
        }
        if !self.passes(nic, to, link) {
            return self.refuse(place, to, Fate::Unreachable);
        }
        let queues = &self.nics[to as usize].queues;
        let ring = &queues.receive[channel];
        if ring.arrived.len() + ring.shown >= ring.places {
            return self.refuse(place, to, Fate::Overrun);
        }
        let from = queues.peers.get(&from_rank).map(|&peer| PeerIndex(peer));
        if self.nics[nic as usize].ended.is_some() {
            self.stats(to).stale += 1;
            self.frames[place].marks.add(Marks::STALE);
        }
        self.tap(place, to, Direction::In, None);
        if let Some(frame) = self.frames.remove(place) {
            self.note(Happened::FrameArrived, nic, to, id, length);
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

    /// Removes a NIC: frames in its rings are lost; frames on a link continue.
    pub(crate) fn drop_frames(&mut self, nic: u32) {
        for channel in 0..2 {
            let queues = &mut self.nics[nic as usize].queues;
            queues.receive[channel].arrived.clear();
            queues.send[channel].places = 0;
            queues.send[channel].reserved = 0;
            let waiting = std::mem::take(&mut queues.send[channel].waiting);
            queues.send[channel].used -= waiting.len();
            for frame in waiting {
                self.stats(nic).frames_sent += 1;
                self.drop_frame(frame, nic, Fate::Unreachable);
            }
        }
    }
}

impl Link {
    /// Whether the next frame is lost at random.
    fn lose(&mut self, faults: &Faults) -> Option<Fate> {
        if let Some(burst) = faults.burst {
            let turn = if self.bursting { burst.end } else { burst.begin };
            self.bursting ^= self.random.chance(turn);
            if self.bursting {
                return self.random.chance(burst.loss).then_some(Fate::LostInBurst);
            }
        }
        self.random.chance(faults.loss).then_some(Fate::Lost)
    }
}
