//! Routes: where they come from, and how a probe reduces them.

use super::action::{Action, EndpointId, Membership, NotProbed, Peer, ProbeId, Probed};
use super::entry::{self, Key, Origin, Route, Tried};
use super::options::{Options, RouteProtocol};
use super::search::{Search, SearchId, Stage};
use super::{Resolver, Timer};
use crate::address::{Address, Gid};
use crate::endpoint::{Endpoint, Link};
use crate::path::Mtu;
use crate::sa;
use crate::status::Status;

/// Hop limit of a path beyond a router.
const HOPS: u8 = 64;

/// Whether an endpoint can have a path to an address of this kind.
pub(super) fn can_reach(from: &Endpoint, to: &Address) -> bool {
    let ip = match (to, from.link) {
        (Address::Gid(gid), _) if gid.is_none() => return false,
        (Address::Gid(gid), Link::Ethernet) => Some(gid.ip()),
        (Address::Lid(lid), link) => return *lid != 0 && link == Link::InfiniBand,
        (to, _) => to.ip(),
    };
    let is_one = ip.is_none_or(|ip| !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback());
    from.link != Link::Loopback && is_one
}

/// Whether an address is beyond a router, which only IP addresses can be.
pub(super) fn is_far(from: &Endpoint, to: &Address) -> bool {
    from.link == Link::Ethernet && to.ip().is_some_and(|ip| !from.is_near(ip))
}

pub(super) fn has_sa_for(options: &Options, endpoint: &Endpoint) -> bool {
    options.route_prot == RouteProtocol::Sa
        && match endpoint.link {
            Link::InfiniBand => true,
            Link::Ethernet => options.has_sa,
            Link::Loopback => false,
        }
}

impl Resolver {
    pub(super) fn uses_sa(&self, endpoint: EndpointId) -> bool {
        self.port(endpoint)
            .is_some_and(|port| has_sa_for(&self.options, &port.endpoint))
    }

    /// Sends a search's query to the subnet administrator, once it has a credit.
    pub(super) fn query_sa(&mut self, id: SearchId) {
        let Some(search) = self.searches.get_mut(&id) else {
            return;
        };
        let Stage::Route { asked } = &mut search.stage else {
            return;
        };
        *asked = true;
        let endpoint = search.key.endpoint;
        let mut open = crate::path::Path {
            dgid: search.peer.gid,
            dlid: search.peer.lid,
            ..Default::default()
        };
        let (exact, source) = (search.exact.clone(), search.source.clone());
        let (link_key, peer) = (search.key.address.clone(), search.peer);
        let Some(port) = self.port_mut(endpoint) else {
            return;
        };
        open.dgid = if open.dgid.is_none() {
            open.dgid
        } else {
            entry::gid_of(port.endpoint.link, &link_key, peer)
        };
        open.sgid = port.endpoint.gid_towards(&source, open.dgid);
        let question = exact.map_or_else(|| sa::question(&port.endpoint, &open), |exact| *exact);
        let subnet = port.endpoint.subnet_timeout;
        let wait = self.options.attempt(subnet) * self.options.retries.saturating_add(1).min(1000);
        let until = self.now + wait;
        if let Some(port) = self.port_mut(endpoint) {
            port.sa.lend(id.0, until);
        }
        if let Some(search) = self.searches.get_mut(&id) {
            search.question = Some(Box::new(question.clone()));
        }
        self.timers.set(Timer::Search(id), until);
        self.stats.queries += 1;
        self.count(Some(endpoint), |counters| counters.route_queries += 1);
        self.actions.push_back(Action::QuerySa {
            id: sa::QueryId(id.0),
            endpoint,
            path: Box::new(question),
        });
    }

