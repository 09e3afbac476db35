//! The layouts of header, record and endpoint, and their constants.

use zerocopy::byteorder::{native_endian, network_endian};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::address::{Address, INFO};
use crate::path::PathRecord;

/// The only protocol version.
pub(super) const VERSION: u8 = 1;
/// The bits of the opcode in its byte.
const OP: u8 = 0x0f;
/// Flag in the opcode's byte: the message is an answer.
pub(super) const ACK: u8 = 0x80;
/// Type of a record that is a path.
pub(super) const PATH_KIND: u16 = 0x10;

/// Flags of a record in a question.
pub(super) mod asks {
    /// The record is the source.
    pub(in super::super) const SOURCE: u32 = 1;
    /// The record is the destination.
    pub(in super::super) const DESTINATION: u32 = 2;
    /// Answer from the cache only.
    pub(in super::super) const NO_DELAY: u32 = 1 << 30;
    /// Verify the path.
    pub(in super::super) const VERIFY: u32 = 1 << 31;
}

/// Flags of a path in an answer: usable for management too, preferred, bidirectional.
pub(super) const PATH_FLAGS: u32 = 0x01 | 0x02 | 0x28;

/// The operation that a message requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Resolve a path.
    Resolve = 1,
    /// Read the counters.
    Counters = 2,
    /// Read an endpoint.
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

/// Why a message ends the connection: the start of the next one cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// The version is not supported.
    #[error("protocol version {0} is not supported, only {VERSION}")]
    Version(u8),
    /// The opcode is unknown.
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// The length field is out of range.
    #[error("the header announces {said} bytes, but a message has {HEAD} to {most}")]
    Length {
        /// The length in the header.
        said: usize,
        /// The maximum length.
        most: usize,
    },
    /// The length field differs from the number of bytes.
    #[error("received {got} bytes, but the header announces {said}")]
    Cut {
        /// The length in the header.
        said: usize,
        /// The number of bytes received.
        got: usize,
    },
    /// A question arrived where an answer was expected.
    #[error("the message is a query, but an answer was expected")]
    NoAnswer,
}

/// Bytes of a header.
pub(super) const HEAD: usize = 16;

/// A header. The byte order of its length depends on the opcode.
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
    /// Builds the header for a body of `body` bytes; `ack` is 0 or [`ACK`].
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

    /// Checks the header; returns the operation and the length of the whole message.
    pub(super) fn judge(&self, most: usize) -> Result<(Op, usize), BadMessage> {
        if self.version != VERSION {
            return Err(BadMessage::Version(self.version));
        }
        let op = Op::of(self.opcode).ok_or(BadMessage::Opcode(self.opcode))?;
        let said = usize::from(match op {
            Op::Resolve => u16::from_ne_bytes(self.length),
            Op::Counters | Op::Endpoint => u16::from_be_bytes(self.length),
        });
        if (HEAD..=most).contains(&said) {
            Ok((op, said))
        } else {
            Err(BadMessage::Length { said, most })
        }
    }

    /// Splits a whole message into its header and the rest.
    pub(super) fn split(bytes: &[u8], most: usize) -> Result<(Self, Op, &[u8]), BadMessage> {
        let (head, rest) = Self::read_from_prefix(bytes).map_err(|_| BadMessage::Cut {
            said: HEAD,
            got: bytes.len(),
        })?;
        let (op, said) = head.judge(most)?;
        if said == bytes.len() {
            Ok((head, op, rest))
        } else {
            Err(BadMessage::Cut {
                said,
                got: bytes.len(),
            })
        }
    }
}

/// Bytes of a record.
pub(super) const RECORD: usize = 72;

/// A record: an address or a path.
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

    /// Returns the path, if the record is one.
    pub(super) fn as_path(&self) -> Option<PathRecord> {
        let is_path = self.kind.get() == PATH_KIND;
        is_path.then(|| PathRecord::read_from_bytes(&self.info).ok())?
    }

    /// Iterates over the whole records at the start of these bytes.
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

/// Encodes text: truncated to fit, and always terminated by a zero byte.
pub(super) fn text(text: &str) -> [u8; INFO] {
    let mut info = [0; INFO];
    let mut end = text.len().min(INFO - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    info[..end].copy_from_slice(&text.as_bytes()[..end]);
    info
}
