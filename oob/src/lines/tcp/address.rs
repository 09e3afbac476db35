//! Addresses of this transport in contacts: `10.0.0.3/24:4711`, `[fd00::3/64]:4711`.
//!
//! The mask is the owner's: within the same network no router is needed. A link-local address has no
//! interface, since only the reader knows which of its own interfaces may be on that link.

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

/// An address with a port, and the prefix length of its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The IP address.
    pub ip: IpAddr,
    /// The prefix length of its network.
    pub prefix: u8,
    /// The TCP port.
    pub port: u16,
}

impl Place {
    /// Returns the socket address for a socket bound to the interface with this index.
    #[must_use]
    pub fn socket(&self, interface: u32) -> SocketAddr {
        socket(self.ip, self.port, interface)
    }
}

/// Returns a socket address, with the interface if it is link-local.
pub(super) fn socket(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(six) if six.is_unicast_link_local() => SocketAddrV6::new(six, port, 0, interface).into(),
        ip => SocketAddr::new(ip, port),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            IpAddr::V4(ip) => write!(out, "{ip}/{}:{}", self.prefix, self.port),
            IpAddr::V6(ip) => write!(out, "[{ip}/{}]:{}", self.prefix, self.port),
        }
    }
}

/// The text is not an address of this transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address of the transport tcp: use the form 10.0.0.3/24:4711 or [fd00::3/64]:4711")]
pub struct NoPlace;

impl FromStr for Place {
    type Err = NoPlace;

    /// Parses an address. The mask is optional, and the name of an interface (`fe80::3%eth0`) is ignored.
    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let (host, port) = text.rsplit_once(':').ok_or(NoPlace)?;
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let (ip, prefix) = match inner.unwrap_or(host).split_once('/') {
            Some((ip, prefix)) => (ip, Some(prefix.parse::<u8>().map_err(|_| NoPlace)?)),
            None => (inner.unwrap_or(host), None),
        };
        let ip: IpAddr = ip.split('%').next().unwrap_or(ip).parse().map_err(|_| NoPlace)?;
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        let place = Self {
            ip,
            prefix: prefix.unwrap_or(bits),
            port: port.parse().map_err(|_| NoPlace)?,
        };
        let sound = place.port != 0 && place.prefix <= bits && ip.is_ipv6() == inner.is_some();
        let meant = !ip.is_unspecified() && !ip.is_multicast();
        (sound && meant).then_some(place).ok_or(NoPlace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["10.0.0.3/24:4711", "[fd00::3/64]:4711", "127.0.0.1/8:1"] {
            let place: Place = text.parse().unwrap();
            assert_eq!(place.to_string(), text);
        }
        let bare: Place = "[fe80::3%eth0/64]:9".parse().unwrap();
        assert_eq!(bare.to_string(), "[fe80::3/64]:9");
        assert_eq!(bare.socket(7).to_string(), "[fe80::3%7]:9");
        assert_eq!("10.1.2.3:5".parse::<Place>().unwrap().prefix, 32);
    }

    #[test]
    fn others_are_refused() {
        for text in [
            "",
            "10.0.0.3",
            "10.0.0.3:0",
            "10.0.0.3/33:1",
            "fd00::3/64:1",
            "[10.0.0.1]:1",
            "[fd00::3/129]:1",
            "0.0.0.0:1",
            "[ff02::1]:1",
            "host:1",
            "10.0.0.3/24:70000",
            "10.0.0.3/:1",
        ] {
            assert_eq!(text.parse::<Place>(), Err(NoPlace), "{text}");
        }
    }
}
