//! One-sided operations on windows: how they start, and the wait for those that are open.

use std::time::Duration;

use doorbell_fabric::atomics::{Arithmetic, Element};
use doorbell_fabric::memory::{ConstLoan, MutLoan, RegionSlice};
use doorbell_job::error::{Awaited, Error, Waiting};
use doorbell_pml::{AtomicArgs, GetArgs, Payload, PmlError, PutArgs, Rank, RemotePiece, RequestId, Target};

use super::core::{Core, LONG};
use super::dedicated::Command;
use super::{Engine, Held, RequestToken};

/// The context number of operations on windows.
const CONTEXT: u16 = 2;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    /// Writes bytes into the window.
    Put,
    /// Returns bytes of the window.
    Get,
    /// Computes elements of the window.
    Accumulate(Arithmetic, Element),
    /// Computes elements, and returns what was there before.
    Fetch(Arithmetic, Element),
}

impl OperationKind {
    /// The name of the operation, for a description of a wait.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Accumulate(..) => "accumulate",
            Self::Fetch(Arithmetic::Cswap, _) => "compare and swap",
            Self::Fetch(..) => "fetch and accumulate",
        }
    }
}

/// A byte of a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowAddress {
    pub(crate) rank: u32,
    pub(crate) key: u32,
    /// From the start of the window, in bytes.
    pub(crate) offset: u64,
}

impl WindowAddress {
    fn piece(self, length: usize) -> RemotePiece {
        RemotePiece {
            key: u64::from(self.key),
            address: self.offset,
            length: length as u64,
        }
    }
}

/// An operation on borrowed memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: OperationKind,
    pub(crate) at: WindowAddress,
    /// The bytes to put; the operands, and behind them, where there are any, what they are compared with.
    pub(crate) from: ConstLoan,
    /// Where bytes that return go.
    pub(crate) into: MutLoan,
}

/// An operation on owned memory.
#[derive(Clone, Debug)]
pub(crate) struct RegionOperation {
    pub(crate) at: WindowAddress,
    pub(crate) slice: RegionSlice,
    /// It is a put; otherwise a get.
    pub(crate) is_put: bool,
}

/// A wait for all operations that were open when it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flush {
    /// `None`: of all ranks.
    rank: Option<Rank>,
    /// The first request that was not looked at.
    next: usize,
    waits: Option<RequestId>,
}

impl Flush {
    pub(super) fn new(rank: Option<u32>) -> Self {
        Self {
            rank: rank.map(Rank),
            next: 0,
            waits: None,
        }
    }
}

impl Core {
    /// Starts an operation on borrowed memory.
    #[inline]
    pub(super) fn operate(&mut self, operation: Operation, notify: bool) -> Result<RequestId, Error> {
        let Operation { kind, at, from, into } = operation;
        let to = Rank(at.rank);
        let pml = &mut self.pml;
        let started = match kind {
            OperationKind::Put => pml.put_loan(to, CONTEXT, at.piece(from.len()), from, notify),
            OperationKind::Get => pml.get_loan(to, CONTEXT, at.piece(into.len()), into, notify),
            OperationKind::Accumulate(arithmetic, element) => {
                let (piece, computes) = (at.piece(from.len()), (arithmetic, element));
                pml.atomic_loan(to, CONTEXT, piece, computes, from, None, notify)
            }
            OperationKind::Fetch(arithmetic, _) if arithmetic.has_operand() => {
                self.compare(operation, notify)
            }
            OperationKind::Fetch(arithmetic, element) => {
                let (piece, computes) = (at.piece(into.len()), (arithmetic, element));
                pml.atomic_loan(to, CONTEXT, piece, computes, from, Some(into), notify)
            }
        };
        started.map_err(|error| self.explained(error))
    }

    /// Starts an operation with operands to compare with.
    fn compare(&mut self, operation: Operation, notify: bool) -> Result<RequestId, PmlError> {
        let Operation { kind, at, from, into } = operation;
        let (OperationKind::Fetch(arithmetic, element) | OperationKind::Accumulate(arithmetic, element)) =
            kind
        else {
            return Err(PmlError::BadOperation {
                reason: "a put or a get compares nothing",
            });
        };
        let length = from.len() / 2;
        self.pml.atomic(AtomicArgs {
            to: Rank(at.rank),
            context: CONTEXT,
            at: at.piece(length).into(),
            arithmetic,
            element,
            operands: Payload::Loan(from.part(0, length)),
            compare: Payload::Loan(from.part(length, length)),
            fetch: Some(Target::Loan(into)),
            buffered: false,
            notify,
        })
    }

