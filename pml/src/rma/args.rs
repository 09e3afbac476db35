//! The arguments and results of one-sided operations.

use std::num::NonZeroU32;

use doorbell_fabric::atomics::{Arithmetic, Element};
use doorbell_fabric::memory::{AddressRange, MutLoan, RegionSlice};
use thiserror::Error;

use crate::args::{Payload, Target};
use crate::rank::Rank;
use crate::request::Outcome;

/// Pieces of a peer's windows that one operation names, at most.
pub const PIECES_MOST: usize = 4;
/// Bytes of the elements of one atomic operation, at most.
pub const ATOMIC_MOST: usize = 4096;

/// The memory of a window.
#[derive(Clone, Debug)]
pub enum WindowMemory {
    /// Pieces of borrowed memory, one behind the other; at most four.
    Loans(Vec<MutLoan>),
    /// A slice of an owned region, which is kept alive.
    Region(RegionSlice),
    /// Addresses of this process that may not be mapped. Each access is checked by the kernel: one that is
    /// not mapped ends as [`OperationError::Unmapped`] at its initiator.
    Range(AddressRange),
    /// Pieces of such addresses, one behind the other; at most four.
    Ranges(Vec<AddressRange>),
}

/// What peers may do with a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WindowAccess(pub(crate) u8);

impl WindowAccess {
    /// Allows no operation at all.
    pub const NONE: Self = Self(0);
    /// Allows gets of any length.
    pub const READ: Self = Self(1);
    /// Allows puts of any length.
    pub const WRITE: Self = Self(2);
    /// Allows atomics that store.
    pub const ATOMIC: Self = Self(4);
    /// Allows atomics that return what was there.
    pub const FETCH: Self = Self(8);
    /// Allows all of these.
    pub const ALL: Self = Self(15);

    /// Either of two.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether it allows everything that `wanted` needs.
    #[must_use]
    pub const fn allows(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

/// A window to be opened.
#[derive(Clone, Debug)]
pub struct WindowArgs {
    /// The key that peers name it by: that of no other open window.
    pub key: u64,
    /// The address that peers give to its first byte: zero for offsets, or its virtual address.
    pub base: u64,
    /// The memory that peers reach.
    pub memory: WindowMemory,
    /// What peers may do with it.
    pub access: WindowAccess,
}

/// What peers have done with a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCounts {
    /// Puts and atomics that stored, done.
    pub writes: u64,
    /// Gets and atomics that returned what was there, done.
    pub reads: u64,
}

/// The marks of the windows that an operation has reached, each window once.
pub type WindowMarks = [Option<NonZeroU32>; PIECES_MOST];

/// An operation of a peer, or of our own, that was done in our windows, where these are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The rank whose operation it is.
    pub rank: Rank,
    /// The context of the operation.
    pub context: u16,
    /// The marks of its windows ([`Pml::mark_window`](crate::Pml::mark_window)).
    pub marks: WindowMarks,
    /// The bytes of its pieces.
    pub length: u64,
    /// Whether it stored: puts, and all atomics but those that only read.
    pub stores: bool,
    /// Whether it returned what was there: gets, and atomics that fetch.
    pub returns: bool,
}

/// Bytes of a peer's window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemotePiece {
    /// The key of the window.
    pub key: u64,
    /// The address of the first byte, counted from the window's base.
    pub address: u64,
    /// How many bytes.
    pub length: u64,
}

/// Up to four pieces of a peer's windows, one behind the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemotePieces {
    pieces: [RemotePiece; PIECES_MOST],
    count: usize,
}

impl RemotePieces {
    /// These pieces; `None` for none or more than four, and where their lengths overflow together.
    #[must_use]
    pub fn new(pieces: &[RemotePiece]) -> Option<Self> {
        let mut these = Self {
            count: pieces.len(),
            ..Self::default()
        };
        these.pieces.get_mut(..pieces.len())?.copy_from_slice(pieces);
        let sum = pieces
            .iter()
            .try_fold(0u64, |sum, piece| sum.checked_add(piece.length));
        (!pieces.is_empty() && sum.is_some()).then_some(these)
    }

    /// Returns the pieces in their order.
    #[must_use]
    pub fn as_slice(&self) -> &[RemotePiece] {
        &self.pieces[..self.count]
    }

    /// The bytes of all pieces together.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.as_slice().iter().map(|piece| piece.length).sum()
    }
}

impl From<RemotePiece> for RemotePieces {
    fn from(piece: RemotePiece) -> Self {
        let mut pieces = [RemotePiece::default(); PIECES_MOST];
        pieces[0] = piece;
        Self { pieces, count: 1 }
    }
}

/// The arguments of a put.
#[derive(Clone, Debug)]
pub struct PutArgs {
    /// The rank whose window it is; our own is allowed.
    pub to: Rank,
    /// The context of the operation, which the notice shows.
    pub context: u16,
    /// Where the bytes go.
    pub at: RemotePieces,
    /// The bytes: as many as the pieces have.
    pub payload: Payload,
    /// Notify the owner of the window ([`Pml::next_notice`](crate::Pml::next_notice)).
    pub notice: bool,
    /// Immediate data of that notice.
    pub data: Option<u64>,
    /// Take the bytes before the call returns, of all such messages and operations to a peer together at most
    /// `inject_limit` bytes; otherwise they stay with the PML until the request has ended.
    pub buffered: bool,
    /// Put the request on the completion queue when it ends.
    pub notify: bool,
}

