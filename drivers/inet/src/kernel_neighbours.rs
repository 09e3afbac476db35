//! Reads and monitors the kernel's neighbour table for one interface. ARP and NDP are the kernel's work here
//! (rtnetlink(7), linux/neighbour.h).
//!
//! ```text
//!   query(ip)   ──► RTM_GETNEIGH            the current entry; the reply is queued before the call returns
//!   resolve(ip) ──► RTM_NEWNEIGH, NTF_USE   makes the kernel send a request
//!   changes()   ◄── RTM_NEWNEIGH, RTNLGRP_NEIGH: new, changed and expired entries
//!               ◄── RTM_NEWROUTE and the like: next hops may have changed
//! ```
//!
//! One socket serves all of this, and stays in the network namespace where it was opened.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use doorbell_fabric::ether::Mac;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::netlink::{CREATE, REQUEST, attribute, attributes, message, messages};
use crate::route::{ip_of, octets};

/// The multicast groups of neighbour changes, and of route and rule changes of both families.
const GROUP_NEIGH: u32 = libc::RTMGRP_NEIGH as u32;
const GROUPS_ROUTE: u32 =
    (libc::RTMGRP_IPV4_ROUTE | libc::RTMGRP_IPV4_RULE | libc::RTMGRP_IPV6_ROUTE | RTMGRP_IPV6_RULE) as u32;
/// The bit of `RTNLGRP_IPV6_RULE`, which has no constant of its own (linux/rtnetlink.h).
const RTMGRP_IPV6_RULE: i32 = 1 << (19 - 1);
/// Message types of new and deleted routes and rules.
const ROUTES: [u16; 4] = [
    libc::RTM_NEWROUTE,
    libc::RTM_DELROUTE,
    libc::RTM_NEWRULE,
    libc::RTM_DELRULE,
];
/// Size of `ndmsg`, and offsets of interface, state and flags in it.
const NDMSG: usize = 12;
const INTERFACE: usize = 4;
const STATE: usize = 8;
const FLAGS: usize = 10;
/// States in which an address may be used.
const VALID: u16 = libc::NUD_REACHABLE
    | libc::NUD_STALE
    | libc::NUD_DELAY
    | libc::NUD_PROBE
    | libc::NUD_NOARP
    | libc::NUD_PERMANENT;

/// A change of the neighbour table or of the routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourUpdate {
    /// One neighbour, with its hardware address while it is known.
    Neighbour(IpAddr, Option<Mac>),
    /// Routes changed: any peer may have another next hop.
    Routes,
}

/// Monitors the neighbours on one interface.
#[derive(Debug)]
pub struct KernelNeighbours {
    socket: OwnedFd,
    interface: u32,
    /// Changes were lost, and the socket has not been empty since.
    lost: bool,
}

impl KernelNeighbours {
    /// Starts to monitor the neighbours on the interface with this index.
    ///
    /// # Errors
    /// When the system provides no socket.
    pub fn watch(interface: u32) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUP_NEIGH | GROUPS_ROUTE))?;
        Ok(Self {
            socket,
            interface,
            lost: false,
        })
    }

    /// The netlink socket, readable when there are changes.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Requests the entry of `ip`; if the kernel has one, the next changes contain it.
    pub fn query(&self, ip: IpAddr) {
        self.send(libc::RTM_GETNEIGH, REQUEST, &self.about(ip));
    }

    /// Makes the kernel resolve `ip`; the result is a change. Needs `CAP_NET_ADMIN`.
    pub fn resolve(&self, ip: IpAddr) {
        let mut body = self.about(ip);
        // Marked as used, so that the kernel resolves or revalidates the entry.
        body[FLAGS] = libc::NTF_USE;
        self.send(libc::RTM_NEWNEIGH, REQUEST | CREATE, &body);
    }

    /// Errors are ignored: callers repeat a request that was not sent, and a refusal arrives as a reply
    /// without a change.
    fn send(&self, what: u16, flags: u16, body: &[u8]) {
        let _ = rustix::net::send(&self.socket, &message(what, flags, body), SendFlags::DONTWAIT);
    }

    /// Reads pending changes. Returns true when some were lost in an overrun, so that every entry has to be
    /// queried again. That is reported only once the socket is empty, since the kernel drops replies until
    /// then. One system call when nothing is pending.
    pub fn changes(&mut self, mut emit: impl FnMut(NeighbourUpdate)) -> bool {
        let mut bytes = [0; 8192];
        // Bounded: the next call continues in a storm of changes. Sleepers poll the socket level-triggered,
        // so the remaining messages wake them.
        for _ in 0..64 {
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::empty()) {
                Ok((length, _)) => messages(&bytes[..length])
                    .filter_map(|(kind, body)| change(kind, body, self.interface))
                    .for_each(&mut emit),
                Err(Errno::NOBUFS) => self.lost = true,
                Err(_) => return std::mem::take(&mut self.lost),
            }
        }
        false
    }

    fn about(&self, ip: IpAddr) -> Vec<u8> {
        let mut body = vec![0; NDMSG];
        body[0] = if ip.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        } as u8;
        body[INTERFACE..INTERFACE + 4].copy_from_slice(&self.interface.to_ne_bytes());
        attribute(&mut body, libc::NDA_DST, &octets(ip));
        body
    }
}

