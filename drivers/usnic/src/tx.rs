//! The sending half: frames are written with their headers into the chunks of a ring, and one write of a register has the device
//! look at all of them.
//!
//! usNIC's library copies up to 950 bytes so and gathers longer frames from the user's memory by a second descriptor. Here all
//! frames are copied: what is sent is never memory that its owner may change, and every frame takes one credit.

use doorbell_fabric::datagram::{Channel, FrameId, Transmit};
use doorbell_fabric::ether::{Headers, Mac};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::{Body, PeerIndex, Refused};
use doorbell_fabric::pcapng;
use doorbell_inet::{
    PacketSender, PeerHeaders, RemoteEnd, Tap, channel_index, for_each_part, has_too_many_parts,
};

use crate::cq::CompletionRing;
use crate::desc::SENT;
use crate::stats::UsnicStats;
use crate::wq::{Posted, SendRing};

/// Entries of a ring that are kept free for what the function itself has to say, where others have not taken them.
const OWN: usize = 2;

/// The sending half of a [`UsnicRail`](crate::UsnicRail).
pub struct UsnicTx {
    pub(crate) ways: Vec<PeerHeaders>,
    /// One for each channel; none after the end.
    pub(crate) rings: Vec<SendRing>,
    pub(crate) done: Option<CompletionRing>,
    /// The queues are off: what is posted is lost.
    pub(crate) is_off: bool,
    /// The queues run and nothing may pass: the link is down, the firmware has failed, or the vNIC takes less than we send. What
    /// is posted is lost, so that the peers see what we say of ourselves.
    pub(crate) is_down: bool,
    memory: RegionSlice,
    rooms: [usize; 2],
    pub(crate) posted: Posted,
    limit: usize,
    /// Entries of all rings.
    most: usize,
    /// The device makes the checksums.
    by_device: bool,
    pub(crate) stats: UsnicStats,
    pub(crate) tap: Option<Tap>,
}

impl UsnicTx {
    pub(crate) fn new(
        rings: Vec<SendRing>,
        done: CompletionRing,
        memory: RegionSlice,
        limit: usize,
        by_device: bool,
    ) -> Self {
        Self {
            ways: Vec::new(),
            most: rings.iter().map(SendRing::entries).sum(),
            rings,
            done: Some(done),
            is_off: true,
            is_down: false,
            memory,
            rooms: [0; 2],
            posted: [0; 2],
            limit,
            by_device,
            stats: UsnicStats::default(),
            tap: None,
        }
    }

    /// Begins anew, with all queues disabled. Room that was promised is there still: the rings are empty.
    pub(crate) fn program(&mut self) -> Result<(), doorbell_vfio::Error> {
        let posted = self.posted;
        if let Some(done) = &mut self.done {
            done.program(None)?;
        }
        for ring in &mut self.rings {
            ring.program(posted)?;
        }
        Ok(())
    }

    /// Takes back what the device has let go of.
    #[inline]
    pub(crate) fn reap(&mut self) {
        let Some(done) = &mut self.done else { return };
        // No more than there are entries: a device that writes without end is not listened to for ever.
        for _ in 0..self.most {
            let Some(entry) = done.take() else { return };
            let ring = self
                .rings
                .get_mut(entry.number())
                .filter(|_| entry.kind() == SENT);
            if !ring.is_some_and(|ring| ring.complete(entry.descriptor())) {
                self.stats.nonsense += 1;
            }
        }
    }

    /// Whether the device has let go of everything, or never will.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.reap();
        self.is_off || self.rings.iter().all(SendRing::is_empty)
    }

    /// Whether the completion queue stands still with entries behind.
    pub(crate) fn is_stuck(&self) -> bool {
        self.done.as_ref().is_some_and(CompletionRing::is_stuck)
    }

    /// Whether nothing can be posted before chunks come back, of which nothing wakes a sleeper. From queues that are off,
    /// nothing comes back.
    pub(crate) fn is_starved(&mut self) -> bool {
        self.reap();
        !self.is_off && self.rings.iter().any(|ring| ring.free() <= OWN)
    }

    /// Writes a packet; returns its length.
    #[inline]
    fn write(&self, place: usize, headers: &Headers, head: &[u8], body: Body<'_>) -> usize {
        let start = place + headers.len();
        let mut at = start;
        for_each_part(head, body, |bytes| at += self.memory.write_shared(at, bytes));
        let length = at - start;
        let before = if self.by_device {
            // Both are made from scratch by the device, whatever stands there.
            headers.without_checksums(length)
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
        self.done = None;
        self.ways.clear();
        self.rooms = [0; 2];
    }
}

impl PacketSender for UsnicTx {
    fn set_macs(&mut self, peer: usize, own: Mac, theirs: Mac) {
        self.ways[peer].set_macs(own, theirs);
    }

    fn send_own(&mut self, packet: &[u8]) -> bool {
        self.reap();
        let promised = self.rooms[1];
        let Some(ring) = self.rings.last_mut().filter(|_| !self.is_off) else {
            return false;
        };
        if ring.free() <= promised {
            return false;
        }
        let length = self.memory.write(ring.next(), packet);
        ring.post(length, false, self.posted);
        ring.doorbell();
        true
    }
}

impl Transmit for UsnicTx {
    #[inline]
    fn reserve(&mut self, channel: Channel, n: usize) -> usize {
        let at = channel_index(channel);
        if self
            .rings
            .get(at)
            .is_some_and(|ring| ring.free().saturating_sub(OWN) < n)
        {
            self.reap();
        }
        self.rooms[at] = match self.rings.get(at) {
            Some(ring) => n.min(ring.free().saturating_sub(OWN)),
            None => 0,
        };
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
        if !way.is_known || self.is_off || self.is_down {
            // Frames may be lost, and this one is.
            self.stats.unresolved += 1;
            self.rings[at].skip(self.posted);
            return Ok(id);
        }
        let place = self.rings[at].next();
        let length = self.write(place, &way.headers[at], head, body);
        if self.tap.is_some() {
            self.show(place, length, at, peer);
        }
        self.rings[at].post(length, self.by_device, self.posted);
        self.stats.sent += 1;
        Ok(id)
    }

    #[inline]
    fn doorbell(&mut self) {
        // The queues are off, and the function may be in the middle of a reset: what was posted is lost.
        if self.is_off {
            return;
        }
        for ring in &mut self.rings {
            self.stats.doorbells += u64::from(ring.doorbell());
        }
    }

    #[inline]
    fn reaped(&mut self, channel: Channel) -> FrameId {
        let at = channel_index(channel);
        self.reap();
        FrameId(self.rings.get(at).map_or(self.posted[at], |ring| ring.reaped[at]))
    }
}
