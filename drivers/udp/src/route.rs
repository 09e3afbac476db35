//! How the kernel would get a frame to a peer, asked over rtnetlink(7) before anything is sent: by which interface, through
//! a gateway or not, or why not at all. And what kind of interface one is.
//!
//! ```text
//!   RTM_GETROUTE 10.2.0.2  ──►  kernel  ──►  dev eth0, via 10.1.0.254       a rail of eth0 reaches it
//!                                       ──►  dev eth1                       a rail of eth0 does not
//!                                       ──►  no route, black hole …         nobody does
//! ```

use std::io;
use std::net::{IpAddr, SocketAddr};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::{self, Kind, Place};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice};

use crate::config::UdpConfig;
use crate::interface::{Interface, probe_socket, system};
use crate::sys;

/// How frames of a rail get to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// They stay on this host.
    Here,
    /// The peer is on the interface's own link.
    Neighbour,
    /// Through a router.
    Gateway(IpAddr),
}

impl std::fmt::Display for Way {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Here => out.write_str("within this host"),
            Self::Neighbour => out.write_str("on its own link"),
            Self::Gateway(gateway) => write!(out, "through the router {gateway}"),
        }
    }
}

/// Where a rail of this name is, for its peers to judge; as much of it as can be found out.
///
/// ```
/// use doorbell_fabric::pairs::Kind;
/// let lo = doorbell_udp::place(&"udp:lo".parse()?, &Default::default());
/// assert_eq!((lo.interface.as_str(), lo.prefix, lo.kind), ("lo", 8, Kind::Loopback));
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
pub fn place(name: &RailName, config: &UdpConfig) -> Place {
    let network = network();
    match Interface::find(name, config) {
        Ok(found) => Place {
            network,
            prefix: found.prefix,
            mtu: found.mtu(config),
            kind: found.kind().0,
            interface: found.name,
        },
        Err(_) => Place {
            network,
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
/// assert!(doorbell_udp::is_own([127, 0, 0, 1].into()) && !doorbell_udp::is_own([192, 0, 2, 1].into()));
/// ```
pub fn is_own(address: IpAddr) -> bool {
    look_up(address, None).is_ok_and(|found| found.is_ok_and(|route| route.local))
}

/// How frames of the rail `name` would get to `peer`: nothing is opened and nothing sent.
///
/// ```
/// use doorbell_fabric::addr::RailAddress;
/// use doorbell_udp::Way;
/// let (lo, config) = ("udp:lo".parse()?, Default::default());
/// let way = |to: &str| doorbell_udp::way(&lo, &config, &RailAddress::inet("udp", to.parse().unwrap()));
/// assert_eq!(way("127.0.0.1:4790")?, Way::Here);
/// assert!(way("192.0.2.1:4790").unwrap_err().to_string().contains("loopback"));
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
///
/// # Errors
/// Why they would not: [`RailError::Unreachable`] as the routing table has it, [`RailError::Unusable`] of the rail itself.
pub fn way(name: &RailName, config: &UdpConfig, peer: &RailAddress) -> Result<Way, RailError> {
    let interface = Interface::find(name, config)?.require(name, config)?;
    let refused = |reason: String| RailError::Unreachable {
        rail: name.to_string(),
        peer: peer.to_string(),
        reason,
        remedy: "see `ip route get` for the peer's address, and name a rail that leads there",
    };
    let Some(to) = peer.inet_of(&peer.kind) else {
        return Err(refused("it has no IP address".to_owned()));
    };
    interface.way(to).map_err(|no| match no {
        No::Because(reason) => refused(reason),
        No::System(error) => system(name, "ask the routing table", error),
    })
}

/// Why there is no way.
enum No {
    Because(String),
    System(io::Error),
}

impl From<io::Error> for No {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl Interface {
    fn way(&self, to: SocketAddr) -> Result<Way, No> {
        let (ip, no) = (to.ip(), |reason: &str| Err(No::Because(reason.to_owned())));
        if ip.is_ipv4() != self.address.is_ipv4() {
            return no("it is of the other family of IP addresses than this rail's");
        }
        if ip.is_loopback() != self.is_loopback() {
            return no("only one of the two is a loopback address, which leads nowhere else");
        }
        if self.is_loopback() {
            return Ok(Way::Here);
        }
        // An address of a link means something on one interface only.
        let link_local = matches!(ip, IpAddr::V6(six) if six.is_unicast_link_local());
        let found = match look_up(ip, link_local.then_some(self.index))? {
            Ok(found) => found,
            Err(reason) => return no(reason),
        };
        if found.local {
            let all = sys::assigned()?;
            let mut holders = all.iter().filter(|one| one.address == Some(ip));
            return match holders.next() {
                Some(first)
                    if first.interface != self.name && holders.all(|one| one.interface != self.name) =>
                {
                    Err(No::Because(format!(
                        "it is an address of this host's {}, and frames from {} do not arrive there",
                        first.interface, self.name
                    )))
                }
                _ => Ok(Way::Here),
            };
        }
        match (found.gateway, found.interface == self.index) {
            (None, true) => Ok(Way::Neighbour),
            (Some(gateway), true) => Ok(Way::Gateway(gateway)),
            // Of two interfaces in one network the table prefers one; the other is as near.
            (_, false) if pairs::within(self.address, ip, self.prefix) => Ok(Way::Neighbour),
            (gateway, false) => {
                let other = name_of(found.interface);
                let by = gateway.map_or_else(String::new, |gateway| format!(" (router {gateway})"));
                Err(No::Because(format!(
                    "the routing table leads to it through {other}{by}, not {}",
                    self.name
                )))
            }
        }
    }

    /// What kind of interface it is, and what the kernel calls that.
    pub(crate) fn kind(&self) -> (Kind, String) {
        if self.is_loopback() {
            return (Kind::Loopback, String::new());
        }
        let told = link_kind(self.index).ok().flatten().unwrap_or_default();
        let kind = match told.as_str() {
            "bridge" | "openvswitch" => Kind::Bridge,
            // Names for ways over links that lead out of the host.
            "" | "bond" | "team" | "vlan" | "macvlan" | "ipvlan" | "ipoib" | "vrf" | "hsr" => Kind::Plain,
            _ => Kind::Virtual,
        };
        (kind, told)
    }

    /// Why a rail over it is used only when it is named.
    pub(crate) fn only_when_named(&self) -> String {
        match self.kind() {
            (Kind::Loopback, _) => "the loopback, to which shared memory is preferred".to_owned(),
            (Kind::Bridge, _) => "a bridge, whose network is this host's own as a rule".to_owned(),
            (Kind::Virtual, told) => format!("a virtual link ({told}), as containers and tunnels have"),
            (Kind::Plain, _) => "an open rail listens on its network".to_owned(),
        }
    }
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

// linux/netlink.h and linux/rtnetlink.h.
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const HEADER: usize = 16;
const ROUTE: usize = 12;
const LINK: usize = 16;
const DESTINATION: u16 = 1;
const OUTGOING: u16 = 4;
const GATEWAY: u16 = 5;
const VIA: u16 = 18;
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
const LOCAL: u8 = 2;
const BLACKHOLE: u8 = 6;
const UNREACHABLE: u8 = 7;
const PROHIBIT: u8 = 8;

const NO_ROUTE: &str = "the routing table has no route to it";
const BLACK_HOLE: &str = "the routing table leads to it into a black hole";
const NOT_REACHED: &str = "the routing table says that it is unreachable";
const PROHIBITED: &str = "the routing table prohibits it";

/// The route to `to`, or in words why there is none.
fn look_up(to: IpAddr, through: Option<u32>) -> io::Result<Result<Route, &'static str>> {
    let (family, bytes) = match to {
        IpAddr::V4(four) => (libc::AF_INET as u8, four.octets().to_vec()),
        IpAddr::V6(six) => (libc::AF_INET6 as u8, six.octets().to_vec()),
    };
    let mut body = vec![0; ROUTE];
    (body[0], body[1]) = (family, 8 * bytes.len() as u8);
    attribute(&mut body, DESTINATION, &bytes);
    if let Some(index) = through {
        attribute(&mut body, OUTGOING, &index.to_ne_bytes());
    }
    match ask(GET_ROUTE, NEW_ROUTE, &body) {
        Ok(answer) => Ok(read_route(&answer)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENETUNREACH) => Ok(Err(NO_ROUTE)),
            Some(libc::EINVAL) => Ok(Err(BLACK_HOLE)),
            Some(libc::EHOSTUNREACH) => Ok(Err(NOT_REACHED)),
            Some(libc::EACCES) => Ok(Err(PROHIBITED)),
            _ => Err(error),
        },
    }
}

fn read_route(body: &[u8]) -> Result<Route, &'static str> {
    let kind = body.get(7).copied().unwrap_or(0);
    match kind {
        BLACKHOLE => return Err(BLACK_HOLE),
        UNREACHABLE => return Err(NOT_REACHED),
        PROHIBIT => return Err(PROHIBITED),
        _ => {}
    }
    let mut route = Route {
        interface: 0,
        gateway: None,
        local: kind == LOCAL,
    };
    for (what, value) in attributes(body.get(ROUTE..).unwrap_or(&[])) {
        match what {
            OUTGOING => route.interface = value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes)),
            GATEWAY => route.gateway = ip_of(value),
            // A gateway of the other family: two bytes of family, then the address.
            VIA => route.gateway = value.get(2..).and_then(ip_of),
            _ => {}
        }
    }
    Ok(route)
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// What the kernel calls this kind of interface; `None` for hardware.
fn link_kind(index: u32) -> io::Result<Option<String>> {
    let mut body = vec![0; LINK];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    Ok(read_kind(&ask(GET_LINK, NEW_LINK, &body)?))
}

fn read_kind(body: &[u8]) -> Option<String> {
    let (_, info) = attributes(body.get(LINK..)?).find(|(what, _)| *what == LINK_INFO)?;
    let (_, kind) = attributes(info).find(|(what, _)| *what == INFO_KIND)?;
    let text = kind.split(|byte| *byte == 0).next().unwrap_or(&[]);
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Appends an attribute, padded.
fn attribute(body: &mut Vec<u8>, what: u16, value: &[u8]) {
    body.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    body.extend_from_slice(&what.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The attributes in `bytes`, as far as they make sense.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        // The upper two bits tell of nesting and byte order.
        let what = u16::from_ne_bytes([head[2], head[3]]) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((what, value))
    })
}

/// One question to the kernel, and what follows the header of its answer. The kernel answers before `send` returns.
fn ask(question: u16, answer: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0 is NETLINK_ROUTE; who is not bound sends to the kernel.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&question.to_ne_bytes());
    message.extend_from_slice(&REQUEST.to_ne_bytes());
    message.resize(HEADER, 0);
    message.extend_from_slice(body);
    rustix::net::send(&socket, &message, SendFlags::empty())?;
    let mut bytes = vec![0; 16 << 10];
    let (length, _) = rustix::net::recv(&socket, &mut bytes, RecvFlags::empty())?;
    bytes.truncate(length);
    read_answer(&bytes, answer)
}

