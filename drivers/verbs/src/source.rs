//! Where a datagram comes from.

use doorbell_fabric::memory::SharedBytes;

use crate::gid::Gid;
use crate::sys::{Wc, numbers};

/// Bytes in front of each received frame: the global routing header, or room for it.
pub(crate) const GRH: usize = 40;

/// Where a frame comes from: the queue pair, and the GID or LID of its port. A hint: any sender can write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct From {
    pub(crate) pair: u32,
    pub(crate) port: Source,
}

/// A port that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// By its GID.
    Gid([u8; 16]),
    /// By its LID, inside a subnet.
    Lid(u16),
}

impl From {
    /// Reads it from a completion, and from the room in front of its frame.
    #[inline]
    pub(crate) fn of(completion: &Wc, room: SharedBytes<'_>) -> Self {
        let port = if completion.wc_flags & numbers::WC_WITH_GRH != 0 {
            Source::Gid(gid(room).0)
        } else {
            Source::Lid(completion.slid)
        };
        Self {
            pair: completion.src_qp,
            port,
        }
    }
}

/// The sender's GID.
fn gid(room: SharedBytes<'_>) -> Gid {
    gids(room).0
}

/// The GIDs that a routing header names: the sender's, and the one that it was sent to; zero where it is
/// none.
pub(crate) fn gids(room: SharedBytes<'_>) -> (Gid, Gid) {
    let mut bytes = [0; GRH];
    room.copy_to(0, &mut bytes);
    let [sender, receiver] = if is_ipv4(&bytes) {
        [IPV4 + 12, IPV4 + 16].map(|at| mapped(&bytes[at..at + 4]))
    } else if bytes[0] >> 4 == 6 {
        [8, 24].map(|at| bytes[at..at + 16].try_into().unwrap_or_default())
    } else {
        [[0; 16]; 2]
    };
    (Gid(sender), Gid(receiver))
}

/// Where the header of a packet of IPv4 begins: it ends where one of IPv6 would.
const IPV4: usize = GRH - 20;

/// Whether a packet of IPv4 came, as Linux finds it out. What is in front of its header is undefined, and may
/// be left from one of IPv6; and the addresses of one of IPv6 may look like the beginning of the other. Then
/// the checksum decides.
fn is_ipv4(bytes: &[u8; GRH]) -> bool {
    let header = &bytes[IPV4..];
    if bytes[0] >> 4 != 6 {
        return header[0] >> 4 == 4;
    }
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    header[0] == 0x45 && (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// An address of IPv4 as a GID.
fn mapped(address: &[u8]) -> [u8; 16] {
    let mut gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0, 0, 0];
    gid[12..].copy_from_slice(address);
    gid
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From 10.0.0.1 to 10.0.0.2, with its checksum.
    const V4: [u8; 20] = [
        0x45, 0, 0, 0x54, 0x1c, 0x46, 0x40, 0, 0x40, 0x11, 0x0a, 0x51, 10, 0, 0, 1, 10, 0, 0, 2,
    ];

    fn of(bytes: [u8; GRH]) -> ([u8; 16], [u8; 16]) {
        let (sender, receiver) = gids(SharedBytes::of(&bytes));
        (sender.0, receiver.0)
    }

    fn ipv4_behind(front: [u8; 20]) -> [u8; GRH] {
        let mut bytes = [0; GRH];
        bytes[..20].copy_from_slice(&front);
        bytes[20..].copy_from_slice(&V4);
        bytes
    }

    /// A header of IPv6 between two GIDs.
    fn ipv6(from: [u8; 16], to: [u8; 16]) -> [u8; GRH] {
        let mut bytes = [0; GRH];
        bytes[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 48, 17, 64]);
        bytes[8..24].copy_from_slice(&from);
        bytes[24..].copy_from_slice(&to);
        bytes
    }

    #[test]
    fn ipv4_is_found_whatever_is_in_front_of_it() {
        let expected = (mapped(&[10, 0, 0, 1]), mapped(&[10, 0, 0, 2]));
        let mut left = [0x5a; 20];
        for first in [0, 0x45, 0x60, 0x6f, 0xff] {
            left[0] = first;
            assert_eq!(of(ipv4_behind(left)), expected, "{first:#x}");
        }
    }

    #[test]
    fn ipv6_is_found_whatever_its_addresses_look_like() {
        let local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1];
        // Its last bytes stand where the header of IPv4 would begin.
        let other = mapped(&[0x45, 0, 0, 0x54]);
        for from in [local, other] {
            assert_eq!(of(ipv6(from, local)), (from, local));
        }
    }

    #[test]
    fn a_header_of_neither_names_no_gid() {
        assert_eq!(of([0; GRH]), ([0; 16], [0; 16]));
        assert_eq!(of([0xff; GRH]), ([0; 16], [0; 16]));
    }

    /// With what is left of one of IPv6 in front, one wrong bit makes it one of IPv6 again.
    #[test]
    fn a_wrong_checksum_is_not_believed() {
        for bit in 0..8 * V4.len() {
            let mut bytes = ipv4_behind([0x60; 20]);
            bytes[20 + bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of(bytes).0[..12], mapped(&[0; 4])[..12], "bit {bit}");
        }
    }
}
