//! One-sided operations at the target: checked by key and range, executed here, answered without the layer
//! above.
//!
//! A segment of them is taken only when the answer has room as well; otherwise it is dropped, and comes
//! again. So a target executes each once, and never owes an answer that it cannot send.
//!
//! Two ends that request much of each other must not fill their windows with requests and wait for one
//! another. So requests and long transfers leave a part of the window, and of the segments, to answers
//! ([`RESERVE`](crate::send::RESERVE)), and the last of that is for the segment whose turn it is: when it is
//! taken, its sender's window moves, and has room for an answer in turn.

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Access, AtomicOp, PeerIndex, Remote};

use crate::core::Core;
use crate::counters::Drop;
use crate::pool::Id;
use crate::pooled_list::Node;
use crate::seq::Seq;
use crate::stream::{Source, Stream, TURNS};
use crate::wire;

/// Puts of one peer, of those that come in several segments, that may begin ahead of their turn. Those whose
/// turn it is are [`TURNS`] at most, and find room beside them.
const EARLY: usize = 32;

/// The operation was executed.
pub(crate) const DONE: u8 = 0;
/// It was refused, and nothing was touched.
pub(crate) const DENIED: u8 = 1;
/// The memory was withdrawn in the middle of it.
pub(crate) const WITHDRAWN: u8 = 2;

/// A put of which not everything has arrived.
#[derive(Debug)]
pub(crate) struct Inflow {
    op: u64,
    total: u64,
    got: u64,
    /// Some of it was written; some of it was refused.
    written: bool,
    refused: bool,
}

impl Inflow {
    fn status(&self) -> u8 {
        match (self.refused, self.written) {
            (false, _) => DONE,
            (true, false) => DENIED,
            (true, true) => WITHDRAWN,
        }
    }
}

impl Core {
    /// Whether it is the turn of a peer's segment.
    fn is_turn(&self, peer: PeerIndex, seq: Seq) -> bool {
        self.peers[peer].recv.awaited() == seq
    }

    /// Whether the answer of one segment to a peer's request has room.
    fn can_answer(&self, peer: PeerIndex, seq: Seq) -> Result<(), Drop> {
        let kept = usize::from(!self.is_turn(peer, seq));
        self.has_place(peer, kept).then_some(()).ok_or(Drop::Room)
    }

    /// Bytes for exposed memory.
    pub(crate) fn on_put(&mut self, peer: PeerIndex, seq: Seq, payload: SharedBytes<'_>) -> Result<(), Drop> {
        let header: wire::Put = zerocopy::transmute!(payload.read::<40>(0).ok_or(Drop::Malformed)?);
        let bytes = payload.skip(40);
        let (op, total, offset) = (header.op.get(), header.total.get(), header.offset.get());
        let end = offset.checked_add(bytes.len() as u64).ok_or(Drop::Malformed)?;
        if end > total {
            return Err(Drop::Malformed);
        }
        self.can_answer(peer, seq)?;
        let whole = bytes.len() as u64 == total;
        let inflow = if whole {
            None
        } else {
            Some(self.inflow(peer, seq, op, total)?)
        };
        let remote = Remote {
            key: header.key,
            address: header.address,
            length: header.total,
        };
        // All of its range is checked each time, so that an operation that reaches outside touches nothing at
        // all.
        let written = match self.exposures.check(peer, &remote, Access::Write) {
            Ok(permit) => permit.write(offset as usize, bytes) == bytes.len(),
            Err(_) => false,
        };
        let Some(index) = inflow else {
            self.end_operation(peer, op, 0, if written { DONE } else { DENIED });
            return Ok(());
        };
        let Some(inflow) = self.inflows.get(index) else {
            return Err(Drop::Malformed);
        };
        inflow.got += bytes.len() as u64;
        inflow.written |= written;
        inflow.refused |= !written;
        if inflow.got >= inflow.total {
            let status = inflow.status();
            self.inflows.remove(&mut self.peers[peer].inflows, index);
            self.end_operation(peer, op, 0, status);
        }
        Ok(())
    }

    /// The put that a segment belongs to.
    fn inflow(&mut self, peer: PeerIndex, seq: Seq, op: u64, total: u64) -> Result<Id<Node<Inflow>>, Drop> {
        let list = &self.peers[peer].inflows;
        if let Some(index) = self.inflows.find(list, |inflow| inflow.op == op) {
            let same = self
                .inflows
                .get(index)
                .is_some_and(|inflow| inflow.total == total);
            return if same { Ok(index) } else { Err(Drop::Malformed) };
        }
        let most = if self.is_turn(peer, seq) {
            EARLY + TURNS
        } else {
            EARLY
        };
        if self.inflows.len(&self.peers[peer].inflows) >= most {
            return Err(Drop::Room);
        }
        let inflow = Inflow {
            op,
            total,
            got: 0,
            written: false,
            refused: false,
        };
        let list = &mut self.peers[peer].inflows;
        self.inflows.push(list, inflow).ok_or(Drop::Room)
    }

    /// A request for bytes of exposed memory.
    pub(crate) fn on_get(&mut self, peer: PeerIndex, seq: Seq, payload: SharedBytes<'_>) -> Result<(), Drop> {
        let header: wire::Get = zerocopy::transmute!(payload.read::<32>(0).ok_or(Drop::Malformed)?);
        self.can_answer(peer, seq)?;
        let remote = Remote {
            key: header.key,
            address: header.address,
            length: header.length,
        };
        if self.exposures.check(peer, &remote, Access::Read).is_err() {
            self.end_operation(peer, header.op.get(), 0, DENIED);
            return Ok(());
        }
        let stream = Stream::new(header.op.get(), &remote, Source::Exposed);
        let list = &mut self.peers[peer].streams;
        self.streams.push(list, stream).ok_or(Drop::Room)?;
        self.wait_for_turn(peer);
        Ok(())
    }

    /// An atomic on exposed memory.
    pub(crate) fn on_atomic(
        &mut self,
        peer: PeerIndex,
        seq: Seq,
        payload: SharedBytes<'_>,
    ) -> Result<(), Drop> {
        let header: wire::Atomic = zerocopy::transmute!(payload.read::<48>(0).ok_or(Drop::Malformed)?);
        let (first, second) = (header.first.get(), header.second.get());
        let what = match header.what {
            1 => AtomicOp::Add(first),
            2 => AtomicOp::And(first),
            3 => AtomicOp::Or(first),
            4 => AtomicOp::Xor(first),
            5 => AtomicOp::Swap(first),
            6 => AtomicOp::CompareSwap {
                expected: first,
                desired: second,
            },
            _ => return Err(Drop::Malformed),
        };
        self.can_answer(peer, seq)?;
        let remote = Remote {
            key: header.key,
            address: header.address,
            length: 8.into(),
        };
        let permit = self.exposures.check(peer, &remote, Access::ReadWrite);
        let (value, status) = match permit.and_then(|permit| permit.atomic(what)) {
            Ok(old) => (old, DONE),
            Err(_) => (0, DENIED),
        };
        self.end_operation(peer, header.op.get(), value, status);
        Ok(())
    }

    /// The peer is gone: nothing more of its puts will come.
    pub(crate) fn drop_inflows(&mut self, peer: PeerIndex) {
        self.inflows.clear(&mut self.peers[peer].inflows);
    }
}
