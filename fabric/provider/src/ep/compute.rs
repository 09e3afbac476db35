//! Atomic operations on peers' memory. They begin, and end, as reads and writes do: one that returns what was
//! there before counts as a read.

use doorbell_fabric::atomics::{Arithmetic, Element};
use doorbell_fabric::memory::ConstLoan;
use doorbell_pml::{AtomicArgs, PmlError, RemotePieces, RequestId};
use libfabric_sys::*;

use super::access::{Access, Begun, Remote};
use super::receive::Room;
use super::send::Bytes;
use super::state::EndpointNumber;
use crate::domain::State;
use crate::errno::{Errno, Result};
use crate::ops::Mark;

/// An atomic operation.
#[derive(Clone, Debug)]
pub(crate) struct Compute {
    /// The operation, which is one of its type, and the type of each element.
    pub(crate) computes: (Arithmetic, Element),
    /// The operands; none of one that only reads.
    pub(crate) operands: Bytes,
    /// What the elements are compared with, or the masks, of one that has those.
    pub(crate) compare: Bytes,
    /// Where the elements go as they were before, of one that returns them.
    pub(crate) result: Option<Room>,
}

impl Compute {
    /// The bytes of the elements.
    ///
    /// # Errors
    /// `FI_EINVAL` for none, and where there are other operands than elements; `FI_EMSGSIZE` for too many.
    fn length(&self, most: usize) -> Result<u64> {
        let operands = self.operands.len();
        let length = self.result.as_ref().map_or(operands, Room::len);
        let only = |needed: bool| if needed { length } else { 0 };
        let (arithmetic, _) = self.computes;
        if length == 0
            || operands != only(arithmetic != Arithmetic::Read)
            || self.compare.len() != only(arithmetic.has_operand())
        {
            return Err(Errno(FI_EINVAL));
        }
        match length <= most as u64 {
            true => Ok(length),
            false => Err(Errno(FI_EMSGSIZE)),
        }
    }
}

impl State {
    /// Bytes of the elements of an atomic operation, at most.
    pub(crate) fn atomic_most(&self) -> usize {
        self.member.pml_ref().atomic_most()
    }

    /// Computes in the memory of a peer.
    ///
    /// # Errors
    /// Those of [`State::read`].
    pub(crate) fn compute(
        &mut self,
        from: EndpointNumber,
        remote: Remote,
        compute: Compute,
        access: &Access,
    ) -> Result<isize> {
        let at = remote.of_length(compute.length(self.atomic_most())?)?;
        let kind = match compute.result {
            Some(_) => Mark::READ,
            None => Mark::WRITE,
        };
        let begun = self.begin(from, (kind, FI_ATOMIC), access)?;
        let injects = access.flags & FI_INJECT != 0;
        let (arithmetic, _) = compute.computes;
        let is_plain = !injects && !arithmetic.has_operand() && arithmetic != Arithmetic::Read;
        let result = match &compute.result {
            None => Some(None),
            Some(Room::One(room)) => Some(Some(*room)),
            Some(Room::Pieces(_)) => None,
        };
        if let (true, Bytes::One(operands), Some(result), [piece]) =
            (is_plain, &compute.operands, result, at.as_slice())
        {
            let (to, context) = (begun.rank(), begun.context());
            let pml = self.member.pml();
            let started = pml.atomic_loan(to, context, *piece, compute.computes, *operands, result, true);
            return self.started(begun, access, started);
        }
        let started = self.atomic(begun, at, compute, injects);
        self.started(begun, access, started)
    }

    /// Computes with operands that are taken before the call returns. Nothing is reported of it unless it
    /// fails.
    ///
    /// # Errors
    /// Those of [`State::inject_write`].
    pub(crate) fn inject_compute(
        &mut self,
        from: EndpointNumber,
        remote: Remote,
        computes: (Arithmetic, Element),
        operands: Bytes,
        to: fi_addr_t,
    ) -> Result<isize> {
        let compute = Compute {
            computes,
            operands,
            compare: Bytes::One(ConstLoan::EMPTY),
            result: None,
        };
        let at = remote.of_length(compute.length(self.atomic_most())?)?;
        let access = Access::injected(to, None);
        let begun = self.begin(from, (Mark::WRITE, FI_ATOMIC), &access)?;
        let started = self.atomic(begun, at, compute, true);
        self.injected(begun, &access, started)
    }

    fn atomic(
        &mut self,
        begun: Begun,
        at: RemotePieces,
        compute: Compute,
        buffered: bool,
    ) -> std::result::Result<RequestId, PmlError> {
        let (arithmetic, element) = compute.computes;
        self.member.pml().atomic(AtomicArgs {
            to: begun.rank(),
            context: begun.context(),
            at,
            arithmetic,
            element,
            buffered: buffered && arithmetic != Arithmetic::Read,
            operands: compute.operands.payload(),
            compare: compute.compare.payload(),
            fetch: compute.result.map(Room::target),
            notify: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use doorbell_fabric::memory::MutLoan;

    use super::*;

    fn bytes(length: usize) -> Bytes {
        Bytes::One(ConstLoan::of_static(vec![0; length].leak()))
    }

    fn compute(arithmetic: Arithmetic, [operands, compare]: [usize; 2], result: Option<usize>) -> Compute {
        Compute {
            computes: (arithmetic, Element::Uint64),
            operands: bytes(operands),
            compare: bytes(compare),
            result: result.map(|length| Room::One(MutLoan::of_static(vec![0; length].leak()))),
        }
    }

    #[test]
    fn there_are_as_many_operands_as_elements() {
        use Arithmetic::{Cswap, Read, Sum};
        let wrong = Err(Errno(FI_EINVAL));
        for (compute, length) in [
            (compute(Sum, [8, 0], None), Ok(8)),
            (compute(Sum, [16, 0], Some(16)), Ok(16)),
            (compute(Sum, [64, 0], None), Ok(64)),
            (compute(Sum, [72, 0], None), Err(Errno(FI_EMSGSIZE))),
            (compute(Sum, [0, 0], None), wrong),
            (compute(Sum, [8, 0], Some(16)), wrong),
            (compute(Read, [0, 0], Some(16)), Ok(16)),
            (compute(Read, [0, 0], Some(0)), wrong),
            (compute(Cswap, [8, 8], Some(8)), Ok(8)),
            (compute(Cswap, [8, 16], Some(8)), wrong),
            (compute(Cswap, [8, 0], Some(8)), wrong),
        ] {
            assert_eq!(compute.length(64), length, "{compute:?}");
        }
    }
}
