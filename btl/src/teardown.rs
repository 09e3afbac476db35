//! The end of a connection to a peer, and of the whole BTL.

use std::collections::HashMap;

use doorbell_fabric::datagram::{Channel, Receive, Transmit};
use doorbell_fabric::event::{DownReason, EventKind, Scope};
use doorbell_fabric::message::{Arrivals, Inbound, MsgId, OpError, OpId, PeerIndex};

use crate::core::Core;
use crate::counters::Drop;
use crate::peer::about;
use crate::record::Event;
use crate::send_window::Untaken;
use crate::wire::{Kind, Parsed};

/// How far the BTL is on its way to being closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Messages are accepted and shown.
    Open,
    /// Nothing is accepted or shown any more: every peer is sent a BYE, after everything that was accepted
    /// before.
    Closing,
    /// Nothing is sent or received any more.
    Closed,
}

impl Phase {
    /// Whether nothing is accepted or shown any more.
    #[inline]
    pub(crate) fn is_closing(self) -> bool {
        self != Self::Open
    }
}

/// Messages that peers did not take before their connections ended, until the owner reclaims them.
#[derive(Debug, Default)]
pub(crate) struct Unclaimed(HashMap<PeerIndex, Untaken>);

impl Unclaimed {
    /// The watermark of a peer: what waits to be claimed is above it, whatever was taken after that peer came
    /// back.
    #[inline]
    pub(crate) fn below(&self, peer: PeerIndex, watermark: u64) -> u64 {
        if self.0.is_empty() {
            return watermark;
        }
        self.below_first(peer, watermark)
    }

    /// Drops the messages to a peer.
    pub(crate) fn forget(&mut self, peer: PeerIndex) {
        self.0.remove(&peer);
    }

    #[cold]
    fn below_first(&self, peer: PeerIndex, watermark: u64) -> u64 {
        let first = self.0.get(&peer).and_then(|untaken| untaken.first());
        first.map_or(watermark, |(id, _)| watermark.min(id.0 - 1))
    }
}

/// Shows what arrives to no one.
struct Discard;

impl Arrivals for Discard {
    fn message(&mut self, _: PeerIndex, _: Inbound<'_>) {}
    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

impl Core {
    /// Brings a peer down: reports that once, fails its operations, keeps its messages for `reclaim`.
    #[cold]
    pub(crate) fn fail_peer(&mut self, index: PeerIndex, reason: DownReason) {
        if self.peers[index].is(about::LEAVING) {
            return self.take_out(index);
        }
        if !self.peers[index].is(about::DOWN) {
            self.end_connection(index, reason);
            self.tell(Scope::Peer(index), EventKind::PeerDown(reason));
        }
    }

    /// Everything that comes with the end of a connection but the event.
    pub(crate) fn end_connection(&mut self, index: PeerIndex, reason: DownReason) {
        if let Some(found) = self.found_so_far(index) {
            self.conclude(index, found);
        }
        self.remember(index);
        self.fail_operations(index);
        self.drop_inflows(index);
        let closed = reason == DownReason::Closed;
        let peer = &mut self.peers[index];
        let untaken = peer.send.take_back(&self.segments);
        peer.send.clear(&mut self.segments);
        if !untaken.is_empty() {
            // Of an earlier connection there may be some that were not reclaimed yet.
            self.unclaimed.0.entry(index).or_default().extend(untaken);
        }
        peer.keep(about::QUEUED | about::ACK | about::EXPLICIT);
        peer.set(about::DOWN);
        self.reassemblies.clear(&mut peer.partial);
        if closed {
            peer.set(about::CLOSED);
        } else {
            peer.recv.clear(&mut self.bitmaps);
        }
        self.timers.disarm(&mut peer.alarm);
        self.exposures.withdraw_peer(index);
        if !closed {
            self.end_life(index);
        }
    }

    /// Brings down a peer that the owner gives up, without an event; events about it that were not read are
    /// dropped.
    #[cold]
    pub(crate) fn abandon(&mut self, index: PeerIndex) {
        if self.peers[index].is(about::LEAVING) {
            return;
        }
        if self.peers[index].is(about::DOWN) {
            return self.stop_reviving(index);
        }
        self.journal.forget_events(index);
        self.end_connection(index, DownReason::Abandoned);
        self.record(index, Event::Told(EventKind::PeerDown(DownReason::Abandoned)));
    }

    /// Gives back what a peer did not take. One that lives keeps what is under way to it, which may arrive
    /// all the same.
    pub(crate) fn give_back(&mut self, index: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
        if self.peers.get(index).is_none_or(|peer| peer.is(about::LEAVING)) {
            return;
        }
        let before = self.unclaimed.0.remove(&index).unwrap_or_default();
        let now = self.peers[index].send.take_back(&self.segments);
        for (id, bytes) in before.into_iter().chain(now) {
            each(id, &bytes);
        }
    }

    /// The peer has closed the connection; when everything before its BYE has arrived, it is gone.
    #[cold]
    pub(crate) fn see_off(&mut self, index: PeerIndex) {
        if self.peers[index].recv.is_complete() || self.phase.is_closing() {
            self.ack_now(index);
            self.fail_peer(index, DownReason::Closed);
        }
    }

    /// Handles a segment while we close: nothing is taken any more but a BYE.
    #[cold]
    pub(crate) fn take_while_closing(&mut self, index: PeerIndex, parsed: &Parsed) -> Result<bool, Drop> {
        if parsed.kind != Kind::Bye {
            return Err(Drop::Down);
        }
        let peer = &mut self.peers[index];
        peer.recv.take(parsed.sequence, &mut self.bitmaps);
        peer.recv.set_bye(parsed.sequence);
        peer.set(about::EXPLICIT);
        self.see_off(index);
        Ok(false)
    }

    /// Ends the older peers at the address of one that came up: they were earlier lives of the process there.
    #[cold]
    pub(crate) fn replace(&mut self, index: PeerIndex) {
        let mut next = self.peers[index].older();
        while let Some(older) = next {
            next = self.peers[older].older();
            self.end_attempt(older);
            self.fail_peer(older, DownReason::Died);
            self.end_for_good(older);
        }
    }

    /// Sends a BYE to every peer that knows us, once; `true` when all have acknowledged it, and all that was
    /// accepted before.
    pub(crate) fn say_goodbye<T: Transmit, R: Receive>(&mut self, tx: &mut T, rx: &mut R) -> bool {
        self.phase = Phase::Closing;
        for channel in [Channel::Priority, Channel::Data] {
            self.receive(rx, channel, 64, &mut Discard);
        }
        self.judge_timeouts();
        let mut done = true;
        for index in self.peers.indices() {
            let peer = &self.peers[index];
            if peer.is(about::DOWN) {
                continue;
            }
            let known = peer.is(about::GREETED) || peer.send.len() > 0 || peer.has_work();
            if known && !peer.is(about::BYE) && self.header(index, Kind::Bye, &[]).is_some() {
                self.peers[index].set(about::BYE);
            }
            let peer = &self.peers[index];
            done &= peer.send.len() == 0 && !peer.has_work() && (!known || peer.is(about::BYE));
        }
        self.acks.all_now(&mut self.peers);
        self.service(tx);
        done
    }
}
