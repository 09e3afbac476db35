//! Ports of InfiniBand and RoCE devices: by which GIDs they are reached, and the pair of them that two ports
//! use.
//!
//! Both ends find the same pair, since it is a function of the two published lists alone:
//!
//! | first | then |
//! |---|---|
//! | of one kind and one family | RoCE v2 before v1 |
//! | an IPv4 address | before a global IPv6 address, before a link-local one |
//! | one network | before networks that a router has to connect |
//! | small places in both lists | the smaller bytes of both addresses |
//!
//! Reference: verbs, section 7.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Most GIDs that a port publishes.
pub const PUBLISHED: usize = 6;

/// A GID: an IPv6 address, an IPv4 address as one, or a subnet's prefix and a port's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "Ipv6Addr", into = "Ipv6Addr")]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether it is no address: an entry that is not in use.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        let Self([.., a, b, c, d, e, f, g, h]) = self;
        (a | b | c | d | e | f | g | h) == 0
    }

    /// The address that it is, of IPv4 where it is one.
    #[must_use]
    pub fn address(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// Returns the family of the address in the GID.
    #[must_use]
    pub fn family(self) -> Family {
        match self.address() {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(address) if address.is_unicast_link_local() => Family::LinkLocal,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// How many first bits two of them have in common.
    fn common_bits(self, other: Self) -> u32 {
        (u128::from_be_bytes(self.0) ^ u128::from_be_bytes(other.0)).leading_zeros()
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<Gid> for Ipv6Addr {
    fn from(gid: Gid) -> Self {
        Self::from(gid.0)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(out)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// What an address belongs to, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// An IPv4 address, mapped into IPv6.
    V4,
    /// IPv6, of a network.
    V6,
    /// IPv6, of a link.
    LinkLocal,
}

/// How packets with such a GID look on the wire, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Kind {
    /// In UDP, which routers forward.
    RoceV2 = 2,
    /// In an Ethernet type of their own.
    RoceV1 = 1,
    /// A GID of an InfiniBand port.
    #[serde(rename = "infiniband")]
    InfiniBand = 0,
}

impl Kind {
    /// The kind with this number, in the library and on the wire.
    #[must_use]
    pub const fn of(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::InfiniBand),
            1 => Some(Self::RoceV1),
            2 => Some(Self::RoceV2),
            _ => None,
        }
    }

    /// Its place in the order of preference, 0 first.
    #[must_use]
    pub const fn rank(self) -> u8 {
        2 - self as u8
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::RoceV2 => "RoCE v2",
            Self::RoceV1 => "RoCE v1",
            Self::InfiniBand => "InfiniBand",
        })
    }
}

/// A GID as a port publishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The GID itself.
    pub gid: Gid,
    /// How packets from this GID travel.
    pub kind: Kind,
    /// How many first bits of the address its network has: of an IPv4 address up to 32. 0: not known.
    pub prefix: u8,
}

impl Published {
    /// Bits of the GID that the network has in common; `None` where it is not known.
    fn network_bits(&self) -> Option<u32> {
        let bits = u32::from(self.prefix);
        match self.gid.family() {
            _ if bits == 0 => None,
            Family::V4 => Some(96 + bits.min(32)),
            Family::V6 | Family::LinkLocal => Some(bits.min(128)),
        }
    }

    /// Whether both are in one network, by the prefixes of both.
    fn shares_network(&self, other: &Self) -> bool {
        let bits = self.network_bits().max(other.network_bits());
        bits.is_some_and(|bits| self.gid.common_bits(other.gid) >= bits)
    }
}

/// What carries a port's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// An InfiniBand subnet.
    #[serde(rename = "infiniband")]
    InfiniBand,
    /// An Ethernet, whose packets are RoCE.
    Ethernet,
}

impl Link {
    /// Its name, as `ibv_devinfo` has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        }
    }
}

/// Describes a port to its peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// What carries its packets.
    pub link: Link,
    /// The key of its partition; the highest bit makes it a full member.
    pub partition: u16,
    /// Its GIDs, best first.
    pub gids: Vec<Published>,
}

/// The bit of a full member in a partition key.
pub const FULL_MEMBER: u16 = 0x8000;

/// Whether ports with these partition keys reach each other: one partition, and at least one full member.
#[must_use]
pub const fn share_partition(one: u16, other: u16) -> bool {
    (one ^ other) & !FULL_MEMBER == 0 && (one | other) & FULL_MEMBER != 0
}

/// The places in two lists of the GIDs that two ports use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The place in our list.
    pub ours: usize,
    /// The place in theirs.
    pub theirs: usize,
    /// Whether a router has to be between them, as far as is known.
    pub is_routed: bool,
}

