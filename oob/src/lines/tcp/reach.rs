//! Selects the NIC that reaches a peer's address, and our source address there.
//!
//! | | weight |
//! |---|---|
//! | an address of this host, at its own NIC | [`Weight::Here`] |
//! | the NIC has an address in the same network (the mask of either side) | [`Weight::Network`] |
//! | the kernel routes to it by that NIC, through a router | [`Weight::Routed`] |
//! | a link-local address, which may be on this link or on another | [`Weight::Link`] |
//! | a loopback address | [`Weight::Loopback`] |
//!
//! The route is looked up as for a socket that is bound to the NIC and to the address (`doorbell_inet`,
//! `RTM_GETROUTE` with `RTA_OIF` and `RTM_F_FIB_MATCH`); whether a peer is on the same network follows from
//! the masks.

use std::net::IpAddr;

use doorbell_fabric::pairs::within;
use doorbell_inet::{Interface, InterfaceState, NextHop, NicAddress};

use super::address::Place;
use crate::transport::{Address, ModuleId, Path};

/// The quality of a path; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Within this host.
    Here,
    /// Both addresses are in the same network.
    Network,
    /// Through a router.
    Routed,
    /// Possibly on this link.
    Link,
    /// Within this host, if the peer is on it.
    Loopback,
}

/// A NIC, as the path look-up needs it.
#[derive(Clone, Debug)]
pub struct Nic {
    /// The module of the NIC.
    pub module: ModuleId,
    /// Its interface index.
    pub index: u32,
    /// The name of the interface.
    pub name: String,
    /// Its addresses that may be used.
    pub own: Vec<NicAddress>,
}

impl Nic {
    /// Returns the best of our addresses to reach `to` from, and its weight.
    #[must_use]
    pub fn source(&self, to: &Place, host: &[IpAddr]) -> Option<(IpAddr, Weight)> {
        let weigh = |own: &NicAddress| Some((self.weigh(own, to, host)?, own.ip));
        let best = self
            .own
            .iter()
            .filter_map(weigh)
            .min_by_key(|&(weight, _)| weight);
        best.map(|(weight, ip)| (ip, weight))
    }

    fn weigh(&self, own: &NicAddress, to: &Place, host: &[IpAddr]) -> Option<Weight> {
        let (from, ip) = (own.ip, to.ip);
        let local = |ip: IpAddr| matches!(ip, IpAddr::V6(six) if six.is_unicast_link_local());
        if from.is_ipv4() != ip.is_ipv4()
            || from.is_loopback() != ip.is_loopback()
            || local(from) != local(ip)
        {
            return None;
        }
        if ip.is_loopback() {
            return Some(Weight::Loopback);
        }
        if host.contains(&ip) {
            // Traffic to another NIC of this host does not leave by this one.
            return self.own.iter().any(|own| own.ip == ip).then_some(Weight::Here);
        }
        if local(ip) {
            return Some(Weight::Link);
        }
        // A peer may have a longer prefix than we do, and the kernel uses ours.
        if within(from, ip, own.prefix) {
            return Some(Weight::Network);
        }
        match self.interface(own).next_hop((ip, to.port).into()) {
            Ok(NextHop::OnLink) => Some(Weight::Network),
            Ok(NextHop::Gateway(_)) => Some(Weight::Routed),
            Ok(NextHop::Local) => Some(Weight::Here),
            Err(_) => None,
        }
    }

    /// Whether a socket has to be bound to the NIC, so that traffic from this address leaves by it. Otherwise
    /// it is not, because answers may then arrive by any NIC: two NICs in one network answer for each other
    /// (arp(7), `arp_ignore`).
    #[must_use]
    pub fn has_to_be_bound(&self, from: IpAddr, to: &Place, weight: Weight) -> bool {
        match weight {
            // Traffic within this host uses the loopback, and a link-local address implies its NIC.
            Weight::Here | Weight::Loopback | Weight::Link => false,
            Weight::Network | Weight::Routed => {
                let own = self.own.iter().find(|own| own.ip == from);
                own.is_some_and(|own| !self.interface(own).is_preferred(to.ip))
            }
        }
    }

