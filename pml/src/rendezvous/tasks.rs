//! The parts of a rendezvous that need a rail: reads, writes, exposures, fragments.

use doorbell_fabric::memory::ConstLoan;
use doorbell_fabric::message::{Access, Body, Message, MsgId, PeerIndex, Refused};
use zerocopy::IntoBytes;

use crate::args::Payload;
use crate::backlog::Task;
use crate::convertor::{Cursor, GATHER_MAX, Origin, Scratch, to_usize};
use crate::paths::stripe::STRIPED_FROM;
use crate::pml::Pml;
use crate::rails::RailId;
use crate::rank::Rank;
use crate::request::{Outcome, Pipeline, RequestId, State};
use crate::wire::{FragHeader, MatchHeader, PutHeader, kind};
use doorbell_fabric::caps::Capabilities;

/// Fragments of one transfer that leave in one pass, at most.
const BURST: usize = 4;

/// What became of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It needs no further pass.
    Finished,
    /// It waits for the rail; the flag is whether something was done.
    Again(bool),
}

impl<M: Message> Pml<M> {
    /// Does one task of a peer.
    pub(crate) fn step(&mut self, rank: Rank, task: Task) -> Step {
        let (id, wanted) = match task {
            Task::Get(id) => (id, State::Getting),
            Task::Expose(id) => (id, State::PutExposed),
            Task::Put(id) => (id, State::Putting),
            Task::Stream(id) => (id, State::Streaming),
            Task::Restart(id) => (id, State::SendRestart),
            Task::Reply(id) => (id, State::Replying),
        };
        // It may have ended or been aborted since.
        if self
            .core
            .requests
            .get(id)
            .is_none_or(|slot| slot.state() != wanted)
        {
            return Step::Finished;
        }
        match task {
            Task::Get(_) => self.read_sender(rank, id),
            Task::Expose(_) => self.expose_room(rank, id),
            Task::Put(_) => self.write_receiver(rank, id),
            Task::Stream(_) => self.stream(rank, id),
            Task::Restart(_) => self.restart(rank, id),
            Task::Reply(_) => self.reply(rank, id),
        }
    }

    /// The peer's number on the rail of a one-sided transfer, and the longest operation; `None` when that
    /// rail does not lead to it any more.
    fn one_sided(&self, rank: Rank, id: RequestId) -> Option<(RailId, PeerIndex, u64)> {
        let rail = self.core.requests.peek_record(id.index()).one_sided.rail();
        let paths = &self.core.peers[rank].paths;
        let path = &paths[paths.over(rail)?];
        let most = path.can().limits.one_sided.max(1);
        path.is_up().then_some((rail, path.route().1, most))
    }

    fn read_sender(&mut self, rank: Rank, id: RequestId) -> Step {
        // It may have been requested before a restart.
        if self.core.requests.peek_record(id.index()).one_sided.is_busy() {
            return Step::Finished;
        }
        let Some((rail, peer, most)) = self.one_sided(rank, id) else {
            self.core.receive_broke(id.index());
            return Step::Finished;
        };
        let (slot, record) = self.core.requests.both(id.index());
        let length = (record.progress.left()).min(most);
        let from = record
            .one_sided
            .remote()
            .and_then(|remote| remote.part(record.progress.moved(), length));
        let into = record.memory.landing(slot, record.progress.moved(), length);
        let Some((from, into)) = from.zip(into) else {
            self.core.fall_back(id.index());
            return Step::Finished;
        };
        let op = self.core.operations.start(id);
        match self.rails[rail].get(peer, op, &from, into) {
            Ok(()) => {
                let record = self.core.requests.record(id.index());
                record.one_sided.begin(op, length);
                self.core.counters.gets += 1;
                Step::Finished
            }
            Err(Refused::Full) => {
                self.core.operations.end(op);
                Step::Again(false)
            }
            Err(refused) => {
                self.core.operations.end(op);
                if refused == Refused::PeerDown {
                    self.core.receive_broke(id.index());
                } else {
                    self.core.fall_back(id.index());
                }
                Step::Finished
            }
        }
    }

