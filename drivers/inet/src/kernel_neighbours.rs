//! The hardware address of the next station on the link, as the kernel's own table of neighbours has it: ARP and neighbour
//! discovery are the kernel's work (rtnetlink(7), linux/neighbour.h).
//!
//! ```text
//!   query(ip)   ──► RTM_GETNEIGH            what is known now: told before the call returns
//!   resolve(ip)──► RTM_NEWNEIGH, NTF_USE   "somebody wants to send there": the kernel asks around
//!   changes()   ◄── RTM_NEWNEIGH, RTNLGRP_NEIGH: what it knows, found out, or forgot
//!               ◄── RTM_NEWROUTE and the like: stations may be others now
//! ```
//!
//! All of it goes over one socket, which stays in the network namespace where it was made.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use doorbell_fabric::ether::Mac;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::netlink::{CREATE, REQUEST, attribute, attributes, message, messages};
use crate::route::{ip_of, octets};

/// The multicast groups of changes to neighbours, and to routes and rules of both families.
const GROUP_NEIGH: u32 = libc::RTMGRP_NEIGH as u32;
const GROUPS_ROUTE: u32 =
    (libc::RTMGRP_IPV4_ROUTE | libc::RTMGRP_IPV4_RULE | libc::RTMGRP_IPV6_ROUTE | RTMGRP_IPV6_RULE) as u32;
/// The group numbered `RTNLGRP_IPV6_RULE`, which has no bit of its own name (linux/rtnetlink.h).
const RTMGRP_IPV6_RULE: i32 = 1 << (19 - 1);
/// New routes and rules, and those that were deleted.
const ROUTES: [u16; 4] = [
    libc::RTM_NEWROUTE,
    libc::RTM_DELROUTE,
    libc::RTM_NEWRULE,
    libc::RTM_DELRULE,
];
/// Bytes of `ndmsg`, and where in it are the interface, the state and the flags.
const NEIGH: usize = 12;
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

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourUpdate {
    /// One station of the link, and its hardware address while it is known.
    Neighbour(IpAddr, Option<Mac>),
    /// Routes: the way to anybody may lead over another station.
    Routes,
}

/// The neighbours on one interface.
#[derive(Debug)]
pub struct KernelNeighbours {
    socket: OwnedFd,
    interface: u32,
    /// Changes were lost, and the socket has not been empty since.
    lost: bool,
}

impl KernelNeighbours {
    /// Watches the neighbours on the interface with this index.
    ///
    /// # Errors
    /// When the system gives no socket.
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

    /// Readable when there are changes.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Asks for the hardware address of `ip`; where the kernel knows it, it is among the next changes.
    pub fn query(&self, ip: IpAddr) {
        self.send(libc::RTM_GETNEIGH, REQUEST, &self.about(ip));
    }

    /// Has the kernel find out where `ip` is; the answer is a change. Needs `CAP_NET_ADMIN`.
    pub fn resolve(&self, ip: IpAddr) {
        let mut body = self.about(ip);
        // It is used: the kernel finds its address out, or makes sure of it.
        body[FLAGS] = libc::NTF_USE;
        self.send(libc::RTM_NEWNEIGH, REQUEST | CREATE, &body);
    }

    /// What is not taken is asked again by those who still want to know; a refusal is an answer that tells no change.
    fn send(&self, what: u16, flags: u16, body: &[u8]) {
        let _ = rustix::net::send(&self.socket, &message(what, flags, body), SendFlags::DONTWAIT);
    }

    /// Reads what has changed. Returns whether some changes were lost, because there were too many: then
    /// everything has to be queried again. That is returned once the socket is empty, since the kernel drops
    /// answers, too, as long as it is not. One system call when there is nothing.
    pub fn changes(&mut self, mut tell: impl FnMut(NeighbourUpdate)) -> bool {
        let mut bytes = [0; 8192];
        // Bounded: a storm of changes is read on in the next call. Those who sleep on the socket poll its
        // level, so what is left wakes them.
        for _ in 0..64 {
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::empty()) {
                Ok((length, _)) => messages(&bytes[..length])
                    .filter_map(|(kind, body)| change(kind, body, self.interface))
                    .for_each(&mut tell),
                Err(Errno::NOBUFS) => self.lost = true,
                Err(_) => return std::mem::take(&mut self.lost),
            }
        }
        false
    }

    fn about(&self, ip: IpAddr) -> Vec<u8> {
        let mut body = vec![0; NEIGH];
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

/// What a message says of a neighbour on this interface. Bridges tell of hardware addresses by the same messages, in a family
/// of their own.
fn read(body: &[u8], interface: u32) -> Option<(IpAddr, Option<Mac>)> {
    let head = body.first_chunk::<NEIGH>()?;
    let about = u32::from_ne_bytes(*head[INTERFACE..].first_chunk()?);
    let state = u16::from_ne_bytes(*head[STATE..].first_chunk()?);
    let (mut ip, mut mac) = (None, None);
    for (what, value) in attributes(&body[NEIGH..]) {
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

/// For the fuzzers.
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
        let mut body = vec![0; NEIGH];
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
            "it is asked for"
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

    /// That a question is answered at all is seen where there is an answer: the test of routes in the crate of `xdp`.
    #[test]
    fn the_kernel_knows_nobody_on_the_loopback() {
        let mut neighbours = KernelNeighbours::watch(1).unwrap();
        neighbours.query([127, 0, 0, 9].into());
        let mut told = Vec::new();
        assert!(!neighbours.changes(|change| told.push(change)));
        let knows = |change: &NeighbourUpdate| matches!(change, NeighbourUpdate::Neighbour(_, Some(_)));
        assert!(!told.iter().any(knows), "{told:?}");
    }
}
