//! One-sided operations: exposures, get, put, atomics, fences, and what a failure makes of them.
//!
//! ```text
//!   post ─► link ─► request ─► executing (from `execution` to its bytes' time) ─► link back ─► completion ─► poll
//!                      └ no such key, range, access: Denied      └ withdrawn meanwhile: Withdrawn, half done
//!   the conn fails: not yet on the link: NotDone; anything later: Indeterminate (and a target may still finish it)
//! ```
//! The target's process takes no part, as with a device. Bytes reach the initiator's memory inside its own `poll`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use doorbell_fabric::memory::{ConstLoan, MutLoan, RegionSlice};
use doorbell_fabric::message::{
    Access, AtomicOp, Body, Exposure, FenceScope, OpError, OpId, PeerIndex, Refused, Remote, RemoteKey,
};
use doorbell_fabric::time::Time;

use crate::agenda::Due;
use crate::conn::fill;
use crate::state::Net;
use crate::trace::Happened;

/// Memory under a key.
#[derive(Debug)]
pub(crate) struct Exposed {
    memory: Exposure,
    access: Access,
    address: u64,
    length: u64,
    /// The one NIC that may use it.
    to: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Get,
    Put,
    Atomic(AtomicOp),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// On its way to the target, or waiting for the way.
    Requested,
    Executing,
    /// On its way back, or waiting for the way.
    Replying,
    /// Nothing will come of it; only the failure of the conn ends it.
    Lost,
}

/// An operation between its post and its completion.
#[derive(Debug)]
pub(crate) struct Op {
    nic: u32,
    conn: u32,
    to: u32,
    id: OpId,
    serial: u64,
    what: What,
    key: u64,
    address: u64,
    length: u64,
    /// What a put brings, or what a get brought.
    data: Arc<Vec<u8>>,
    source: Option<RegionSlice>,
    into: MutLoan,
    /// When the request has left the initiator's NIC.
    leaves: Time,
    phase: Phase,
    outcome: Option<Result<u64, OpError>>,
    /// Its initiator has been told the end already.
    orphan: bool,
}

/// The end of an operation or a fence, to be shown by the next poll.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) id: OpId,
    pub(crate) outcome: Result<u64, OpError>,
    pub(crate) into: MutLoan,
    pub(crate) data: Arc<Vec<u8>>,
}

#[derive(Debug)]
pub(crate) struct Fence {
    id: OpId,
    serial: u64,
    /// One peer, or the whole rail.
    conn: Option<u32>,
    hurt: bool,
}

/// What a process has executed for others: the last [`Executed::KEPT`], by initiator's incarnation and operation.
#[derive(Debug, Default)]
pub(crate) struct Executed {
    outcomes: BTreeMap<(u64, u64), u64>,
    order: VecDeque<(u64, u64)>,
}

impl Executed {
    const KEPT: usize = 4096;

    fn add(&mut self, identity: (u64, u64), outcome: u64) {
        if self.order.len() == Self::KEPT {
            if let Some(oldest) = self.order.pop_front() {
                self.outcomes.remove(&oldest);
            }
        }
        self.outcomes.insert(identity, outcome);
        self.order.push_back(identity);
    }
}

impl Exposed {
    fn allows(&self, from: u32, address: u64, length: u64, wanted: Access) -> bool {
        let inside = address >= self.address
            && address
                .checked_add(length)
                .is_some_and(|end| end <= self.address.saturating_add(self.length));
        inside && self.access.allows(wanted) && self.to.is_none_or(|to| to == from)
    }

    fn source(&self, address: u64, length: u64) -> ConstLoan {
        let at = (address - self.address) as usize;
        match &self.memory {
            Exposure::Region(slice) => slice.as_const().part(at, length as usize),
            Exposure::Read(loan) => loan.part(at, length as usize),
            Exposure::Write(loan) => loan.as_const().part(at, length as usize),
        }
    }

    fn target(&self, address: u64, length: u64) -> MutLoan {
        let at = (address - self.address) as usize;
        match &self.memory {
            Exposure::Region(slice) => slice.as_mut().part(at, length as usize),
            Exposure::Read(_) => MutLoan::EMPTY,
            Exposure::Write(loan) => loan.part(at, length as usize),
        }
    }
}

