//! Datagrams to and from the administration of a subnet: one of 256 bytes with a record of up to 200.
//!
//! ```text
//!   0      1      2        3       4       6      8            16         20        24
//!   ┌──────┬──────┬────────┬───────┬───────┬──────┬────────────┬──────────┬─────────┬──────
//!   │ base │ class│ class  │ method│ status│ 0    │ transaction│ attribute│ modifier│ …
//!   │  1   │  3   │ vers. 2│       │       │      │            │ (2), 0   │         │
//!   └──────┴──────┴────────┴───────┴───────┴──────┴────────────┴──────────┴─────────┴──────
//!   24          36       44       46  48           56                                    256
//!   ┬───────────┬────────┬────────┬───┬────────────┬───────────────────────────────────────┐
//!   │ segments  │ SM key │ offset │ 0 │ components │ record                                │
//!   │ (RMPP), 0 │   0    │        │   │ (64 bits)  │                                       │
//!   ┴───────────┴────────┴────────┴───┴────────────┴───────────────────────────────────────┘
//! ```
//!
//! reference: verbs, section 10.

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::records::{MemberRecord, PathRecord};
use super::{Components, Refusal};
use crate::sys::MAD;

/// The management class of the administration, and its version.
pub(super) const CLASS: (u8, u8) = (3, 2);
const BASE_VERSION: u8 = 1;
/// Bytes of the room for a record.
const RECORD: usize = 200;

/// The layout of a datagram.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    base_version: u8,
    class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    specific: U16,
    transaction: U64,
    attribute: U16,
    reserved: U16,
    modifier: U32,
    segments: [u8; 12],
    key: U64,
    offset: U16,
    reserved_too: U16,
    components: U64,
    record: [u8; RECORD],
}

const _: () = assert!(size_of::<Layout>() == MAD);

/// A request to the administration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A path that matches the components of a record.
    Path(PathRecord, Components),
    /// Join a multicast group, or create it.
    Join(MemberRecord, Components),
    /// Leave a multicast group.
    Leave(MemberRecord, Components),
}

const GET: u8 = 0x01;
const SET: u8 = 0x02;
const DELETE: u8 = 0x15;
/// The bit of a method that answers have and requests lack.
const ANSWER: u8 = 0x80;
const PATH: u16 = 0x35;
const MEMBER: u16 = 0x38;

impl Request {
    const fn parts(&self) -> (u8, u16, Components) {
        match self {
            Self::Path(_, components) => (GET, PATH, *components),
            Self::Join(_, components) => (SET, MEMBER, *components),
            Self::Leave(_, components) => (DELETE, MEMBER, *components),
        }
    }

    /// Returns the datagram of the request.
    #[must_use]
    pub fn bytes(&self, transaction: u64) -> [u8; MAD] {
        let (method, attribute, components) = self.parts();
        let mut layout = Layout::new_zeroed();
        layout.base_version = BASE_VERSION;
        (layout.class, layout.class_version) = CLASS;
        layout.method = method;
        layout.transaction = transaction.into();
        layout.attribute = attribute.into();
        layout.components = components.bits().into();
        let record = match self {
            Self::Path(record, _) => record.as_bytes(),
            Self::Join(record, _) | Self::Leave(record, _) => record.as_bytes(),
        };
        layout.record[..record.len()].copy_from_slice(record);
        zerocopy::transmute!(layout)
    }
}

/// What the administration answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The record of a path.
    Path(PathRecord),
    /// The requested membership, with the properties of its group.
    Joined(MemberRecord),
    /// The membership that has ended.
    Left(MemberRecord),
    /// The administration refused.
    Refused(Refusal),
}

/// Why a datagram is no answer to a request of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It has another length than a datagram of management.
    #[error("a datagram of management has {MAD} bytes")]
    Length,
    /// It is of another version or class.
    #[error("the first bytes are not those of a subnet's administration")]
    Class,
    /// It is not an answer, or to a request that is never made.
    #[error("it answers no request that is made here")]
    Method,
}

/// Reads an answer, and returns it with the lower half of its transaction id: the kernel sets the upper half.
///
/// # Errors
/// [`Malformed`], with the reason.
pub fn read(bytes: &[u8]) -> Result<(u32, Answer), Malformed> {
    let layout = Layout::ref_from_bytes(bytes).map_err(|_| Malformed::Length)?;
    if (layout.base_version, (layout.class, layout.class_version)) != (BASE_VERSION, CLASS) {
        return Err(Malformed::Class);
    }
    let path = || PathRecord::read_from_prefix(&layout.record).map(|(record, _)| record);
    let member = || MemberRecord::read_from_prefix(&layout.record).map(|(record, _)| record);
    // An answer to GET and to SET has one method.
    let answer = match (layout.method, layout.attribute.get()) {
        (method, PATH) if method == GET | ANSWER => path().map(Answer::Path).ok(),
        (method, MEMBER) if method == GET | ANSWER => member().map(Answer::Joined).ok(),
        (method, MEMBER) if method == DELETE | ANSWER => member().map(Answer::Left).ok(),
        _ => None,
    };
    let answer = answer.ok_or(Malformed::Method)?;
    let answer = match Refusal::of(layout.status.get()) {
        Some(refusal) => Answer::Refused(refusal),
        None => answer,
    };
    let [.., a, b, c, d] = layout.transaction.get().to_be_bytes();
    Ok((u32::from_be_bytes([a, b, c, d]), answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member() -> MemberRecord {
        let mut record = MemberRecord::new_zeroed();
        record.group = [0xff; 16];
        record.port = [0xfe; 16];
        record.qkey = 0x8001_0000.into();
        record
    }

    #[test]
    fn golden_bytes_of_a_request() {
        let components = Components::GROUP
            .and(Components::PORT)
            .and(Components::JOIN_STATE);
        let bytes = Request::Join(member(), components).bytes(0x0102_0304_0506_0708);
        assert_eq!(
            bytes[..24],
            [
                1, 3, 2, 2, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x38, 0, 0, 0, 0, 0, 0
            ]
        );
        assert_eq!(bytes[24..48], [0; 24]);
        assert_eq!(bytes[48..56], [0, 0, 0, 0, 0, 1, 0, 3]);
        assert_eq!(bytes[56..72], [0xff; 16]);
        assert_eq!(bytes[72..88], [0xfe; 16]);
        assert_eq!(bytes[88..92], [0x80, 1, 0, 0]);
        assert_eq!(bytes[112..], [0; 144]);
        let leave = Request::Leave(member(), components).bytes(1);
        assert_eq!((leave[3], leave[17]), (0x15, 0x38));
        let path = Request::Path(PathRecord::new_zeroed(), Components::default()).bytes(1);
        assert_eq!((path[3], path[17]), (1, 0x35));
    }

    #[test]
    fn answers_are_read_and_others_are_named() {
        let sent = Request::Join(member(), Components::GROUP).bytes(0x0102_0304_0506_0708);
        assert_eq!(read(&sent), Err(Malformed::Method), "a request");
        let mut answer = sent;
        answer[3] = 0x81;
        assert_eq!(read(&answer), Ok((0x0506_0708, Answer::Joined(member()))));
        answer[3] = 0x95;
        assert_eq!(read(&answer), Ok((0x0506_0708, Answer::Left(member()))));
        answer[4] = 6;
        assert_eq!(
            read(&answer),
            Ok((0x0506_0708, Answer::Refused(Refusal::Insufficient)))
        );
        answer[1] = 4;
        assert_eq!(read(&answer), Err(Malformed::Class));
        assert_eq!(read(&answer[..255]), Err(Malformed::Length));
    }
}
