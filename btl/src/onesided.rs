//! One-sided operations at the initiator: started here, completed by the target's answer or by the end of the
//! peer; and fences, which complete when everything before them has.

use std::collections::VecDeque;

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{
    AtomicOp, Body, FenceScope, Landing, OpError, OpId, PeerIndex, Refused, Remote,
};
use doorbell_ring::{RingError, slab::Handle, slab::Slab};
use zerocopy::IntoBytes;

use crate::core::Core;
use crate::counters::Drop;
use crate::peer::about;
use crate::send::{PARTS, gather};
use crate::seq::Seq;
use crate::serve::{DENIED, DONE, WITHDRAWN};
use crate::stream::{Source, Stream};
use crate::wire::{self, Kind};

/// Longest single operation.
pub(crate) const LONGEST: u64 = 64 << 20;

/// Operations that are open, and those that have ended and were not shown yet.
pub(crate) struct Operations {
    open: Slab<Operation>,
    fences: Vec<Fence>,
    started: u64,
    completions: VecDeque<(OpId, Result<u64, OpError>)>,
}

struct Operation {
    id: OpId,
    peer: PeerIndex,
    number: u64,
    what: What,
}

enum What {
    /// A get into `into`, of which `got` of `total` bytes have arrived.
    Get { into: Landing, got: u64, total: u64 },
    /// A put, whose transfer is a [`Stream`].
    Put,
    /// An atomic, in the segment of this number.
    Atomic(Seq),
}

struct Fence {
    id: OpId,
    peer: Option<PeerIndex>,
    /// Operations with smaller numbers were started before.
    before: u64,
}

impl std::fmt::Debug for Operations {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "Operations({} open, {} fences)",
            self.open.len(),
            self.fences.len()
        )
    }
}

impl Operations {
    pub(crate) fn new(most: usize) -> Result<Self, RingError> {
        Ok(Self {
            open: Slab::new(most)?,
            fences: Vec::new(),
            started: 0,
            completions: VecDeque::new(),
        })
    }

    /// Whether there are ends of operations to be shown.
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// The next end of an operation to be shown.
    pub(crate) fn next_completion(&mut self) -> Option<(OpId, Result<u64, OpError>)> {
        self.completions.pop_front()
    }

    /// Whether another can be started.
    fn has_room(&self) -> bool {
        self.open.len() + self.fences.len() + self.completions.len() < self.open.capacity()
    }

    fn start(&mut self, peer: PeerIndex, id: OpId, what: What) -> Result<Handle, Refused> {
        self.started += 1;
        let operation = Operation {
            id,
            peer,
            number: self.started,
            what,
        };
        self.open.insert(operation).map_err(|_| Refused::Full)
    }

    /// Ends the fences that have nothing left to wait for.
    fn settle(&mut self) {
        let (open, completions) = (&self.open, &mut self.completions);
        self.fences.retain(|fence| {
            let waits = |operation: &Operation| {
                operation.number < fence.before && fence.peer.is_none_or(|peer| operation.peer == peer)
            };
            let waiting = open.iter().any(|(_, operation)| waits(operation));
            if !waiting {
                completions.push_back((fence.id, Ok(0)));
            }
            waiting
        });
    }

    fn finish(&mut self, handle: Handle, outcome: Result<u64, OpError>) {
        if let Ok(operation) = self.open.remove(handle) {
            self.completions.push_back((operation.id, outcome));
        }
        if !self.fences.is_empty() {
            self.settle();
        }
    }

    /// The operation that a peer's frame names, when it is one of ours at this peer.
    fn open_at(&mut self, peer: PeerIndex, bits: u64) -> Option<(Handle, &mut Operation)> {
        let handle = Handle::from_bits(bits)?;
        let operation = self.open.get_mut(handle).ok()?;
        (operation.peer == peer).then_some((handle, operation))
    }

    /// Returns how many have not ended.
    pub(crate) fn active(&self) -> usize {
        self.open.len()
    }
}

