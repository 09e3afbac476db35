//! The three layouts, and what their numbers mean.

use zerocopy::byteorder::{native_endian, network_endian};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::address::{Address, INFO};
use crate::path::PathRecord;

/// The only version that there is.
pub(super) const VERSION: u8 = 1;
/// Where the opcode stands in its byte.
const OP: u8 = 0x0f;
/// In the opcode's byte: this is an answer.
pub(super) const ACK: u8 = 0x80;
/// Type of a record that is a path.
pub(super) const PATH_KIND: u16 = 0x10;

/// Flags of a record in a question.
pub(super) mod asks {
    /// The record is the source.
    pub(in super::super) const SOURCE: u32 = 1;
    /// The record is the destination.
    pub(in super::super) const DESTINATION: u32 = 2;
    /// Only what is known already.
    pub(in super::super) const NO_DELAY: u32 = 1 << 30;
    /// The path is to be verified.
    pub(in super::super) const VERIFY: u32 = 1 << 31;
}

/// Flags of a path in an answer: for management too, the first choice, the same way out and back.
pub(super) const PATH_FLAGS: u32 = 0x01 | 0x02 | 0x28;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// A path.
    Resolve = 1,
    /// Counters.
    Counters = 2,
    /// An endpoint.
    Endpoint = 3,
}

impl Op {
    fn of(byte: u8) -> Option<Self> {
        match byte & OP {
            1 => Some(Self::Resolve),
            2 => Some(Self::Counters),
            3 => Some(Self::Endpoint),
            _ => None,
        }
    }
}

/// What ends a conversation: nobody can tell where the next message would begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nonsense {
    /// Another version.
    #[error("it speaks version {0}, and only version {VERSION} is spoken here")]
    Version(u8),
    /// Nothing that can be asked.
    #[error("opcode {0:#04x} is unknown")]
    Opcode(u8),
    /// A length that no message has.
    #[error("it announces a message of {said} bytes, where one has {HEAD} to {most}")]
    Length {
        /// The length that the header tells.
        said: usize,
        /// The longest that there is.
        most: usize,
    },
    /// Not as many bytes as the header tells.
    #[error("{got} bytes came, and their header tells of {said}")]
    Cut {
        /// The length that the header tells.
        said: usize,
        /// What there is.
        got: usize,
    },
    /// A question where an answer is due.
    #[error("it asks where it is to answer")]
    NoAnswer,
}

/// Bytes of a header.
pub(super) const HEAD: usize = 16;

/// A header. The length's byte order depends on the opcode.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawHead {
    pub(super) version: u8,
    pub(super) opcode: u8,
    pub(super) status: u8,
    pub(super) data: [u8; 3],
    length: [u8; 2],
    pub(super) tid: [u8; 8],
}

const _: () = assert!(size_of::<RawHead>() == HEAD);

impl RawHead {
    /// A header for `body` bytes behind it; `ack` is 0 or [`ACK`].
    pub(super) fn new(op: Op, ack: u8, tid: u64, body: usize) -> Self {
        let length = u16::try_from(HEAD + body).unwrap_or(u16::MAX);
        Self {
            version: VERSION,
            opcode: op as u8 | ack,
            status: 0,
            data: [0; 3],
            length: match op {
                Op::Resolve => length.to_ne_bytes(),
                Op::Counters | Op::Endpoint => length.to_be_bytes(),
            },
            tid: tid.to_ne_bytes(),
        }
    }

    pub(super) fn tid(&self) -> u64 {
        u64::from_ne_bytes(self.tid)
    }

    pub(super) fn is_answer(&self) -> bool {
        self.opcode & ACK != 0
    }

    /// What it is about, and how long the whole message is.
    pub(super) fn judge(&self, most: usize) -> Result<(Op, usize), Nonsense> {
        if self.version != VERSION {
            return Err(Nonsense::Version(self.version));
        }
        let op = Op::of(self.opcode).ok_or(Nonsense::Opcode(self.opcode))?;
        let said = usize::from(match op {
            Op::Resolve => u16::from_ne_bytes(self.length),
            Op::Counters | Op::Endpoint => u16::from_be_bytes(self.length),
        });
        if (HEAD..=most).contains(&said) {
            Ok((op, said))
        } else {
            Err(Nonsense::Length { said, most })
        }
    }

    /// The header and the rest of a whole message.
    pub(super) fn split(bytes: &[u8], most: usize) -> Result<(Self, Op, &[u8]), Nonsense> {
        let (head, rest) = Self::read_from_prefix(bytes).map_err(|_| Nonsense::Cut {
            said: HEAD,
            got: bytes.len(),
        })?;
        let (op, said) = head.judge(most)?;
        if said == bytes.len() {
            Ok((head, op, rest))
        } else {
            Err(Nonsense::Cut {
                said,
                got: bytes.len(),
            })
        }
    }
}

/// Bytes of a record.
pub(super) const RECORD: usize = 72;

/// An address or a path.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Record {
    pub(super) flags: native_endian::U32,
    pub(super) kind: native_endian::U16,
    reserved: [u8; 2],
    pub(super) info: [u8; INFO],
}

const _: () = assert!(size_of::<Record>() == RECORD);

impl Record {
    pub(super) fn address(flags: u32, address: &Address) -> Self {
        Self {
            flags: flags.into(),
            kind: address.kind().code().into(),
            reserved: [0; 2],
            info: address.info(),
        }
    }

    pub(super) fn path(flags: u32, path: &PathRecord) -> Self {
        let mut info = [0; INFO];
        info.copy_from_slice(path.as_bytes());
        Self {
            flags: flags.into(),
            kind: PATH_KIND.into(),
            reserved: [0; 2],
            info,
        }
    }

    /// The path, if it is one.
    pub(super) fn as_path(&self) -> Option<PathRecord> {
        let is_path = self.kind.get() == PATH_KIND;
        is_path.then(|| PathRecord::read_from_bytes(&self.info).ok())?
    }

    /// The whole records at the beginning of these bytes.
    pub(super) fn all(bytes: &[u8]) -> impl Iterator<Item = Self> {
        let (records, _) = bytes.as_chunks::<RECORD>();
        records.iter().map(|record| zerocopy::transmute!(*record))
    }
}

/// Bytes of an endpoint, without its addresses.
pub(super) const ENDPOINT: usize = 80;

/// An endpoint; its addresses follow, as text of [`INFO`] bytes each.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct EndpointRecord {
    pub(super) guid: network_endian::U64,
    pub(super) port: u8,
    pub(super) ports: u8,
    reserved: [u8; 2],
    pub(super) pkey: network_endian::U16,
    pub(super) addresses: network_endian::U16,
    pub(super) provider: [u8; INFO],
}

const _: () = assert!(size_of::<EndpointRecord>() == ENDPOINT);

impl EndpointRecord {
    pub(super) fn zeroed() -> Self {
        Self::new_zeroed()
    }
}

/// Text as it lies on the wire: cut where it does not fit, and always with a zero behind it.
pub(super) fn text(text: &str) -> [u8; INFO] {
    let mut info = [0; INFO];
    let mut end = text.len().min(INFO - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    info[..end].copy_from_slice(&text.as_bytes()[..end]);
    info
}
