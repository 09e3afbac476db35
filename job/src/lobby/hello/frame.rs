//! The frames of hellos: a header each, and a piece of a message.
//!
//! ```text
//!   0      8       9      10      11      12
//!   | call | stage | part | parts | spare | piece …       every frame
//!   message of stage 1: | door 8 | doors 18 | IPv6? | spare | the session's call …
//! ```
//!
//! Numbers are little-endian. All pieces of a message but the last are [`PIECE`] bytes long, so that the
//! place of each follows from its number.

use std::fmt;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::doors::{self, Doors};

/// Longest piece of a message: with all headers it is shorter than any network's frames.
pub(super) const PIECE: usize = 1000;
/// Most pieces of one message.
pub(super) const PARTS: usize = 16;
/// Length of a frame's header.
pub(super) const HEADER: usize = size_of::<Header>();
/// Length of the longest frame.
pub(in crate::lobby) const LONGEST: usize = HEADER + PIECE;

/// The header of each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    call: U64,
    stage: u8,
    part: u8,
    parts: u8,
    spare: u8,
}

const _: () = assert!(HEADER == 12);

/// The step of a call that a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stage {
    /// The caller names the doors at which it awaits the answer, and opens the session.
    Call = 1,
    /// The callee has the token.
    Answer = 2,
    /// The caller has it too, lives, and sends its card.
    Card = 3,
    /// The callee's card, and the key of the connections.
    Reply = 4,
}

impl Stage {
    fn of(number: u8) -> Option<Self> {
        [Self::Call, Self::Answer, Self::Card, Self::Reply]
            .into_iter()
            .find(|stage| *stage as u8 == number)
    }
}

/// A frame, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    /// The caller's number of the call.
    pub(super) call: u64,
    pub(super) stage: Stage,
    part: usize,
    parts: usize,
    piece: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Parses a frame; `None` for one that [`frames`] does not make.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, piece) = Header::read_from_prefix(bytes).ok()?;
        let frame = Self {
            call: header.call.get(),
            stage: Stage::of(header.stage)?,
            part: header.part.into(),
            parts: header.parts.into(),
            piece,
        };
        let fits = match frame.is_last() {
            true => (1..=PIECE).contains(&piece.len()),
            false => piece.len() == PIECE,
        };
        let is_whole = frame.parts <= PARTS && frame.part < frame.parts && header.spare == 0;
        (is_whole && fits).then_some(frame)
    }

    /// Whether it has the last piece of its message.
    pub(super) fn is_last(&self) -> bool {
        self.part + 1 == self.parts
    }

    /// Returns the message of a frame that has all of it.
    pub(super) fn whole(&self) -> Option<&'a [u8]> {
        (self.parts == 1).then_some(self.piece)
    }
}

/// Calls `each` with the frames of a message of at most [`PARTS`] times [`PIECE`] bytes.
pub(super) fn frames(call: u64, stage: Stage, message: &[u8], mut each: impl FnMut(&[u8])) {
    let pieces = message.chunks(PIECE);
    let parts = pieces.len();
    for (part, piece) in pieces.enumerate() {
        let header = Header {
            call: U64::new(call),
            stage: stage as u8,
            part: part as u8,
            parts: parts as u8,
            spare: 0,
        };
        let mut bytes = [0; LONGEST];
        bytes[..HEADER].copy_from_slice(header.as_bytes());
        bytes[HEADER..][..piece.len()].copy_from_slice(piece);
        each(&bytes[..HEADER + piece.len()]);
    }
}

/// A message that arrives in pieces, in any order.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    bytes: Vec<u8>,
    length: usize,
    parts: usize,
    /// A bit for each part that has arrived.
    there: u32,
}

impl Arriving {
    /// Takes a piece; returns the message once it is complete. A piece of another number of parts begins
    /// another message.
    pub(super) fn add(&mut self, frame: &Frame<'_>) -> Option<Vec<u8>> {
        if self.parts != frame.parts {
            *self = Self {
                bytes: vec![0; frame.parts * PIECE],
                parts: frame.parts,
                ..Self::default()
            };
        }
        self.bytes[frame.part * PIECE..][..frame.piece.len()].copy_from_slice(frame.piece);
        self.there |= 1 << frame.part;
        if frame.part + 1 == frame.parts {
            self.length = frame.part * PIECE + frame.piece.len();
        }
        if self.there.count_ones() as usize != self.parts {
            return None;
        }
        let Self {
            mut bytes, length, ..
        } = std::mem::take(self);
        bytes.truncate(length);
        Some(bytes)
    }
}

/// What the message of a call begins with: where the caller awaits the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Back {
    door: U64,
    doors: [u8; doors::LENGTH],
    is_long: u8,
    spare: u8,
}

