//! Probes of hosts beyond a router, by pings from an endpoint.

use doorbell_fabric::time::Time;

use super::{CarrierError, EndpointId, Event, ProbeId, UdpCarrier};
use crate::address::Gid;
use crate::path::Mtu;

impl UdpCarrier {
    pub(super) fn ping(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        to: Gid,
        mtu: Mtu,
    ) -> Result<ProbeId, CarrierError> {
        let end = self.ends.get(&endpoint).ok_or(CarrierError::Unknown(endpoint))?;
        let ready = &self.ready;
        let watch = |socket: std::os::fd::BorrowedFd<'_>| super::watch(ready, socket);
        self.pinger
            .reach(now, (&end.endpoint, &end.interface), to, mtu, watch)
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
