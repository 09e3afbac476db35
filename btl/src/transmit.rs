//! Frames on their way out: in which order, on which channel, with which credit.
//!
//! One pass: resends; then peers with something to send, in turn; then acknowledgements that found nothing to ride on;
//! then one doorbell (reference: vic, section 6.5).

use doorbell_fabric::datagram::{Channel, Transmit};
use doorbell_fabric::message::{Body, PeerIndex};
use zerocopy::IntoBytes;

use crate::core::{BASIC, Core, LIGHT};
use crate::key::FrameMac;
use crate::peer::{Peer, about};
use crate::pool::Id;
use crate::segment::{Segment, State};
use crate::timers::wait;
use crate::wire::{Basic, Kind, MAC, VERSION, flag};

/// Room that is asked for at a time, in frames.
const BATCH: usize = 32;

/// Places of the priority channel that segments leave free.
const FOR_ACKS: usize = 2;

/// Turns of one pass: long enough that a device which takes many frames at a time gets them.
const TURNS: u32 = 2;

/// The channel's place in tables.
#[inline]
pub(crate) fn place(channel: Channel) -> usize {
    match channel {
        Channel::Priority => 0,
        Channel::Data => 1,
    }
}

impl Core {
    /// Everything that is to be sent now.
    #[inline]
    pub(crate) fn service<T: Transmit>(&mut self, tx: &mut T) {
        let lists = [&self.resends, &self.ready, &self.probes, &self.acks_now];
        let others = self.pongs.len() | self.calls.len();
        let waiting = lists.iter().fold(others, |all, list| all | list.len());
        if waiting > 0 {
            self.send_all(tx);
        }
        self.ring(tx);
    }

    #[inline(never)]
    fn send_all<T: Transmit>(&mut self, tx: &mut T) {
        if !self.resends.is_empty() {
            self.send_again(tx);
        }
        if !self.ready.is_empty() {
            self.send_ready(tx);
        }
        if !self.probes.is_empty() || !self.pongs.is_empty() {
            self.send_probes(tx);
        }
        if !self.calls.is_empty() {
            self.send_calls(tx);
        }
        if !self.acks_now.is_empty() {
            self.send_acks(tx);
        }
    }

    #[inline]
    pub(crate) fn ring<T: Transmit>(&mut self, tx: &mut T) {
        if self.posted {
            self.posted = false;
            tx.doorbell();
        }
    }

