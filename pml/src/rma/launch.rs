//! Operations leave: as one message, or announced.
//!
//! A put leaves as one message up to the eager limit of the path, and otherwise as a rendezvous into the
//! window. Whatever else an operation is, it leaves as one message where that fits the path; otherwise,
//! which takes an atomic of thousands of bytes or a narrow rail, all of it is announced as a message that
//! the target receives into a buffer, and does when it is there. So order with what is behind it holds for
//! operations of up to an eager message of the path, lead included, and to no more than half of the window.

use doorbell_fabric::message::{Body, Message, Refused, Remote};
use zerocopy::IntoBytes;

use super::lead::{LEAD_MOST, Lead, Verb};
use super::reply_charge;
use crate::convertor::{Cursor, to_usize};
use crate::core::Core;
use crate::credit::ENVELOPE;
use crate::launch::Launch;
use crate::pml::Pml;
use crate::rank::Rank;
use crate::rendezvous::tasks::{Piece, Step, send_piece};
use crate::request::{Event, Outcome, RequestId, mark};
use crate::wire::{CHECKED_LEN, CheckedHeader, HEAD_MAX, MATCH_LEN, MatchHeader, REMOTE_LEN, flag, kind};

/// Bytes of the longest header and lead together.
const FRONT_MOST: usize = CHECKED_LEN + LEAD_MOST;
/// Bytes of exposed memory and a lead.
const BEHIND_MOST: usize = REMOTE_LEN + LEAD_MOST;

impl Core {
    /// Whether a message that counts this much may leave: up to the hard window, as the target does it at its
    /// turn and keeps it no longer.
    fn may_charge(&self, rank: Rank, charge: u64) -> bool {
        self.hot[rank].may_charge(&self.config, charge)
    }

    /// The bytes that one message of an operation has at most, lead included.
    fn whole_operation(&self, rank: Rank, at: usize) -> usize {
        let half = to_usize(self.config.window / 2);
        self.peers[rank].paths[at].eager().min(half)
    }

    /// What an operation counts: its bytes, and those of its reply, if that is one message.
    pub(super) fn operation_charge(&self, id: RequestId, whole: usize) -> u64 {
        let slot = self.requests.peek(id.index());
        let reply = match slot.is(mark::FETCH) {
            true => reply_charge(&self.config, slot.length()),
            false => 0,
        };
        ENVELOPE + whole as u64 + reply
    }
}

impl<M: Message> Pml<M> {
    /// Starts an operation of which nothing has left; `None` for a long put, which is a rendezvous.
    pub(crate) fn launch_operation(&mut self, rank: Rank, at: usize, id: RequestId) -> Option<Launch> {
        let lead = self.core.rma.record(id.index()).lead;
        let bytes = self.core.requests.peek_record(id.index()).memory.origin().len();
        let most = self.core.whole_operation(rank, at);
        let whole = lead.len().saturating_add(to_usize(bytes));
        if whole > most && lead.as_bytes()[0] == Verb::Put as u8 {
            return None;
        }
        let charge = self.core.operation_charge(id, whole);
        if !self.core.may_charge(rank, charge) {
            self.core.held_back(id.index());
            return Some(Launch::NoCredit);
        }
        let sent = if whole <= most {
            self.send_operation(rank, at, id, &lead)
        } else {
            self.announce_operation(rank, id, &lead)
        };
        Some(match sent {
            Ok(()) => {
                self.core.hot[rank].sent(charge);
                self.core.counters.sent_operations += 1;
                self.core.operation_left(rank, id);
                Launch::Requested
            }
            Err(Refused::Full) => Launch::Full,
            Err(_) => {
                self.path_refused(rank, at);
                Launch::Full
            }
        })
    }

    /// An operation as one message.
    fn send_operation(&mut self, rank: Rank, at: usize, id: RequestId, lead: &Lead) -> Result<(), Refused> {
        let (front, used) = self.core.front(rank, id, lead);
        let path = &self.core.peers[rank].paths[at];
        let (rail, peer) = path.route();
        let rail = &mut self.rails[rail];
        let memory = &mut self.core.requests.record(id.index()).memory;
        let length = to_usize(memory.origin().len());
        if used <= HEAD_MAX {
            let piece = Piece {
                offset: 0,
                most: length,
                all: true,
            };
            let packed = &mut self.core.counters.packed_bytes;
            let scratch = &mut self.core.scratch;
            let walk = memory.walk();
            return send_piece(
                rail,
                path.can(),
                peer,
                &front[..used],
                walk,
                piece,
                scratch,
                packed,
            )
            .map(|_| ());
        }
        // The header alone fits a head: the lead goes in front of the bytes.
        let head = used - lead.len();
        let body = self
            .core
            .scratch
            .pack_behind(lead.as_bytes(), memory.origin(), length);
        rail.send(peer, &front[..head], Body::Bytes(body)).map(|_| ())
    }

