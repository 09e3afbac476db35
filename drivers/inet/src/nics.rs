//! All interfaces of this host with all their addresses, and word that something about them, or about routes, has
//! changed: rtnetlink(7), for those who serve a whole host and not one rail.
//!
//! ```text
//!   nics()       RTM_GETLINK, RTM_GETADDR (dumps)  ──►  [eth0: up, 10.0.0.1/24, fe80::1/64]  [lo: …]
//!   NicMonitor     RTNLGRP link, addresses, routes   ──►  "look again"
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

/// Bytes of `ifinfomsg` and `ifaddrmsg`.
const LINK: usize = 16;
const ASSIGNED: usize = 8;
/// It cannot be bound (yet).
const UNSURE: u32 = libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED;
/// Changes to links, and to addresses and routes of both families.
const GROUPS: u32 = (libc::RTMGRP_LINK
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV4_RULE
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV6_ROUTE) as u32;
/// Bytes of an alternative name, at most (`ALTIFNAMSIZ` has one more, which ends it).
pub const ALTERNATIVE_MAX: usize = 127;
/// Interfaces that are looked at, at most.
const INTERFACES_MAX: usize = 1 << 16;
/// Messages that are taken before the socket leaves its groups: far more than its buffer holds.
const MESSAGES_MAX: usize = 1 << 16;

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
    /// Its alternative names (`ip link property`), by which it can be named just as well.
    pub alternatives: Vec<String>,
    /// `IFF_…` flags.
    pub flags: u32,
    /// Its addresses of both families, in order.
    pub addresses: Vec<NicAddress>,
}

impl Nic {
    /// Whether this is its name, or one of its alternative names.
    #[must_use]
    pub fn has_name(&self, name: &str) -> bool {
        self.name == name || self.alternatives.iter().any(|other| other == name)
    }

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
    let mut all = Vec::new();
    for (mut nic, _) in listed()? {
        nic.addresses.sort_unstable();
        all.push(nic);
    }
    Ok(all)
}

/// One address of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The interface, by its own name.
    pub interface: String,
    /// Its address; `None` for the line that only says that the interface exists.
    pub address: Option<IpAddr>,
    /// How many of its first bits it shares with all of its network; 0 without an address.
    pub prefix: u8,
    /// The address's label, where it has one that is not the interface's name. It names an address, never an
    /// interface.
    pub label: Option<String>,
    /// The interface's alternative names, on the line that only says that it exists.
    pub alternatives: Vec<String>,
}

/// Every interface of this network namespace with its addresses, in the kernel's order: a line for each
/// interface, and one for each address behind it.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn assigned() -> io::Result<Vec<Assigned>> {
    let mut all = Vec::new();
    for (nic, labels) in listed()? {
        all.push(Assigned {
            interface: nic.name.clone(),
            address: None,
            prefix: 0,
            label: None,
            alternatives: nic.alternatives,
        });
        let each = nic.addresses.iter().zip(labels);
        all.extend(each.map(|(own, label)| Assigned {
            interface: nic.name.clone(),
            address: Some(own.ip),
            prefix: own.prefix,
            label: label.filter(|label| *label != nic.name),
            alternatives: Vec::new(),
        }));
    }
    Ok(all)
}

/// The interface's own name, for a name or an alternative name of it.
#[must_use]
pub fn own_name<'a>(all: &'a [Assigned], name: &str) -> Option<&'a str> {
    let own = all.iter().find(|one| one.interface == name);
    let other = || {
        all.iter()
            .find(|one| one.alternatives.iter().any(|other| other == name))
    };
    own.or_else(other).map(|one| one.interface.as_str())
}

/// The number of the interface with this name, or this alternative name; none where there is no such
/// interface.
#[must_use]
pub fn index_of(name: &str) -> Option<u32> {
    let all = nics().ok()?;
    let own = all.iter().find(|nic| nic.name == name);
    own.or_else(|| all.iter().find(|nic| nic.has_name(name)))
        .map(|nic| nic.index)
}