impl Core {
    /// Refuses what cannot be started at this peer.
    fn may_start(&mut self, peer: PeerIndex, length: u64) -> Result<(), Refused> {
        match self.peers.get(peer) {
            Some(state) if !state.is(about::GONE) && !self.phase.is_closing() => {}
            _ => return Err(Refused::PeerDown),
        }
        if length > LONGEST {
            return Err(Refused::TooLong);
        }
        if !self.operations.has_room() {
            self.counters.refused_full += 1;
            return Err(Refused::Full);
        }
        Ok(())
    }

    fn full(&mut self, handle: Handle) -> Result<(), Refused> {
        // Just put in.
        let _ = self.operations.open.remove(handle);
        self.counters.refused_full += 1;
        Err(Refused::Full)
    }

    pub(crate) fn get(
        &mut self,
        peer: PeerIndex,
        id: OpId,
        from: &Remote,
        into: Landing,
    ) -> Result<(), Refused> {
        let total = from.length.get();
        self.may_start(peer, total)?;
        if total != into.len() as u64 {
            return Err(Refused::BadMemory);
        }
        let handle = self
            .operations
            .start(peer, id, What::Get { into, got: 0, total })?;
        let header = wire::Get {
            op: handle.to_bits().into(),
            key: from.key,
            address: from.address,
            length: from.length,
        };
        match self.header(peer, Kind::Get, header.as_bytes()) {
            Some(_) => Ok(()),
            None => self.full(handle),
        }
    }

    pub(crate) fn put(
        &mut self,
        peer: PeerIndex,
        id: OpId,
        from: Body<'_>,
        to: &Remote,
    ) -> Result<(), Refused> {
        let total = to.length.get();
        self.may_start(peer, total)?;
        if matches!(from, Body::Parts(parts) if parts.len() > PARTS) {
            return Err(Refused::TooLong);
        }
        if total != from.len() as u64 {
            return Err(Refused::BadMemory);
        }
        if !self.streams.has_room() {
            self.counters.refused_full += 1;
            return Err(Refused::Full);
        }
        let source = match from {
            Body::Region(slice) => Source::Region(slice.clone()),
            Body::Loan(loan) => Source::Loan(loan),
            borrowed => {
                let mut copy = vec![0; borrowed.len()];
                gather(&mut copy, &[], &borrowed, 0);
                Source::Copy(copy)
            }
        };
        let handle = self.operations.start(peer, id, What::Put)?;
        let stream = Stream::new(handle.to_bits(), to, source);
        let list = &mut self.peers[peer].streams;
        if self.streams.push(list, stream).is_none() {
            return self.full(handle);
        }
        self.wait_for_turn(peer);
        Ok(())
    }

    pub(crate) fn atomic(
        &mut self,
        peer: PeerIndex,
        id: OpId,
        at: &Remote,
        what: AtomicOp,
    ) -> Result<(), Refused> {
        self.may_start(peer, 8)?;
        if at.length.get() != 8 || !at.address.get().is_multiple_of(8) {
            return Err(Refused::BadMemory);
        }
        let (number, first, second) = match what {
            AtomicOp::Add(by) => (1, by, 0),
            AtomicOp::And(with) => (2, with, 0),
            AtomicOp::Or(with) => (3, with, 0),
            AtomicOp::Xor(with) => (4, with, 0),
            AtomicOp::Swap(to) => (5, to, 0),
            AtomicOp::CompareSwap { expected, desired } => (6, expected, desired),
        };
        let seq = self.peers[peer].send.next_seq();
        let handle = self.operations.start(peer, id, What::Atomic(seq))?;
        let header = wire::Atomic {
            op: handle.to_bits().into(),
            key: at.key,
            address: at.address,
            first: first.into(),
            second: second.into(),
            what: number,
            zero: [0; 7],
        };
        match self.header(peer, Kind::Atomic, header.as_bytes()) {
            Some(_) => Ok(()),
            None => self.full(handle),
        }
    }

