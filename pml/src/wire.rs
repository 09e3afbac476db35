//! The headers of the PML: fixed, little endian, 64 bytes at most. The one place that knows their bytes.
//!
//! ```text
//! 0     1      2        4     8           16
//! kind  flags  context  seq   tag         …     headers of the MATCH class, and the identity of the others
//! ```
//!
//! | kind | bytes | after the first 16 | body |
//! |---|---|---|---|
//! | MATCH 1 | 16 | | the message |
//! | MATCH 1, flag IMMEDIATE | 16 | (8: immediate data of all messages behind it) | |
//! | RNDV 2 | 48 | length, sender's request, receiver's request (restart), restart, checksum | the first bytes |
//! | RGET 3 | 48 | as RNDV | [`Remote`], 24 bytes |
//! | ACK 4 | 56 | sender's request, receiver's request, offset, until, restart, counted u32 | |
//! | NACK 5, FIN 9 | 40 | sender's request, receiver's request, status (NACK to a sender: bytes counted), restart | |
//! | FRAG 6 | 24 | (0: kind, flags, reserved u16, restart u32) receiver's request, offset | the bytes |
//! | PUT 8 | 48 | sender's request, receiver's request, offset, restart, reserved | [`Remote`], 24 bytes |
//! | restart 10–13 | 40 | sender's request, receiver's request, restart, reserved | |
//! | CREDIT 14 | 16 | (0: kind, flags, reserved) consumed bytes, cumulative | |
//! | MATCH 1, flag OPERATION | 16 | (8: initiator's request) | [`OperationHeader`], pieces, data, the bytes |
//! | RNDV 2, RGET 3, flag OPERATION | 48 | as RNDV; the same in the tag's place | (RGET: [`Remote`]) the same without bytes |
//! | MATCH 1, RNDV 2, RGET 3, flag REPLY | | the same in the tag's place | as of a message |
//! | CHECKED 18 | 24 | checksum, reserved | the message |
//! | ANSWER 19 | 24 | (0: kind, status, length u16, reserved) initiator's request, value | |
//! | PROBE 15, ECHO 16, BROKEN 17 | 16 | (0: kind, flags, path u16, number u32) reserved | |
//!
//! The numbers 1 to 13 are those of reference: bfo, section 2 (7, GET, is not used: a receiver reads by
//! itself). Requests travel as index and generation, never as addresses. The source is the rail peer it
//! arrives from.

use doorbell_fabric::event::Life;
use doorbell_fabric::message::Remote;
use doorbell_paths::Word;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::rma::args::RemotePiece;

/// The kinds of headers.
pub(crate) mod kind {
    /// A whole message.
    pub(crate) const MATCH: u8 = 1;
    /// An announcement, with the first bytes.
    pub(crate) const RNDV: u8 = 2;
    /// An announcement, with exposed memory to be read.
    pub(crate) const RGET: u8 = 3;
    /// Matched: send these bytes by fragments (none, when offset equals until).
    pub(crate) const ACK: u8 = 4;
    /// The sender gave the message up; to the sender: the receiver has thrown it away.
    pub(crate) const NACK: u8 = 5;
    /// Some bytes of an announced message.
    pub(crate) const FRAG: u8 = 6;
    /// Matched: write these bytes into exposed memory.
    pub(crate) const PUT: u8 = 8;
    /// The one-sided transfer is complete.
    pub(crate) const FIN: u8 = 9;
    /// Sender: the rendezvous is to be restarted.
    pub(crate) const RESTART_NOTIFY: u8 = 10;
    /// Receiver: ready for the restart.
    pub(crate) const RESTART_ACK: u8 = 11;
    /// Receiver: no restart, the message had arrived.
    pub(crate) const RESTART_NACK: u8 = 12;
    /// Receiver: an error on this side, please restart.
    pub(crate) const RESTART_ERROR: u8 = 13;
    /// The bytes that were consumed.
    pub(crate) const CREDIT: u8 = 14;
    /// Please answer over this path.
    pub(crate) const PROBE: u8 = 15;
    /// The answer to a probe.
    pub(crate) const ECHO: u8 = 16;
    /// A path (another one than this) was given up at this end.
    pub(crate) const BROKEN: u8 = 17;
    /// A whole message, with its checksum.
    pub(crate) const CHECKED: u8 = 18;
    /// The target has done an operation, or refuses it.
    pub(crate) const ANSWER: u8 = 19;
}

