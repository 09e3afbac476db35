//! Filters: what makes frames come to a queue. A buffer of two TLVs, the filter and the action.
//!
//! Sources: Linux `usnic_fwd.h` (what its driver sends), DPDK `enic/base/vnic_devcmd.h` (the structures).

use std::net::Ipv4Addr;

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a filter's buffer: classic, with a union of 30 bytes.
pub const FILTER_BYTES: usize = size_of::<Buffer>();

/// What comes by a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// UDP over IPv4 to an address and a port (filter type 1, `IPV4_5TUPLE`).
    Udp {
        /// The IPv4 address of the destination.
        address: Ipv4Addr,
        /// The UDP port of the destination.
        port: u16,
    },
    /// All frames of an ethertype (filter type 0, `USNIC_ID`, with that one flag). Linux's driver never sends
    /// it so: that the firmware takes it for ARP is inferred from the structure `[I]`.
    Ethertype(u16),
}

/// Filter types and flags.
const USNIC_ID: u32 = 0;
const IPV4_5TUPLE: u32 = 1;
const ID_ETHERTYPE: u32 = 2;
const TUPLE_PROTOCOL: u32 = 1;
const TUPLE_TARGET: u32 = 4;
const TUPLE_TARGET_PORT: u32 = 16;
const PROTOCOL_UDP: u32 = 0;
/// TLV and action types.
const TLV_FILTER: u32 = 0;
const TLV_ACTION: u32 = 1;
const STEER: u32 = 0;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Tlv {
    kind: U32,
    length: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Tuple {
    flags: U32,
    protocol: U32,
    source: U32,
    target: U32,
    source_port: U16,
    target_port: U16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Id {
    flags: U32,
    vlan: U16,
    ethertype: U16,
    version: u8,
    id: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Buffer {
    filter: Tlv,
    kind: U32,
    fields: [u8; 30],
    action: Tlv,
    what: U32,
    queue: U32,
}
const _: () = assert!(size_of::<Tuple>() == 20 && size_of::<Id>() == 13);
const _: () = assert!(size_of::<Buffer>() == 58 && size_of::<Tlv>() == 8);

impl Match {
    /// The filter's type, which a firmware has to know.
    #[must_use]
    pub fn kind(&self) -> u32 {
        match self {
            Self::Udp { .. } => IPV4_5TUPLE,
            Self::Ethertype(_) => USNIC_ID,
        }
    }

    /// The buffer of a filter that steers what matches to the receive queue `queue`, in the function's own
    /// numbering.
    #[must_use]
    pub fn steer_to(&self, queue: u32) -> [u8; FILTER_BYTES] {
        let mut fields = [0; 30];
        match *self {
            Self::Udp { address, port } => {
                let tuple = Tuple {
                    flags: (TUPLE_PROTOCOL | TUPLE_TARGET | TUPLE_TARGET_PORT).into(),
                    protocol: PROTOCOL_UDP.into(),
                    source: 0.into(),
                    // Numbers, little endian like all others, and not in network order.
                    target: address.to_bits().into(),
                    source_port: 0.into(),
                    target_port: port.into(),
                };
                fields[..20].copy_from_slice(tuple.as_bytes());
            }
            Self::Ethertype(ethertype) => {
                let id = Id {
                    flags: ID_ETHERTYPE.into(),
                    vlan: 0.into(),
                    ethertype: ethertype.into(),
                    version: 0,
                    id: 0.into(),
                };
                fields[..13].copy_from_slice(id.as_bytes());
            }
        }
        let buffer = Buffer {
            filter: Tlv {
                kind: TLV_FILTER.into(),
                length: 34.into(),
            },
            kind: self.kind().into(),
            fields,
            action: Tlv {
                kind: TLV_ACTION.into(),
                length: 8.into(),
            },
            what: STEER.into(),
            queue: queue.into(),
        };
        zerocopy::transmute!(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(pair).collect()
    }

    #[test]
    fn the_reference_filter_has_these_bytes() {
        let udp = Match::Udp {
            address: Ipv4Addr::new(10, 0, 0, 5),
            port: 5000,
        };
        let expected = bytes(
            "00000000 22000000 | 01000000 15000000 00000000 00000000 0500000a 0000 8813 00000000000000000000 \
             | 01000000 08000000 | 00000000 02000000",
        );
        assert_eq!(udp.steer_to(2)[..], expected);
    }

    #[test]
    fn a_filter_of_an_ethertype_has_that_flag_alone() {
        let arp = Match::Ethertype(0x0806).steer_to(1);
        let expected = bytes(
            "00000000 22000000 | 00000000 02000000 0000 0608 00 00000000 0000000000000000000000000000000000 \
             | 01000000 08000000 | 00000000 01000000",
        );
        assert_eq!(arp[..], expected);
    }
}
