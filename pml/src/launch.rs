//! The start of a send: which protocol, and its first message (reference: bfo, section 5).

use doorbell_fabric::message::{Access, Message, Refused, Remote};
use zerocopy::IntoBytes;

use crate::config::Protocol;
use crate::convertor::to_usize;
use crate::core::Core;
use crate::credit::ENVELOPE;
use crate::pml::Pml;
use crate::rank::Rank;
use crate::rendezvous::tasks::{Piece, send_piece};
use crate::request::{Event, RequestId, mark};
use crate::wire::{CheckedHeader, MATCH_LEN, MatchHeader, RndvHeader, flag, kind};

/// What became of the start of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launch {
    /// All of it has left.
    Complete,
    /// It was announced; the receiver answers.
    Announced,
    /// All of an operation has left; the target answers.
    Requested,
    /// No rail takes it now.
    Full,
    /// The peer has too much of ours unreceived.
    NoCredit,
}

impl Core {
    /// The announcement of a send.
    pub(crate) fn announcement(&mut self, id: RequestId, kind: u8, flags: u8) -> RndvHeader {
        let checksum = self.checksum_of(id.index());
        let (slot, record) = self.requests.both(id.index());
        let flags = flags | slot.wire_flags();
        RndvHeader {
            matching: MatchHeader::new(kind, flags, slot.context(), record.seq(), slot.tag()),
            length: slot.length().into(),
            sender: id.to_bits().into(),
            receiver: record.remote_request().into(),
            restart: record.handshake.attempt().into(),
            checksum: 0.into(),
        }
        .with_checksum(checksum)
    }
}

impl<M: Message> Pml<M> {
    /// Starts a send of which nothing has left.
    pub(crate) fn launch(&mut self, rank: Rank, id: RequestId) -> Launch {
        let Some(at) = self.core.next_path(rank) else {
            return Launch::Full;
        };
        let slot = self.core.requests.peek(id.index());
        let (length, sync, lent, operates, replies) = (
            slot.length(),
            slot.is(mark::SYNC),
            slot.is(mark::LENT),
            slot.is(mark::OPERATION | mark::FETCH),
            slot.is(mark::REPLY),
        );
        if operates && let Some(launch) = self.launch_operation(rank, at, id) {
            return launch;
        }
        let lends = lent && self.lends(rank, at, length);
        let small = !operates && !lends && self.is_sent_at_once(rank, at, id);
        let hot = &self.core.hot[rank];
        // A reply needs no credit: the operation has it.
        if small && !sync && (replies || hot.has_room(length + ENVELOPE)) {
            self.cover(id);
            return self.launch_eager(rank, at, id);
        }
        if !replies && !self.core.may_announce(rank) {
            self.core.held_back(id.index());
            return Launch::NoCredit;
        }
        let memory = &self.core.requests.peek_record(id.index()).memory;
        let long = !small && memory.is_one_piece();
        let protocol = self.core.config.protocol;
        // Several paths together: as fragments, which can take any of them.
        let long = long && (lends || !(protocol == Protocol::Auto && self.core.is_striped(rank, length)));
        let path = &self.core.peers[rank].paths[at];
        if long
            && (lends || path.wants_get(protocol, length))
            && let Some(launch) = self.launch_exposed(rank, at, id)
        {
            return launch;
        }
        self.cover(id);
        let path = &self.core.peers[rank].paths[at];
        let can_put = long && path.wants_put(protocol);
        let first = if can_put || operates || replies {
            0
        } else {
            path.first_part()
        };
        self.launch_announced(rank, at, id, first, can_put)
    }

    /// Whether lent memory is left where it is over this path, for its receiver to read.
    fn lends(&self, rank: Rank, at: usize, length: u64) -> bool {
        self.core.peers[rank].paths[at].lends(self.core.config.protocol, length)
    }

    /// Whether a message is short enough for this path to be sent at once, rather than announced.
    fn is_sent_at_once(&mut self, rank: Rank, at: usize, id: RequestId) -> bool {
        let length = self.core.requests.peek(id.index()).length();
        let path = &self.core.peers[rank].paths[at];
        if !path.has_choice(length) {
            return length <= path.eager() as u64;
        }
        if !self.core.requests.peek_record(id.index()).memory.is_one_piece() {
            return length <= path.eager() as u64;
        }
        let (rail, peer) = path.route();
        !self.rails[rail].prefers_get(peer, to_usize(length) + MATCH_LEN)
    }

    /// It was to be read by its receiver over a rail that had no room, and takes another path now: it may not
    /// be read any more.
    fn cover(&mut self, id: RequestId) {
        if self.core.requests.peek_record(id.index()).one_sided.is_exposed() {
            self.core.withdraw(id.index());
            self.apply_withdrawals();
        }
    }

    fn launch_eager(&mut self, rank: Rank, at: usize, id: RequestId) -> Launch {
        let length = self.core.requests.peek(id.index()).length();
        let seq = self.core.hot[rank].next_seq();
        let slot = self.core.requests.peek(id.index());
        let head = MatchHeader::new(kind::MATCH, slot.wire_flags(), slot.context(), seq.0, slot.tag());
        let sent = match self.core.checksum_of(id.index()) {
            None => self.send_first(rank, at, id, head.as_bytes(), to_usize(length)),
            Some(sum) => {
                let head = CheckedHeader::new(head, sum);
                self.send_first(rank, at, id, head.as_bytes(), to_usize(length))
            }
        };
        match sent {
            Ok(()) => {
                self.core.counters.sent_eager += 1;
                Launch::Complete
            }
            Err(launch) => launch,
        }
    }