    /// Starts an operation on owned memory.
    pub(super) fn operate_region(
        &mut self,
        operation: RegionOperation,
        notify: bool,
    ) -> Result<RequestId, Error> {
        let RegionOperation { at, slice, is_put } = operation;
        let (rank, piece) = (Rank(at.rank), at.piece(slice.len()));
        let started = if is_put {
            self.pml.put(PutArgs {
                to: rank,
                context: CONTEXT,
                at: piece.into(),
                payload: Payload::Region(slice),
                notice: false,
                data: None,
                buffered: false,
                notify,
            })
        } else {
            self.pml.get(GetArgs {
                from: rank,
                context: CONTEXT,
                at: piece.into(),
                target: Target::Region(slice),
                notify,
            })
        };
        started.map_err(|error| self.explained(error))
    }

    /// Whether the operations that a wait is for have ended, and the error where their rank is lost.
    pub(super) fn is_flushed(&mut self, flush: &mut Flush) -> Option<Result<(), Error>> {
        loop {
            if flush.waits.is_some_and(|id| !self.pml.is_done(id)) {
                return None;
            }
            match self.pml.open_operation(flush.rank, flush.next) {
                Some((id, next)) => (flush.waits, flush.next) = (Some(id), next),
                None => break,
            }
        }
        let Some(rank) = flush.rank else {
            return Some(Ok(()));
        };
        if rank.0 >= self.size {
            let size = self.size;
            return Some(Err(Error::NoSuchRank { rank: rank.0, size }));
        }
        Some(match self.pml.lost(rank) {
            Some(reason) => Err(self.explained(PmlError::PeerLost { rank, reason })),
            None => Ok(()),
        })
    }
}

impl Engine {
    /// Starts an operation on borrowed memory that may leave together with operations and sends that follow
    /// it.
    #[inline(never)]
    pub(crate) fn post_operation(&self, operation: Operation) -> Result<RequestToken, Box<Error>> {
        match self {
            Self::Inline(core) => {
                let mut core = core.hold().map_err(Error::from)?;
                let id = core.operate(operation, false)?;
                let (to, length) = (Rank(operation.at.rank), operation.from.len());
                match length < LONG {
                    true => core.pml.flush_soon(to),
                    false => core.pml.flush(),
                }
                core.posted(to, length);
                Ok(RequestToken(id.to_bits()))
            }
            Self::Dedicated(_) => Ok(self.hold()?.operate(operation)?),
        }
    }

    /// Starts an operation on owned memory.
    pub(crate) fn operate_region(&self, operation: RegionOperation) -> Result<RequestToken, Error> {
        match self {
            Self::Inline(core) => {
                let mut core = core.hold()?;
                let id = core.operate_region(operation, false)?;
                core.pml.flush();
                core.now_and_then();
                Ok(RequestToken(id.to_bits()))
            }
            Self::Dedicated(link) => link.start_request(|slot| Command::OperateRegion { slot, operation }),
        }
    }

    /// Waits until the operations on windows of a rank (`None`: of all ranks) have ended that are open now.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::PeerLost`] and [`Error::NoSuchRank`] of a rank.
    pub(crate) fn flush_operations(
        &self,
        rank: Option<u32>,
        limit: Duration,
        what: Awaited,
        notice: &mut dyn FnMut(&Waiting),
    ) -> Result<(), Error> {
        match self {
            Self::Inline(core) => {
                let mut flush = Flush::new(rank);
                let mut core = core.hold()?;
                core.wait(limit, || what, notice, |core| core.is_flushed(&mut flush))?
            }
            Self::Dedicated(link) => {
                let token = link.start_request(|slot| Command::Flush { slot, rank })?;
                let flushed = Held::Dedicated(link).wait(token, limit, || what, notice);
                if matches!(flushed, Err(Error::Timeout(_))) {
                    link.end(token);
                }
                flushed.map(drop)
            }
        }
    }
}

impl Held<'_> {
    /// Starts an operation on borrowed memory.
    #[inline]
    pub(crate) fn operate(&mut self, operation: Operation) -> Result<RequestToken, Error> {
        match self {
            Self::Inline(core) => {
                let id = core.operate(operation, false)?;
                core.pml.flush();
                Ok(RequestToken(id.to_bits()))
            }
            Self::Dedicated(link) => {
                let Operation { kind, at, from, into } = operation;
                let WindowAddress { rank, key, offset } = at;
                link.start_request(|slot| Command::Operate {
                    slot,
                    kind,
                    rank,
                    key,
                    offset,
                    from,
                    into,
                })
            }
        }
    }
}
