//! The sockets of an endpoint: one at each address for sending and for unicast frames, and one for each
//! group.
//!
//! Each is bound to an address and to its interface, and sends with hop limit 1 and without fragmentation.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};

use super::super::groups::ipv4_group;
use super::super::replay::Family;
use crate::address::Gid;
use crate::endpoint::Endpoint;

/// Receive buffer requested for a socket (bytes).
const WAITING: usize = 1 << 20;

/// Maximum addresses of a family at which an endpoint is reached.
pub(super) const ADDRESSES_MAX: usize = 32;

/// A socket of an endpoint.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) fd: OwnedFd,
    pub(super) family: Family,
    /// The group it receives; `None` for a unicast socket.
    pub(super) group: Option<Gid>,
    /// The address it is bound to.
    pub(super) own: SocketAddr,
}

/// Returns the addresses of a family at which an endpoint is reached. It sends to groups from the first one:
/// over IPv6, from one that everyone on the link can answer to.
pub(super) fn addresses(endpoint: &Endpoint, family: Family) -> Vec<IpAddr> {
    let all = endpoint.addresses.iter().filter_map(|address| address.ip());
    let mut all: Vec<IpAddr> = all.filter(|ip| Family::of(*ip) == family).collect();
    all.sort_by_key(|ip| !matches!(ip, IpAddr::V6(six) if six.is_unicast_link_local()));
    // An address may be listed with several networks.
    let mut seen = HashSet::new();
    all.retain(|ip| seen.insert(*ip));
    all.truncate(ADDRESSES_MAX);
    all
}

fn scoped(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    doorbell_inet::scoped(SocketAddr::new(ip, port), interface)
}

/// Opens a socket on the endpoint's interface, without binding an address.
fn unbound(endpoint: &Endpoint, interface: &str, family: Family) -> Result<OwnedFd, Errno> {
    let socket = doorbell_inet::unbound(family == Family::V4)?;
    let bound = doorbell_inet::bind_to_device(socket.as_fd(), interface);
    // Before Linux 5.7 this takes root; then the bound address and the filter keep other interfaces out.
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
    // The system may allow less.
    let _ = sockopt::set_socket_recv_buffer_size(&socket, WAITING);
    Ok(socket)
}

impl Socket {
    /// Opens a socket for sending and for unicast frames, at a port or at any (0).
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

    /// Opens the socket of a group. Every service of this host that has joined the group receives each frame.
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

/// Returns the destination of frames for a group.
pub(super) fn destination(family: Family, group: Gid, port: u16, interface: u32) -> SocketAddr {
    match family {
        Family::V4 => (ipv4_group(group), port).into(),
        Family::V6 => SocketAddrV6::new(Ipv6Addr::from(group.0), port, 0, interface).into(),
    }
}
