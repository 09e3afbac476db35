//! Looks up a peer's next hop by rtnetlink(7) before anything is sent: the interface, a gateway or none, or
//! the reason why there is no route. Also determines kinds of interfaces.
//!
//! ```text
//!   RTM_GETROUTE 10.2.0.2 from 10.1.0.1 ──► kernel ──► dev eth0, via 10.1.0.254  a rail of eth0 reaches it
//!                                                  ──► dev eth1, no route …      a second lookup:
//!   RTM_GETROUTE … from 10.1.0.1 oif eth0                                        a rail of eth0 may reach it
//! ```
//!
//! The lookup has the same source address and output interface as the rail's sockets, which are bound to
//! both: rules may select by the address (`ip rule from`), tables and metrics by the interface (VRFs, two
//! default routes). For a socket bound to an interface without any route, Linux takes every IPv4 address for
//! a neighbour, and packets would be lost: so only a route that is in a table counts (`RTM_F_FIB_MATCH`).

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

/// The next hop of frames to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// The peer's address is one of this host's.
    Local,
    /// The peer is on the interface's link.
    OnLink,
    /// A router with this address.
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

/// Returns the location of a rail of this name, from which its peers compute what connects them. Unknown
/// parts are empty.
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

/// Returns the inode number of this thread's network namespace, or 0 if it is unknown.
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

/// Looks up the next hop from the rail `name` to `peer` without opening anything. An open rail does the same
/// lookup when a peer is opened.
///
/// ```
/// use doorbell_fabric::addr::RailAddress;
/// use doorbell_inet::NextHop;
/// let (lo, config) = ("udp:lo".parse()?, Default::default());
/// let udp = |to: &str| RailAddress::inet("udp", to.parse().unwrap());
/// let way = |to: &str| doorbell_inet::next_hop_to(&lo, &config, &udp(to));
/// assert_eq!(way("127.0.0.1:56080")?, NextHop::Local);
/// assert!(way("192.0.2.1:56080").unwrap_err().to_string().contains("loopback"));
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
///
/// # Errors
/// [`RailError::Unreachable`] when there is no route, [`RailError::Unusable`] when the rail itself cannot be
/// used.
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

/// The reason why there is no next hop.
pub enum NoRoute {
    /// There is no route, for this reason.
    Because(String),
    /// The lookup failed.
    System(io::Error),
}

impl NoRoute {
    /// Converts to the error of this rail about this peer.
    pub fn into_rail_error(self, name: &RailName, peer: &RailAddress) -> RailError {
        match self {
            Self::Because(reason) => RailError::Unreachable {
                rail: name.to_string(),
                peer: peer.to_string(),
                reason,
                remedy: "run `ip route get` with the peer's address, and name a rail of the interface that it shows",
            },
            Self::System(error) => system_error(name, "look up a route", error),
        }
    }
}

impl From<io::Error> for NoRoute {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl Interface {
    /// Returns why no rail with our address reaches any address of `ip`'s family or scope.
    pub fn unreachable_reason(&self, ip: IpAddr) -> Option<&'static str> {
        if ip.is_ipv4() != self.address.is_ipv4() {
            Some("it is of the other family (IPv4, IPv6) than this rail's address")
        } else if ip.is_loopback() != self.address.is_loopback() {
            Some("only one of the two is a loopback address, which no other host can reach")
        } else {
            None
        }
    }

