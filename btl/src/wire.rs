//! Frames as they travel: every header, and the only parse. Little endian throughout.
//!
//! ```text
//!   basic header, 24 bytes             then, by kind
//!    0  u64 connection id              ACK    bitmap of what came after the gap (0 to 512 bytes)
//!    8  u32 sequence number            FRAG   a whole message
//!   12  u32 ack: last without a gap    CHUNK  first u32 · total u32 · size u16 · 0 u16, bytes
//!   16  u16 length of what follows     PUT    op u64 · key u64 · address u64 · total u64 · offset u64, bytes
//!   18  u8  kind                       GET    op u64 · key u64 · address u64 · length u64
//!   19  u8  version (high half), flags DATA   op u64 · offset u64, bytes
//!   20  u32 CRC-32C, or zero           ATOMIC op u64 · key u64 · address u64 · a u64 · b u64 · what u8 · 0
//!                                      END    op u64 · value u64 · status u8 · 0
//!   (at the end, 8 bytes of MAC)       BYE    nothing
//!                                      PING, PONG  token u32 · size u32, zeros up to the size
//!                                      CALL   life u32 · yours u32 · ask u8 · 0
//!                                      HELLO  bytes of the layer above
//! ```
//!
//! * The length is stated because a network pads short frames (as in the usNIC BTL; reference: vic, section
//!   6.3).
//! * ACK, PING, PONG, CALL and HELLO have no sequence number: they are not acknowledged. All others are
//!   segments. In the number's place an ACK has the count of segments that came a second time, which shows
//!   the sender which resends were spurious.
//! * A chunk has the number of its message's first segment and the size of all but the last: its place
//!   follows from its own number, so there is no offset to forge, and no byte can come twice.
//! * The bitmap's bit `i` is set when `ack + 1 + i` has arrived. Bit 0 is never set.
//! * CRC and MAC are over the whole frame, with the CRC's own field zero. A frame with a MAC has no CRC.
//! * A HELLO is of no connection: in the place of the id is the number of a door of its receiver
//!   (`hellos.rs`). It has a CRC and no MAC, whatever the settings, and no other flag.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use doorbell_fabric::memory::SharedBytes;

use crate::counters::Drop;
use crate::seq::Seq;

/// The version of this format, in the high half of the flags.
pub const VERSION: u8 = 1;

/// The header of every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Basic {
    /// Which pair of ranks, direction, and lives: derived from the job's key, or the pair's. Of a HELLO the
    /// number of the door.
    pub connection: U64,
    /// Number of the segment; of an ACK the count of duplicates; otherwise zero.
    pub sequence: U32,
    /// Up to here everything arrived, where [`flag::ACK`] is set.
    pub ack: U32,
    /// Bytes after this header, without the MAC.
    pub length: U16,
    /// The number of a [`Kind`].
    pub kind: u8,
    /// Version and flags.
    pub flags: u8,
    /// CRC-32C, where [`flag::CRC`] is set.
    pub check: U32,
}
const _: () = assert!(size_of::<Basic>() == BASIC);

/// Bytes of the basic header.
pub(crate) const BASIC: usize = 24;

/// Bits of [`Basic::flags`].
pub mod flag {
    /// The field `ack` holds.
    pub const ACK: u8 = 1;
    /// Answer at once, with a frame of kind ACK: the sender can send no more before, or has sent this before.
    pub const URGENT: u8 = 2;
    /// The field `check` holds.
    pub const CRC: u8 = 4;
    /// Eight bytes of MAC follow.
    pub const MAC: u8 = 8;
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing but an acknowledgement.
    Ack = 1,
    /// A whole message.
    Frag = 2,
    /// A part of a message.
    Chunk = 3,
    /// Bytes for exposed memory.
    Put = 4,
    /// A request for bytes of exposed memory.
    Get = 5,
    /// The answer, or a part of it.
    Data = 6,
    /// An atomic on exposed memory.
    Atomic = 7,
    /// The end of a put or atomic, or of any operation that is refused.
    End = 8,
    /// The end of the connection.
    Bye = 9,
    /// A probe of the connectivity check.
    Ping = 10,
    /// The answer to a probe.
    Pong = 11,
    /// The request to reconnect, or the answer to it; always on the connection id of the first lives.
    Call = 12,
    /// A frame of first contact, whose connection id is the number of a door of its receiver.
    Hello = 13,
}

