//! The receiving side of a rendezvous.

use std::ops::Range;

use doorbell_fabric::message::{Inbound, OpError};

use crate::backlog::Task;
use crate::core::Core;
use crate::counters::Drops;
use crate::hot::about;
use crate::intervals::Rejected;
use crate::rank::Rank;
use crate::request::RequestIndex;
use crate::request::{Event, Outcome, RequestId, State, mark};
use crate::unexpected::Envelope;
use crate::wire::{self, AckHeader, FRAG_LEN, FinHeader, FragHeader, Head, MatchHeader, flag, kind};

impl Core {
    /// A receive matched an announcement; what came with it is copied already.
    pub(crate) fn begin_transfer(&mut self, index: RequestIndex, envelope: &Envelope) {
        let lost = self.hot[envelope.rank].is(about::LOST);
        let paths = &self.peers[envelope.rank].paths;
        let path = paths.over(envelope.rail).map(|at| &paths[at]);
        let can = path.filter(|path| path.is_up()).map(|path| path.can().features);
        let id = self.requests.id(index);
        let (slot, record) = self.requests.both(index);
        record.set_remote_request(envelope.sender);
        record.set_seq(envelope.seq);
        record.one_sided.set_rail(envelope.rail);
        record.handshake.set_attempt(envelope.restart);
        record.progress.set_counted(envelope.body as u64);
        slot.set_context(envelope.context);
        let whole = record.memory.is_whole();
        let done = record.progress.is_done();
        if lost {
            self.finish(index, Outcome::PeerLost);
        } else if envelope.restart % 2 == 1 {
            self.await_restart(index);
        } else if envelope.kind == kind::RGET {
            record.one_sided.set_remote(envelope.remote);
            if done {
                self.queue_fin(index, 0);
                self.finish_received(index);
            } else if whole && can.is_some_and(|can| can.get) {
                slot.turn(Event::Reads);
                self.queue_task(envelope.rank, Task::Get(id));
            } else if whole && can.is_none() && envelope.restart == 0 {
                // (The second time, when the path is up at the other end alone, fragments take any that is.)
                slot.turn(Event::Reads);
                self.receive_broke(index);
            } else {
                self.fall_back(index);
            }
        } else if !done && whole && envelope.flags & flag::CAN_PUT != 0 && can.is_some_and(|can| can.put) {
            slot.turn(Event::Invites);
            record.one_sided.start_at(record.progress.moved());
            self.queue_task(envelope.rank, Task::Expose(id));
        } else {
            self.ask_for_fragments(index);
        }
    }

    /// It was matched after its sender had begun to restart it, and had been answered that we are ready.
    fn await_restart(&mut self, index: RequestIndex) {
        let (slot, record) = self.requests.both(index);
        slot.turn(Event::Outdated);
        record.handshake.join();
        record.progress.keep_front();
    }

    /// Answers with ACK: the sender is to send what is lacking as fragments; as a rule, all from `moved` on.
    pub(crate) fn ask_for_fragments(&mut self, index: RequestIndex) {
        let id = self.requests.id(index);
        let (slot, record) = self.requests.both(index);
        let rank = slot.peer();
        slot.turn(Event::Asks);
        let holes = record.progress.holes(record.handshake.attempt() == 0);
        let identity = (slot.context(), slot.tag(), record.seq());
        let head = ack(
            identity,
            record.remote_request(),
            id,
            holes.first(),
            record.handshake.attempt(),
            record.progress.counted(),
        );
        let done = record.progress.is_done();
        match holes.rest() {
            [] => self.queue_head(rank, head),
            rest => self.queue_head_with(rank, head, rest),
        }
        if done {
            self.finish_received(index);
        }
    }

    /// One-sided access failed: the rest comes as fragments.
    pub(crate) fn fall_back(&mut self, index: RequestIndex) {
        self.counters.fallbacks += 1;
        self.ask_for_fragments(index);
    }

    /// Notifies the other side that the one-sided transfer is complete.
    pub(crate) fn queue_fin(&mut self, index: RequestIndex, flags: u8) {
        self.queue_end(kind::FIN, index, flags);
    }

    pub(crate) fn queue_end(&mut self, kind: u8, index: RequestIndex, flags: u8) {
        let id = self.requests.id(index);
        let (slot, record) = self.requests.both(index);
        let own = id.to_bits();
        let to_receiver = flags & flag::TO_RECEIVER != 0;
        let (sender, receiver) = if to_receiver {
            (own, record.remote_request())
        } else {
            (record.remote_request(), own)
        };
        let head = Head::new(&FinHeader {
            matching: MatchHeader::new(kind, flags, slot.context(), record.seq(), slot.tag()),
            sender: sender.into(),
            receiver: receiver.into(),
            status: 0.into(),
            restart: record.handshake.attempt().into(),
        });
        let rank = slot.peer();
        self.queue_head(rank, head);
    }

