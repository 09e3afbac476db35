//! Probes of hosts beyond a router, by pings from an endpoint.

use std::net::IpAddr;

use doorbell_fabric::time::Time;

use super::super::ping::{NoPing, PINGS_MAX};
use super::{CarrierError, EndpointId, Event, ProbeId, UdpCarrier, random, system};
use crate::address::Gid;
use crate::path::Mtu;

impl UdpCarrier {
    /// Probes a host beyond a router with packets of 256 bytes of payload and each larger MTU up to `mtu`,
    /// without fragmentation, from an address of the endpoint. [`Event::Probed`] reports the result within a
    /// second.
    ///
    /// # Errors
    /// When the endpoint is not served or has no address of that family, the system allows no socket for
    /// pings, or too many are in flight.
    pub fn reach(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        to: Gid,
        mtu: Mtu,
    ) -> Result<ProbeId, CarrierError> {
        let end = self.ends.get(&endpoint).ok_or(CarrierError::Unknown(endpoint))?;
        let to = to.ip();
        let own = end.endpoint.addresses.iter().filter_map(|address| address.ip());
        let from = own
            .filter(|own| own.is_ipv4() == to.is_ipv4())
            .find(|own| !is_of_link(*own))
            .ok_or_else(|| CarrierError::NoFamily(end.endpoint.device.clone()))?;
        let mut token = [0; 16];
        random(&mut token)?;
        let ready = &self.ready;
        let watch = |socket: std::os::fd::BorrowedFd<'_>| super::watch(ready, socket);
        let begun = self
            .pinger
            .start(now, (&end.interface, from, to), mtu, token, watch);
        begun.map_err(|why| match why {
            NoPing::Full => CarrierError::Full {
                what: "pings",
                most: PINGS_MAX,
            },
            NoPing::Forbidden => CarrierError::NoPing,
            NoPing::System(errno) => system("send a ping", &end.interface)(errno),
        })
    }

    /// Handles the answers to pings; returns how much work it did.
    pub(super) fn pinged(&mut self, now: Time) -> usize {
        let done = self.pinger.turn(now);
        while let Some((probe, result)) = self.pinger.ended() {
            self.events.push_back(Event::Probed { probe, result });
        }
        done
    }
}

fn is_of_link(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
