//! Between resolver and carrier: which endpoints are served and in which groups, and what they send.
//!
//! ```text
//!   host changes ──► serve_endpoints ──► served, in its groups
//!                          ▲     └─────► unserved: the reason is shown ──┐
//!                          └── 0.5, 1, 2, 4, … 30 s later, where the system refused it
//! ```
//!
//! An interface that goes and comes back between two checks is no change of this host; retrying restores what
//! was lost with it.

use std::net::SocketAddr;
use std::time::Duration;

use doorbell_fabric::time::Time;

use super::peers::PeerAddr;
use super::state::State;
use crate::address::{Address, Gid};
use crate::carrier::{self, CarrierError, SubnetGroup};
use crate::endpoint::Endpoint;
use crate::mad::{Group, MAD};
use crate::path::Mtu;
use crate::resolver::{EndpointId, Membership, NotProbed, Peer, ProbeId, Probed};

/// Pause before the first retry of what the system refused; each later one is twice as long.
const FIRST: Duration = Duration::from_millis(500);
/// Maximum pause between two retries.
const LAST: Duration = Duration::from_secs(30);

/// Schedule of the retries of what the system refused.
#[derive(Debug, Default)]
pub(super) struct Again {
    at: Option<Time>,
    /// The last pause; `None` when nothing needs a retry.
    pause: Option<Duration>,
}

impl Again {
    pub(super) fn at(&self) -> Option<Time> {
        self.at
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// Schedules a retry, or clears the schedule when none is `needed`.
    fn set(&mut self, now: Time, needed: bool) {
        if !needed {
            *self = Self::default();
        } else if self.at.is_none_or(|at| at <= now) {
            let pause = self.pause.map_or(FIRST, |pause| (2 * pause).min(LAST));
            (self.at, self.pause) = (Some(now + pause), Some(pause));
        }
    }
}

impl Again {
    /// Has the next retry be soon, whatever was scheduled: something else has failed.
    fn soon(&mut self, now: Time) {
        if self.at.is_none_or(|at| at > now + FIRST) {
            (self.at, self.pause) = (Some(now + FIRST), Some(FIRST));
        }
    }
}

/// Whether a retry may succeed without a change of configuration or host.
fn may_pass(error: &CarrierError) -> bool {
    matches!(
        error,
        CarrierError::System { .. } | CarrierError::Random(_) | CarrierError::QueuePair(_)
    )
}

impl State {
    /// Makes the carrier serve the resolver's endpoints, in their groups.
    pub(super) fn serve_endpoints(&mut self) {
        let each = self.resolver.endpoints();
        let wanted: Vec<(EndpointId, Endpoint)> = each.map(|(id, endpoint)| (id, endpoint.clone())).collect();
        let carrier = self.carrier.get_mut();
        let served = carrier.served().into_iter();
        let served: Vec<EndpointId> = served.map(|id| EndpointId(id.0)).collect();
        let is_wanted = |id: &EndpointId| wanted.iter().any(|(other, _)| other == id);
        for id in served.iter().filter(|id| !is_wanted(id)) {
            carrier.end(carrier::EndpointId(id.0));
            self.peers.forget(*id);
        }
        self.groups.retain(|id, _| is_wanted(id));
        self.unserved.clear();
        let mut needed = false;
        for (id, endpoint) in wanted {
            let carrier = self.carrier.get_mut();
            if let Err(error) = carrier.update(carrier::EndpointId(id.0), &endpoint) {
                needed |= may_pass(&error);
                self.unserved.insert(id, error.to_string());
            } else if !served.contains(&id) {
                let groups = self.groups.get(&id).cloned().unwrap_or_default();
                needed |= groups.into_iter().any(|group| !self.join(id, group));
            } else {
                needed |= carrier.lacks(carrier::EndpointId(id.0)) > 0;
            }
        }
        let now = self.now();
        self.again.set(now, needed);
    }

    /// Records that the carrier no longer serves an endpoint, and schedules a retry.
    pub(super) fn lost(&mut self, id: EndpointId, why: String) {
        self.unserved.insert(id, why);
        let now = self.now();
        self.again.soon(now);
    }

