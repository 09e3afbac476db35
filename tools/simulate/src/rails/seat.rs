//! What a job of many rails needs of an end beside what every player does: a PML has it, and a domain of the
//! libfabric provider.

use std::time::Duration;

use doorbell_fabric::atomics::{Arithmetic, Element};
use doorbell_fabric::event::DownReason;
use doorbell_fabric::memory::{ConstLoan, RegionSlice};
use doorbell_fabric::time::Time;
use doorbell_job::rails::AnyRail;
use doorbell_pml::{
    AtomicArgs, GetArgs, Payload, Pml, PutArgs, Rank, RemotePiece, RequestId, Target, WindowAccess,
    WindowArgs, WindowMemory,
};

use super::operations::{OneSided, Operations};
use crate::end::{End, Trouble, trouble};
use crate::failure::Kind;

/// An end of a job of many rails.
pub(crate) trait Seat: End + Sized {
    /// What it does beside the plan.
    type Aside: Beside<Self>;

    /// Returns the PML that it stands on, to be looked at.
    fn pml(&self) -> &Pml<AnyRail>;

    /// The number by which the PML knows a rank.
    fn number(&self, rank: u32) -> Rank {
        Rank(rank)
    }

    /// Checks that it has as many requests open as its owner counts.
    fn check(&self, open: usize) -> Result<(), String>;

    /// Another rank has died, as a job's control plane reports it.
    fn peer_died(&mut self, now: Time, rank: u32);

    /// It dies itself: from now on it is not used.
    fn die(&mut self) {}
}

/// Messages or operations beside the plan, and what is done with them.
pub(crate) trait Beside<E>: Sized {
    /// For a rank of a job that lasts about so long; `None` for a seed that has nothing beside its plan.
    fn of(seed: u64, rank: u32, ranks: u32, lasts: Duration) -> Option<Self>;

    /// Prepares what others may use before this rank has its first turn.
    fn begin(&mut self, _: &mut E) -> Result<(), Kind> {
        Ok(())
    }

    /// Sends now and then, and takes what came in one way or another.
    fn step(&mut self, end: &mut E, now: Time) -> Result<(), Kind>;

    /// The plan is done: nothing is sent any more, and what is there is thrown away.
    fn clear_up(&mut self, end: &mut E) -> Result<(), Kind>;

    /// Requests that are open and not aborted.
    fn open(&self) -> usize;

    /// Bytes that were sent.
    fn bytes(&self) -> u64;

    /// Returns what was sent, by one to another of which both live, and has not come; where that is counted.
    fn missing(_: &[Option<&Self>], _: &dyn Fn(u32, u32) -> bool) -> Option<String> {
        None
    }
}

/// Two things beside the plan, of which a seed has one or both.
pub(crate) struct Both<A, B>(Option<A>, Option<B>);

impl<E, A: Beside<E>, B: Beside<E>> Beside<E> for Both<A, B> {
    fn of(seed: u64, rank: u32, ranks: u32, lasts: Duration) -> Option<Self> {
        let both = Self(A::of(seed, rank, ranks, lasts), B::of(seed, rank, ranks, lasts));
        (both.0.is_some() || both.1.is_some()).then_some(both)
    }

    fn begin(&mut self, end: &mut E) -> Result<(), Kind> {
        self.0.as_mut().map_or(Ok(()), |one| one.begin(end))?;
        self.1.as_mut().map_or(Ok(()), |other| other.begin(end))
    }

    fn step(&mut self, end: &mut E, now: Time) -> Result<(), Kind> {
        self.0.as_mut().map_or(Ok(()), |one| one.step(end, now))?;
        self.1.as_mut().map_or(Ok(()), |other| other.step(end, now))
    }

    fn clear_up(&mut self, end: &mut E) -> Result<(), Kind> {
        self.0.as_mut().map_or(Ok(()), |one| one.clear_up(end))?;
        self.1.as_mut().map_or(Ok(()), |other| other.clear_up(end))
    }

    fn open(&self) -> usize {
        self.0.as_ref().map_or(0, A::open) + self.1.as_ref().map_or(0, B::open)
    }

    fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, A::bytes) + self.1.as_ref().map_or(0, B::bytes)
    }

    fn missing(all: &[Option<&Self>], lives: &dyn Fn(u32, u32) -> bool) -> Option<String> {
        let ones: Vec<Option<&A>> = all.iter().map(|both| both.as_ref()?.0.as_ref()).collect();
        let others: Vec<Option<&B>> = all.iter().map(|both| both.as_ref()?.1.as_ref()).collect();
        A::missing(&ones, lives).or_else(|| B::missing(&others, lives))
    }
}

impl Seat for Pml<AnyRail> {
    type Aside = Both<super::aside::Aside, Operations<RequestId>>;

    fn pml(&self) -> &Self {
        self
    }

    fn check(&self, open: usize) -> Result<(), String> {
        let used = self.in_use();
        match used.requests == open {
            true => Ok(()),
            false => Err(format!("has {open} requests open, and {used:?}")),
        }
    }

    fn peer_died(&mut self, now: Time, rank: u32) {
        self.peer_ended(now, Rank(rank), DownReason::Died);
    }
}

/// The key of the window of each rank.
const KEY: u64 = 0xd00b;

/// Bytes of a rank's window.
fn piece(address: u64, length: usize) -> RemotePiece {
    RemotePiece {
        key: KEY,
        address,
        length: length as u64,
    }
}

impl OneSided for Pml<AnyRail> {
    fn expose(&mut self, memory: RegionSlice) -> Result<(), Kind> {
        let window = WindowArgs {
            key: KEY,
            base: 0,
            memory: WindowMemory::Region(memory),
            access: WindowAccess::ALL,
        };
        self.open_window(window)
            .map_err(|error| Kind::Other(error.to_string()))
    }

    fn put(&mut self, to: u32, at: u64, bytes: RegionSlice) -> Result<Option<RequestId>, Trouble> {
        let args = PutArgs {
            to: Rank(to),
            context: 0,
            at: piece(at, bytes.len()).into(),
            payload: Payload::Region(bytes),
            notice: false,
            data: None,
            buffered: false,
            notify: false,
        };
        Pml::put(self, args).map(Some).map_err(trouble)
    }

    fn get(&mut self, from: u32, at: u64, room: RegionSlice) -> Result<Option<RequestId>, Trouble> {
        let args = GetArgs {
            from: Rank(from),
            context: 0,
            at: piece(at, room.len()).into(),
            target: Target::Region(room),
            notify: false,
        };
        Pml::get(self, args).map(Some).map_err(trouble)
    }

    fn add(
        &mut self,
        to: u32,
        at: u64,
        [by, old]: [RegionSlice; 2],
        fetches: bool,
    ) -> Result<Option<RequestId>, Trouble> {
        let args = AtomicArgs {
            to: Rank(to),
            context: 0,
            at: piece(at, by.len()).into(),
            arithmetic: Arithmetic::Sum,
            element: Element::Uint64,
            operands: Payload::Region(by),
            compare: Payload::Loan(ConstLoan::EMPTY),
            fetch: fetches.then_some(Target::Region(old)),
            buffered: false,
            notify: false,
        };
        self.atomic(args).map(Some).map_err(trouble)
    }
}