/// The flags of headers.
pub(crate) mod flag {
    /// RNDV, RGET: the rendezvous begins again, for a receiver that knows the message.
    pub(crate) const RESTART: u8 = 0x01;
    /// RNDV, RGET: the checksum holds.
    pub(crate) const CHECKED: u8 = 0x02;
    /// MATCH: no message, but the immediate data of all messages behind it, in the tag's place; it has no
    /// body.
    pub(crate) const IMMEDIATE: u8 = 0x04;
    /// MATCH, with IMMEDIATE: messages behind it have no immediate data.
    pub(crate) const NO_DATA: u8 = 0x08;
    /// RNDV: the sender can write into memory that the receiver exposes.
    pub(crate) const CAN_PUT: u8 = 0x10;
    /// RNDV: the same message was sent whole before, over a rail that is gone, and may have arrived: then it
    /// is to be answered all the same, by an ACK that requests none and has counted all its bytes, because
    /// its sender keeps them until it is.
    pub(crate) const AGAIN: u8 = 0x20;
    /// FIN: from the sender to the receiver (of a put); otherwise the other way (of a get).
    pub(crate) const TO_RECEIVER: u8 = 0x40;
    /// MATCH, CHECKED, RNDV, RGET: what an operation returns, for the initiator's request in the tag's place.
    pub(crate) const REPLY: u8 = 0x40;
    /// MATCH, CHECKED, RNDV, RGET: an operation on a window, of the initiator's request in the tag's place.
    /// The bytes begin with what it is; of RNDV with AGAIN those of the message, of other announcements those
    /// that come with it.
    pub(crate) const OPERATION: u8 = 0x80;
}

/// Bytes of the MATCH header.
pub(crate) const MATCH_LEN: usize = 16;
/// Bytes of the longest header.
pub(crate) const HEAD_MAX: usize = 64;

/// MATCH, and the first 16 bytes of most others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct MatchHeader {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) context: U16,
    pub(crate) seq: U32,
    pub(crate) tag: U64,
}

/// CHECKED: MATCH with the CRC-32C of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct CheckedHeader {
    pub(crate) matching: MatchHeader,
    pub(crate) checksum: U32,
    pub(crate) reserved: U32,
}

/// RNDV and RGET. The checksum is of the whole message, where the flag is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RndvHeader {
    pub(crate) matching: MatchHeader,
    pub(crate) length: U64,
    pub(crate) sender: U64,
    pub(crate) receiver: U64,
    pub(crate) restart: U32,
    pub(crate) checksum: U32,
}

/// ACK: the receiver requests the bytes from `offset` to `until` as fragments. `counted` is how many bytes
/// came with the announcement that it took, as far as they count against the sender's window: the sender
/// takes back what it counted more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct AckHeader {
    pub(crate) matching: MatchHeader,
    pub(crate) sender: U64,
    pub(crate) receiver: U64,
    pub(crate) offset: U64,
    pub(crate) until: U64,
    pub(crate) restart: U32,
    pub(crate) counted: U32,
}

/// PUT: the receiver requests that the bytes from `offset` on be written into the memory named by the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct PutHeader {
    pub(crate) matching: MatchHeader,
    pub(crate) sender: U64,
    pub(crate) receiver: U64,
    pub(crate) offset: U64,
    pub(crate) restart: U32,
    pub(crate) reserved: U32,
}

/// FIN and NACK. They carry the match identity, so that a late duplicate differs from a new message's
/// (reference: bfo, section 2, "The FIN change").
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct FinHeader {
    pub(crate) matching: MatchHeader,
    pub(crate) sender: U64,
    pub(crate) receiver: U64,
    pub(crate) status: U32,
    pub(crate) restart: U32,
}

