//! Operations on segments by their handles: explicit ones, the implicit one, and access regions (gasnet.md
//! section 3).
//!
//! ```text
//!   FREE ──begin──► IN FLIGHT ──the last ACK, REPLY or SEND that it waits for──► COMPLETE ──sync──► FREE
//! ```
//!
//! A message finds its operation by 24 bits (16 here, 8 of the thread). A handle has a generation beside
//! them, so that it is good for one synchronisation.

use doorbell_fabric::ni::NiFail;

use crate::error::AmError;
use crate::match_bits::OpRef;

/// An operation in progress or complete, until it is synchronised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "an operation is known to be over when it was synchronised"]
pub struct Handle {
    address: u16,
    generation: u32,
}

/// The three states of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    InFlight,
    Complete,
}

#[derive(Clone, Copy, Debug)]
struct Op {
    generation: u32,
    state: State,
    /// Puts and gets that have not ended.
    puts: u32,
    gets: u32,
    /// Outstanding SEND events: while there is one, the source must not change.
    sources: u32,
    /// Bytes that have not been acknowledged.
    bytes: u64,
    /// The first failure, and the rank of its segment.
    failed: Option<(u32, NiFail)>,
    /// The target of the last operation.
    rank: u32,
    /// May get more operations: the implicit one, an open access region.
    open: bool,
    next: u32,
}

const NONE: u32 = u32::MAX;

/// The table of operations.
#[derive(Debug)]
pub(crate) struct Ops {
    ops: Vec<Op>,
    free: u32,
    thread: u8,
    /// Where implicit operations are counted now.
    implicit: u16,
    live: u32,
}

/// The implicit operation when no access region is open.
const DEFAULT: u16 = 0;
/// Operations that 16 bits can name.
const MOST: usize = 1 << 16;

/// What happened to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A put was acknowledged.
    Put,
    /// A get was answered.
    Get,
    /// The source of a put may be changed.
    Source,
}

impl Ops {
    /// Creates an empty table, with room for `capacity` operations before it grows.
    pub(crate) fn new(thread: u8, room: usize) -> Self {
        let mut ops = Vec::with_capacity(room.clamp(1, MOST));
        ops.push(Op {
            open: true,
            ..Op::fresh()
        });
        Self {
            ops,
            free: NONE,
            thread,
            implicit: DEFAULT,
            live: 0,
        }
    }

    /// Operations that are not synchronised, the implicit one aside.
    pub(crate) const fn live(&self) -> u32 {
        self.live
    }

    /// The 24 bits of an operation.
    #[inline]
    pub(crate) const fn reference(&self, address: u16) -> OpRef {
        OpRef {
            address,
            thread: self.thread,
        }
    }

    /// Creates an explicit operation without messages.
    #[inline]
    pub(crate) fn begin(&mut self) -> Result<(u16, Handle), AmError> {
        let address = self.slot()?;
        let op = &mut self.ops[usize::from(address)];
        op.state = State::Complete;
        self.live += 1;
        let generation = op.generation;
        Ok((address, Handle { address, generation }))
    }

    /// Returns where an implicit operation is counted.
    #[inline]
    pub(crate) const fn implicit(&self) -> u16 {
        self.implicit
    }

    /// Cancels an operation that could not be sent.
    pub(crate) fn abandon(&mut self, handle: Handle) {
        if self.get(handle).is_some() {
            self.release(handle.address);
        }
    }

    /// Adds a put of `length` bytes to `rank`; whether its source must not change until a SEND.
    #[inline]
    pub(crate) fn put(&mut self, address: u16, rank: u32, bytes: u64, source: bool) {
        let op = &mut self.ops[usize::from(address)];
        op.state = State::InFlight;
        op.rank = rank;
        op.puts += 1;
        op.bytes += bytes;
        op.sources += u32::from(source);
    }

    /// Adds a get.
    #[inline]
    pub(crate) fn get_begun(&mut self, address: u16, rank: u32, bytes: u64) {
        let op = &mut self.ops[usize::from(address)];
        op.state = State::InFlight;
        op.rank = rank;
        op.gets += 1;
        op.bytes += bytes;
    }

