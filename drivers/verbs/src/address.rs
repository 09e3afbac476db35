//! What a rail publishes: where its datagrams arrive, and by which GIDs. 256 bytes at most.
//!
//! ```text
//! 0        1      2      4        5         6          8     12      16     20
//! version  link   lid    service  reserved  partition  key   pair 0  pair 1 count, mtu, reserved …
//! 24: count times { GID 16, kind 1, prefix 1 }
//! ```
//!
//! A rail of datagrams has a queue pair for each channel. One of reliable connections has one, for contact
//! (module `cm`); its second is zero.

use doorbell_fabric::gid::Link;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::gid::{Gid, Kind, PUBLISHED, Published};
use crate::name::Service;

/// The version of the layout.
const VERSION: u8 = 1;

/// The fixed part.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    version: u8,
    link: u8,
    lid: U16,
    service: u8,
    reserved: u8,
    partition: U16,
    key: U32,
    pairs: [U32; 2],
    count: u8,
    mtu: u8,
    reserved2: [u8; 2],
}

/// A GID of the port, as it is published.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Item {
    gid: [u8; 16],
    kind: u8,
    prefix: u8,
}

const HEAD: usize = size_of::<Head>();
const ITEM: usize = size_of::<Item>();
const _: () = assert!(HEAD == 24 && ITEM == 18 && HEAD + PUBLISHED * ITEM <= 256);

/// Highest number of a queue pair.
pub(crate) const PAIR_MOST: u32 = 0x00ff_ffff;

/// Where a rail's datagrams arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortAddress {
    /// What the rail carries.
    pub(crate) service: Service,
    pub(crate) link: Link,
    pub(crate) lid: u16,
    pub(crate) partition: u16,
    pub(crate) key: u32,
    /// The queue pairs of both channels; of reliable connections, that of contact, and 0.
    pub(crate) pairs: [u32; 2],
    /// The MTU's number: 1 for 256 bytes, up to 5 for 4,096.
    pub(crate) mtu: u8,
    /// The GIDs, best first.
    pub(crate) gids: Vec<Published>,
}

impl PortAddress {
    /// Encodes the address for publication.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let gids = &self.gids[..self.gids.len().min(PUBLISHED)];
        let head = Head {
            version: VERSION,
            link: match self.link {
                Link::InfiniBand => 1,
                Link::Ethernet => 2,
            },
            lid: self.lid.into(),
            service: match self.service {
                Service::Datagrams => 0,
                Service::Connections => 1,
            },
            reserved: 0,
            partition: self.partition.into(),
            key: self.key.into(),
            pairs: self.pairs.map(U32::new),
            count: gids.len() as u8,
            mtu: self.mtu,
            reserved2: [0; 2],
        };
        let mut bytes = head.as_bytes().to_vec();
        for published in gids {
            let item = Item {
                gid: published.gid.0,
                kind: published.kind as u8,
                prefix: published.prefix,
            };
            bytes.extend_from_slice(item.as_bytes());
        }
        bytes
    }

    /// Reads what a peer's rail of this service has published.
    ///
    /// # Errors
    /// Why it is none, as the predicate of "the address".
    pub(crate) fn parse(bytes: &[u8], service: Service) -> Result<Self, &'static str> {
        let (head, rest) = Head::read_from_prefix(bytes).map_err(|_| "is too short")?;
        if head.version != VERSION {
            return Err("has another version of the layout");
        }
        match (head.service, service) {
            (0, Service::Datagrams) | (1, Service::Connections) => {}
            (0, _) => return Err("is of a rail of datagrams (:ud), and the other one of connections"),
            (1, _) => return Err("is of a rail of connections, and the other one of datagrams (:ud)"),
            _ => return Err("names a service that is not known"),
        }
        let link = match head.link {
            1 => Link::InfiniBand,
            2 => Link::Ethernet,
            _ => return Err("names a link that is neither InfiniBand nor Ethernet"),
        };
        let count = usize::from(head.count);
        if count > PUBLISHED || rest.len() != count * ITEM {
            return Err("has another length than its GIDs need");
        }
        let pairs = head.pairs.map(U32::get);
        let can_be = |pair: &u32| (2..=PAIR_MOST).contains(pair);
        let are_pairs = match service {
            Service::Datagrams => pairs.iter().all(can_be),
            Service::Connections => can_be(&pairs[0]) && pairs[1] == 0,
        };
        if !are_pairs {
            return Err("names a queue pair that there cannot be");
        }
        if !(1..=5).contains(&head.mtu) || head.key.get() >> 31 != 0 {
            return Err("has an MTU or a key that there cannot be");
        }
        let item = |bytes: &[u8]| {
            let item = Item::read_from_bytes(bytes).map_err(|_| "is too short")?;
            Ok(Published {
                gid: Gid(item.gid),
                kind: Kind::of(item.kind.into()).ok_or("has a GID of a kind that is not known")?,
                prefix: item.prefix,
            })
        };
        Ok(Self {
            service,
            link,
            lid: head.lid.get(),
            partition: head.partition.get(),
            key: head.key.get(),
            pairs,
            mtu: head.mtu,
            gids: rest.chunks_exact(ITEM).map(item).collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> PortAddress {
        PortAddress {
            service: Service::Datagrams,
            link: Link::Ethernet,
            lid: 7,
            partition: 0xffff,
            key: 0x1234_5678,
            pairs: [17, 18],
            mtu: 3,
            gids: vec![Published {
                gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1]),
                kind: Kind::RoceV2,
                prefix: 24,
            }],
        }
    }

    #[test]
    fn the_bytes_are_these_and_are_read_back() {
        let bytes = address().to_bytes();
        let golden = [
            1, 2, 7, 0, 0, 0, 255, 255, 0x78, 0x56, 0x34, 0x12, 17, 0, 0, 0, 18, 0, 0, 0, 1, 3, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1, 2, 24,
        ];
        assert_eq!(bytes, golden);
        assert_eq!(PortAddress::parse(&bytes, Service::Datagrams), Ok(address()));
    }

    #[test]
    fn a_rail_of_connections_has_one_pair_and_is_none_of_datagrams() {
        let connections = PortAddress {
            service: Service::Connections,
            pairs: [17, 0],
            ..address()
        };
        let bytes = connections.to_bytes();
        let head = [
            1, 2, 7, 0, 1, 0, 255, 255, 0x78, 0x56, 0x34, 0x12, 17, 0, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0,
        ];
        assert_eq!(bytes[..24], head);
        assert_eq!(PortAddress::parse(&bytes, Service::Connections), Ok(connections));
        let read = |bytes: &[u8], service| PortAddress::parse(bytes, service).unwrap_err();
        assert!(read(&bytes, Service::Datagrams).contains("of connections"));
        let datagrams = address().to_bytes();
        assert!(read(&datagrams, Service::Connections).contains("of datagrams"));
        let mut two = bytes;
        two[16] = 18;
        assert!(read(&two, Service::Connections).contains("queue pair"));
    }

    #[test]
    fn whatever_bytes_are_read_or_refused() {
        let bytes = address().to_bytes();
        for length in 0..bytes.len() {
            assert!(
                PortAddress::parse(&bytes[..length], Service::Datagrams).is_err(),
                "{length} bytes"
            );
        }
        let mut long = bytes.clone();
        long.push(0);
        assert!(PortAddress::parse(&long, Service::Datagrams).is_err());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                if let Ok(read) = PortAddress::parse(&other, Service::Datagrams) {
                    assert!(
                        read != address() || matches!(at, 5 | 22 | 23),
                        "byte {at} does not matter"
                    );
                }
            }
        }
    }
}
