//! Sending of long one-sided transfers: they are cut into segments when the window has room for them, not
//! before. Memory that peers read is looked up under its key for every segment, so that a withdrawal takes
//! effect at once.

use doorbell_fabric::memory::{ConstLoan, RegionSlice, SharedBytes};
use doorbell_fabric::message::{Access, PeerIndex, Remote};
use zerocopy::IntoBytes;

use crate::core::Core;
use crate::pool::Id;
use crate::pooled_list::Node;
use crate::send::RESERVE;
use crate::serve::{DENIED, DONE, WITHDRAWN};
use crate::wire::{Data, Kind, Put};

/// Transfers to one peer that take turns; the others wait until one of them has ended. It bounds what a
/// target must remember of puts of which not everything has arrived.
pub(crate) const TURNS: usize = 8;

/// Places that transfers leave to answers: fewer than messages do, so that a flood of these does not stop
/// them.
pub(crate) const KEPT: usize = RESERVE / 2;

/// What is sent.
#[derive(Debug)]
pub(crate) enum Source {
    /// A put of a region.
    Region(RegionSlice),
    /// A put of memory that is lent until the operation has ended.
    Loan(ConstLoan),
    /// A put of bytes that were copied.
    Copy(Vec<u8>),
    /// The answer to a get.
    Exposed,
}

/// One transfer to one peer.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The initiator's number of the operation.
    op: u64,
    /// The memory at the target, all of it.
    remote: Remote,
    /// How much of it was cut into segments.
    at: u64,
    source: Source,
}

impl Stream {
    /// A transfer of which nothing was sent yet.
    pub(crate) const fn new(op: u64, remote: &Remote, source: Source) -> Self {
        Self {
            op,
            remote: *remote,
            at: 0,
            source,
        }
    }

    /// What is sent.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// How much of it was cut into segments.
    pub(crate) fn sent(&self) -> usize {
        self.at as usize
    }

    /// `n` bytes more were cut into segments.
    pub(crate) fn advance(&mut self, n: u64) {
        self.at += n;
    }

    /// The header of the next part of a put.
    pub(crate) fn put_header(&self) -> Put {
        Put {
            op: self.op.into(),
            key: self.remote.key,
            address: self.remote.address,
            total: self.remote.length,
            offset: self.at.into(),
        }
    }

    /// Whether this is that put of ours. An answer has the number that its peer gave it.
    pub(crate) fn is_put(&self, op: u64) -> bool {
        self.op == op && !matches!(self.source, Source::Exposed)
    }

    /// Whether nothing of it was sent yet.
    pub(crate) fn has_not_begun(&self) -> bool {
        self.at == 0
    }
}

impl Core {
    /// Makes the next segment of a peer's transfers. `false` when there is none, or no room.
    pub(crate) fn refill(&mut self, peer: PeerIndex) -> bool {
        let Some(first) = self.peers[peer].streams.first() else {
            return false;
        };
        if !self.has_place(peer, KEPT) {
            return false;
        }
        let Some(stream) = self.streams.get(first) else {
            return false;
        };
        let (op, remote, at) = (stream.op, stream.remote, stream.at);
        let ended = match stream.source {
            Source::Exposed => self.answer(peer, op, &remote, at),
            _ => self.put_next(peer, first),
        };
        let list = &mut self.peers[peer].streams;
        if ended {
            self.streams.remove(list, first);
        } else {
            self.streams.rotate(list, TURNS);
        }
        true
    }

    /// The next part of an answer; `true` after the last.
    fn answer(&mut self, peer: PeerIndex, op: u64, remote: &Remote, at: u64) -> bool {
        let total = remote.length.get();
        let own = Kind::Data.header();
        let most = (self.framing.room() - own) as u64;
        let length = most.min(total - at);
        let part = Remote {
            key: remote.key,
            address: remote.address.get().wrapping_add(at).into(),
            length: length.into(),
        };
        let header = Data {
            op: op.into(),
            offset: at.into(),
        };
        let Some(index) = self.blank(peer) else {
            return false;
        };
        let bytes = self.segments[index].draft(own + length as usize);
        bytes[..own].copy_from_slice(header.as_bytes());
        let copied = match self.exposures.check(peer, &part, Access::Read) {
            Ok(permit) => permit.copy_to(&mut bytes[own..]) == length as usize,
            Err(_) => false,
        };
        if !copied {
            self.segments.give(index);
            let status = if at > 0 { WITHDRAWN } else { DENIED };
            return self.end_operation(peer, op, 0, status);
        }
        self.commit(peer, index, Kind::Data, own + length as usize);
        let first = self.peers[peer].streams.first();
        if let Some(stream) = first.and_then(|first| self.streams.get(first)) {
            stream.at += length;
        }
        let last = at + length == total;
        self.counters.operations_served += u64::from(last);
        last
    }

    /// The next part of a put; `true` after the last.
    fn put_next(&mut self, peer: PeerIndex, first: Id<Node<Stream>>) -> bool {
        let own = Kind::Put.header();
        let room = self.framing.room() - own;
        let Some(stream) = self.streams.get(first) else {
            return true;
        };
        let total = stream.remote.length.get();
        let length = (room as u64).min(total - stream.at) as usize;
        let header = stream.put_header();
        let at = stream.at as usize;
        let Some(index) = self.blank(peer) else {
            return false;
        };
        let to = self.segments[index].draft(own + length);
        to[..own].copy_from_slice(header.as_bytes());
        // The list may not have changed since: nothing was added or removed.
        let Some(stream) = self.streams.get(first) else {
            return true;
        };
        let bytes = match &stream.source {
            Source::Region(slice) => slice.as_shared(),
            Source::Loan(loan) => loan.as_shared(),
            Source::Copy(copy) => SharedBytes::of(copy),
            Source::Exposed => SharedBytes::EMPTY,
        };
        bytes.copy_to(at, &mut to[own..]);
        stream.at += length as u64;
        let ended = stream.at == total;
        self.commit(peer, index, Kind::Put, own + length);
        ended
    }

    /// Reports to the initiator how its operation ended. `false` without room.
    pub(crate) fn end_operation(&mut self, peer: PeerIndex, op: u64, value: u64, status: u8) -> bool {
        let end = crate::wire::End {
            op: op.into(),
            value: value.into(),
            status,
            zero: [0; 7],
        };
        let listed = self.header(peer, Kind::End, end.as_bytes()).is_some();
        match (listed, status) {
            (false, _) => {}
            (true, DONE) => self.counters.operations_served += 1,
            (true, _) => self.counters.operations_denied += 1,
        }
        listed
    }
}
