//! One-sided operations: get, put, atomics, and what a failure makes of them.
//!
//! ```text
//!   post ─► link ─► request ─► executing (from `execution` to its bytes' time) ─► link back ─► completion
//!                      └ no such key, range, access: Denied      └ withdrawn meanwhile: Withdrawn, half done
//!   the conn fails: not yet on the link: NotDone; later: Indeterminate (and a target may still finish it)
//! ```
//! The target's process takes no part, as with a device. Bytes reach the initiator's memory inside its own
//! `poll`.

use std::sync::Arc;

use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::message::{Access, AtomicOp, Body, Landing, OpError, OpId, PeerIndex, Refused, Remote};
use doorbell_fabric::time::Time;

use crate::agenda::Due;
use crate::conn::fill;
use crate::exposure::Exposed;
use crate::state::Net;
use crate::trace::Happened;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Get,
    Put,
    Atomic(AtomicOp),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The request is in flight to the target, or waits for the path.
    Requested,
    Executing,
    /// The reply is in flight, or waits for the path.
    Replying,
    /// The operation will never complete; only the failure of the connection ends it.
    Lost,
}

/// An operation between its post and its completion.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) nic: u32,
    pub(crate) conn: u32,
    pub(crate) to: u32,
    pub(crate) id: OpId,
    pub(crate) serial: u64,
    pub(crate) what: What,
    pub(crate) key: u64,
    pub(crate) address: u64,
    pub(crate) length: u64,
    /// What a put brings, or what a get brought.
    pub(crate) data: Arc<Vec<u8>>,
    pub(crate) source: Option<RegionSlice>,
    pub(crate) into: Landing,
    /// When the request has left the initiator's NIC.
    pub(crate) leaves: Time,
    pub(crate) phase: Phase,
    pub(crate) outcome: Option<Result<u64, OpError>>,
    /// Whether its end has already been reported to its initiator.
    pub(crate) orphan: bool,
}

/// The end of an operation or a fence, to be shown by the next poll.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) id: OpId,
    pub(crate) outcome: Result<u64, OpError>,
    pub(crate) into: Landing,
    pub(crate) data: Arc<Vec<u8>>,
}

impl Op {
    /// Gets the first `length` bytes.
    pub(crate) fn read(&mut self, from: &Exposed, length: u64) {
        let source = from.bytes(self.address, length);
        let data = Arc::make_mut(&mut self.data);
        data.resize(source.len(), 0);
        source.copy_to(0, data);
    }

    /// Puts the first `length` bytes.
    pub(crate) fn write(&self, to: &Exposed, length: u64) {
        let bytes = match &self.source {
            Some(slice) => slice.as_shared(),
            None => SharedBytes::of(&self.data),
        };
        to.write(self.address, bytes.take(length as usize));
    }
}

impl Net {
    /// Common checks of get, put and atomic.
    fn check_op(&self, nic: u32, peer: PeerIndex, offered: bool, length: u64) -> Result<(), Refused> {
        if !offered {
            return Err(Refused::Unsupported);
        }
        self.check_peer(nic, peer)?;
        if length > self.config.capabilities.limits.one_sided {
            return Err(Refused::TooLong);
        }
        if self.nics[nic as usize].open_ops >= self.config.operations {
            return Err(Refused::Full);
        }
        Ok(())
    }

    pub(crate) fn get(
        &mut self,
        nic: u32,
        peer: PeerIndex,
        id: OpId,
        from: &Remote,
        into: Landing,
    ) -> Result<(), Refused> {
        let offered = self.config.capabilities.features.get;
        self.check_op(nic, peer, offered, from.length.get())?;
        if from.length.get() != into.len() as u64 {
            return Err(Refused::BadMemory);
        }
        self.post(nic, peer, id, What::Get, from, Body::Empty, into);
        Ok(())
    }

    pub(crate) fn put(
        &mut self,
        nic: u32,
        peer: PeerIndex,
        id: OpId,
        from: Body<'_>,
        to: &Remote,
    ) -> Result<(), Refused> {
        let offered = self.config.capabilities.features.put;
        self.check_op(nic, peer, offered, to.length.get())?;
        self.check_body(0, &from, usize::MAX)?;
        if to.length.get() != from.len() as u64 {
            return Err(Refused::BadMemory);
        }
        self.post(nic, peer, id, What::Put, to, from, Landing::EMPTY);
        Ok(())
    }

