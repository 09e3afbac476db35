//! Where the rails of a member can be reached from other hosts, as its address has them.
//!
//! ```text
//!   IPv4: | address 4 | port 2, big-endian | three times, zeros where there are fewer
//!   IPv6: | address 16 | port 2, big-endian |
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of the doors of an address.
pub(in crate::lobby) const LENGTH: usize = 18;
/// Bytes of a door of IPv4.
const SHORT: usize = 6;

/// At most three sockets of IPv4, or one of IPv6. Those that no member listens at are not among them: each is
/// the socket, or the queue, of a rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::lobby) struct Doors {
    bytes: [u8; LENGTH],
    is_long: bool,
}

impl Doors {
    /// Takes as many as there is room for: the first three of IPv4, or the first of IPv6 where there is none
    /// of IPv4.
    pub(in crate::lobby) fn new(sockets: impl IntoIterator<Item = SocketAddr>) -> Self {
        let mut doors = Self::default();
        let mut count = 0;
        let mut long = None;
        for socket in sockets {
            match socket.ip() {
                _ if !is_possible(&socket) => {}
                IpAddr::V4(ip) if count < LENGTH / SHORT => {
                    let at = &mut doors.bytes[count * SHORT..][..SHORT];
                    at[..4].copy_from_slice(&ip.octets());
                    at[4..].copy_from_slice(&socket.port().to_be_bytes());
                    count += 1;
                }
                IpAddr::V4(_) => {}
                IpAddr::V6(ip) => long = long.or(Some((ip, socket.port()))),
            }
        }
        if let (0, Some((ip, port))) = (count, long) {
            doors.bytes[..16].copy_from_slice(&ip.octets());
            doors.bytes[16..].copy_from_slice(&port.to_be_bytes());
            doors.is_long = true;
        }
        doors
    }

    /// Reads the doors of an address; `None` for bytes that [`Doors::new`] does not make.
    pub(in crate::lobby) fn read(bytes: [u8; LENGTH], is_long: bool) -> Option<Self> {
        let found = Self { bytes, is_long };
        (Self::new(found.sockets()) == found).then_some(found)
    }

    /// Returns the bytes, and whether they are a door of IPv6.
    pub(in crate::lobby) fn written(&self) -> ([u8; LENGTH], bool) {
        (self.bytes, self.is_long)
    }

    /// Returns the sockets.
    pub(in crate::lobby) fn sockets(&self) -> impl Iterator<Item = SocketAddr> {
        let port = |bytes: &[u8]| bytes.first_chunk().map_or(0, |port| u16::from_be_bytes(*port));
        let long = self.bytes.first_chunk::<16>().filter(|_| self.is_long);
        let long = long.map(|ip| SocketAddr::new(Ipv6Addr::from(*ip).into(), port(&self.bytes[16..])));
        let short = self.bytes.chunks_exact(SHORT).filter(|_| !self.is_long);
        let short = short.filter_map(move |bytes| {
            let ip = Ipv4Addr::from(*bytes.first_chunk::<4>()?);
            Some(SocketAddr::new(ip.into(), port(&bytes[4..])))
        });
        long.into_iter().chain(short.filter(is_possible))
    }

    /// Whether there is none.
    pub(in crate::lobby) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether frames from other hosts can be sent there.
fn is_possible(socket: &SocketAddr) -> bool {
    let is_one = match socket.ip() {
        IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast(),
    };
    is_one && !socket.ip().is_loopback() && socket.port() != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn doors(texts: &[&str]) -> Doors {
        Doors::new(texts.iter().map(|text| text.parse::<SocketAddr>().unwrap()))
    }

    #[test]
    fn doors_have_these_bytes() {
        let two = doors(&["10.0.1.2:56081", "10.0.2.2:443"]);
        let golden = [10, 0, 1, 2, 0xdb, 0x11, 10, 0, 2, 2, 0x01, 0xbb, 0, 0, 0, 0, 0, 0];
        assert_eq!(two.written(), (golden, false));
        assert_eq!(Doors::read(golden, false), Some(two));
        let long = doors(&["[fd00::2]:56081"]);
        let golden = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0xdb, 0x11];
        assert_eq!(long.written(), (golden, true));
        assert_eq!(Doors::read(golden, true), Some(long));
        assert_eq!(Doors::read([0; LENGTH], false), Some(Doors::default()));
    }

    #[test]
    fn three_of_ipv4_have_room_and_one_of_ipv6_where_there_is_none() {
        let many = [
            "10.0.0.1:1",
            "[fd00::2]:5",
            "10.0.0.2:2",
            "10.0.0.3:3",
            "10.0.0.4:4",
        ];
        let shown: Vec<String> = doors(&many).sockets().map(|socket| socket.to_string()).collect();
        assert_eq!(shown, ["10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3"]);
        assert!(
            doors(&[
                "0.0.0.0:1",
                "127.0.0.1:9",
                "10.0.0.1:0",
                "224.0.0.1:7",
                "[ff02::1]:7"
            ])
            .is_empty()
        );
        // Gaps, the mark of IPv6 without one, and a door that cannot be: none of them was made here.
        let gap = [0, 0, 0, 0, 0, 0, 10, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(Doors::read(gap, false), None);
        assert_eq!(Doors::read([0; LENGTH], true), None);
        assert_eq!(Doors::read([0xff; LENGTH], false), None);
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(bytes: [u8; LENGTH], is_long: bool) {
            if let Some(doors) = Doors::read(bytes, is_long) {
                prop_assert_eq!(doors.written(), (bytes, is_long));
            }
        }
    }
}
