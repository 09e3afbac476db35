//! Network interfaces as endpoints, in the way of RoCE v2: their addresses are their GIDs.

use std::net::IpAddr;

use doorbell_fabric::ether::Mac;
use doorbell_inet::Nic;

use crate::address::{Address, Gid};
use crate::endpoint::{DEFAULT_PKEY, Endpoint, Link, Network};
use crate::path::{Mtu, Rate};

/// Maximum header bytes of a RoCE v2 packet: IPv6 (40), UDP (8), base transport header (12), the longest
/// extended ones (28 for atomics, 4 for shared receive), and the check sum behind the payload (4).
pub const HEADERS: u32 = 40 + 8 + 12 + 28 + 4 + 4;
/// Assumed speed (Mb/s) of a link that reports none: what the kernel assumes for its virtual ones.
const UNTOLD: u32 = 10_000;
/// How long hosts of the link take to answer: 4.096 µs × 2^14 is 67 ms.
const LINK_TIMEOUT: u8 = 14;
/// How long this host takes to answer itself: 1 ms.
const HOST_TIMEOUT: u8 = 8;

/// Properties of an interface beyond its addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The hardware address, if the interface has one of six bytes.
    pub mac: Option<Mac>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The speed in Mb/s, if the interface reports one.
    pub megabits: Option<u32>,
}

/// Returns the EUI-64 of a hardware address: with two bytes in its middle, and the universal/local bit
/// inverted (RFC 4291, appendix A).
fn guid(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Returns an address's order within its interface: IPv4 first, link-local addresses last.
fn rank(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(ip) if !ip.is_link_local() => 0,
        IpAddr::V6(ip) if !ip.is_unicast_link_local() => 1,
        _ => 2,
    }
}

/// Returns the endpoint of an interface; `None` if it is down, has no usable address, or its MTU is too
/// small.
#[must_use]
pub fn endpoint(nic: &Nic, facts: &Facts) -> Option<Endpoint> {
    let usable = nic
        .addresses
        .iter()
        .filter(|own| own.usable && !own.ip.is_multicast() && !own.ip.is_unspecified());
    let mut own: Vec<_> = usable.collect();
    own.sort_by_key(|own| rank(own.ip));
    let first = own.first().filter(|_| nic.is_up())?;
    let loopback = nic.is_loopback();
    Some(Endpoint {
        device: nic.name.clone(),
        other_names: nic.alternatives.clone(),
        guid: facts.mac.map_or(0, guid),
        interface: nic.index,
        port: 1,
        ports: 1,
        pkey: DEFAULT_PKEY,
        link: if loopback { Link::Loopback } else { Link::Ethernet },
        gid: Gid::of_ip(first.ip),
        lid: 0,
        mtu: Mtu::within(facts.mtu.checked_sub(HEADERS)?)?,
        rate: Rate::within(facts.megabits.unwrap_or(UNTOLD)),
        subnet_timeout: if loopback { HOST_TIMEOUT } else { LINK_TIMEOUT },
        addresses: own.iter().map(|own| Address::from(own.ip)).collect(),
        networks: own
            .iter()
            .map(|own| Network {
                ip: own.ip,
                prefix: own.prefix,
            })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use doorbell_inet::NicAddress;

    use super::super::names::by_entries;
    use super::*;
    use crate::address::Name;
    use crate::config::{AddressEntry, Interfaces, Pkey};

    fn nic(addresses: &[&str]) -> Nic {
        let address = |text: &&str| NicAddress {
            ip: text.parse().unwrap(),
            prefix: 24,
            usable: true,
        };
        Nic {
            index: 3,
            name: "eth0".to_owned(),
            alternatives: Vec::new(),
            flags: (libc::IFF_UP | libc::IFF_RUNNING) as u32,
            addresses: addresses.iter().map(address).collect(),
        }
    }

    fn facts(mtu: u32) -> Facts {
        Facts {
            mac: Some([2, 0xfc, 0, 0, 0, 1]),
            mtu,
            megabits: Some(25_000),
        }
    }

    #[test]
    fn addresses_are_gids_and_the_hardware_address_is_the_guid() {
        let end = endpoint(&nic(&["fe80::1", "fd00::1", "10.0.0.1"]), &facts(1500)).unwrap();
        assert_eq!(end.guid, 0x00fc_00ff_fe00_0001);
        assert_eq!(end.gid.to_string(), "::ffff:10.0.0.1");
        let addresses: Vec<String> = end.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1", "fd00::1", "fe80::1"]);
        assert_eq!(
            (end.rate.megabits(), end.link, end.networks.len()),
            (25_000, Link::Ethernet, 3)
        );
    }

    #[test]
    fn configuration_may_name_an_interface_by_its_alternative_names() {
        let mut eth0 = nic(&["10.0.0.1"]);
        eth0.alternatives = vec!["enp9s9".to_owned()];
        let mut ends = [endpoint(&eth0, &facts(1500)).unwrap()];
        let named = |name: &str| Interfaces::Named(vec![name.to_owned()]);
        assert!(named("enp9s9").serve(&ends[0]) && named("eth0").serve(&ends[0]));
        assert!(!named("enp9s8").serve(&ends[0]));
        let entry = AddressEntry {
            address: Address::Name(Name::new("node7").unwrap()),
            device: "enp9s9".to_owned(),
            port: 1,
            pkey: Pkey::Default,
            line: 1,
        };
        assert!(by_entries(&[entry], &mut ends).is_empty());
        assert!(
            ends[0]
                .addresses
                .iter()
                .any(|own| matches!(own, Address::Name(_)))
        );
    }

    #[test]
    fn the_payload_fits_beside_the_headers() {
        for (mtu, payload) in [(1500, 1024), (4192, 4096), (4191, 2048), (352, 256), (9000, 4096)] {
            assert_eq!(
                endpoint(&nic(&["10.0.0.1"]), &facts(mtu)).unwrap().mtu.bytes(),
                payload,
                "{mtu}"
            );
        }
        assert!(endpoint(&nic(&["10.0.0.1"]), &facts(351)).is_none());
        assert!(endpoint(&nic(&["10.0.0.1"]), &facts(0)).is_none());
    }

    #[test]
    fn what_is_down_or_has_no_usable_address_is_none() {
        let mut down = nic(&["10.0.0.1"]);
        down.flags = libc::IFF_UP as u32;
        assert!(endpoint(&down, &facts(1500)).is_none());
        let mut tentative = nic(&["fd00::1"]);
        tentative.addresses[0].usable = false;
        assert!(endpoint(&tentative, &facts(1500)).is_none());
        assert!(endpoint(&nic(&[]), &facts(1500)).is_none());
    }
}
