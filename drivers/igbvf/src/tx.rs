//! The sending half: frames are written with their headers into the chunks of a ring, and one write of a register has the device
//! look at all of them.

use doorbell_fabric::datagram::{Channel, FrameId, Transmit};
use doorbell_fabric::ether::{Headers, Mac};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::{Body, PeerIndex, Refused};
use doorbell_fabric::pcapng;
use doorbell_inet::{
    PacketSender, PeerHeaders, RemoteEnd, Tap, channel_index, for_each_part, has_too_many_parts,
};

use crate::ring::SendRing;
use crate::stats::IgbvfStats;

/// Entries of a ring that are kept free for what the function itself has to say, where others have not taken them.
const OWN: usize = 2;

/// The sending half of an [`IgbvfRail`](crate::IgbvfRail).
pub struct IgbvfTx {
    pub(crate) ways: Vec<PeerHeaders>,
    /// One for each channel, or one for both; none after the end.
    pub(crate) rings: Vec<SendRing>,
    /// The physical function has turned the queues off: what is posted is lost.
    pub(crate) is_off: bool,
    memory: RegionSlice,
    rooms: [usize; 2],
    posted: [u64; 2],
    limit: usize,
    /// The device makes the checksums.
    by_device: bool,
    pub(crate) stats: IgbvfStats,
    pub(crate) tap: Option<Tap>,
}

impl IgbvfTx {
    pub(crate) fn new(rings: Vec<SendRing>, memory: RegionSlice, limit: usize, by_device: bool) -> Self {
        Self {
            ways: Vec::new(),
            rings,
            is_off: false,
            memory,
            rooms: [0; 2],
            posted: [0; 2],
            limit,
            by_device,
            stats: IgbvfStats::default(),
            tap: None,
        }
    }

    /// The ring of a channel.
    #[inline]
    fn ring(&self, channel: usize) -> usize {
        channel.min(self.rings.len().saturating_sub(1))
    }

    /// Whether the device has let go of everything, or never will.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.rings.iter_mut().for_each(SendRing::reap);
        self.is_off || self.rings.iter().all(SendRing::is_empty)
    }

    /// Begins anew, as the device does: it has let go of everything. Room that was promised is there still: the rings are empty.
    pub(crate) fn restart(&mut self) {
        let posted = self.posted;
        self.rings.iter_mut().for_each(|ring| ring.restart(posted));
    }

    /// Whether nothing can be posted before chunks come back, of which nothing wakes a sleeper. From queues that are off,
    /// nothing comes back.
    pub(crate) fn is_starved(&mut self) -> bool {
        !self.is_off
            && self.rings.iter_mut().any(|ring| {
                ring.reap();
                ring.free() <= OWN
            })
    }

    /// Writes a packet; returns its length.
    #[inline]
    fn write(&self, place: usize, headers: &Headers, head: &[u8], body: Body<'_>) -> usize {
        let start = place + headers.len();
        let mut at = start;
        for_each_part(head, body, |bytes| at += self.memory.write_shared(at, bytes));
        let length = at - start;
        let before = if self.by_device {
            headers.with_partial_checksum(length)
        } else {
            // What was written is summed up, and not what it was copied from, which others may change.
            let sum = self.memory.as_shared().skip(start).take(length).sum();
            headers.for_frame(length, Some(sum.into()))
        };
        self.memory.write(place, &before);
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
            tap.frame(
                pcapng::Way::Out,
                channel,
                RemoteEnd::Peer(peer.0),
                &frame.to_vec(),
            );
        }
    }

    /// Gives up the rings and everything that waits in them.
    pub(crate) fn release(&mut self) {
        self.rings.clear();
        self.ways.clear();
        self.rooms = [0; 2];
    }
}

impl PacketSender for IgbvfTx {
    fn set_macs(&mut self, peer: usize, own: Mac, theirs: Mac) {
        self.ways[peer].set_macs(own, theirs);
    }

    fn send_own(&mut self, packet: &[u8]) -> bool {
        let promised = match self.rings.len() {
            1 => self.rooms[0] + self.rooms[1],
            _ => self.rooms[1],
        };
        let Some(ring) = self.rings.last_mut().filter(|_| !self.is_off) else {
            return false;
        };
        ring.reap();
        if ring.free() <= promised {
            return false;
        }
        let length = self.memory.write(ring.next(), packet);
        ring.post(length, false, self.posted);
        ring.doorbell();
        true
    }
}

impl Transmit for IgbvfTx {
    #[inline]
    fn reserve(&mut self, channel: Channel, n: usize) -> usize {
        let at = channel_index(channel);
        let (ring, shared) = (self.ring(at), self.rings.len() == 1);
        let others = if shared { self.rooms[1 - at] } else { 0 };
        let Some(ring) = self.rings.get_mut(ring) else {
            return 0;
        };
        let left = others + OWN;
        if ring.free().saturating_sub(left) < n {
            ring.reap();
        }
        self.rooms[at] = n.min(ring.free().saturating_sub(left));
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
        let at = channel_index(channel);
        let way = self.ways.get(peer.index()).ok_or(Refused::PeerDown)?;
        self.rooms[at] = self.rooms[at].checked_sub(1).ok_or(Refused::Full)?;
        self.posted[at] += 1;
        let id = FrameId(self.posted[at]);
        let ring = self.ring(at);
        if !way.is_known || self.is_off {
            // Frames may be lost, and this one is.
            self.stats.unresolved += 1;
            self.rings[ring].skip(self.posted);
            return Ok(id);
        }
        let place = self.rings[ring].next();
        let length = self.write(place, &way.headers[at], head, body);
        if self.tap.is_some() {
            self.show(place, length, at, peer);
        }
        self.rings[ring].post(length, self.by_device, self.posted);
        self.stats.sent += 1;
        Ok(id)
    }

    #[inline]
    fn doorbell(&mut self) {
        for ring in &mut self.rings {
            self.stats.doorbells += u64::from(ring.doorbell());
        }
    }

    #[inline]
    fn reaped(&mut self, channel: Channel) -> FrameId {
        let at = channel_index(channel);
        let ring = self.ring(at);
        match self.rings.get_mut(ring) {
            Some(ring) => {
                ring.reap();
                FrameId(ring.reaped[at])
            }
            None => FrameId(self.posted[at]),
        }
    }
}
