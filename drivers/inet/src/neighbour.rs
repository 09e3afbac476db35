//! The hardware address of the next station on the link, as the kernel's own table of neighbours has it: ARP and neighbour
//! discovery are the kernel's work (rtnetlink(7), linux/neighbour.h).
//!
//! ```text
//!   query(ip)   ──► RTM_GETNEIGH            what is known now: told before the call returns
//!   find_out(ip)──► RTM_NEWNEIGH, NTF_USE   "somebody wants to send there": the kernel asks around
//!   changes()   ◄── RTM_NEWNEIGH, RTNLGRP_NEIGH: what it knows, found out, or forgot
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

/// The multicast group of changes to neighbours, `RTMGRP_NEIGH` (linux/rtnetlink.h).
const GROUP_NEIGH: u32 = 4;
const NEW_NEIGH: u16 = 28;
const DEL_NEIGH: u16 = 29;
const GET_NEIGH: u16 = 30;
/// Bytes of `ndmsg`, and where in it are the interface, the state and the flags.
const NEIGH: usize = 12;
const INTERFACE: usize = 4;
const STATE: usize = 8;
const FLAGS: usize = 10;
/// "Somebody uses it": the kernel finds its address out, or makes sure of it.
const USE: u8 = 1;
const DESTINATION: u16 = 1;
const ADDRESS: u16 = 2;
/// States in which an address may be used: `NUD_REACHABLE | STALE | DELAY | PROBE | NOARP | PERMANENT`.
const VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;

/// One station of a link, and its hardware address while it is known.
pub type Change = (IpAddr, Option<Mac>);

/// The neighbours on one interface.
#[derive(Debug)]
pub struct Neighbours {
    socket: OwnedFd,
    interface: u32,
}

impl Neighbours {
    /// Watches the neighbours on the interface with this index.
    ///
    /// # Errors
    /// When the system gives no socket.
    pub fn watch(interface: u32) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUP_NEIGH))?;
        Ok(Self { socket, interface })
    }

    /// Readable when there are changes.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Asks for the hardware address of `ip`; where the kernel knows it, it is among the next changes.
    pub fn query(&self, ip: IpAddr) {
        self.send(GET_NEIGH, REQUEST, &self.about(ip));
    }

    /// Has the kernel find out where `ip` is; the answer is a change. Needs `CAP_NET_ADMIN`.
    pub fn find_out(&self, ip: IpAddr) {
        let mut body = self.about(ip);
        body[FLAGS] = USE;
        self.send(NEW_NEIGH, REQUEST | CREATE, &body);
    }

    /// What is not taken is asked again by those who still want to know; a refusal is an answer that tells no change.
    fn send(&self, what: u16, flags: u16, body: &[u8]) {
        let _ = rustix::net::send(&self.socket, &message(what, flags, body), SendFlags::DONTWAIT);
    }

    /// Reads what has changed. Returns whether some changes were lost, because there were too many: who wants to know then
    /// asks anew. One system call when there is nothing.
    pub fn changes(&self, mut tell: impl FnMut(Change)) -> bool {
        let mut bytes = [0; 8192];
        let mut lost = false;
        // Bounded: a storm of changes is read on in the next call.
        for _ in 0..64 {
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::empty()) {
                Ok((length, _)) => messages(&bytes[..length])
                    .filter_map(|(kind, body)| change(kind, body, self.interface))
                    .for_each(&mut tell),
                Err(Errno::NOBUFS) => lost = true,
                Err(_) => break,
            }
        }
        lost
    }

    fn about(&self, ip: IpAddr) -> Vec<u8> {
        let mut body = vec![0; NEIGH];
        body[0] = if ip.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        } as u8;
        body[INTERFACE..INTERFACE + 4].copy_from_slice(&self.interface.to_ne_bytes());
        attribute(&mut body, DESTINATION, &octets(ip));
        body
    }
}

fn change(kind: u16, body: &[u8], interface: u32) -> Option<Change> {
    match kind {
        NEW_NEIGH => read(body, interface),
        DEL_NEIGH => read(body, interface).map(|(ip, _)| (ip, None)),
        _ => None,
    }
}

/// What a message says of a neighbour on this interface.
fn read(body: &[u8], interface: u32) -> Option<Change> {
    let head = body.first_chunk::<NEIGH>()?;
    let about = u32::from_ne_bytes(*head[INTERFACE..].first_chunk()?);
    let state = u16::from_ne_bytes(*head[STATE..].first_chunk()?);
    let (mut ip, mut mac) = (None, None);
    for (what, value) in attributes(&body[NEIGH..]) {
        match what {
            DESTINATION => ip = ip_of(value),
            ADDRESS => mac = Mac::try_from(value).ok(),
            _ => {}
        }
    }
    let usable = state & VALID != 0;
    (about == interface).then_some((ip?, mac.filter(|_| usable)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(interface: u32, state: u16) -> Vec<u8> {
        let mut body = vec![0; NEIGH];
        body[INTERFACE..INTERFACE + 4].copy_from_slice(&interface.to_ne_bytes());
        body[STATE..STATE + 2].copy_from_slice(&state.to_ne_bytes());
        attribute(&mut body, DESTINATION, &[10, 0, 0, 7]);
        attribute(&mut body, ADDRESS, &[2, 1, 1, 1, 1, 1]);
        body
    }

    #[test]
    fn only_usable_addresses_of_this_interface_count() {
        let ip = IpAddr::from([10, 0, 0, 7]);
        let mac = Some([2, 1, 1, 1, 1, 1]);
        assert_eq!(change(NEW_NEIGH, &message(3, 2), 3), Some((ip, mac)));
        assert_eq!(change(NEW_NEIGH, &message(3, 0x80), 3), Some((ip, mac)));
        assert_eq!(
            change(NEW_NEIGH, &message(3, 0x20), 3),
            Some((ip, None)),
            "it failed"
        );
        assert_eq!(
            change(NEW_NEIGH, &message(3, 1), 3),
            Some((ip, None)),
            "it is asked for"
        );
        assert_eq!(change(DEL_NEIGH, &message(3, 2), 3), Some((ip, None)));
        assert_eq!(change(NEW_NEIGH, &message(4, 2), 3), None);
        assert_eq!(change(16, &message(3, 2), 3), None);
        let whole = message(3, 2);
        for cut in 0..whole.len() {
            let _ = read(&whole[..cut], 3);
        }
    }

    #[test]
    fn the_kernel_knows_nobody_on_the_loopback() {
        let neighbours = Neighbours::watch(1).unwrap();
        neighbours.query([127, 0, 0, 9].into());
        let mut told = Vec::new();
        assert!(!neighbours.changes(|change| told.push(change)));
        assert!(told.iter().all(|(_, mac)| mac.is_none()), "{told:?}");
    }
}