/// The interfaces by their numbers, each with its addresses in the kernel's order and the labels of those.
fn listed() -> io::Result<Vec<(Nic, Vec<Option<String>>)>> {
    let mut found = BTreeMap::new();
    for (kind, body) in dump(libc::RTM_GETLINK, &[0; LINK])? {
        if found.len() < INTERFACES_MAX {
            found.extend(read_link(kind, &body).map(|nic| (nic.index, (nic, Vec::new()))));
        }
    }
    for (kind, body) in dump(libc::RTM_GETADDR, &[0; ASSIGNED])? {
        if let Some((index, address, label)) = read_address(kind, &body)
            && let Some((nic, labels)) = found.get_mut(&index)
        {
            nic.addresses.push(address);
            labels.push(label);
        }
    }
    Ok(found.into_values().collect())
}

/// The text of an attribute, which ends with a zero.
fn text(value: &[u8]) -> Option<String> {
    let text = value.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

fn word(body: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*body.get(at..)?.first_chunk()?))
}

fn read_link(kind: u16, body: &[u8]) -> Option<Nic> {
    if kind != libc::RTM_NEWLINK {
        return None;
    }
    let (index, flags) = (word(body, 4)?, word(body, 8)?);
    let (mut name, mut alternatives) = (None, Vec::new());
    for (what, value) in attributes(body.get(LINK..)?) {
        match what {
            libc::IFLA_IFNAME => name = text(value),
            libc::IFLA_PROP_LIST => {
                let each = attributes(value).filter(|&(what, _)| what == libc::IFLA_ALT_IFNAME);
                alternatives.extend(each.filter_map(|(_, value)| text(value)));
            }
            _ => {}
        }
    }
    Some(Nic {
        index,
        name: name?,
        alternatives,
        flags,
        addresses: Vec::new(),
    })
}