/// What a pair of GIDs is compared by, most important first.
type Cost = (u8, Family, bool, usize, Gid, Gid);

/// What the pair of these places costs, among the pairs that can be used.
fn cost((at, our): (usize, &Published), (other, their): (usize, &Published)) -> Cost {
    let (less, more) = (our.gid.min(their.gid), our.gid.max(their.gid));
    let is_routed = !our.shares_network(their);
    let places = at + other;
    (our.kind.rank(), our.gid.family(), is_routed, places, less, more)
}

/// Why two GIDs are no pair; `None` where they are.
fn unlike(our: &Published, their: &Published) -> Option<PairLoss> {
    if our.kind != their.kind {
        return Some(PairLoss::OtherKind);
    }
    (our.gid.family() != their.gid.family()).then_some(PairLoss::OtherFamily)
}

/// Chooses the pair; `None` where no GID of ours is of one kind and family with one of theirs.
#[must_use]
pub fn choose(ours: &[Published], theirs: &[Published]) -> Option<Pair> {
    let all = ours.iter().enumerate().flat_map(|(at, our)| {
        let partners = theirs
            .iter()
            .enumerate()
            .filter(move |(_, their)| unlike(our, their).is_none());
        partners.map(move |(other, their)| ((at, our), (other, their)))
    });
    let ((ours, our), (theirs, their)) = all.min_by_key(|(our, their)| cost(*our, *their))?;
    Some(Pair {
        ours,
        theirs,
        is_routed: !our.shares_network(their),
    })
}

/// Why two ports do not use a pair of GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairLoss {
    /// They are of two kinds: InfiniBand, RoCE v2, RoCE v1.
    OtherKind,
    /// They are addresses of two families.
    OtherFamily,
    /// The pair in use is of RoCE v2, and this one of v1.
    LaterKind,
    /// The pair in use is of a family that comes before theirs.
    LaterFamily,
    /// A router has to connect them, and the pair in use shares a network.
    Routed,
    /// The pair in use has the smaller places in both lists.
    LaterPlaces,
    /// The pair in use has the smaller addresses.
    LargerAddresses,
}

impl PairLoss {
    /// The reason as the predicate of "they".
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OtherKind => "are of different kinds (InfiniBand, RoCE v2, RoCE v1)",
            Self::OtherFamily => "are of different families (IPv4, IPv6, link-local)",
            Self::LaterKind => "are of RoCE v1, which comes after v2",
            Self::LaterFamily => "are of a family that comes later (IPv4, global IPv6, link-local)",
            Self::Routed => "are in two networks, and the pair in use is in one",
            Self::LaterPlaces => "come later in both lists together",
            Self::LargerAddresses => "have the larger addresses",
        }
    }
}

/// A pair of GIDs, by its places in two lists, and why two ports do not use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JudgedPair {
    /// The place in our list.
    pub ours: usize,
    /// The place in theirs.
    pub theirs: usize,
    /// Why it is not used; `None` for the pair that is.
    pub loss: Option<PairLoss>,
}

/// Judges every pair of two lists: the one that is used first, then the others by their places, so that those
/// come first which would be better if the lists alone decided.
#[must_use]
pub fn judge(ours: &[Published], theirs: &[Published]) -> Vec<JudgedPair> {
    let best = choose(ours, theirs).map(|pair| {
        let (our, their) = ((pair.ours, &ours[pair.ours]), (pair.theirs, &theirs[pair.theirs]));
        (pair, cost(our, their))
    });
    let loss = |our: (usize, &Published), their: (usize, &Published)| {
        let (pair, best) = best.as_ref()?;
        if (pair.ours, pair.theirs) == (our.0, their.0) {
            return None;
        }
        let other = cost(our, their);
        Some(match () {
            () if other.0 != best.0 => PairLoss::LaterKind,
            () if other.1 != best.1 => PairLoss::LaterFamily,
            () if other.2 != best.2 => PairLoss::Routed,
            () if other.3 != best.3 => PairLoss::LaterPlaces,
            () => PairLoss::LargerAddresses,
        })
    };
    let all = ours.iter().enumerate().flat_map(|our| {
        let judged = move |their: (usize, &Published)| JudgedPair {
            ours: our.0,
            theirs: their.0,
            loss: unlike(our.1, their.1).or_else(|| loss(our, their)),
        };
        theirs.iter().enumerate().map(judged)
    });
    let mut all: Vec<JudgedPair> = all.collect();
    all.sort_by_key(|pair| (pair.loss.is_some(), pair.ours + pair.theirs, pair.ours));
    all
}

