//! Answers: from the target, and what they do at the initiator.

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Inbound, Message};

use super::args::{outcome_of, status_of};
use super::windows::Spans;
use super::{reply_charge, reply_most};
use crate::backlog::{Control, Task};
use crate::convertor::Origin;
use crate::core::Core;
use crate::credit::ENVELOPE;
use crate::hot::about;
use crate::pml::Pml;
use crate::rank::Rank;
use crate::rendezvous::receiver::ack;
use crate::request::{Event, Outcome, RequestId, RequestIndex, State, mark};
use crate::unexpected::Envelope;
use crate::wire::{AnswerHeader, kind};

/// Bytes that an answer brings, at most; longer results are messages.
pub(crate) const VALUE_MOST: usize = 8;

/// The initiator of an operation, and what it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) rank: Rank,
    pub(crate) context: u16,
    /// The initiator's request.
    pub(crate) request: u64,
    /// What the operation counts against the initiator's window until its answer has left.
    pub(crate) charge: u64,
}

impl Core {
    /// An operation of a peer is here, and counts until its answer has left. A peer that sends more than was
    /// agreed is cut off.
    pub(crate) fn admit(&mut self, envelope: &Envelope, bytes: u64) -> Asker {
        let asker = Asker {
            rank: envelope.rank,
            context: envelope.context,
            request: envelope.tag,
            charge: ENVELOPE + bytes,
        };
        self.keep_charge(asker.rank, asker.charge);
        asker
    }

    /// The reply to an operation counts with it.
    pub(crate) fn admit_reply(&mut self, asker: &mut Asker, length: u64) {
        if asker.rank != self.me() {
            let charge = reply_charge(&self.config, length);
            asker.charge += charge;
            self.keep_charge(asker.rank, charge);
        }
    }

    /// Answers an operation, with up to eight bytes of what it returns.
    pub(crate) fn answer(&mut self, asker: &Asker, outcome: Outcome, value: &[u8]) {
        self.counters.operations_refused += u64::from(outcome != Outcome::Ok);
        let mut bytes = [0; VALUE_MOST];
        let length = value.len().min(VALUE_MOST);
        bytes[..length].copy_from_slice(&value[..length]);
        let head = AnswerHeader {
            kind: kind::ANSWER,
            status: status_of(outcome),
            length: (length as u16).into(),
            reserved: 0.into(),
            request: asker.request.into(),
            value: bytes,
        };
        if asker.rank == self.me() {
            self.on_answer(asker.rank, &head);
        } else if self.hot[asker.rank].is(about::LOST) {
            self.settle_operation(asker.rank, asker.charge);
        } else {
            if self.rma.answers.is_empty() {
                self.work.wake();
            }
            self.rma.answers.push((head, *asker));
        }
    }

    /// An answer waits for a rail.
    #[cold]
    fn queue_operation_answer(&mut self, head: AnswerHeader, asker: &Asker) {
        if self.hot[asker.rank].is(about::LOST) {
            self.settle_operation(asker.rank, asker.charge);
            return;
        }
        let answer = Control::Answer(head, asker.charge);
        self.peers[asker.rank].backlog.push_control(answer);
        self.list(asker.rank);
    }

    /// Answers an operation with bytes that are too long for an answer: a message, which is a copy of the
    /// memory as it is now.
    pub(crate) fn reply_with(
        &mut self,
        asker: &Asker,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Outcome>,
    ) -> Result<(), Outcome> {
        if asker.rank == self.me() {
            let mut buffer = self.pool.take(length);
            let filled = fill(&mut buffer.bytes_mut()[..length]);
            if filled.is_ok() {
                self.reply_to_self(asker, SharedBytes::of(&buffer.bytes()[..length]));
            }
            self.pool.give(buffer);
            return filled;
        }
        let mut buffer = self.pool.hold(asker.rank, length);
        if let Err(outcome) = fill(&mut buffer.bytes_mut()[..length]) {
            self.pool.release(asker.rank, buffer, length);
            return Err(outcome);
        }
        self.begin_reply(asker, Origin::Own(buffer, length), Spans::default());
        Ok(())
    }

    /// A message with what an operation returns begins.
    pub(crate) fn begin_reply(&mut self, asker: &Asker, origin: Origin, spans: Spans) {
        let (id, slot) = self.requests.take();
        let marks = mark::DETACHED | mark::RECORD | mark::REPLY;
        let identity = (asker.context, asker.request);
        slot.send(Event::Replies, marks, asker.rank, identity, origin.len());
        self.requests.record(id.index()).memory.set_origin(origin);
        let record = self.rma.record(id.index());
        record.asker = Some(*asker);
        record.spans = spans;
        self.queue_task(asker.rank, Task::Reply(id));
        if self.hot[asker.rank].is(about::LOST) {
            self.finish(id.index(), Outcome::PeerLost);
        }
    }