/// The arguments of a get.
#[derive(Clone, Debug)]
pub struct GetArgs {
    /// The rank whose window it is; our own is allowed.
    pub from: Rank,
    /// The context of the operation.
    pub context: u16,
    /// Where the bytes are.
    pub at: RemotePieces,
    /// Where they go: as much room as the pieces have bytes.
    pub target: Target,
    /// Put the request on the completion queue when it ends.
    pub notify: bool,
}

/// The arguments of an atomic operation: on each element by itself.
#[derive(Clone, Debug)]
pub struct AtomicArgs {
    /// The rank whose window it is; our own is allowed.
    pub to: Rank,
    /// The context of the operation.
    pub context: u16,
    /// The elements: at most 4,096 bytes, each piece whole elements.
    pub at: RemotePieces,
    /// What becomes of each element.
    pub arithmetic: Arithmetic,
    /// The type of the elements.
    pub element: Element,
    /// The operands, one for each element; none for [`Arithmetic::Read`].
    pub operands: Payload,
    /// What the elements are compared with, or the masks, one for each element, for those operations that
    /// have them; none for all others. They are taken before the call returns, and the operands with them.
    pub compare: Payload,
    /// Where the elements go as they were before, if they are wanted. Required for [`Arithmetic::Read`].
    pub fetch: Option<Target>,
    /// Take the operands before the call returns, as for [`PutArgs::buffered`].
    pub buffered: bool,
    /// Put the request on the completion queue when it ends.
    pub notify: bool,
}

/// A put that its initiator notifies the owner of the window of. All of its bytes are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The rank that put the bytes.
    pub rank: Rank,
    /// The context of the operation.
    pub context: u16,
    /// The key of the window; of the first one, where there were several.
    pub key: u64,
    /// How many bytes were put.
    pub length: u64,
    /// The initiator's immediate data.
    pub data: Option<u64>,
}

/// Why the target of an operation did not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum OperationError {
    /// No open window has this key.
    #[error("no open window has the key that it names")]
    UnknownKey,
    /// The window does not allow this operation.
    #[error("the window does not allow it")]
    Access,
    /// Bytes are outside of the window.
    #[error("it names bytes outside of the window")]
    Range,
    /// A page is not mapped, or may not be written. Other bytes of the operation may have been.
    #[error("a page of the window is not mapped, or may not be written")]
    Unmapped,
    /// There is no such operation on this type, or its lengths do not fit.
    #[error("there is no such operation on that type, or its lengths do not fit")]
    Invalid,
    /// The window was closed while it was under way. Some bytes may have been written.
    #[error("the window was closed while it was under way")]
    Closed,
    /// The bytes that arrived are not those that were sent.
    #[error("its bytes arrived damaged")]
    Damaged,
}

impl OperationError {
    /// Each with its number on the wire, where zero means that it was done.
    const NUMBERS: [(u8, Self, Outcome); 7] = [
        (1, Self::UnknownKey, Outcome::UnknownKey),
        (2, Self::Access, Outcome::NoAccess),
        (3, Self::Range, Outcome::OutOfRange),
        (4, Self::Unmapped, Outcome::Unmapped),
        (5, Self::Invalid, Outcome::Invalid),
        (6, Self::Closed, Outcome::WindowClosed),
        (7, Self::Damaged, Outcome::Damaged),
    ];

    /// The error that a request ended with, if it was one of these.
    pub(crate) fn of(outcome: Outcome) -> Option<Self> {
        let mut all = Self::NUMBERS.iter();
        all.find(|(_, _, this)| *this == outcome)
            .map(|(_, error, _)| *error)
    }
}

/// How an operation ended, as a number on the wire.
pub(crate) fn status_of(outcome: Outcome) -> u8 {
    let mut all = OperationError::NUMBERS.iter();
    all.find(|(_, _, this)| *this == outcome)
        .map_or(0, |(number, _, _)| *number)
}

/// Back from [`status_of`].
pub(crate) fn outcome_of(status: u8) -> Option<Outcome> {
    let mut all = OperationError::NUMBERS.iter();
    match status {
        0 => Some(Outcome::Ok),
        _ => all
            .find(|(number, _, _)| *number == status)
            .map(|(_, _, outcome)| *outcome),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_comes_back() {
        for (number, error, outcome) in OperationError::NUMBERS {
            assert_eq!((status_of(outcome), outcome_of(number)), (number, Some(outcome)));
            assert_eq!(OperationError::of(outcome), Some(error));
        }
        assert_eq!(
            (status_of(Outcome::Ok), outcome_of(0), outcome_of(8)),
            (0, Some(Outcome::Ok), None)
        );
        assert_eq!(OperationError::of(Outcome::Ok), None);
    }

    #[test]
    fn pieces_are_counted_and_do_not_overflow() {
        let piece = |length| RemotePiece {
            length,
            ..RemotePiece::default()
        };
        assert!(RemotePieces::new(&[]).is_none() && RemotePieces::new(&[piece(1); 5]).is_none());
        assert!(RemotePieces::new(&[piece(u64::MAX), piece(1)]).is_none());
        assert_eq!(RemotePieces::new(&[piece(2); 4]).unwrap().length(), 8);
        assert_eq!(RemotePieces::from(piece(7)).as_slice(), [piece(7)]);
    }
}