    /// RNDV with the first `first` bytes, or with none when the window is full.
    fn launch_announced(
        &mut self,
        rank: Rank,
        at: usize,
        id: RequestId,
        first: usize,
        can_put: bool,
    ) -> Launch {
        let hot = &self.core.hot[rank];
        let (slot, record) = self.core.requests.both(id.index());
        let mut body = slot.length().min(first as u64);
        let own = slot.is(mark::OPERATION | mark::REPLY);
        let full = !own && !hot.has_room(body + ENVELOPE);
        if full {
            body = 0;
        }
        record.set_seq(hot.next_seq().0);
        let flags = if can_put { flag::CAN_PUT } else { 0 };
        let head = self.core.announcement(id, kind::RNDV, flags);
        let sent = match own {
            true => self.send_lead(rank, at, id, head.as_bytes(), None),
            false => self.send_first(rank, at, id, head.as_bytes(), body as usize),
        };
        match sent {
            Ok(()) => {
                self.core.requests.record(id.index()).progress.set_counted(body);
                self.core.requests.slot(id.index()).turn(Event::Announced);
                self.core.counters.sent_rndv += 1;
                // A receiver's memory is written after the announcement, whatever the window.
                if full && !can_put {
                    self.core.held_back(id.index());
                }
                Launch::Announced
            }
            Err(launch) => launch,
        }
    }

    /// RGET; `None` when the memory cannot be exposed.
    fn launch_exposed(&mut self, rank: Rank, at: usize, id: RequestId) -> Option<Launch> {
        let (rail, _) = self.core.peers[rank].paths[at].route();
        let one_sided = &self.core.requests.peek_record(id.index()).one_sided;
        if one_sided.is_exposed() && one_sided.rail() != rail {
            self.core.withdraw(id.index());
            self.apply_withdrawals();
            return Some(Launch::Full);
        }
        if !one_sided.is_exposed() && !self.expose(rank, at, id) {
            return None;
        }
        let seq = self.core.hot[rank].next_seq().0;
        let record = self.core.requests.record(id.index());
        record.set_seq(seq);
        let remote = record.one_sided.remote()?;
        let head = self.core.announcement(id, kind::RGET, 0);
        Some(
            match self.send_lead(rank, at, id, head.as_bytes(), Some(remote)) {
                Ok(()) => {
                    self.core.requests.slot(id.index()).turn(Event::Exposed);
                    self.core.counters.sent_rget += 1;
                    Launch::Announced
                }
                Err(launch) => launch,
            },
        )
    }

    /// Sends an announcement without bytes of the message: with exposed memory, if there is any, and with
    /// what an operation is.
    fn send_lead(
        &mut self,
        rank: Rank,
        at: usize,
        id: RequestId,
        head: &[u8],
        remote: Option<Remote>,
    ) -> Result<(), Launch> {
        let behind = self.core.behind_announcement(id, remote);
        let (rail, peer) = self.core.peers[rank].paths[at].route();
        let sent = self.rails[rail].send(peer, head, behind.body());
        if self.core.requests.peek(id.index()).is(mark::REPLY) {
            return self.free_sent(rank, at, sent.map(|_| ()));
        }
        self.first_sent(rank, at, sent.map(|_| 0))
    }

    /// Exposes the memory of a send over a path, to be read by its receiver. Returns whether it can be.
    pub(crate) fn expose(&mut self, rank: Rank, at: usize, id: RequestId) -> bool {
        let (rail, peer) = self.core.peers[rank].paths[at].route();
        let record = self.core.requests.record(id.index());
        let Some(memory) = record.memory.readable() else {
            return false;
        };
        let Ok(remote) = self.rails[rail].expose(memory, Access::Read, Some(peer)) else {
            return false;
        };
        record.one_sided.expose(rail, remote);
        true
    }

    /// Sends the first message of a send, with the first `body` bytes.
    fn send_first(
        &mut self,
        rank: Rank,
        at: usize,
        id: RequestId,
        head: &[u8],
        body: usize,
    ) -> Result<(), Launch> {
        let path = &self.core.peers[rank].paths[at];
        let (rail, peer) = path.route();
        let rail = &mut self.rails[rail];
        let (slot, record) = self.core.requests.both(id.index());
        if slot.is(mark::DELIVERED) {
            rail.await_next(peer);
        }
        let piece = Piece {
            offset: 0,
            most: body,
            all: true,
        };
        let sent = send_piece(
            rail,
            path.can(),
            peer,
            head,
            record.memory.walk(),
            piece,
            &mut self.core.scratch,
            &mut self.core.counters.packed_bytes,
        );
        if self.core.requests.peek(id.index()).is(mark::REPLY) {
            return self.free_sent(rank, at, sent.map(|_| ()));
        }
        self.first_sent(rank, at, sent.map(|(_, bytes)| bytes))
    }

    /// Notes the first message of a reply, which counts with its operation.
    fn free_sent(&mut self, rank: Rank, at: usize, sent: Result<(), Refused>) -> Result<(), Launch> {
        match sent {
            Ok(()) => {
                self.core.hot[rank].sent(0);
                Ok(())
            }
            Err(refused) => self.first_sent(rank, at, Err(refused)),
        }
    }

    /// Counts the first message of a send.
    pub(crate) fn first_sent(
        &mut self,
        rank: Rank,
        at: usize,
        sent: Result<usize, Refused>,
    ) -> Result<(), Launch> {
        match sent {
            Ok(bytes) => {
                self.core.hot[rank].sent(bytes as u64 + ENVELOPE);
                Ok(())
            }
            Err(Refused::Full) => Err(Launch::Full),
            Err(_) => {
                self.path_refused(rank, at);
                Err(Launch::Full)
            }
        }
    }
}
