//! Addresses in text form: `10.0.0.1:7117`, `[fe80::1%eth0]:7117`, `host`, `:7117`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::net::{self, netdevice};

use crate::error::OobError;

/// The default port.
pub const PORT: u16 = 7117;
/// Maximum addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;
/// Maximum bytes of a host name (RFC 1035, section 2.3.4).
const NAME_MAX: usize = 253;

/// An address and a port, or a host name and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Address(SocketAddr),
    Name(String),
}

impl Endpoint {
    /// Returns the host name, if it is not an address.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match &self.host {
            Host::Address(_) => None,
            Host::Name(name) => Some(name),
        }
    }

    /// Returns the port number.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the socket addresses; a name look-up takes at most `limit`.
    ///
    /// # Errors
    /// [`OobError::Address`]; [`OobError::Late`].
    pub fn resolve(&self, limit: Duration) -> Result<Vec<SocketAddr>, OobError> {
        let name = match &self.host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name.clone(),
        };
        let bad = |reason: String| OobError::Address {
            given: self.to_string(),
            reason,
        };
        // The system's resolver has no deadline: its thread may finish alone, or end with the process.
        let (tell, told) = mpsc::channel();
        let port = self.port;
        thread::Builder::new()
            .name("doorbell-resolve".to_owned())
            .spawn(move || {
                let found = (name.as_str(), port).to_socket_addrs();
                let _ = tell.send(found.map(|all| all.take(ADDRESSES_MAX).collect::<Vec<_>>()));
            })
            .map_err(|error| bad(format!("cannot start a thread to look it up: {error}")))?;
        match told.recv_timeout(limit) {
            Ok(Ok(all)) if !all.is_empty() => Ok(all),
            Ok(Ok(_)) => Err(bad("the name has no address".to_owned())),
            Ok(Err(error)) => Err(bad(format!("cannot look up the name ({error})"))),
            Err(_) => Err(OobError::Late {
                address: format!("the name service, queried for `{self}`,"),
                step: "answer",
                waited: limit,
                remedy: "give the address in numbers",
            }),
        }
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self {
            host: Host::Address(address),
            port: address.port(),
        }
    }
}

impl FromStr for Endpoint {
    type Err = OobError;

    fn from_str(text: &str) -> Result<Self, OobError> {
        let bad = |reason: &str| {
            Err(OobError::Address {
                given: text.to_owned(),
                reason: reason.to_owned(),
            })
        };
        if let Ok(address) = text.parse::<SocketAddr>() {
            return if lacks_scope(&address) {
                bad(SCOPE_NEEDED)
            } else {
                Ok(address.into())
            };
        }
        if text.contains('%') {
            return scoped(text).map(Self::from).or_else(|reason| bad(&reason));
        }
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        if let Ok(address) = bare.unwrap_or(text).parse::<IpAddr>() {
            let address = SocketAddr::new(address, PORT);
            return if lacks_scope(&address) {
                bad(SCOPE_NEEDED)
            } else {
                Ok(address.into())
            };
        }
        let (host, port) = match text.rsplit_once(':') {
            None => (text, PORT),
            Some((host, port)) => match port.parse::<u16>() {
                Ok(port) if port.to_string().len() == port_digits(text) => (host, port),
                _ => return bad("its port is not a number from 0 to 65535"),
            },
        };
        if host.is_empty() && text.starts_with(':') {
            return Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port).into());
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if host.is_empty() || host.len() > NAME_MAX || !host.bytes().all(fits) || host.starts_with('-') {
            return bad("it is neither an address nor the name of a host");
        }
        // By its characters `10.0.0` could be a name, but is never meant as one.
        if host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return bad("it looks like an IPv4 address, but is not valid");
        }
        Ok(Self {
            host: Host::Name(host.to_owned()),
            port,
        })
    }
}

/// The reason for a link-local address without an interface.
const SCOPE_NEEDED: &str = "it is link-local, so its interface is needed, as in fe80::1%eth0";

/// Whether an address is link-local and has no interface.
fn lacks_scope(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(six) if six.ip().is_unicast_link_local() && six.scope_id() == 0)
}