    /// Joins an endpoint to a group and reports the outcome to the resolver; returns whether it joined. On
    /// InfiniBand the administrator of the subnet joins it first, and the outcome is reported later.
    pub(super) fn join(&mut self, endpoint: EndpointId, group: Gid) -> bool {
        self.groups.entry(endpoint).or_default().insert(group);
        let id = carrier::EndpointId(endpoint.0);
        let carrier = self.carrier.get_mut();
        if let Some(own) = self.resolver.endpoint(endpoint)
            && carrier.joins_by_subnet(own)
            && carrier.served().contains(&id)
        {
            let now = self.clock().now();
            self.subnets.join(now, endpoint, own, group);
            self.on_subnet_events(now, Some(endpoint));
            return true;
        }
        let joined = self.carrier.get_mut().join(id, group);
        let now = self.now();
        self.refused(now, endpoint, &joined);
        let own = self.resolver.endpoint(endpoint).filter(|_| joined.is_ok());
        let like = own.and_then(|own| {
            let like = Membership::of(Group::of(group)?);
            Some(Membership {
                mtu: like.mtu.min(own.mtu),
                ..like
            })
        });
        self.resolver.joined(now, endpoint, group, like);
        like.is_some()
    }

    /// Shows why a group could not be joined, and schedules a retry where one may succeed.
    fn refused(&mut self, now: Time, endpoint: EndpointId, joined: &Result<(), CarrierError>) {
        let Err(error) = joined else { return };
        if may_pass(error) {
            self.carrier.get_mut().end(carrier::EndpointId(endpoint.0));
            self.again.soon(now);
        }
        self.unserved.entry(endpoint).or_insert_with(|| error.to_string());
    }

    /// Has an endpoint receive a group that its subnet's administrator has joined it to.
    pub(super) fn attach(&mut self, endpoint: EndpointId, group: Gid, subnet: SubnetGroup) {
        let id = carrier::EndpointId(endpoint.0);
        let carrier = self.carrier.get_mut();
        let own = self.resolver.endpoint(endpoint);
        let joined = match own.is_some_and(|own| carrier.joins_by_subnet(own)) {
            true => carrier.join_in(id, group, Some(subnet)),
            false => Ok(()),
        };
        let now = self.now();
        self.refused(now, endpoint, &joined);
        let like = joined.is_ok().then_some(subnet.like);
        self.resolver.joined(now, endpoint, group, like);
    }

    /// Joins all groups of an endpoint again.
    pub(super) fn join_again(&mut self, endpoint: EndpointId) {
        let groups = self.groups.get(&endpoint).cloned().unwrap_or_default();
        for group in groups {
            self.join(endpoint, group);
        }
    }

    /// Takes an endpoint out of a group. A socket stays open until the endpoint's others are closed.
    pub(super) fn leave(&mut self, endpoint: EndpointId, group: Gid) {
        if let Some(groups) = self.groups.get_mut(&endpoint) {
            groups.remove(&group);
        }
        let now = self.now();
        self.carrier
            .get_mut()
            .leave(carrier::EndpointId(endpoint.0), group);
        self.subnets.leave(now, endpoint, group);
    }

    pub(super) fn multicast(&mut self, endpoint: EndpointId, group: Gid, mad: &[u8; MAD]) {
        let Some(from) = self.resolver.endpoint(endpoint).map(|own| own.gid) else {
            return;
        };
        let id = carrier::EndpointId(endpoint.0);
        let now = self.now();
        let sent = self.carrier.get_mut().multicast(now, id, (group, from), mad);
        // The subnet's administrator has not answered yet: announcements follow, and queries are repeated.
        let is_early = matches!(sent, Err(CarrierError::NotJoined(_)));
        self.note(endpoint, if is_early { Ok(()) } else { sent });
    }

