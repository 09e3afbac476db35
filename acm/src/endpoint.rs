//! Endpoints: a port of a device in one partition, with its addresses, where a path of this host can start.
//!
//! Without InfiniBand the device is a network interface: one port, the default partition, and a GID for each
//! address (RoCE v2).

use std::net::IpAddr;

use crate::address::{Address, Gid, Name};
use crate::path::{Mtu, Rate};

/// The default partition, as a full member.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// The type of link at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// InfiniBand: the port has LIDs and GIDs of its own.
    InfiniBand,
    /// Ethernet, or anything that carries IP: GIDs are IP addresses, LIDs are 0.
    Ethernet,
    /// The loopback of this host.
    Loopback,
}

/// An IP network on a link, whose addresses are reached without a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// An address in the network.
    pub ip: IpAddr,
    /// The prefix length.
    pub prefix: u8,
}

impl Network {
    /// Whether an address is in the network.
    ///
    /// ```
    /// use doorbell_acm::endpoint::Network;
    /// let network = Network { ip: [10, 0, 0, 1].into(), prefix: 24 };
    /// assert!(network.has([10, 0, 0, 200].into()));
    /// assert!(!network.has([10, 0, 1, 1].into()));
    /// assert!(!network.has(std::net::Ipv6Addr::LOCALHOST.into()));
    /// ```
    #[must_use]
    pub fn has(&self, ip: IpAddr) -> bool {
        let differs = |own: u128, other: u128, bits: u32| {
            let kept = u32::from(self.prefix).min(bits);
            kept > 0 && (own ^ other) >> (bits - kept) != 0
        };
        match (self.ip, ip) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                !differs(u32::from(own).into(), u32::from(other).into(), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => !differs(own.into(), other.into(), 128),
            _ => false,
        }
    }
}

/// A port of a device in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The device's name; without InfiniBand, that of the interface.
    pub device: String,
    /// The alternative names of the interface, which configuration may use as well.
    pub other_names: Vec<String>,
    /// The device's GUID; without InfiniBand, derived from the hardware address.
    pub guid: u64,
    /// The number of the interface that carries its frames; 0 for none.
    pub interface: u32,
    /// The port number, from 1.
    pub port: u8,
    /// The number of ports of the device.
    pub ports: u8,
    /// The partition key.
    pub pkey: u16,
    /// The type of link.
    pub link: Link,
    /// The GID of the endpoint, unless an address implies another.
    pub gid: Gid,
    /// The LID of the port; 0 without InfiniBand.
    pub lid: u16,
    /// The largest payload of a packet.
    pub mtu: Mtu,
    /// The rate of the link.
    pub rate: Rate,
    /// How long an answer of the subnet takes, as an exponent: 4.096 µs × 2^value.
    pub subnet_timeout: u8,
    /// The names and IP addresses, in the order in which they are reported.
    pub addresses: Vec<Address>,
    /// The networks on its link.
    pub networks: Vec<Network>,
}

impl Endpoint {
    /// Whether this is the name of its device, or an alternative name of its interface.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.device == name || self.other_names.iter().any(|other| other == name)
    }

    /// Returns the GID of a path to or from this address of the endpoint.
    #[must_use]
    pub fn gid_of(&self, address: &Address) -> Gid {
        match (self.link, address) {
            (_, Address::Gid(gid)) => *gid,
            (Link::InfiniBand, _) => self.gid,
            (_, address) => address.ip().map_or(self.gid, Gid::of_ip),
        }
    }

    /// Returns the GID at which a path from this address to `dgid` starts: its own, unless the two are of
    /// different IP families and the endpoint has an address of the destination's.
    #[must_use]
    pub fn gid_towards(&self, source: &Address, dgid: Gid) -> Gid {
        let own = self.gid_of(source);
        let is_v4 = |gid: Gid| gid.ip().is_ipv4();
        if self.link == Link::InfiniBand || is_v4(own) == is_v4(dgid) {
            return own;
        }
        let of_link = |ip: IpAddr| matches!(ip, IpAddr::V6(six) if six.is_unicast_link_local());
        let fitting = || {
            let ips = self.addresses.iter().filter_map(Address::ip);
            ips.filter(|ip| ip.is_ipv4() == is_v4(dgid))
        };
        let best = fitting().find(|ip| of_link(*ip) == of_link(dgid.ip()));
        best.or_else(|| fitting().next()).map_or(own, Gid::of_ip)
    }

    /// Whether the endpoint has this address.
    #[must_use]
    pub fn has(&self, address: &Address) -> bool {
        match address {
            Address::Gid(gid) => {
                *gid == self.gid || self.addresses.iter().any(|own| self.gid_of(own) == *gid)
            }
            Address::Lid(lid) => *lid != 0 && *lid == self.lid,
            _ => self.addresses.contains(address),
        }
    }

    /// Whether this IP address is on its link.
    #[must_use]
    pub fn is_near(&self, ip: IpAddr) -> bool {
        self.networks.iter().any(|network| network.has(ip))
    }

    /// Returns the first of its names.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        self.addresses.iter().find_map(|address| match address {
            Address::Name(name) => Some(name),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_begins_and_ends_in_one_family() {
        let ip = |text: &str| -> Address { text.parse::<IpAddr>().unwrap().into() };
        let gid = |text: &str| Gid::of_ip(text.parse().unwrap());
        let mut endpoint = Endpoint {
            device: "eth0".to_owned(),
            other_names: Vec::new(),
            guid: 1,
            interface: 2,
            port: 1,
            ports: 1,
            pkey: DEFAULT_PKEY,
            link: Link::Ethernet,
            gid: gid("10.0.0.1"),
            lid: 0,
            mtu: Mtu::MAX,
            rate: Rate::MIN,
            subnet_timeout: 18,
            addresses: vec![ip("10.0.0.1"), ip("fe80::1"), ip("fd00::1")],
            networks: Vec::new(),
        };
        let from = |endpoint: &Endpoint, source: &str, to: &str| endpoint.gid_towards(&ip(source), gid(to));
        assert_eq!(from(&endpoint, "10.0.0.1", "10.0.0.2"), gid("10.0.0.1"));
        assert_eq!(from(&endpoint, "10.0.0.1", "fd00::2"), gid("fd00::1"));
        assert_eq!(from(&endpoint, "10.0.0.1", "fe80::2"), gid("fe80::1"));
        assert_eq!(from(&endpoint, "fd00::1", "10.0.0.2"), gid("10.0.0.1"));
        let name = Address::Name(Name::new("node1").unwrap());
        assert_eq!(endpoint.gid_towards(&name, gid("fd00::2")), gid("fd00::1"));
        endpoint.addresses.truncate(1);
        assert_eq!(
            from(&endpoint, "10.0.0.1", "fd00::2"),
            gid("10.0.0.1"),
            "there is no other"
        );
    }
}
