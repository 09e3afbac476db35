//! The convertor: where the bytes of a message lie in the user's memory, in pieces if need be.
//!
//! Both sides walk their own layout: a send gathers from it, a receive scatters into it, and neither knows
//! the other's (reference: bfo, section 1). A [`Cursor`] remembers the piece it stopped at, so that fragments
//! in order cost no search.

use doorbell_fabric::memory::{ConstLoan, MutLoan};
use doorbell_fabric::message::{Inbound, Landing};

use crate::args::{Payload, Strided, Target};
use crate::error::PmlError;
use crate::pool::Buffer;
use crate::rma::windows::Spans;

/// Pieces of one gathered body, at most.
pub(crate) const GATHER_MAX: usize = 16;

/// Where the bytes of a send come from.
#[derive(Debug, Default)]
pub(crate) enum Origin {
    /// No bytes, or none any more.
    #[default]
    Nothing,
    /// The user's memory.
    User(Payload),
    /// A buffer of our own, and how much of it is used.
    Own(Buffer, usize),
    /// Windows, in pieces, or with pages that may not be there: what an operation returns.
    Window(Box<Spans>),
}

/// A place in a layout: a piece, and the message offset at which that piece starts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    piece: usize,
    start: u64,
}

/// Where scattered bytes are packed for a rail that cannot gather.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<u8>);

impl Scratch {
    /// Packs the bytes of a message from `offset` on, `most` of them at most.
    pub(crate) fn pack(&mut self, origin: &Origin, cursor: &mut Cursor, offset: u64, most: usize) -> &[u8] {
        if self.0.len() < most {
            self.0.resize(most, 0);
        }
        let bytes = origin.pack(cursor, offset, &mut self.0[..most]);
        &self.0[..bytes]
    }

    /// Packs these bytes, and behind them the first `length` of a message.
    pub(crate) fn pack_behind(&mut self, front: &[u8], origin: &Origin, length: usize) -> &[u8] {
        let end = front.len() + length;
        if self.0.len() < end {
            self.0.resize(end, 0);
        }
        self.0[..front.len()].copy_from_slice(front);
        origin.pack(&mut Cursor::default(), 0, &mut self.0[front.len()..end]);
        &self.0[..end]
    }
}

impl Origin {
    /// Length in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::User(payload) => payload.len(),
            Self::Own(_, used) => *used as u64,
            Self::Window(spans) => spans.len(),
        }
    }

    /// The piece with this number; for layouts of several pieces only.
    fn piece(&self, index: usize) -> Option<ConstLoan> {
        match self {
            Self::User(Payload::Parts(parts)) => parts.get(index).copied(),
            Self::User(Payload::Strided(blocks)) => {
                (index < blocks.count).then(|| blocks.base.part(index * blocks.stride, blocks.block))
            }
            _ => None,
        }
    }

    /// Whether all bytes lie in one piece.
    pub(crate) fn is_contiguous(&self) -> bool {
        !matches!(
            self,
            Self::User(Payload::Parts(_) | Payload::Strided(_)) | Self::Window(_)
        )
    }

    /// The pieces of `[offset, offset + most)`, as many as `out` holds; returns how many and their bytes.
    pub(crate) fn gather(
        &self,
        cursor: &mut Cursor,
        offset: u64,
        most: usize,
        out: &mut [ConstLoan],
    ) -> (usize, usize) {
        let (mut pieces, mut bytes) = (0, 0);
        while pieces < out.len() && bytes < most {
            let Some((piece, skip)) = seek(
                cursor,
                offset + bytes as u64,
                |index| self.piece(index),
                ConstLoan::len,
            ) else {
                break;
            };
            let part = piece.part(skip, most - bytes);
            out[pieces] = part;
            pieces += 1;
            bytes += part.len();
        }
        (pieces, bytes)
    }

    /// Copies `[offset, offset + to.len())` out; returns how many bytes there were: none, where memory of a
    /// window is not mapped any more.
    pub(crate) fn pack(&self, cursor: &mut Cursor, offset: u64, to: &mut [u8]) -> usize {
        match self {
            Self::Nothing => 0,
            Self::User(Payload::Loan(loan)) => loan.copy_to(to_usize(offset), to),
            Self::User(Payload::Region(slice)) => slice.copy_to(to_usize(offset), to),
            Self::Own(buffer, used) => {
                let from = buffer.bytes()[..*used].get(to_usize(offset)..).unwrap_or(&[]);
                let length = from.len().min(to.len());
                to[..length].copy_from_slice(&from[..length]);
                length
            }
            Self::Window(spans) => {
                let length = to_usize(spans.len().saturating_sub(offset)).min(to.len());
                match spans.read(offset, &mut to[..length]) {
                    Ok(()) => length,
                    Err(_) => 0,
                }
            }
            Self::User(_) => {
                let mut done = 0;
                while done < to.len() {
                    let mut one = [ConstLoan::EMPTY];
                    let (_, bytes) = self.gather(cursor, offset + done as u64, to.len() - done, &mut one);
                    if bytes == 0 {
                        break;
                    }
                    done += one[0].copy_to(0, &mut to[done..]);
                }
                done
            }
        }
    }
}

