//! The end of a peer, and of ourselves.

use doorbell_fabric::datagram::{Channel, Receive, Transmit};
use doorbell_fabric::event::{DownReason, EventKind, Scope};
use doorbell_fabric::message::{Arrivals, Inbound, MsgId, OpError, OpId, PeerIndex};

use crate::core::{BASIC, Core, Left};
use crate::counters::Drop;
use crate::peer::about;
use crate::pool::Id;
use crate::record::Event;
use crate::wire::{Kind, Parsed};

/// Nobody takes anything any more.
struct Nobody;

impl Arrivals for Nobody {
    fn message(&mut self, _: PeerIndex, _: Inbound<'_>) {}
    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

impl Core {
    /// The peer is down: it is told once, its operations end, its messages wait for `reclaim`.
    #[cold]
    pub(crate) fn fail_peer(&mut self, peer: PeerIndex, reason: DownReason) {
        if !self.peer(peer).is(about::DOWN) {
            self.end_connection(peer, reason);
            self.tell(Scope::Peer(peer), EventKind::PeerDown(reason));
        }
    }

    /// Everything that comes with the end of a connection but the event.
    fn end_connection(&mut self, peer: PeerIndex, reason: DownReason) {
        if let Some(found) = self.found_so_far(peer) {
            self.conclude(peer, found);
        }
        self.remember(peer);
        self.fail_operations(peer);
        self.drop_inflows(peer);
        let left = self.untaken(peer);
        self.clear(peer);
        if !left.is_empty() {
            // Of an earlier connection there may be some that nobody has asked for yet.
            self.left.entry(peer).or_default().extend(left);
        }
        let state = &mut self.peers[peer];
        let closed = if reason == DownReason::Closed {
            about::CLOSED
        } else {
            0
        };
        let kept = about::READY | about::ACK_NOW | about::ACK_LATER | about::TIMEOUT | about::PROBE;
        state.flags = state.flags & (kept | about::ACK | about::EXPLICIT) | about::DOWN | closed;
        self.reassemblies.clear(&mut state.partial);
        if closed == 0 {
            state.arrived.clear(&mut self.spare);
        }
        if let Some(key) = state.timer.take() {
            // The key was good, or the timer would be gone.
            let _ = self.timers.check_out(key);
        }
        self.exposures.withdraw_peer(peer);
        if reason != DownReason::Closed {
            self.end_life(peer);
        }
    }

    /// The owner gives a peer up: it knows, so nothing that was to be told about the peer is news any more.
    #[cold]
    pub(crate) fn abandon(&mut self, peer: PeerIndex) {
        if self.peer(peer).is(about::DOWN) {
            return self.stop_reviving(peer);
        }
        let scope = Scope::Peer(peer);
        self.events.retain(|event| event.scope != scope);
        self.end_connection(peer, DownReason::Abandoned);
        self.record(peer, Event::Told(EventKind::PeerDown(DownReason::Abandoned)));
    }

    /// The messages that a peer did not take, each in one piece.
    fn untaken(&mut self, peer: PeerIndex) -> Left {
        let mut left = Left::new();
        let state = &self.peers[peer];
        let known = state.watermark.max(state.given);
        let (mut index, mut parts) = (state.head, Vec::new());
        while index != Id::NONE {
            let segment = &self.segments[index];
            if matches!(segment.kind, Kind::Frag | Kind::Chunk) {
                let own = segment.kind.header();
                parts.extend_from_slice(&segment.frame[BASIC + own..BASIC + segment.length as usize]);
            }
            if segment.ends != 0 {
                let whole = std::mem::take(&mut parts);
                if segment.ends > known {
                    left.push((MsgId(segment.ends), whole));
                }
            }
            index = segment.next;
        }
        self.peer(peer).given = self.peer(peer).last;
        left
    }

    /// The watermark of a peer: what waits for `reclaim` is above it, whatever was taken after that peer came back.
    #[cold]
    pub(crate) fn below_the_left(&self, peer: PeerIndex, watermark: u64) -> u64 {
        let first = self.left.get(&peer).and_then(|left| left.first());
        first.map_or(watermark, |(id, _)| watermark.min(id.0 - 1))
    }

    /// Empties a peer's list.
    fn clear(&mut self, peer: PeerIndex) {
        let mut index = self.peer(peer).head;
        while index != Id::NONE {
            let next = self.segments[index].next;
            self.segments.give(index);
            index = next;
        }
        let state = self.peer(peer);
        (state.head, state.una, state.unsent, state.tail) = (Id::NONE, Id::NONE, Id::NONE, Id::NONE);
        (state.listed, state.flight) = (0, 0);
    }

    /// Gives back what a peer did not take. One that lives keeps what is under way to it, which may arrive all the same.
    pub(crate) fn give_back(&mut self, peer: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
        if self.peers.get(peer).is_none() {
            return;
        }
        let before = self.left.remove(&peer).unwrap_or_default();
        let now = self.untaken(peer);
        for (id, bytes) in before.into_iter().chain(now) {
            each(id, &bytes);
        }
    }

    /// The peer has said goodbye; when everything before it has arrived, it is gone.
    #[cold]
    pub(crate) fn see_off(&mut self, peer: PeerIndex) {
        let state = &self.peers[peer];
        let all = state.bye.is_some_and(|bye| state.arrived.ack().after(bye) >= 0);
        if all || self.closing {
            self.ack_now(peer);
            self.fail_peer(peer, DownReason::Closed);
        }
    }

    /// We take nothing any more but goodbyes.
    #[cold]
    pub(crate) fn take_while_closing(&mut self, peer: PeerIndex, parsed: &Parsed) -> Result<bool, Drop> {
        if parsed.kind != Kind::Bye {
            return Err(Drop::Down);
        }
        let state = &mut self.peers[peer];
        state.arrived.take(parsed.sequence, &mut self.spare);
        state.bye = Some(parsed.sequence);
        state.flags |= about::EXPLICIT;
        self.see_off(peer);
        Ok(false)
    }

    /// A new life has been heard of: the old ones at its address are over.
    #[cold]
    pub(crate) fn replace(&mut self, peer: PeerIndex) {
        let mut next = self.peer(peer).older;
        while let Some(older) = next {
            self.end_attempt(older);
            self.fail_peer(older, DownReason::Died);
            self.end_for_good(older);
            next = self.peer(older).older;
        }
    }

    /// Says goodbye to everybody who knows us, once; `true` when all have heard it, and all that was accepted before.
    pub(crate) fn say_goodbye<T: Transmit, R: Receive>(&mut self, tx: &mut T, rx: &mut R) -> bool {
        self.closing = true;
        for channel in [Channel::Priority, Channel::Data] {
            self.receive(rx, channel, 64, &mut Nobody);
        }
        self.judge_timeouts();
        let mut done = true;
        for peer in self.peers.indices() {
            let state = &self.peers[peer];
            if state.is(about::DOWN) {
                continue;
            }
            let known = state.is(about::GREETED) || state.listed > 0 || state.has_work();
            if known && !state.is(about::BYE) && self.header(peer, Kind::Bye, &[]).is_some() {
                self.peer(peer).flags |= about::BYE;
            }
            let state = &self.peers[peer];
            done &= state.listed == 0 && !state.has_work() && (!known || state.is(about::BYE));
        }
        self.ack_everybody();
        self.service(tx);
        done
    }
}
