//! The ports of this host: endpoints that appear, disappear and change.

use doorbell_fabric::time::Time;

use super::action::{Action, EndpointId, Peer};
use super::announce::Announcement;
use super::credits::Credits;
use super::groups::Memberships;
use super::search::SearchId;
use super::stats::EventKind;
use super::{Options, Resolver, Timer};
use crate::endpoint::Endpoint;
use crate::mad::MAD;
use crate::query::Counters;
use crate::status::Status;

/// An endpoint with its groups, queues and counters.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) id: EndpointId,
    pub(super) endpoint: Endpoint,
    pub(super) groups: Memberships,
    pub(super) resolve: Credits<SearchId>,
    pub(super) sa: Credits<SearchId>,
    pub(super) send: Credits<(Peer, Box<[u8; MAD]>)>,
    pub(super) counters: Counters,
    pub(super) announcement: Announcement,
}

impl Port {
    fn new(id: EndpointId, endpoint: Endpoint, options: &Options) -> Self {
        Self {
            id,
            groups: Memberships::of(&endpoint, options),
            endpoint,
            resolve: Credits::new(options.resolve_depth, options.waiting),
            sa: Credits::new(options.sa_depth, options.waiting),
            send: Credits::new(options.send_depth, options.waiting),
            counters: Counters::default(),
            announcement: Announcement::default(),
        }
    }

    /// Returns when a credit that something waits for is due back.
    pub(super) fn credits_due(&self) -> Option<Time> {
        let due = |waiting: usize, due: Option<Time>| due.filter(|_| waiting > 0);
        let all = [
            due(self.resolve.waiting(), self.resolve.due()),
            due(self.sa.waiting(), self.sa.due()),
            due(self.send.waiting(), self.send.due()),
        ];
        all.into_iter().flatten().min()
    }
}

/// Whether two descriptions are of the same endpoint, whatever its state.
fn is_same(one: &Endpoint, other: &Endpoint) -> bool {
    (&one.device, one.port, one.pkey) == (&other.device, other.port, other.pkey)
}

/// Whether paths from an endpoint are the same as before.
fn is_like(one: &Endpoint, other: &Endpoint) -> bool {
    let of = |e: &Endpoint| {
        (
            e.link,
            e.gid,
            e.lid,
            e.mtu,
            e.rate,
            e.interface,
            e.networks.clone(),
        )
    };
    of(one) == of(other)
}

impl Resolver {
    pub(super) fn compare(&mut self, endpoints: Vec<Endpoint>) {
        let mut before = std::mem::take(&mut self.ports);
        let mut announced = Vec::new();
        let mut changed = Vec::new();
        for endpoint in endpoints {
            if self.ports.iter().any(|port| is_same(&port.endpoint, &endpoint)) {
                continue;
            }
            let old = before.iter().position(|port| is_same(&port.endpoint, &endpoint));
            match old.map(|at| before.swap_remove(at)) {
                Some(port) if port.endpoint == endpoint => self.ports.push(port),
                Some(port) => {
                    if !is_like(&port.endpoint, &endpoint) {
                        changed.push(port.id);
                    }
                    announced.push(port.id);
                    self.change(port, endpoint);
                }
                None => announced.push(self.come(endpoint)),
            }
        }
        for port in before {
            changed.push(port.id);
            self.go(&port);
        }
        self.cache.retain(|key, _| !changed.contains(&key.endpoint));
        self.negative_cache.retain(|key| !changed.contains(&key.endpoint));
        self.forget_own();
        self.end_sourceless();
        self.restart_searches(&changed);
        for id in announced {
            self.announce(id);
        }
    }

    fn come(&mut self, endpoint: Endpoint) -> EndpointId {
        self.endpoints_made += 1;
        let id = EndpointId(self.endpoints_made);
        self.note(EventKind::EndpointCame(id, endpoint.device.clone()));
        let port = Port::new(id, endpoint, &self.options);
        let joins = port
            .groups
            .gids()
            .map(|group| Action::Join { endpoint: id, group });
        self.actions.extend(joins);
        self.ports.push(port);
        id
    }

    fn change(&mut self, mut port: Port, endpoint: Endpoint) {
        let id = port.id;
        let groups = if is_like(&port.endpoint, &endpoint) {
            port.groups.clone()
        } else {
            Memberships::of(&endpoint, &self.options)
        };
        let (old, new): (Vec<_>, Vec<_>) = (port.groups.gids().collect(), groups.gids().collect());
        for &group in old.iter().filter(|group| !new.contains(group)) {
            self.actions.push_back(Action::Leave { endpoint: id, group });
        }
        for &group in new.iter().filter(|group| !old.contains(group)) {
            self.actions.push_back(Action::Join { endpoint: id, group });
        }
        (port.endpoint, port.groups) = (endpoint, groups);
        self.ports.push(port);
    }

    fn go(&mut self, port: &Port) {
        let id = port.id;
        self.note(EventKind::EndpointWent(id, port.endpoint.device.clone()));
        for group in port.groups.gids() {
            self.actions.push_back(Action::Leave { endpoint: id, group });
        }
        self.timers.clear(Timer::Announce(id));
        self.timers.clear(Timer::Credits(id));
        let theirs = self
            .searches
            .iter()
            .filter(|(_, search)| search.key.endpoint == id);
        let theirs: Vec<SearchId> = theirs.map(|(id, _)| *id).collect();
        for search in theirs {
            self.fail(search, Status::SourceAddress);
        }
    }

    /// Drops cache entries of addresses that are this host's own.
    fn forget_own(&mut self) {
        let ports = &self.ports;
        self.cache
            .retain(|key, _| !ports.iter().any(|port| port.endpoint.has(&key.address)));
    }

    /// Restarts the searches from changed endpoints: their groups, route and probe belong to the old state. A
    /// path that only the subnet administrator verifies does not depend on it.
    fn restart_searches(&mut self, changed: &[EndpointId]) {
        let all = self.searches.iter();
        let theirs =
            all.filter(|(_, search)| search.exact.is_none() && changed.contains(&search.key.endpoint));
        let theirs: Vec<SearchId> = theirs.map(|(id, _)| *id).collect();
        for search in theirs {
            self.restart_search(search);
        }
    }

    /// Fails the queries from addresses that this host no longer has.
    fn end_sourceless(&mut self) {
        let gone = self.questions.iter().filter(|(_, waiting)| {
            let port = self.port(waiting.endpoint);
            port.is_none_or(|port| !port.endpoint.has(&waiting.source))
        });
        let gone: Vec<_> = gone.map(|(ticket, _)| *ticket).collect();
        for ticket in gone {
            self.end_question(ticket, Err(Status::SourceAddress));
        }
    }
}
