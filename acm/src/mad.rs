//! Messages between services: a MAD of 256 bytes, either a query for the owner of an address or its answer.
//!
//! ```text
//!    0      1      2        3       4       6        8             16                                   256
//!    ┌──────┬──────┬────────┬───────┬───────┬────────┬─────────────┬────────────────────────────────────┐
//!    │ base │ class│ class  │ method│ status│ control│ transaction │ types, lengths, count of groups (8)│
//!    │  1   │ 0x2C │ vers. 1│ 1/0x81│       │    1   │             │ destination (64), source (64),     │
//!    │      │      │        │       │       │        │             │ groups                             │
//!    └──────┴──────┴────────┴───────┴───────┴────────┴─────────────┴────────────────────────────────────┘
//! ```
//!
//! A query goes to a multicast group and lists the groups that its sender is in, the best last. The answer is
//! unicast, and names the best group that both are in: a path between the two has at least that group's rate
//! and MTU.
//!
//! The original takes an answer only with the control of a query, and a status only from the upper byte of
//! its field. An answer of the original has no addresses, one group, and status 0.
//!
//! Nothing in a message is trusted: [`Resolve::read`] returns its content, or why it is malformed.
//!
//! reference: acm, section 10.

use zerocopy::byteorder::network_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::address::{Address, Gid, INFO, Kind};
use crate::path::{Mtu, Rate};

/// Bytes of a message.
pub const MAD: usize = 256;
/// Maximum number of groups in a message.
pub const GROUPS: usize = 6;
/// The only value of a MAD's first byte.
const BASE_VERSION: u8 = 1;
/// The management class of the services.
const CLASS: u8 = 0x2c;
const CLASS_VERSION: u8 = 1;
const GET: u8 = 0x01;
const RESPONSE: u8 = 0x81;
const RESOLVE: u16 = 0x0001;
/// Set in answers of earlier versions; the original refuses it.
const ACK: u16 = 0x8000;
/// The start of a group's GID: multicast, transient, site-local; and the services' signature.
const SIGNATURE: [u8; 4] = [0xff, 0x15, 0x40, 0x01];
/// Full membership in a partition.
const FULL: u16 = 0x8000;

/// The layout of a message on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    base_version: u8,
    class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    control: U16,
    transaction: U64,
    destination_type: u8,
    destination_length: u8,
    source_type: u8,
    source_length: u8,
    groups: u8,
    resources: u8,
    depth: u8,
    reserved: u8,
    destination: [u8; INFO],
    source: [u8; INFO],
    group: [[u8; 16]; GROUPS],
    rest: [u8; 8],
}

const _: () = assert!(size_of::<Layout>() == MAD);

/// Why a message is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Malformed {
    /// The length is not that of a MAD.
    #[error("a message has {MAD} bytes")]
    Length,
    /// The version or the class is unknown.
    #[error("the first bytes are not those of this protocol's version")]
    Version,
    /// The message is neither a query nor an answer.
    #[error("the message is neither a query nor an answer")]
    Method,
    /// The message lists too many groups.
    #[error("more than {GROUPS} groups")]
    Groups,
    /// The destination is missing or of an unknown type.
    #[error("the destination is not an address")]
    Destination,
    /// The source is missing or of an unknown type.
    #[error("the source is not an address")]
    Source,
}

impl Malformed {
    /// Lists all reasons.
    pub const ALL: [Self; 6] = [
        Self::Length,
        Self::Version,
        Self::Method,
        Self::Groups,
        Self::Destination,
        Self::Source,
    ];
}

/// The groups in a message, the best last; at most [`GROUPS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    list: [Gid; GROUPS],
    count: u8,
}

impl Groups {
    /// Creates a list; if there are too many, keeps the first, which all are in, and the best ones.
    #[must_use]
    pub fn new(all: impl IntoIterator<Item = Gid>) -> Self {
        let mut groups = Self::default();
        for gid in all {
            let count = usize::from(groups.count);
            if count < GROUPS {
                groups.list[count] = gid;
                groups.count += 1;
            } else {
                groups.list[1..].rotate_left(1);
                groups.list[GROUPS - 1] = gid;
            }
        }
        groups
    }

