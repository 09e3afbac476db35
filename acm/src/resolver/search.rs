//! A search: from what is known about a destination to a usable path.
//!
//! ```text
//!             known, not confirmed recently        nothing known            beyond a router
//!                        │                             │                         │
//!                        ▼          silent             ▼                         │
//!                     Confirm ───────────────────► Address ──► no answer: fails  │
//!                        │                             │                         │
//!                        └──────────────┬──────────────┘                         │
//!                                       ▼                                        ▼
//!                        Route (with a subnet administrator) ────────────────► Probe (where it is wanted)
//!                                       └─────────────────► answer ◄─────────────┘
//! ```
//!
//! There is one search per destination, however many queries wait for it, and it goes on when none is left.
//! It restarts when its endpoint changes.

use super::action::{Action, Membership, Peer, Ticket};
use super::credits::Priority;
use super::entry::{Key, Origin, Route, Tried};
use super::lru::Rank;
use super::routes;
use super::{EndpointId, Resolver, Timer};
use crate::address::Address;
use crate::endpoint::Link;
use crate::mad::{Direction, Groups, Resolve};
use crate::path::Path;
use crate::status::Status;
use doorbell_fabric::time::Time;

/// The number of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SearchId(pub(super) u64);

/// How often a known owner is queried before the group is.
const CONFIRMS: u8 = 3;
/// How often a query is sent within an attempt.
const ROUNDS: u32 = 5;

/// The stage that a search is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Confirm { tries: u8 },
    Address { round: u32 },
    Route { asked: bool },
    Probe,
}

#[derive(Clone, Debug)]
pub(super) struct Search {
    pub(super) key: Key,
    pub(super) stage: Stage,
    pub(super) started: bool,
    /// The source address of the query.
    pub(super) source: Address,
    pub(super) tickets: Vec<Ticket>,
    /// Whether the path is to be probed.
    pub(super) verify: bool,
    /// The path that the subnet administrator is to verify, which is all that this search does.
    pub(super) exact: Option<Box<Path>>,
    /// The query sent to the subnet administrator.
    pub(super) question: Option<Box<Path>>,
    pub(super) transaction: u64,
    pub(super) peer: Peer,
    pub(super) route: Route,
    /// The result of a probe, of this search or an earlier one.
    pub(super) tried: Option<Tried>,
    pub(super) origin: Origin,
    /// Whether the route was received during this search.
    pub(super) fresh: bool,
}

impl Resolver {
    /// Creates a search; [`Resolver::start`] starts it.
    pub(super) fn begin(&mut self, key: Key, source: Address, verify: bool) -> Result<SearchId, Status> {
        let (stage, known) = self.first_stage(&key)?;
        let verify = verify
            || known
                .as_ref()
                .is_some_and(|(_, _, origin)| *origin == Origin::Route);
        let (peer, route, origin) = known.unwrap_or((Peer::default(), Route::Unknown, Origin::Multicast));
        let entry = self.cache.get(&key).filter(|entry| entry.is_alive(self.now));
        let tried = entry
            .and_then(|entry| entry.tried)
            .filter(|_| origin != Origin::Route);
        let id = self.make_search(Search {
            key: key.clone(),
            stage,
            started: false,
            source,
            tickets: Vec::new(),
            verify,
            exact: None,
            question: None,
            transaction: 0,
            peer,
            route,
            tried,
            origin,
            fresh: false,
        })?;
        self.by_key.insert(key, id);
        Ok(id)
    }

    pub(super) fn begin_exact(&mut self, key: Key, source: Address, path: Path) -> Result<SearchId, Status> {
        self.make_search(Search {
            key,
            stage: Stage::Route { asked: false },
            started: false,
            source,
            tickets: Vec::new(),
            verify: false,
            exact: Some(Box::new(path)),
            question: None,
            transaction: 0,
            peer: Peer::default(),
            route: Route::Unknown,
            tried: None,
            origin: Origin::Sa,
            fresh: false,
        })
    }

    fn make_search(&mut self, search: Search) -> Result<SearchId, Status> {
        if self.searches.len() >= self.options.searches {
            return Err(Status::NoMemory);
        }
        let id = SearchId(self.number());
        self.searches.insert(id, search);
        Ok(id)
    }

