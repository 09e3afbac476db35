//! Lists all interfaces of this host with all their addresses, and monitors interfaces, addresses and routes
//! for changes (rtnetlink(7)). For services that concern a whole host and not one rail.
//!
//! ```text
//!   nics()       RTM_GETLINK, RTM_GETADDR (dumps)  ──►  [eth0: up, 10.0.0.1/24, fe80::1/64]  [lo: …]
//!   NicMonitor   RTNLGRP link, addresses, routes   ──►  "list again"
//! ```
//!
//! The monitor reports that something changed, not what: its user lists the interfaces again, and so misses
//! nothing even when the kernel dropped messages.

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

/// Sizes of `ifinfomsg` and `ifaddrmsg`.
const LINK: usize = 16;
const ASSIGNED: usize = 8;
/// Flags of an address that cannot be bound (yet).
const UNSURE: u32 = libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED;
/// The multicast groups of changes to links, and to addresses and routes of both families.
const GROUPS: u32 = (libc::RTMGRP_LINK
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV4_RULE
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV6_ROUTE) as u32;
/// Longest alternative name in bytes (`ALTIFNAMSIZ` without the terminating zero).
pub const ALTERNATIVE_MAX: usize = 127;
/// Most interfaces that are listed.
const INTERFACES_MAX: usize = 1 << 16;
/// Messages read before the socket leaves its groups: far more than its buffer holds.
const MESSAGES_MAX: usize = 1 << 16;

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NicAddress {
    /// The IP address itself.
    pub ip: IpAddr,
    /// Prefix length of its network, in bits.
    pub prefix: u8,
    /// Whether it can be bound: an IPv6 address cannot before duplicate address detection has finished (RFC
    /// 4862, section 5.4).
    pub usable: bool,
}

/// One network interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its index in this network namespace, unique as long as the interface exists.
    pub index: u32,
    /// Its name, which may change.
    pub name: String,
    /// Its alternative names (`ip link property`).
    pub alternatives: Vec<String>,
    /// The interface's `IFF_…` flags.
    pub flags: u32,
    /// Its addresses of both families, sorted.
    pub addresses: Vec<NicAddress>,
}

impl Nic {
    /// Whether `name` is its name or one of its alternative names.
    #[must_use]
    pub fn has_name(&self, name: &str) -> bool {
        self.name == name || self.alternatives.iter().any(|other| other == name)
    }

    /// Whether the interface is up and its link is running.
    #[must_use]
    pub fn is_up(&self) -> bool {
        is_up(self.flags)
    }

    /// A copy in which duplicate address detection has finished for all addresses.
    #[must_use]
    pub fn all_usable(&self) -> Self {
        let mut ready = self.clone();
        ready.addresses.iter_mut().for_each(|own| own.usable = true);
        ready
    }

    /// Whether it is a loopback interface.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.flags & libc::IFF_LOOPBACK as u32 != 0
    }
}

/// Lists the interfaces of this network namespace by index.
///
/// ```
/// let all = doorbell_inet::nics()?;
/// let lo = all.iter().find(|nic| nic.is_loopback()).expect("lo");
/// assert!(lo.index > 0 && !lo.name.is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// When the kernel refuses the request.
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
    /// Its address; `None` in the entry of the interface itself.
    pub address: Option<IpAddr>,
    /// Prefix length of its network in bits; 0 without an address.
    pub prefix: u8,
    /// The address's label, if it is not the interface's name. It names an address, not an interface.
    pub label: Option<String>,
    /// The interface's alternative names, in the entry of the interface itself.
    pub alternatives: Vec<String>,
}

/// Lists every interface of this network namespace with its addresses in the kernel's order: one entry for
/// the interface, then one for each address.
///
/// # Errors
/// When the kernel refuses the request.
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

/// Returns the interface's own name for a name or an alternative name.
#[must_use]
pub fn own_name<'a>(all: &'a [Assigned], name: &str) -> Option<&'a str> {
    let own = all.iter().find(|one| one.interface == name);
    let other = || {
        all.iter()
            .find(|one| one.alternatives.iter().any(|other| other == name))
    };
    own.or_else(other).map(|one| one.interface.as_str())
}

/// Returns the index of the interface with this name or alternative name.
#[must_use]
pub fn index_of(name: &str) -> Option<u32> {
    let all = nics().ok()?;
    let own = all.iter().find(|nic| nic.name == name);
    own.or_else(|| all.iter().find(|nic| nic.has_name(name)))
        .map(|nic| nic.index)
}

/// Lists the interfaces by index, each with its addresses in the kernel's order and their labels.
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

/// Decodes a zero-terminated string attribute.
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
            // On a point-to-point link, `IFA_ADDRESS` is the other end's.
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

/// Monitors changes to interfaces, addresses and routes.
#[derive(Debug)]
pub struct NicMonitor {
    socket: OwnedFd,
}

impl NicMonitor {
    /// Starts to monitor.
    ///
    /// # Errors
    /// When the system provides no socket.
    pub fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is NETLINK_ROUTE.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self { socket })
    }

    /// Reads and discards all pending messages without waiting, and returns whether there were any.
    ///
    /// The socket is empty afterwards in every case: an edge-triggered event loop (tokio's) reports no second
    /// edge for messages that were left, and after an overrun (`ENOBUFS`) the kernel drops all further
    /// messages until the socket is empty. When messages arrive as fast as they are read, the socket leaves
    /// its groups, is emptied, and joins them again. A caller that lists the interfaces after this call sees
    /// what changed meanwhile.
    pub fn drain(&self) -> bool {
        let (mut any, is_empty) = self.receive_some();
        if !is_empty {
            any = true;
            // Neither call fails for a socket that was in these groups before.
            let _ = self.listen(0);
            self.receive_some();
            let _ = self.listen(GROUPS);
        }
        any
    }

    /// Reads up to [`MESSAGES_MAX`] messages; returns whether there was one, and whether the socket is empty
    /// now.
    fn receive_some(&self) -> (bool, bool) {
        // The content does not matter, so the rest of a message is truncated.
        let (mut any, mut bytes) = (false, [0; 16]);
        for _ in 0..MESSAGES_MAX {
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::empty()) {
                // An overrun: something changed too.
                Ok(_) | Err(Errno::NOBUFS) => any = true,
                Err(Errno::INTR) => {}
                Err(_) => return (any, true),
            }
        }
        (any, false)
    }

    /// Makes the socket a member of exactly these groups, and keeps its port id.
    fn listen(&self, groups: u32) -> io::Result<()> {
        let own = SocketAddrNetlink::try_from(rustix::net::getsockname(&self.socket)?)?;
        rustix::net::bind(&self.socket, &SocketAddrNetlink::new(own.pid(), groups))?;
        Ok(())
    }
}

impl AsFd for NicMonitor {
    /// The netlink socket, readable when there are changes.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for NicMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Entry point for the fuzzers.
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
        // The kernel marks nested attributes.
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
        // Other tests may change interfaces of this namespace at the same time, but not endlessly.
        assert!((0..100).any(|_| !watch.drain()));
    }
}