fn read_answer(bytes: &[u8], wanted: u16) -> io::Result<Vec<u8>> {
    let strange = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer makes no sense");
    let head = bytes.first_chunk::<HEADER>().ok_or_else(strange)?;
    let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let body = bytes.get(HEADER..length).ok_or_else(strange)?;
    match u16::from_ne_bytes([head[4], head[5]]) {
        kind if kind == wanted => Ok(body.to_vec()),
        ERROR => {
            let number = body.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
            let number = number.filter(|number| *number < 0).ok_or_else(strange)?;
            Err(io::Error::from_raw_os_error(number.saturating_neg()))
        }
        _ => Err(strange()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_about_the_loopback() {
        let route = look_up([127, 0, 0, 1].into(), None).unwrap().unwrap();
        assert!(route.local && route.gateway.is_none());
        let lo = Interface::find(&"udp:lo".parse().unwrap(), &UdpConfig::default()).unwrap();
        assert_eq!(lo.kind().0, Kind::Loopback);
        assert_eq!(name_of(lo.index), "lo");
        assert!(network() > 0);
    }

    #[test]
    fn answers_are_read_and_broken_ones_hurt_nobody() {
        let mut route = vec![0; ROUTE];
        attribute(&mut route, OUTGOING, &7u32.to_ne_bytes());
        attribute(&mut route, GATEWAY, &[10, 0, 0, 1]);
        let read = read_route(&route).unwrap();
        assert_eq!(
            (read.interface, read.gateway, read.local),
            (7, Some([10, 0, 0, 1].into()), false)
        );
        let (mut link, mut info) = (vec![0; LINK], Vec::new());
        attribute(&mut info, INFO_KIND, b"veth\0");
        attribute(&mut link, LINK_INFO, &info);
        assert_eq!(read_kind(&link).as_deref(), Some("veth"));
        for cut in 0..link.len() {
            let _ = (
                read_kind(&link[..cut]),
                read_route(&link[..cut]),
                read_answer(&link[..cut], NEW_LINK),
            );
        }
        for (kind, word) in [
            (BLACKHOLE, BLACK_HOLE),
            (UNREACHABLE, NOT_REACHED),
            (PROHIBIT, PROHIBITED),
        ] {
            route[7] = kind;
            assert_eq!(read_route(&route), Err(word));
        }
        let refusal = |number: i32| {
            let mut bytes = 20u32.to_ne_bytes().to_vec();
            bytes.extend_from_slice(&ERROR.to_ne_bytes());
            bytes.resize(HEADER, 0);
            bytes.extend_from_slice(&number.to_ne_bytes());
            read_answer(&bytes, NEW_ROUTE).unwrap_err()
        };
        assert_eq!(refusal(-libc::EACCES).raw_os_error(), Some(libc::EACCES));
        assert_eq!(refusal(0).kind(), io::ErrorKind::InvalidData);
        assert!(refusal(i32::MIN).kind() != io::ErrorKind::WouldBlock);
    }
}
