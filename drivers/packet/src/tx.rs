//! The sending half: frames are written with their headers into the buffers of a ring, and one write of a
//! register has the card look at all of them.

use doorbell_fabric::datagram::{Channel, FrameId, Transmit};
use doorbell_fabric::ether::{Headers, Mac, Packed};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::{Body, PeerIndex, Refused};
use doorbell_fabric::pcapng;
use doorbell_inet::{PacketSender, PeerHeaders, RemoteEnd, Tap, for_each_part, has_too_many_parts};

use crate::ring::{Posted, Slots};

/// Entries of a ring that are kept free for the rail's own packets (ARP, neighbour discovery), where frames
/// have not taken them.
const OWN: usize = 2;
/// The channel by whose ring those are sent: urgent frames do not wait for them.
const OWN_CHANNEL: usize = 1;

/// One send ring of a card: its descriptors and its doorbell. Each channel has one.
pub trait SendRing: Sized {
    /// Where the card reports on all rings of a rail; `()` where it does so in the descriptors.
    type Completions;

    /// Whether both channels may have to share one ring, since the card has no second one.
    const MAY_SHARE: bool = false;

    /// The ring's slots.
    fn slots(&self) -> &Slots;

    /// The ring's slots, mutably.
    fn slots_mut(&mut self) -> &mut Slots;

    /// Writes the descriptor of the packet of `length` bytes in the next slot's buffer, and
    /// [pushes](Slots::push) it with `posted`. `checksums`: the card is to compute the packet's checksums,
    /// where the ring is set up for it. There is a free slot. Nothing is announced.
    fn post(&mut self, length: usize, checksums: bool, posted: Posted);

    /// Announces everything posted to the card, and has it report when it is done with the last entry;
    /// returns whether there was anything.
    fn doorbell(&mut self) -> bool;

    /// Takes back what the card has released of the ring `at`, or of all rings where they report together;
    /// returns how many of the reports cannot be true. Bounded, whatever the card writes.
    fn reap(rings: &mut [Self], at: usize, completions: &mut Self::Completions) -> u64;

    /// The headers of a packet whose checksums the card computes.
    fn headers(headers: &Headers, length: usize) -> Packed;
}

/// What the sending half counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Frames put into a ring.
    pub sent: u64,
    /// Doorbells rung for frames.
    pub doorbells: u64,
    /// Frames dropped because the next hop's hardware address is not known (yet), or because the queues are
    /// off.
    pub unresolved: u64,
    /// Reports of the card that cannot be true.
    pub nonsense: u64,
}

/// The sending half of a [`PacketRail`](crate::PacketRail).
pub struct PacketTx<R: SendRing> {
    pub(crate) peers: Vec<PeerHeaders>,
    /// One ring for each channel, or one for both; none after the end.
    pub rings: Vec<R>,
    /// Where they report; `None` after the end.
    pub completions: Option<R::Completions>,
    /// The queues are off: what is posted is lost.
    pub is_off: bool,
    /// The queues are on and nothing may be sent: what is posted is lost.
    pub is_down: bool,
    memory: RegionSlice,
    /// Frames that may still be posted, of each channel.
    rooms: [usize; 2],
    posted: Posted,
    limit: usize,
    checksums: bool,
    pub(crate) counts: SendCounts,
    pub(crate) tap: Option<Tap>,
}

impl<R: SendRing> PacketTx<R> {
    /// Makes the sending half of these rings, whose buffers are in `memory`, for frames of up to `limit`
    /// bytes. `checksums`: the card computes checksums.
    pub fn new(
        rings: Vec<R>,
        completions: R::Completions,
        memory: RegionSlice,
        limit: usize,
        checksums: bool,
    ) -> Self {
        Self {
            peers: Vec::new(),
            rings,
            completions: Some(completions),
            is_off: false,
            is_down: false,
            memory,
            rooms: [0; 2],
            posted: [0; 2],
            limit,
            checksums,
            counts: SendCounts::default(),
            tap: None,
        }
    }

    /// Frames posted so far: a card that was reset has released all of them. Room that was promised before is
    /// still there, since the rings are empty.
    pub fn posted(&self) -> Posted {
        self.posted
    }

    /// The ring of a channel.
    #[inline]
    fn ring(&self, channel: usize) -> usize {
        if R::MAY_SHARE {
            channel.min(self.rings.len().saturating_sub(1))
        } else {
            channel
        }
    }

    /// Whether both channels use one ring.
    #[inline]
    fn is_shared(&self) -> bool {
        R::MAY_SHARE && self.rings.len() == 1
    }

    /// Takes back what the card has released of a ring, or of all.
    #[inline]
    pub fn reap(&mut self, ring: usize) {
        if let Some(completions) = &mut self.completions {
            self.counts.nonsense += R::reap(&mut self.rings, ring, completions);
        }
    }

    fn reap_all(&mut self) {
        (0..self.rings.len()).for_each(|ring| self.reap(ring));
    }

