//! Ethernet, IPv4, IPv6 and UDP headers: layouts, a header template for each peer, and verification of
//! received headers. Used by drivers whose queues carry whole Ethernet frames, and by captures.
//!
//! ```text
//!   │ Ethernet 14 │ IPv4 20, or IPv6 40 │ UDP 8 │ frame … │      no options, no fragments, no tags
//! ```
//!
//! Sources: RFC 791 (IPv4), RFC 8200 (IPv6), RFC 768 (UDP), RFC 1071 (the checksum).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod neighbour;

pub use neighbour::{
    ETHERTYPE_ARP, NEIGHBOUR_PACKET_MAX, NeighbourMessage, NeighbourPacket, group_mac,
    neighbour_announcement, neighbour_reply, neighbour_request, solicited_node,
};

/// A hardware address.
pub type Mac = [u8; 6];

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = size_of::<Ethernet>();
/// Bytes of UDP's header.
pub const UDP: usize = size_of::<Udp>();
/// Bytes of the headers before a frame over IPv4.
pub const HEADERS_IPV4: usize = ETHERNET + size_of::<Ipv4>() + size_of::<Udp>();
/// Bytes of the headers before a frame over IPv6, the longest.
pub const HEADERS_IPV6: usize = ETHERNET + size_of::<Ipv6>() + size_of::<Udp>();

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

const VERSION_4: u8 = 0x45;
const VERSION_6: u32 = 6 << 28;
const DO_NOT_FRAGMENT: u16 = 0x4000;
/// The "more fragments" bit and the fragment offset.
const FRAGMENT: u16 = 0x3fff;
const DEFAULT_TTL: u8 = 64;

/// The header of Ethernet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ethernet {
    /// Destination hardware address.
    pub to: Mac,
    /// Source hardware address.
    pub from: Mac,
    /// EtherType of the payload.
    pub kind: U16,
}

/// IPv4's header without options.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv4 {
    version: u8,
    service: u8,
    length: U16,
    identification: U16,
    fragment: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    from: [u8; 4],
    to: [u8; 4],
}

/// The header of IPv6.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv6 {
    version: U32,
    length: U16,
    protocol: u8,
    hop_limit: u8,
    from: [u8; 16],
    to: [u8; 16],
}

/// The header of UDP.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Udp {
    from: U16,
    to: U16,
    length: U16,
    checksum: U16,
}

const _: () = assert!(size_of::<Ethernet>() == 14 && size_of::<Udp>() == 8);
const _: () = assert!(size_of::<Ipv4>() == 20 && size_of::<Ipv6>() == 40);

/// Adds up the 16-bit words of `bytes` in network order, without folding the carries.
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, odd) = bytes.as_chunks::<2>();
    let words: u64 = words
        .iter()
        .map(|word| u64::from(u16::from_be_bytes(*word)))
        .sum();
    words + odd.first().map_or(0, |&byte| u64::from(byte) << 8)
}

/// Folds a sum to sixteen bits in ones' complement.
#[inline]
pub const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Complements and folds a sum to a UDP checksum. Zero is sent as 0xffff, because zero means that there is no
/// checksum.
#[inline]
pub(crate) const fn finish_checksum(sum: u64) -> u16 {
    match !fold(sum) {
        0 => u16::MAX,
        other => other,
    }
}

/// A template of the headers of all frames from one address to another.
///
/// ```
/// use doorbell_fabric::ether::{Headers, Arrived, sum};
/// let (from, to) = ("10.0.0.1:7000".parse().unwrap(), "10.0.0.2:7001".parse().unwrap());
/// let headers = Headers::new(from, to);
/// let mut packet = headers.for_frame(4, Some(sum(b"ping"))).to_vec();
/// packet.extend_from_slice(b"ping");
/// let arrived = Arrived::read(&packet, packet.len()).unwrap();
/// assert_eq!((arrived.from, arrived.to), (from, to));
/// assert_eq!(&packet[arrived.at..][..arrived.length], b"ping");
/// assert!(arrived.is_intact(sum(b"ping")) && !arrived.is_intact(sum(b"pong")));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    bytes: [u8; HEADERS_IPV6],
    length: u8,
    /// Sums of the fields that are the same in every frame, for both checksums.
    fixed: u64,
    pseudo: u64,
    /// The pseudo header's sum without UDP's header.
    seed: u64,
}