impl Kind {
    /// The kind by number.
    #[inline]
    pub const fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Ack,
            2 => Self::Frag,
            3 => Self::Chunk,
            4 => Self::Put,
            5 => Self::Get,
            6 => Self::Data,
            7 => Self::Atomic,
            8 => Self::End,
            9 => Self::Bye,
            10 => Self::Ping,
            11 => Self::Pong,
            12 => Self::Call,
            13 => Self::Hello,
            _ => return None,
        })
    }

    /// Whether it has a sequence number, and is sent again until it is acknowledged.
    #[inline]
    pub const fn is_segment(self) -> bool {
        !matches!(
            self,
            Self::Ack | Self::Ping | Self::Pong | Self::Call | Self::Hello
        )
    }

    /// Bytes of its own header, after the basic one.
    #[inline]
    pub const fn header(self) -> usize {
        match self {
            Self::Ack | Self::Frag | Self::Bye | Self::Hello => 0,
            Self::Chunk => size_of::<Chunk>(),
            Self::Put => size_of::<Put>(),
            Self::Get => size_of::<Get>(),
            Self::Data => size_of::<Data>(),
            Self::Atomic => size_of::<Atomic>(),
            Self::End => size_of::<End>(),
            Self::Ping | Self::Pong => size_of::<Ping>(),
            Self::Call => size_of::<Call>(),
        }
    }
}

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Chunk {
    /// Number of the message's first segment, which names the message.
    pub first: U32,
    /// Length of the message.
    pub total: U32,
    /// Bytes in each chunk but the last.
    pub size: U16,
    /// Reserved, always zero.
    pub zero: U16,
}
const _: () = assert!(size_of::<Chunk>() == 12);

/// Bytes for exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Put {
    /// The initiator's number of the operation.
    pub op: U64,
    /// Key of the memory.
    pub key: U64,
    /// Where the whole operation begins, as the target counts.
    pub address: U64,
    /// Bytes of the whole operation.
    pub total: U64,
    /// Where in it these bytes are.
    pub offset: U64,
}
const _: () = assert!(size_of::<Put>() == 40);

/// A request for bytes of exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Get {
    /// The initiator's number of the operation.
    pub op: U64,
    /// Key of the memory.
    pub key: U64,
    /// Where it begins, as the target counts.
    pub address: U64,
    /// How many bytes.
    pub length: U64,
}
const _: () = assert!(size_of::<Get>() == 32);

/// A part of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Data {
    /// The initiator's number of the operation.
    pub op: U64,
    /// Where in it these bytes are.
    pub offset: U64,
}
const _: () = assert!(size_of::<Data>() == 16);

/// An atomic on eight bytes of exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Atomic {
    /// The initiator's number of the operation.
    pub op: U64,
    /// Key of the memory.
    pub key: U64,
    /// Where the eight bytes are, as the target counts.
    pub address: U64,
    /// The operand, or what must be there.
    pub first: U64,
    /// What is stored then; otherwise zero.
    pub second: U64,
    /// 1 add, 2 and, 3 or, 4 xor, 5 swap, 6 compare and swap.
    pub what: u8,
    /// Reserved, always zero.
    pub zero: [u8; 7],
}
const _: () = assert!(size_of::<Atomic>() == 48);

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct End {
    /// The initiator's number of the operation.
    pub op: U64,
    /// The old value of an atomic, otherwise zero.
    pub value: U64,
    /// 0 done, 1 denied, 2 withdrawn.
    pub status: u8,
    /// Reserved, always zero.
    pub zero: [u8; 7],
}
const _: () = assert!(size_of::<End>() == 24);

/// A probe, or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Ping {
    /// Chosen by the sender of the probe; comes back in the answer.
    pub token: U32,
    /// Bytes of the whole frame.
    pub size: U32,
}
const _: () = assert!(size_of::<Ping>() == 8);

/// The request to reconnect after the peer was down, or the answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Call {
    /// The sender's present life of the link: from 1, as there are no calls in the first.
    pub ours: U32,
    /// The receiver's, the latest that the sender has received.
    pub yours: U32,
    /// 1 when an answer is wanted, otherwise 0.
    pub ask: u8,
    /// Reserved, always zero.
    pub zero: [u8; 3],
}
const _: () = assert!(size_of::<Call>() == 12);

/// Bytes of the frame MAC.
pub const MAC: usize = 8;

/// A frame's basic header, checked: its kind is known, and the frame is as long as it claims.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parsed {
    pub(crate) connection: u64,
    pub(crate) kind: Kind,
    pub(crate) sequence: Seq,
    pub(crate) ack: Option<Seq>,
    pub(crate) flags: u8,
    pub(crate) check: u32,
    /// Bytes after the basic header, the kind's own header included.
    pub(crate) length: usize,
}