/// Parses `fe80::1%eth0`, also in brackets and with a port after them (RFC 4007, section 11; RFC 3986,
/// section 3.2.2).
fn scoped(text: &str) -> Result<SocketAddr, String> {
    let (inner, port) = match text.strip_prefix('[') {
        None => (text, PORT),
        Some(rest) => {
            let (inner, behind) = rest.split_once(']').ok_or("its bracket is not closed")?;
            let port = match behind.strip_prefix(':') {
                None if behind.is_empty() => Some(PORT),
                None => None,
                Some(digits) => digits
                    .parse()
                    .ok()
                    .filter(|port: &u16| port.to_string() == digits),
            };
            (inner, port.ok_or("its port is not a number from 0 to 65535")?)
        }
    };
    let (address, interface) = inner
        .split_once('%')
        .ok_or("its interface is not in the brackets")?;
    let address: Ipv6Addr = address
        .parse()
        .map_err(|_| "only an IPv6 address has an interface after a %")?;
    if !address.is_unicast_link_local() {
        return Err("it is not link-local: leave the interface out".to_owned());
    }
    let index = interface_index(interface)
        .ok_or_else(|| format!("there is no interface `{interface}` here; `ip link` lists them"))?;
    Ok(SocketAddrV6::new(address, port, 0, index).into())
}

/// Returns the index of an interface, by name or by number.
fn interface_index(name: &str) -> Option<u32> {
    let socket = net::socket(net::AddressFamily::INET6, net::SocketType::DGRAM, None).ok()?;
    let number = || name.parse().ok().filter(|index| *index != 0);
    match netdevice::name_to_index(&socket, name) {
        Ok(index) => Some(index),
        Err(_) => doorbell_inet::index_of(name)
            .or_else(|| number().filter(|index| netdevice::index_to_name(&socket, *index).is_ok())),
    }
}

fn port_digits(text: &str) -> usize {
    text.rsplit_once(':').map_or(0, |(_, port)| port.len())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(address) => address.fmt(out),
            Host::Name(name) => write!(out, "{name}:{}", self.port),
        }
    }
}

/// Whether only processes of this host can be at that address.
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        text.parse::<Endpoint>().unwrap().to_string()
    }

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, meant) in [
            ("10.0.0.1:99", "10.0.0.1:99"),
            ("10.0.0.1", "10.0.0.1:7117"),
            ("::1", "[::1]:7117"),
            ("[fd00::1]:5", "[fd00::1]:5"),
            ("fe80::1%lo", "[fe80::1%1]:7117"),
            ("[fe80::1%lo]", "[fe80::1%1]:7117"),
            ("[fe80::1%lo]:5", "[fe80::1%1]:5"),
            ("[fe80::1%1]:5", "[fe80::1%1]:5"),
            ("[::]", "[::]:7117"),
            (":80", "127.0.0.1:80"),
            ("node-3.cluster:80", "node-3.cluster:80"),
            ("localhost", "localhost:7117"),
        ] {
            assert_eq!(parsed(text), meant);
        }
        for text in [
            "",
            "host:",
            "host:65536",
            "host:+80",
            "host:080",
            "a b",
            "10.0.0",
            "-x",
            "[::1",
            "http://x",
        ] {
            assert!(
                matches!(text.parse::<Endpoint>(), Err(OobError::Address { .. })),
                "{text}"
            );
        }
        assert!(
            parsed("localhost")
                .parse::<Endpoint>()
                .unwrap()
                .resolve(Duration::from_secs(5))
                .is_ok()
        );
    }

    /// The loopback is interface 1 on every machine, also in a fresh network namespace.
    #[test]
    fn link_local_addresses_have_an_interface_that_is_there() {
        for (text, word) in [
            ("fe80::1", "its interface is needed"),
            ("[fe80::1]:5", "its interface is needed"),
            ("fe80::1%nosuch0", "no interface `nosuch0`"),
            ("fe80::1%0", "no interface `0`"),
            ("fe80::1%", "no interface"),
            ("[fe80::1%lo]:x", "port"),
            ("[fe80::1%lo]:05", "port"),
            ("[fe80::1%lo", "bracket"),
            ("[fe80::1]%lo", "port"),
            ("fd00::1%lo", "not link-local"),
            ("10.0.0.1%lo", "only an IPv6"),
        ] {
            let said = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(said.contains(word), "{text}: {said}");
        }
    }

    #[test]
    fn loopback_is_what_no_other_host_reaches() {
        for (text, yes) in [
            ("127.0.0.1:1", true),
            ("127.3.4.5:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
        ] {
            assert_eq!(is_loopback(&text.parse().unwrap()), yes, "{text}");
        }
    }
}
