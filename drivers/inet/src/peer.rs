//! Converts a peer's published address to its two socket addresses.

use std::net::{IpAddr, SocketAddr};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;

use crate::interface::{Interface, scoped};

/// Kinds of rails with the same frames over UDP: each accepts the others' addresses.
pub const UDP_RAIL_KINDS: [&str; 4] = ["udp", "xdp", "usnic", "igbvf"];

impl Interface {
    /// Returns the peer's two socket addresses, one for each channel.
    ///
    /// # Errors
    /// [`RailError::BadAddress`] with the reason why it cannot be a peer of the rail `name` over this
    /// interface.
    pub fn sockets_of(&self, name: &RailName, address: &RailAddress) -> Result<[SocketAddr; 2], RailError> {
        let bad = |reason| RailError::BadAddress {
            rail: name.to_string(),
            address: address.to_string(),
            reason,
        };
        let found = UDP_RAIL_KINDS.iter().find_map(|kind| address.inet_of(kind));
        let socket = found.ok_or_else(|| bad("it is not an IP address with a port"))?;
        let ip = socket.ip();
        let reason = if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::from([255; 4]) {
            "it is not the address of a single host"
        } else if let Some(reason) = self.unreachable_reason(ip) {
            reason
        } else if socket.port() == 0 || socket.port() == u16::MAX {
            "a pair of ports starts between 1 and 65534"
        } else {
            let second = SocketAddr::new(ip, socket.port() + 1);
            return Ok([socket, second].map(|one| scoped(one, self.index)));
        };
        Err(bad(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface_query::InterfaceQuery;

    #[test]
    fn only_pairs_of_ports_of_one_host_of_the_family_will_do() {
        let name: RailName = "udp:lo".parse().unwrap();
        let lo = Interface::find(&name, &InterfaceQuery::default()).unwrap();
        let of = |kind: &str, text: &str| {
            lo.sockets_of(&name, &RailAddress::inet(kind, text.parse().unwrap()))
                .map(|pair| pair.map(|one| one.port()))
        };
        for kind in UDP_RAIL_KINDS {
            assert_eq!(of(kind, "127.0.0.1:56080").unwrap(), [56080, 56081]);
        }
        for (kind, text, word) in [
            ("shm", "127.0.0.1:56080", "not an IP address"),
            ("udp", "0.0.0.0:56080", "of a single host"),
            ("udp", "255.255.255.255:56080", "of a single host"),
            ("udp", "127.0.0.1:65535", "pair of ports"),
            ("udp", "127.0.0.1:0", "pair of ports"),
            ("udp", "[::1]:56080", "other family"),
            ("udp", "10.0.0.1:56080", "loopback"),
        ] {
            let said = of(kind, text).unwrap_err().to_string();
            assert!(said.contains(word), "{kind} {text}: {said}");
        }
    }
}
