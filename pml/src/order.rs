//! Order: rails promise none, so messages that arrive ahead of an earlier one are held until it came.

use doorbell_fabric::message::Inbound;
use doorbell_paths::{Place, Seq};

use crate::core::Core;
use crate::hot::about;
use crate::rank::Rank;
use crate::rendezvous::receiver::ack;
use crate::request::RequestId;
use crate::unexpected::{Envelope, Station, UnexpectedIndex};
use crate::wire::{flag, kind};

impl Core {
    /// A message of the MATCH class has arrived: takes it, holds it, or drops it as a duplicate. Its bytes
    /// start at `at`.
    pub(crate) fn sequence(&mut self, envelope: &Envelope, inbound: &Inbound<'_>, at: usize) {
        let rank = envelope.rank;
        match Seq(envelope.seq).place(self.hot[rank].expected_seq()) {
            Place::Expected => {
                let hot = &mut self.hot[rank];
                hot.advance();
                if hot.is(about::HELD | about::DATA) {
                    self.take_turn(envelope, inbound, at);
                } else {
                    self.take_in(envelope, inbound, at);
                }
            }
            Place::Ahead(distance) => self.hold(envelope, inbound, at, distance),
            Place::Behind => self.duplicate(envelope),
        }
    }

    /// A message whose turn it is, where others may be held behind it, or where it takes the sender's
    /// immediate data.
    #[cold]
    fn take_turn(&mut self, envelope: &Envelope, inbound: &Inbound<'_>, at: usize) {
        let rank = envelope.rank;
        match envelope.immediate() {
            Some(data) => self.data_changes(rank, data),
            None => {
                let data = self.immediate.received(rank);
                self.take_in(&Envelope { data, ..*envelope }, inbound, at);
            }
        }
        if self.hot[rank].is(about::HELD) {
            self.release_held(rank);
        }
    }

    /// A held message whose turn it is.
    fn take_held_turn(&mut self, rank: Rank, index: UnexpectedIndex) {
        if self.hot[rank].is(about::DATA) {
            if let Some(data) = self.unexpected.envelope(index).immediate() {
                let (envelope, buffer) = self.unexpected.take(index);
                self.pool.give(buffer);
                self.peers[rank].release(envelope.charge());
                self.data_changes(rank, data);
                return;
            }
            self.unexpected.set_data(index, self.immediate.received(rank));
        }
        self.take_in_held(index);
    }

    /// A message that is here already. When it came whole and comes again as an announcement, no receive
    /// waits for its bytes; its sender is answered so, unless it is the announcement that came twice.
    #[cold]
    fn duplicate(&mut self, envelope: &Envelope) {
        self.counters.drops.duplicate += 1;
        if envelope.kind != kind::RNDV || envelope.flags & flag::AGAIN == 0 || self.awaits(envelope) {
            return;
        }
        let all = envelope.length;
        let identity = (envelope.context, envelope.tag, envelope.seq);
        // It came whole, and was counted so.
        let head = ack(
            identity,
            envelope.sender,
            RequestId::NONE,
            all..all,
            envelope.restart,
            all,
        );
        self.queue_answer(envelope.rank, head);
    }

    /// Whether this announcement itself is kept, or its bytes are under way.
    fn awaits(&self, envelope: &Envelope) -> bool {
        let under_way = self.requests.indices().any(|index| {
            let slot = self.requests.peek(index);
            slot.state().is_receiving()
                && slot.peer() == envelope.rank
                && self.requests.peek_record(index).remote_request() == envelope.sender
        });
        under_way || self.unexpected.holds(envelope.rank, envelope.sender)
    }

    #[cold]
    fn hold(&mut self, envelope: &Envelope, inbound: &Inbound<'_>, at: usize, distance: u32) {
        if u64::from(distance) > self.reorder_limit(envelope.rank) {
            self.counters.drops.too_far_ahead += 1;
            return;
        }
        if self.peers[envelope.rank].held.holds(distance) {
            self.duplicate(envelope);
            return;
        }
        let index = self.record(Station::Held, envelope, inbound, at);
        self.peers[envelope.rank].held.hold(distance, index);
        self.hot[envelope.rank].set(about::HELD);
        self.counters.held += 1;
        self.keep_charge(envelope.rank, envelope.charge());
    }

    /// The expected number has just advanced: takes in what was held and has become expected.
    #[cold]
    pub(crate) fn release_held(&mut self, rank: Rank) {
        while let Some(index) = self.peers[rank].held.advance() {
            self.hot[rank].advance();
            self.take_held_turn(rank, index);
        }
        if self.peers[rank].held.is_empty() {
            self.hot[rank].clear(about::HELD);
        }
    }
}