    pub(crate) fn atomic(
        &mut self,
        nic: u32,
        peer: PeerIndex,
        id: OpId,
        at: &Remote,
        what: AtomicOp,
    ) -> Result<(), Refused> {
        let offered = self.config.capabilities.features.atomics;
        self.check_op(nic, peer, offered, at.length.get())?;
        if at.length.get() != 8 || !at.address.get().is_multiple_of(8) {
            return Err(Refused::BadMemory);
        }
        self.post(nic, peer, id, What::Atomic(what), at, Body::Empty, Landing::EMPTY);
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one private call, one operation's fields"
    )]
    fn post(
        &mut self,
        nic: u32,
        peer: PeerIndex,
        id: OpId,
        what: What,
        remote: &Remote,
        body: Body<'_>,
        into: Landing,
    ) {
        let mut data = self.buffer();
        let source = fill(&mut data, &[], body);
        let length = body.len();
        let conn = self.conn(nic, peer.0);
        let (to, link) = (conn.nic, conn.link_out);
        let state = &mut self.nics[nic as usize];
        state.open_ops += 1;
        state.serial += 1;
        let serial = state.serial;
        let leaves = self.serialise(nic, link, length);
        let at = self.transit(link, leaves);
        let op = self.ops.insert(Op {
            nic,
            conn: peer.0,
            to,
            id,
            serial,
            what,
            key: remote.key.get(),
            address: remote.address.get(),
            length: remote.length.get(),
            data,
            source,
            into,
            leaves,
            phase: Phase::Requested,
            outcome: None,
            orphan: false,
        });
        self.note(Happened::Posted, nic, to, id.0, remote.length.get() as usize);
        self.agenda.push(at, Due::Request { op });
    }

    pub(crate) fn request_arrives(&mut self, place: u32) {
        let op = &self.ops[place];
        let (nic, conn, to) = (op.nic, op.conn, op.to);
        if op.orphan {
            return self.remove_op(place);
        }
        let link = self.conn(nic, conn).link_out;
        if !self.passes(nic, to, link) {
            return self.stall(nic, conn, Due::Request { op: place });
        }
        if self.exposed_for(place).is_none() {
            self.stats(to).operations_denied += 1;
            self.ops[place].outcome = Some(Err(OpError::Denied));
            return self.reply(place);
        }
        let back = self.conn(nic, conn).link_back;
        let read = if self.ops[place].what == What::Get {
            self.ops[place].length
        } else {
            0
        };
        let takes = self.config.execution + self.wire_time(back, read);
        self.ops[place].phase = Phase::Executing;
        self.agenda.push(self.now + takes, Due::Finish { op: place });
    }

    /// The exposure that an operation names, when it may use it.
    fn exposed_for(&self, place: u32) -> Option<&Exposed> {
        let op = &self.ops[place];
        let wanted = match op.what {
            What::Get => Access::Read,
            What::Put => Access::Write,
            What::Atomic(_) => Access::ReadWrite,
        };
        let exposed = self.nics[op.to as usize].exposed.get(&op.key)?;
        exposed
            .allows(op.nic, op.address, op.length, wanted)
            .then_some(exposed)
    }

    pub(crate) fn finish(&mut self, place: u32) {
        if self.ops[place].outcome.is_none() {
            self.execute(place);
        }
        let op = &mut self.ops[place];
        if op.orphan {
            return self.remove_op(place);
        }
        if self.nics[op.to as usize].ended.is_some() {
            op.phase = Phase::Lost;
            return;
        }
        self.reply(place);
    }

    fn execute(&mut self, place: u32) {
        // Withdrawing sets an outcome, so a missing key means that its NIC has ended.
        let Some(exposed) = self.exposed_for(place).cloned() else {
            return;
        };
        let op = &mut self.ops[place];
        let (to, nic, what, length) = (op.to, op.nic, op.what, op.length as usize);
        let initiator = self.lives[self.nics[nic as usize].life as usize].incarnation.0;
        let identity = (initiator, op.id.0);
        let life = self.nics[to as usize].life as usize;
        let outcome = match (what, self.lives[life].executed.outcomes.get(&identity)) {
            (What::Get, _) => {
                op.read(&exposed, op.length);
                0
            }
            (_, Some(&outcome)) => {
                self.stats(to).operations_repeated += 1;
                self.ops[place].outcome = Some(Ok(outcome));
                return;
            }
            (What::Put, None) => {
                op.write(&exposed, op.length);
                0
            }
            (What::Atomic(atomic), None) => apply(atomic, &exposed, op.address),
        };
        if what != What::Get {
            self.lives[life].executed.add(identity, outcome);
        }
        self.stats(to).operations_executed += 1;
        self.note(Happened::Executed, nic, to, identity.1, length);
        self.ops[place].outcome = Some(Ok(outcome));
    }

    fn reply(&mut self, place: u32) {
        let op = &mut self.ops[place];
        op.phase = Phase::Replying;
        let (nic, conn) = (op.nic, op.conn);
        let link = self.conn(nic, conn).link_back;
        let at = self.transit(link, self.now);
        self.agenda.push(at, Due::Reply { op: place });
    }

    pub(crate) fn reply_arrives(&mut self, place: u32) {
        let op = &self.ops[place];
        let (nic, conn, to) = (op.nic, op.conn, op.to);
        if op.orphan {
            return self.remove_op(place);
        }
        let link = self.conn(nic, conn).link_back;
        if !self.passes(to, nic, link) {
            return self.stall(nic, conn, Due::Reply { op: place });
        }
        let outcome = op.outcome.unwrap_or(Err(OpError::Indeterminate));
        self.complete(place, outcome);
        self.remove_op(place);
    }

    /// Reports the end of an operation to the initiator.
    fn complete(&mut self, place: u32, outcome: Result<u64, OpError>) {
        let op = &mut self.ops[place];
        let data = match op.what {
            What::Get => std::mem::take(&mut op.data),
            _ => Arc::default(),
        };
        let completion = Completion {
            id: op.id,
            outcome,
            into: std::mem::replace(&mut op.into, Landing::EMPTY),
            data,
        };
        let (nic, to, id, length) = (op.nic, op.to, op.id.0, op.length as usize);
        op.orphan = true;
        let what = if outcome.is_ok() {
            Happened::Completed
        } else {
            Happened::Ended
        };
        self.note(what, nic, to, id, length);
        self.nics[nic as usize].completions.push_back(completion);
    }

    fn remove_op(&mut self, place: u32) {
        if let Some(op) = self.ops.remove(place) {
            self.recycle(op.data);
            self.check_fences(op.nic);
        }
    }

    /// Drops an operation that waited for the path; `fail_ops` reports it to its initiator.
    pub(crate) fn forget_op(&mut self, place: u32) {
        self.ops[place].phase = Phase::Lost;
    }

    pub(crate) fn fail_ops(&mut self, nic: u32, conn: u32) {
        let of_conn = |op: &Op| (op.nic, op.conn) == (nic, conn) && !op.orphan;
        let places = self
            .ops
            .iter()
            .filter(|(_, op)| of_conn(op))
            .map(|(place, _)| place);
        let mut open: Vec<u32> = places.collect();
        open.sort_by_key(|&place| self.ops[place].serial);
        let mut first = u64::MAX;
        for place in open {
            let op = &self.ops[place];
            first = first.min(op.serial);
            let launched = op.leaves <= self.now;
            let lost = op.phase == Phase::Lost;
            self.stats(nic).operations_failed += 1;
            let error = if launched {
                OpError::Indeterminate
            } else {
                OpError::NotDone
            };
            self.complete(place, Err(error));
            if lost {
                self.remove_op(place);
            }
        }
        self.hurt_fences(nic, conn, first);
    }
}

/// Executes an atomic; the network's lock makes it one.
fn apply(what: AtomicOp, on: &Exposed, address: u64) -> u64 {
    let mut bytes = [0; 8];
    on.bytes(address, 8).copy_to(0, &mut bytes);
    let old = u64::from_ne_bytes(bytes);
    let new = match what {
        AtomicOp::Add(by) => old.wrapping_add(by),
        AtomicOp::And(with) => old & with,
        AtomicOp::Or(with) => old | with,
        AtomicOp::Xor(with) => old ^ with,
        AtomicOp::Swap(new) => new,
        AtomicOp::CompareSwap { expected, desired } => {
            if old == expected {
                desired
            } else {
                old
            }
        }
    };
    on.write(address, SharedBytes::of(&new.to_ne_bytes()));
    old
}