impl Net {
    pub(crate) fn expose(
        &mut self,
        nic: u32,
        memory: Exposure,
        access: Access,
        to: Option<PeerIndex>,
    ) -> Result<Remote, Refused> {
        let features = self.config.capabilities.features;
        let offered = match access {
            Access::Read => features.get,
            Access::Write => features.put,
            Access::ReadWrite => features.get || features.put || features.atomics,
        };
        let state = &self.nics[nic as usize];
        if !offered {
            return Err(Refused::Unsupported);
        }
        if state.ended.is_some() {
            return Err(Refused::PeerDown);
        }
        let length = match &memory {
            Exposure::Region(slice) => slice.len(),
            Exposure::Read(loan) if access == Access::Read => loan.len(),
            Exposure::Read(_) => return Err(Refused::BadMemory),
            Exposure::Write(loan) => loan.len(),
        } as u64;
        let to = match to {
            Some(peer) => Some(state.conns.get(peer.index()).ok_or(Refused::PeerDown)?.nic),
            None => None,
        };
        if state.exposed.len() >= self.config.keys {
            self.stats(nic).refused_full += 1;
            return Err(Refused::Full);
        }
        let key = self.random.next_u64();
        let state = &mut self.nics[nic as usize];
        let address = state.next_address;
        // Addresses are made up, page-aligned and never used twice: real ones would differ from run to run.
        state.next_address += (length + 1).next_multiple_of(4096);
        let exposed = Exposed {
            memory,
            access,
            address,
            length,
            to,
        };
        state.exposed.insert(key, exposed);
        self.note(Happened::Exposed, nic, nic, key, length as usize);
        Ok(Remote {
            key: key.into(),
            address: address.into(),
            length: length.into(),
        })
    }

    pub(crate) fn withdraw(&mut self, nic: u32, key: RemoteKey) {
        let Some(exposed) = self.nics[nic as usize].exposed.remove(&key.0) else {
            return;
        };
        self.note(Happened::Withdrawn, nic, nic, key.0, 0);
        let under_way: Vec<u32> = self
            .ops
            .iter()
            .filter(|(_, op)| (op.to, op.key) == (nic, key.0) && op.phase == Phase::Executing)
            .filter(|(_, op)| op.outcome.is_none())
            .map(|(place, _)| place)
            .collect();
        for place in under_way {
            self.stats(nic).operations_withdrawn += 1;
            self.move_half(place, &exposed);
            self.ops[place].outcome = Some(Err(OpError::Withdrawn));
        }
    }

    /// What an operation that is stopped in the middle has done: the first half of its bytes.
    fn move_half(&mut self, place: u32, exposed: &Exposed) {
        let op = &self.ops[place];
        let (what, address, half) = (op.what, op.address, op.length / 2);
        match what {
            What::Get => {
                let source = exposed.source(address, half);
                self.read_into_op(place, source);
            }
            What::Put => self.write_from_op(place, exposed.target(address, half)),
            What::Atomic(_) => {}
        }
    }

    fn read_into_op(&mut self, place: u32, source: ConstLoan) {
        let data = Arc::make_mut(&mut self.ops[place].data);
        data.resize(source.len(), 0);
        source.copy_to(0, data);
    }