    /// Whether the card has released everything, or never will.
    pub fn is_settled(&mut self) -> bool {
        self.reap_all();
        self.is_off || self.rings.iter().all(|ring| ring.slots().is_empty())
    }

    /// Whether nothing can be posted before buffers come back, which wakes no sleeper. From queues that are
    /// off, nothing comes back.
    pub(crate) fn is_starved(&mut self) -> bool {
        self.reap_all();
        !self.is_off && self.rings.iter().any(|ring| ring.slots().free() <= OWN)
    }

    /// Writes a packet; returns its length.
    #[inline]
    fn write(&self, place: usize, headers: &Headers, head: &[u8], body: Body<'_>) -> usize {
        let start = place + headers.len();
        let mut at = start;
        for_each_part(head, body, |bytes| at += self.memory.write_shared(at, bytes));
        let length = at - start;
        let before = if self.checksums {
            R::headers(headers, length)
        } else {
            // The sum is of what was written, and not of its source, which others may change meanwhile.
            let sum = self.memory.as_shared().skip(start).take(length).sum();
            headers.for_frame(length, Some(sum.into()))
        };
        self.memory.write(place, &before);
        headers.len() + length
    }

    #[cold]
    fn capture(&self, place: usize, length: usize, channel: usize, peer: PeerIndex) {
        if let Some(tap) = &self.tap {
            let headers = self.peers[peer.index()].headers[channel].len();
            let frame = self
                .memory
                .as_shared()
                .skip(place + headers)
                .take(length - headers);
            tap.frame(
                pcapng::Direction::Out,
                channel,
                RemoteEnd::Peer(peer.0),
                &frame.to_vec(),
            );
        }
    }

    /// Drops the rings and everything in them.
    pub fn release(&mut self) {
        self.rings.clear();
        self.completions = None;
        self.peers.clear();
        self.rooms = [0; 2];
    }
}

impl<R: SendRing> PacketSender for PacketTx<R> {
    fn set_macs(&mut self, peer: usize, own: Mac, theirs: Mac) {
        self.peers[peer].set_macs(own, theirs);
    }

    fn send_own(&mut self, packet: &[u8]) -> bool {
        let at = self.ring(OWN_CHANNEL);
        self.reap(at);
        let promised = if self.is_shared() {
            self.rooms[0] + self.rooms[1]
        } else {
            self.rooms[OWN_CHANNEL]
        };
        let Some(ring) = self.rings.get_mut(at).filter(|_| !self.is_off) else {
            return false;
        };
        if ring.slots().free() <= promised {
            return false;
        }
        let length = self.memory.write(ring.slots().buffer(), packet);
        ring.post(length, false, self.posted);
        ring.doorbell();
        true
    }
}

impl<R: SendRing> Transmit for PacketTx<R> {
    #[inline]
    fn reserve(&mut self, channel: Channel, n: usize) -> usize {
        let channel = channel.index();
        let at = self.ring(channel);
        let others = if self.is_shared() {
            self.rooms[1 - channel]
        } else {
            0
        };
        let left = others + OWN;
        let free = |rings: &[R]| {
            rings
                .get(at)
                .map_or(0, |ring| ring.slots().free())
                .saturating_sub(left)
        };
        if free(&self.rings) < n {
            self.reap(at);
        }
        let room = n.min(free(&self.rings));
        self.rooms[channel] = room;
        room
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
        let channel = channel.index();
        let to = self.peers.get(peer.index()).ok_or(Refused::PeerDown)?;
        self.rooms[channel] = self.rooms[channel].checked_sub(1).ok_or(Refused::Full)?;
        self.posted[channel] += 1;
        let id = FrameId(self.posted[channel]);
        let at = self.ring(channel);
        if !to.is_known || self.is_off || self.is_down {
            // Frames may be lost, and this one is.
            self.counts.unresolved += 1;
            self.rings[at].slots_mut().skip(self.posted);
            return Ok(id);
        }
        let place = self.rings[at].slots().buffer();
        let length = self.write(place, &to.headers[channel], head, body);
        if self.tap.is_some() {
            self.capture(place, length, channel, peer);
        }
        self.rings[at].post(length, self.checksums, self.posted);
        self.counts.sent += 1;
        Ok(id)
    }

    #[inline]
    fn doorbell(&mut self) {
        // If the queues are off, the card may be in the middle of a reset: posted frames are lost.
        if self.is_off {
            return;
        }
        for ring in &mut self.rings {
            self.counts.doorbells += u64::from(ring.doorbell());
        }
    }

    #[inline]
    fn reaped(&mut self, channel: Channel) -> FrameId {
        let channel = channel.index();
        let at = self.ring(channel);
        self.reap(at);
        let ring = self.rings.get(at);
        FrameId(ring.map_or(self.posted[channel], |ring| ring.slots().reaped(channel)))
    }
}