/// The four restart kinds (reference: bfo, section 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RestartHeader {
    pub(crate) matching: MatchHeader,
    pub(crate) sender: U64,
    pub(crate) receiver: U64,
    pub(crate) restart: U32,
    pub(crate) reserved: U32,
}

/// FRAG: some bytes of an announced message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct FragHeader {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: U16,
    pub(crate) restart: U32,
    pub(crate) receiver: U64,
    pub(crate) offset: U64,
}

/// CREDIT: the bytes that were consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct CreditHeader {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: U16,
    pub(crate) reserved2: U32,
    pub(crate) consumed: U64,
}

/// PROBE, ECHO and BROKEN: about the paths themselves. A path is its number in the order of `connect`; the
/// other number is that of the request, or, in BROKEN, that of the connection which is given up
/// ([`Life`]): no later one is broken by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct PathHeader {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) path: U16,
    pub(crate) number: U32,
    pub(crate) reserved: U64,
}

/// The start of an operation; its pieces follow, then eight bytes of immediate data, if it has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct OperationHeader {
    pub(crate) verb: u8,
    pub(crate) flags: u8,
    pub(crate) arithmetic: u8,
    pub(crate) element: u8,
    pub(crate) pieces: u8,
    pub(crate) reserved: [u8; 3],
}

/// A piece of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct PieceHeader {
    pub(crate) key: U64,
    pub(crate) address: U64,
    pub(crate) length: U64,
}

/// ANSWER: the target has done an operation, or refuses it; with what it returns, if that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct AnswerHeader {
    pub(crate) kind: u8,
    pub(crate) status: u8,
    pub(crate) length: U16,
    pub(crate) reserved: U32,
    pub(crate) request: U64,
    pub(crate) value: [u8; 8],
}

impl PieceHeader {
    /// The header of a piece.
    pub(crate) const fn of(piece: &RemotePiece) -> Self {
        Self {
            key: U64::new(piece.key),
            address: U64::new(piece.address),
            length: U64::new(piece.length),
        }
    }

    /// The piece that it is.
    pub(crate) const fn piece(&self) -> RemotePiece {
        RemotePiece {
            key: self.key.get(),
            address: self.address.get(),
            length: self.length.get(),
        }
    }
}

impl CheckedHeader {
    /// `head`, of a whole message, with its checksum.
    pub(crate) fn new(head: MatchHeader, checksum: u32) -> Self {
        Self {
            matching: MatchHeader {
                kind: kind::CHECKED,
                ..head
            },
            checksum: checksum.into(),
            reserved: 0.into(),
        }
    }
}

impl RndvHeader {
    /// Adds the checksum of the message, if it has one.
    pub(crate) fn with_checksum(mut self, checksum: Option<u32>) -> Self {
        if let Some(sum) = checksum {
            self.matching.flags |= flag::CHECKED;
            self.checksum = sum.into();
        }
        self
    }

    /// The checksum of the message, if it has one.
    pub(crate) fn checksum(&self) -> Option<u32> {
        (self.matching.flags & flag::CHECKED != 0).then(|| self.checksum.get())
    }
}

impl PathHeader {
    /// The header that is this word.
    pub(crate) const fn of(word: Word) -> Self {
        let (kind, number) = match word {
            Word::Probe { number, .. } => (kind::PROBE, number),
            Word::Echo { number, .. } => (kind::ECHO, number),
            Word::Broken { life, .. } => (kind::BROKEN, life.0),
        };
        Self {
            kind,
            flags: 0,
            path: U16::new(word.path()),
            number: U32::new(number),
            reserved: U64::new(0),
        }
    }

    /// The word that this header is, if it is one.
    pub(crate) fn word(&self) -> Option<Word> {
        let (path, number) = (self.path.get(), self.number.get());
        match self.kind {
            kind::PROBE => Some(Word::Probe { path, number }),
            kind::ECHO => Some(Word::Echo { path, number }),
            kind::BROKEN => Some(Word::Broken {
                path,
                life: Life(number),
            }),
            _ => None,
        }
    }
}