impl Payload {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Loan(loan) => loan.len() as u64,
            Self::Region(slice) => slice.len() as u64,
            Self::Parts(parts) => parts.iter().map(|part| part.len() as u64).sum(),
            Self::Strided(blocks) => blocks.bytes(),
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks the layout, and turns layouts that are one piece in truth into one.
    pub(crate) fn checked(self) -> Result<Self, PmlError> {
        Ok(match self {
            Self::Parts(parts) if parts.len() <= 1 => {
                Self::Loan(parts.first().copied().unwrap_or(ConstLoan::EMPTY))
            }
            Self::Strided(blocks) => match blocks.single(blocks.base.len())? {
                Some(length) => Self::Loan(blocks.base.part(0, length)),
                None => Self::Strided(blocks),
            },
            other => other,
        })
    }
}

impl Target {
    /// Room in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Loan(loan) => loan.len() as u64,
            Self::Region(slice) => slice.len() as u64,
            Self::Parts(parts) => parts.iter().map(|part| part.len() as u64).sum(),
            Self::Strided(blocks) => blocks.bytes(),
        }
    }

    /// Whether there is no room.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the room is one piece.
    pub(crate) fn is_contiguous(&self) -> bool {
        matches!(self, Self::Loan(_) | Self::Region(_))
    }

    /// Returns how many pieces the room is.
    pub(crate) fn pieces(&self) -> usize {
        match self {
            Self::Loan(_) | Self::Region(_) => 1,
            Self::Parts(parts) => parts.len(),
            Self::Strided(blocks) => blocks.count,
        }
    }

    /// `length` bytes from `at`, for one-sided access; `None` when the room is several pieces, or shorter.
    pub(crate) fn landing(&self, at: u64, length: u64) -> Option<Landing> {
        let (at, length) = (to_usize(at), to_usize(length));
        let part = match self {
            Self::Loan(loan) => Landing::Loan(loan.part(at, length)),
            Self::Region(slice) => Landing::Region(slice.slice(at, length)?),
            Self::Parts(_) | Self::Strided(_) => return None,
        };
        (part.len() == length).then_some(part)
    }

    /// Checks the layout, and turns layouts that are one piece in truth into one.
    pub(crate) fn checked(self) -> Result<Self, PmlError> {
        Ok(match self {
            Self::Parts(parts) if parts.len() <= 1 => {
                Self::Loan(parts.first().copied().unwrap_or(MutLoan::EMPTY))
            }
            Self::Strided(blocks) => match blocks.single(blocks.base.len())? {
                Some(length) => Self::Loan(blocks.base.part(0, length)),
                None => Self::Strided(blocks),
            },
            other => other,
        })
    }

    /// The piece with this number; for layouts of several pieces only.
    pub(crate) fn piece(&self, index: usize) -> Option<MutLoan> {
        match self {
            Self::Parts(parts) => parts.get(index).copied(),
            Self::Strided(blocks) => {
                (index < blocks.count).then(|| blocks.base.part(index * blocks.stride, blocks.block))
            }
            _ => None,
        }
    }

    /// Copies at most `most` bytes of `inbound` from its byte `at` to the message offset `offset` of this
    /// layout; returns how many fitted.
    pub(crate) fn scatter(
        &self,
        cursor: &mut Cursor,
        offset: u64,
        inbound: &Inbound<'_>,
        at: usize,
        most: usize,
    ) -> usize {
        match self {
            Self::Loan(loan) => {
                let part = loan.part(to_usize(offset), most);
                return inbound.copy_to_loan(at, &part, 0);
            }
            Self::Region(slice) => return inbound.copy_to_region(at, slice, to_usize(offset), most),
            Self::Parts(_) | Self::Strided(_) => {}
        }
        let mut done = 0;
        while done < most {
            let found = seek(
                cursor,
                offset + done as u64,
                |index| self.piece(index),
                MutLoan::len,
            );
            let Some((piece, skip)) = found else { break };
            let part = piece.part(skip, most - done);
            let copied = inbound.copy_to_loan(at + done, &part, 0);
            done += copied;
            if copied < part.len() {
                break;
            }
        }
        done
    }
}

impl<L> Strided<L> {
    /// The bytes of all blocks. Of a checked layout: it lies in memory, so this cannot overflow.
    fn bytes(&self) -> u64 {
        (self.block as u64).saturating_mul(self.count as u64)
    }

    /// Checks the layout against its memory; `Some(length)` when it is one piece in truth.
    fn single(&self, room: usize) -> Result<Option<usize>, PmlError> {
        if self.block == 0 || self.count == 0 {
            return Ok(Some(0));
        }
        let end = (self.count - 1)
            .checked_mul(self.stride)
            .and_then(|last| last.checked_add(self.block));
        let overlaps = self.count > 1 && self.stride < self.block;
        match end {
            Some(end) if end <= room && !overlaps => {
                Ok((self.count == 1 || self.stride == self.block).then_some(end))
            }
            _ => Err(PmlError::BadLayout {
                block: self.block,
                stride: self.stride,
                count: self.count,
                room,
            }),
        }
    }
}