fn change(kind: u16, body: &[u8], interface: u32) -> Option<NeighbourUpdate> {
    match kind {
        libc::RTM_NEWNEIGH => read(body, interface).map(|(ip, mac)| NeighbourUpdate::Neighbour(ip, mac)),
        libc::RTM_DELNEIGH => read(body, interface).map(|(ip, _)| NeighbourUpdate::Neighbour(ip, None)),
        kind => ROUTES.contains(&kind).then_some(NeighbourUpdate::Routes),
    }
}

/// Reads a neighbour entry of this interface. Bridges report hardware addresses in the same messages, under a
/// family of their own.
fn read(body: &[u8], interface: u32) -> Option<(IpAddr, Option<Mac>)> {
    let head = body.first_chunk::<NDMSG>()?;
    let about = u32::from_ne_bytes(*head[INTERFACE..].first_chunk()?);
    let state = u16::from_ne_bytes(*head[STATE..].first_chunk()?);
    let (mut ip, mut mac) = (None, None);
    for (what, value) in attributes(&body[NDMSG..]) {
        match what {
            libc::NDA_DST => ip = ip_of(value),
            libc::NDA_LLADDR => mac = Mac::try_from(value).ok(),
            _ => {}
        }
    }
    let (ip, usable) = (ip?, state & VALID != 0);
    let family = if ip.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let ours = about == interface && i32::from(head[0]) == family;
    ours.then_some((ip, mac.filter(|_| usable)))
}

/// Entry point for the fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzing(kind: u16, body: &[u8]) {
    for kind in [kind, libc::RTM_NEWNEIGH, libc::RTM_DELNEIGH] {
        let _ = change(kind, body, 3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(interface: u32, state: u16) -> Vec<u8> {
        let mut body = vec![0; NDMSG];
        body[0] = libc::AF_INET as u8;
        body[INTERFACE..INTERFACE + 4].copy_from_slice(&interface.to_ne_bytes());
        body[STATE..STATE + 2].copy_from_slice(&state.to_ne_bytes());
        attribute(&mut body, libc::NDA_DST, &[10, 0, 0, 7]);
        attribute(&mut body, libc::NDA_LLADDR, &[2, 1, 1, 1, 1, 1]);
        body
    }

    #[test]
    fn only_usable_addresses_of_this_interface_count() {
        let ip = IpAddr::from([10, 0, 0, 7]);
        let mac = Some([2, 1, 1, 1, 1, 1]);
        let told = |kind, body: &[u8]| change(kind, body, 3);
        let known = Some(NeighbourUpdate::Neighbour(ip, mac));
        let unknown = Some(NeighbourUpdate::Neighbour(ip, None));
        assert_eq!(told(libc::RTM_NEWNEIGH, &message(3, 2)), known);
        assert_eq!(told(libc::RTM_NEWNEIGH, &message(3, 0x80)), known);
        assert_eq!(told(libc::RTM_NEWNEIGH, &message(3, 0x20)), unknown, "it failed");
        assert_eq!(
            told(libc::RTM_NEWNEIGH, &message(3, 1)),
            unknown,
            "it is requested"
        );
        assert_eq!(told(libc::RTM_DELNEIGH, &message(3, 2)), unknown);
        assert_eq!(told(libc::RTM_NEWNEIGH, &message(4, 2)), None);
        assert_eq!(told(16, &message(3, 2)), None);
        for kind in ROUTES {
            assert_eq!(told(kind, &[]), Some(NeighbourUpdate::Routes));
        }
        // A bridge's entry, and one whose address is not of its family.
        for family in [libc::AF_BRIDGE, libc::AF_INET6] {
            let mut other = message(3, 2);
            other[0] = family as u8;
            assert_eq!(told(libc::RTM_NEWNEIGH, &other), None);
        }
        let whole = message(3, 2);
        for cut in 0..whole.len() {
            let _ = read(&whole[..cut], 3);
        }
    }

    /// The test of routes in crate `xdp` covers the reply to a query; the loopback has no neighbours.
    #[test]
    fn the_kernel_has_no_neighbours_on_the_loopback() {
        let mut neighbours = KernelNeighbours::watch(1).unwrap();
        neighbours.query([127, 0, 0, 9].into());
        let mut told = Vec::new();
        assert!(!neighbours.changes(|change| told.push(change)));
        let knows = |change: &NeighbourUpdate| matches!(change, NeighbourUpdate::Neighbour(_, Some(_)));
        assert!(!told.iter().any(knows), "{told:?}");
    }
}
