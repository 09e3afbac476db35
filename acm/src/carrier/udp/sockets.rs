//! The sockets of an endpoint: one at each address for what it sends and what comes to it alone, and one for each group.
//!
//! Each is bound to an address and to its interface, and sends with hop limit 1 and without being fragmented.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};

use super::super::groups::ipv4_group;
use super::super::seen::Family;
use crate::address::Gid;
use crate::endpoint::Endpoint;

/// Bytes that the kernel is asked to keep for a socket.
const WAITING: usize = 1 << 20;

/// Addresses of a family at which an endpoint is reached, at most.
pub(super) const ADDRESSES_MAX: usize = 32;

/// A socket of an endpoint.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) fd: OwnedFd,
    pub(super) family: Family,
    /// None for one that sends.
    pub(super) group: Option<Gid>,
    /// What it is bound to.
    pub(super) own: SocketAddr,
}

/// The addresses of a family at which an endpoint is reached. It sends to groups from the first: over IPv6 one that everybody
/// on the link can answer to.
pub(super) fn addresses(endpoint: &Endpoint, family: Family) -> Vec<IpAddr> {
    let all = endpoint.addresses.iter().filter_map(|address| address.ip());
    let mut all: Vec<IpAddr> = all.filter(|ip| Family::of(*ip) == family).collect();
    all.sort_by_key(|ip| !matches!(ip, IpAddr::V6(six) if six.is_unicast_link_local()));
    // One may be there with several networks.
    let mut seen = HashSet::new();
    all.retain(|ip| seen.insert(*ip));
    all.truncate(ADDRESSES_MAX);
    all
}

fn scoped(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    doorbell_inet::scoped(SocketAddr::new(ip, port), interface)
}

/// A socket of the endpoint's interface, not bound to an address yet.
fn unbound(endpoint: &Endpoint, interface: &str, family: Family) -> Result<OwnedFd, Errno> {
    let socket = doorbell_inet::unbound(family == Family::V4)?;
    let bound = doorbell_inet::bind_to_device(socket.as_fd(), interface);
    // Before Linux 5.7 only root may: the address that is bound then keeps other interfaces out, and what is looked at of
    // each frame.
    match bound.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
        Err(Errno::PERM) | Ok(()) => {}
        Err(errno) => return Err(errno),
    }
    match family {
        Family::V4 => {
            sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
            sockopt::set_ip_ttl(&socket, 1)?;
            sockopt::set_ip_multicast_ttl(&socket, 1)?;
            sockopt::set_ip_multicast_loop(&socket, true)?;
            let (none, any) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED);
            sockopt::set_ip_multicast_if_with_ifindex(&socket, &none, &any, endpoint.interface)?;
        }
        Family::V6 => {
            sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
            sockopt::set_ipv6_unicast_hops(&socket, Some(1))?;
            sockopt::set_ipv6_multicast_hops(&socket, 1)?;
            sockopt::set_ipv6_multicast_loop(&socket, true)?;
            sockopt::set_ipv6_multicast_if(&socket, endpoint.interface)?;
        }
    }
    // As much as the system allows.
    let _ = sockopt::set_socket_recv_buffer_size(&socket, WAITING);
    Ok(socket)
}

impl Socket {
    /// A socket that sends, at a port or at any (0).
    pub(super) fn sender(endpoint: &Endpoint, interface: &str, ip: IpAddr, port: u16) -> Result<Self, Errno> {
        let family = Family::of(ip);
        let fd = unbound(endpoint, interface, family)?;
        rustix::net::bind(&fd, &scoped(ip, port, endpoint.interface))?;
        let own = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?;
        Ok(Self {
            fd,
            family,
            group: None,
            own,
        })
    }

    /// The socket of a group. Every service of this host that has joined it hears each frame.
    pub(super) fn group(
        endpoint: &Endpoint,
        interface: &str,
        family: Family,
        group: Gid,
        port: u16,
    ) -> Result<Self, Errno> {
        let fd = unbound(endpoint, interface, family)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        let own = destination(family, group, port, endpoint.interface);
        rustix::net::bind(&fd, &own)?;
        match own.ip() {
            IpAddr::V4(ip) => {
                sockopt::set_ip_add_membership_with_ifindex(
                    &fd,
                    &ip,
                    &Ipv4Addr::UNSPECIFIED,
                    endpoint.interface,
                )?;
            }
            IpAddr::V6(ip) => sockopt::set_ipv6_add_membership(&fd, &ip, endpoint.interface)?,
        }
        Ok(Self {
            fd,
            family,
            group: Some(group),
            own,
        })
    }
}

/// Where frames for a group go to.
pub(super) fn destination(family: Family, group: Gid, port: u16, interface: u32) -> SocketAddr {
    match family {
        Family::V4 => (ipv4_group(group), port).into(),
        Family::V6 => SocketAddrV6::new(Ipv6Addr::from(group.0), port, 0, interface).into(),
    }
}