    /// The doorbell for a message to `peer` that was accepted just now; whether the device has all that was
    /// accepted for that peer. What was posted at once is all that there is, as a rule, and nothing else is
    /// looked at then.
    #[inline]
    pub(crate) fn ring_for<T: Transmit>(&mut self, tx: &mut T, peer: PeerIndex) -> bool {
        if self.posted && !self.waiting {
            self.posted = false;
            tx.doorbell();
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
        self.waiting = false;
        !self.holds_back(Some(peer)) && !tx.is_backed_up()
    }

    /// Whether messages of a peer, or of any, wait for the check, the window, or room in the device. The
    /// search begins at the peer where it ended last.
    pub(crate) fn holds_back(&mut self, peer: Option<PeerIndex>) -> bool {
        let waits = |state: &Peer| state.unsent != Id::NONE && !state.is(about::DOWN);
        if !self.held {
            return false;
        }
        if let Some(peer) = peer {
            return self.peers.get(peer).is_some_and(waits);
        }
        let found = self.peers.find_from(self.held_at, waits);
        self.held = found.is_some();
        self.held_at = found.unwrap_or(PeerIndex(0));
        self.held
    }

    /// Whether a frame may be posted.
    #[inline]
    pub(crate) fn has_credit<T: Transmit>(&mut self, tx: &mut T, channel: Channel) -> bool {
        let credit = &mut self.credit[place(channel)];
        if *credit == 0 {
            *credit = tx.reserve(channel, BATCH);
        }
        *credit > 0
    }

    /// Whether a segment may be posted: the last places of the priority channel are for acknowledgements, without which
    /// the other end stands still.
    #[inline]
    pub(crate) fn has_room<T: Transmit>(&mut self, tx: &mut T, channel: Channel) -> bool {
        let kept = if channel == Channel::Priority { FOR_ACKS } else { 0 };
        let at = place(channel);
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

    /// Sends what is to be sent again, on the data channel, a bounded number. What the device still holds waits.
    #[cold]
    fn send_again<T: Transmit>(&mut self, tx: &mut T) {
        let reaped = [tx.reaped(Channel::Priority), tx.reaped(Channel::Data)];
        let most = self.config.max_resends_per_iteration;
        let mut sent = 0;
        for _ in 0..self.resends.len() {
            if sent == most || !self.has_credit(tx, Channel::Data) {
                break;
            }
            let Some(index) = self.resends.pop_front() else {
                break;
            };
            let segment = &self.segments[index];
            if segment.state != State::Resend {
                continue; // acknowledged meanwhile
            }
            if segment.post > reaped[place(segment.channel)] {
                self.resends.push_back(index);
                continue;
            }
            let peer = segment.peer;
            self.segments[index].channel = Channel::Data;
            self.segments[index].again = true;
            self.counters.resends += 1;
            let now = self.now;
            self.peer(peer).resends.made(now);
            self.post_segment(tx, peer, index);
            sent += 1;
        }
    }

    /// Gives peers that can send their turns, one after the other and again, for a bounded number of segments.
    fn send_ready<T: Transmit>(&mut self, tx: &mut T) {
        let quantum = self.config.quantum;
        let mut left = TURNS * quantum;
        while left > 0
            && let Some(peer) = self.ready.pop_front()
        {
            self.peer(peer).flags &= !about::READY;
            let (sent, stopped) = self.send_peer(tx, peer, quantum.min(left));
            self.make_ready(peer);
            if stopped {
                return;
            }
            // Who could not send although it is its turn waits for something that this pass does not bring.
            left -= if sent > 0 { sent } else { quantum.min(left) };
        }
    }

    /// A peer's turn: how many segments it sent, and whether the device has no room.
    fn send_peer<T: Transmit>(&mut self, tx: &mut T, peer: PeerIndex, most: u32) -> (u32, bool) {
        for sent in 0..most {
            if !self.peer(peer).may_send() || (self.peer(peer).unsent == Id::NONE && !self.refill(peer)) {
                return (sent, false);
            }
            let index = self.peer(peer).unsent;
            if index == Id::NONE {
                return (sent, false);
            }
            let channel = self.segments[index].channel;
            if !self.has_room(tx, channel) {
                return (sent, true);
            }
            self.post_first(tx, peer, index);
        }
        (most, false)
    }

    /// Posts the oldest segment that was not sent.
    #[inline(always)]
    pub(crate) fn post_first<T: Transmit>(&mut self, tx: &mut T, peer: PeerIndex, index: Id<Segment>) {
        let next = self.segments[index].next;
        let state = &mut self.peers[peer];
        state.unsent = next;
        state.unsent_seq = state.unsent_seq.plus(1);
        if state.una == Id::NONE {
            (state.una, state.waiting) = (index, self.attended);
        }
        self.counters.segments_sent += 1;
        self.counters.bytes_sent += u64::from(self.segments[index].length);
        self.post_segment(tx, peer, index);
    }

    /// Posts a segment, with credit. Nothing is refused then.
    #[inline(always)]
    fn post_segment<T: Transmit>(&mut self, tx: &mut T, peer: PeerIndex, index: Id<Segment>) {
        let (now, mac, crc) = (self.now, self.mac(), self.crc);
        let state = &mut self.peers[peer];
        let segment = &mut self.segments[index];
        let channel = segment.channel;
        let at = place(channel);
        state.made[at] += 1;
        segment.order = state.made[at];
        segment.state = State::Posted;
        segment.sent_at = now;
        state.flight += 1;
        // A narrow window closes before the peer answers by itself. One answer opens all of it.
        let window = state.congestion.window();
        let narrow = window < 2 * LIGHT * self.config.ack_every && state.flight >= window && state.has_work();
        let stalls = narrow && state.una_seq.after(state.urgent) > 0;
        if stalls {
            state.urgent = segment.seq;
        }
        // What goes again asks for all that the peer has, so that one answer tells of everything that was lost with it.
        let urgent = if stalls || segment.again { flag::URGENT } else { 0 };
        let flags = VERSION << 4 | flag::ACK | urgent;
        let length = segment.length as usize;
        let header = Basic {
            connection: state.out.into(),
            sequence: segment.seq.0.into(),
            ack: state.arrived.ack().0.into(),
            length: (length as u16).into(),
            kind: segment.kind as u8,
            flags,
            check: 0.into(),
        };
        if state.flags & (about::ACK | about::EXPLICIT) == about::ACK {
            state.flags &= !about::ACK;
            state.unacked = 0;
            self.counters.acks_carried += 1;
        }
        let frame = &mut segment.frame[..BASIC + length + mac];
        frame[..BASIC].copy_from_slice(header.as_bytes());
        if crc || mac > 0 {
            seal(frame, state.macs.as_deref().map(|macs| &macs[0]));
        }
        let posted = tx.post(
            channel,
            state.driver,
            &frame[..BASIC],
            Body::Bytes(&frame[BASIC..]),
        );
        segment.post = posted.unwrap_or_default();
        self.moved += 1;
        self.credit[at] = self.credit[at].saturating_sub(1);
        self.posted = true;
        if self.unstamped.len() < self.unstamped.capacity() {
            self.unstamped.push(index);
        }
        self.arm_timeout(peer);
    }

    /// Sees to it that the peer is looked at when what was posted now should have been acknowledged.
    #[inline]
    fn arm_timeout(&mut self, peer: PeerIndex) {
        let state = &self.peers[peer];
        // A look that comes before the shortest time-out sees to the rest.
        if state.timer.is_none() || state.booked > self.now.saturating_add(self.bounds.tail) {
            let due = self.now.saturating_add(wait(state, &self.bounds));
            self.arm(peer, due);
        }
    }

    /// Sends acknowledgements that nothing took along.
    fn send_acks<T: Transmit>(&mut self, tx: &mut T) {
        for _ in 0..self.acks_now.len() {
            if !self.has_credit(tx, Channel::Priority) {
                return;
            }
            let Some(peer) = self.acks_now.pop_front() else {
                return;
            };
            let state = &mut self.peers[peer];
            state.flags &= !about::ACK_NOW;
            if !state.is(about::ACK) {
                continue;
            }
            state.flags &= !(about::ACK | about::EXPLICIT);
            state.unacked = 0;
            let (duplicates, mac) = (state.duplicates, self.mac());
            let most = (self.mtu - BASIC - mac).min(512);
            let length = self.peers[peer]
                .arrived
                .write(&mut self.plain[BASIC..BASIC + most / 8 * 8]);
            self.counters.acks_sent += 1;
            self.post_plain(tx, Channel::Priority, peer, Kind::Ack, duplicates, length);
        }
    }

    /// Posts a frame that is not a segment: `length` bytes behind the header in [`Core::plain`]. With credit.
    pub(crate) fn post_plain<T: Transmit>(
        &mut self,
        tx: &mut T,
        channel: Channel,
        peer: PeerIndex,
        kind: Kind,
        number: u32,
        length: usize,
    ) {
        let mac = self.mac();
        let state = &self.peers[peer];
        let header = Basic {
            connection: state.out.into(),
            sequence: number.into(),
            ack: state.arrived.ack().0.into(),
            length: (length as u16).into(),
            kind: kind as u8,
            flags: VERSION << 4 | if kind == Kind::Ack { flag::ACK } else { 0 },
            check: 0.into(),
        };
        let frame = &mut self.plain[..BASIC + length + mac];
        frame[..BASIC].copy_from_slice(header.as_bytes());
        if self.crc || mac > 0 {
            seal(frame, state.macs.as_deref().map(|macs| &macs[0]));
        }
        let to = state.driver;
        // With credit and within the MTU, nothing is refused; and if it were, a frame more would be lost.
        let _ = tx.post(channel, to, &frame[..BASIC], Body::Bytes(&frame[BASIC..]));
        let credit = &mut self.credit[place(channel)];
        *credit = credit.saturating_sub(1);
        self.posted = true;
    }
}

impl Core {
    /// The MACs of calls: those of the first lives, ours and theirs.
    pub(crate) fn call_macs(&self, peer: PeerIndex) -> Option<&[FrameMac; 2]> {
        let kept = self.lives.get(&peer).and_then(|lives| lives.macs.as_deref());
        kept.or(self.peers[peer].macs.as_deref())
    }

    /// Posts the call in [`Core::plain`], behind `header`. With credit.
    #[cold]
    pub(crate) fn post_call<T: Transmit>(&mut self, tx: &mut T, peer: PeerIndex, header: &Basic) {
        let mac = self.mac();
        let mut plain = std::mem::take(&mut self.plain);
        let frame = &mut plain[..BASIC + usize::from(header.length.get()) + mac];
        frame[..BASIC].copy_from_slice(header.as_bytes());
        if self.crc || mac > 0 {
            seal(frame, self.call_macs(peer).map(|macs| &macs[0]));
        }
        let to = self.peers[peer].driver;
        // As in `post_plain`: if it were refused, a frame more would be lost.
        let _ = tx.post(
            Channel::Priority,
            to,
            &frame[..BASIC],
            Body::Bytes(&frame[BASIC..]),
        );
        self.plain = plain;
        let credit = &mut self.credit[place(Channel::Priority)];
        *credit = credit.saturating_sub(1);
        self.posted = true;
    }
}

/// Writes the MAC at the end of a frame, or, without one, the CRC into its header.
fn seal(frame: &mut [u8], mac: Option<&FrameMac>) {
    match mac {
        Some(mac) => {
            frame[19] |= flag::MAC;
            let at = frame.len() - MAC;
            let (bytes, tag) = frame.split_at_mut(at);
            tag.copy_from_slice(&mac.of(&[bytes]));
        }
        None => {
            frame[19] |= flag::CRC;
            let crc = crc32c::crc32c(frame);
            frame[20..BASIC].copy_from_slice(&crc.to_le_bytes());
        }
    }
}
