//! Queries: those that can be answered at once are, and the others wait for a search.
//!
//! reference: acm, sections 5 to 7.

use std::net::IpAddr;

use doorbell_fabric::time::Time;

use super::action::{Action, EndpointId, Membership, Peer, Ticket};
use super::entry::{self, Entry, Key, Origin, Route};
use super::lru::Rank;
use super::options::LoopbackProtocol;
use super::routes;
use super::search::{SearchId, Stage};
use super::{Resolver, Timer};
use crate::address::Address;
use crate::endpoint::{Endpoint, Link};
use crate::path::Path;
use crate::query::{Answer, CounterScope, Counters, Found, Question};
use crate::sa;
use crate::status::Status;

/// The name of the back end that clients see.
const PROVIDER: &str = "doorbell";

/// A query for a path.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) endpoint: EndpointId,
    pub(super) source: Address,
    /// Whether the answer has the source, because the query had none.
    pub(super) chosen: bool,
    pub(super) destination: Address,
    pub(super) no_delay: bool,
    pub(super) verify: bool,
}

/// A query that waits for a search.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) search: SearchId,
    pub(super) endpoint: EndpointId,
    pub(super) source: Address,
    pub(super) chosen: bool,
    /// Whether it needs a probed path.
    pub(super) verify: bool,
}

impl Resolver {
    pub(super) fn take_question(&mut self, ticket: Ticket, question: &Question, chosen: Option<IpAddr>) {
        if self.questions.contains_key(&ticket) {
            self.end_question(ticket, Err(Status::Invalid));
        }
        match question {
            Question::Counters(scope) => {
                let answer = self.counters_of(scope).map(Found::Counters);
                self.answer(ticket, answer.ok_or(Status::SourceAddress));
            }
            Question::Endpoint { port, index } => {
                let answer = self.endpoint_at(*port, *index).map(|endpoint| Found::Endpoint {
                    endpoint: Box::new(endpoint.clone()),
                    provider: PROVIDER,
                });
                self.answer(ticket, answer.ok_or(Status::Invalid));
            }
            Question::Resolve {
                source,
                destination,
                no_delay,
            } => match self.asked(source.as_ref(), destination, *no_delay, chosen) {
                Ok(asked) => self.resolve(ticket, asked),
                Err(status) => self.refused(ticket, None, status),
            },
            Question::Path { path, verify } => match self.asked_path(path, *verify) {
                Ok(asked) if *verify && self.uses_sa(asked.endpoint) => self.verify(ticket, &asked, path),
                Ok(asked) => self.resolve(ticket, asked),
                Err(status) => self.refused(ticket, None, status),
            },
        }
    }

    fn counters_of(&self, scope: &CounterScope) -> Option<Counters> {
        match scope {
            CounterScope::Service => Some(self.counters),
            CounterScope::Index(index) => {
                let at = usize::from(*index).checked_sub(1)?;
                self.ports.get(at).map(|port| port.counters)
            }
            CounterScope::Owner(address) => self.counters(Some(self.owner(address)?)),
        }
    }

    fn endpoint_at(&self, port: u8, index: u8) -> Option<&Endpoint> {
        let at = usize::from(index).checked_sub(1)?;
        let mut those = self.ports.iter().filter(|own| own.endpoint.port == port);
        those.nth(at).map(|own| &own.endpoint)
    }

    fn asked(
        &self,
        source: Option<&Address>,
        destination: &Address,
        no_delay: bool,
        chosen: Option<IpAddr>,
    ) -> Result<Asked, Status> {
        let is_chosen = source.is_none();
        let source = match (source, destination.ip()) {
            (Some(source), _) => source.clone(),
            (None, None) => return Err(Status::DestinationType),
            (None, Some(_)) => chosen.ok_or(Status::SourceAddress)?.into(),
        };
        Ok(Asked {
            endpoint: self.owner(&source).ok_or(Status::SourceAddress)?,
            source,
            chosen: is_chosen,
            destination: destination.clone(),
            no_delay,
            verify: false,
        })
    }

    fn asked_path(&self, path: &Path, verify: bool) -> Result<Asked, Status> {
        let destination = match (path.dgid.is_none(), path.dlid) {
            (false, _) => Address::Gid(path.dgid),
            (true, 0) => return Err(Status::DestinationAddress),
            (true, lid) => Address::Lid(lid),
        };
        let source = [Address::Gid(path.sgid), Address::Lid(path.slid)];
        let mut owned = source
            .into_iter()
            .filter_map(|own| Some((self.owner(&own)?, own)));
        let (endpoint, source) = owned.next().ok_or(Status::SourceAddress)?;
        Ok(Asked {
            endpoint,
            source,
            chosen: false,
            destination,
            no_delay: false,
            verify,
        })
    }

