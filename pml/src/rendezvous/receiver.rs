//! The receiving side of a rendezvous.

use doorbell_fabric::message::{Inbound, OpError};

use crate::args::Target;
use crate::core::Core;
use crate::counters::Drops;
use crate::intervals::Rejected;
use crate::peer::{Task, about};
use crate::request::{Outcome, RequestId, State, mark};
use crate::unexpected::Envelope;
use crate::wire::{self, AckHeader, FRAG_LEN, FinHeader, FragHeader, Head, MatchHeader, flag, kind};

impl Core {
    /// A receive has met an announcement; what came with it is copied already.
    pub(crate) fn begin_transfer(&mut self, index: usize, envelope: &Envelope) {
        let lost = self.hot[envelope.rank as usize].is(about::LOST);
        let can = self.peers[envelope.rank as usize]
            .path_of(envelope.rail)
            .map(|at| &self.peers[envelope.rank as usize].paths[at])
            .filter(|path| path.up)
            .map(|path| path.can.features);
        let id = self.requests.id(index);
        let (slot, record) = self.requests.both(index);
        record.remote_request = envelope.sender;
        record.seq = envelope.seq;
        record.rail = envelope.rail;
        slot.context = envelope.context;
        let whole = record.target.as_ref().is_none_or(Target::is_contiguous);
        let done = record.moved >= record.until;
        if lost {
            self.finish(index, Outcome::PeerLost);
        } else if envelope.kind == kind::RGET {
            record.remote = envelope.remote;
            if done {
                self.say_finished(index, 0);
                self.finish_received(index);
            } else if whole && can.is_some_and(|can| can.get) {
                slot.state = State::Getting;
                self.ask(envelope.rank, Task::Get(id));
            } else {
                self.fall_back(index);
            }
        } else if !done && whole && envelope.flags & flag::CAN_PUT != 0 && can.is_some_and(|can| can.put) {
            slot.state = State::PutExposed;
            record.remote_at = record.moved;
            self.ask(envelope.rank, Task::Expose(id));
        } else {
            self.ask_for_fragments(index);
        }
    }

    /// Answers with ACK: the sender is to send `[moved, until)` as fragments.
    pub(crate) fn ask_for_fragments(&mut self, index: usize) {
        let id = self.requests.id(index);
        let (slot, record) = self.requests.both(index);
        slot.state = State::Fragments;
        record.arrived.clear();
        let rank = slot.peer;
        let head = ack(
            slot.context,
            slot.tag,
            record.seq,
            record.remote_request,
            id,
            record.moved,
            record.until,
        );
        let done = record.moved >= record.until;
        // An empty list always has room for its first range.
        let _ = record.arrived.add(0, record.moved);
        self.tell(rank, head);
        if done {
            self.finish_received(index);
        }
    }

    /// One-sided access failed: the rest comes as fragments.
    pub(crate) fn fall_back(&mut self, index: usize) {
        self.counters.fallbacks += 1;
        self.ask_for_fragments(index);
    }

    /// Tells the other side that the one-sided transfer is complete, or with NACK flags that it is given up.
    pub(crate) fn say_finished(&mut self, index: usize, flags: u8) {
        self.say(kind::FIN, index, flags);
    }

    pub(crate) fn say(&mut self, kind: u8, index: usize, flags: u8) {
        let id = self.requests.id(index);
        let (slot, record) = self.requests.both(index);
        let own = id.to_bits();
        let to_receiver = flags & flag::TO_RECEIVER != 0;
        let (sender, receiver) = if to_receiver {
            (own, record.remote_request)
        } else {
            (record.remote_request, own)
        };
        let head = Head::new(&FinHeader {
            matching: MatchHeader::new(kind, flags, slot.context, record.seq, slot.tag),
            sender: sender.into(),
            receiver: receiver.into(),
            status: 0.into(),
            restart: 0.into(),
        });
        let rank = slot.peer;
        self.tell(rank, head);
    }

    /// A fragment has arrived.
    pub(crate) fn on_frag(&mut self, rank: u32, inbound: &Inbound<'_>) {
        let Some(bytes) = inbound.read::<FRAG_LEN>(0) else {
            self.counters.drops.runt += 1;
            return;
        };
        let header: FragHeader = wire::parse(bytes);
        let id = RequestId::from_bits(header.receiver.get());
        let length = inbound.len() - FRAG_LEN;
        let Some(slot) = self.requests.get(id) else {
            self.counters.drops.stale_request += 1;
            return;
        };
        if slot.peer != rank {
            self.counters.drops.wrong_peer += 1;
            return;
        }
        match slot.state {
            State::Fragments => {}
            State::PutExposed => self.put_became_fragments(id.index()),
            _ => {
                self.counters.drops.wrong_state += 1;
                return;
            }
        }
        let (slot, record) = self.requests.both(id.index());
        let offset = header.offset.get();
        let end = offset
            .checked_add(length as u64)
            .filter(|end| *end <= record.until);
        let Some(end) = end.filter(|_| length > 0) else {
            self.counters.drops.bad_range += 1;
            return;
        };
        match record.arrived.add(offset, end) {
            Ok(()) => {}
            Err(why) => {
                count_rejected(&mut self.counters.drops, why);
                return;
            }
        }
        match &record.target {
            Some(target) if slot.marks & mark::APART != 0 => {
                target.scatter(&mut record.cursor, offset, inbound, FRAG_LEN, length);
            }
            _ => {
                // `end` is within the room, whose length is a usize.
                let part = slot.room.part(offset as usize, length);
                inbound.copy_to_loan(FRAG_LEN, &part, 0);
            }
        }
        self.counters.frags_received += 1;
        record.moved += length as u64;
        if record.moved == record.until {
            self.finish_received(id.index());
        }
    }

