//! Messages to ourselves: no rail, the same matching, the same order.

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::Inbound;

use crate::args::{Payload, Sent};
use crate::convertor::{Cursor, Origin, to_usize};
use crate::core::Core;
use crate::rails::RailId;
use crate::rank::Rank;
use crate::receive::{Landing, SELF_WAIT};
use crate::request::{Event, Outcome, RequestId, State, mark};
use crate::unexpected::{Envelope, Station};
use crate::wire::kind;

/// Longest message to ourselves that is copied when no receive waits for it.
const COPY_UP_TO: u64 = 64 << 10;

/// A send that is on its way.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) to: Rank,
    pub(crate) context: u16,
    pub(crate) tag: u64,
    pub(crate) origin: Origin,
    pub(crate) marks: u16,
}

impl Core {
    /// Sends to ourselves.
    pub(crate) fn send_self(&mut self, outgoing: Outgoing) -> Sent {
        self.counters.sent_self += 1;
        self.counters.arrived += 1;
        let mut envelope = Envelope {
            rank: self.me(),
            rail: RailId(0),
            kind: kind::MATCH,
            flags: 0,
            context: outgoing.context,
            seq: 0,
            tag: outgoing.tag,
            length: outgoing.origin.len(),
            sender: 0,
            body: to_usize(outgoing.origin.len()),
            remote: None,
            restart: 0,
            checksum: None,
            data: self.immediate.received(self.me()),
            lead: 0,
        };
        let key = self.key_of(&envelope);
        if let Some(found) = self.matcher.arrive(key, envelope.length) {
            self.hand_over(&found.into(), &envelope, &outgoing.origin);
            self.drop_origin(envelope.rank, outgoing.origin);
            return Sent::Done;
        }
        self.counters.unexpected += 1;
        let kept = self.peers[envelope.rank].kept();
        let own = matches!(outgoing.origin, Origin::Own(..));
        let copy = outgoing.marks & mark::SYNC == 0
            && (own || envelope.length <= COPY_UP_TO && kept + envelope.charge() <= self.config.window);
        let closed = self.is_closed(envelope.context);
        if closed && copy {
            self.drop_origin(envelope.rank, outgoing.origin);
            return Sent::Done;
        }
        let mut sent = Sent::Done;
        let index = if copy {
            let mut buffer = self.pool.take(envelope.body);
            let mut cursor = Cursor::default();
            outgoing
                .origin
                .pack(&mut cursor, 0, &mut buffer.bytes_mut()[..envelope.body]);
            self.drop_origin(envelope.rank, outgoing.origin);
            self.unexpected.put(Station::Kept, envelope, buffer)
        } else {
            let (id, slot) = self.requests.take();
            slot.send(
                Event::SentToSelf,
                outgoing.marks | mark::RECORD,
                envelope.rank,
                (envelope.context, envelope.tag),
                envelope.length,
            );
            self.requests
                .record(id.index())
                .memory
                .set_origin(outgoing.origin);
            if closed {
                let outcome = self.rejected(id);
                self.finish(id.index(), outcome);
                return Sent::Pending(id);
            }
            envelope.kind = SELF_WAIT;
            envelope.sender = id.to_bits();
            envelope.body = 0;
            sent = Sent::Pending(id);
            self.unexpected
                .put(Station::Kept, envelope, crate::pool::Buffer::empty())
        };
        self.peers[envelope.rank].keep(envelope.charge());
        let handle = self.matcher.keep(key, envelope.length, index.token());
        if let Sent::Pending(id) = sent {
            self.requests.record(id.index()).keep(handle);
        }
        sent
    }

    /// Copies a message straight from the sender's memory to the receiver's.
    fn hand_over(&mut self, found: &Landing, envelope: &Envelope, origin: &Origin) {
        match origin {
            Origin::Nothing | Origin::Window(_) => {
                self.deliver(found, envelope, &Inbound::whole(SharedBytes::EMPTY), 0);
            }
            Origin::User(Payload::Loan(loan)) => {
                self.deliver(found, envelope, &Inbound::whole(loan.as_shared()), 0);
            }
            Origin::User(Payload::Region(slice)) => {
                self.deliver(found, envelope, &Inbound::whole(slice.as_shared()), 0);
            }
            Origin::Own(buffer, used) => {
                let bytes = SharedBytes::of(&buffer.bytes()[..*used]);
                self.deliver(found, envelope, &Inbound::whole(bytes), 0);
            }
            Origin::User(Payload::Parts(_) | Payload::Strided(_)) => {
                let mut buffer = self.pool.take(envelope.body);
                let bytes = &mut buffer.bytes_mut()[..envelope.body];
                self.counters.packed_bytes += origin.pack(&mut Cursor::default(), 0, bytes) as u64;
                let bytes = SharedBytes::of(&buffer.bytes()[..envelope.body]);
                self.deliver(found, envelope, &Inbound::whole(bytes), 0);
                self.pool.give(buffer);
            }
        }
    }

    /// A receive matched a message to ourselves that waits with its sender.
    pub(crate) fn deliver_own(&mut self, found: &Landing, envelope: &Envelope) {
        let id = envelope.own_request();
        let mut envelope = Envelope {
            kind: kind::MATCH,
            ..*envelope
        };
        let waits = self
            .requests
            .get(id)
            .is_some_and(|slot| slot.state() == State::SelfWait);
        if !waits {
            // Its sender aborted it after it was claimed.
            let slot = self.requests.slot(found.request.index());
            slot.matched(envelope.rank, envelope.tag, 0);
            self.finish(found.request.index(), Outcome::SendAborted);
            return;
        }
        let origin = self.requests.record(id.index()).memory.take_origin();
        envelope.body = to_usize(envelope.length);
        self.hand_over(found, &envelope, &origin);
        self.drop_origin(envelope.rank, origin);
        self.finish(id.index(), Outcome::Ok);
    }

    /// A message to ourselves is discarded: its send is complete.
    pub(crate) fn discard_own(&mut self, id: RequestId) {
        if self
            .requests
            .get(id)
            .is_some_and(|slot| slot.state() == State::SelfWait)
        {
            self.finish(id.index(), Outcome::Ok);
        }
    }
}