    /// Returns the groups in the order of the message.
    #[must_use]
    pub fn as_slice(&self) -> &[Gid] {
        &self.list[..usize::from(self.count)]
    }
}

/// Whether a message is a query or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The source looks for the owner of the destination.
    Question,
    /// The source answers a query of the destination. A status other than 0 means that they have no group in
    /// common.
    Answer {
        /// The status: 0 for success, else a code in the upper byte.
        status: u16,
    },
}

/// A message between services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// Query or answer.
    pub direction: Direction,
    /// The transaction id, which an answer repeats.
    pub transaction: u64,
    /// The address looked up; optional in an answer.
    pub destination: Option<Address>,
    /// The address of the sender; optional in an answer.
    pub source: Option<Address>,
    /// The sender's groups, or the one that was chosen.
    pub groups: Groups,
}

impl Resolve {
    /// Returns the bytes of the message.
    #[must_use]
    pub fn bytes(&self) -> [u8; MAD] {
        let (method, status) = match self.direction {
            Direction::Question => (GET, 0),
            Direction::Answer { status } => (RESPONSE, status),
        };
        let kind = |address: &Option<Address>| address.as_ref().map_or(0, |a| a.kind().code() as u8);
        let info = |address: &Option<Address>| address.as_ref().map_or([0; INFO], Address::info);
        let mut layout = Layout::new_zeroed();
        layout.base_version = BASE_VERSION;
        layout.class = CLASS;
        layout.class_version = CLASS_VERSION;
        layout.method = method;
        layout.status = status.into();
        layout.control = RESOLVE.into();
        layout.transaction = self.transaction.into();
        layout.destination_type = kind(&self.destination);
        layout.destination_length = INFO as u8;
        layout.source_type = kind(&self.source);
        layout.source_length = INFO as u8;
        layout.groups = self.groups.count;
        layout.destination = info(&self.destination);
        layout.source = info(&self.source);
        layout.group = self.groups.list.map(|gid| gid.0);
        let mut bytes = [0; MAD];
        bytes.copy_from_slice(layout.as_bytes());
        bytes
    }

    /// Parses a message.
    ///
    /// # Errors
    /// [`Malformed`], with the reason.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let layout = Layout::ref_from_bytes(bytes).map_err(|_| Malformed::Length)?;
        let version = (layout.base_version, layout.class, layout.class_version);
        if version != (BASE_VERSION, CLASS, CLASS_VERSION) {
            return Err(Malformed::Version);
        }
        let direction = match (layout.method, layout.control.get()) {
            (GET, RESOLVE) => Direction::Question,
            (RESPONSE, control) if control & !ACK == RESOLVE => Direction::Answer {
                status: layout.status.get(),
            },
            _ => return Err(Malformed::Method),
        };
        if usize::from(layout.groups) > GROUPS {
            return Err(Malformed::Groups);
        }
        let address = |kind: u8, length: u8, info: &[u8; INFO]| {
            if kind == 0 && direction != Direction::Question {
                return Some(None);
            }
            let fits = usize::from(length) == INFO;
            let kind = Kind::of(kind.into()).filter(|_| fits)?;
            Address::from_info(kind, info).map(Some)
        };
        let (kind, length) = (layout.destination_type, layout.destination_length);
        let destination = address(kind, length, &layout.destination).ok_or(Malformed::Destination)?;
        let (kind, length) = (layout.source_type, layout.source_length);
        let source = address(kind, length, &layout.source).ok_or(Malformed::Source)?;
        let count = usize::from(layout.groups);
        Ok(Self {
            direction,
            transaction: layout.transaction.get(),
            destination,
            source,
            groups: Groups::new(layout.group[..count].iter().map(|gid| Gid(*gid))),
        })
    }
}

