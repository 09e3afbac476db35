//! One operation, and which request it needs next.

use doorbell_fabric::message::{AtomicOp, Landing, OpError, OpId};

use super::memory::Local;
use crate::rc::destroyer::Destroyed;
use crate::sys::DeviceAtomic;

/// Rounds of a loop of compare-and-swap after which it rests until the next call of `progress`.
const RESTS_AFTER: u32 = 16;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Get,
    Put,
    Atomic(AtomicOp),
}

/// An operation that has not ended.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) id: OpId,
    /// The order in which operations were started.
    pub(super) serial: u64,
    pub(super) peer: u32,
    pub(super) kind: Kind,
    /// The name of the peer's memory, and the address there.
    pub(super) name: u64,
    pub(super) address: u64,
    pub(super) length: usize,
    pub(super) local: Local,
    /// Where a get's bytes are to be: kept until it has ended.
    pub(super) landing: Landing,
    pub(super) copies_out: bool,
    /// Bytes that were requested, and that are done.
    pub(super) requested: usize,
    pub(super) done: usize,
    /// Requests under way.
    pub(super) under_way: u32,
    /// The value that an atomic expects, and how often it found another one.
    guess: u64,
    tries: u32,
    /// The peer refused it, and reports whether its key was good once.
    pub(super) is_refused: bool,
    /// The device may write to its memory until a former queue pair is destroyed; and how it ends then, if it
    /// does.
    pub(super) written_until: Option<Destroyed>,
    pub(super) outcome: Option<Result<u64, OpError>>,
}

impl Op {
    pub(super) fn new(
        (id, serial, peer): (OpId, u64, u32),
        kind: Kind,
        (name, address, length): (u64, u64, usize),
        local: Local,
    ) -> Self {
        Self {
            id,
            serial,
            peer,
            kind,
            name,
            address,
            length,
            local,
            landing: Landing::EMPTY,
            copies_out: false,
            requested: 0,
            done: 0,
            under_way: 0,
            guess: 0,
            tries: 0,
            is_refused: false,
            written_until: None,
            outcome: None,
        }
    }

    /// Whether everything was requested.
    pub(super) fn is_requested(&self) -> bool {
        self.requested == self.length && (self.length > 0 || self.under_way > 0)
    }

    /// Whether it counts among the reads under way.
    pub(super) fn is_read(&self) -> bool {
        self.kind != Kind::Put
    }

    /// Whether the peer's memory may have been changed already.
    pub(super) fn may_have_changed(&self) -> bool {
        self.kind != Kind::Get && (self.under_way > 0 || self.done > 0)
    }

    /// The other end executed none of what is under way: it is to be requested again.
    pub(super) fn roll_back(&mut self) {
        (self.requested, self.under_way) = (self.done, 0);
    }

    /// Whether a device may still write to its memory over a queue pair that is gone: it neither ends nor is
    /// requested again.
    pub(super) fn is_written(&self) -> bool {
        let until = self.written_until.as_ref();
        until.is_some_and(|destroyed| !destroyed.has_come())
    }

    /// What the device is to do for an atomic.
    pub(super) fn device_atomic(&self, what: AtomicOp) -> DeviceAtomic {
        match what {
            AtomicOp::Add(value) => DeviceAtomic::Add(value),
            AtomicOp::CompareSwap { expected, desired } => DeviceAtomic::CompareSwap { expected, desired },
            _ => DeviceAtomic::CompareSwap {
                expected: self.guess,
                desired: new_value(what, self.guess),
            },
        }
    }

    /// An atomic brought the old value: whether it is done. If not, it is to be requested again.
    pub(super) fn took(&mut self, what: AtomicOp, old: u64) -> Took {
        let is_loop = !matches!(what, AtomicOp::Add(_) | AtomicOp::CompareSwap { .. });
        if !is_loop || old == self.guess {
            return Took::Done;
        }
        self.guess = old;
        self.tries += 1;
        (self.requested, self.done) = (0, 0);
        if self.tries.is_multiple_of(RESTS_AFTER) {
            Took::Rests
        } else {
            Took::Again
        }
    }
}

/// What an atomic's answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Took {
    Done,
    Again,
    Rests,
}

fn new_value(what: AtomicOp, old: u64) -> u64 {
    match what {
        AtomicOp::Add(value) => old.wrapping_add(value),
        AtomicOp::And(value) => old & value,
        AtomicOp::Or(value) => old | value,
        AtomicOp::Xor(value) => old ^ value,
        AtomicOp::Swap(value) => value,
        AtomicOp::CompareSwap { desired, .. } => desired,
    }
}

/// The operations that have not ended, by their places.
#[derive(Default)]
pub(super) struct Ops {
    list: Vec<Option<Op>>,
    free: Vec<u32>,
    /// How many there were.
    pub(super) started: u64,
    pub(super) open: usize,
}

impl Ops {
    pub(super) fn add(&mut self, op: Op) -> u32 {
        self.open += 1;
        match self.free.pop() {
            Some(at) => {
                self.list[at as usize] = Some(op);
                at
            }
            None => {
                self.list.push(Some(op));
                self.free.reserve(self.list.len());
                (self.list.len() - 1) as u32
            }
        }
    }

    pub(super) fn get(&mut self, at: u32) -> Option<&mut Op> {
        self.list.get_mut(at as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, at: u32) -> Option<Op> {
        let op = self.list.get_mut(at as usize)?.take()?;
        self.free.push(at);
        self.open -= 1;
        Some(op)
    }

    /// The places of a peer's operations, in the order in which they were started.
    pub(super) fn of_peer(&self, peer: u32) -> Vec<u32> {
        let ops = self.list.iter().enumerate();
        let mut of_peer: Vec<(u64, u32)> = ops
            .filter_map(|(at, op)| op.as_ref().map(|op| (op.serial, at as u32, op.peer)))
            .filter(|(_, _, of)| *of == peer)
            .map(|(serial, at, _)| (serial, at))
            .collect();
        of_peer.sort_unstable();
        of_peer.into_iter().map(|(_, at)| at).collect()
    }

    /// How many are open to a peer, or at all.
    pub(super) fn count(&self, peer: Option<u32>) -> usize {
        match peer {
            None => self.open,
            Some(peer) => self.list.iter().flatten().filter(|op| op.peer == peer).count(),
        }
    }
}