/// Finds the piece that holds message offset `offset`, and how far inside it lies.
fn seek<L>(
    cursor: &mut Cursor,
    offset: u64,
    piece: impl Fn(usize) -> Option<L>,
    length: impl Fn(&L) -> usize,
) -> Option<(L, usize)> {
    if offset < cursor.start {
        *cursor = Cursor::default();
    }
    loop {
        let here = piece(cursor.piece)?;
        let end = cursor.start + length(&here) as u64;
        if offset < end {
            return Some((here, to_usize(offset - cursor.start)));
        }
        *cursor = Cursor {
            piece: cursor.piece + 1,
            start: end,
        };
    }
}

/// An offset as an index. What does not fit lies behind every memory there is.
#[inline]
pub(crate) fn to_usize(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::memory::SharedBytes;
    use proptest::prelude::*;

    fn strided(base: ConstLoan, block: usize, stride: usize, count: usize) -> Payload {
        Payload::Strided(Strided {
            base,
            block,
            stride,
            count,
        })
    }

    #[test]
    fn layouts_that_leave_their_memory_or_overlap_are_refused() {
        let base = ConstLoan::of_static(&[0; 100]);
        for (block, stride, count) in [(10, 9, 2), (10, 91, 2), (1, usize::MAX, 3), (101, 0, 1)] {
            assert!(
                strided(base, block, stride, count).checked().is_err(),
                "{block} {stride} {count}"
            );
        }
        for (block, stride, count, bytes) in [(10, 90, 2, 20), (10, 10, 10, 100), (0, 0, 9, 0), (7, 0, 1, 7)]
        {
            let checked = strided(base, block, stride, count).checked().unwrap();
            assert_eq!(checked.len(), bytes);
        }
    }

    #[test]
    fn one_piece_is_recognised_in_every_disguise() {
        let base = ConstLoan::of_static(&[1; 64]);
        let disguises = [
            strided(base, 8, 8, 8),
            strided(base, 64, 0, 1),
            Payload::Parts(Box::new([base])),
        ];
        for payload in disguises {
            assert!(matches!(payload.checked().unwrap(), Payload::Loan(loan) if loan.len() == 64));
        }
    }

    proptest! {
        #[test]
        fn what_is_gathered_and_scattered_in_any_cuts_is_the_same(
            block in 1usize..9, gap in 0usize..5, count in 1usize..20, cuts in prop::collection::vec(1usize..40, 1..40),
            pieces in prop::collection::vec(0usize..15, 1..12),
        ) {
            let stride = block + gap;
            let bytes: Vec<u8> = (0..stride * count).map(|at| at as u8).collect();
            let base = ConstLoan::of_static(bytes.clone().leak());
            let from = strided(base, block, stride, count).checked().unwrap();
            let total = block * count;
            let expected: Vec<u8> =
                (0..total).map(|at| bytes[at / block * stride + at % block]).collect();

            // A target of pieces in reverse order of memory, plus one that surely suffices.
            let room = MutLoan::of_static(vec![0; pieces.iter().sum::<usize>() + total].leak());
            let mut end = room.len();
            let mut list: Vec<MutLoan> = Vec::new();
            for length in pieces.iter().copied().chain([total]) {
                list.push(room.part(end - length, length));
                end -= length;
            }
            let target = Target::Parts(list.clone().into_boxed_slice()).checked().unwrap();

            let origin = Origin::User(from);
            prop_assert_eq!(origin.len(), total as u64);
            let (mut out, mut into) = (Cursor::default(), Cursor::default());
            let mut at = 0;
            for cut in cuts.iter().cycle() {
                if at == total { break; }
                let mut packed = vec![0; (*cut).min(total - at)];
                prop_assert_eq!(origin.pack(&mut out, at as u64, &mut packed), packed.len());
                let inbound = Inbound::whole(SharedBytes::of(&packed));
                let done = target.scatter(&mut into, at as u64, &inbound, 0, packed.len());
                prop_assert_eq!(done, packed.len());
                at += packed.len();
            }
            let mut received = Vec::new();
            for piece in &list {
                received.extend(piece.as_shared().to_vec());
            }
            received.truncate(total);
            prop_assert_eq!(received, expected);
        }
    }

    #[test]
    fn a_cursor_goes_back_when_a_fragment_is_sent_again() {
        let parts = [
            ConstLoan::of_static(b"abc"),
            ConstLoan::EMPTY,
            ConstLoan::of_static(b"defg"),
        ];
        let origin = Origin::User(Payload::Parts(Box::new(parts)));
        let mut cursor = Cursor::default();
        let mut bytes = [0; 7];
        for (offset, expected) in [(4, &b"efg"[..]), (1, b"bcdefg"), (0, b"abcdefg"), (7, b"")] {
            let length = origin.pack(&mut cursor, offset, &mut bytes);
            assert_eq!(&bytes[..length], expected);
        }
    }
}
