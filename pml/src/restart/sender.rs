//! The sender's part of the handshake.

use doorbell_fabric::message::{Message, MsgId, Refused};
use zerocopy::IntoBytes;

use crate::backlog::Task;
use crate::config::Protocol;
use crate::core::Core;
use crate::pml::Pml;
use crate::rails::RailId;
use crate::rank::Rank;
use crate::rendezvous::tasks::Step;
use crate::request::RequestIndex;
use crate::request::{Event, Outcome, RequestId, State, mark};
use crate::wire::{RestartHeader, flag, kind};

use super::{Phase, SENDER, Word};

impl Core {
    /// The path that one of our transfers went over is broken.
    pub(crate) fn send_broke(&mut self, index: RequestIndex) {
        self.stop_sending(index, Word::Broke);
    }

    fn stop_sending(&mut self, index: RequestIndex, word: Word) {
        if !self.shake_hands(index, SENDER, word) {
            return;
        }
        self.withdraw(index);
        let id = self.requests.id(index);
        let (slot, record) = self.requests.both(index);
        record.one_sided.set_remote(None);
        record.progress.forget_wanted();
        slot.turn(Event::SendStopped);
        let rank = slot.peer();
        self.queue_task(rank, Task::Restart(id));
    }

    /// A write that the handshake waited for has ended, however.
    pub(crate) fn restart_write_ended(&mut self, index: RequestIndex) {
        let record = self.requests.record(index);
        record.one_sided.end();
        if let Some(doomed) = record.one_sided.doomed() {
            self.give_up(index);
            self.finish(index, doomed);
        }
    }

    /// ACK or NACK: the receiver waits for the message once more, or has it.
    pub(crate) fn on_restart_answer(&mut self, rank: Rank, header: &RestartHeader) {
        let Some(index) = self.restarting(rank, header) else {
            return;
        };
        let complete = header.matching.kind == kind::RESTART_NACK;
        let word = if complete { Word::Nack } else { Word::Ack };
        let fits = self.requests.record(index).handshake.attempt() == header.restart.get();
        if !fits || !self.shake_hands(index, SENDER, word) {
            self.counters.drops.late_word += 1;
            return;
        }
        let id = self.requests.id(index);
        let (slot, record) = self.requests.both(index);
        if complete {
            if slot.is(mark::ABORTED) {
                self.free(index);
            } else {
                self.finish(index, Outcome::Ok);
            }
            return;
        }
        record.handshake.next_attempt();
        if header.receiver.get() != 0 {
            record.set_remote_request(header.receiver.get());
        }
        self.queue_task(rank, Task::Restart(id));
    }

    /// ERROR: the receiver cannot go on.
    pub(crate) fn on_restart_error(&mut self, rank: Rank, header: &RestartHeader) {
        let Some(index) = self.restarting(rank, header) else {
            return;
        };
        let (slot, record) = self.requests.both(index);
        let own = record.handshake.attempt();
        // It may be ahead of what we know, never behind: that would be about an attempt that is over.
        let late = header.restart.get().wrapping_sub(own) > u32::MAX / 2;
        let sends = matches!(
            slot.state(),
            State::AwaitAck | State::AwaitFin | State::Streaming | State::Putting
        );
        if late || !sends {
            self.counters.drops.late_word += 1;
            return;
        }
        record.set_remote_request(header.receiver.get());
        self.stop_sending(index, Word::Error);
    }

    /// The live send that a word of its receiver is about.
    fn restarting(&mut self, rank: Rank, header: &RestartHeader) -> Option<RequestIndex> {
        let id = RequestId::from_bits(header.sender.get());
        if self.requests.get(id).is_none() {
            self.counters.drops.stale_request += 1;
            return None;
        }
        let theirs = match header.receiver.get() {
            // It has not matched the message.
            0 => self.requests.record(id.index()).remote_request(),
            theirs => theirs,
        };
        self.is_from(rank, id.index(), &header.matching, theirs)
            .then_some(id.index())
    }
}

impl<M: Message> Pml<M> {
    /// Goes on with a handshake: notifies the receiver when nothing is under way any more; announces the
    /// message again when it has answered.
    pub(crate) fn restart(&mut self, rank: Rank, id: RequestId) -> Step {
        let index = id.index();
        let phase = self.core.requests.peek_record(index).handshake.phase();
        match phase {
            Phase::Draining if !self.is_quiet(rank, index) => Step::Again(false),
            Phase::Draining => {
                self.core.shake_hands(index, SENDER, Word::Quiet);
                let record = self.core.requests.record(index);
                record.handshake.next_attempt();
                record.handshake.forget_fragments();
                self.core.counters.restarts += 1;
                self.core.queue_restart_head(kind::RESTART_NOTIFY, index, true);
                Step::Finished
            }
            Phase::Run => self.announce_once_more(rank, id),
            _ => Step::Finished,
        }
    }