    /// Only a source has to stay: the data of a Long.
    #[inline]
    pub(crate) fn source_begun(&mut self, address: u16, rank: u32) {
        let op = &mut self.ops[usize::from(address)];
        op.state = State::InFlight;
        op.rank = rank;
        op.sources += 1;
    }

    /// An event of an operation; whether there is such a one.
    #[inline]
    pub(crate) fn ended(&mut self, op: OpRef, what: Ended, bytes: u64, fail: NiFail) -> bool {
        if op.thread != self.thread {
            return false;
        }
        let Some(op) = self.ops.get_mut(usize::from(op.address)) else {
            return false;
        };
        let count = match what {
            Ended::Put => &mut op.puts,
            Ended::Get => &mut op.gets,
            Ended::Source => &mut op.sources,
        };
        if *count == 0 {
            return false;
        }
        *count -= 1;
        if what != Ended::Source {
            op.bytes = op.bytes.saturating_sub(bytes);
        }
        if fail != NiFail::Ok && op.failed.is_none() {
            op.failed = Some((op.rank, fail));
        }
        if op.puts == 0 && op.gets == 0 && op.sources == 0 {
            op.state = State::Complete;
            // All were acknowledged, some with fewer bytes: something at the target is shorter than
            // announced.
            if op.bytes > 0 && op.failed.is_none() {
                op.failed = Some((op.rank, NiFail::Dropped));
            }
            op.bytes = 0;
        }
        true
    }

    /// Whether an operation is over: it is synchronised then, and the handle is stale.
    #[inline]
    pub(crate) fn try_sync(&mut self, handle: Handle) -> Result<bool, AmError> {
        let op = self.get(handle).ok_or(AmError::Stale)?;
        if op.open || op.state != State::Complete {
            return Ok(false);
        }
        let failed = op.failed;
        self.release(handle.address);
        outcome(failed).map(|()| true)
    }

    /// Whether the source of an operation may be changed.
    pub(crate) fn source_free(&self, handle: Handle) -> Result<bool, AmError> {
        let op = self.get(handle).ok_or(AmError::Stale)?;
        Ok(op.sources == 0)
    }

    /// Whether the implicit operations of a kind are over.
    pub(crate) fn try_sync_implicit(&mut self, puts: bool, gets: bool) -> Result<bool, AmError> {
        let op = &mut self.ops[usize::from(self.implicit)];
        if (puts && (op.puts > 0 || op.sources > 0)) || (gets && op.gets > 0) {
            return Ok(false);
        }
        outcome(op.failed.take()).map(|()| true)
    }

    /// Implicit operations are counted by themselves from now on.
    pub(crate) fn open_region(&mut self) -> Result<(), AmError> {
        if self.implicit != DEFAULT {
            return Err(AmError::Order("an access region is open: regions do not nest"));
        }
        let (address, _) = self.begin()?;
        self.ops[usize::from(address)].open = true;
        self.implicit = address;
        Ok(())
    }

    /// Closes the region; its handle covers all its operations.
    pub(crate) fn close_region(&mut self) -> Result<Handle, AmError> {
        if self.implicit == DEFAULT {
            return Err(AmError::Order("no access region is open"));
        }
        let address = std::mem::replace(&mut self.implicit, DEFAULT);
        let op = &mut self.ops[usize::from(address)];
        op.open = false;
        Ok(Handle {
            address,
            generation: op.generation,
        })
    }

    #[inline]
    fn get(&self, handle: Handle) -> Option<&Op> {
        let op = self.ops.get(usize::from(handle.address))?;
        (op.generation == handle.generation && op.state != State::Free && handle.address != DEFAULT)
            .then_some(op)
    }

    #[inline]
    fn slot(&mut self) -> Result<u16, AmError> {
        if self.free != NONE {
            let address = self.free;
            self.free = self.ops[address as usize].next;
            return Ok(address as u16);
        }
        self.grow()
    }

