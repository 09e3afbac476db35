//! Pairs the rails of two ranks: the same pairs at both ends, computed from what both have published.
//!
//! ```text
//!   lower rank          higher rank
//!   udp:a0 10.1.0.1/24 ── udp:b0 10.1.0.2/24     same network      pair 0
//!   udp:a1 10.2.0.1/24 ─┐ udp:b1 10.9.0.2/24     unmatched
//!   shm ───────────────┐└ udp:b2 10.2.0.2/24     same network      pair 1
//!                      └─ shm                    direct            pair 2
//! ```
//!
//! A rail is in at most one pair of a peer. The pairs are a maximum matching, and among those the one with
//! the most pairs of the best [`Quality`], then of the next, and so on (as in Open MPI's usnic BTL, which
//! weighs the answers of its `reachable` framework). Remaining ties are broken by list order: the first rail
//! of the lower rank gets the first partner that it can have.
//!
//! Both ends identify a pair by its number, so both have to compute the same pairs. Therefore this is a pure
//! function of the two published lists, without probes, local routes or preferences. A pair that cannot be
//! opened where it should is an error of the job, and no reason to skip a number ([`crate::select`]).

mod heaviest;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::addr::{Address, RailAddress};
use crate::gid::{Family, Link, Port, choose, share_partition};
use crate::select::Offer;
use heaviest::first_of_the_heaviest;

/// The most rails of one rank: what lies behind them is not looked at.
pub const RAILS_MAX: usize = 32;

/// The location of a rail: what its peers need to decide whether they can reach it. The same from every
/// viewpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    /// The interface at the other end; empty where it has none.
    pub interface: String,
    /// The network namespace on its host; 0: not known.
    pub network: u64,
    /// How many first bits of its address it shares with all of its network.
    pub prefix: u8,
    /// The longest packet that the rail sends, in bytes: the interface's MTU, or less where less is set; 0:
    /// not known.
    pub mtu: usize,
    /// The longest packet that arrives, in bytes: what the interface takes, or the rail's own queue; 0: not
    /// known.
    pub takes: usize,
    /// What kind of interface.
    pub kind: Kind,
    /// The port of an InfiniBand or RoCE device; `None` for what is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<Port>,
}

/// Kinds of interfaces, as far as it matters for reaching others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A link that leads out of the host, or one that is not known to be anything else.
    #[default]
    Plain,
    /// The loopback interface.
    Loopback,
    /// A bridge, whose network is usually this host's own.
    Bridge,
    /// A virtual link: to a container, a virtual machine, or through a tunnel.
    Virtual,
}

/// How well a pair is expected to work, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quality {
    /// Two addresses of links, which are the same link or not.
    LinkLocal,
    /// Addresses of different networks, at least one of them private: a router has to connect them.
    Routed,
    /// Addresses of different networks that are routed globally.
    Public,
    /// Addresses in one network.
    SameNetwork,
    /// Both ends are on one interface.
    SameInterface,
    /// There is no network between the two ends.
    Direct,
}

/// Number of qualities.
const QUALITIES: usize = 6;

/// Why two rails never reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Never {
    /// The rails use different protocols.
    OtherWire,
    /// Memory and loopbacks are shared within one host only.
    OtherHost,
    /// IPv4 and IPv6.
    OtherFamily,
    /// Only one of them is a loopback.
    Loopback,
    /// An address of a link, and one of a network.
    Scope,
    /// The interfaces are two of one host: frames from one do not arrive at the other.
    OtherInterface,
    /// The address is the same at two places.
    SameAddress,
    /// An address that is not a single host's.
    NoHost,
    /// A port of InfiniBand, and one of Ethernet.
    OtherLink,
    /// Two ports without GIDs of one kind and family.
    OtherGids,
    /// Two InfiniBand subnets.
    OtherSubnet,
    /// Other partitions, or two limited members of one.
    Partition,
}

