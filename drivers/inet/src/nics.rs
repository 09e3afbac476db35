//! All interfaces of this host with all their addresses, and word that something about them, or about routes, has
//! changed: rtnetlink(7), for those who serve a whole host and not one rail.
//!
//! ```text
//!   nics()       RTM_GETLINK, RTM_GETADDR (dumps)  ──►  [eth0: up, 10.0.0.1/24, fe80::1/64]  [lo: …]
//!   NicWatch     RTNLGRP link, addresses, routes   ──►  "look again"
//! ```
//!
//! What a change was is not said, only that there was one: whoever wants to know lists them again, and misses nothing,
//! however many changes were lost on the way.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use crate::interface::is_up;
use crate::netlink::{attributes, dump};
use crate::route::ip_of;

// linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h.
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const LINK: usize = 16;
const NAME: u16 = 3;
const ASSIGNED: usize = 8;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const FLAGS: u16 = 8;
/// `IFA_F_TENTATIVE` and `IFA_F_DADFAILED`: it cannot be bound (yet).
const UNSURE: u32 = 0x40 | 0x08;
/// `RTMGRP_LINK`, and of both families `_IFADDR` and `_ROUTE`; `RTMGRP_IPV4_RULE`.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400;
/// Interfaces that are looked at, at most.
const MOST: usize = 1 << 16;

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NicAddress {
    /// The address.
    pub ip: IpAddr,
    /// How many of its first bits all addresses of its network have.
    pub prefix: u8,
    /// Whether it can be bound: an IPv6 address is not before it is known that nobody else has it (RFC 4862, section
    /// 5.4).
    pub usable: bool,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its number in this network namespace, which no other one gets as long as it is there.
    pub index: u32,
    /// Its name, which may change.
    pub name: String,
    /// `IFF_…` flags.
    pub flags: u32,
    /// Its addresses of both families, in order.
    pub addresses: Vec<NicAddress>,
}

impl Nic {
    /// Whether frames can pass: it is up, and the link behind it.
    #[must_use]
    pub fn is_up(&self) -> bool {
        is_up(self.flags)
    }

    /// The same, as it will be when all its addresses are known to be its own.
    #[must_use]
    pub fn all_usable(&self) -> Self {
        let mut ready = self.clone();
        ready.addresses.iter_mut().for_each(|own| own.usable = true);
        ready
    }

    /// Whether it leads nowhere but back to this host.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.flags & libc::IFF_LOOPBACK as u32 != 0
    }
}

/// The interfaces of this network namespace, by their numbers.
///
/// ```
/// let all = doorbell_inet::nics()?;
/// let lo = all.iter().find(|nic| nic.is_loopback()).expect("lo");
/// assert!(lo.index > 0 && !lo.name.is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// When the kernel cannot be asked.
pub fn nics() -> io::Result<Vec<Nic>> {
    let mut found = BTreeMap::new();
    for (kind, body) in dump(GET_LINK, &[0; LINK])? {
        if found.len() < MOST {
            found.extend(read_link(kind, &body).map(|nic| (nic.index, nic)));
        }
    }
    for (kind, body) in dump(GET_ADDRESS, &[0; ASSIGNED])? {
        if let Some((index, address)) = read_address(kind, &body)
            && let Some(nic) = found.get_mut(&index)
        {
            nic.addresses.push(address);
        }
    }
    let mut all: Vec<Nic> = found.into_values().collect();
    all.iter_mut().for_each(|nic| nic.addresses.sort_unstable());
    Ok(all)
}

fn word(body: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*body.get(at..)?.first_chunk()?))
}

fn read_link(kind: u16, body: &[u8]) -> Option<Nic> {
    if kind != NEW_LINK {
        return None;
    }
    let (index, flags) = (word(body, 4)?, word(body, 8)?);
    let (_, name) = attributes(body.get(LINK..)?).find(|&(what, _)| what == NAME)?;
    let name = name.split(|&byte| byte == 0).next()?;
    Some(Nic {
        index,
        name: String::from_utf8_lossy(name).into_owned(),
        flags,
        addresses: Vec::new(),
    })
}

fn read_address(kind: u16, body: &[u8]) -> Option<(u32, NicAddress)> {
    if kind != NEW_ADDRESS {
        return None;
    }
    let (prefix, mut flags, index) = (*body.get(1)?, u32::from(*body.get(2)?), word(body, 4)?);
    let (mut own, mut other) = (None, None);
    for (what, value) in attributes(body.get(ASSIGNED..)?) {
        match what {
            // Of a link between two, ADDRESS is the other end's.
            LOCAL => own = ip_of(value),
            ADDRESS => other = ip_of(value),
            FLAGS => flags = word(value, 0).unwrap_or(flags),
            _ => {}
        }
    }
    let ip = own.or(other)?;
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    let address = NicAddress {
        ip,
        prefix: prefix.min(bits),
        usable: flags & UNSURE == 0,
    };
    Some((index, address))
}

/// Hears of changes to interfaces, addresses and routes.
#[derive(Debug)]
pub struct NicWatch {
    socket: OwnedFd,
}

impl NicWatch {
    /// Listens from now on.
    ///
    /// # Errors
    /// When the system gives no socket.
    pub fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is NETLINK_ROUTE.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self { socket })
    }

    /// Takes what came, and tells whether anything has; never waits.
    pub fn look(&self) -> bool {
        let (mut any, mut bytes) = (false, [0; 8192]);
        // Bounded: what is left makes the socket readable at once.
        for _ in 0..64 {
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::empty()) {
                // What did not fit was something, too.
                Ok(_) | Err(Errno::NOBUFS) => any = true,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        any
    }
}

impl AsFd for NicWatch {
    /// Readable when there is something to look at.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for NicWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// For the fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzing(body: &[u8]) {
    let _ = (read_link(NEW_LINK, body), read_address(NEW_ADDRESS, body));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    #[test]
    fn the_loopback_is_there_with_its_address() {
        let all = nics().unwrap();
        let lo = all.iter().find(|nic| nic.is_loopback()).expect("a loopback");
        let own = |own: &NicAddress| own.ip == IpAddr::from([127, 0, 0, 1]) && own.prefix == 8 && own.usable;
        assert!(lo.addresses.iter().any(own), "{lo:?}");
    }

    #[test]
    fn an_address_that_is_not_sure_yet_is_not_usable_and_a_far_end_is_not_ours() {
        let mut body = vec![libc::AF_INET as u8, 24, 0, 0];
        body.extend_from_slice(&7u32.to_ne_bytes());
        attribute(&mut body, ADDRESS, &[10, 0, 0, 2]);
        attribute(&mut body, LOCAL, &[10, 0, 0, 1]);
        let (index, address) = read_address(NEW_ADDRESS, &body).unwrap();
        assert_eq!(
            (index, address.ip, address.usable),
            (7, [10, 0, 0, 1].into(), true)
        );
        attribute(&mut body, FLAGS, &0x40u32.to_ne_bytes());
        assert!(!read_address(NEW_ADDRESS, &body).unwrap().1.usable);
        for cut in 0..body.len() {
            let _ = read_address(NEW_ADDRESS, &body[..cut]);
        }
        assert!(read_link(NEW_LINK, &[0; LINK]).is_none(), "without a name");
    }

    #[test]
    fn nothing_has_changed_when_nothing_has() {
        let watch = NicWatch::new().unwrap();
        // Others may change theirs in this namespace at the same time; but not without end.
        assert!((0..100).any(|_| !watch.look()));
    }
}