    /// Whether nothing of a transfer is under way: no write, and no fragment over a path that is up.
    fn is_quiet(&mut self, rank: Rank, index: RequestIndex) -> bool {
        let record = self.core.requests.peek_record(index);
        !record.one_sided.is_busy() && self.is_over(rank, index)
    }

    /// Whether the peer has taken every fragment of a transfer that left over a path that is up still.
    pub(crate) fn is_over(&mut self, rank: Rank, index: RequestIndex) -> bool {
        let peer = &self.core.peers[rank];
        let handshake = &self.core.requests.peek_record(index).handshake;
        handshake.fragments().all(|(at, number)| {
            let path = &peer.paths[at];
            let (rail, peer) = path.route();
            !path.is_up() || self.rails[rail].handed_over(peer) >= number
        })
    }

    /// The announcement with RESTART, by what the path that is used now can do.
    fn announce_once_more(&mut self, rank: Rank, id: RequestId) -> Step {
        let Some(at) = self.core.next_path(rank) else {
            return Step::Again(false);
        };
        let (protocol, length) = (
            self.core.config.protocol,
            self.core.requests.peek(id.index()).length(),
        );
        let path = &self.core.peers[rank].paths[at];
        let memory = &self.core.requests.peek_record(id.index()).memory;
        let long =
            memory.is_one_piece() && !(protocol == Protocol::Auto && self.core.is_striped(rank, length));
        let (get, put) = (
            long && path.wants_get(protocol, length),
            long && path.wants_put(protocol),
        );
        let exposed = get && self.expose(rank, at, id);
        let flags = flag::RESTART | if put { flag::CAN_PUT } else { 0 };
        let kind = if exposed { kind::RGET } else { kind::RNDV };
        let head = self.core.announcement(id, kind, flags);
        let record = self.core.requests.peek_record(id.index());
        let remote = record.one_sided.remote().filter(|_| exposed);
        let behind = self.core.behind_announcement(id, remote);
        let (rail, peer) = self.core.peers[rank].paths[at].route();
        let sent = self.rails[rail].send(peer, head.as_bytes(), behind.body());
        match sent {
            Ok(_) => {
                let slot = self.core.requests.slot(id.index());
                slot.turn(if exposed { Event::Exposed } else { Event::Announced });
                Step::Finished
            }
            Err(refused) => {
                self.core.withdraw(id.index());
                if refused != Refused::Full {
                    self.path_refused(rank, at);
                }
                Step::Again(false)
            }
        }
    }

    /// A path is broken: what of our transfers with the peer went over it, beyond what its rail gives back.
    /// `again`: announcements that were given back, and are sent again without the memory that they name.
    pub(crate) fn break_transfers(&mut self, rank: Rank, at: usize, again: &[u64], taken: MsgId) {
        let rail = self.core.peers[rank].paths[at].rail();
        for index in self.core.requests.indices() {
            let slot = self.core.requests.peek(index);
            if slot.peer() != rank {
                continue;
            }
            let record = self.core.requests.peek_record(index);
            let (here, live) = (record.one_sided.rail() == rail, !record.one_sided.is_busy());
            let flew = || {
                record
                    .handshake
                    .fragments()
                    .any(|(path, number)| path == at && number > taken)
            };
            match slot.state() {
                State::AwaitFin if here => {
                    let id = self.core.requests.id(index).to_bits();
                    if again.contains(&id) {
                        // It goes on as an announcement that names no memory, and over no path of its own.
                        self.core.withdraw(index);
                        self.core.requests.record(index).one_sided.set_rail(RailId::NONE);
                    } else {
                        self.core.send_broke(index);
                    }
                }
                State::Queued if here && record.one_sided.is_exposed() => self.core.withdraw(index),
                State::PutExposed if here => self.core.receive_broke(index),
                State::Getting if here && live => self.core.receive_broke(index),
                State::Putting if here && live => self.core.send_broke(index),
                State::Streaming if flew() => self.core.send_broke(index),
                _ => {}
            }
        }
        self.apply_withdrawals();
    }
}