    /// Returns the first stage of a search, and what it starts with.
    #[allow(clippy::type_complexity, reason = "three things that are known together")]
    fn first_stage(&self, key: &Key) -> Result<(Stage, Option<(Peer, Route, Origin)>), Status> {
        let port = self.port(key.endpoint).ok_or(Status::SourceAddress)?;
        let has_sa_for = routes::has_sa_for(&self.options, &port.endpoint);
        let entry = self.cache.get(key).filter(|entry| entry.is_alive(self.now));
        let is_static = entry.is_some_and(|entry| entry.origin == Origin::Static);
        if !is_static && routes::is_far(&port.endpoint, &key.address) {
            let known = self.beyond(key.endpoint, &key.address);
            let (peer, route) = known.ok_or(Status::DestinationAddress)?;
            return Ok((Stage::Probe, Some((peer, route, Origin::Route))));
        }
        if let Some(entry) = entry {
            let known = Some((entry.peer, entry.route.clone(), entry.origin));
            let silent = entry.confirmed == Time::NEVER;
            let heard = silent || entry.is_confirmed(self.now, self.options.confirm);
            let stage = if heard && entry.has_route(self.now) {
                Stage::Probe
            } else if silent || heard && has_sa_for {
                Stage::Route { asked: false }
            } else {
                // Without a subnet administrator, the owner is queried for the route.
                Stage::Confirm { tries: 0 }
            };
            return Ok((stage, known));
        }
        let direct = match key.address {
            Address::Gid(gid) => Some(Peer {
                gid,
                ..Peer::default()
            }),
            Address::Lid(lid) => Some(Peer {
                lid,
                ..Peer::default()
            }),
            _ => None,
        };
        if let Some(peer) = direct.filter(|_| has_sa_for && port.endpoint.link == Link::InfiniBand) {
            return Ok((
                Stage::Route { asked: false },
                Some((peer, Route::Unknown, Origin::Sa)),
            ));
        }
        if port.groups.first().is_none() {
            return Err(Status::NotConnected);
        }
        Ok((Stage::Address { round: 0 }, None))
    }

    /// Starts a search, unless it has started.
    pub(super) fn start(&mut self, id: SearchId) {
        if let Some(search) = self.searches.get_mut(&id)
            && !std::mem::replace(&mut search.started, true)
        {
            let stage = search.stage;
            self.enter(id, stage);
        }
    }

    /// Restarts a search whose basis has changed, for the queries that wait. It gets another number, so that
    /// late replies to the old one are ignored.
    pub(super) fn restart_search(&mut self, id: SearchId) {
        let Some(search) = self.drop_search(id) else {
            return;
        };
        let waiting = || search.tickets.iter().filter_map(|it| self.questions.get(it));
        // Without a waiting query, the next one starts a search.
        let Some(source) = waiting().next().map(|asked| asked.source.clone()) else {
            return;
        };
        let verify = waiting().any(|asked| asked.verify);
        match self.begin(search.key, source, verify) {
            Ok(id) => {
                for ticket in &search.tickets {
                    if let Some(asked) = self.questions.get_mut(ticket) {
                        asked.search = id;
                    }
                }
                if let Some(begun) = self.searches.get_mut(&id) {
                    begun.tickets = search.tickets;
                }
                self.start(id);
            }
            Err(status) => {
                for ticket in search.tickets {
                    self.end_question(ticket, Err(status));
                }
            }
        }
    }

    pub(super) fn enter(&mut self, id: SearchId, stage: Stage) {
        let transaction = (self.random)();
        let Some(search) = self.searches.get_mut(&id) else {
            return;
        };
        search.stage = stage;
        let (old, endpoint) = (search.transaction, search.key.endpoint);
        self.by_transaction.remove(&old);
        self.timers.clear(Timer::Search(id));
        let full = match stage {
            Stage::Confirm { .. } | Stage::Address { .. } => {
                search.transaction = transaction;
                self.by_transaction.insert(transaction, id);
                match stage {
                    Stage::Confirm { .. } => {
                        self.confirm(id);
                        false
                    }
                    _ => !self
                        .port_mut(endpoint)
                        .is_some_and(|port| port.resolve.want(id, Priority::First)),
                }
            }
            Stage::Route { .. } => {
                if search.exact.is_none() && !self.uses_sa(endpoint) {
                    return self.route_of_group(id);
                }
                !self
                    .port_mut(endpoint)
                    .is_some_and(|port| port.sa.want(id, Priority::First))
            }
            Stage::Probe => {
                self.probe(id);
                false
            }
        };
        if full {
            self.fail(id, Status::NoMemory);
        }
    }

