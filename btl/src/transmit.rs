//! Transmission: in which order frames are sent, on which channel, with which credit.
//!
//! One pass: resends; then peers with something to send, in turn; then acknowledgements that found nothing to
//! ride on; then one doorbell (reference: vic, section 6.5).

use doorbell_fabric::datagram::{Channel, FrameId, Run, Transmit};
use doorbell_fabric::message::{Body, PeerIndex};
use zerocopy::IntoBytes;

use crate::core::Core;
use crate::peer::{Peer, about};
use crate::pool::Id;
use crate::recv_window::LIGHT;
use crate::send_window::Segment;
use crate::timeouts::wait;
use crate::wire::{BASIC, Basic, Kind, VERSION, flag};

/// Room that is reserved at a time, in frames.
const BATCH: usize = 32;

/// Places of the priority channel that segments leave free.
const FOR_ACKS: usize = 2;

/// Turns of one pass: long enough that a device which takes many frames at a time gets them.
pub(crate) const TURNS: u32 = 2;

/// The device's room for frames, and its doorbell.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Frames for which room is reserved on each channel.
    credit: [usize; 2],
    /// Whether the doorbell is to be rung.
    posted: bool,
}

impl Outbox {
    /// Whether a frame may be posted.
    #[inline]
    pub(crate) fn has_credit<T: Transmit>(&mut self, tx: &mut T, channel: Channel) -> bool {
        let credit = &mut self.credit[channel.index()];
        if *credit == 0 {
            *credit = tx.reserve(channel, BATCH);
        }
        *credit > 0
    }

    /// Whether a segment may be posted: the last places of the priority channel are for acknowledgements,
    /// without which the other end cannot go on.
    #[inline]
    pub(crate) fn has_room<T: Transmit>(&mut self, tx: &mut T, channel: Channel) -> bool {
        let kept = if channel == Channel::Priority { FOR_ACKS } else { 0 };
        let at = channel.index();
        if self.credit[at] <= kept {
            self.credit[at] = tx.reserve(channel, BATCH);
            if self.credit[at] <= kept && self.posted {
                // Full of what waits for the doorbell, because more was to follow.
                self.ring(tx);
                self.credit[at] = tx.reserve(channel, BATCH);
            }
        }
        self.credit[at] > kept
    }

    /// Returns how many of `n` frames may be posted now.
    #[inline]
    pub(crate) fn room<T: Transmit>(&mut self, tx: &mut T, channel: Channel, n: usize) -> usize {
        let credit = &mut self.credit[channel.index()];
        if *credit < n {
            *credit = tx.reserve(channel, n);
        }
        n.min(*credit)
    }

    /// Posts a run of frames, with credit for all of them; returns the number of the last.
    #[inline]
    pub(crate) fn post_run<T: Transmit>(
        &mut self,
        tx: &mut T,
        channel: Channel,
        to: PeerIndex,
        run: &Run<'_>,
    ) -> FrameId {
        let posted = tx.post_run(channel, to, run);
        let credit = &mut self.credit[channel.index()];
        *credit = credit.saturating_sub(run.len());
        self.posted = true;
        posted.unwrap_or_default()
    }

    /// Posts a frame, with credit. Nothing is refused then; and if it were, a frame more would be lost.
    #[inline(always)]
    pub(crate) fn post<T: Transmit>(
        &mut self,
        tx: &mut T,
        channel: Channel,
        to: PeerIndex,
        frame: &[u8],
    ) -> FrameId {
        let posted = tx.post(channel, to, &frame[..BASIC], Body::Bytes(&frame[BASIC..]));
        let credit = &mut self.credit[channel.index()];
        *credit = credit.saturating_sub(1);
        self.posted = true;
        posted.unwrap_or_default()
    }

    /// Whether something was posted since the doorbell rang last.
    #[inline]
    pub(crate) fn has_posted(&self) -> bool {
        self.posted
    }

    /// Rings the doorbell, if something was posted.
    #[inline]
    pub(crate) fn ring<T: Transmit>(&mut self, tx: &mut T) {
        if self.posted {
            self.posted = false;
            tx.doorbell();
        }
    }
}

/// Whether messages that were accepted wait for the check, the window or the device.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// One was accepted and not posted, since this was looked at last.
    fresh: bool,
    /// There may be some; and the peer of the first that was found.
    any: bool,
    at: PeerIndex,
}

impl Backlog {
    /// No message waits.
    pub(crate) const fn new() -> Self {
        Self {
            fresh: false,
            any: false,
            at: PeerIndex(0),
        }
    }

    /// A message waits.
    #[inline]
    pub(crate) fn note(&mut self) {
        (self.fresh, self.any) = (true, true);
    }
}

impl Core {
    /// Everything that is to be sent now.
    #[inline]
    pub(crate) fn service<T: Transmit>(&mut self, tx: &mut T) {
        if self.has_to_send() {
            self.send_all(tx);
        }
        self.outbox.ring(tx);
    }

