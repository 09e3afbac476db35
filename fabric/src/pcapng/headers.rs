//! The headers before a driver's frame in a capture: [`crate::ether`], with invented hardware addresses.
//!
//! A driver above a socket does not know the real ones: the invented ones start with [`MAC_PREFIX`] (locally
//! administered) and end with the network address's last four bytes.

use std::net::{IpAddr, SocketAddr};

use crate::ether::{
    ETHERNET, ETHERTYPE_IPV6, HEADERS_IPV6, Headers, Mac, PROTOCOL_UDP, UDP, finish_checksum, sum,
};

/// The first two bytes of every hardware address in a capture.
pub const MAC_PREFIX: [u8; 2] = [0x02, 0xdb];

/// Longest headers: Ethernet, IPv6 and UDP.
pub const HEADERS_MAX: usize = HEADERS_IPV6;

fn mac(address: &SocketAddr) -> Mac {
    let [a, b] = MAC_PREFIX;
    let [c, d, e, f] = match address.ip() {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => ip.to_bits().to_be_bytes()[12..].try_into().unwrap_or_default(),
    };
    [a, b, c, d, e, f]
}

/// Adds the headers of a frame of `length` bytes. One IPv6 end makes it IPv6, with the other end mapped.
pub(super) fn write(buffer: &mut Vec<u8>, from: SocketAddr, to: SocketAddr, length: usize) {
    let mut headers = Headers::new(from, to);
    headers.set_macs(mac(&from), mac(&to));
    // Zero means "none", which IPv4 allows and IPv6 does not.
    buffer.extend_from_slice(&headers.for_frame(length, None));
}

/// Fills in the UDP checksum of a packet that begins with our headers, when it is IPv6.
pub(super) fn seal(packet: &mut [u8]) {
    if packet[12..14] != ETHERTYPE_IPV6.to_be_bytes() {
        return;
    }
    let udp = HEADERS_IPV6 - UDP;
    let addresses = sum(&packet[ETHERNET + 8..udp]);
    let length = u64::from(u16::from_be_bytes([packet[udp + 4], packet[udp + 5]]));
    let all = length + u64::from(PROTOCOL_UDP) + addresses + sum(&packet[udp..]);
    packet[udp + 6..udp + 8].copy_from_slice(&finish_checksum(all).to_be_bytes());
}