    pub(super) fn unicast(&mut self, endpoint: EndpointId, to: Peer, mad: &[u8; MAD], answer: bool) {
        let own = self.resolver.endpoint(endpoint);
        // Use the destination's address family, so that it has a return path.
        let from = own.map(|own| own.gid_towards(&Address::Gid(own.gid), to.gid));
        let place = self.place(endpoint, to.gid);
        let is_reached = place.is_some() || !self.carrier.get_ref().needs_addresses();
        if let Some(from) = from.filter(|_| is_reached) {
            let peer = carrier::Peer {
                gid: to.gid,
                lid: to.lid,
                qpn: to.qpn,
                at: place.map(|place| place.at),
                by: place.and_then(|place| place.by),
            };
            let id = carrier::EndpointId(endpoint.0);
            let now = self.now();
            let sent = self.carrier.get_mut().send(now, id, (&peer, from), mad);
            self.note(endpoint, sent);
        }
        if answer {
            // The kernel has copied the message, so the next answer may go.
            let now = self.now();
            self.resolver.sent(now, endpoint);
        }
    }

    /// Returns the address of a service on the link: the one last seen, else the default port of its GID.
    fn place(&self, endpoint: EndpointId, gid: Gid) -> Option<PeerAddr> {
        let heard = self.peers.place(endpoint, gid);
        heard.or_else(|| {
            let own = self.resolver.endpoint(endpoint)?;
            let port = self.config.options.doorbell_port.saturating_add(1);
            let at = doorbell_inet::scoped(SocketAddr::new(gid.ip(), port), own.interface);
            let place = PeerAddr { qpn: 0, at, by: None };
            own.is_near(gid.ip()).then_some(place)
        })
    }

    /// Probes a destination: with frames on the link, and with pings beyond a router, where frames do not get
    /// to.
    pub(super) fn probe(&mut self, id: ProbeId, endpoint: EndpointId, (from, to): (Gid, Gid), large: u32) {
        let now = self.now();
        let by = carrier::EndpointId(endpoint.0);
        let Some(mtu) = Mtu::within(large) else {
            return self.resolver.probed(now, id, Err(NotProbed::Unsent));
        };
        // For a destination beyond a router, ignore the address that was seen for it on the link.
        let own = self.resolver.endpoint(endpoint);
        let near = own.is_some_and(|own| own.is_near(to.ip()));
        let place = self.place(endpoint, to).filter(|_| near);
        let carrier = self.carrier.get_mut();
        let begun = match place {
            Some(place) => {
                let peer = carrier::Peer {
                    gid: to,
                    lid: 0,
                    qpn: place.qpn,
                    at: Some(place.at),
                    by: None,
                };
                carrier.probe(now, by, &peer, from, mtu)
            }
            None => carrier.reach(now, by, to, mtu),
        };
        match begun {
            Ok(probe) => _ = self.probes.insert(probe, id),
            Err(error) => {
                self.note(endpoint, Err(error));
                self.resolver.probed(now, id, Err(NotProbed::Unsent));
            }
        }
    }

    /// Shows a send failure; for an endpoint that is not served the cause is shown already.
    fn note(&mut self, endpoint: EndpointId, sent: Result<(), CarrierError>) {
        if let (Err(error), false) = (sent, self.unserved.contains_key(&endpoint)) {
            self.report_error(error.to_string());
        }
    }
}

/// Converts the carrier's probe result to the resolver's.
pub(super) fn probed(result: &carrier::Probed) -> Result<Probed, NotProbed> {
    match (result.round_trip, u32::try_from(result.largest)) {
        (Some(_), Ok(largest)) => Ok(Probed { largest }),
        _ => Err(NotProbed::Silent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_become_longer_and_begin_anew_when_all_is_well() {
        let mut again = Again::default();
        let start = Time::from_nanos(1);
        assert!(!again.is_due(start) && again.at().is_none());
        again.set(start, true);
        assert_eq!(again.at(), Some(start + FIRST));
        again.set(start, true);
        assert_eq!(again.at(), Some(start + FIRST), "a retry is scheduled already");
        let mut now = start;
        for _ in 0..20 {
            now = again.at().unwrap();
            assert!(again.is_due(now));
            again.set(now, true);
        }
        assert_eq!(again.at(), Some(now + LAST));
        again.set(now, false);
        assert_eq!(again.at(), None);
        again.set(now, true);
        assert_eq!(again.at(), Some(now + FIRST));
    }
}