    /// Whether something is to be sent now.
    #[inline]
    pub(crate) fn has_to_send(&self) -> bool {
        let others = self.probing.len() | self.reconnects.calls();
        self.segments.lost() | self.ready.len() | self.acks.due() | others > 0
    }

    #[inline(never)]
    pub(crate) fn send_all<T: Transmit>(&mut self, tx: &mut T) {
        if self.segments.lost() > 0 {
            self.send_again(tx);
        }
        if !self.ready.is_empty() {
            self.send_ready(tx);
        }
        if self.probing.len() > 0 {
            self.send_probes(tx);
        }
        if self.reconnects.calls() > 0 {
            self.send_calls(tx);
        }
        if self.acks.due() > 0 {
            self.send_acks(tx);
        }
    }

    /// The doorbell for a message to `peer` that was accepted just now; whether the device has all that was
    /// accepted for that peer. What was posted at once is all that there is, as a rule, and nothing else is
    /// looked at then.
    #[inline]
    pub(crate) fn ring_for<T: Transmit>(&mut self, tx: &mut T, peer: PeerIndex) -> bool {
        if self.outbox.has_posted() && !self.backlog.fresh {
            self.outbox.ring(tx);
            if !tx.is_backed_up() {
                return true;
            }
        }
        self.push_for(tx, peer)
    }

    #[cold]
    #[inline(never)]
    fn push_for<T: Transmit>(&mut self, tx: &mut T, peer: PeerIndex) -> bool {
        self.service(tx);
        self.backlog.fresh = false;
        !self.holds_back(Some(peer)) && !tx.is_backed_up()
    }

    /// Whether messages of a peer, or of any, wait for the check, the window, or room in the device. The
    /// search begins at the peer where it ended last.
    pub(crate) fn holds_back(&mut self, peer: Option<PeerIndex>) -> bool {
        let waits = |peer: &Peer| peer.send.unsent().is_some() && !peer.is(about::DOWN);
        if !self.backlog.any {
            return false;
        }
        if let Some(peer) = peer {
            return self.peers.get(peer).is_some_and(waits);
        }
        let found = self.peers.find_from(self.backlog.at, waits);
        self.backlog.any = found.is_some();
        self.backlog.at = found.unwrap_or(PeerIndex(0));
        self.backlog.any
    }

    /// Sends what is to be sent again, on the data channel, a bounded number. What the device still holds
    /// waits.
    #[cold]
    fn send_again<T: Transmit>(&mut self, tx: &mut T) {
        let reaped = [tx.reaped(Channel::Priority), tx.reaped(Channel::Data)];
        let most = self.config.max_resends_per_iteration;
        let mut sent = 0;
        for _ in 0..self.segments.lost() {
            if sent == most || !self.outbox.has_credit(tx, Channel::Data) {
                break;
            }
            let Some(id) = self.segments.next_lost() else {
                break;
            };
            let segment = &mut self.segments[id];
            if !segment.is_lost() {
                continue; // acknowledged meanwhile
            }
            if segment.is_in_device(reaped) {
                self.segments.push_lost(id);
                continue;
            }
            segment.send_again();
            let peer = segment.peer();
            self.counters.resends += 1;
            self.peers[peer].resends.made(self.clock.now());
            self.post_segment(tx, peer, id);
            sent += 1;
        }
    }

    /// Gives peers that can send their turns, one after the other and again, for a bounded number of
    /// segments.
    fn send_ready<T: Transmit>(&mut self, tx: &mut T) {
        let quantum = self.config.quantum;
        let mut left = TURNS * quantum;
        while left > 0
            && let Some(peer) = self.ready.pop(&mut self.peers)
        {
            let (sent, stopped) = self.send_peer(tx, peer, quantum.min(left));
            self.make_ready(peer);
            if stopped {
                return;
            }
            // A peer that could not send in its turn waits for something that this pass does not bring.
            left -= if sent > 0 { sent } else { quantum.min(left) };
        }
    }

    /// A peer's turn: how many segments it sent, and whether the device has no room.
    fn send_peer<T: Transmit>(&mut self, tx: &mut T, index: PeerIndex, most: u32) -> (u32, bool) {
        let mut sent = 0;
        while sent < most {
            let peer = &self.peers[index];
            if !peer.may_send() {
                return (sent, false);
            }
            if peer.send.unsent().is_none() {
                let run = self.put_run(tx, index, most - sent);
                if run > 0 {
                    sent += run;
                    continue;
                }
                if !self.refill(index) {
                    return (sent, false);
                }
            }
            let Some(id) = self.peers[index].send.unsent() else {
                return (sent, false);
            };
            let channel = self.segments[id].channel();
            if !self.outbox.has_room(tx, channel) {
                return (sent, true);
            }
            self.post_first(tx, index, id);
            sent += 1;
        }
        (sent, false)
    }

    /// Posts the oldest segment that was not sent.
    #[inline(always)]
    pub(crate) fn post_first<T: Transmit>(&mut self, tx: &mut T, index: PeerIndex, id: Id<Segment>) {
        self.advance(index, id);
        self.post_segment(tx, index, id);
    }