const _: () = assert!(size_of::<Back>() == 28);

impl Back {
    pub(super) fn new(door: u64, doors: &Doors) -> Self {
        let (bytes, is_long) = doors.written();
        Self {
            door: U64::new(door),
            doors: bytes,
            is_long: is_long.into(),
            spare: 0,
        }
    }

    /// The number of the caller's frames.
    pub(super) fn door(&self) -> u64 {
        self.door.get()
    }

    /// Returns the message of a call, with the bytes of its session.
    pub(super) fn before(&self, session: &[u8]) -> Vec<u8> {
        [self.as_bytes(), session].concat()
    }
}

impl fmt::Display for Back {
    /// Writes all bytes, in hexadecimal.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes()
            .iter()
            .try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

/// Returns where the answer to a call is awaited, and the bytes of the session.
pub(super) fn read_call(message: &[u8]) -> Option<(Back, Doors, &[u8])> {
    let (back, session) = Back::read_from_prefix(message).ok()?;
    let doors = Doors::read(back.doors, back.is_long == 1)?;
    let is_made_here = back.is_long <= 1 && back.spare == 0 && !doors.is_empty();
    is_made_here.then_some((back, doors, session))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn made(message: &[u8]) -> Vec<Vec<u8>> {
        let mut made = Vec::new();
        frames(0x1122_3344_5566_7788, Stage::Card, message, |bytes| {
            made.push(bytes.to_vec())
        });
        made
    }

    #[test]
    fn frames_have_these_bytes() {
        let golden = [
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 3, 0, 1, 0, b'a', b'b',
        ];
        assert_eq!(made(b"ab"), [golden]);
        let frame = Frame::parse(&golden).unwrap();
        assert_eq!((frame.call, frame.stage), (0x1122_3344_5566_7788, Stage::Card));
        assert_eq!(frame.whole(), Some(&b"ab"[..]));
        let doors = Doors::new(["10.0.1.2:443".parse().unwrap()]);
        let golden = [
            &[8, 7, 6, 5, 4, 3, 2, 1, 10, 0, 1, 2, 1, 0xbb][..],
            &[0; 14],
            b"session",
        ]
        .concat();
        let back = Back::new(0x0102_0304_0506_0708, &doors);
        assert_eq!(back.before(b"session"), golden);
        assert_eq!(read_call(&golden), Some((back, doors, &b"session"[..])));
        assert_eq!(back.to_string(), format!("08070605040302010a00010201bb{:028}", 0));
    }

    #[test]
    fn what_is_not_made_here_is_refused() {
        let good = made(&[7; PIECE + 1]);
        assert_eq!(
            good.iter().map(Vec::len).collect::<Vec<_>>(),
            [LONGEST, HEADER + 1]
        );
        let changed = |at: usize, byte: u8| {
            let mut bytes = good[0].clone();
            bytes[at] = byte;
            bytes
        };
        let bad = [
            changed(8, 0),
            changed(8, 5),
            changed(9, 2),
            changed(10, 0),
            changed(10, PARTS as u8 + 1),
            changed(11, 1),
            good[0][..LONGEST - 1].to_vec(),
            [&good[0][..], &[0]].concat(),
            good[1][..HEADER].to_vec(),
            good[0][..HEADER - 1].to_vec(),
            Vec::new(),
        ];
        for bytes in &bad {
            assert_eq!(Frame::parse(bytes), None, "{:?}", &bytes[..bytes.len().min(12)]);
        }
        assert!(good.iter().all(|bytes| Frame::parse(bytes).is_some()));
    }

    proptest! {
        #[test]
        fn messages_arrive_whatever_the_order_of_their_pieces(
            message in proptest::collection::vec(any::<u8>(), 1..PARTS * PIECE),
            order in any::<u64>(),
        ) {
            let mut frames = made(&message);
            let count = frames.len();
            frames.rotate_left(order as usize % count);
            if order & 1 == 0 {
                frames.reverse();
            }
            let mut arriving = Arriving::default();
            let mut found = None;
            for bytes in &frames {
                prop_assert!(found.is_none());
                let frame = Frame::parse(bytes).unwrap();
                // The second copy changes nothing.
                found = if count > 1 { arriving.add(&frame) } else { None }.or(arriving.add(&frame));
            }
            prop_assert_eq!(found, Some(message));
        }

        #[test]
        fn nonsense_is_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..LONGEST + 9)) {
            if let Some(frame) = Frame::parse(&bytes) {
                let _ = Arriving::default().add(&frame);
            }
            let _ = read_call(&bytes);
        }
    }
}