/// Describes the pair of GIDs that two ports use, then each pair that comes before it or beside it in the two
/// lists, with the reason that it is not used. The first line states that there is none, where there is none.
#[must_use]
pub fn explain(ours: &[Published], theirs: &[Published]) -> Vec<String> {
    let judged = judge(ours, theirs);
    let shown = |pair: &JudgedPair| {
        let [our, their] = [ours[pair.ours], theirs[pair.theirs]];
        format!("{} with {}", our.gid.address(), their.gid.address())
    };
    let used = judged.first().filter(|pair| pair.loss.is_none());
    let first = match used {
        None => "none: no two GIDs are of one kind and family".to_owned(),
        Some(pair) => {
            let [our, their] = [&ours[pair.ours], &theirs[pair.theirs]];
            let network = match our.shares_network(their) {
                true => "in one network",
                false => "a router between them, as far as is known",
            };
            format!("{} ({}, {network})", shown(pair), our.kind)
        }
    };
    let places = used.map_or(usize::MAX, |pair| pair.ours + pair.theirs);
    let better = judged
        .iter()
        .filter(|pair| pair.ours + pair.theirs <= places)
        .filter_map(|pair| Some((pair, pair.loss?)));
    let better = better.map(|(pair, loss)| format!("not {}: they {}", shown(pair), loss.as_str()));
    std::iter::once(first).chain(better).collect()
}