    /// Derives the route from the port, for a preloaded address whose owner cannot be queried.
    fn route_of_group(&mut self, id: SearchId) {
        let Some(search) = self.searches.get(&id) else {
            return;
        };
        let Some(port) = self.port(search.key.endpoint) else {
            return;
        };
        let like = Membership::of_port(&port.endpoint);
        if let Some(search) = self.searches.get_mut(&id) {
            (search.route, search.fresh) = (Route::Group(like), true);
        }
        self.route_found(id);
    }

    /// Returns the bytes of a search's query.
    fn question_of(&self, id: SearchId) -> Option<(Box<[u8; crate::mad::MAD]>, &Search)> {
        let search = self.searches.get(&id)?;
        let port = self.port(search.key.endpoint)?;
        let endpoint = &port.endpoint;
        let source = Some(&search.source)
            .filter(|source| endpoint.has(source))
            .or(endpoint.addresses.first())
            .cloned()
            .unwrap_or(Address::Gid(endpoint.gid));
        let resolve = Resolve {
            direction: Direction::Question,
            transaction: search.transaction,
            destination: Some(search.key.address.clone()),
            source: Some(source),
            groups: port.groups.list(),
        };
        Some((Box::new(resolve.bytes()), search))
    }

    fn subnet_timeout(&self, endpoint: EndpointId) -> u8 {
        self.port(endpoint).map_or(0, |port| port.endpoint.subnet_timeout)
    }

    /// Queries a known owner for confirmation.
    fn confirm(&mut self, id: SearchId) {
        let Some((mad, search)) = self.question_of(id) else {
            return;
        };
        let (endpoint, to) = (search.key.endpoint, search.peer);
        let background = search.tickets.is_empty();
        let wait = self.options.lent(self.subnet_timeout(endpoint)) / 2;
        self.stats.confirmations += 1;
        self.stats.background += u64::from(background);
        self.timers.set(Timer::Search(id), self.now + wait);
        self.actions.push_back(Action::Unicast {
            endpoint,
            to,
            mad,
            answer: false,
        });
    }

    /// Queries one peer that may own the address.
    pub(super) fn query_peer(&mut self, id: SearchId, to: Peer) {
        let looked_for = self
            .searches
            .get(&id)
            .is_some_and(|search| matches!(search.stage, Stage::Address { .. }));
        if let Some((mad, search)) = self.question_of(id).filter(|_| looked_for) {
            let endpoint = search.key.endpoint;
            self.stats.confirmations += 1;
            self.actions.push_back(Action::Unicast {
                endpoint,
                to,
                mad,
                answer: false,
            });
        }
    }

    /// Sends a search's query to the group, once it has a credit.
    pub(super) fn query_group(&mut self, id: SearchId) {
        let Some((mad, search)) = self.question_of(id) else {
            return;
        };
        let Stage::Address { round } = search.stage else {
            return;
        };
        let (endpoint, transaction) = (search.key.endpoint, search.transaction);
        let subnet = self.subnet_timeout(endpoint);
        let (lent, attempt) = (self.options.lent(subnet), self.options.attempt(subnet));
        let wait = match round % ROUNDS {
            0 => lent,
            1 => attempt / 4 - lent,
            _ => attempt / 4,
        };
        let (soon, until) = (self.now + lent, self.now + wait);
        let Some(port) = self.port_mut(endpoint) else {
            return;
        };
        let group = port.groups.first();
        port.resolve.lend(transaction, soon);
        self.timers.set(Timer::Search(id), until);
        if round == 0 {
            self.count(Some(endpoint), |counters| counters.address_queries += 1);
        }
        if let Some(group) = group {
            self.stats.multicasts += 1;
            self.actions.push_back(Action::Multicast { endpoint, group, mad });
        }
    }

