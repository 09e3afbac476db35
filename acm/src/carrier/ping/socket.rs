//! A socket for echo requests to one host: a ping socket where the system allows it, else a raw one.
//!
//! ```text
//!   type 8 or 128 │ code 0 │ checksum │ identifier │ number │ body          RFC 792, RFC 4443 (section 4)
//! ```
//!
//! A ping socket gets its identifier and, over IPv4, its checksum from the kernel, and receives its own
//! answers only. A raw one receives every ICMP packet of that host, over IPv4 with its IP header, so answers
//! are matched by their content.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};

/// Bytes of the ICMP header.
pub(super) const HEADER: usize = 8;
/// Bytes of the longest IPv4 header.
pub(super) const IP_HEADER: usize = 60;

const REQUEST: [u8; 2] = [8, 128];
const ANSWER: [u8; 2] = [0, 129];

/// A ping or raw socket connected to one host.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    four: bool,
    raw: bool,
}

/// Whether the system denies this kind of socket to this user, or does not support it.
fn is_forbidden(errno: Errno) -> bool {
    let forbidden = [
        Errno::ACCESS,
        Errno::PERM,
        Errno::PROTONOSUPPORT,
        Errno::AFNOSUPPORT,
    ];
    forbidden.contains(&errno)
}

fn protocol(four: bool) -> (AddressFamily, Protocol) {
    if four {
        (AddressFamily::INET, ipproto::ICMP)
    } else {
        (AddressFamily::INET6, ipproto::ICMPV6)
    }
}

impl Socket {
    /// Opens a socket from an address of an interface to a host; `None` if the system allows neither kind.
    ///
    /// # Errors
    /// When no descriptor is left, the address is gone, or there is no route from it.
    pub(super) fn open(interface: &str, from: IpAddr, to: IpAddr) -> Result<Option<Self>, Errno> {
        for kind in [SocketType::DGRAM, SocketType::RAW] {
            let (family, protocol) = protocol(to.is_ipv4());
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::socket_with(family, kind, flags, Some(protocol)) {
                Ok(fd) => {
                    let socket = Self {
                        fd,
                        four: to.is_ipv4(),
                        raw: kind == SocketType::RAW,
                    };
                    return socket.bound(interface, from, to).map(Some);
                }
                Err(errno) if is_forbidden(errno) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    fn bound(self, interface: &str, from: IpAddr, to: IpAddr) -> Result<Self, Errno> {
        let bound = doorbell_inet::bind_to_device(self.fd.as_fd(), interface);
        // Before Linux 5.7 this takes root; the bound address has the same effect on source routing.
        match bound.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
            Ok(()) | Err(Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
        // Forbid fragmentation, and ignore the cached path MTU.
        if self.four {
            sockopt::set_ip_mtu_discover(&self.fd, Ipv4PathMtuDiscovery::PROBE)?;
        } else {
            sockopt::set_ipv6_mtu_discover(&self.fd, Ipv6PathMtuDiscovery::PROBE)?;
        }
        rustix::net::bind(&self.fd, &SocketAddr::new(from, 0))?;
        rustix::net::connect(&self.fd, &SocketAddr::new(to, 0))?;
        Ok(self)
    }

    /// Sends an echo request with this body.
    pub(super) fn send(&self, identifier: u16, number: u16, body: &[u8]) -> Result<(), Errno> {
        let mut packet = Vec::with_capacity(HEADER + body.len());
        packet.extend_from_slice(&[REQUEST[usize::from(!self.four)], 0, 0, 0]);
        packet.extend_from_slice(&identifier.to_be_bytes());
        packet.extend_from_slice(&number.to_be_bytes());
        packet.extend_from_slice(body);
        // Over IPv6 the kernel computes it, since the sum includes the addresses.
        if self.four {
            let sum = checksum(&packet);
            packet[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        rustix::net::send(&self.fd, &packet, SendFlags::empty()).map(drop)
    }

    /// Receives a packet; returns the body of an echo reply, or nothing for any other packet.
    ///
    /// # Errors
    /// `AGAIN` when no packet is there; any other error belongs to a packet, and more may follow.
    pub(super) fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        let (_, length) = rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::TRUNC)?;
        let whole = buffer.get(..length).unwrap_or_default();
        let header = if self.raw && self.four {
            whole.first().map_or(0, |first| 4 * usize::from(first & 15))
        } else {
            0
        };
        let packet = whole.get(header..).unwrap_or_default();
        let is_answer = packet.first() == Some(&ANSWER[usize::from(!self.four)]);
        Ok(packet.get(HEADER..).filter(|_| is_answer).unwrap_or_default())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let pair = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    let mut sum: u32 = bytes.chunks(2).map(pair).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_a_packet_with_its_sum_is_zero() {
        // The example in RFC 1071, section 3.
        assert_eq!(
            !checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
            0xddf2
        );
        for length in [8, 9, 63, 4152] {
            let mut packet: Vec<u8> = (0..length).map(|at| (at * 7 + 3) as u8).collect();
            packet[2..4].fill(0);
            let sum = checksum(&packet);
            packet[2..4].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(checksum(&packet), 0, "{length}");
        }
    }
}