pub(crate) const CHECKED_LEN: usize = size_of::<CheckedHeader>();
pub(crate) const RNDV_LEN: usize = size_of::<RndvHeader>();
pub(crate) const FRAG_LEN: usize = size_of::<FragHeader>();
pub(crate) const PUT_LEN: usize = size_of::<PutHeader>();
pub(crate) const PATH_LEN: usize = size_of::<PathHeader>();
pub(crate) const OPERATION_LEN: usize = size_of::<OperationHeader>();
pub(crate) const PIECE_LEN: usize = size_of::<PieceHeader>();

const _: () = {
    assert!(size_of::<MatchHeader>() == MATCH_LEN);
    assert!(CHECKED_LEN == 24 && RNDV_LEN == 48 && FRAG_LEN == 24);
    assert!(size_of::<AckHeader>() == 56 && size_of::<PutHeader>() == 48);
    assert!(size_of::<FinHeader>() == 40 && size_of::<RestartHeader>() == 40);
    assert!(size_of::<CreditHeader>() == 16 && size_of::<PathHeader>() == 16);
    assert!(OPERATION_LEN == 8 && PIECE_LEN == 24 && size_of::<AnswerHeader>() == 24);
    assert!(size_of::<AckHeader>() <= HEAD_MAX);
};

impl MatchHeader {
    #[inline]
    pub(crate) const fn new(kind: u8, flags: u8, context: u16, seq: u32, tag: u64) -> Self {
        Self {
            kind,
            flags,
            context: U16::new(context),
            seq: U32::new(seq),
            tag: U64::new(tag),
        }
    }

    /// The word that changes the immediate data of all messages behind it.
    pub(crate) const fn immediate(seq: u32, data: Option<u64>) -> Self {
        match data {
            Some(data) => Self::new(kind::MATCH, flag::IMMEDIATE, 0, seq, data),
            None => Self::new(kind::MATCH, flag::IMMEDIATE | flag::NO_DATA, 0, seq, 0),
        }
    }

    /// The header of an operation, as the two words that it is.
    #[inline]
    pub(crate) fn operation_words(context: u16, seq: u32, request: u64) -> [u64; 2] {
        let flags = u64::from(flag::OPERATION) << 8;
        let [first, tag] = Self::plain_words(context, seq, request);
        [first | flags.to_le(), tag]
    }

    /// The bytes of a plain MATCH header, as the two words they are: written field by field and read back as
    /// words at once by a rail, they would wait for the store buffer.
    #[inline]
    pub(crate) fn plain_words(context: u16, seq: u32, tag: u64) -> [u64; 2] {
        let first = u64::from(kind::MATCH) | u64::from(context) << 16 | u64::from(seq) << 32;
        [first.to_le(), tag.to_le()]
    }
}

/// The length of the header of a kind; `None` for a kind that is not ours.
pub(crate) const fn head_len(kind: u8) -> Option<usize> {
    Some(match kind {
        kind::MATCH => MATCH_LEN,
        kind::CHECKED => CHECKED_LEN,
        kind::RNDV | kind::RGET => RNDV_LEN,
        kind::ACK => size_of::<AckHeader>(),
        kind::NACK | kind::FIN => size_of::<FinHeader>(),
        kind::FRAG => FRAG_LEN,
        kind::PUT => size_of::<PutHeader>(),
        kind::RESTART_NOTIFY | kind::RESTART_ACK | kind::RESTART_NACK | kind::RESTART_ERROR => {
            size_of::<RestartHeader>()
        }
        kind::CREDIT => size_of::<CreditHeader>(),
        kind::PROBE | kind::ECHO | kind::BROKEN => size_of::<PathHeader>(),
        kind::ANSWER => size_of::<AnswerHeader>(),
        _ => return None,
    })
}

/// A header without a body: its bytes, and how many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    bytes: [u8; HEAD_MAX],
    length: u8,
}

