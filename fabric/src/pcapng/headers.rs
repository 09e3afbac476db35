//! The headers before a driver's frame: Ethernet, IPv4 or IPv6, UDP.
//!
//! Hardware addresses are made up from the network addresses, as no driver above a socket knows the real ones: they
//! begin with [`MAC_PREFIX`] (locally administered) and end with the address's last four bytes.
//! Reference: RFC 791, RFC 8200, RFC 768.

use std::net::{IpAddr, SocketAddr};

/// The first two bytes of every hardware address in a capture.
pub const MAC_PREFIX: [u8; 2] = [0x02, 0xdb];

/// Longest headers: Ethernet, IPv6 and UDP.
pub const HEADERS_MAX: usize = ETHERNET + IPV6 + UDP;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const UDP_NUMBER: u8 = 17;
const HOPS: u8 = 64;

/// Adds the headers of a frame of `length` bytes. One IPv6 end makes it IPv6, with the other end mapped.
pub(super) fn write(buffer: &mut Vec<u8>, from: SocketAddr, to: SocketAddr, length: usize) {
    let mac = |buffer: &mut Vec<u8>, address: &SocketAddr| {
        buffer.extend_from_slice(&MAC_PREFIX);
        match address.ip() {
            IpAddr::V4(ip) => buffer.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => buffer.extend_from_slice(&ip.octets()[12..]),
        }
    };
    mac(buffer, &to);
    mac(buffer, &from);
    let short = |length: usize| u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
    match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            buffer.extend_from_slice(&[0x08, 0x00]);
            let at = buffer.len();
            buffer.extend_from_slice(&[0x45, 0]);
            buffer.extend_from_slice(&short(IPV4 + UDP + length));
            // No identification; "do not fragment", as every path is probed; the checksum follows.
            buffer.extend_from_slice(&[0, 0, 0x40, 0, HOPS, UDP_NUMBER, 0, 0]);
            buffer.extend_from_slice(&source.octets());
            buffer.extend_from_slice(&target.octets());
            let sum = !fold(sum(&buffer[at..]));
            buffer[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
        }
        (source, target) => {
            let wide = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            buffer.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
            buffer.extend_from_slice(&short(UDP + length));
            buffer.extend_from_slice(&[UDP_NUMBER, HOPS]);
            buffer.extend_from_slice(&wide(source));
            buffer.extend_from_slice(&wide(target));
        }
    }
    buffer.extend_from_slice(&from.port().to_be_bytes());
    buffer.extend_from_slice(&to.port().to_be_bytes());
    buffer.extend_from_slice(&short(UDP + length));
    // Zero says "none", which IPv4 allows and IPv6 does not.
    buffer.extend_from_slice(&[0, 0]);
}

/// Fills in the UDP checksum of a packet that begins with our headers, when it is IPv6.
pub(super) fn seal(packet: &mut [u8]) {
    if packet[12..14] != [0x86, 0xdd] {
        return;
    }
    let addresses = sum(&packet[ETHERNET + 8..ETHERNET + IPV6]);
    let udp = ETHERNET + IPV6;
    let length = u32::from(u16::from_be_bytes([packet[udp + 4], packet[udp + 5]]));
    let all = u64::from(length) + u64::from(UDP_NUMBER) + addresses + sum(&packet[udp..]);
    // A sum of zero is written as its other form.
    let checksum = match !fold(all) {
        0 => u16::MAX,
        other => other,
    };
    packet[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
}

/// The sum of the 16-bit words of `bytes`, before it is folded.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let odd = words.remainder().first().map_or(0, |&byte| u64::from(byte) << 8);
    odd + words
        .map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])))
        .sum::<u64>()
}

/// A sum as sixteen bits in ones' complement.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
