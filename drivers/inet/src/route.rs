//! How the kernel would get a frame to a peer, asked over rtnetlink(7) before anything is sent: by which interface, through
//! a gateway or not, or why not at all. And what kind of interface one is.
//!
//! ```text
//!   RTM_GETROUTE 10.2.0.2 from 10.1.0.1  ──►  kernel  ──►  dev eth0, via 10.1.0.254    a rail of eth0 reaches it
//!                                                     ──►  dev eth1, no route …        it is asked once more:
//!   RTM_GETROUTE … from 10.1.0.1 oif eth0                                              a rail of eth0 may all the same
//! ```
//!
//! It is asked as a rail's sockets will ask, which are bound to an address and to an interface: rules may go by the one
//! (`ip rule from`), tables and metrics by the other (VRFs, two default routes). For a socket that is bound to an
//! interface without any route, Linux takes every IPv4 address for a neighbour, and what is sent would be lost: so only
//! a route that is in a table counts (`RTM_F_FIB_MATCH`).

use std::io;
use std::net::{IpAddr, SocketAddr};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::{self, Kind, Place};
use rustix::net::netdevice;

use crate::details::Details;
use crate::interface::{Interface, probe_socket, system_error};
use crate::interface_query::InterfaceQuery;
use crate::netlink::{Answer, attribute, attributes, request};
use crate::nics::assigned;
use crate::sys;

/// How frames of a rail get to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// They stay on this host.
    Local,
    /// The peer is on the interface's own link.
    OnLink,
    /// Through a router.
    Gateway(IpAddr),
}

impl std::fmt::Display for NextHop {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => out.write_str("within this host"),
            Self::OnLink => out.write_str("on its own link"),
            Self::Gateway(gateway) => write!(out, "through the router {gateway}"),
        }
    }
}

/// Where a rail of this name is, for its peers to judge; as much of it as can be found out.
///
/// ```
/// use doorbell_fabric::pairs::Kind;
/// let lo = doorbell_inet::place(&"udp:lo".parse()?, &Default::default());
/// assert_eq!((lo.interface.as_str(), lo.prefix, lo.kind), ("lo", 8, Kind::Loopback));
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
pub fn place(name: &RailName, query: &InterfaceQuery) -> Place {
    match Interface::find(name, query) {
        Ok(found) => found.place(query),
        Err(_) => Place {
            network: network(),
            ..Place::default()
        },
    }
}

/// The number of this network namespace; 0 where it is not told.
pub fn network() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino())
}

/// Whether `address` is one of this host's.
///
/// ```
/// assert!(doorbell_inet::is_own([127, 0, 0, 1].into()) && !doorbell_inet::is_own([192, 0, 2, 1].into()));
/// ```
pub fn is_own(address: IpAddr) -> bool {
    look_up(address, &RouteQuery::default()).is_ok_and(|found| found.is_ok_and(|route| route.local))
}

/// How frames of the rail `name`, which is not open, would get to `peer`: nothing is opened and nothing sent. A rail that
/// is open asks the same for itself when a peer is opened.
///
/// ```
/// use doorbell_fabric::addr::RailAddress;
/// use doorbell_inet::NextHop;
/// let (lo, config) = ("udp:lo".parse()?, Default::default());
/// let way = |to: &str| doorbell_inet::next_hop_to(&lo, &config, &RailAddress::inet("udp", to.parse().unwrap()));
/// assert_eq!(way("127.0.0.1:56080")?, NextHop::Local);
/// assert!(way("192.0.2.1:56080").unwrap_err().to_string().contains("loopback"));
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
///
/// # Errors
/// Why they would not: [`RailError::Unreachable`] as the routing table has it, [`RailError::Unusable`] of the rail itself.
pub fn next_hop_to(
    name: &RailName,
    query: &InterfaceQuery,
    peer: &RailAddress,
) -> Result<NextHop, RailError> {
    let interface = Interface::find(name, query)?.require(name, query)?;
    match peer.inet_of(&peer.kind) {
        Some(to) => interface
            .next_hop(to)
            .map_err(|no| no.into_rail_error(name, peer)),
        None => Err(NoRoute::Because("it has no IP address".to_owned()).into_rail_error(name, peer)),
    }
}

/// Why there is no way.
pub enum NoRoute {
    /// The reason, in words.
    Because(String),
    /// It could not be found out.
    System(io::Error),
}

impl NoRoute {
    /// As an error of this rail, about this peer.
    pub fn into_rail_error(self, name: &RailName, peer: &RailAddress) -> RailError {
        match self {
            Self::Because(reason) => RailError::Unreachable {
                rail: name.to_string(),
                peer: peer.to_string(),
                reason,
                remedy: "see `ip route get` for the peer's address, and name a rail that leads there",
            },
            Self::System(error) => system_error(name, "ask the routing table", error),
        }
    }
}

