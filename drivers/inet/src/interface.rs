//! Resolves a rail's name to an interface and one of its addresses.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

use doorbell_fabric::error::{RailError, advice};
use doorbell_fabric::name::RailName;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice};

use crate::interface_query::{FRAME_MIN, Family, InterfaceQuery, PAYLOAD_MAX, unusable};
use crate::nics::{Assigned, assigned, own_name};
use crate::route::network;
use crate::sys::{self, InterfaceState};

/// The interface that a rail uses, with the address that it binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, as the kernel has it.
    pub name: String,
    /// Its index in this network namespace.
    pub index: u32,
    /// Inode number of the network namespace; 0 if unknown.
    pub network: u64,
    /// The address that the rail binds.
    pub address: IpAddr,
    /// Prefix length of the address's network, in bits.
    pub prefix: u8,
    /// Flags and MTU at the time of the query.
    pub state: InterfaceState,
}

/// Bytes of the IP header without options and the UDP header.
pub const fn headers(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => 20 + 8,
        IpAddr::V6(_) => 40 + 8,
    }
}

impl Interface {
    /// Finds the interface that a rail's name refers to.
    pub fn find(name: &RailName, query: &InterfaceQuery) -> Result<Self, RailError> {
        let all = assigned().map_err(|error| system_error(name, "list the interfaces", error))?;
        let object = name.object();
        let (bare, scope) = object
            .split_once('%')
            .map_or((object, None), |(bare, scope)| (bare, Some(scope)));
        let (interface, address) = match bare.parse::<IpAddr>() {
            Ok(address) => (holder(name, &all, address, scope)?, address),
            Err(_) => match (own_name(&all, object), labelled(&all, object)) {
                (Some(own), _) => (own.to_owned(), first_address(name, own, &all, query.family)?),
                (None, Some((own, address))) => (own.to_owned(), address),
                (None, None) if looks_like_address(object) => return Err(no_address(name, &all)),
                (None, None) => return Err(no_interface(name, &all)),
            },
        };
        let (index, state) = interface_state(&interface)
            .map_err(|error| system_error(name, "query the interface's state", error))?;
        // Two interfaces may have the same link-local address.
        let own = all
            .iter()
            .find(|one| one.address == Some(address) && one.interface == interface);
        Ok(Self {
            name: interface,
            index,
            network: network(),
            prefix: own.map_or(0, |one| one.prefix),
            address,
            state,
        })
    }

    /// Returns the interface if it can carry frames now.
    pub fn require(self, name: &RailName, query: &InterfaceQuery) -> Result<Self, RailError> {
        if !is_up(self.state.flags) {
            let remedy = format!(
                "`ip link set {} up`, and look at its cable or its other end",
                self.name
            );
            return Err(unusable(
                name,
                format!("the interface {} is down", self.name),
                remedy,
            ));
        }
        if self.limit(query) < FRAME_MIN {
            let (mtu, frame) = (self.mtu(query), query.frame);
            let reason = format!("an MTU of {mtu} bytes and frames of {frame} are too small for messages");
            return Err(unusable(
                name,
                reason,
                "raise the MTU, and udp.mtu where it is set, to 576 or more",
            ));
        }
        Ok(self)
    }

    /// Largest IP packet in bytes.
    pub fn mtu(&self, query: &InterfaceQuery) -> usize {
        query.mtu.map_or(self.state.mtu, |most| most.min(self.state.mtu))
    }

    /// Longest frame in bytes.
    pub fn limit(&self, query: &InterfaceQuery) -> usize {
        let by_mtu = self.mtu(query).saturating_sub(headers(self.address));
        by_mtu.min(query.frame).min(PAYLOAD_MAX)
    }

    /// Returns its address with a port, and with the interface as the scope of a link-local address.
    pub fn socket_address(&self, port: u16) -> SocketAddr {
        scoped(SocketAddr::new(self.address, port), self.index)
    }