/// A multicast group of the services, which all members can use at this rate and with this MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// The partition key, as a full member.
    pub pkey: u16,
    /// The traffic class.
    pub tos: u8,
    /// The rate of the group.
    pub rate: Rate,
    /// The largest payload of a packet.
    pub mtu: Mtu,
}

impl Group {
    /// Returns the group of a partition with this rate and MTU.
    #[must_use]
    pub const fn new(pkey: u16, rate: Rate, mtu: Mtu) -> Self {
        Self {
            pkey: pkey | FULL,
            tos: 0,
            rate,
            mtu,
        }
    }

    /// Returns the GID of the group.
    ///
    /// ```
    /// use doorbell_acm::mad::Group;
    /// use doorbell_acm::path::{Mtu, Rate};
    /// let group = Group::new(0x7fff, Rate::within(10_000), Mtu::MAX);
    /// assert_eq!(group.gid().to_string(), "ff15:4001:ffff:3:500::");
    /// assert_eq!(Group::of(group.gid()), Some(group));
    /// ```
    #[must_use]
    pub fn gid(self) -> Gid {
        let mut gid = [0; 16];
        gid[..4].copy_from_slice(&SIGNATURE);
        gid[4..6].copy_from_slice(&self.pkey.to_be_bytes());
        gid[6..9].copy_from_slice(&[self.tos, self.rate.code(), self.mtu.code()]);
        Gid(gid)
    }