/// Formats a port's published GIDs in one line, best first.
#[must_use]
pub fn table(gids: &[Published]) -> String {
    let shown = |gid: &Published| format!("{}/{} ({})", gid.gid.address(), gid.prefix, gid.kind);
    let all: Vec<String> = gids.iter().map(shown).collect();
    if all.is_empty() {
        "none".to_owned()
    } else {
        all.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(address: &str, kind: Kind, prefix: u8) -> Published {
        let address: IpAddr = address.parse().unwrap();
        let bytes = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        Published {
            gid: Gid(bytes),
            kind,
            prefix,
        }
    }

    #[test]
    fn both_ends_choose_one_pair() {
        let kinds = [Kind::RoceV2, Kind::RoceV1];
        let addresses = [
            "10.0.0.1",
            "10.0.1.1",
            "10.0.0.2",
            "2001:db8::1",
            "fe80::1",
            "fe80::2",
            "10.0.0.3",
        ];
        let all: Vec<Published> = kinds
            .iter()
            .flat_map(|kind| addresses.iter().map(|address| published(address, *kind, 24)))
            .collect();
        let mut state = 7u64;
        let mut pick = |most: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % most
        };
        let mut none = 0;
        for _ in 0..2000 {
            let mut list = || -> Vec<Published> {
                let count = 1 + pick(PUBLISHED);
                (0..count).map(|_| all[pick(all.len())]).collect()
            };
            let (a, b) = (list(), list());
            match (choose(&a, &b), choose(&b, &a)) {
                (Some(here), Some(there)) => {
                    let gids = |list: &[Published], at: usize| (list[at].gid, list[at].kind);
                    assert_eq!(gids(&a, here.ours), gids(&a, there.theirs), "{a:?} {b:?}");
                    assert_eq!(gids(&b, here.theirs), gids(&b, there.ours), "{a:?} {b:?}");
                    assert_eq!(here.is_routed, there.is_routed);
                }
                (None, None) => none += 1,
                differs => panic!("{differs:?} of {a:?} and {b:?}"),
            }
        }
        assert!(none > 0, "some lists have nothing in common");
    }

    #[test]
    fn a_shared_network_is_before_a_routed_one_and_v2_before_all() {
        let v2 = |address| published(address, Kind::RoceV2, 24);
        let v1 = |address| published(address, Kind::RoceV1, 24);
        let ours = [v2("10.1.0.1"), v2("10.2.0.1"), v1("10.1.0.1")];
        let theirs = [v2("10.2.0.9"), v1("10.1.0.9")];
        let pair = choose(&ours, &theirs).unwrap();
        assert_eq!((pair.ours, pair.theirs, pair.is_routed), (1, 0, false));
        let pair = choose(&ours, &theirs[1..]).unwrap();
        assert_eq!((pair.ours, pair.theirs), (2, 0));
        let far = choose(&ours, &[v2("10.9.0.9")]).unwrap();
        assert!(far.is_routed);
        assert_eq!(choose(&ours, &[published("fe80::9", Kind::RoceV2, 64)]), None);
        // InfiniBand: the subnet's prefix and the port's number.
        let port = |address| published(address, Kind::InfiniBand, 64);
        assert!(!choose(&[port("fe80::1")], &[port("fe80::2")]).unwrap().is_routed);
    }

    /// Every pair has one verdict, the pair in use is the one that is chosen, and both ends give a pair the
    /// same reason.
    #[test]
    fn each_pair_has_the_same_reason_at_both_ends() {
        let v2 = |address, prefix| published(address, Kind::RoceV2, prefix);
        let v1 = |address, prefix| published(address, Kind::RoceV1, prefix);
        let ours = [
            v2("10.1.0.1", 24),
            v2("10.2.0.1", 24),
            v2("2001:db8::1", 64),
            v2("fe80::1", 64),
            v1("10.1.0.1", 24),
        ];
        let theirs = [
            v2("10.2.0.9", 24),
            v2("10.2.0.10", 24),
            v2("fe80::9", 64),
            v1("10.2.0.9", 24),
        ];
        let judged = judge(&ours, &theirs);
        assert_eq!(judged.len(), ours.len() * theirs.len());
        let used: Vec<_> = judged.iter().filter(|pair| pair.loss.is_none()).collect();
        let chosen = choose(&ours, &theirs).unwrap();
        assert_eq!(
            (used.len(), used[0].ours, used[0].theirs),
            (1, chosen.ours, chosen.theirs)
        );
        let of = |judged: &[JudgedPair], ours: usize, theirs: usize| {
            let found = judged
                .iter()
                .find(|pair| (pair.ours, pair.theirs) == (ours, theirs));
            found.unwrap().loss
        };
        for (ours, theirs, loss) in [
            (0, 0, PairLoss::Routed),
            (1, 1, PairLoss::LaterPlaces),
            (2, 2, PairLoss::OtherFamily),
            (0, 3, PairLoss::OtherKind),
            (3, 2, PairLoss::LaterFamily),
            (4, 3, PairLoss::LaterKind),
        ] {
            assert_eq!(of(&judged, ours, theirs), Some(loss), "{ours} with {theirs}");
        }
        let there = judge(&theirs, &ours);
        for pair in &judged {
            assert_eq!(of(&there, pair.theirs, pair.ours), pair.loss, "{pair:?}");
        }
        // As good in every other respect: the addresses decide.
        let ours = [v2("10.1.0.1", 24), v2("10.2.0.1", 24)];
        let theirs = [v2("10.2.0.9", 24), v2("10.1.0.9", 24)];
        let judged = judge(&ours, &theirs);
        assert_eq!((judged[0].ours, judged[0].theirs), (0, 1));
        assert_eq!(of(&judged, 1, 0), Some(PairLoss::LargerAddresses));
    }

    #[test]
    fn the_pair_in_use_is_explained_with_those_that_come_before_it() {
        let v2 = |address, prefix| published(address, Kind::RoceV2, prefix);
        let ours = [v2("10.1.0.1", 24), v2("10.2.0.1", 24), v2("fe80::1", 64)];
        let theirs = [v2("10.2.0.9", 24), v2("fe80::9", 64)];
        assert_eq!(
            explain(&ours, &theirs),
            [
                "10.2.0.1 with 10.2.0.9 (RoCE v2, in one network)",
                "not 10.1.0.1 with 10.2.0.9: they are in two networks, and the pair in use is in one",
                "not 10.1.0.1 with fe80::9: they are of different families (IPv4, IPv6, link-local)",
            ]
        );
        assert_eq!(
            explain(&ours[..1], &theirs[1..]),
            [
                "none: no two GIDs are of one kind and family",
                "not 10.1.0.1 with fe80::9: they are of different families (IPv4, IPv6, link-local)",
            ]
        );
        assert_eq!(explain(&ours[..1], &theirs[..1]).len(), 1);
        assert!(explain(&ours[..1], &theirs[..1])[0].contains("a router between them"));
        assert_eq!(table(&ours[..2]), "10.1.0.1/24 (RoCE v2), 10.2.0.1/24 (RoCE v2)");
        assert_eq!(table(&[]), "none");
    }

    #[test]
    fn an_entry_without_a_port_number_is_not_in_use() {
        assert!(Gid([0; 16]).is_zero());
        // InfiniBand: a prefix and no number.
        let mut prefix = [0; 16];
        prefix[0] = 0xfe;
        prefix[1] = 0x80;
        assert!(Gid(prefix).is_zero());
        assert!(!published("10.0.0.1", Kind::RoceV2, 24).gid.is_zero());
    }

    #[test]
    fn a_port_is_written_as_its_addresses() {
        let port = Port {
            link: Link::Ethernet,
            partition: 0xffff,
            gids: vec![published("10.0.0.1", Kind::RoceV2, 24)],
        };
        let text = serde_json::to_string(&port).unwrap();
        assert_eq!(
            text,
            r#"{"link":"ethernet","partition":65535,"gids":[{"gid":"::ffff:10.0.0.1","kind":"roce-v2","prefix":24}]}"#
        );
        assert_eq!(serde_json::from_str::<Port>(&text).unwrap(), port);
    }
}