    pub(super) fn on_route(&mut self, id: sa::QueryId, answer: sa::Answer) {
        let id = SearchId(id.0);
        let Some(search) = self.searches.get_mut(&id) else {
            return;
        };
        if search.stage != (Stage::Route { asked: true }) {
            return;
        }
        let question = search.question.take().unwrap_or_default();
        let endpoint = search.key.endpoint;
        // Release the credit before the probe, which takes longer.
        if let Some(port) = self.port_mut(endpoint) {
            port.sa.back(id.0);
        }
        let Some(search) = self.searches.get_mut(&id) else {
            return;
        };
        let answer = answer.and_then(|path| match sa::fits(&path, &question) {
            true => Ok(path),
            false => Err(sa::NoPath::Unknown),
        });
        match answer {
            Ok(path) if search.exact.is_some() => {
                let tickets = std::mem::take(&mut search.tickets);
                self.drop_search(id);
                for ticket in tickets {
                    self.end_question(ticket, Ok(path.clone()));
                }
            }
            Ok(path) => {
                if search.origin != Origin::Static {
                    search.origin = Origin::Sa;
                }
                search.peer.lid = path.dlid;
                (search.route, search.fresh) = (Route::Explicit(Box::new(path)), true);
                self.route_found(id);
            }
            Err(why) => self.fail(
                id,
                match why {
                    sa::NoPath::Unknown => Status::NoData,
                    sa::NoPath::Silent => Status::TimedOut,
                    sa::NoPath::NoAdministrator => Status::NotConnected,
                },
            ),
        }
    }

    /// Takes the route of a search, and answers or probes. Queries that need no probe wait no longer than for
    /// the route.
    pub(super) fn route_found(&mut self, id: SearchId) {
        let Some(search) = self.searches.get(&id) else {
            return;
        };
        let must = self.is_doubted(search);
        if !must {
            self.answer_unprobed(id);
        }
        let search = self.searches.get(&id);
        let wanted = search.is_some_and(|search| search.verify || self.may_grow(&search.key));
        if must || wanted {
            self.enter(id, Stage::Probe);
        } else {
            self.succeed(id);
        }
    }

    /// Whether no query may use this path before a probe has come back.
    pub(super) fn is_doubted(&self, search: &Search) -> bool {
        search.origin == Origin::Route || self.options.verify && search.tried.is_none()
    }

    /// Whether larger sizes than the one that a path was reduced to should be tried now.
    pub(super) fn may_grow(&self, key: &Key) -> bool {
        let most = self.port(key.endpoint).map(|port| port.endpoint.mtu);
        let entry = self.cache.get(key).filter(|entry| entry.origin != Origin::Route);
        most.zip(entry)
            .is_some_and(|(most, entry)| entry.may_grow(self.now, most))
    }

    /// Returns where a destination beyond a router is, as far as this host knows.
    pub(super) fn beyond(&self, endpoint: EndpointId, to: &Address) -> Option<(Peer, Route)> {
        let from = &self.port(endpoint)?.endpoint;
        let peer = Peer {
            gid: Gid::of_ip(to.ip()?),
            lid: 0,
            qpn: 0,
        };
        let like = Membership {
            hop_limit: HOPS,
            ..Membership::of_port(from)
        };
        Some((peer, Route::Group(like)))
    }

    pub(super) fn probe(&mut self, id: SearchId) {
        let Some(search) = self.searches.get(&id) else {
            return;
        };
        let (endpoint, peer) = (search.key.endpoint, search.peer);
        let Some(port) = self.port(endpoint) else { return };
        let destination = entry::gid_of(port.endpoint.link, &search.key.address, peer);
        let large = search
            .route
            .mtu()
            .unwrap_or(port.endpoint.mtu)
            .min(port.endpoint.mtu);
        let source = port.endpoint.gid_towards(&search.source, destination);
        self.stats.probes += 1;
        self.timers.set(Timer::Search(id), self.now + self.options.probe);
        self.actions.push_back(Action::Probe {
            id: ProbeId(id.0),
            endpoint,
            source,
            destination,
            large: large.bytes(),
        });
    }

    pub(super) fn probe_ended(&mut self, id: ProbeId, result: Result<Probed, NotProbed>) {
        let id = SearchId(id.0);
        let Some(search) = self.searches.get_mut(&id) else {
            return;
        };
        if search.stage != Stage::Probe {
            return;
        }
        let most = result.map(|probed| Mtu::within(probed.largest));
        match most {
            Ok(Some(most)) => {
                let again = self.now + self.options.grow;
                search.tried = Some(Tried { most, again });
                self.succeed(id);
            }
            // Not even the smallest MTU passes: there is no path.
            Ok(None) | Err(NotProbed::Silent) => self.fail(id, Status::TimedOut),
            Err(NotProbed::Unsent) => self.fail(id, Status::NotConnected),
        }
    }
}
