//! Records of a subnet's administration, as they lie in its datagrams.
//!
//! reference: verbs, section 10.

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The layout of a path (PathRecord).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PathRecord {
    /// The service id; 0 for none.
    pub service_id: U64,
    /// The GID at which the path ends.
    pub dgid: [u8; 16],
    /// The GID at which the path begins.
    pub sgid: [u8; 16],
    /// The LID at which the path ends.
    pub dlid: U16,
    /// The LID at which the path begins.
    pub slid: U16,
    /// Flow label (20 bits, from bit 8) and hop limit (8 bits).
    pub flow_and_hops: U32,
    /// The traffic class.
    pub tclass: u8,
    /// Whether the way back is the same (bit 7), and the number of paths (7 bits).
    pub reversible_and_count: u8,
    /// The partition key.
    pub pkey: U16,
    /// Class of quality of service (12 bits) and service level (4 bits).
    pub qos_and_sl: U16,
    /// Selector (2 bits) and code of the MTU (6 bits).
    pub mtu: u8,
    /// Selector (2 bits) and code of the rate (6 bits).
    pub rate: u8,
    /// Selector (2 bits) and exponent of a packet's lifetime: 4.096 µs × 2^value (6 bits).
    pub packet_lifetime: u8,
    /// The preference; smaller is better.
    pub preference: u8,
    /// Bytes that are zero.
    pub reserved: [u8; 6],
}

const _: () = assert!(size_of::<PathRecord>() == 64);

/// The layout of a port's membership in a multicast group (MCMemberRecord).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MemberRecord {
    /// The GID of the group.
    pub group: [u8; 16],
    /// The GID of the port.
    pub port: [u8; 16],
    /// The Q_Key of the group.
    pub qkey: U32,
    /// The LID of the group.
    pub lid: U16,
    /// Selector (2 bits) and code of the MTU (6 bits).
    pub mtu: u8,
    /// The traffic class.
    pub tclass: u8,
    /// The partition key.
    pub pkey: U16,
    /// Selector (2 bits) and code of the rate (6 bits).
    pub rate: u8,
    /// Selector (2 bits) and exponent of a packet's lifetime: 4.096 µs × 2^value (6 bits).
    pub packet_lifetime: u8,
    /// Service level (4 bits), flow label (20 bits), hop limit (8 bits).
    pub sl_flow_and_hops: U32,
    /// Scope (4 bits) and state of the membership (4 bits).
    pub scope_and_state: u8,
    /// Whether another joins for the port (bit 7), and bits without a meaning here.
    pub proxy: [u8; 3],
    /// Bytes that are zero.
    pub reserved: [u8; 4],
}

const _: () = assert!(size_of::<MemberRecord>() == 56);

impl MemberRecord {
    /// Returns the service level.
    #[must_use]
    pub const fn sl(&self) -> u8 {
        self.sl_flow_and_hops.to_bytes()[0] >> 4
    }

    /// Returns the flow label.
    #[must_use]
    pub const fn flow_label(&self) -> u32 {
        self.sl_flow_and_hops.get() >> 8 & 0xf_ffff
    }

    /// Returns the hop limit.
    #[must_use]
    pub const fn hop_limit(&self) -> u8 {
        self.sl_flow_and_hops.to_bytes()[3]
    }
}