    fn write_from_op(&self, place: u32, target: MutLoan) {
        let op = &self.ops[place];
        match &op.source {
            Some(slice) => target.write_shared(0, slice.as_const().as_shared().take(target.len())),
            None => target.write(0, &op.data[..target.len().min(op.data.len())]),
        };
    }

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
        into: MutLoan,
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
        self.post(nic, peer, id, What::Put, to, from, MutLoan::EMPTY);
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
        if at.length.get() != 8 || at.address.get() % 8 != 0 {
            return Err(Refused::BadMemory);
        }
        self.post(nic, peer, id, What::Atomic(what), at, Body::Empty, MutLoan::EMPTY);
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
        into: MutLoan,
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
        // Withdrawing gives an outcome, so a key that is missing here means that its NIC has ended.
        let Some(exposed) = self.exposed_for(place) else {
            return;
        };
        let op = &self.ops[place];
        let (source, target) = (
            exposed.source(op.address, op.length),
            exposed.target(op.address, op.length),
        );
        let (to, nic, what, length) = (op.to, op.nic, op.what, op.length as usize);
        let initiator = self.lives[self.nics[nic as usize].life as usize].incarnation.0;
        let identity = (initiator, op.id.0);
        let life = self.nics[to as usize].life as usize;
        let outcome = match (what, self.lives[life].executed.outcomes.get(&identity)) {
            (What::Get, _) => {
                self.read_into_op(place, source);
                0
            }
            (_, Some(&outcome)) => {
                self.stats(to).operations_repeated += 1;
                self.ops[place].outcome = Some(Ok(outcome));
                return;
            }
            (What::Put, None) => {
                self.write_from_op(place, target);
                0
            }
            (What::Atomic(atomic), None) => apply(atomic, source, target),
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

    /// Tells the initiator the end of an operation.
    fn complete(&mut self, place: u32, outcome: Result<u64, OpError>) {
        let op = &mut self.ops[place];
        let data = match op.what {
            What::Get => std::mem::take(&mut op.data),
            _ => Arc::default(),
        };
        let completion = Completion {
            id: op.id,
            outcome,
            into: op.into,
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

    /// An operation that waited for the way will not go on; its initiator is told by `fail_ops`.
    pub(crate) fn forget_op(&mut self, place: u32) {
        self.ops[place].phase = Phase::Lost;
    }

    pub(crate) fn fail_ops(&mut self, nic: u32, conn: u32) {
        let open: Vec<u32> = self
            .ops
            .iter()
            .filter(|(_, op)| (op.nic, op.conn) == (nic, conn) && !op.orphan)
            .map(|(place, _)| place)
            .collect();
        let hurt_before = self.nics[nic as usize]
            .fences
            .iter()
            .map(|fence| fence.serial)
            .max();
        let mut first = u64::MAX;
        for place in open {
            let op = &self.ops[place];
            first = first.min(op.serial);
            let launched = op.leaves <= self.now;
            let lost = op.phase == Phase::Lost;
            self.stats(nic).operations_failed += 1;
            self.complete(
                place,
                Err(if launched {
                    OpError::Indeterminate
                } else {
                    OpError::NotDone
                }),
            );
            if lost {
                self.remove_op(place);
            }
        }
        if hurt_before.is_some() {
            for fence in &mut self.nics[nic as usize].fences {
                fence.hurt |= fence.conn == Some(conn) || (fence.conn.is_none() && first < fence.serial);
            }
            self.check_fences(nic);
        }
    }

    pub(crate) fn fence(&mut self, nic: u32, scope: FenceScope, id: OpId) -> Result<(), Refused> {
        let conn = match scope {
            FenceScope::Peer(peer) => {
                self.check_peer(nic, peer)?;
                Some(peer.0)
            }
            FenceScope::Rail => None,
        };
        let state = &mut self.nics[nic as usize];
        if state.ended.is_some() {
            return Err(Refused::PeerDown);
        }
        if state.open_ops >= self.config.operations {
            return Err(Refused::Full);
        }
        state.open_ops += 1;
        state.serial += 1;
        let serial = state.serial;
        state.fences.push(Fence {
            id,
            serial,
            conn,
            hurt: false,
        });
        self.check_fences(nic);
        Ok(())
    }

    /// Completes the fences of `nic` that wait for nothing any more.
    pub(crate) fn check_fences(&mut self, nic: u32) {
        if self.nics[nic as usize].fences.is_empty() {
            return;
        }
        let mut fences = std::mem::take(&mut self.nics[nic as usize].fences);
        let ended = fences.extract_if(.., |fence| fence.hurt || !self.fence_waits(nic, fence));
        let ended: Vec<Fence> = ended.collect();
        self.nics[nic as usize].fences = fences;
        for fence in ended {
            let outcome = if fence.hurt {
                Err(OpError::Indeterminate)
            } else {
                Ok(0)
            };
            let what = if fence.hurt {
                Happened::Ended
            } else {
                Happened::Completed
            };
            self.note(what, nic, nic, fence.id.0, 0);
            self.nics[nic as usize].completions.push_back(Completion {
                id: fence.id,
                outcome,
                into: MutLoan::EMPTY,
                data: Arc::default(),
            });
        }
    }

    /// Whether something posted before the fence, in its scope, may still touch memory.
    fn fence_waits(&self, nic: u32, fence: &Fence) -> bool {
        let covered =
            |serial: u64, conn: u32| serial < fence.serial && fence.conn.is_none_or(|only| only == conn);
        let touches = |op: &Op| !op.orphan || op.phase == Phase::Executing;
        let op = |(_, op): (u32, &Op)| op.nic == nic && covered(op.serial, op.conn) && touches(op);
        self.ops.iter().any(op)
            || self.nics[nic as usize]
                .regions
                .iter()
                .any(|&(serial, conn)| covered(serial, conn))
    }
}

/// Executes an atomic; the network's lock makes it one.
fn apply(what: AtomicOp, source: ConstLoan, target: MutLoan) -> u64 {
    let mut bytes = [0; 8];
    source.copy_to(0, &mut bytes);
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
    target.write(0, &new.to_ne_bytes());
    old
}