    fn interface(&self, own: &NicAddress) -> Interface {
        Interface {
            name: self.name.clone(),
            index: self.index,
            network: 0,
            address: own.ip,
            prefix: own.prefix,
            state: InterfaceState { flags: 0, mtu: 0 },
        }
    }
}

/// Returns the NICs that reach the addresses, the best first. Malformed and unreachable addresses are left
/// out. `host`: all addresses of this host.
#[must_use]
pub fn paths(nics: &[Nic], host: &[IpAddr], addresses: &[Address]) -> Vec<Path> {
    let places: Vec<(Place, &Address)> = addresses
        .iter()
        .filter_map(|text| Some((text.parse().ok()?, text)))
        .collect();
    let mut found: Vec<(Weight, Path)> = Vec::new();
    for nic in nics {
        let reached = |&(place, text): &(Place, &Address)| Some((nic.source(&place, host)?.1, text.clone()));
        let mut reached: Vec<(Weight, Address)> = places.iter().filter_map(reached).collect();
        // A stable sort: among equals, the peer's order decides.
        reached.sort_by_key(|&(weight, _)| weight);
        let Some(&(best, _)) = reached.first() else {
            continue;
        };
        let addresses = reached.into_iter().map(|(_, text)| text).collect();
        let module = nic.module;
        found.push((best, Path { module, addresses }));
    }
    found.sort_by_key(|&(weight, ref path)| (weight, path.module));
    found.into_iter().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(module: u16, index: u32, name: &str, own: &[(&str, u8)]) -> Nic {
        let of = |&(ip, prefix): &(&str, u8)| NicAddress {
            ip: ip.parse().unwrap(),
            prefix,
            usable: true,
        };
        Nic {
            module: ModuleId(module),
            index,
            name: name.to_owned(),
            own: own.iter().map(of).collect(),
        }
    }

    fn text_of(paths: &[Path]) -> Vec<(u16, String)> {
        let of = |path: &Path| (path.module.0, path.addresses.join(" "));
        paths.iter().map(of).collect()
    }

    /// NICs that do not exist, so that only the masks matter.
    #[test]
    fn masks_families_and_scopes_are_found_without_a_request() {
        let nics = [
            nic(0, 1, "lo", &[("127.0.0.1", 8)]),
            nic(1, 900_001, "no1", &[("198.18.1.1", 24), ("fe80::1", 64)]),
            nic(2, 900_002, "no2", &[("198.18.2.1", 24), ("fd99:2::1", 64)]),
        ];
        let host: Vec<IpAddr> = nics
            .iter()
            .flat_map(|nic| nic.own.iter().map(|own| own.ip))
            .collect();
        let ask = |texts: &[&str]| {
            let addresses: Vec<Address> = texts.iter().map(|&text| text.into()).collect();
            text_of(&paths(&nics, &host, &addresses))
        };
        let is = |module, text: &str| (module, text.to_owned());
        assert_eq!(ask(&["198.18.2.7/24:5"]), [is(2, "198.18.2.7/24:5")]);
        assert_eq!(
            ask(&["127.0.0.1/8:5", "198.18.1.9/24:5", "198.18.2.9/24:5"]),
            [
                is(1, "198.18.1.9/24:5"),
                is(2, "198.18.2.9/24:5"),
                is(0, "127.0.0.1/8:5")
            ]
        );
        assert_eq!(
            ask(&["[fe80::9/64]:5", "198.18.1.9/24:5"]),
            [is(1, "198.18.1.9/24:5 [fe80::9/64]:5")],
            "link-local comes last"
        );
        assert_eq!(ask(&["[fd99:2::9/64]:5"]), [is(2, "[fd99:2::9/64]:5")]);
        assert_eq!(
            ask(&["198.18.1.1/24:5"]),
            [is(1, "198.18.1.1/24:5")],
            "within this host"
        );
        assert!(ask(&["[fd00:9::1/64]:5", "nonsense", ""]).is_empty());
    }
}
