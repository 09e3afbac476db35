//! The lead of an operation, which comes before its bytes: built by its initiator, parsed by its target.

use doorbell_fabric::atomics::{Arithmetic, Element};
use doorbell_fabric::message::Inbound;
use zerocopy::IntoBytes;

use super::args::{PIECES_MOST, RemotePiece, RemotePieces};
use crate::request::Outcome;
use crate::wire::{self, OPERATION_LEN, OperationHeader, PIECE_LEN, PieceHeader};

/// Bytes of the longest lead.
pub(crate) const LEAD_MOST: usize = OPERATION_LEN + PIECES_MOST * PIECE_LEN + 8;
/// Bytes of the lead of an operation on one piece, without data.
pub(crate) const LEAD_SHORT: usize = OPERATION_LEN + PIECE_LEN;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Verb {
    /// Writes into a window.
    Put = 1,
    /// Reads from a window.
    Get = 2,
    /// Computes in a window.
    Atomic = 3,
    /// Computes, and returns what was there.
    Fetch = 4,
}

/// The flags of an operation.
mod option {
    /// Its target's owner is to be notified.
    pub(super) const NOTICE: u8 = 1;
    /// Immediate data, eight bytes, follow the pieces.
    pub(super) const DATA: u8 = 2;
}

/// A lead, as bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lead {
    bytes: [u8; LEAD_MOST],
    length: u8,
}

impl Default for Lead {
    fn default() -> Self {
        Self {
            bytes: [0; LEAD_MOST],
            length: 0,
        }
    }
}

impl Lead {
    pub(crate) fn new(operation: &Operation) -> Self {
        let mut lead = Self::default();
        let data = operation.data;
        let (arithmetic, element) = operation.computes.map_or((0, 0), |(a, e)| (a as u8, e as u8));
        let pieces = operation.pieces.as_slice();
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let head = OperationHeader {
            verb: operation.verb as u8,
            flags: flag(operation.notice, option::NOTICE) | flag(data.is_some(), option::DATA),
            arithmetic,
            element,
            pieces: pieces.len() as u8,
            reserved: [0; 3],
        };
        lead.push(head.as_bytes());
        for piece in pieces {
            lead.push(PieceHeader::of(piece).as_bytes());
        }
        if let Some(data) = data {
            lead.push(&data.to_le_bytes());
        }
        lead
    }

    fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.length);
        // As long as the longest lead, by the number of pieces.
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len() as u8;
    }

    /// The lead of a put or a get of one piece, without data, as the words that it is.
    #[inline]
    pub(crate) fn words(verb: Verb, piece: &RemotePiece) -> [u64; LEAD_SHORT / 8] {
        Self::words_of(verb as u64, piece)
    }

    /// The same of an atomic.
    #[inline]
    pub(crate) fn atomic_words(
        verb: Verb,
        (arithmetic, element): (Arithmetic, Element),
        piece: &RemotePiece,
    ) -> [u64; LEAD_SHORT / 8] {
        Self::words_of(
            verb as u64 | (arithmetic as u64) << 16 | (element as u64) << 24,
            piece,
        )
    }

    #[inline]
    fn words_of(first: u64, piece: &RemotePiece) -> [u64; LEAD_SHORT / 8] {
        let first = first | 1 << 32;
        [first, piece.key, piece.address, piece.length].map(u64::to_le)
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.length)
    }
}

/// An operation, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) verb: Verb,
    /// What it computes, and on what.
    pub(crate) computes: Option<(Arithmetic, Element)>,
    pub(crate) pieces: RemotePieces,
    pub(crate) notice: bool,
    pub(crate) data: Option<u64>,
}

impl Operation {
    /// Parses a lead that begins at a byte of a message. Returns where the bytes of the operation begin.
    ///
    /// # Errors
    /// [`Outcome::Invalid`] for what no honest initiator sends.
    #[inline]
    pub(crate) fn parse(inbound: &Inbound<'_>, at: usize) -> Result<(Self, usize), Outcome> {
        // In one copy, since the lead may lie in two pieces.
        let mut bytes = [0; LEAD_SHORT];
        if inbound.copy_to(at, &mut bytes) == LEAD_SHORT
            && let Some(operation) = Self::of_one_piece(&bytes)
        {
            return Ok((operation, at + LEAD_SHORT));
        }
        Self::parse_any(inbound, at)
    }

    /// The operation of this lead, if that is on one piece, without data, and right.
    #[inline]
    fn of_one_piece(lead: &[u8; LEAD_SHORT]) -> Option<Self> {
        let head: OperationHeader = wire::parse(*lead.first_chunk::<OPERATION_LEN>()?);
        if head.pieces != 1 || head.flags & option::DATA != 0 {
            return None;
        }
        let (verb, computes) = Self::verb(&head).ok()?;
        let piece: PieceHeader = wire::parse(*lead.last_chunk::<PIECE_LEN>()?);
        Some(Self {
            verb,
            computes,
            pieces: piece.piece().into(),
            notice: head.flags & option::NOTICE != 0,
            data: None,
        })
    }