    fn write_receiver(&mut self, rank: Rank, id: RequestId) -> Step {
        if self.core.requests.peek_record(id.index()).one_sided.is_busy() {
            return Step::Finished;
        }
        let Some((rail, peer, most)) = self.one_sided(rank, id) else {
            self.core.send_broke(id.index());
            return Step::Finished;
        };
        let record = self.core.requests.record(id.index());
        let length = (record.progress.left()).min(most);
        let to = record.one_sided.part(record.progress.moved(), length);
        let Some(to) = to else {
            self.core.put_failed(id.index());
            return Step::Finished;
        };
        let op = self.core.operations.start(id);
        let record = self.core.requests.peek_record(id.index());
        let (at, bytes) = (to_usize(record.progress.moved()), to_usize(length));
        let rail = &mut self.rails[rail];
        let posted = match record.memory.origin() {
            Origin::User(Payload::Loan(loan)) => rail.put(peer, op, Body::Loan(loan.part(at, bytes)), &to),
            Origin::User(Payload::Region(slice)) => match slice.slice(at, bytes) {
                Some(part) => rail.put(peer, op, Body::Region(&part), &to),
                None => Err(Refused::BadMemory),
            },
            _ => Err(Refused::Unsupported),
        };
        match posted {
            Ok(()) => {
                let record = self.core.requests.record(id.index());
                record.one_sided.begin(op, length);
                self.core.counters.puts += 1;
                Step::Finished
            }
            Err(Refused::Full) => {
                self.core.operations.end(op);
                Step::Again(false)
            }
            Err(refused) => {
                self.core.operations.end(op);
                if refused == Refused::PeerDown {
                    self.core.send_broke(id.index());
                } else {
                    self.core.put_failed(id.index());
                }
                Step::Finished
            }
        }
    }

    /// Exposes the room of a receive and invites its sender to write into it.
    fn expose_room(&mut self, rank: Rank, id: RequestId) -> Step {
        let Some((rail, peer, _)) = self.one_sided(rank, id) else {
            self.core.receive_broke(id.index());
            return Step::Finished;
        };
        let (slot, record) = self.core.requests.both(id.index());
        if !record.one_sided.is_exposed() {
            let (at, length) = (record.progress.moved(), record.progress.left());
            let memory = record.memory.writable(slot, at, length);
            match self.rails[rail].expose(memory, Access::Write, Some(peer)) {
                Ok(remote) => record.one_sided.expose(rail, remote),
                Err(_) => {
                    self.core.fall_back(id.index());
                    return Step::Finished;
                }
            }
        }
        let head = PutHeader {
            matching: MatchHeader::new(kind::PUT, 0, slot.context(), record.seq(), slot.tag()),
            sender: record.remote_request().into(),
            receiver: id.to_bits().into(),
            offset: record.progress.moved().into(),
            restart: record.handshake.attempt().into(),
            reserved: 0.into(),
        };
        record.one_sided.set_invited(true);
        let remote = record.one_sided.remote();
        let body = match &remote {
            Some(remote) => Body::Bytes(remote.as_bytes()),
            None => Body::Empty,
        };
        match self.rails[rail].send(peer, head.as_bytes(), body) {
            Ok(_) => Step::Finished,
            Err(Refused::Full) => Step::Again(false),
            Err(_) => {
                self.core.withdraw(id.index());
                self.core.fall_back(id.index());
                Step::Finished
            }
        }
    }

    /// Sends the next fragments of a message.
    fn stream(&mut self, rank: Rank, id: RequestId) -> Step {
        let mut sent = false;
        for _ in 0..BURST {
            let record = self.core.requests.peek_record(id.index());
            if record.progress.is_done() {
                return self.all_left(rank, id, sent);
            }
            let left = record.progress.left();
            let length = self.core.requests.peek(id.index()).length();
            let set = self.core.peers[rank].paths.stripes();
            let striped = length >= STRIPED_FROM && set.count_ones() > 1;
            let path = if striped {
                self.stripe(rank, set, left)
            } else {
                self.core
                    .next_path(rank)
                    .filter(|at| self.has_turn(rank, *at, id))
            };
            let Some(at) = path else {
                return Step::Again(sent);
            };
            match self.send_fragment(rank, at, id) {
                Ok((number, bytes)) => {
                    self.fragment_left((rank, at, striped), id, (number, bytes));
                    sent = true;
                }
                Err(Refused::Full) => return Step::Again(sent),
                Err(Refused::BadMemory) => return self.memory_is_gone(id),
                Err(_) => {
                    self.path_refused(rank, at);
                    return Step::Again(sent);
                }
            }
        }
        let record = self.core.requests.peek_record(id.index());
        if record.progress.is_done() {
            return self.all_left(rank, id, sent);
        }
        Step::Again(sent)
    }

    /// Memory that an operation returns is not mapped any more: gives the message up.
    #[cold]
    fn memory_is_gone(&mut self, id: RequestId) -> Step {
        self.core.give_up(id.index());
        self.core.finish(id.index(), Outcome::Unmapped);
        Step::Finished
    }

    /// A range has left: goes on with the next one, or ends.
    fn all_left(&mut self, rank: Rank, id: RequestId, sent: bool) -> Step {
        let record = self.core.requests.record(id.index());
        if record.progress.next_range() {
            return Step::Again(true);
        }
        // Its rails give back what they took and the peer did not; without that, it ends with the last of it.
        if self.core.config.handshake && !self.is_over(rank, id.index()) {
            return Step::Again(sent);
        }
        self.core.finish(id.index(), Outcome::Ok);
        Step::Finished
    }