impl From<io::Error> for NoRoute {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl Interface {
    /// Why no address of this kind is ever reached from ours.
    pub fn unreachable_reason(&self, ip: IpAddr) -> Option<&'static str> {
        if ip.is_ipv4() != self.address.is_ipv4() {
            Some("it is of the other family of IP addresses than this rail's")
        } else if ip.is_loopback() != self.address.is_loopback() {
            Some("only one of the two is a loopback address, which leads nowhere else")
        } else {
            None
        }
    }

    /// How frames from our address, over this interface, get to `to`.
    pub fn next_hop(&self, to: SocketAddr) -> Result<NextHop, NoRoute> {
        let ip = to.ip();
        if let Some(reason) = self.unreachable_reason(ip) {
            return Err(NoRoute::Because(reason.to_owned()));
        }
        if self.address.is_loopback() {
            return Ok(NextHop::Local);
        }
        // An address of a link means something on one interface only.
        let link_local = matches!(ip, IpAddr::V6(six) if six.is_unicast_link_local());
        let asked = RouteQuery {
            from: Some(self.address),
            through: link_local.then_some(self.index),
            ..RouteQuery::default()
        };
        let preferred = look_up(ip, &asked)?;
        if let Ok(found) = preferred
            && (found.local || found.interface == self.index)
        {
            return self.next_hop_by(ip, found);
        }
        match self.bound_route(ip)? {
            Some(found) => self.next_hop_by(ip, found),
            // Of two interfaces in one network the table prefers one; the other is as near.
            None if pairs::within(self.address, ip, self.prefix) => Ok(NextHop::OnLink),
            None => Err(self.refusal(preferred)),
        }
    }

    /// Whether what is sent from our address to `to` leaves by this interface of itself, without being bound to it.
    pub fn is_preferred(&self, to: IpAddr) -> bool {
        let asked = RouteQuery {
            from: Some(self.address),
            ..RouteQuery::default()
        };
        let found = look_up(to, &asked);
        found.is_ok_and(|found| found.is_ok_and(|route| !route.local && route.interface == self.index))
    }

