//! Whether the peer answers, and how long packets may be on the way to it: echo requests that may not be cut
//! up (RFC 792, RFC 4443; the limit is looked for as in RFC 4821, by sending).
//!
//! The kernel opens sockets for this to the groups in `net.ipv4.ping_group_range`, and raw ones to root.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use doorbell_fabric::poll::timespec;
use doorbell_inet::{Interface, scoped};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};

/// Time for an answer. The request is repeated, because it or the answer may be lost, or held back while the
/// neighbour's address is resolved.
const PATIENCE: Duration = Duration::from_millis(400);
const TIMES: u16 = 3;
/// Bytes of an echo request's own head.
const HEAD: usize = 8;

/// A socket for echoes to one peer.
pub(super) struct Echo {
    socket: OwnedFd,
    to: SocketAddr,
    is_raw: bool,
    number: u16,
    name: u16,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The answer arrived.
    Came,
    /// No answer arrived.
    Silence,
    /// The packet is too long for the interface, or for a router that reported so.
    TooLong,
    /// The system does not let it out: a rule of the packet filter.
    Refused,
    /// The system or a router reports that there is no route.
    NoWay(String),
}

impl Echo {
    /// A socket at the interface's address.
    ///
    /// # Errors
    /// When the kernel opens none: a right is missing.
    pub(super) fn new(interface: &Interface, peer: IpAddr) -> io::Result<Self> {
        let (family, protocol) = match peer {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let make = |kind| rustix::net::socket_with(family, kind, flags, Some(protocol));
        let (socket, is_raw) = match make(SocketType::DGRAM) {
            Ok(socket) => (socket, false),
            Err(_) => (make(SocketType::RAW)?, true),
        };
        // Frames above the system's MTU are sent all the same, to see whether they pass.
        match peer {
            IpAddr::V4(_) => sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?,
            IpAddr::V6(_) => sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?,
        }
        rustix::net::bind(&socket, &interface.socket_address(0))?;
        let to = scoped(SocketAddr::new(peer, 0), interface.index);
        Ok(Self {
            socket,
            to,
            is_raw,
            number: 0,
            name: std::process::id() as u16,
        })
    }

    /// A packet of `length` bytes, its IP header included, there and back.
    pub(super) fn ask(&mut self, length: usize) -> Answer {
        let mut last = Answer::Silence;
        for _ in 0..TIMES {
            last = self.once(length);
            if last != Answer::Silence {
                break;
            }
        }
        last
    }

    /// The longest packet that comes back, between one that did and one that did not.
    pub(super) fn longest(&mut self, came: usize, silent: usize) -> usize {
        let (mut least, mut most) = (came, silent);
        // The usual lengths of links are tried before the middle.
        for usual in [8_996, 4_352, 1_500, 1_492, 1_480, 1_280] {
            if least < usual && usual < most {
                match self.once(usual) {
                    Answer::Came => {
                        least = usual;
                        break;
                    }
                    _ => most = usual,
                }
            }
        }
        // The next byte does not come: nothing is left to look for.
        if least < most && self.once(least + 1) != Answer::Came {
            return least;
        }
        while most - least > 1 {
            let middle = least + (most - least) / 2;
            match self.once(middle) {
                Answer::Came => least = middle,
                _ => most = middle,
            }
        }
        least
    }

    fn once(&mut self, length: usize) -> Answer {
        self.number = self.number.wrapping_add(1);
        let packet = self.packet(length);
        match rustix::net::sendto(&self.socket, &packet, SendFlags::empty(), &self.to) {
            Ok(_) => {}
            Err(Errno::MSGSIZE) => return Answer::TooLong,
            Err(Errno::PERM | Errno::ACCESS) => return Answer::Refused,
            Err(error) => return Answer::NoWay(io::Error::from(error).to_string()),
        }
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Answer::Silence;
            }
            let wait = timespec(left);
            let mut look = [PollFd::new(&self.socket, PollFlags::IN)];
            if !matches!(poll(&mut look, Some(&wait)), Ok(1)) {
                return Answer::Silence;
            }
            let mut buffer = vec![0; 1 << 16];
            match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, got)) if self.is_answer(buffer.get(..got).unwrap_or(&[]), length) => {
                    return Answer::Came;
                }
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::MSGSIZE) => return Answer::TooLong,
                Err(error) => return Answer::NoWay(io::Error::from(error).to_string()),
            }
        }
    }

    fn ip_header(&self) -> usize {
        if self.to.is_ipv4() { 20 } else { 40 }
    }

    fn packet(&self, length: usize) -> Vec<u8> {
        let mut packet = vec![0; length.saturating_sub(self.ip_header()).max(HEAD)];
        packet[0] = if self.to.is_ipv4() { 8 } else { 128 };
        packet[4..6].copy_from_slice(&self.name.to_be_bytes());
        packet[6..8].copy_from_slice(&self.number.to_be_bytes());
        // Raw sockets of IPv4 leave the sum to us; all others make it.
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    /// Whether these bytes answer the last request.
    fn is_answer(&self, bytes: &[u8], length: usize) -> bool {
        // Raw sockets of IPv4 deliver the IP header, and the answers to all processes.
        let skip = match (self.is_raw && self.to.is_ipv4(), bytes.first()) {
            (true, Some(first)) => usize::from(first & 0x0f) * 4,
            _ => 0,
        };
        let Some(message) = bytes.get(skip..) else {
            return false;
        };
        let reply = if self.to.is_ipv4() { 0 } else { 129 };
        let number = message.get(6..8) == Some(&self.number.to_be_bytes()[..]);
        let name = !self.is_raw || message.get(4..6) == Some(&self.name.to_be_bytes()[..]);
        message.first() == Some(&reply) && number && name && message.len() + self.ip_header() >= length
    }
}

/// Returns the internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // RFC 1071, section 3: the sum of these is ddf2.
        assert_eq!(
            checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
            !0xddf2
        );
        assert_eq!(checksum(&[0x01]), !0x0100);
    }
}