    /// Returns the group with this GID, if it is one of the services.
    #[must_use]
    pub fn of(gid: Gid) -> Option<Self> {
        let [a, b, c, d, high, low, tos, rate, mtu, rest @ ..] = gid.0;
        if [a, b, c, d] != SIGNATURE || rest != [0; 7] {
            return None;
        }
        let pkey = u16::from_be_bytes([high, low]);
        Some(Self {
            pkey: Some(pkey).filter(|pkey| pkey & FULL != 0)?,
            tos,
            rate: Rate::of(rate)?,
            mtu: Mtu::of(mtu)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::address::Name;

    fn question() -> Resolve {
        let groups = [
            Group::new(0xffff, Rate::within(10_000), Mtu::within(2048).unwrap()),
            Group::new(0xffff, Rate::within(100_000), Mtu::MAX),
        ];
        Resolve {
            direction: Direction::Question,
            transaction: 0x0102_0304_0506_0708,
            destination: Some(Address::V4([10, 0, 0, 2].into())),
            source: Some(Address::Name(Name::new("n1").unwrap())),
            groups: Groups::new(groups.map(Group::gid)),
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = question().bytes();
        let mut golden = vec![1, 0x2c, 1, 1, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8];
        golden.extend([2, 64, 1, 64, 2, 0, 0, 0]);
        let padded = |golden: &mut Vec<u8>, bytes: &[u8]| {
            golden.extend_from_slice(bytes);
            golden.resize(golden.len() + INFO - bytes.len(), 0);
        };
        padded(&mut golden, &[10, 0, 0, 2]);
        padded(&mut golden, b"n1");
        golden.extend([0xff, 0x15, 0x40, 1, 0xff, 0xff, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend([0xff, 0x15, 0x40, 1, 0xff, 0xff, 0, 16, 5, 0, 0, 0, 0, 0, 0, 0]);
        golden.resize(MAD, 0);
        assert_eq!(bytes.as_slice(), golden);
        assert_eq!(Resolve::read(&bytes), Ok(question()));
        let answer = Resolve {
            direction: Direction::Answer { status: 0x300 },
            ..question()
        };
        let mut bytes = answer.bytes();
        assert_eq!(
            bytes[3..8],
            [0x81, 3, 0, 0, 1],
            "the original refuses another control"
        );
        assert_eq!(Resolve::read(&bytes), Ok(answer.clone()));
        bytes[6] = 0x80;
        assert_eq!(Resolve::read(&bytes), Ok(answer), "as earlier versions sent it");
    }

    /// What `acmp_send_resolve` and `acmp_send_addr_resp` of rdma-core write, field by field.
    #[test]
    fn golden_bytes_of_the_original() {
        let group = [0xff, 0x15, 0x40, 1, 0xff, 0xff, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0];
        let mut asked = [0; MAD];
        asked[..8].copy_from_slice(&[1, 0x2c, 1, 1, 0, 0, 0, 1]);
        asked[15] = 7;
        asked[16..21].copy_from_slice(&[1, 64, 2, 64, 1]);
        asked[24..29].copy_from_slice(b"node2");
        asked[88..92].copy_from_slice(&[10, 0, 0, 1]);
        asked[152..168].copy_from_slice(&group);
        let question = Resolve {
            direction: Direction::Question,
            transaction: 7,
            destination: Some(Address::Name(Name::new("node2").unwrap())),
            source: Some(Address::V4([10, 0, 0, 1].into())),
            groups: Groups::new([Gid(group)]),
        };
        assert_eq!(Resolve::read(&asked).as_ref(), Ok(&question));
        assert_eq!(question.bytes(), asked);
        let mut answered = [0; MAD];
        answered[..8].copy_from_slice(&[1, 0x2c, 1, 0x81, 0, 0, 0, 1]);
        answered[15] = 7;
        answered[20] = 1;
        answered[152..168].copy_from_slice(&group);
        let answer = Resolve {
            direction: Direction::Answer { status: 0 },
            destination: None,
            source: None,
            ..question
        };
        assert_eq!(Resolve::read(&answered).as_ref(), Ok(&answer));
        // Ours has lengths, which the original does not read in answers.
        answered[17] = 64;
        answered[19] = 64;
        assert_eq!(answer.bytes(), answered);
    }

    #[test]
    fn what_is_hostile_is_refused_with_its_reason() {
        let good = question().bytes();
        assert_eq!(Resolve::read(&good[..255]), Err(Malformed::Length));
        assert_eq!(Resolve::read(&[0; 257]), Err(Malformed::Length));
        let cases = [
            (0, 2, Malformed::Version),
            (1, 3, Malformed::Version),
            (2, 9, Malformed::Version),
            (3, 2, Malformed::Method),
            (6, 0x80, Malformed::Method),
            (7, 2, Malformed::Method),
            (16, 0, Malformed::Destination),
            (16, 6, Malformed::Destination),
            (17, 4, Malformed::Destination),
            (18, 0, Malformed::Source),
            (19, 65, Malformed::Source),
            (20, 7, Malformed::Groups),
            (20, 255, Malformed::Groups),
            (88, 0, Malformed::Source),
        ];
        for (at, byte, reason) in cases {
            let mut bad = good;
            bad[at] = byte;
            let read = Resolve::read(&bad);
            assert_eq!(read, Err(reason), "byte {at} is {byte}");
        }
    }

    #[test]
    fn too_many_groups_keep_the_first_and_the_best() {
        let gid = |n: u8| Gid([n; 16]);
        let groups = Groups::new((0..9).map(gid));
        assert_eq!(groups.as_slice(), [0, 4, 5, 6, 7, 8].map(gid));
    }

    proptest! {
        #[test]
        fn what_is_read_would_be_written_so(bytes in proptest::collection::vec(any::<u8>(), MAD), fixed in any::<bool>()) {
            let mut bytes = bytes;
            if fixed {
                bytes[..8].copy_from_slice(&[1, 0x2c, 1, 1, 0, 0, 0, 1]);
                for (at, bound) in [(16, 6), (18, 6), (20, 8)] {
                    bytes[at] %= bound;
                }
                (bytes[17], bytes[19]) = (64, 64);
            }
            if let Ok(read) = Resolve::read(&bytes) {
                prop_assert_eq!(Resolve::read(&read.bytes()), Ok(read));
            }
        }
    }
}