impl Never {
    /// The reason as the predicate of "they".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OtherWire => "use different wire formats",
            Self::OtherHost => "are on different hosts, and this kind connects processes of one host only",
            Self::OtherFamily => "have addresses of different families (IPv4, IPv6)",
            Self::Loopback => "are a loopback and a network address, which cannot reach each other",
            Self::Scope => "are a link-local address and a network address, which cannot reach each other",
            Self::OtherInterface => "are two interfaces of one host, which cannot reach each other",
            Self::SameAddress => "have the same address on both sides",
            Self::NoHost => "have an address that is not a single host's",
            Self::OtherLink => "are a port of InfiniBand and one of Ethernet",
            Self::OtherGids => "have no GIDs of one kind (RoCE v1, v2) and family (IPv4, IPv6, link-local)",
            Self::OtherSubnet => "are in InfiniBand subnets of different prefixes",
            Self::Partition => "are in different partitions, or both limited members of one",
        }
    }
}

/// What one rank has published.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The name of the host.
    pub host: &'a str,
    /// The rails of the host.
    pub rails: &'a [Offer],
}

/// Two rails that talk to each other, by their places in the two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The lower rank's.
    pub lower: usize,
    /// The higher rank's.
    pub higher: usize,
    /// How well it is expected to work.
    pub quality: Quality,
}

/// The pairs of two ranks; the place of a pair in the list is its number.
///
/// ```
/// use doorbell_fabric::addr::RailAddress;
/// use doorbell_fabric::pairs::{Place, Quality, Side, pairs};
/// use doorbell_fabric::select::Offer;
///
/// let rail = |name: &str, address: &str| {
///     let address = RailAddress::inet("udp", format!("{address}:56080").parse().unwrap());
///     let place = Place { prefix: 24, ..Place::default() };
///     Offer { rail: name.parse().unwrap(), wire: "udp".into(), address, place }
/// };
/// let zero = [rail("udp:a0", "10.1.0.1"), rail("udp:a1", "10.2.0.1")];
/// let one = [rail("udp:b0", "10.2.0.2"), rail("udp:b1", "10.1.0.2")];
/// let found = pairs(Side { host: "a", rails: &zero }, Side { host: "b", rails: &one });
/// assert_eq!((found[0].lower, found[0].higher, found[0].quality), (0, 1, Quality::SameNetwork));
/// ```
pub fn pairs(lower: Side<'_>, higher: Side<'_>) -> Vec<Pair> {
    let [left, right] = [lower, higher].map(|side| &side.rails[..side.rails.len().min(RAILS_MAX)]);
    let same_host = lower.host == higher.host;
    let weigh = |one: &Offer, other: &Offer| {
        quality(one, other, same_host).map_or(0, |quality| weight(quality, one, other))
    };
    let weights: Vec<Vec<i64>> = left
        .iter()
        .map(|one| right.iter().map(|other| weigh(one, other)).collect())
        .collect();
    let matched = first_of_the_heaviest(left.len(), right.len(), |lower, higher| weights[lower][higher]);
    let pair = |(lower, higher): (usize, Option<usize>)| {
        let higher = higher?;
        let quality = quality(&left[lower], &right[higher], same_host).ok()?;
        Some(Pair {
            lower,
            higher,
            quality,
        })
    };
    matched.into_iter().enumerate().filter_map(pair).collect()
}

/// Returns how well two rails are expected to reach each other.
///
/// # Errors
/// Why they never do.
pub fn quality(one: &Offer, other: &Offer, same_host: bool) -> Result<Quality, Never> {
    if one.wire != other.wire {
        return Err(Never::OtherWire);
    }
    let same_network = same_host && one.place.network == other.place.network;
    if let (Some(a), Some(b)) = (&one.place.port, &other.place.port) {
        return between_ports((one, a), (other, b), same_network);
    }
    let (Some(a), Some(b)) = (ip(&one.address), ip(&other.address)) else {
        let within = one.wire != "shm" || same_network;
        return if within {
            Ok(Quality::Direct)
        } else {
            Err(Never::OtherHost)
        };
    };
    if a.is_ipv4() != b.is_ipv4() {
        return Err(Never::OtherFamily);
    }
    if [a, b].into_iter().any(names_no_host) {
        return Err(Never::NoHost);
    }
    match (a.is_loopback(), b.is_loopback()) {
        (true, true) if same_network => return Ok(Quality::SameInterface),
        (true, true) => return Err(Never::OtherHost),
        (false, false) => {}
        _ => return Err(Never::Loopback),
    }
    if same_network {
        return within_one_host(one, other, a == b);
    }
    match (is_link_local(a), is_link_local(b)) {
        _ if a == b => Err(Never::SameAddress),
        (true, true) => Ok(Quality::LinkLocal),
        (false, false) if within(a, b, one.place.prefix) && within(a, b, other.place.prefix) => {
            Ok(Quality::SameNetwork)
        }
        (false, false) => Ok(over_a_router(a, b)),
        _ => Err(Never::Scope),
    }
}