fn read_address(kind: u16, body: &[u8]) -> Option<(u32, NicAddress, Option<String>)> {
    if kind != libc::RTM_NEWADDR {
        return None;
    }
    let (prefix, mut flags, index) = (*body.get(1)?, u32::from(*body.get(2)?), word(body, 4)?);
    let (mut own, mut other, mut label) = (None, None, None);
    for (what, value) in attributes(body.get(ASSIGNED..)?) {
        match what {
            // Of a link between two, `IFA_ADDRESS` is the other end's.
            libc::IFA_LOCAL => own = ip_of(value),
            libc::IFA_ADDRESS => other = ip_of(value),
            libc::IFA_FLAGS => flags = word(value, 0).unwrap_or(flags),
            libc::IFA_LABEL => label = text(value),
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
    Some((index, address, label))
}

/// Hears of changes to interfaces, addresses and routes.
#[derive(Debug)]
pub struct NicMonitor {
    socket: OwnedFd,
}

impl NicMonitor {
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

    /// Takes everything that came, and returns whether anything has; never waits.
    ///
    /// The socket is empty afterwards, whatever came: an event library that reports edges (tokio does)
    /// reports no second one for messages that were left, and after an overrun (`ENOBUFS`) the kernel drops
    /// all further messages until the socket is empty. Where messages come as fast as they are taken, the
    /// socket leaves its groups, is emptied, and joins them again: a caller that
    /// lists the interfaces after this call finds what changed meanwhile.
    pub fn drain(&self) -> bool {
        let (mut any, is_empty) = self.receive_some();
        if !is_empty {
            any = true;
            // Neither fails for a socket that was in these groups before.
            let _ = self.listen(0);
            self.receive_some();
            let _ = self.listen(GROUPS);
        }
        any
    }

    /// Takes up to [`MESSAGES_MAX`] messages; returns whether there was one, and whether the socket is empty now.
    fn receive_some(&self) -> (bool, bool) {
        // What a change was does not matter: the rest of a message is cut off.
        let (mut any, mut bytes) = (false, [0; 16]);
        for _ in 0..MESSAGES_MAX {
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::empty()) {
                // Messages were lost: something has changed, too.
                Ok(_) | Err(Errno::NOBUFS) => any = true,
                Err(Errno::INTR) => {}
                Err(_) => return (any, true),
            }
        }
        (any, false)
    }

    /// Makes the socket a member of these groups and of no others, under the port id that it has.
    fn listen(&self, groups: u32) -> io::Result<()> {
        let own = SocketAddrNetlink::try_from(rustix::net::getsockname(&self.socket)?)?;
        rustix::net::bind(&self.socket, &SocketAddrNetlink::new(own.pid(), groups))?;
        Ok(())
    }
}

impl AsFd for NicMonitor {
    /// Readable when there is something to look at.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for NicMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// For the fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzing(body: &[u8]) {
    let _ = (
        read_link(libc::RTM_NEWLINK, body),
        read_address(libc::RTM_NEWADDR, body),
    );
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
        attribute(&mut body, libc::IFA_ADDRESS, &[10, 0, 0, 2]);
        attribute(&mut body, libc::IFA_LOCAL, &[10, 0, 0, 1]);
        let (index, address, label) = read_address(libc::RTM_NEWADDR, &body).unwrap();
        assert_eq!(label, None);
        assert_eq!(
            (index, address.ip, address.usable),
            (7, [10, 0, 0, 1].into(), true)
        );
        attribute(&mut body, libc::IFA_LABEL, b"v0:1\0");
        assert_eq!(
            read_address(libc::RTM_NEWADDR, &body).unwrap().2.as_deref(),
            Some("v0:1")
        );
        attribute(&mut body, libc::IFA_FLAGS, &0x40u32.to_ne_bytes());
        assert!(!read_address(libc::RTM_NEWADDR, &body).unwrap().1.usable);
        for cut in 0..body.len() {
            let _ = read_address(libc::RTM_NEWADDR, &body[..cut]);
        }
        assert!(
            read_link(libc::RTM_NEWLINK, &[0; LINK]).is_none(),
            "without a name"
        );
    }

    #[test]
    fn an_interface_has_its_alternative_names() {
        let (mut link, mut names) = (vec![0; LINK], Vec::new());
        attribute(&mut names, libc::IFLA_ALT_IFNAME, b"enp9s9\0");
        attribute(
            &mut names,
            libc::IFLA_ALT_IFNAME,
            b"a-name-that-is-longer-than-others\0",
        );
        attribute(&mut link, libc::IFLA_IFNAME, b"v0\0");
        // The kernel marks what is nested.
        attribute(&mut link, libc::IFLA_PROP_LIST | 1 << 15, &names);
        let nic = read_link(libc::RTM_NEWLINK, &link).unwrap();
        assert_eq!(nic.alternatives, ["enp9s9", "a-name-that-is-longer-than-others"]);
        assert!(nic.has_name("v0") && nic.has_name("enp9s9") && !nic.has_name("v"));
        for cut in 0..link.len() {
            let _ = read_link(libc::RTM_NEWLINK, &link[..cut]);
        }
    }

    #[test]
    fn the_lines_of_an_interface_begin_with_its_name() {
        let all = assigned().unwrap();
        let lo = all.iter().position(|one| one.interface == "lo").unwrap();
        assert_eq!(all[lo].address, None);
        let own = |one: &Assigned| {
            one.address == Some([127, 0, 0, 1].into()) && one.prefix == 8 && one.label.is_none()
        };
        assert!(all.iter().any(|one| one.interface == "lo" && own(one)), "{all:?}");
        assert_eq!(own_name(&all, "lo"), Some("lo"));
        assert_eq!((own_name(&all, "nosuch0"), index_of("nosuch0")), (None, None));
        assert!(index_of("lo").is_some());
    }

    #[test]
    fn a_socket_leaves_its_groups_and_joins_them_again() {
        let watch = NicMonitor::new().unwrap();
        let own = || SocketAddrNetlink::try_from(rustix::net::getsockname(&watch.socket).unwrap()).unwrap();
        let (port, groups) = (own().pid(), own().groups());
        assert_eq!(groups, GROUPS);
        for groups in [0, GROUPS] {
            watch.listen(groups).unwrap();
            assert_eq!((own().pid(), own().groups()), (port, groups));
        }
    }

    #[test]
    fn nothing_has_changed_when_nothing_has() {
        let watch = NicMonitor::new().unwrap();
        // Others may change theirs in this namespace at the same time; but not without end.
        assert!((0..100).any(|_| !watch.drain()));
    }
}