    /// Looks up the next hop to `to` from our address over this interface.
    pub fn next_hop(&self, to: SocketAddr) -> Result<NextHop, NoRoute> {
        let ip = to.ip();
        if let Some(reason) = self.unreachable_reason(ip) {
            return Err(NoRoute::Because(reason.to_owned()));
        }
        if self.address.is_loopback() {
            return Ok(NextHop::Local);
        }
        // A link-local address is valid on one interface only.
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
            // Of two interfaces in one network the table prefers one; the other is on the same link.
            None if pairs::within(self.address, ip, self.prefix) => Ok(NextHop::OnLink),
            None => Err(self.refusal(preferred)),
        }
    }

    /// Whether unbound sockets with our address also send to `to` through this interface.
    pub fn is_preferred(&self, to: IpAddr) -> bool {
        let asked = RouteQuery {
            from: Some(self.address),
            ..RouteQuery::default()
        };
        let found = look_up(to, &asked);
        found.is_ok_and(|found| found.is_ok_and(|route| !route.local && route.interface == self.index))
    }

    /// Whether the kernel drops packets received on this interface from `from`, because replies would leave
    /// through another one: `rp_filter` is 1 (the larger of the interface's value and that of `all`). IPv4
    /// only.
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

    /// Converts a route through this interface to a next hop.
    fn next_hop_by(&self, ip: IpAddr, found: Route) -> Result<NextHop, NoRoute> {
        if !found.local {
            return Ok(found.gateway.map_or(NextHop::OnLink, NextHop::Gateway));
        }
        let all = assigned()?;
        let mut holders = all.iter().filter(|one| one.address == Some(ip));
        match holders.next() {
            Some(first) if first.interface != self.name && holders.all(|one| one.interface != self.name) => {
                Err(NoRoute::Because(format!(
                    "it is an address of this host's {}, which frames sent on {} do not reach",
                    first.interface, self.name
                )))
            }
            _ => Ok(NextHop::Local),
        }
    }

    /// Looks up the route of sockets bound to this interface, if a table has one.
    fn bound_route(&self, ip: IpAddr) -> io::Result<Option<Route>> {
        let mut asked = RouteQuery {
            from: Some(self.address),
            through: Some(self.index),
            in_table: true,
        };
        if look_up(ip, &asked)?.is_err() {
            return Ok(None);
        }
        // A table lookup does not say which router of a multipath route is chosen.
        asked.in_table = false;
        let found = look_up(ip, &asked)?.ok();
        Ok(found.filter(|found| found.local || found.interface == self.index))
    }

    /// The reason why the preferred route cannot be used by this rail.
    fn refusal(&self, preferred: Result<Route, &'static str>) -> NoRoute {
        let found = match preferred {
            Ok(found) => found,
            // Kernel versions differ in the error for a source that is not a local address.
            Err(NO_ROUTE | BLACK_HOLE) if !self.has_its_address() => {
                return NoRoute::Because(format!(
                    "{} no longer has the address {}",
                    self.name, self.address
                ));
            }
            Err(reason) => return NoRoute::Because(reason.to_owned()),
        };
        let other = name_of(found.interface);
        let by = found
            .gateway
            .map_or_else(String::new, |gateway| format!(" (router {gateway})"));
        NoRoute::Because(format!(
            "the routing table routes it through {other}{by}, not through {}",
            self.name
        ))
    }

    fn has_its_address(&self) -> bool {
        assigned().map_or(true, |all| {
            all.iter().any(|one| one.address == Some(self.address))
        })
    }

    /// Returns the location of a rail over this interface.
    pub fn place(&self, query: &InterfaceQuery) -> Place {
        Place {
            network: self.network,
            prefix: self.prefix,
            mtu: self.mtu(query),
            takes: self.state.mtu,
            kind: self.kind().0,
            interface: self.name.clone(),
            port: None,
        }
    }

    /// Returns the kind of interface, and the kernel's name of it.
    pub fn kind(&self) -> (Kind, String) {
        if self.is_loopback() {
            return (Kind::Loopback, String::new());
        }
        let told = Details::of(self.index)
            .map(|details| details.kind)
            .unwrap_or_default();
        let kind = match told.as_str() {
            "bridge" | "openvswitch" => Kind::Bridge,
            // Kinds of links that lead out of the host.
            "" | "bond" | "team" | "vlan" | "macvlan" | "ipvlan" | "ipoib" | "vrf" | "hsr" => Kind::Plain,
            _ => Kind::Virtual,
        };
        (kind, told)
    }

    /// Whether it is a hardware device, which segments runs of frames and computes offloaded checksums before
    /// anything is on a wire. Virtual links pass both on undone, and so do paravirtual devices. False if that
    /// is unknown.
    pub fn is_wire(&self) -> bool {
        let mut index = self.index;
        // Follows a few levels of stacked links.
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

    /// The reason why a rail over it is used only when it is named.
    pub fn only_when_named(&self) -> String {
        match self.kind() {
            (Kind::Loopback, _) => "the loopback, to which shared memory is preferred".to_owned(),
            (Kind::Bridge, _) => "a bridge, whose network is usually internal to this host".to_owned(),
            (Kind::Virtual, told) => format!("a virtual link ({told}), as containers and tunnels use"),
            (Kind::Plain, _) => "an open rail listens on its network".to_owned(),
        }
    }
}

/// Whether a driver of this name is for hardware; paravirtual drivers pass frames to another machine's
/// kernel.
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

pub(crate) fn name_of(index: u32) -> String {
    let name = probe_socket().and_then(|socket| Ok(netdevice::index_to_name(&socket, index)?));
    name.unwrap_or_else(|_| format!("interface {index}"))
}

/// A route, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route {
    interface: u32,
    gateway: Option<IpAddr>,
    local: bool,
}

/// Size of `rtmsg`.
pub(crate) const ROUTE: usize = 12;
/// A gateway of another family (linux/rtnetlink.h).
const RTA_VIA: u16 = 18;

const NO_ROUTE: &str = "the routing table has no route to it";
const BLACK_HOLE: &str = "the routing table has a blackhole route for it";
const NOT_REACHED: &str = "the routing table has an unreachable route for it";
const PROHIBITED: &str = "the routing table has a prohibit route for it";
const SEVERAL: &str = "it is the address of several hosts";

/// The conditions of a route lookup.
#[derive(Clone, Copy, Default)]
struct RouteQuery {
    /// Source address of the lookup.
    from: Option<IpAddr>,
    /// Index of the output interface.
    through: Option<u32>,
    /// Only routes in a table count.
    in_table: bool,
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    }
}

/// Looks up the route to `to`, or the reason why there is none.
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

/// Interprets the kernel's reply. Only an `NLMSG_ERROR` is the routing table's answer: the same error number
/// of a system call comes from a sandbox.
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
        libc::RTN_BROADCAST | libc::RTN_MULTICAST | libc::RTN_ANYCAST => return Err(SEVERAL),
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
            // `rtvia`: two bytes of address family, then the address.
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

/// Entry point for the fuzzers.
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
    fn answers_are_read_and_broken_ones_do_no_harm() {
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
            (libc::RTN_BROADCAST, SEVERAL),
            (libc::RTN_MULTICAST, SEVERAL),
        ] {
            route[7] = kind;
            assert_eq!(read_route(&route), Err(word));
        }
    }

    /// Refusals of the routing table are reasons; everything else is a system error.
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