    /// An operation that does not fit one message of the path: announced, its bytes kept in a request of our
    /// own.
    fn announce_operation(&mut self, rank: Rank, id: RequestId, lead: &Lead) -> Result<(), Refused> {
        let memory = &self.core.requests.peek_record(id.index()).memory;
        let length = to_usize(memory.origin().len());
        let whole = lead.len() + length;
        let mut buffer = self.core.pool.hold(rank, whole);
        let (front, rest) = buffer.bytes_mut()[..whole].split_at_mut(lead.len());
        front.copy_from_slice(lead.as_bytes());
        memory.origin().pack(&mut Cursor::default(), 0, rest);
        let slot = self.core.requests.peek(id.index());
        let seq = self.core.hot[rank].next_seq().0;
        let head = MatchHeader::new(kind::MATCH, flag::OPERATION, slot.context(), seq, id.to_bits());
        let checksum = self
            .core
            .config
            .checksum
            .then(|| crc32c::crc32c(&buffer.bytes()[..whole]));
        self.announce_whole(rank, head, checksum, (buffer, whole), whole)
    }

    /// Starts a reply: like a send, but without credit, which the operation has.
    pub(crate) fn reply(&mut self, rank: Rank, id: RequestId) -> Step {
        match self.launch(rank, id) {
            Launch::Complete => {
                self.core.finish(id.index(), Outcome::Ok);
                Step::Finished
            }
            Launch::Announced | Launch::Requested => Step::Finished,
            Launch::Full | Launch::NoCredit => Step::Again(false),
        }
    }
}

impl Core {
    /// The header and the lead of an operation, and their length.
    fn front(&mut self, rank: Rank, id: RequestId, lead: &Lead) -> ([u8; FRONT_MOST], usize) {
        let slot = self.requests.peek(id.index());
        let seq = self.hot[rank].next_seq().0;
        let head = MatchHeader::new(kind::MATCH, flag::OPERATION, slot.context(), seq, id.to_bits());
        let mut front = [0; FRONT_MOST];
        let used = if self.config.checksum {
            let origin = self.requests.peek_record(id.index()).memory.origin();
            let sum = origin.checksum_behind(crc32c::crc32c(lead.as_bytes()));
            front[..CHECKED_LEN].copy_from_slice(CheckedHeader::new(head, sum).as_bytes());
            CHECKED_LEN
        } else {
            front[..MATCH_LEN].copy_from_slice(head.as_bytes());
            MATCH_LEN
        };
        let end = used + lead.len();
        front[used..end].copy_from_slice(lead.as_bytes());
        (front, end)
    }

    /// An operation has left, and its answer is waited for.
    pub(super) fn operation_left(&mut self, rank: Rank, id: RequestId) {
        let slot = self.requests.slot(id.index());
        if slot.is(mark::FETCH) {
            let length = slot.length();
            self.solicit(id, rank, length);
        } else {
            slot.turn(Event::HandedOver);
        }
        if self.requests.peek(id.index()).is(mark::RECORD) {
            let origin = self.requests.record(id.index()).memory.take_origin();
            self.drop_origin(rank, origin);
        }
    }

    /// What follows the header of an announcement without bytes.
    pub(crate) fn behind_announcement(&mut self, id: RequestId, remote: Option<Remote>) -> Behind {
        let lead = self.lead_of(id);
        let mut behind = Behind {
            bytes: [0; BEHIND_MOST],
            length: 0,
        };
        if let Some(remote) = remote {
            behind.push(remote.as_bytes());
        }
        behind.push(lead.as_bytes());
        behind
    }

    fn lead_of(&mut self, id: RequestId) -> Lead {
        match self.requests.peek(id.index()).is(mark::OPERATION) {
            true => self.rma.record(id.index()).lead,
            false => Lead::default(),
        }
    }
}

/// What follows the header of an announcement without bytes: exposed memory, and what an operation is.
#[derive(Debug)]
pub(crate) struct Behind {
    bytes: [u8; BEHIND_MOST],
    length: usize,
}

impl Behind {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// The body of the announcement.
    pub(crate) fn body(&self) -> Body<'_> {
        match self.length {
            0 => Body::Empty,
            length => Body::Bytes(&self.bytes[..length]),
        }
    }
}