    pub(crate) fn fence(&mut self, scope: FenceScope, id: OpId) -> Result<(), Refused> {
        let peer = match scope {
            FenceScope::Rail => None,
            FenceScope::Peer(peer) if self.peers.get(peer).is_some() => Some(peer),
            FenceScope::Peer(_) => return Err(Refused::PeerDown),
        };
        if !self.operations.has_room() {
            self.counters.refused_full += 1;
            return Err(Refused::Full);
        }
        let before = self.operations.started + 1;
        self.operations.fences.push(Fence { id, peer, before });
        self.operations.settle();
        Ok(())
    }

    /// Handles bytes of a get. Those of an operation that has ended are ignored.
    pub(crate) fn on_data(&mut self, peer: PeerIndex, payload: SharedBytes<'_>) -> Result<(), Drop> {
        let header: wire::Data = zerocopy::transmute!(payload.read::<16>(0).ok_or(Drop::Malformed)?);
        let bytes = payload.skip(16);
        let Some((handle, operation)) = self.operations.open_at(peer, header.op.get()) else {
            return Ok(());
        };
        let What::Get { into, got, total } = &mut operation.what else {
            return Err(Drop::Malformed);
        };
        let length = bytes.len() as u64;
        let end = header.offset.get().checked_add(length).ok_or(Drop::Malformed)?;
        if end > *total || *got + length > *total {
            return Err(Drop::Malformed);
        }
        // Within the total, which is the landing's length.
        into.write_shared(header.offset.get() as usize, bytes);
        *got += length;
        if *got == *total {
            self.operations.finish(handle, Ok(0));
        }
        Ok(())
    }

    /// The target's report on one of our operations.
    pub(crate) fn on_end(&mut self, peer: PeerIndex, payload: SharedBytes<'_>) -> Result<(), Drop> {
        let header: wire::End = zerocopy::transmute!(payload.read::<24>(0).ok_or(Drop::Malformed)?);
        let Some((handle, operation)) = self.operations.open_at(peer, header.op.get()) else {
            return Ok(());
        };
        let outcome = match (header.status, &operation.what) {
            (DONE, What::Put) => Ok(0),
            (DONE, What::Atomic(_)) => Ok(header.value.get()),
            (DENIED, _) => Err(OpError::Denied),
            (WITHDRAWN, _) => Err(OpError::Withdrawn),
            _ => return Err(Drop::Malformed),
        };
        let put = matches!(operation.what, What::Put);
        self.operations.finish(handle, outcome);
        if put {
            self.drop_stream(peer, handle.to_bits());
        }
        Ok(())
    }

    /// A put has ended, and what it was lent goes back: nothing more of it is sent. A target answers when all
    /// has arrived, so there is nothing left, unless the target is not what it should be.
    fn drop_stream(&mut self, peer: PeerIndex, op: u64) {
        let list = &mut self.peers[peer].streams;
        if let Some(stream) = self.streams.find(list, |stream| stream.is_put(op)) {
            self.streams.remove(list, stream);
        }
    }

    /// The peer is gone: each of its operations ends.
    pub(crate) fn fail_operations(&mut self, peer: PeerIndex) {
        let of_peer = |(_, operation): &(Handle, &Operation)| operation.peer == peer;
        let open: Vec<Handle> = self
            .operations
            .open
            .iter()
            .filter(of_peer)
            .map(|(handle, _)| handle)
            .collect();
        for handle in open {
            let posted = match self.operations.open.get(handle).map(|operation| &operation.what) {
                Ok(What::Put) => {
                    let waits = |stream: &Stream| stream.is_put(handle.to_bits()) && stream.has_not_begun();
                    self.streams.find(&self.peers[peer].streams, waits).is_none()
                }
                Ok(What::Atomic(seq)) => self.peers[peer].send.was_sent(*seq),
                _ => false,
            };
            let error = if posted {
                OpError::Indeterminate
            } else {
                OpError::NotDone
            };
            self.operations.finish(handle, Err(error));
        }
        self.streams.clear(&mut self.peers[peer].streams);
    }
}