impl Head {
    /// Parses a header, optionally followed by a name of exposed memory.
    pub(crate) fn new<H: IntoBytes + Immutable>(header: &H) -> Self {
        let from = header.as_bytes();
        let mut bytes = [0; HEAD_MAX];
        // Every header is at most HEAD_MAX long: asserted above.
        bytes[..from.len()].copy_from_slice(from);
        Self {
            bytes,
            length: from.len() as u8,
        }
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// A header (or a name of exposed memory) from its private copy. Every value of the bytes is one.
#[inline]
pub(crate) fn parse<H: FromBytes, const N: usize>(bytes: [u8; N]) -> H {
    const { assert!(size_of::<H>() == N) };
    // Cannot fail: the lengths are equal, and `H` has no invalid values.
    H::read_from_bytes(&bytes).unwrap_or_else(|_| H::new_zeroed())
}

/// Bytes of [`Remote`] on the wire.
pub(crate) const REMOTE_LEN: usize = size_of::<Remote>();

#[cfg(test)]
mod tests {
    use super::*;

    const M: MatchHeader = MatchHeader::new(kind::MATCH, 0, 0x0201, 0x0605_0403, 0x0e0d_0c0b_0a09_0807);
    const IDENTITY: [u8; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];

    fn with(kind: u8, flags: u8) -> MatchHeader {
        MatchHeader { kind, flags, ..M }
    }

    fn golden(kind: u8, flags: u8, words: &[u64]) -> Vec<u8> {
        let mut bytes = vec![kind, flags];
        bytes.extend(IDENTITY);
        for word in words {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn match_is_sixteen_golden_bytes() {
        assert_eq!(M.as_bytes(), golden(1, 0, &[]));
        let words = MatchHeader::plain_words(M.context.get(), M.seq.get(), M.tag.get());
        assert_eq!(words.as_bytes(), M.as_bytes());
    }

    #[test]
    fn rndv_and_rget_are_golden() {
        for kind in [kind::RNDV, kind::RGET] {
            let head = RndvHeader {
                matching: with(kind, flag::CAN_PUT),
                length: 0x11.into(),
                sender: 0x22.into(),
                receiver: 0x33.into(),
                restart: 0x44.into(),
                checksum: 0x55.into(),
            };
            assert_eq!(
                head.as_bytes(),
                golden(kind, 0x10, &[0x11, 0x22, 0x33, 0x44 | 0x55 << 32])
            );
            assert_eq!(head_len(kind), Some(head.as_bytes().len()));
        }
    }

    #[test]
    fn immediate_data_are_sixteen_golden_bytes() {
        let mut bytes = vec![1, 0x04, 0, 0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        let head = MatchHeader::immediate(0x0605_0403, Some(0x0e0d_0c0b_0a09_0807));
        assert_eq!(head.as_bytes(), bytes);
        bytes[1] = 0x0c;
        bytes[8..].fill(0);
        assert_eq!(MatchHeader::immediate(0x0605_0403, None).as_bytes(), bytes);
    }

    #[test]
    fn checked_is_twenty_four_golden_bytes() {
        let head = CheckedHeader {
            matching: with(kind::CHECKED, 0),
            checksum: 0x0403_0201.into(),
            reserved: 0.into(),
        };
        assert_eq!(head.as_bytes(), golden(18, 0, &[0x0403_0201]));
        assert_eq!(head_len(kind::CHECKED), Some(24));
    }

    #[test]
    fn ack_and_put_are_golden() {
        let ack = AckHeader {
            matching: with(kind::ACK, 0),
            sender: 1.into(),
            receiver: 2.into(),
            offset: 3.into(),
            until: 4.into(),
            restart: 5.into(),
            counted: 6.into(),
        };
        assert_eq!(ack.as_bytes(), golden(4, 0, &[1, 2, 3, 4, 5 | 6 << 32]));
        let put = PutHeader {
            matching: with(kind::PUT, 0),
            sender: 1.into(),
            receiver: 2.into(),
            offset: 3.into(),
            restart: 4.into(),
            reserved: 0.into(),
        };
        assert_eq!(put.as_bytes(), golden(8, 0, &[1, 2, 3, 4]));
    }

    #[test]
    fn fin_and_nack_are_golden() {
        for kind in [kind::FIN, kind::NACK] {
            let head = FinHeader {
                matching: with(kind, flag::TO_RECEIVER),
                sender: 1.into(),
                receiver: 2.into(),
                status: 3.into(),
                restart: 4.into(),
            };
            assert_eq!(head.as_bytes(), golden(kind, 0x40, &[1, 2, 3 | 4 << 32]));
            assert_eq!(head_len(kind), Some(40));
        }
    }

    #[test]
    fn restart_kinds_are_golden() {
        for kind in 10..=13 {
            let head = RestartHeader {
                matching: with(kind, 0),
                sender: 1.into(),
                receiver: 2.into(),
                restart: 3.into(),
                reserved: 0.into(),
            };
            assert_eq!(head.as_bytes(), golden(kind, 0, &[1, 2, 3]));
            assert_eq!(head_len(kind), Some(40));
        }
    }

    #[test]
    fn frag_and_credit_are_golden() {
        let frag = FragHeader {
            kind: kind::FRAG,
            flags: 0,
            reserved: 0.into(),
            restart: 0x0403_0201.into(),
            receiver: 0x55.into(),
            offset: 0x66.into(),
        };
        let mut bytes = vec![6, 0, 0, 0, 1, 2, 3, 4, 0x55, 0, 0, 0, 0, 0, 0, 0, 0x66];
        bytes.extend([0; 7]);
        assert_eq!(frag.as_bytes(), bytes);
        let credit = CreditHeader {
            kind: kind::CREDIT,
            flags: 0,
            reserved: 0.into(),
            reserved2: 0.into(),
            consumed: 0x0102.into(),
        };
        assert_eq!(
            credit.as_bytes(),
            [14, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn words_about_paths_are_golden() {
        let (path, number) = (0x0102, 0x0403_0201);
        let life = Life(number);
        for (kind, word) in [
            (kind::PROBE, Word::Probe { path, number }),
            (kind::ECHO, Word::Echo { path, number }),
            (kind::BROKEN, Word::Broken { path, life }),
        ] {
            let head = PathHeader::of(word);
            assert_eq!(head.word(), Some(word));
            let bytes = [kind, 0, 2, 1, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(head.as_bytes(), bytes);
            assert_eq!(head_len(kind), Some(16));
        }
    }

    #[test]
    fn operations_and_answers_are_golden() {
        let words = MatchHeader::operation_words(M.context.get(), M.seq.get(), M.tag.get());
        assert_eq!(words.as_bytes(), golden(1, 0x80, &[]));
        assert_eq!(words.as_bytes(), with(kind::MATCH, flag::OPERATION).as_bytes());
        let head = OperationHeader {
            verb: 1,
            flags: 2,
            arithmetic: 3,
            element: 4,
            pieces: 5,
            reserved: [0; 3],
        };
        assert_eq!(head.as_bytes(), [1, 2, 3, 4, 5, 0, 0, 0]);
        let piece = RemotePiece {
            key: 0x0102,
            address: 0x0304,
            length: 0x0506,
        };
        let mut bytes = [0; 24];
        (bytes[0], bytes[1], bytes[8], bytes[9], bytes[16], bytes[17]) = (2, 1, 4, 3, 6, 5);
        assert_eq!(PieceHeader::of(&piece).as_bytes(), bytes);
        assert_eq!(PieceHeader::of(&piece).piece(), piece);
        let answer = AnswerHeader {
            kind: kind::ANSWER,
            status: 2,
            length: 0x0304.into(),
            reserved: 0.into(),
            request: 0x0506.into(),
            value: *b"eight by",
        };
        let mut bytes = vec![19, 2, 4, 3, 0, 0, 0, 0, 6, 5, 0, 0, 0, 0, 0, 0];
        bytes.extend(b"eight by");
        assert_eq!(answer.as_bytes(), bytes);
        assert_eq!(head_len(kind::ANSWER), Some(24));
    }

    #[test]
    fn kinds_that_are_not_ours_have_no_length() {
        for kind in [0, 7, 20, 255] {
            assert_eq!(head_len(kind), None);
        }
    }

    #[test]
    fn a_remote_survives_the_wire() {
        let remote_in = Remote {
            key: 7.into(),
            address: 8.into(),
            length: 9.into(),
        };
        let mut bytes = [0; 24];
        bytes.copy_from_slice(remote_in.as_bytes());
        assert_eq!(parse::<Remote, 24>(bytes), remote_in);
    }
}