    /// Whether the kernel drops what comes in by this interface from `from`, because its answer would leave
    /// by another one: `rp_filter` is 1 (of the interface's value and that of `all`, the larger one holds).
    /// Only IPv4 has it.
    pub fn filters_reverse_path(&self, from: IpAddr) -> bool {
        let value = |which: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{which}/rp_filter"));
            text.ok()
                .and_then(|text| text.trim().parse::<u8>().ok())
                .unwrap_or(0)
        };
        let is_strict = || value("all").max(value(&self.name)) == 1;
        from.is_ipv4() && !self.is_loopback() && is_strict() && !self.is_preferred(from)
    }

    /// The way by this route, which is one of this interface.
    fn next_hop_by(&self, ip: IpAddr, found: Route) -> Result<NextHop, NoRoute> {
        if !found.local {
            return Ok(found.gateway.map_or(NextHop::OnLink, NextHop::Gateway));
        }
        let all = assigned()?;
        let mut holders = all.iter().filter(|one| one.address == Some(ip));
        match holders.next() {
            Some(first) if first.interface != self.name && holders.all(|one| one.interface != self.name) => {
                Err(NoRoute::Because(format!(
                    "it is an address of this host's {}, and frames from {} do not arrive there",
                    first.interface, self.name
                )))
            }
            _ => Ok(NextHop::Local),
        }
    }

    /// The route of sockets that are bound to this interface, where a table has one.
    fn bound_route(&self, ip: IpAddr) -> io::Result<Option<Route>> {
        let mut asked = RouteQuery {
            from: Some(self.address),
            through: Some(self.index),
            in_table: true,
        };
        if look_up(ip, &asked)?.is_err() {
            return Ok(None);
        }
        // What is told of a table's entry does not say which of its routers is taken.
        asked.in_table = false;
        let found = look_up(ip, &asked)?.ok();
        Ok(found.filter(|found| found.local || found.interface == self.index))
    }

    /// In words, why what the routing table prefers is no way of ours.
    fn refusal(&self, preferred: Result<Route, &'static str>) -> NoRoute {
        let found = match preferred {
            Ok(found) => found,
            // Depending on its version, the kernel says one or the other of a source that is no address of its own.
            Err(NO_ROUTE | BLACK_HOLE) if !self.has_its_address() => {
                return NoRoute::Because(format!("{} does not have {} any more", self.name, self.address));
            }
            Err(reason) => return NoRoute::Because(reason.to_owned()),
        };
        let other = name_of(found.interface);
        let by = found
            .gateway
            .map_or_else(String::new, |gateway| format!(" (router {gateway})"));
        NoRoute::Because(format!(
            "the routing table leads to it through {other}{by}, not {}",
            self.name
        ))
    }

    fn has_its_address(&self) -> bool {
        assigned().map_or(true, |all| {
            all.iter().any(|one| one.address == Some(self.address))
        })
    }

    /// Where a rail over it is, for its peers to judge.
    pub fn place(&self, query: &InterfaceQuery) -> Place {
        Place {
            network: self.network,
            prefix: self.prefix,
            mtu: self.mtu(query),
            takes: self.state.mtu,
            kind: self.kind().0,
            interface: self.name.clone(),
        }
    }

    /// What kind of interface it is, and what the kernel calls that.
    pub fn kind(&self) -> (Kind, String) {
        if self.is_loopback() {
            return (Kind::Loopback, String::new());
        }
        let told = Details::of(self.index)
            .map(|details| details.kind)
            .unwrap_or_default();
        let kind = match told.as_str() {
            "bridge" | "openvswitch" => Kind::Bridge,
            // Names for ways over links that lead out of the host.
            "" | "bond" | "team" | "vlan" | "macvlan" | "ipvlan" | "ipoib" | "vrf" | "hsr" => Kind::Plain,
            _ => Kind::Virtual,
        };
        (kind, told)
    }

    /// Whether a device of its own is behind it, which cuts up runs of frames, and makes the checksums that were left to it,
    /// before anything is on a wire. Virtual links hand over what the sender's kernel left undone; so do the devices that a
    /// machine without hardware has. Of what is not known to be one, it is not said.
    pub fn is_wire(&self) -> bool {
        let mut index = self.index;
        // Of links upon links, a few are looked through.
        for _ in 0..4 {
            let Ok(details) = Details::of(index) else { break };
            match (details.kind.as_str(), details.lower) {
                ("", _) => {
                    let driver = sys::driver(&name_of(index)).unwrap_or_default();
                    return !self.is_loopback() && is_hardware(&driver);
                }
                ("vlan", Some(lower)) => index = lower,
                _ => break,
            }
        }
        false
    }

    /// Why a rail over it is used only when it is named.
    pub fn only_when_named(&self) -> String {
        match self.kind() {
            (Kind::Loopback, _) => "the loopback, to which shared memory is preferred".to_owned(),
            (Kind::Bridge, _) => "a bridge, whose network is this host's own as a rule".to_owned(),
            (Kind::Virtual, told) => format!("a virtual link ({told}), as containers and tunnels have"),
            (Kind::Plain, _) => "an open rail listens on its network".to_owned(),
        }
    }
}

/// Whether a driver of this name is that of hardware; those that are not hand frames to another machine's kernel.
fn is_hardware(driver: &str) -> bool {
    const PARAVIRTUAL: [&str; 7] = [
        "virtio_net",
        "vif",
        "vmxnet3",
        "hv_netvsc",
        "netvsc",
        "ibmveth",
        "netdevsim",
    ];
    !driver.is_empty() && !PARAVIRTUAL.contains(&driver)
}

fn name_of(index: u32) -> String {
    let name = probe_socket().and_then(|socket| Ok(netdevice::index_to_name(&socket, index)?));
    name.unwrap_or_else(|_| format!("interface {index}"))
}

/// What the routing table says of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route {
    interface: u32,
    gateway: Option<IpAddr>,
    local: bool,
}

/// Bytes of `rtmsg`.
const ROUTE: usize = 12;
/// A gateway of another family (linux/rtnetlink.h).
const RTA_VIA: u16 = 18;

const NO_ROUTE: &str = "the routing table has no route to it";
const BLACK_HOLE: &str = "the routing table leads to it into a black hole";
const NOT_REACHED: &str = "the routing table says that it is unreachable";
const PROHIBITED: &str = "the routing table prohibits it";

/// Of what the routing table is asked about.
#[derive(Clone, Copy, Default)]
struct RouteQuery {
    /// The address that frames come from.
    from: Option<IpAddr>,
    /// The interface that they leave by.
    through: Option<u32>,
    /// Only what is in a table counts.
    in_table: bool,
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    }
}

/// The route to `to`, or in words why there is none.
fn look_up(to: IpAddr, asked: &RouteQuery) -> io::Result<Result<Route, &'static str>> {
    let bytes = octets(to);
    let family = if to.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let bits = 8 * bytes.len() as u8;
    let mut body = vec![0; ROUTE];
    (body[0], body[1]) = (family as u8, bits);
    if asked.in_table {
        body[8..12].copy_from_slice(&libc::RTM_F_FIB_MATCH.to_ne_bytes());
    }
    attribute(&mut body, libc::RTA_DST, &bytes);
    if let Some(from) = asked.from {
        body[2] = bits;
        attribute(&mut body, libc::RTA_SRC, &octets(from));
    }
    if let Some(index) = asked.through {
        attribute(&mut body, libc::RTA_OIF, &index.to_ne_bytes());
    }
    route_of(request(libc::RTM_GETROUTE, libc::RTM_NEWROUTE, &body)?)
}