    /// Returns the cache key of a destination: without InfiniBand a GID is an IP address.
    pub(super) fn key(&self, endpoint: EndpointId, address: Address) -> Key {
        let infiniband = self
            .port(endpoint)
            .is_some_and(|port| port.endpoint.link == Link::InfiniBand);
        let address = match address {
            Address::Gid(gid) if !infiniband => gid.ip().into(),
            other => other,
        };
        Key { endpoint, address }
    }

    fn resolve(&mut self, ticket: Ticket, asked: Asked) {
        let endpoint = asked.endpoint;
        self.count(Some(endpoint), |counters| counters.resolves += 1);
        if let Some(path) = self.loopback(&asked) {
            self.count(Some(endpoint), |counters| {
                counters.address_hits += 1;
                counters.route_hits += 1;
            });
            return self.answer(ticket, found(path, &asked.source, asked.chosen));
        }
        let can = self
            .port(endpoint)
            .is_some_and(|port| routes::can_reach(&port.endpoint, &asked.destination));
        if !can {
            return self.refused(ticket, Some(endpoint), Status::DestinationAddress);
        }
        let key = self.key(endpoint, asked.destination.clone());
        self.load(&key);
        if !asked.verify
            && let Some(path) = self.known(&key, &asked.source)
        {
            return self.answer(ticket, found(path, &asked.source, asked.chosen));
        }
        if asked.no_delay {
            // If no search can start now, the next query starts one.
            if !self.by_key.contains_key(&key)
                && let Ok(id) = self.begin(key, asked.source, false)
            {
                self.start(id);
            }
            return self.refused(ticket, Some(endpoint), Status::NoData);
        }
        if let Some(refusal) = self.negative_cache.get(self.now, &key).filter(|_| !asked.verify) {
            self.stats.refused_hits += 1;
            return self.refused(ticket, Some(endpoint), refusal.status);
        }
        match self.join(ticket, key, &asked) {
            Ok(search) => self.wait(ticket, search, asked),
            Err(status) => self.refused(ticket, Some(endpoint), status),
        }
    }

    /// Sends a path to the subnet administrator for verification; the result is not cached.
    fn verify(&mut self, ticket: Ticket, asked: &Asked, path: &Path) {
        let endpoint = asked.endpoint;
        self.count(Some(endpoint), |counters| counters.resolves += 1);
        let Some(port) = self.port(endpoint) else { return };
        let question = sa::question(&port.endpoint, path);
        let key = self.key(endpoint, asked.destination.clone());
        let room = self.questions.len() < self.options.questions;
        let begun = if room {
            self.begin_exact(key, asked.source.clone(), question)
        } else {
            Err(Status::NoMemory)
        };
        match begun {
            Ok(search) => self.wait(ticket, search, asked.clone()),
            Err(status) => self.refused(ticket, Some(endpoint), status),
        }
    }

    fn loopback(&self, asked: &Asked) -> Option<Path> {
        if self.options.loopback_prot == LoopbackProtocol::None {
            return None;
        }
        let from = &self.port(asked.endpoint)?.endpoint;
        let there = if from.has(&asked.destination) {
            from
        } else {
            &self.port(self.owner(&asked.destination)?)?.endpoint
        };
        // Two InfiniBand ports of a host are as distinct as any two; IP addresses belong to the host.
        let is_same = std::ptr::eq(from, there);
        if !is_same && (from.link == Link::InfiniBand || there.link == Link::InfiniBand) {
            return None;
        }
        let like = Membership::of_port(from).within(there);
        let peer = Peer {
            gid: there.gid_of(&asked.destination),
            lid: there.lid,
            qpn: 0,
        };
        entry::path(from, &asked.source, &asked.destination, peer, &Route::Group(like))
    }

    /// Copies a preloaded address into the cache.
    fn load(&mut self, key: &Key) {
        if self
            .cache
            .get(key)
            .is_some_and(|entry| entry.origin == Origin::Static)
        {
            return;
        }
        let Some(peer) = self.table.place(&key.address) else {
            return;
        };
        let mut entry = Entry::new(peer, Origin::Static, self.now, Time::NEVER);
        entry.confirmed = Time::NEVER;
        if let Some(path) = self.table.route(peer) {
            entry.route = Route::Explicit(Box::new(path.clone()));
            entry.route_until = Time::NEVER;
        }
        self.remember(key.clone(), entry, Rank::Newest);
    }