    /// Returns its address with both ports of a rail, of which `port` is the first.
    pub fn both_sockets(&self, port: u16) -> [SocketAddr; 2] {
        [port, port.saturating_add(1)].map(|port| self.socket_address(port))
    }

    /// Whether it is a loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.state.flags & libc::IFF_LOOPBACK as u32 != 0
    }
}

/// Sets this interface as the scope of a link-local address. A published address has the peer's own index of
/// the link, or none.
pub fn scoped(address: SocketAddr, interface: u32) -> SocketAddr {
    match address {
        SocketAddr::V6(six) => {
            let scope = if six.ip().is_unicast_link_local() {
                interface
            } else {
                0
            };
            SocketAddrV6::new(*six.ip(), six.port(), 0, scope).into()
        }
        four => four,
    }
}

/// Whether the interface is up and its link is running.
pub fn is_up(flags: u32) -> bool {
    let needed = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
    flags & needed == needed
}

/// Queries index, flags and MTU of the interface `name` in this network namespace, usable or not.
///
/// # Errors
/// When there is no such interface, or the kernel refuses the query.
pub fn interface_state(name: &str) -> io::Result<(u32, InterfaceState)> {
    let socket = probe_socket()?;
    Ok((
        netdevice::name_to_index(&socket, name)?,
        sys::interface(socket.as_fd(), name)?,
    ))
}

/// Returns the name of the interface with this index in this network namespace.
///
/// # Errors
/// When there is no such interface, or the kernel refuses the query.
pub fn name_of(index: u32) -> io::Result<String> {
    Ok(netdevice::index_to_name(probe_socket()?, index)?)
}

/// A socket for interface ioctls.
pub(crate) fn probe_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        flags,
        None,
    )?)
}

/// Whether `object` is meant as an address: digits and dots, or anything with a colon. Interfaces with such
/// names take precedence.
pub fn looks_like_address(object: &str) -> bool {
    let four = object.contains('.') && object.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    four || object.contains(':')
}

/// Returns the address with this label, and its interface.
fn labelled<'a>(all: &'a [Assigned], label: &str) -> Option<(&'a str, IpAddr)> {
    let one = all.iter().find(|one| one.label.as_deref() == Some(label))?;
    Some((&one.interface, one.address?))
}

fn no_address(name: &RailName, all: &[Assigned]) -> RailError {
    if let Some((interface, _)) = name.object().split_once(':')
        && let Some(own) = own_name(all, interface)
    {
        return unusable(
            name,
            format!("no address of {own} has the label {}", name.object()),
            "`ip address` shows the label of each address behind its scope",
        );
    }
    let what = if name.object().contains(':') {
        "IPv6"
    } else {
        "IPv4"
    };
    unusable(
        name,
        format!("`{}` looks like an {what} address, but is not one", name.object()),
        "name an interface, or an address that `ip address` shows",
    )
}

/// Finds the interface that has `address`, or checks the one that a scope names (`fe80::1%eth0`).
fn holder(
    name: &RailName,
    all: &[Assigned],
    address: IpAddr,
    scope: Option<&str>,
) -> Result<String, RailError> {
    let own = scope.map(|scope| own_name(all, scope).unwrap_or(scope));
    let mut found = all
        .iter()
        .filter(|one| one.address == Some(address) && own.is_none_or(|own| one.interface == own));
    let first = found.next().ok_or_else(|| {
        let reason = match scope {
            Some(scope) => format!("the interface {scope} does not have this address"),
            None => "no interface has this address".to_owned(),
        };
        unusable(name, reason, "`ip address` lists this host's addresses")
    })?;
    match found.find(|other| other.interface != first.interface) {
        Some(other) => Err(unusable(
            name,
            format!(
                "{} and {} both have this address",
                first.interface, other.interface
            ),
            format!("name one of them, as in {name}%{}", first.interface),
        )),
        None => Ok(first.interface.clone()),
    }
}

