//! Trying hosts that frames do not get to, because a router is between: by pings from an endpoint.

use std::net::IpAddr;

use doorbell_fabric::time::Time;

use super::super::ping::{NoPing, PINGS_MAX};
use super::{CarrierError, EndpointId, Event, ProbeId, UdpCarrier, random, system};
use crate::address::Gid;
use crate::path::Mtu;

impl UdpCarrier {
    /// Tries how packets get to a host beyond a router and back: of 256 bytes of payload and of each larger size up to `mtu`,
    /// not fragmented, from an address of the endpoint. [`Event::Probed`] tells within a second what came of it.
    ///
    /// # Errors
    /// When the endpoint is not served or has no address of that family, the system allows no socket for it, or too many are
    /// under way.
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
        let hear = |socket: std::os::fd::BorrowedFd<'_>| super::hear(ready, socket);
        let begun = self
            .pinger
            .start(now, (&end.interface, from, to), mtu, token, hear);
        begun.map_err(|why| match why {
            NoPing::Full => CarrierError::Full {
                what: "pings",
                most: PINGS_MAX,
            },
            NoPing::Forbidden => CarrierError::NoPing,
            NoPing::System(errno) => system("send a ping", &end.interface)(errno),
        })
    }

    /// What has come of pings.
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