    /// Whether the pipeline of a message over its one path has room.
    fn has_turn(&mut self, rank: Rank, at: usize, id: RequestId) -> bool {
        let depth = self.core.config.pipeline.clamp(1, Pipeline::MOST);
        let path = &self.core.peers[rank].paths[at];
        let record = self.core.requests.record(id.index());
        let (rail, peer) = path.route();
        let gate = record.pipeline.gate(rail, depth);
        gate == MsgId(0) || self.rails[rail].handed_over(peer) >= gate
    }

    fn send_fragment(&mut self, rank: Rank, at: usize, id: RequestId) -> Result<(MsgId, usize), Refused> {
        let path = &self.core.peers[rank].paths[at];
        let (rail, peer) = path.route();
        let rail = &mut self.rails[rail];
        let record = self.core.requests.record(id.index());
        let head = FragHeader {
            kind: kind::FRAG,
            flags: 0,
            reserved: 0.into(),
            restart: record.handshake.attempt().into(),
            receiver: record.remote_request().into(),
            offset: record.progress.moved().into(),
        };
        let piece = Piece {
            offset: record.progress.moved(),
            most: path.fragment().min(to_usize(record.progress.left())),
            all: false,
        };
        send_piece(
            rail,
            path.can(),
            peer,
            head.as_bytes(),
            record.memory.walk(),
            piece,
            &mut self.core.scratch,
            &mut self.core.counters.packed_bytes,
        )
    }

    /// Keeps the books of a fragment that a rail took.
    fn fragment_left(
        &mut self,
        (rank, at, striped): (Rank, usize, bool),
        id: RequestId,
        (number, bytes): (MsgId, usize),
    ) {
        self.core.counters.frags_sent += 1;
        let record = self.core.requests.record(id.index());
        record.progress.advance(bytes as u64);
        if self.core.config.handshake {
            record.handshake.fragment_left(at, number);
        }
        if striped {
            self.core.flows(rank, at, (number, bytes));
        } else {
            record
                .pipeline
                .note(self.core.peers[rank].paths[at].rail(), number);
        }
    }
}

/// Which bytes of a message are to leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// The first one.
    pub(crate) offset: u64,
    /// How many, at most.
    pub(crate) most: usize,
    /// Whether fewer will not do.
    pub(crate) all: bool,
}

/// Sends `head` and a piece of a message, without a copy of our own where the rail can gather; returns the
/// rail's number and the bytes that left.
#[allow(clippy::too_many_arguments)] // disjoint parts of the PML, borrowed one by one
pub(crate) fn send_piece<M: Message>(
    rail: &mut M,
    can: &Capabilities,
    peer: PeerIndex,
    head: &[u8],
    (origin, cursor): (&Origin, &mut Cursor),
    piece: Piece,
    scratch: &mut Scratch,
    packed: &mut u64,
) -> Result<(MsgId, usize), Refused> {
    let at = to_usize(piece.offset);
    if piece.most == 0 {
        return Ok((rail.send(peer, head, Body::Empty)?, 0));
    }
    match origin {
        Origin::Nothing => Err(Refused::BadMemory),
        Origin::User(Payload::Loan(loan)) => {
            let part = loan.part(at, piece.most);
            Ok((rail.send(peer, head, Body::Loan(part))?, part.len()))
        }
        Origin::User(Payload::Region(slice)) => {
            // A copy of the rail's, never its reference: the send is complete before the rail would let go.
            let part = slice.as_shared().skip(at).take(piece.most);
            Ok((rail.send(peer, head, Body::Shared(part))?, part.len()))
        }
        Origin::Own(buffer, used) => {
            let bytes = &buffer.bytes()[..*used];
            let part = bytes.get(at..).unwrap_or(&[]);
            let part = &part[..part.len().min(piece.most)];
            Ok((rail.send(peer, head, Body::Bytes(part))?, part.len()))
        }
        Origin::Window(_) => {
            let bytes = scratch.pack(origin, cursor, piece.offset, piece.most);
            if bytes.is_empty() {
                return Err(Refused::BadMemory);
            }
            let number = rail.send(peer, head, Body::Bytes(bytes))?;
            *packed += bytes.len() as u64;
            Ok((number, bytes.len()))
        }
        Origin::User(Payload::Parts(_) | Payload::Strided(_)) => {
            if can.features.gather {
                let mut parts = [ConstLoan::EMPTY; GATHER_MAX];
                let room = can.limits.parts.min(GATHER_MAX);
                let (count, bytes) = origin.gather(cursor, piece.offset, piece.most, &mut parts[..room]);
                // Many small pieces make a short fragment: packing is cheaper than many of those.
                if bytes == piece.most || (!piece.all && bytes >= piece.most / 2) {
                    return Ok((rail.send(peer, head, Body::Parts(&parts[..count]))?, bytes));
                }
            }
            let bytes = scratch.pack(origin, cursor, piece.offset, piece.most);
            let number = rail.send(peer, head, Body::Bytes(bytes))?;
            *packed += bytes.len() as u64;
            Ok((number, bytes.len()))
        }
    }
}