/// Reads the basic header, once.
///
/// # Errors
/// The reason to drop the frame.
#[inline]
pub(crate) fn parse(frame: &SharedBytes<'_>) -> Result<Parsed, Drop> {
    let bytes = frame.read::<24>(0).ok_or(Drop::Short)?;
    let basic: Basic = zerocopy::transmute!(bytes);
    if basic.flags >> 4 != VERSION {
        return Err(Drop::Version);
    }
    let kind = Kind::of(basic.kind).ok_or(Drop::Kind)?;
    let length = usize::from(basic.length.get());
    let mac = if basic.flags & flag::MAC != 0 { MAC } else { 0 };
    if frame.len() < 24 + length + mac || length < kind.header() {
        return Err(Drop::Short);
    }
    Ok(Parsed {
        connection: basic.connection.get(),
        kind,
        sequence: Seq(basic.sequence.get()),
        ack: (basic.flags & flag::ACK != 0).then_some(Seq(basic.ack.get())),
        flags: basic.flags,
        check: basic.check.get(),
        length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_of_every_header() {
        let basic = Basic {
            connection: 0x0807_0605_0403_0201.into(),
            sequence: 0x0c0b_0a09.into(),
            ack: 0x100f_0e0d.into(),
            length: 0x1211.into(),
            kind: Kind::Chunk as u8,
            flags: VERSION << 4 | flag::ACK | flag::CRC,
            check: 0x1817_1615.into(),
        };
        let golden = [
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0x11, 0x12, 3, 0x15, 0x15, 0x16, 0x17,
            0x18,
        ];
        assert_eq!(basic.as_bytes(), golden);
        let chunk = Chunk {
            first: 0x0403_0201.into(),
            total: 0x0807_0605.into(),
            size: 0x0a09.into(),
            zero: 0.into(),
        };
        assert_eq!(chunk.as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0]);
        let word = |n: u64| -> U64 { (0x0807_0605_0403_0201 + n * 0x0808_0808_0808_0808).into() };
        let put = Put {
            op: word(0),
            key: word(1),
            address: word(2),
            total: word(3),
            offset: word(4),
        };
        let counting: Vec<u8> = (1..=40).collect();
        assert_eq!(put.as_bytes(), counting);
        let get = Get {
            op: word(0),
            key: word(1),
            address: word(2),
            length: word(3),
        };
        assert_eq!(get.as_bytes(), &counting[..32]);
        let data = Data {
            op: word(0),
            offset: word(1),
        };
        assert_eq!(data.as_bytes(), &counting[..16]);
        let atomic = Atomic {
            op: word(0),
            key: word(1),
            address: word(2),
            first: word(3),
            second: word(4),
            what: 6,
            zero: [0; 7],
        };
        assert_eq!(
            atomic.as_bytes(),
            [&counting[..], &[6, 0, 0, 0, 0, 0, 0, 0]].concat()
        );
        let end = End {
            op: word(0),
            value: word(1),
            status: 2,
            zero: [0; 7],
        };
        assert_eq!(
            end.as_bytes(),
            [&counting[..16], &[2, 0, 0, 0, 0, 0, 0, 0]].concat()
        );
        let ping = Ping {
            token: 0x0403_0201.into(),
            size: 0x0807_0605.into(),
        };
        assert_eq!(ping.as_bytes(), &counting[..8]);
        let call = Call {
            ours: 0x0403_0201.into(),
            yours: 0x0807_0605.into(),
            ask: 1,
            zero: [0; 3],
        };
        assert_eq!(call.as_bytes(), [&counting[..8], &[1, 0, 0, 0]].concat());
    }

    fn frame(change: impl Fn(&mut Basic), length: usize) -> Result<Parsed, Drop> {
        let mut basic = Basic {
            connection: 1.into(),
            sequence: 2.into(),
            ack: 3.into(),
            length: 12.into(),
            kind: Kind::Chunk as u8,
            flags: VERSION << 4,
            check: 0.into(),
        };
        change(&mut basic);
        let mut bytes = basic.as_bytes().to_vec();
        bytes.resize(length, 0);
        parse(&SharedBytes::of(&bytes))
    }

    #[test]
    fn a_frame_has_what_its_header_states_or_is_dropped() {
        let parsed = frame(|_| (), 36).unwrap();
        assert_eq!((parsed.kind, parsed.length, parsed.ack), (Kind::Chunk, 12, None));
        assert!(frame(|_| (), 60).is_ok(), "padded by the network");
        assert_eq!(frame(|_| (), 35).unwrap_err(), Drop::Short);
        assert_eq!(frame(|_| (), 0).unwrap_err(), Drop::Short);
        assert_eq!(
            frame(|basic| basic.length = 11.into(), 60).unwrap_err(),
            Drop::Short
        );
        assert_eq!(
            frame(|basic| basic.flags |= flag::MAC, 36).unwrap_err(),
            Drop::Short
        );
        assert!(frame(|basic| basic.flags |= flag::MAC, 44).is_ok());
        assert_eq!(
            frame(|basic| basic.flags = 2 << 4, 36).unwrap_err(),
            Drop::Version
        );
        for kind in [0, 14, 255] {
            assert_eq!(frame(|basic| basic.kind = kind, 36).unwrap_err(), Drop::Kind);
        }
        for kind in 1..=13 {
            assert_eq!(Kind::of(kind).map(|kind| kind as u8), Some(kind));
        }
    }
}
