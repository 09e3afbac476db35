//! The sending side of a rendezvous.

use doorbell_fabric::message::{Inbound, OpError, Remote};

use crate::backlog::Task;
use crate::core::Core;
use crate::rails::RailId;
use crate::rank::Rank;
use crate::request::RequestIndex;
use crate::request::{Event, Outcome, RequestId, State, mark};
use crate::wire::{self, AckHeader, FinHeader, PutHeader, REMOTE_LEN, flag, kind};

impl Core {
    /// ACK: the receiver has matched, and requests `[offset, until)` as fragments.
    pub(crate) fn on_ack(&mut self, rank: Rank, bytes: [u8; size_of::<AckHeader>()], inbound: &Inbound<'_>) {
        let header: AckHeader = wire::parse(bytes);
        let id = RequestId::from_bits(header.sender.get());
        let Some(slot) = self.requests.get(id) else {
            self.counters.drops.stale_request += 1;
            return;
        };
        let (state, length, aborted) = (slot.state(), slot.length(), slot.is(mark::ABORTED));
        let index = id.index();
        if !self.is_from(rank, index, &header.matching, header.receiver.get()) {
            return;
        }
        // After a put was refused by its own rail the receiver may request fragments, too.
        if !matches!(state, State::AwaitAck | State::AwaitFin) {
            self.counters.drops.wrong_state += 1;
            return;
        }
        if header.restart.get() != self.requests.record(index).handshake.attempt() {
            self.counters.drops.late_word += 1;
            return;
        }
        let (offset, until) = (header.offset.get(), header.until.get());
        if offset > until || until > length {
            self.counters.drops.bad_range += 1;
            return;
        }
        let progress = &mut self.requests.record(index).progress;
        if !progress.want(inbound, size_of::<AckHeader>(), until..length) {
            self.counters.drops.bad_range += 1;
            return;
        }
        self.withdraw(index);
        let record = self.requests.record(index);
        record.set_remote_request(header.receiver.get());
        record.progress.set(offset, until);
        self.settle(index, header.counted.get().into());
        if aborted {
            if offset < until {
                self.give_up(index);
            }
            self.free(index);
        } else if offset == until {
            self.finish(index, Outcome::Ok);
        } else {
            if state == State::AwaitFin {
                self.counters.fallbacks += 1;
            }
            self.requests.slot(index).turn(Event::Asked);
            self.queue_task(rank, Task::Stream(id));
        }
    }

    /// The receiver's first answer contains the bytes that it has counted: fewer than we, when the
    /// announcement was sent again over a rail that takes less, without its bytes or with fewer.
    fn settle(&mut self, index: RequestIndex, counted: u64) {
        let (slot, record) = self.requests.both(index);
        let ours = record.progress.take_counted();
        let rank = slot.peer();
        if record.handshake.attempt() == 0 && counted < ours {
            self.uncharge(rank, ours - counted);
        }
    }

    /// PUT: the receiver has matched, and exposes its room.
    pub(crate) fn on_put(
        &mut self,
        rank: Rank,
        rail: RailId,
        bytes: [u8; size_of::<PutHeader>()],
        inbound: &Inbound<'_>,
    ) {
        let header: PutHeader = wire::parse(bytes);
        let Some(remote) = inbound.read::<REMOTE_LEN>(bytes.len()) else {
            self.counters.drops.runt += 1;
            return;
        };
        let remote: Remote = wire::parse(remote);
        let id = RequestId::from_bits(header.sender.get());
        let Some(slot) = self.requests.get(id) else {
            self.counters.drops.stale_request += 1;
            return;
        };
        let (state, length, aborted) = (slot.state(), slot.length(), slot.is(mark::ABORTED));
        let index = id.index();
        if !self.is_from(rank, index, &header.matching, header.receiver.get()) {
            return;
        }
        if state != State::AwaitAck {
            self.counters.drops.wrong_state += 1;
            return;
        }
        if header.restart.get() != self.requests.record(index).handshake.attempt() {
            self.counters.drops.late_word += 1;
            return;
        }
        let offset = header.offset.get();
        let until = offset
            .checked_add(remote.length.get())
            .filter(|until| *until <= length);
        let Some(until) = until else {
            self.counters.drops.bad_range += 1;
            return;
        };
        let record = self.requests.record(index);
        record.set_remote_request(header.receiver.get());
        record.one_sided.invite(rail, remote, offset);
        record.progress.set(offset, until);
        if aborted {
            self.give_up(index);
            self.free(index);
            return;
        }
        self.requests.slot(index).turn(Event::Invited);
        self.queue_task(rank, Task::Put(id));
    }

