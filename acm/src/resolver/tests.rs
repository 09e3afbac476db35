//! Stories of one or two resolvers.

use super::*;
use crate::address::Name;
use crate::endpoint::{DEFAULT_PKEY, Link, Network};
use crate::path::{Mtu, Rate};

/// An Ethernet endpoint 10.0.0.`n`/24 with a name.
pub(crate) fn endpoint(name: &str, n: u8) -> Endpoint {
    let ip: IpAddr = [10, 0, 0, n].into();
    Endpoint {
        device: "eth0".into(),
        guid: n.into(),
        interface: 2,
        port: 1,
        ports: 1,
        pkey: DEFAULT_PKEY,
        link: Link::Ethernet,
        gid: Gid::of_ip(ip),
        lid: 0,
        mtu: Mtu::MAX,
        rate: Rate::within(100_000),
        subnet_timeout: 0,
        addresses: vec![Address::Name(Name::new(name).expect("a name")), ip.into()],
        networks: vec![Network { ip, prefix: 24 }],
    }
}