    #[cold]
    fn grow(&mut self) -> Result<u16, AmError> {
        let address = u16::try_from(self.ops.len()).map_err(|_| AmError::TooManyOperations)?;
        self.ops.push(Op::fresh());
        Ok(address)
    }

    #[inline]
    fn release(&mut self, address: u16) {
        let next = self.free;
        let op = &mut self.ops[usize::from(address)];
        *op = Op {
            generation: op.generation.wrapping_add(1),
            next,
            ..Op::fresh()
        };
        self.free = u32::from(address);
        self.live -= 1;
    }
}

impl Op {
    const fn fresh() -> Self {
        Self {
            generation: 0,
            state: State::Free,
            puts: 0,
            gets: 0,
            sources: 0,
            bytes: 0,
            failed: None,
            rank: 0,
            open: false,
            next: NONE,
        }
    }
}

fn outcome(failed: Option<(u32, NiFail)>) -> Result<(), AmError> {
    failed.map_or(Ok(()), |(rank, fail)| Err(AmError::Operation { rank, fail }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_synchronised_once() -> Result<(), AmError> {
        let mut ops = Ops::new(3, 4);
        let (address, handle) = ops.begin()?;
        ops.put(address, 1, 8, true);
        assert!(!ops.try_sync(handle)?);
        assert!(!ops.source_free(handle)?);
        let op = ops.reference(address);
        assert!(ops.ended(op, Ended::Put, 8, NiFail::Ok));
        assert!(!ops.try_sync(handle)?, "the SEND is to come");
        assert!(ops.ended(op, Ended::Source, 0, NiFail::Ok));
        assert!(ops.try_sync(handle)?);
        assert!(matches!(ops.try_sync(handle), Err(AmError::Stale)));
        assert!(!ops.ended(op, Ended::Put, 8, NiFail::Ok), "nothing is under way");
        let (again, newer) = ops.begin()?;
        assert_eq!(again, address, "the slot is used again");
        assert_ne!(newer, handle);
        Ok(())
    }

    #[test]
    fn failures_and_short_answers_are_reported() -> Result<(), AmError> {
        let mut ops = Ops::new(0, 4);
        for (bytes, fail) in [(8, NiFail::Undeliverable), (7, NiFail::Ok)] {
            let (address, handle) = ops.begin()?;
            ops.get_begun(address, 5, 8);
            assert!(ops.ended(ops.reference(address), Ended::Get, bytes, fail));
            assert!(matches!(
                ops.try_sync(handle),
                Err(AmError::Operation { rank: 5, .. })
            ));
        }
        let other = OpRef {
            address: 0,
            thread: 1,
        };
        assert!(!ops.ended(other, Ended::Put, 0, NiFail::Ok), "another thread's");
        Ok(())
    }

    #[test]
    fn implicit_operations_are_counted_by_kind_and_region() -> Result<(), AmError> {
        let mut ops = Ops::new(0, 4);
        let outside = ops.implicit();
        ops.put(outside, 1, 4, false);
        ops.open_region()?;
        assert!(ops.open_region().is_err());
        let within = ops.implicit();
        ops.get_begun(within, 2, 4);
        assert!(
            ops.try_sync_implicit(true, false)?,
            "the put is outside of the region"
        );
        assert!(!ops.try_sync_implicit(false, true)?);
        let region = ops.close_region()?;
        assert!(ops.close_region().is_err());
        assert!(!ops.try_sync(region)?);
        assert!(ops.try_sync_implicit(false, true)?, "the get is the region's");
        assert!(!ops.try_sync_implicit(true, false)?);
        assert!(ops.ended(ops.reference(within), Ended::Get, 4, NiFail::Ok));
        assert!(ops.try_sync(region)?);
        assert!(ops.ended(ops.reference(outside), Ended::Put, 4, NiFail::Ok));
        assert!(ops.try_sync_implicit(true, true)?);
        Ok(())
    }
}