    /// What an operation does.
    #[inline]
    fn verb(head: &OperationHeader) -> Result<(Verb, Option<(Arithmetic, Element)>), Outcome> {
        let verb = match head.verb {
            1 => Verb::Put,
            2 => Verb::Get,
            3 => Verb::Atomic,
            4 => Verb::Fetch,
            _ => return Err(Outcome::Invalid),
        };
        let computes = match verb {
            Verb::Put | Verb::Get => None,
            Verb::Atomic | Verb::Fetch => Some(
                Arithmetic::of_number(head.arithmetic)
                    .zip(Element::of_number(head.element))
                    .ok_or(Outcome::Invalid)?,
            ),
        };
        Ok((verb, computes))
    }

    fn parse_any(inbound: &Inbound<'_>, mut at: usize) -> Result<(Self, usize), Outcome> {
        let head: OperationHeader = wire::parse(inbound.read::<OPERATION_LEN>(at).ok_or(Outcome::Invalid)?);
        at += OPERATION_LEN;
        let (verb, computes) = Self::verb(&head)?;
        let count = usize::from(head.pieces);
        let mut pieces = [RemotePiece::default(); PIECES_MOST];
        for piece in pieces.get_mut(..count).ok_or(Outcome::Invalid)? {
            let bytes = inbound.read::<PIECE_LEN>(at).ok_or(Outcome::Invalid)?;
            *piece = wire::parse::<PieceHeader, _>(bytes).piece();
            at += PIECE_LEN;
        }
        let data = if head.flags & option::DATA != 0 {
            let bytes = inbound.read::<8>(at).ok_or(Outcome::Invalid)?;
            at += 8;
            Some(u64::from_le_bytes(bytes))
        } else {
            None
        };
        let operation = Self {
            verb,
            computes,
            pieces: RemotePieces::new(&pieces[..count]).ok_or(Outcome::OutOfRange)?,
            notice: head.flags & option::NOTICE != 0,
            data,
        };
        Ok((operation, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::memory::SharedBytes;

    fn operation(count: usize, data: Option<u64>) -> Operation {
        let piece = |at: u64| RemotePiece {
            key: 0x0101 * at,
            address: 7 + at,
            length: 16 * at,
        };
        let pieces: Vec<_> = (1..=count as u64).map(piece).collect();
        Operation {
            verb: Verb::Fetch,
            computes: Some((Arithmetic::Cswap, Element::Uint128)),
            pieces: RemotePieces::new(&pieces).unwrap(),
            notice: count.is_multiple_of(2),
            data,
        }
    }

    #[test]
    fn a_lead_is_golden_bytes() {
        let lead = Lead::new(&operation(1, Some(0x22)));
        let mut bytes = vec![4, 2, 11, 15, 1, 0, 0, 0];
        for word in [0x0101u64, 8, 16, 0x22] {
            bytes.extend(word.to_le_bytes());
        }
        assert_eq!(lead.as_bytes(), bytes);
        let piece = RemotePiece {
            key: 1,
            address: 2,
            length: 3,
        };
        let put = Operation {
            verb: Verb::Put,
            computes: None,
            pieces: piece.into(),
            notice: false,
            data: None,
        };
        assert_eq!(
            Lead::words(Verb::Put, &piece).as_bytes(),
            Lead::new(&put).as_bytes()
        );
        let computes = (Arithmetic::Swap, Element::Double);
        let fetch = Operation {
            verb: Verb::Fetch,
            computes: Some(computes),
            ..put
        };
        let words = Lead::atomic_words(Verb::Fetch, computes, &piece);
        assert_eq!(words.as_bytes(), Lead::new(&fetch).as_bytes());
    }

    #[test]
    fn leads_come_back_and_shorter_ones_do_not() {
        for count in 1..=PIECES_MOST {
            for data in [None, Some(9)] {
                let is = operation(count, data);
                let lead = Lead::new(&is);
                let bytes = lead.as_bytes();
                let parsed = Operation::parse(&Inbound::whole(SharedBytes::of(bytes)), 0);
                assert_eq!(parsed, Ok((is, bytes.len())));
                for length in 0..bytes.len() {
                    let cut = Inbound::whole(SharedBytes::of(&bytes[..length]));
                    assert_eq!(Operation::parse(&cut, 0), Err(Outcome::Invalid));
                }
            }
        }
    }

    #[test]
    fn what_there_is_not_is_refused() {
        let good = Lead::new(&operation(2, None));
        for (at, byte) in [(0, 0), (0, 5), (2, 19), (3, 16), (4, 5), (4, 255)] {
            let mut bytes = [good.as_bytes(), &[0; 200]].concat();
            bytes[at] = byte;
            let parsed = Operation::parse(&Inbound::whole(SharedBytes::of(&bytes)), 0);
            assert_eq!(parsed, Err(Outcome::Invalid), "{at}: {byte}");
        }
        let mut bytes = good.as_bytes().to_vec();
        bytes[4] = 0;
        let none = Operation::parse(&Inbound::whole(SharedBytes::of(&bytes)), 0);
        assert_eq!(none, Err(Outcome::OutOfRange), "no pieces");
    }
}