    /// FIN of a get: the receiver has read our memory. NACK: it has thrown the message away, with the bytes
    /// that came with the announcement, which it has counted.
    pub(crate) fn on_receiver_word(&mut self, rank: Rank, header: &FinHeader) {
        let id = RequestId::from_bits(header.sender.get());
        let Some(slot) = self.requests.get(id) else {
            self.counters.drops.stale_request += 1;
            return;
        };
        let (state, aborted) = (slot.state(), slot.is(mark::ABORTED));
        if !self.is_from(rank, id.index(), &header.matching, header.receiver.get()) {
            return;
        }
        // The receiver has all of it, which stays true, whatever attempt the message is about.
        let rejected = header.matching.kind == kind::NACK;
        let waits =
            matches!(state, State::AwaitFin | State::SendRestart) || rejected && state == State::AwaitAck;
        if !waits || self.requests.record(id.index()).one_sided.is_busy() {
            self.counters.drops.wrong_state += 1;
            return;
        }
        self.withdraw(id.index());
        let mut outcome = Outcome::Ok;
        if rejected {
            self.settle(id.index(), header.status.get().into());
            outcome = self.rejected(id);
        }
        if aborted {
            self.free(id.index());
        } else {
            self.finish(id.index(), outcome);
        }
    }

    /// Notifies the receiver that its message will not come.
    pub(crate) fn give_up(&mut self, index: RequestIndex) {
        self.queue_end(kind::NACK, index, flag::TO_RECEIVER);
    }

    /// A write into the receiver's memory has ended.
    pub(crate) fn put_ended(&mut self, index: RequestIndex, outcome: Result<u64, OpError>) {
        let id = self.requests.id(index);
        let (slot, record) = self.requests.both(index);
        let rank = slot.peer();
        let bytes = record.one_sided.end();
        if let Some(doomed) = record.one_sided.doomed() {
            if slot.is(mark::ABORTED) {
                self.give_up(index);
            }
            self.finish(index, doomed);
            return;
        }
        match outcome {
            Ok(_) => {}
            Err(OpError::NotDone | OpError::Indeterminate) => return self.send_broke(index),
            Err(_) => return self.put_failed(index),
        }
        record.progress.advance(bytes);
        if !record.progress.is_done() {
            self.queue_task(rank, Task::Put(id));
        } else {
            self.queue_fin(index, flag::TO_RECEIVER);
            self.finish(index, Outcome::Ok);
        }
    }

    /// The receiver's memory cannot be written: everything that it was for goes by fragments.
    pub(crate) fn put_failed(&mut self, index: RequestIndex) {
        self.counters.fallbacks += 1;
        let id = self.requests.id(index);
        let (slot, record) = self.requests.both(index);
        record.progress.go_back(record.one_sided.refuse());
        slot.turn(Event::Refused);
        let rank = slot.peer();
        self.queue_task(rank, Task::Stream(id));
    }

    /// One of our operations has ended.
    pub(crate) fn operation_ended(&mut self, id: RequestId, outcome: Result<u64, OpError>) {
        match self.requests.get(id).map(|slot| slot.state()) {
            Some(State::Getting) => self.get_ended(id.index(), outcome),
            Some(State::Putting) => self.put_ended(id.index(), outcome),
            Some(State::RecvRestart) => self.restart_read_ended(id.index(), outcome.is_ok()),
            Some(State::SendRestart) => self.restart_write_ended(id.index()),
            _ => self.counters.drops.unknown_operation += 1,
        }
    }
}
