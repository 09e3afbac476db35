//! Memberships in IP groups, by sockets that receive nothing.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt;

use crate::address::Gid;

/// Has an interface join the IP group that a GID is, for as long as the socket is open. It is bound to no
/// port, so that nothing is queued in it.
pub(super) fn join(group: Gid, interface: u32) -> Result<OwnedFd, Errno> {
    let ip = group.ip();
    let socket = doorbell_inet::unbound(ip.is_ipv4())?;
    match ip {
        IpAddr::V4(ip) => {
            let any = Ipv4Addr::UNSPECIFIED;
            sockopt::set_ip_add_membership_with_ifindex(&socket, &ip, &any, interface)?;
        }
        IpAddr::V6(ip) => sockopt::set_ipv6_add_membership(&socket, &ip, interface)?,
    }
    Ok(socket)
}