/// What the table's answer, or its refusal, says. Only a refusal of the table's own is one: the same numbers of a
/// system call are a sandbox's.
fn route_of(answer: Answer) -> io::Result<Result<Route, &'static str>> {
    Ok(match answer {
        Ok(body) => read_route(&body),
        Err(libc::ENETUNREACH) => Err(NO_ROUTE),
        Err(libc::EINVAL) => Err(BLACK_HOLE),
        Err(libc::EHOSTUNREACH) => Err(NOT_REACHED),
        Err(libc::EACCES) => Err(PROHIBITED),
        Err(number) => return Err(io::Error::from_raw_os_error(number)),
    })
}

fn read_route(body: &[u8]) -> Result<Route, &'static str> {
    let kind = body.get(7).copied().unwrap_or(0);
    match kind {
        libc::RTN_BLACKHOLE => return Err(BLACK_HOLE),
        libc::RTN_UNREACHABLE => return Err(NOT_REACHED),
        libc::RTN_PROHIBIT => return Err(PROHIBITED),
        _ => {}
    }
    let mut route = Route {
        interface: 0,
        gateway: None,
        local: kind == libc::RTN_LOCAL,
    };
    for (what, value) in attributes(body.get(ROUTE..).unwrap_or(&[])) {
        match what {
            libc::RTA_OIF => {
                route.interface = value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
            }
            libc::RTA_GATEWAY => route.gateway = ip_of(value),
            // A gateway of the other family: two bytes of family, then the address.
            RTA_VIA => route.gateway = value.get(2..).and_then(ip_of),
            _ => {}
        }
    }
    Ok(route)
}

pub(crate) fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// For the fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzing(body: &[u8]) {
    let _ = route_of(Ok(body.to_vec()));
    let number = body.first_chunk().map_or(0, |number| i32::from_ne_bytes(*number));
    let _ = route_of(Err(number));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_about_the_loopback() {
        let route = look_up([127, 0, 0, 1].into(), &RouteQuery::default());
        let route = route.unwrap().unwrap();
        assert!(route.local && route.gateway.is_none());
        let lo = Interface::find(&"udp:lo".parse().unwrap(), &InterfaceQuery::default()).unwrap();
        assert_eq!(lo.kind().0, Kind::Loopback);
        assert_eq!(name_of(lo.index), "lo");
        assert!(network() > 0);
    }

    #[test]
    fn only_hardware_is_a_wire() {
        let lo = Interface::find(&"udp:lo".parse().unwrap(), &InterfaceQuery::default()).unwrap();
        assert!(!lo.is_wire());
        for (driver, is) in [("ice", true), ("igb", true), ("virtio_net", false), ("", false)] {
            assert_eq!(is_hardware(driver), is, "{driver}");
        }
    }

    #[test]
    fn answers_are_read_and_broken_ones_hurt_nobody() {
        let mut route = vec![0; ROUTE];
        attribute(&mut route, libc::RTA_OIF, &7u32.to_ne_bytes());
        attribute(&mut route, libc::RTA_GATEWAY, &[10, 0, 0, 1]);
        let read = read_route(&route).unwrap();
        assert_eq!(
            (read.interface, read.gateway, read.local),
            (7, Some([10, 0, 0, 1].into()), false)
        );
        for cut in 0..route.len() {
            let _ = read_route(&route[..cut]);
        }
        for (kind, word) in [
            (libc::RTN_BLACKHOLE, BLACK_HOLE),
            (libc::RTN_UNREACHABLE, NOT_REACHED),
            (libc::RTN_PROHIBIT, PROHIBITED),
        ] {
            route[7] = kind;
            assert_eq!(read_route(&route), Err(word));
        }
    }

    /// The table's own refusals are told in its words, and everything else is an error of the system.
    #[test]
    fn only_the_tables_refusals_are_the_tables() {
        for (number, word) in [
            (libc::ENETUNREACH, NO_ROUTE),
            (libc::EINVAL, BLACK_HOLE),
            (libc::EHOSTUNREACH, NOT_REACHED),
            (libc::EACCES, PROHIBITED),
        ] {
            assert_eq!(route_of(Err(number)).unwrap(), Err(word));
        }
        let other = route_of(Err(libc::EPERM)).unwrap_err();
        assert_eq!(other.raw_os_error(), Some(libc::EPERM));
    }
}