/// Of two rails in one network namespace.
fn within_one_host(one: &Offer, other: &Offer, same_address: bool) -> Result<Quality, Never> {
    let same =
        same_address || !one.place.interface.is_empty() && one.place.interface == other.place.interface;
    if same {
        Ok(Quality::SameInterface)
    } else {
        Err(Never::OtherInterface)
    }
}

fn over_a_router(a: IpAddr, b: IpAddr) -> Quality {
    if is_public(a) && is_public(b) {
        Quality::Public
    } else {
        Quality::Routed
    }
}

/// Of two ports of InfiniBand or RoCE devices.
fn between_ports(
    (one, a): (&Offer, &Port),
    (other, b): (&Offer, &Port),
    same_network: bool,
) -> Result<Quality, Never> {
    if a.link != b.link {
        return Err(Never::OtherLink);
    }
    if !share_partition(a.partition, b.partition) {
        return Err(Never::Partition);
    }
    let pair = choose(&a.gids, &b.gids).ok_or(match a.link {
        Link::InfiniBand => Never::OtherSubnet,
        Link::Ethernet => Never::OtherGids,
    })?;
    let [ours, theirs] = [a.gids[pair.ours].gid, b.gids[pair.theirs].gid];
    let same_port = ours == theirs;
    match a.link {
        Link::InfiniBand if pair.is_routed => Err(Never::OtherSubnet),
        Link::InfiniBand if same_port => Ok(Quality::SameInterface),
        Link::InfiniBand => Ok(Quality::SameNetwork),
        Link::Ethernet if same_network => within_one_host(one, other, same_port),
        Link::Ethernet if same_port => Err(Never::SameAddress),
        Link::Ethernet if ours.family() == Family::LinkLocal => Ok(Quality::LinkLocal),
        Link::Ethernet if pair.is_routed => Ok(over_a_router(ours.address(), theirs.address())),
        Link::Ethernet => Ok(Quality::SameNetwork),
    }
}

fn ip(address: &RailAddress) -> Option<IpAddr> {
    match &address.address {
        Address::Inet(socket) => Some(socket.ip()),
        Address::Native(_) => None,
    }
}

fn names_no_host(address: IpAddr) -> bool {
    address.is_unspecified() || address.is_multicast() || address == IpAddr::from([255; 4])
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    }
}

/// Whether it is routed globally: not private, carrier-grade, or link-local.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => {
            let [first, second, ..] = four.octets();
            let shared = first == 100 && second & 0xc0 == 64;
            !four.is_private() && !shared && !four.is_link_local()
        }
        IpAddr::V6(six) => six.segments()[0] & 0xe000 == 0x2000,
    }
}

/// Whether the first `prefix` bits are the same; no prefix is no network.
pub fn within(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let same = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => return false,
    };
    prefix > 0 && same >= u32::from(prefix)
}

/// One digit more than there can be pairs, so that no number of worse pairs outweighs a better one.
const BASE: i64 = RAILS_MAX as i64 + 1;

/// Returns what a pair weighs: digits that count pairs, pairs of each quality, best first, pairs of plain
/// links, and pairs of one MTU. The heaviest matching is then the first by all of these, in this order.
fn weight(quality: Quality, one: &Offer, other: &Offer) -> i64 {
    let plain = [one, other]
        .iter()
        .all(|end| !matches!(end.place.kind, Kind::Bridge | Kind::Virtual));
    let digit = |at: usize| BASE.pow(at as u32);
    digit(2 + QUALITIES)
        + digit(2 + quality as usize)
        + if plain { digit(1) } else { 0 }
        + i64::from(one.place.mtu == other.place.mtu)
}

// Eight digits and one for the sums.
const _: () = assert!(BASE.checked_pow(QUALITIES as u32 + 3).is_some());

#[cfg(test)]
mod tests;