    /// ANSWER: the target has done an operation, or refuses it.
    pub(crate) fn on_answer(&mut self, rank: Rank, header: &AnswerHeader) {
        let id = RequestId::from_bits(header.request.get());
        let Some(slot) = self.requests.get(id) else {
            self.counters.drops.stale_request += 1;
            return;
        };
        if slot.peer() != rank {
            self.counters.drops.wrong_peer += 1;
            return;
        }
        let (state, marks, wanted) = (slot.state(), slot.marks(), slot.length());
        let Some(outcome) = outcome_of(header.status) else {
            self.counters.drops.bad_range += 1;
            return;
        };
        let index = id.index();
        match state {
            // No honest target answers what has not left.
            State::AwaitReply if !self.has_left(index, rank) => self.counters.drops.wrong_state += 1,
            State::AwaitAnswer if marks & mark::OPERATION != 0 => self.finish(index, outcome),
            State::AwaitReply if outcome != Outcome::Ok => self.finish(index, outcome),
            State::AwaitReply => {
                let length = usize::from(header.length.get());
                if length as u64 != wanted || length > VALUE_MOST {
                    self.counters.drops.bad_range += 1;
                    return;
                }
                let value = Inbound::whole(SharedBytes::of(&header.value));
                let (slot, record) = self.requests.both(index);
                record.memory.fill(slot, 0, &value, 0, length);
                self.finish(index, Outcome::Ok);
            }
            // Its own words are under way still.
            _ if marks & mark::OPERATION != 0 && state.is_transfer() => {
                self.rma.record(index).answered.get_or_insert(outcome);
            }
            _ => self.counters.drops.wrong_state += 1,
        }
    }

    /// A message with what an operation of ours returns.
    pub(crate) fn reply_arrived(&mut self, envelope: &Envelope, inbound: &Inbound<'_>, at: usize) {
        let id = RequestId::from_bits(envelope.tag);
        let waits = self.requests.get(id).is_some_and(|slot| {
            slot.peer() == envelope.rank
                && slot.state() == State::AwaitReply
                && slot.length() == envelope.length
        });
        if waits && self.has_left(id.index(), envelope.rank) {
            return self.begin(id.index(), envelope, inbound, at);
        }
        self.counters.drops.stale_request += 1;
        if envelope.kind != kind::MATCH {
            // Its sender is to send nothing.
            let all = envelope.length;
            let identity = (envelope.context, envelope.tag, envelope.seq);
            let head = ack(
                identity,
                envelope.sender,
                RequestId::NONE,
                all..all,
                envelope.restart,
                0,
            );
            self.queue_answer(envelope.rank, head);
        }
    }

    /// Counts what a reply may count while it is held, from the moment when it is requested.
    pub(crate) fn solicit(&mut self, id: RequestId, rank: Rank, length: u64) {
        let solicited = ENVELOPE + reply_charge(&self.config, length);
        self.rma.record(id.index()).solicited = solicited;
        self.rma.solicit(rank, solicited);
    }

    /// Whether an operation that waits for its reply has left, and is not in the backlog.
    fn has_left(&mut self, index: RequestIndex, rank: Rank) -> bool {
        rank == self.me() || self.rma.record(index).solicited > 0
    }

    /// Whether a reply of this length is one message.
    pub(crate) fn is_short_reply(&self, length: u64) -> bool {
        length <= reply_most(&self.config)
    }
}

impl<M: Message> Pml<M> {
    /// Sends the answers of the last pass, each at once where a rail takes it. Returns how many there were.
    pub(crate) fn send_answers(&mut self) -> usize {
        if self.core.rma.answers.is_empty() {
            return 0;
        }
        // Out of the way: a rail that breaks meanwhile may have its last arrivals done.
        let mut answers = std::mem::take(&mut self.core.rma.answers);
        let count = answers.len();
        for (head, asker) in answers.drain(..) {
            let waits = self.core.peers[asker.rank].backlog.control_len() > 0;
            if waits || self.send_answer(asker.rank, &head, asker.charge).is_err() {
                self.core.queue_operation_answer(head, &asker);
            }
        }
        if self.core.rma.answers.is_empty() {
            self.core.rma.answers = answers;
        }
        count
    }
}