impl Headers {
    /// Creates the template with hardware addresses still unset. If one address is IPv6, the other is
    /// IPv4-mapped.
    #[must_use]
    pub fn new(from: SocketAddr, to: SocketAddr) -> Self {
        let mut bytes = [0; HEADERS_IPV6];
        let udp = Udp {
            from: from.port().into(),
            to: to.port().into(),
            length: 0.into(),
            checksum: 0.into(),
        };
        let ethernet = |kind: u16| Ethernet {
            to: [0; 6],
            from: [0; 6],
            kind: kind.into(),
        };
        let (length, fixed, addresses) = match (from.ip(), to.ip()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let ip = Ipv4 {
                    version: VERSION_4,
                    service: 0,
                    length: 0.into(),
                    identification: 0.into(),
                    fragment: DO_NOT_FRAGMENT.into(),
                    ttl: DEFAULT_TTL,
                    protocol: PROTOCOL_UDP,
                    checksum: 0.into(),
                    from: source.octets(),
                    to: target.octets(),
                };
                put(
                    &mut bytes,
                    &[ethernet(ETHERTYPE_IPV4).as_bytes(), ip.as_bytes(), udp.as_bytes()],
                );
                (HEADERS_IPV4, sum(ip.as_bytes()), sum(&ip.from) + sum(&ip.to))
            }
            (source, target) => {
                let ip = Ipv6 {
                    version: VERSION_6.into(),
                    length: 0.into(),
                    protocol: PROTOCOL_UDP,
                    hop_limit: DEFAULT_TTL,
                    from: wide(source),
                    to: wide(target),
                };
                put(
                    &mut bytes,
                    &[ethernet(ETHERTYPE_IPV6).as_bytes(), ip.as_bytes(), udp.as_bytes()],
                );
                (HEADERS_IPV6, 0, sum(&ip.from) + sum(&ip.to))
            }
        };
        Self {
            bytes,
            length: length as u8,
            fixed,
            pseudo: addresses + u64::from(PROTOCOL_UDP) + sum(udp.as_bytes()),
            seed: addresses + u64::from(PROTOCOL_UDP),
        }
    }

    /// Sets the source and destination hardware addresses.
    pub fn set_macs(&mut self, from: Mac, to: Mac) {
        self.bytes[..6].copy_from_slice(&to);
        self.bytes[6..12].copy_from_slice(&from);
    }

    /// Length of the headers in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.length)
    }

    /// Always false; completes [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the headers of a frame of `length` bytes, with UDP's checksum for a frame of that [`sum`].
    /// Without a sum the checksum is zero, which means "none" and which IPv4 allows. Lengths beyond what IP
    /// can express are clamped.
    #[inline]
    #[must_use]
    pub fn for_frame(&self, length: usize, of_frame: Option<u64>) -> Packed {
        let mut packed = self.with_lengths(length);
        if let Some(of_frame) = of_frame {
            // The length counts twice: in UDP's header and in the pseudo header.
            let sum = self.pseudo + 2 * u64::from(udp_length(length)) + of_frame;
            packed.put(self.len() - UDP + 6, finish_checksum(sum));
        }
        packed
    }

    /// Returns the headers with a partial UDP checksum for checksum offload: the sum of the pseudo header, to
    /// which the device adds the rest (`CHECKSUM_PARTIAL`).
    #[inline]
    #[must_use]
    pub fn with_partial_checksum(&self, length: usize) -> Packed {
        let mut packed = self.with_lengths(length);
        let sum = self.seed + u64::from(udp_length(length));
        packed.put(self.len() - UDP + 6, fold(sum));
        packed
    }

    /// Returns the headers with all checksum fields zero, for devices that compute them from scratch.
    #[inline]
    #[must_use]
    pub fn without_checksums(&self, length: usize) -> Packed {
        let mut packed = self.with_lengths(length);
        if self.len() == HEADERS_IPV4 {
            packed.put(ETHERNET + 10, 0);
        }
        packed
    }

    #[inline]
    fn with_lengths(&self, length: usize) -> Packed {
        let mut packed = Packed {
            bytes: self.bytes,
            length: self.length,
        };
        if self.len() == HEADERS_IPV4 {
            let total = short(size_of::<Ipv4>() + UDP + length);
            packed.put(ETHERNET + 2, total);
            packed.put(ETHERNET + 10, !fold(self.fixed + u64::from(total)));
        } else {
            packed.put(ETHERNET + 4, udp_length(length));
        }
        packed.put(self.len() - UDP + 4, udp_length(length));
        packed
    }
}