    /// Handles a search whose reply did not come in time.
    pub(super) fn search_due(&mut self, id: SearchId) {
        let rounds = ROUNDS.saturating_mul(self.options.retries.saturating_add(1));
        let Some(search) = self.searches.get_mut(&id) else {
            return;
        };
        match &mut search.stage {
            Stage::Confirm { tries } if *tries + 1 < CONFIRMS => {
                *tries += 1;
                self.confirm(id);
            }
            Stage::Confirm { .. } if search.tickets.is_empty() => {
                let key = search.key.clone();
                if let Some(entry) = self.cache.get_mut(&key) {
                    (entry.suspect, entry.watched) = (true, false);
                }
                self.drop_search(id);
            }
            Stage::Confirm { .. } => self.enter(id, Stage::Address { round: 0 }),
            Stage::Address { round } if *round + 1 < rounds => {
                *round += 1;
                let endpoint = search.key.endpoint;
                let again = self
                    .port_mut(endpoint)
                    .is_some_and(|port| port.resolve.want(id, Priority::Again));
                if !again {
                    self.fail(id, Status::NoMemory);
                }
            }
            Stage::Address { .. } | Stage::Route { .. } | Stage::Probe => self.fail(id, Status::TimedOut),
        }
    }

    /// Takes the owner of the address, and the properties of the group that it named or listed.
    pub(super) fn address_found(&mut self, id: SearchId, peer: Peer, like: Option<Membership>) {
        let Some(search) = self.searches.get_mut(&id) else {
            return;
        };
        let (key, transaction) = (search.key.clone(), search.transaction);
        search.peer = peer;
        self.by_transaction.remove(&transaction);
        if let Some(port) = self.port_mut(key.endpoint) {
            port.resolve.back(transaction);
        }
        let has_sa_for = self.uses_sa(key.endpoint);
        if !has_sa_for && like.is_none() {
            return self.fail(id, Status::DestinationAddress);
        }
        self.learn(key.clone(), peer, like, Rank::Newest);
        let now = self.now;
        let entry = self.cache.get(&key);
        let tried = entry.and_then(|entry| entry.tried);
        let origin = entry.map_or(Origin::Multicast, |entry| entry.origin);
        let route = entry.filter(|entry| entry.has_route(now));
        let told = like.filter(|_| !has_sa_for).map(Route::Group);
        // A route that the owner sent just now is used, however soon it expires.
        let known = route.map(|entry| entry.route.clone()).or(told);
        let Some(search) = self.searches.get_mut(&id) else {
            return;
        };
        search.tried = tried;
        match known {
            Some(route) => {
                (search.route, search.origin) = (route, origin);
                self.route_found(id);
            }
            None => self.enter(id, Stage::Route { asked: false }),
        }
    }

    /// Hands out the free credits of an endpoint.
    pub(super) fn pump(&mut self, endpoint: EndpointId) {
        let now = self.now;
        let Some(port) = self.port_mut(endpoint) else {
            return;
        };
        port.resolve.collect(now);
        port.sa.collect(now);
        port.send.collect(now);
        while let Some(id) = self.port_mut(endpoint).and_then(|port| port.resolve.next()) {
            self.query_group(id);
        }
        while let Some(id) = self.port_mut(endpoint).and_then(|port| port.sa.next()) {
            self.query_sa(id);
        }
        while let Some((to, mad)) = self.port_mut(endpoint).and_then(|port| port.send.next()) {
            self.send_answer(endpoint, to, mad);
        }
        if let Some(port) = self.port(endpoint) {
            let due = port.credits_due().unwrap_or(Time::NEVER);
            self.timers.set(Timer::Credits(endpoint), due);
        }
    }

    /// Returns the properties of a path to a peer that listed or named these groups.
    pub(super) fn like(&self, endpoint: EndpointId, groups: &Groups, named: bool) -> Option<Membership> {
        let port = self.port(endpoint)?;
        match named {
            true => port.groups.named(&port.endpoint, groups),
            false => port.groups.common(&port.endpoint, groups).map(|(_, like)| like),
        }
    }
}