    /// Returns the path if it may be used at once; counts a partial hit too.
    fn known(&mut self, key: &Key, source: &Address) -> Option<Path> {
        let (now, confirm) = (self.now, self.options.confirm);
        let entry = self.cache.touch(key)?;
        if !entry.is_alive(now) {
            self.cache.remove(key);
            return None;
        }
        if !entry.is_confirmed(now, confirm) {
            return None;
        }
        // An entry that was only overheard has not been probed.
        if self.options.verify && entry.tried.is_none() && entry.origin != Origin::Static {
            return None;
        }
        let path = if entry.has_route(now) {
            entry.used = now;
            let (peer, route) = (entry.peer, entry.route.within(entry.tried));
            let from = &self.port(key.endpoint)?.endpoint;
            entry::path(from, source, &key.address, peer, &route)
        } else {
            None
        };
        self.count(Some(key.endpoint), |counters| {
            counters.address_hits += 1;
            counters.route_hits += u64::from(path.is_some());
        });
        if path.is_some() {
            self.keep_fresh(key, source);
        }
        path
    }

    fn join(&mut self, ticket: Ticket, key: Key, asked: &Asked) -> Result<SearchId, Status> {
        if self.questions.len() >= self.options.questions {
            return Err(Status::NoMemory);
        }
        let id = match self.by_key.get(&key) {
            Some(&id) => id,
            None => return self.begin(key, asked.source.clone(), asked.verify),
        };
        let each = self.options.questions_each;
        let search = self.searches.get_mut(&id).ok_or(Status::NoMemory)?;
        if search.tickets.len() >= each || search.tickets.contains(&ticket) {
            return Err(Status::NoMemory);
        }
        search.verify |= asked.verify;
        Ok(id)
    }

    fn wait(&mut self, ticket: Ticket, search: SearchId, asked: Asked) {
        let subnet = self
            .port(asked.endpoint)
            .map_or(0, |port| port.endpoint.subnet_timeout);
        let until = self.now + self.options.bound(subnet);
        let waiting = Waiting {
            search,
            endpoint: asked.endpoint,
            source: asked.source,
            chosen: asked.chosen,
            verify: asked.verify,
        };
        self.questions.insert(ticket, waiting);
        self.timers.set(Timer::Question(ticket), until);
        if let Some(search) = self.searches.get_mut(&search) {
            search.tickets.push(ticket);
        }
        self.start(search);
    }

    /// Fails a query whose time is over.
    pub(super) fn question_due(&mut self, ticket: Ticket) {
        let Some(waiting) = self.questions.get(&ticket) else {
            return;
        };
        let id = waiting.search;
        self.end_question(ticket, Err(Status::TimedOut));
        let over = self.searches.get(&id).is_some_and(|search| {
            search.tickets.is_empty() && !matches!(search.stage, Stage::Route { .. } | Stage::Probe)
        });
        if over {
            self.drop_search(id);
        }
    }

    pub(super) fn forget_question(&mut self, ticket: Ticket) {
        self.timers.clear(Timer::Question(ticket));
        if let Some(waiting) = self.questions.remove(&ticket)
            && let Some(search) = self.searches.get_mut(&waiting.search)
        {
            search.tickets.retain(|&other| other != ticket);
        }
    }

    /// Answers a waiting query.
    pub(super) fn end_question(&mut self, ticket: Ticket, path: Result<Path, Status>) {
        let Some(waiting) = self.questions.get(&ticket).cloned() else {
            return;
        };
        self.forget_question(ticket);
        match path {
            Ok(path) => self.answer(ticket, found(path, &waiting.source, waiting.chosen)),
            Err(status) => self.refused(ticket, Some(waiting.endpoint), status),
        }
    }

    fn refused(&mut self, ticket: Ticket, endpoint: Option<EndpointId>, status: Status) {
        match status {
            Status::NoData => self.count(endpoint, |counters| counters.no_data += 1),
            _ => self.count(endpoint, |counters| counters.errors += 1),
        }
        if status == Status::NoMemory {
            self.stats.no_room += 1;
        }
        self.answer(ticket, Err(status));
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        self.actions.push_back(Action::Answer { ticket, answer });
    }
}

fn found(path: Path, source: &Address, chosen: bool) -> Answer {
    Ok(Found::Path {
        path: Box::new(path),
        source: chosen.then(|| source.clone()),
    })
}