fn no_interface(name: &RailName, all: &[Assigned]) -> RailError {
    let mut names: Vec<&str> = all.iter().map(|one| one.interface.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let object = name.object();
    let reason = if object.is_empty() {
        "it names no interface".to_owned()
    } else {
        format!("there is no interface {object}, and it is not an address")
    };
    unusable(name, reason, format!("name one of {}", names.join(", ")))
}

/// Returns the first address of this family on the interface `object`, which `name` names.
fn first_address(
    name: &RailName,
    object: &str,
    all: &[Assigned],
    family: Family,
) -> Result<IpAddr, RailError> {
    let mine = all
        .iter()
        .filter(|one| one.interface == object)
        .filter_map(|one| one.address);
    let link_local = |address: &IpAddr| matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
    let mut wanted: Vec<IpAddr> = match family {
        Family::V4 => mine.filter(IpAddr::is_ipv4).collect(),
        Family::V6 => mine.filter(IpAddr::is_ipv6).collect(),
    };
    // A stable sort keeps the kernel's order among equals.
    wanted.sort_by_key(link_local);
    wanted.first().copied().ok_or_else(|| {
        let (what, other) = match family {
            Family::V4 => ("IPv4", "ipv6"),
            Family::V6 => ("IPv6", "ipv4"),
        };
        let remedy = format!("`ip address add … dev {object}`, or set udp.family={other}");
        unusable(
            name,
            format!("the interface {object} has no {what} address"),
            remedy,
        )
    })
}

/// Builds the error of a rail for which the system refused a step.
pub fn system_error(name: &RailName, step: &'static str, source: io::Error) -> RailError {
    let known = match source.raw_os_error() {
        // A firewall can cause EPERM on a socket too, so no single advice fits.
        Some(libc::EPERM) => None,
        _ => advice(&source),
    };
    RailError::System {
        rail: name.to_string(),
        step,
        remedy: known.unwrap_or("check `ip address`, `ulimit -n`, and what the container allows"),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str, family: Family) -> Result<Interface, RailError> {
        let query = InterfaceQuery {
            family,
            ..InterfaceQuery::default()
        };
        let name: RailName = text.parse().unwrap();
        Interface::find(&name, &query)?.require(&name, &query)
    }

    #[test]
    fn an_interface_and_its_address_name_the_same() {
        let by_name = find("udp:lo", Family::V4).unwrap();
        assert_eq!(by_name.address, IpAddr::from([127, 0, 0, 1]));
        assert_eq!(by_name.prefix, 8);
        assert_eq!(find("udp:127.0.0.1", Family::V6).unwrap(), by_name);
        assert!(by_name.is_loopback() && by_name.index > 0);
        let small = InterfaceQuery {
            mtu: Some(1500),
            ..InterfaceQuery::default()
        };
        assert_eq!((by_name.mtu(&small), by_name.limit(&small)), (1500, 1472));
        assert!(by_name.limit(&InterfaceQuery::default()) <= PAYLOAD_MAX);
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        let refused = |text: &str| find(text, Family::V4).unwrap_err().to_string();
        assert!(
            refused("udp:nosuch0").contains("lo"),
            "{}",
            refused("udp:nosuch0")
        );
        assert!(
            refused("udp").contains("names no interface"),
            "{}",
            refused("udp")
        );
        assert!(refused("udp:192.0.2.77").contains("no interface has this address"));
        let name: RailName = "udp:lo".parse().unwrap();
        let tiny = InterfaceQuery {
            mtu: Some(100),
            ..InterfaceQuery::default()
        };
        let error = Interface::find(&name, &tiny)
            .unwrap()
            .require(&name, &tiny)
            .unwrap_err();
        assert!(error.to_string().contains("too small for messages"), "{error}");
    }

    #[test]
    fn only_link_local_addresses_get_a_scope() {
        let with = |text: &str| scoped(text.parse().unwrap(), 7).to_string();
        assert_eq!(with("[fe80::1%2]:5"), "[fe80::1%7]:5");
        assert_eq!(with("[2001:db8::1]:5"), "[2001:db8::1]:5");
        assert_eq!(with("10.0.0.1:5"), "10.0.0.1:5");
    }
}
