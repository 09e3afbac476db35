//! An address where no process receives: what is sent there leaves by the rail's own queues and ends at the
//! other host, which shows that there is a way to it.

use std::net::IpAddr;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::gid::Link;
use doorbell_fabric::rail::Rail as _;

use super::UdRail;
use crate::address::{PAIR_MOST, PortAddress};
use crate::gid::{Gid, Published};
use crate::name::Service;

impl UdRail {
    /// Returns an address at the host with this IP address, for a datagram that no process takes; `None` on
    /// InfiniBand, where an IP address leads nowhere.
    #[must_use]
    pub fn unused_at(&self, host: IpAddr) -> Option<RailAddress> {
        let own = self.address();
        let own = PortAddress::parse(own.native_of("verbs")?, Service::Datagrams).ok()?;
        if own.link != Link::Ethernet {
            return None;
        }
        let gid = Gid(match host {
            IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
            IpAddr::V6(six) => six.octets(),
        });
        let alike = |published: &Published| Published { gid, ..*published };
        let mut gids: Vec<Published> = own.gids.iter().map(alike).collect();
        gids.dedup_by_key(|published| published.kind);
        let unused = PortAddress {
            pairs: [PAIR_MOST - 1, PAIR_MOST - 2],
            gids,
            ..own
        };
        Some(RailAddress::native("verbs", unused.to_bytes()))
    }
}
