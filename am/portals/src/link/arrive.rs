//! Arriving: rails promise no order, so messages that arrive ahead of an earlier one are held until it came.
//!
//! How far ahead, and how much that may be, is what an honest peer's window allows; what is beyond it is
//! dropped.

use doorbell_fabric::message::{Arrivals, Inbound, OpError, OpId, PeerIndex};
use doorbell_paths::{Arrival, Place, Seq, on_word};

use super::in_flight::{AHEAD_MOST, WINDOW, charge};
use super::{Core, FIRST_LEN, First, NO_PEER, PeerId, Upper};

/// The number, and the bit of a kind that is the link's own, in the first eight bytes as one little-endian
/// word.
const SEQ_AND_OWN: u64 = 0xffff_ffff_0000_0080;

/// Takes what one rail shows.
pub(super) struct Sink<'a, U> {
    pub(super) rail: u16,
    pub(super) names: &'a [u32],
    pub(super) core: &'a mut Core,
    pub(super) upper: &'a mut U,
}

impl<U: Upper> Arrivals for Sink<'_, U> {
    #[inline(always)]
    fn message(&mut self, index: PeerIndex, inbound: Inbound<'_>) {
        if let Some(&name) = self.names.get(index.index())
            && let Some(hot) = self.core.hot.get_mut(name as usize)
            && let Some(first) = inbound.read::<FIRST_LEN>(0)
            && (u64::from_le_bytes(first) ^ u64::from(hot.expected) << 32) & SEQ_AND_OWN == 0
        {
            hot.expected = hot.expected.wrapping_add(1);
            let held = hot.held;
            self.upper
                .message(PeerId(name), zerocopy::transmute!(first), inbound);
            if held {
                self.release(name);
            }
            return;
        }
        self.odd(index, inbound);
    }

    #[inline]
    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        self.upper.completed(op, outcome);
    }
}

impl<U: Upper> Sink<'_, U> {
    /// Handles a message that is not the expected one.
    #[cold]
    #[inline(never)]
    fn odd(&mut self, index: PeerIndex, inbound: Inbound<'_>) {
        let name = self.names.get(index.index()).copied().unwrap_or(NO_PEER);
        let Some(first) = inbound.read::<FIRST_LEN>(0) else {
            self.core.stats.short += 1;
            return;
        };
        let first: First = zerocopy::transmute!(first);
        let Some(hot) = self.core.hot.get(name as usize) else {
            self.core.stats.from_nobody += 1;
            return;
        };
        if first.is_own() {
            self.core.on_own_word(name, (self.rail, index), first);
            return;
        }
        match Seq(first.seq.get()).place(Seq(hot.expected)) {
            // Read once more it may differ, where its writer still writes: then it is what it is now.
            Place::Expected => self.core.stats.bad_words += 1,
            Place::Ahead(distance) if distance <= AHEAD_MOST => self.core.hold(name, &inbound, distance),
            Place::Ahead(_) => self.core.stats.too_far_ahead += 1,
            Place::Behind => self.core.stats.duplicates += 1,
        }
    }

    /// The expected number has just advanced: shows what was held and has become expected.
    #[cold]
    #[inline(never)]
    fn release(&mut self, name: u32) {
        while let Some(kept) = self.core.peers[name as usize].held.advance() {
            let peer = &mut self.core.peers[name as usize];
            peer.held_charge -= charge(kept.len());
            let hot = &mut self.core.hot[name as usize];
            hot.expected = hot.expected.wrapping_add(1);
            if let Some(first) = kept.bytes().first_chunk::<FIRST_LEN>() {
                let inbound = Inbound::whole(doorbell_fabric::memory::SharedBytes::of(kept.bytes()));
                self.upper
                    .message(PeerId(name), zerocopy::transmute!(*first), inbound);
            }
            self.core.buffers.give(kept);
        }
        self.core.hot[name as usize].held = !self.core.peers[name as usize].held.is_empty();
    }
}

impl Core {
    /// Holds the message `distance` (at least 1) after the expected one.
    fn hold(&mut self, name: u32, inbound: &Inbound<'_>, distance: u32) {
        let cost = charge(inbound.len());
        let peer = &mut self.peers[name as usize];
        if peer.held.holds(distance) {
            self.stats.duplicates += 1;
            return;
        }
        if peer.held_charge + cost > WINDOW {
            self.stats.too_far_ahead += 1;
            return;
        }
        let kept = self.buffers.copy_inbound(inbound);
        peer.held.hold(distance, kept);
        peer.held_charge += cost;
        self.hot[name as usize].held = true;
        self.stats.held += 1;
    }

    /// A word of the link's own, from a peer of a rail.
    fn on_own_word(&mut self, name: u32, (rail, index): (u16, PeerIndex), first: First) {
        let paths = &self.peers[name as usize].paths;
        let over = paths
            .iter()
            .position(|path| (path.rail, path.index) == (rail, index));
        let Some((word, (states, timers))) = first.word().zip(self.paths_of(name)) else {
            self.stats.bad_words += 1;
            return;
        };
        match on_word(timers, states, name, over, word) {
            Arrival::Taken => self.busy = true,
            Arrival::Late => self.stats.late_words += 1,
            Arrival::Bad => self.stats.bad_words += 1,
        }
    }
}