    /// A fragment has arrived.
    pub(crate) fn on_frag(&mut self, rank: Rank, inbound: &Inbound<'_>) {
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
        if slot.peer() != rank {
            self.counters.drops.wrong_peer += 1;
            return;
        }
        let (state, offset) = (slot.state(), header.offset.get());
        let record = self.requests.record(id.index());
        if header.restart.get() != record.handshake.attempt() {
            self.counters.drops.late_word += 1;
            return;
        }
        let end = offset
            .checked_add(length as u64)
            .filter(|end| *end <= record.progress.until());
        let Some(end) = end.filter(|_| length > 0) else {
            self.counters.drops.bad_range += 1;
            return;
        };
        match state {
            State::Fragments => {}
            State::PutExposed => self.put_became_fragments(id.index()),
            State::RecvRestart if self.goes_on(id.index(), header.restart.get()) => {}
            _ => {
                self.counters.drops.wrong_state += 1;
                return;
            }
        }
        let (slot, record) = self.requests.both(id.index());
        match record.progress.fragment(offset, end) {
            Ok(()) => {}
            Err(why) => {
                count_rejected(&mut self.counters.drops, why);
                if why == Rejected::TooMany {
                    // Its rail thinks it delivered, and does not bring it again.
                    self.receive_broke(id.index());
                }
                return;
            }
        }
        record.memory.fill(slot, offset, inbound, FRAG_LEN, length);
        self.counters.frags_received += 1;
        if record.progress.is_done() {
            self.finish_received(id.index());
        }
    }

    /// The sender cannot write our memory, and sends fragments instead.
    pub(crate) fn put_became_fragments(&mut self, index: RequestIndex) {
        self.withdraw(index);
        let (slot, record) = self.requests.both(index);
        slot.turn(Event::Surprised);
        record.progress.keep_front();
    }

    /// A read of the sender's memory has ended.
    pub(crate) fn get_ended(&mut self, index: RequestIndex, outcome: Result<u64, OpError>) {
        let id = self.requests.id(index);
        let (slot, record) = self.requests.both(index);
        let bytes = record.one_sided.end();
        if let Some(doomed) = record.one_sided.doomed() {
            if slot.is(mark::ABORTED) {
                self.queue_fin(index, 0);
            }
            self.finish(index, doomed);
            return;
        }
        match outcome {
            Ok(_) => {}
            // The path is gone, not the memory: another one will do.
            Err(OpError::NotDone | OpError::Indeterminate) => return self.receive_broke(index),
            Err(_) => {
                // It may have written over what had arrived behind it.
                record.progress.keep_front();
                return self.fall_back(index);
            }
        }
        record.progress.advance(bytes);
        if !record.progress.is_done() {
            let rank = slot.peer();
            self.queue_task(rank, Task::Get(id));
        } else {
            self.queue_fin(index, 0);
            self.finish_received(index);
        }
    }

    /// FIN of a put: the bytes are in our memory. NACK: the sender gave the message up.
    pub(crate) fn on_sender_word(&mut self, rank: Rank, header: &FinHeader) {
        let id = RequestId::from_bits(header.receiver.get());
        let Some(slot) = self.requests.get(id) else {
            self.counters.drops.stale_request += 1;
            return;
        };
        let state = slot.state();
        if !self.is_from(rank, id.index(), &header.matching, header.sender.get()) {
            return;
        }
        let given_up = header.matching.kind == kind::NACK;
        let record = self.requests.record(id.index());
        // When the path of our PUT broke we requested a restart, but the sender may have written by then: a
        // write that succeeded was complete before the memory was withdrawn. One of our reads that is under
        // way still writes into the room, whatever the sender reports.
        let written = state == State::PutExposed
            || state == State::RecvRestart
                && header.restart.get() == record.handshake.attempt()
                && record.one_sided.has_invited();
        let exposed = written && !record.one_sided.is_busy();
        match (state, given_up) {
            (State::PutExposed | State::RecvRestart, false) if exposed => {
                record.progress.complete();
                self.withdraw(id.index());
                self.finish_received(id.index());
            }
            (State::PutExposed | State::Fragments | State::RecvRestart, true)
                if !record.one_sided.is_busy() =>
            {
                self.withdraw(id.index());
                self.finish(id.index(), Outcome::SendAborted);
            }
            _ => self.counters.drops.wrong_state += 1,
        }
    }

    /// Whether a message about a live request comes from its peer and is about its message.
    pub(crate) fn is_from(
        &mut self,
        rank: Rank,
        index: RequestIndex,
        matching: &MatchHeader,
        theirs: u64,
    ) -> bool {
        let (slot, record) = self.requests.both(index);
        if slot.peer() != rank {
            self.counters.drops.wrong_peer += 1;
            return false;
        }
        if !slot.state().is_transfer() {
            self.counters.drops.wrong_state += 1;
            return false;
        }
        // Either side may not know the other's request, or have none any more.
        let known = record.remote_request() == 0 || theirs == 0 || record.remote_request() == theirs;
        let same = (slot.context(), slot.tag(), record.seq())
            == (matching.context.get(), matching.tag.get(), matching.seq.get());
        if !(known && same) {
            self.counters.drops.wrong_identity += 1;
            return false;
        }
        true
    }
}

/// An ACK for the message of that context, tag and number; `counted` bytes came with its announcement.
pub(crate) fn ack(
    (context, tag, seq): (u16, u64, u32),
    sender: u64,
    receiver: RequestId,
    wanted: Range<u64>,
    restart: u32,
    counted: u64,
) -> Head {
    Head::new(&AckHeader {
        matching: MatchHeader::new(kind::ACK, 0, context, seq, tag),
        sender: sender.into(),
        receiver: receiver.to_bits().into(),
        offset: wanted.start.into(),
        until: wanted.end.into(),
        restart: restart.into(),
        // No rail takes 4 GiB in one message.
        counted: u32::try_from(counted).unwrap_or(u32::MAX).into(),
    })
}

fn count_rejected(drops: &mut Drops, why: Rejected) {
    match why {
        Rejected::Repeated => drops.repeated_bytes += 1,
        Rejected::TooMany => drops.bad_range += 1,
    }
}
