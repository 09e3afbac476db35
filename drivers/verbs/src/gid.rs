//! A port's table of GIDs, in order of preference.
//!
//! Reference: verbs, section 7.

use doorbell_fabric::gid::Link;
pub use doorbell_fabric::gid::{Family, Gid, Kind, PUBLISHED, Pair, Published, choose};

/// The GIDs of two ports that carry what they send each other; zero where there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GidPair {
    pub(crate) ours: Gid,
    pub(crate) theirs: Gid,
    pub(crate) kind: Kind,
}

/// The pair of GIDs that two ports use; zero on InfiniBand where they have none. `None`: they cannot meet.
pub(crate) fn pair(link: Link, ours: &[Published], theirs: &[Published]) -> Option<GidPair> {
    match (choose(ours, theirs), link) {
        (Some(pair), _) => Some(GidPair {
            ours: ours[pair.ours].gid,
            theirs: theirs[pair.theirs].gid,
            kind: ours[pair.ours].kind,
        }),
        (None, Link::InfiniBand) => Some(GidPair {
            ours: Gid([0; 16]),
            theirs: Gid([0; 16]),
            kind: Kind::InfiniBand,
        }),
        (None, Link::Ethernet) => None,
    }
}

/// An entry of a port's table, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What is published of it.
    pub published: Published,
    /// Its place in the table: valid as long as the GID is there.
    pub index: u8,
    /// The name of its network interface; empty where it has none.
    pub interface: String,
    /// Whether that is the port's own interface, and not one above it (a VLAN).
    pub is_own: bool,
    /// Whether that interface is up.
    pub is_up: bool,
}

/// An entry that is not used, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// The entry of the GID table.
    pub entry: Entry,
    /// Why it is not used, as the predicate of "it".
    pub reason: &'static str,
}

/// The entries of a port, in order of preference, and those that cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranked {
    /// Those that can be used, best first.
    pub usable: Vec<Entry>,
    /// Those that cannot.
    pub unusable: Vec<Unusable>,
}

impl Ranked {
    /// Why an entry that can be used is not the first choice; `None` for the one that is.
    #[must_use]
    pub fn behind(&self, at: usize) -> Option<&'static str> {
        let (best, other) = (self.usable.first()?, self.usable.get(at).filter(|_| at > 0)?);
        let family = |entry: &Entry| entry.published.gid.family();
        Some(match (best.published.kind, family(best)) {
            (kind, _) if kind != other.published.kind => "RoCE v2 comes before v1",
            (_, Family::V4) if family(other) != Family::V4 => "an IPv4 address comes before those of IPv6",
            (_, mine) if mine != family(other) => "a global address comes before those of a link",
            _ if best.is_own != other.is_own => "the port's own interface comes before those above it",
            _ => "the lower index comes first",
        })
    }
}

/// Sorts a port's table. Entries that are not in use have been left out.
#[must_use]
pub fn rank(entries: Vec<Entry>) -> Ranked {
    let mut ranked = Ranked::default();
    for entry in entries {
        let is_roce = entry.published.kind != Kind::InfiniBand;
        let reason = match () {
            () if is_roce && entry.interface.is_empty() => Some("belongs to no interface of this namespace"),
            () if is_roce && !entry.is_up => Some("belongs to an interface that is down"),
            () => None,
        };
        match reason {
            None => ranked.usable.push(entry),
            Some(reason) => ranked.unusable.push(Unusable { entry, reason }),
        }
    }
    ranked.usable.sort_by_key(|entry| {
        let Published { gid, kind, .. } = entry.published;
        (kind.rank(), gid.family(), !entry.is_own, entry.index)
    });
    ranked
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

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

    fn entry(address: &str, kind: Kind, index: u8) -> Entry {
        Entry {
            published: published(address, kind, 24),
            index,
            interface: "eth0".to_owned(),
            is_own: true,
            is_up: true,
        }
    }

    #[test]
    fn a_table_is_sorted_by_kind_family_interface_and_index() {
        let vlan = Entry {
            interface: "eth0.7".to_owned(),
            is_own: false,
            ..entry("10.7.0.1", Kind::RoceV2, 1)
        };
        let down = Entry {
            is_up: false,
            ..entry("10.8.0.1", Kind::RoceV2, 9)
        };
        let nowhere = Entry {
            interface: String::new(),
            ..entry("10.9.0.1", Kind::RoceV2, 10)
        };
        let ranked = rank(vec![
            entry("fe80::1", Kind::RoceV1, 0),
            vlan,
            entry("fe80::1", Kind::RoceV2, 2),
            entry("10.0.0.1", Kind::RoceV1, 3),
            entry("2001:db8::1", Kind::RoceV2, 4),
            entry("10.0.0.1", Kind::RoceV2, 5),
            down,
            nowhere,
        ]);
        let order: Vec<u8> = ranked.usable.iter().map(|entry| entry.index).collect();
        assert_eq!(order, [5, 1, 4, 2, 3, 0]);
        let behind: Vec<&str> = (1..6).filter_map(|at| ranked.behind(at)).collect();
        assert_eq!(
            behind,
            [
                "the port's own interface comes before those above it",
                "an IPv4 address comes before those of IPv6",
                "an IPv4 address comes before those of IPv6",
                "RoCE v2 comes before v1",
                "RoCE v2 comes before v1",
            ]
        );
        assert_eq!((ranked.behind(0), ranked.behind(6)), (None, None));
        let reasons: Vec<&str> = ranked.unusable.iter().map(|entry| entry.reason).collect();
        assert_eq!(
            reasons,
            [
                "belongs to an interface that is down",
                "belongs to no interface of this namespace"
            ]
        );
    }
}
