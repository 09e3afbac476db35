//! What a rail publishes: where its datagrams arrive, and by which GIDs. 256 bytes at most.
//!
//! ```text
//! 0        1      2      4    6          8          12    16     20
//! version  link   lid    sm   partition  key        data  prio   count, mtu, reserved …
//! 24: count times { GID 16, kind 1, prefix 1 }
//! ```

use doorbell_fabric::gid::Link;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::gid::{Gid, Kind, PUBLISHED, Published};

/// The version of the layout.
const VERSION: u8 = 1;

/// The fixed part.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    version: u8,
    link: u8,
    lid: U16,
    reserved: U16,
    partition: U16,
    key: U32,
    pairs: [U32; 2],
    count: u8,
    mtu: u8,
    reserved2: [u8; 2],
}

/// A GID.
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
pub(crate) struct UdAddress {
    pub(crate) link: Link,
    pub(crate) lid: u16,
    pub(crate) partition: u16,
    pub(crate) key: u32,
    /// The queue pairs of both channels.
    pub(crate) pairs: [u32; 2],
    /// The MTU's number: 1 for 256 bytes, up to 5 for 4,096.
    pub(crate) mtu: u8,
    /// The GIDs, best first.
    pub(crate) gids: Vec<Published>,
}

impl UdAddress {
    /// Its bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let gids = &self.gids[..self.gids.len().min(PUBLISHED)];
        let head = Head {
            version: VERSION,
            link: match self.link {
                Link::InfiniBand => 1,
                Link::Ethernet => 2,
            },
            lid: self.lid.into(),
            reserved: 0.into(),
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

    /// Reads what a peer has published.
    ///
    /// # Errors
    /// Why it is none, as the predicate of "the address".
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let (head, rest) = Head::read_from_prefix(bytes).map_err(|_| "is too short")?;
        if head.version != VERSION {
            return Err("has another version of the layout");
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
        if pairs.iter().any(|pair| !(2..=PAIR_MOST).contains(pair)) {
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

    fn address() -> UdAddress {
        UdAddress {
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
        assert_eq!(UdAddress::parse(&bytes), Ok(address()));
    }

    #[test]
    fn whatever_bytes_are_read_or_refused() {
        let bytes = address().to_bytes();
        for length in 0..bytes.len() {
            assert!(UdAddress::parse(&bytes[..length]).is_err(), "{length} bytes");
        }
        let mut long = bytes.clone();
        long.push(0);
        assert!(UdAddress::parse(&long).is_err());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                if let Ok(read) = UdAddress::parse(&other) {
                    assert!(
                        read != address() || matches!(at, 4 | 5 | 22 | 23),
                        "byte {at} does not matter"
                    );
                }
            }
        }
    }
}