#[inline]
fn short(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

#[inline]
fn udp_length(length: usize) -> u16 {
    short(UDP + length)
}

fn put(bytes: &mut [u8], parts: &[&[u8]]) {
    let mut at = 0;
    for part in parts {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
}

fn wide(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The headers of one frame.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    bytes: [u8; HEADERS_IPV6],
    length: u8,
}

impl Packed {
    #[inline]
    fn put(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
}

impl std::ops::Deref for Packed {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// The headers of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Source address, as the header has it.
    pub from: SocketAddr,
    /// The socket address of the destination.
    pub to: SocketAddr,
    /// Offset of the frame in the packet, in bytes.
    pub at: usize,
    /// Length of the frame in bytes.
    pub length: usize,
    /// UDP's checksum; zero means none.
    checksum: u16,
    /// Sums of the pseudo header, and of UDP's header without its checksum.
    pseudo: u64,
    head: u64,
}

impl Arrived {
    /// Reads the headers at the start of `packet`, of a packet of `whole` bytes. Returns `None` unless they
    /// are those of a whole UDP datagram without IP options, extension headers or fragments, from a unicast
    /// source.
    #[inline]
    #[must_use]
    pub fn read(packet: &[u8], whole: usize) -> Option<Self> {
        let (ethernet, rest) = Ethernet::ref_from_prefix(packet).ok()?;
        let (from, to, room, addresses, at, rest): (IpAddr, IpAddr, _, _, _, _) = match ethernet.kind.get() {
            ETHERTYPE_IPV4 => {
                let (ip, rest) = Ipv4::ref_from_prefix(rest).ok()?;
                let plain = ip.version == VERSION_4 && ip.fragment.get() & FRAGMENT == 0;
                // The sum over a header with a right checksum is all ones.
                if !plain || ip.protocol != PROTOCOL_UDP || fold(sum(ip.as_bytes())) != u16::MAX {
                    return None;
                }
                let room = usize::from(ip.length.get()).checked_sub(size_of::<Ipv4>())?;
                let addresses = sum(&ip.from) + sum(&ip.to);
                (ip.from.into(), ip.to.into(), room, addresses, HEADERS_IPV4, rest)
            }
            ETHERTYPE_IPV6 => {
                let (ip, rest) = Ipv6::ref_from_prefix(rest).ok()?;
                if ip.version.get() >> 28 != 6 || ip.protocol != PROTOCOL_UDP {
                    return None;
                }
                let addresses = sum(&ip.from) + sum(&ip.to);
                let room = usize::from(ip.length.get());
                (ip.from.into(), ip.to.into(), room, addresses, HEADERS_IPV6, rest)
            }
            _ => return None,
        };
        let (udp, _) = Udp::ref_from_prefix(rest).ok()?;
        let length = usize::from(udp.length.get());
        let ends = at - UDP + room;
        if length < UDP || length > room || ends > whole || !is_host(from) {
            return None;
        }
        let udp_bytes = u64::from(udp.length.get());
        Some(Self {
            from: SocketAddr::new(from, udp.from.get()),
            to: SocketAddr::new(to, udp.to.get()),
            at,
            length: length - UDP,
            checksum: udp.checksum.get(),
            pseudo: addresses + u64::from(PROTOCOL_UDP) + udp_bytes,
            head: u64::from(udp.from.get()) + u64::from(udp.to.get()) + udp_bytes,
        })
    }

    /// Whether the datagram has a checksum.
    #[inline]
    #[must_use]
    pub fn has_checksum(&self) -> bool {
        self.checksum != 0
    }

    /// Whether the datagram has a checksum that is right for a frame of this [`sum`].
    #[inline]
    #[must_use]
    pub fn is_intact(&self, of_frame: u64) -> bool {
        self.has_checksum() && fold(self.pseudo + self.head + u64::from(self.checksum) + of_frame) == u16::MAX
    }

    /// Whether the checksum covers the pseudo header alone (`CHECKSUM_PARTIAL`): the sending kernel left the
    /// rest to its device, and the packet was never on a wire (two hosts of one machine, over a virtual
    /// link).
    #[inline]
    #[must_use]
    pub fn is_partial_checksum(&self) -> bool {
        self.checksum == fold(self.pseudo)
    }
}

/// Whether a datagram can have this source: a single host reached over a network.
#[inline]
fn is_host(from: IpAddr) -> bool {
    let not_a_host = from.is_unspecified() || from.is_multicast() || from.is_loopback();
    !not_a_host && from != IpAddr::V4(Ipv4Addr::BROADCAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(from: &str, to: &str, frame: &[u8], checked: bool) -> Vec<u8> {
        let mut headers = Headers::new(from.parse().unwrap(), to.parse().unwrap());
        headers.set_macs([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let mut packet = headers
            .for_frame(frame.len(), checked.then(|| sum(frame)))
            .to_vec();
        packet.extend_from_slice(frame);
        packet
    }

    /// The Linux kernel leaves the same to its devices (`CHECKSUM_PARTIAL`).
    #[test]
    fn what_is_left_to_the_device_is_the_sum_of_the_pseudo_header() {
        for (from, to) in [
            ("10.0.0.1:56080", "10.0.0.2:56081"),
            ("[fd00::1]:56080", "[fd00::2]:56081"),
        ] {
            let headers = Headers::new(from.parse().unwrap(), to.parse().unwrap());
            let mut left = headers.with_partial_checksum(5).to_vec();
            left.extend_from_slice(b"frame");
            let arrived = Arrived::read(&left, left.len()).unwrap();
            assert!(arrived.is_partial_checksum());
            // As the device does: the sum starts at UDP's header, the seed included.
            let at = headers.len() - UDP;
            let done = finish_checksum(sum(&left[at..]));
            assert_eq!(
                headers.for_frame(5, Some(sum(b"frame")))[at + 6..],
                done.to_be_bytes()
            );
        }
    }

    /// Golden bytes, as the kernel and other programs read them.
    #[test]
    fn the_layout_is_that_of_the_standards() {
        let four = packet("10.0.0.1:56080", "10.0.0.2:56081", &[0xab, 0xcd, 0xef], true);
        #[rustfmt::skip]
        let expected = [
            2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00,
            0x45, 0, 0, 31, 0, 0, 0x40, 0, 64, 17, 0x26, 0xcc, 10, 0, 0, 1, 10, 0, 0, 2,
            0xdb, 0x10, 0xdb, 0x11, 0, 11, 0x9a, 0xe4, 0xab, 0xcd, 0xef,
        ];
        assert_eq!(four, expected);
        let six = packet("[fd00::1]:1", "[fd00::2]:2", b"", true);
        assert_eq!(six.len(), HEADERS_IPV6);
        assert_eq!(six[12..22], [0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
        // The sum over everything that the checksum covers is all ones.
        let covered = sum(&six[22..]) + 8 + 17;
        assert_eq!(fold(covered), u16::MAX);
        assert_eq!(fold(sum(&four[14..34])), u16::MAX);
    }

    #[test]
    fn what_is_written_is_read_again_and_padding_is_not_part_of_it() {
        for (from, to) in [
            ("10.1.2.3:65535", "192.0.2.7:1"),
            ("[fd77::1]:5", "[2001:db8::2]:6"),
        ] {
            for length in [0, 1, 8, 33, 1400] {
                let frame: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
                let mut bytes = packet(from, to, &frame, true);
                bytes.resize(bytes.len().max(60), 0);
                let arrived = Arrived::read(&bytes, bytes.len()).unwrap();
                assert_eq!(
                    (arrived.from.to_string(), arrived.to.to_string()),
                    (from.into(), to.into())
                );
                assert_eq!(&bytes[arrived.at..][..arrived.length], frame);
                assert!(arrived.has_checksum() && arrived.is_intact(sum(&frame)));
                assert!(!arrived.is_partial_checksum());
                if length > 0 {
                    let mut other = frame.clone();
                    other[length / 2] ^= 0x10;
                    assert!(!arrived.is_intact(sum(&other)));
                }
                let plain = packet(from, to, &frame, false);
                assert!(!Arrived::read(&plain, plain.len()).unwrap().has_checksum());
            }
        }
    }

    #[test]
    fn the_sum_of_a_pseudo_header_alone_is_known() {
        let mut bytes = packet("10.0.0.1:9", "10.0.0.2:10", b"four", true);
        let pseudo = fold(sum(&bytes[26..34]) + 17 + 12);
        bytes[40..42].copy_from_slice(&pseudo.to_be_bytes());
        let arrived = Arrived::read(&bytes, bytes.len()).unwrap();
        assert!(arrived.is_partial_checksum() && !arrived.is_intact(sum(b"four")));
    }

    /// Returns the same packet with `value` at `at`, and a right IPv4 header checksum.
    fn changed(packet: &[u8], at: usize, value: &[u8]) -> Vec<u8> {
        let mut bytes = packet.to_vec();
        bytes[at..at + value.len()].copy_from_slice(value);
        if bytes[12] == 8 {
            bytes[24..26].fill(0);
            let right = !fold(sum(&bytes[14..34]));
            bytes[24..26].copy_from_slice(&right.to_be_bytes());
        }
        bytes
    }

    #[test]
    fn what_is_no_whole_datagram_is_refused() {
        let read = |bytes: &[u8]| Arrived::read(bytes, bytes.len());
        let good = packet("10.0.0.1:9", "10.0.0.2:10", b"four", true);
        assert!(read(&good).is_some() && read(&changed(&good, 0, &[])).is_some());
        for cut in 0..HEADERS_IPV4 {
            assert!(read(&good[..cut]).is_none(), "{cut}");
        }
        // kind, version, fragment, protocol, IP length, UDP length
        for (at, value) in [
            (13, 0x81),
            (14, 0x46),
            (20, 0x20),
            (21, 1),
            (23, 6),
            (17, 31),
            (39, 7),
            (39, 13),
        ] {
            assert!(read(&changed(&good, at, &[value])).is_none(), "byte {at}");
        }
        let six = packet("[fd00::1]:1", "[fd00::2]:2", b"abc", true);
        for (at, value) in [(14, 0x40), (20, 44), (19, 10), (59, 20)] {
            assert!(read(&changed(&six, at, &[value])).is_none(), "byte {at}");
        }
    }

    /// As RFC 1122 and RFC 8200 require; earlier versions accepted these.
    #[test]
    fn what_lies_about_itself_is_refused() {
        let good = packet("10.0.0.1:9", "10.0.0.2:10", b"four", true);
        // One bit of the header: its checksum is wrong.
        for at in [15, 22, 24, 26, 33] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(Arrived::read(&bad, bad.len()).is_none(), "byte {at}");
        }
        // Longer than what arrived; padding beyond the IP length is accepted.
        assert!(Arrived::read(&good, good.len() + 18).is_some());
        assert!(
            Arrived::read(&good[..HEADERS_IPV4], good.len()).is_some(),
            "cut off behind the headers"
        );
        assert!(Arrived::read(&good, good.len() - 1).is_none());
        let six = packet("[fd00::1]:1", "[fd00::2]:2", b"abc", true);
        assert!(Arrived::read(&six, six.len() - 1).is_none());
        for from in [[0, 0, 0, 0], [255, 255, 255, 255], [224, 0, 0, 1], [127, 0, 0, 1]] {
            let bad = changed(&good, 26, &from);
            assert!(Arrived::read(&bad, bad.len()).is_none(), "{from:?}");
        }
        for first in [[0; 16], [0xff; 16]] {
            let bad = changed(&six, 22, &first);
            assert!(Arrived::read(&bad, bad.len()).is_none(), "{first:?}");
        }
    }

    /// Zero means "no checksum", also where the computed checksum is zero.
    #[test]
    fn no_checksum_is_never_right() {
        let frame = (0..=u16::MAX)
            .map(u16::to_be_bytes)
            .find(|frame| {
                let bytes = packet("[fd00::1]:1", "[fd00::2]:2", frame, true);
                bytes[60..62] == [0xff, 0xff]
            })
            .unwrap();
        let mut bytes = packet("[fd00::1]:1", "[fd00::2]:2", &frame, true);
        let right = Arrived::read(&bytes, bytes.len()).unwrap();
        assert!(right.is_intact(sum(&frame)));
        bytes[60..62].fill(0);
        let none = Arrived::read(&bytes, bytes.len()).unwrap();
        assert!(!none.has_checksum() && !none.is_intact(sum(&frame)));
    }
}