    /// The sender cannot write our memory, and sends fragments instead.
    pub(crate) fn put_became_fragments(&mut self, index: usize) {
        self.withdraw(index);
        let (slot, record) = self.requests.both(index);
        slot.state = State::Fragments;
        record.arrived.clear();
        let _ = record.arrived.add(0, record.moved); // the first range always has room
    }

    /// A read of the sender's memory has ended.
    pub(crate) fn get_ended(&mut self, index: usize, outcome: Result<u64, OpError>) {
        let id = self.requests.id(index);
        let (slot, record) = self.requests.both(index);
        record.operation = None;
        if let Some(doomed) = record.doomed {
            if slot.marks & mark::ABORTED != 0 {
                self.say_finished(index, 0);
            }
            self.finish(index, doomed);
            return;
        }
        if outcome.is_err() {
            self.fall_back(index);
            return;
        }
        record.moved += record.operation_bytes;
        if record.moved < record.until {
            let rank = slot.peer;
            self.ask(rank, Task::Get(id));
        } else {
            self.say_finished(index, 0);
            self.finish_received(index);
        }
    }

    /// FIN of a put: the bytes are in our memory. NACK: the sender gave the message up.
    pub(crate) fn on_sender_word(&mut self, rank: u32, header: &FinHeader) {
        let id = RequestId::from_bits(header.receiver.get());
        let Some(slot) = self.requests.get(id) else {
            self.counters.drops.stale_request += 1;
            return;
        };
        let state = slot.state;
        if !self.is_from(rank, id.index(), &header.matching, header.sender.get()) {
            return;
        }
        let given_up = header.matching.kind == kind::NACK;
        let record = self.requests.record(id.index());
        // When the rail of our PUT went down we asked for fragments, but the sender may have written by then: a
        // write that succeeded was complete before the memory was withdrawn.
        let exposed = state == State::PutExposed || state == State::Fragments && record.remote.is_some();
        match (state, given_up) {
            (State::PutExposed | State::Fragments, false) if exposed => {
                record.moved = record.until;
                self.withdraw(id.index());
                self.finish_received(id.index());
            }
            (State::PutExposed | State::Fragments, true) => {
                self.withdraw(id.index());
                self.finish(id.index(), Outcome::SendAborted);
            }
            _ => self.counters.drops.wrong_state += 1,
        }
    }

    /// Whether a message about a live request comes from its peer and is about its message.
    pub(crate) fn is_from(&mut self, rank: u32, index: usize, matching: &MatchHeader, theirs: u64) -> bool {
        let (slot, record) = self.requests.both(index);
        if slot.peer != rank {
            self.counters.drops.wrong_peer += 1;
            return false;
        }
        if !matches!(
            slot.state,
            State::Fragments
                | State::Getting
                | State::PutExposed
                | State::AwaitAck
                | State::AwaitFin
                | State::Streaming
                | State::Putting
        ) {
            self.counters.drops.wrong_state += 1;
            return false;
        }
        let known = record.remote_request == 0 || record.remote_request == theirs;
        let same = (slot.context, slot.tag, record.seq)
            == (matching.context.get(), matching.tag.get(), matching.seq.get());
        if !(known && same) {
            self.counters.drops.wrong_identity += 1;
            return false;
        }
        true
    }
}

/// An ACK.
pub(crate) fn ack(
    context: u16,
    tag: u64,
    seq: u32,
    sender: u64,
    receiver: RequestId,
    offset: u64,
    until: u64,
) -> Head {
    Head::new(&AckHeader {
        matching: MatchHeader::new(kind::ACK, 0, context, seq, tag),
        sender: sender.into(),
        receiver: receiver.to_bits().into(),
        offset: offset.into(),
        until: until.into(),
        restart: 0.into(),
        reserved: 0.into(),
    })
}

fn count_rejected(drops: &mut Drops, why: Rejected) {
    match why {
        Rejected::Repeated => drops.repeated_bytes += 1,
        Rejected::TooMany => drops.bad_range += 1,
    }
}