    /// The oldest segment that was not sent leaves in a run; returns its header.
    #[inline]
    pub(crate) fn depart(&mut self, index: PeerIndex, id: Id<Segment>) -> Basic {
        self.advance(index, id);
        self.header_of(index, id)
    }

    #[inline(always)]
    fn advance(&mut self, index: PeerIndex, id: Id<Segment>) {
        let peer = &mut self.peers[index];
        if peer.send.advance(&self.segments, id) {
            peer.liveness.wait(self.clock.attended());
        }
        self.counters.segments_sent += 1;
        self.counters.bytes_sent += u64::from(self.segments[id].length());
    }

    /// Posts a segment, with credit.
    #[inline(always)]
    fn post_segment<T: Transmit>(&mut self, tx: &mut T, index: PeerIndex, id: Id<Segment>) {
        let header = self.header_of(index, id);
        let peer = &self.peers[index];
        let segment = &mut self.segments[id];
        let channel = segment.channel();
        let frame = segment.frame(self.framing.mac());
        frame[..BASIC].copy_from_slice(header.as_bytes());
        self.framing.seal(frame, peer.macs());
        let post = self.outbox.post(tx, channel, peer.driver(), frame);
        segment.in_device_as(post);
        self.clock.count_frame();
        self.segments.note_post(id);
        self.arm_timeout(index);
    }

    /// The header of a segment that is posted now, with the acknowledgement that it takes along.
    #[inline(always)]
    fn header_of(&mut self, index: PeerIndex, id: Id<Segment>) -> Basic {
        let peer = &mut self.peers[index];
        let segment = &mut self.segments[id];
        peer.send.post(segment, self.clock.now());
        // A narrow window closes before the peer answers unasked. One answer opens all of it.
        let window = peer.congestion.window();
        let narrow =
            window < 2 * LIGHT * self.config.ack_every && peer.send.flight() >= window && peer.has_work();
        let stalls = narrow && peer.send.ask_at_once(segment.seq());
        // Retransmissions request all that the peer has, so that one answer covers everything that was lost
        // with it.
        let urgent = if stalls || segment.is_urgent() {
            flag::URGENT
        } else {
            0
        };
        let header = Basic {
            connection: peer.connection().into(),
            sequence: segment.seq().0.into(),
            ack: peer.recv.ack().0.into(),
            length: (segment.length() as u16).into(),
            kind: segment.kind() as u8,
            flags: VERSION << 4 | flag::ACK | urgent,
            check: 0.into(),
        };
        if peer.carry_ack() {
            self.counters.acks_carried += 1;
        }
        header
    }

    /// Sees to it that the peer is looked at when what was posted now should have been acknowledged.
    #[inline(always)]
    pub(crate) fn arm_timeout(&mut self, index: PeerIndex) {
        // A look that comes before the shortest time-out sees to the rest.
        let shortest = self.clock.after(self.bounds.shortest());
        if self.peers[index].alarm.is_later_than(shortest) {
            self.rearm_timeout(index);
        }
    }

    /// Once per time-out, not once per segment: out of the way of what is posted.
    #[inline(never)]
    fn rearm_timeout(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[index];
        let due = self.clock.after(wait(peer, &self.bounds));
        self.timers.arm(index, &mut peer.alarm, due);
    }

    /// Sends acknowledgements that no segment took along.
    fn send_acks<T: Transmit>(&mut self, tx: &mut T) {
        for _ in 0..self.acks.due() {
            if !self.outbox.has_credit(tx, Channel::Priority) {
                return;
            }
            let Some(index) = self.acks.next(&mut self.peers) else {
                return;
            };
            let peer = &mut self.peers[index];
            if !peer.is(about::ACK) {
                continue;
            }
            peer.clear(about::ACK | about::EXPLICIT);
            peer.recv.acknowledged();
            let duplicates = peer.recv.duplicates();
            let most = self.framing.room().min(512) / 8 * 8;
            let length = peer.recv.write_bitmap(self.framing.payload(most));
            self.counters.acks_sent += 1;
            self.post_plain(tx, Channel::Priority, index, Kind::Ack, duplicates, length);
        }
    }

    /// Posts the frame in [`Framing::payload`](crate::framing::Framing::payload), of `length` bytes behind
    /// the header, which is not a segment. With credit.
    pub(crate) fn post_plain<T: Transmit>(
        &mut self,
        tx: &mut T,
        channel: Channel,
        index: PeerIndex,
        kind: Kind,
        number: u32,
        length: usize,
    ) {
        let peer = &self.peers[index];
        let header = Basic {
            connection: peer.connection().into(),
            sequence: number.into(),
            ack: peer.recv.ack().0.into(),
            length: (length as u16).into(),
            kind: kind as u8,
            flags: VERSION << 4 | if kind == Kind::Ack { flag::ACK } else { 0 },
            check: 0.into(),
        };
        let frame = self.framing.finish(&header, peer.macs());
        self.outbox.post(tx, channel, peer.driver(), frame);
    }
}
