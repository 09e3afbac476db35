//! The receiver's part of the handshake.

use doorbell_fabric::message::Inbound;
use doorbell_paths::{Place, Seq};

use crate::config::Resume;
use crate::core::Core;
use crate::rank::Rank;
use crate::rendezvous::receiver::ack;
use crate::request::RequestIndex;
use crate::request::{Event, RequestId, State, mark};
use crate::unexpected::Envelope;
use crate::wire::{Head, MatchHeader, RestartHeader, kind};

use super::{Phase, RECEIVER, Word};

/// Whether an attempt is later than another.
fn is_newer(this: u32, than: u32) -> bool {
    let ahead = this.wrapping_sub(than);
    ahead != 0 && ahead <= u32::MAX / 2
}

impl Core {
    /// The path that a transfer to us went over is broken.
    pub(crate) fn receive_broke(&mut self, index: RequestIndex) {
        self.stop_receiving(index, Word::Broke);
    }

    fn stop_receiving(&mut self, index: RequestIndex, word: Word) -> bool {
        if !self.shake_hands(index, RECEIVER, word) {
            return false;
        }
        self.withdraw(index);
        let (slot, record) = self.requests.both(index);
        if slot.state() == State::Fragments {
            // Fragments may have left holes.
            record.progress.count_arrived();
        } else if slot.state() != State::RecvRestart {
            record.progress.keep_front();
        }
        record.one_sided.set_remote(None);
        slot.turn(Event::ReceiveStopped);
        self.receive_is_quiet(index);
        true
    }

    /// Requests a restart of the sender, or answers that we are ready, once nothing of ours is under way any
    /// more.
    fn receive_is_quiet(&mut self, index: RequestIndex) {
        if self.requests.record(index).one_sided.is_busy() || !self.shake_hands(index, RECEIVER, Word::Quiet)
        {
            return;
        }
        let word = match self.requests.record(index).handshake.phase() {
            Phase::Asked => kind::RESTART_ERROR,
            _ => kind::RESTART_ACK,
        };
        self.queue_restart_head(word, index, false);
    }

    /// A fragment while we wait for a restart: our memory was withdrawn before the sender wrote it, so it
    /// sends fragments.
    pub(crate) fn goes_on(&mut self, index: RequestIndex, restart: u32) -> bool {
        if restart != self.requests.record(index).handshake.attempt()
            || !self.shake_hands(index, RECEIVER, Word::Fragment)
        {
            return false;
        }
        let (slot, record) = self.requests.both(index);
        record.progress.count_arrived();
        slot.turn(Event::Surprised);
        true
    }

    /// A read that the handshake waited for has ended. What it brought is good if it succeeded.
    pub(crate) fn restart_read_ended(&mut self, index: RequestIndex, arrived: bool) {
        let (slot, record) = self.requests.both(index);
        let bytes = record.one_sided.end();
        if let Some(doomed) = record.one_sided.doomed() {
            if slot.is(mark::ABORTED) {
                self.queue_fin(index, 0);
            }
            self.finish(index, doomed);
            return;
        }
        if arrived {
            record.progress.read(bytes);
        }
        self.receive_is_quiet(index);
    }

    /// NOTIFY: the sender requests a restart.
    pub(crate) fn on_restart_notify(&mut self, rank: Rank, header: &RestartHeader) {
        if let Some(index) =
            self.transfer_of(rank, &header.matching, header.sender.get(), header.receiver.get())
        {
            if self.requests.peek(index).state() == State::Held {
                return; // its release ends the restart
            }
            let record = self.requests.record(index);
            if !is_newer(header.restart.get(), record.handshake.attempt()) {
                self.counters.drops.late_word += 1; // it came twice, or is of a cycle that is over
                return;
            }
            record.handshake.set_attempt(header.restart.get());
            self.stop_receiving(index, Word::Notify);
            return;
        }
        self.answer_without_request(rank, header);
    }

    /// NOTIFY about a message that no receive has: it is kept here; or it is complete; or it never came.
    fn answer_without_request(&mut self, rank: Rank, header: &RestartHeader) {
        let seq = header.matching.seq.get();
        let restart = header.restart.get();
        let word = if let Some(kept) = self.unexpected.find(rank, seq) {
            if !is_newer(restart, kept.restart) {
                self.counters.drops.late_word += 1;
                return;
            }
            kept.set_attempt(restart);
            kind::RESTART_ACK
        } else if Seq(seq).place(self.hot[rank].expected_seq()) == Place::Behind {
            kind::RESTART_NACK
        } else {
            kind::RESTART_ACK
        };
        let head = Head::new(&RestartHeader {
            matching: MatchHeader {
                kind: word,
                ..header.matching
            },
            receiver: 0.into(),
            ..*header
        });
        self.queue_answer(rank, head);
    }

    /// An announcement with RESTART. It bypasses matching, except for a message that was never seen here.
    pub(crate) fn restarted(&mut self, envelope: &Envelope, receiver: u64, inbound: &Inbound<'_>, at: usize) {
        let rank = envelope.rank;
        let matching = MatchHeader::new(envelope.kind, 0, envelope.context, envelope.seq, envelope.tag);
        if let Some(index) = self.transfer_of(rank, &matching, envelope.sender, receiver) {
            let record = self.requests.record(index);
            let fits = envelope.restart == record.handshake.attempt().wrapping_add(1);
            if !fits || !self.shake_hands(index, RECEIVER, Word::Restarted) {
                self.counters.drops.late_word += 1;
                return;
            }
            self.resume(index, envelope);
        } else if let Some(kept) = self.unexpected.find(rank, envelope.seq) {
            if !is_newer(envelope.restart, kept.restart) {
                self.counters.drops.late_word += 1;
                return;
            }
            kept.begin_again(envelope);
        } else if Seq(envelope.seq).place(self.hot[rank].expected_seq()) == Place::Behind {
            // Complete, or given up here: either way its sender is done with it.
            let all = envelope.length;
            let identity = (envelope.context, envelope.tag, envelope.seq);
            // The books of its first announcement are closed.
            let head = ack(
                identity,
                envelope.sender,
                RequestId::NONE,
                all..all,
                envelope.restart,
                0,
            );
            self.queue_answer(rank, head);
        } else {
            self.sequence(envelope, inbound, at);
        }
    }

    /// Goes on with a transfer: with what is lacking, or from the start.
    fn resume(&mut self, index: RequestIndex, envelope: &Envelope) {
        let zero = self.config.resume == Resume::FromZero;
        let record = self.requests.record(index);
        record.handshake.set_attempt(envelope.restart);
        record.one_sided.set_invited(false);
        self.counters.resumed_bytes += record.progress.resume(zero);
        self.begin_transfer(index, envelope);
    }

    /// The receive that is in the middle of this message of `rank`: by its number, or by the message, when
    /// the sender does not know it.
    fn transfer_of(
        &mut self,
        rank: Rank,
        matching: &MatchHeader,
        sender: u64,
        receiver: u64,
    ) -> Option<RequestIndex> {
        let fits = |core: &Self, index: RequestIndex| {
            let (slot, record) = (core.requests.peek(index), core.requests.peek_record(index));
            slot.state().is_receiving()
                && slot.peer() == rank
                && record.remote_request() == sender
                && record.seq() == matching.seq.get()
                && slot.context() == matching.context.get()
        };
        let id = RequestId::from_bits(receiver);
        if receiver != 0 {
            let live = self.requests.get(id).is_some();
            return (live && fits(self, id.index())).then_some(id.index());
        }
        self.requests.indices().find(|index| fits(self, *index))
    }
}
