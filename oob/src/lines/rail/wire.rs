//! The header of a message on a rail: 24 bytes, followed by a segment of a session's bytes.
//!
//! ```text
//!    0         4         5      6        7      8              16              24
//!    │ "oobr"  │ version │ kind │ caller │ 0    │ line         │ sequence      │ piece …
//! ```
//!
//! Numbers are in network byte order. A *line* is numbered by its caller, which is marked in each segment
//! (`caller` is 1), so that both sides may call at the same time. Segments are numbered from 0 in each
//! direction; the caller's first one is a [`Kind::Call`]. Anything malformed is dropped and counted.

use zerocopy::byteorder::network_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header.
pub const HEAD: usize = 24;
/// Maximum bytes accepted after a header.
pub const PIECE_MAX: usize = 32 << 10;
/// Maximum segments in flight to one peer: no segment arrives further than this beyond a missing one.
pub const WINDOW: u64 = 64;
const MAGIC: [u8; 4] = *b"oobr";
const VERSION: u8 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    caller: u8,
    zero: u8,
    line: U64,
    sequence: U64,
}

const _: () = assert!(size_of::<Raw>() == HEAD);

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first segment of a line, from the caller.
    Call,
    /// A segment of a line.
    Piece,
    /// The end of a line: nothing follows. It is numbered like a segment.
    End,
    /// There is no such line (any more). Not numbered.
    Gone,
    /// A probe of the peer, outside any line.
    Ask,
    /// The answer to a probe.
    Here,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Call,
        Self::Piece,
        Self::End,
        Self::Gone,
        Self::Ask,
        Self::Here,
    ];

    fn number(self) -> u8 {
        match self {
            Self::Call => 1,
            Self::Piece => 2,
            Self::End => 3,
            Self::Gone => 4,
            Self::Ask => 5,
            Self::Here => 6,
        }
    }
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The kind of the message.
    pub kind: Kind,
    /// Whether its sender made the call.
    pub caller: bool,
    /// The caller's number of the line.
    pub line: u64,
    /// The number of the segment.
    pub sequence: u64,
}

impl Head {
    /// Creates a header outside any line.
    pub(super) fn alone(kind: Kind) -> Self {
        Self {
            kind,
            caller: false,
            line: 0,
            sequence: 0,
        }
    }

    /// Returns the bytes of the header.
    #[must_use]
    pub fn bytes(&self) -> [u8; HEAD] {
        zerocopy::transmute!(Raw {
            magic: MAGIC,
            version: VERSION,
            kind: self.kind.number(),
            caller: u8::from(self.caller),
            zero: 0,
            line: self.line.into(),
            sequence: self.sequence.into(),
        })
    }

    /// Parses a header, and returns what follows it. `None` if it is malformed.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (raw, piece) = Raw::ref_from_prefix(bytes).ok()?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.number() == raw.kind)?;
        let head = Self {
            kind,
            caller: raw.caller == 1,
            line: raw.line.get(),
            sequence: raw.sequence.get(),
        };
        let sound = raw.magic == MAGIC && raw.version == VERSION && raw.caller <= 1 && raw.zero == 0;
        (sound && piece.len() <= PIECE_MAX && head.is_sane(piece)).then_some((head, piece))
    }

    /// Whether the fields fit together.
    fn is_sane(&self, piece: &[u8]) -> bool {
        let unnumbered = self.sequence == 0 && piece.is_empty();
        match self.kind {
            Kind::Call => self.caller && self.sequence == 0 && !piece.is_empty(),
            Kind::Piece => !piece.is_empty(),
            Kind::End => piece.is_empty(),
            Kind::Gone => unnumbered,
            Kind::Ask | Kind::Here => unnumbered && *self == Self::alone(self.kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAMPLE: Head = Head {
        kind: Kind::Piece,
        caller: true,
        line: 0x0102,
        sequence: 0x0304,
    };

    #[test]
    fn golden_bytes_of_a_piece() {
        let mut golden = *b"oobr\x01\x02\x01\0\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\x03\x04+";
        assert_eq!(SAMPLE.bytes(), golden[..HEAD]);
        assert_eq!(Head::read(&golden), Some((SAMPLE, &b"+"[..])));
        for (at, byte) in [(0, b'O'), (4, 2), (5, 0), (5, 7), (6, 2), (7, 1)] {
            let before = std::mem::replace(&mut golden[at], byte);
            assert_eq!(Head::read(&golden), None, "byte {at} as {byte}");
            golden[at] = before;
        }
        assert_eq!(Head::read(&golden[..HEAD - 1]), None);
    }

    #[test]
    fn what_does_not_fit_its_kind_is_refused() {
        let with = |kind, caller, line, sequence, piece: &[u8]| {
            let head = Head {
                kind,
                caller,
                line,
                sequence,
            };
            Head::read(&[&head.bytes(), piece].concat()).is_some()
        };
        assert!(with(Kind::Call, true, 1, 0, b"x") && with(Kind::End, false, 1, 9, b""));
        assert!(with(Kind::Ask, false, 0, 0, b"") && with(Kind::Gone, true, 7, 0, b""));
        assert!(
            !with(Kind::Call, false, 1, 0, b"x"),
            "the called side does not call"
        );
        assert!(!with(Kind::Call, true, 1, 1, b"x") && !with(Kind::Call, true, 1, 0, b""));
        assert!(!with(Kind::Piece, true, 1, 1, b"") && !with(Kind::End, true, 1, 1, b"x"));
        assert!(!with(Kind::Gone, true, 1, 1, b"") && !with(Kind::Here, false, 1, 0, b""));
        let long = vec![7; PIECE_MAX + 1];
        assert!(with(Kind::Piece, true, 1, 1, &long[1..]) && !with(Kind::Piece, true, 1, 1, &long));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64), whole in any::<bool>()) {
            let mut bytes = bytes;
            if whole && bytes.len() >= 8 {
                bytes[..5].copy_from_slice(b"oobr\x01");
            }
            if let Some((head, piece)) = Head::read(&bytes) {
                prop_assert_eq!([&head.bytes(), piece].concat(), bytes);
            }
        }
    }
}
