//! Completion of a search: its result is cached and answers the queries, or there is no path.

use doorbell_fabric::time::Time;

use super::action::{Membership, Peer, Ticket};
use super::entry::{self, Entry, Key, Origin, Route};
use super::lru::Rank;
use super::search::{Search, SearchId, Stage};
use super::stats::EventKind;
use super::{EndpointId, Options, Resolver, Timer};
use crate::address::Address;
use crate::path::Path;
use crate::status::Status;

impl Resolver {
    /// Caches where an address is.
    pub(super) fn learn(&mut self, key: Key, peer: Peer, like: Option<Membership>, rank: Rank) {
        let now = self.now;
        let until = Options::until(now, self.options.addr_timeout);
        let route_until = Options::until(now, self.options.route_timeout);
        let like = like.filter(|_| !self.uses_sa(key.endpoint));
        self.negative_cache.remove(&key);
        let set = |entry: &mut Entry| {
            (entry.confirmed, entry.suspect, entry.address_until) = (now, false, until);
            if let Some(like) = like {
                entry.route_until = route_until;
                entry.route = Route::Group(like);
            }
        };
        match self.cache.get_mut(&key) {
            Some(entry) if matches!(entry.origin, Origin::Static | Origin::Route) => {}
            Some(entry) if entry.peer == peer => set(entry),
            old => {
                let changed = old.is_some();
                let mut entry = Entry::new(peer, Origin::Multicast, now, until);
                set(&mut entry);
                let what = if changed {
                    EventKind::Changed
                } else {
                    EventKind::Learned
                };
                self.stats.changed += u64::from(changed);
                self.note(what(key.endpoint, key.address.clone(), peer));
                self.remember(key, entry, rank);
            }
        }
    }

    /// Inserts a cache entry.
    pub(super) fn remember(&mut self, key: Key, entry: Entry, rank: Rank) {
        let used = |entry: &Entry| entry.used > Time::ZERO;
        if rank == Rank::Oldest && self.cache.is_full() && self.cache.oldest().is_some_and(used) {
            return;
        }
        if let Some((gone, _)) = self.cache.insert(key, entry, rank) {
            self.stats.evicted += 1;
            self.note(EventKind::Evicted(gone.endpoint, gone.address));
        }
    }

    /// Ends a search that has a path: caches it and answers all its queries.
    pub(super) fn succeed(&mut self, id: SearchId) {
        self.keep(id);
        if let Some(search) = self.drop_search(id) {
            let (key, tickets) = (search.key.clone(), search.tickets.clone());
            self.answer_all(&search, &tickets);
            if !tickets.is_empty() {
                self.used(&key);
            }
        }
    }

    /// Answers the queries that need no probe; the search goes on for the others.
    pub(super) fn answer_unprobed(&mut self, id: SearchId) {
        self.keep(id);
        let Some(search) = self.searches.get_mut(&id) else {
            return;
        };
        let is_verified = |ticket: &Ticket| self.questions.get(ticket).is_some_and(|asked| asked.verify);
        let told: Vec<Ticket> = search
            .tickets
            .extract_if(.., |ticket| !is_verified(ticket))
            .collect();
        let found = Search {
            tickets: Vec::new(),
            ..search.clone()
        };
        self.answer_all(&found, &told);
        if !told.is_empty() {
            self.used(&found.key);
        }
    }

    /// Caches the result of a search if its destination is still in the cache. An entry that was evicted or
    /// replaced meanwhile is not restored: its time of confirmation is unknown.
    fn keep(&mut self, id: SearchId) {
        let Some(search) = self.searches.get(&id) else {
            return;
        };
        let (now, key) = (self.now, search.key.clone());
        let (peer, route, origin) = (search.peer, search.route.clone(), search.origin);
        let tried = search.tried;
        let fresh = search.fresh || origin == Origin::Route;
        let until = Options::until(now, self.options.addr_timeout);
        let route_until = Options::until(now, self.options.route_timeout);
        self.negative_cache.remove(&key);
        let same = self
            .cache
            .get(&key)
            .is_some_and(|entry| entry.peer.gid == peer.gid && entry.is_alive(now));
        if !same {
            let mut entry = Entry::new(peer, origin, now, until);
            match origin {
                Origin::Route => {}
                // There is no one to confirm it: no message of the owner's service was ever received.
                Origin::Sa if peer.qpn == 0 => entry.confirmed = Time::NEVER,
                _ => return,
            }
            self.remember(key.clone(), entry, Rank::Newest);
        }
        if let Some(entry) = self.cache.get_mut(&key) {
            entry.origin = origin;
            if origin == Origin::Route {
                (entry.confirmed, entry.suspect, entry.address_until) = (now, false, until);
            }
            if fresh {
                entry.route_until = route_until;
            }
            (entry.peer, entry.route, entry.tried) = (peer, route, tried);
        }
    }

    fn answer_all(&mut self, found: &Search, tickets: &[Ticket]) {
        let route = found.route.within(found.tried);
        for &ticket in tickets {
            let path = self.path_for(ticket, &found.key, found.peer, &route);
            self.end_question(ticket, path);
        }
    }

    /// Marks an entry as used if a query waited for it.
    fn used(&mut self, key: &Key) {
        let now = self.now;
        if let Some(entry) = self.cache.touch(key) {
            entry.used = now;
        }
        if let Some(source) = self.first_address(key.endpoint) {
            self.keep_fresh(key, &source);
        }
    }

    fn first_address(&self, endpoint: EndpointId) -> Option<Address> {
        let port = self.port(endpoint)?;
        port.endpoint.addresses.first().cloned()
    }

    fn path_for(&self, ticket: Ticket, key: &Key, peer: Peer, route: &Route) -> Result<Path, Status> {
        let waiting = self.questions.get(&ticket).ok_or(Status::Invalid)?;
        let port = self.port(key.endpoint).ok_or(Status::SourceAddress)?;
        let path = entry::path(&port.endpoint, &waiting.source, &key.address, peer, route);
        path.ok_or(Status::NoData)
    }

    /// Ends a search without a path.
    pub(super) fn fail(&mut self, id: SearchId, status: Status) {
        let Some(search) = self.searches.get(&id) else {
            return;
        };
        // A failed probe that only some queries wanted does not spoil the path of the others.
        let asked_for = search.stage == Stage::Probe && !self.is_doubted(search);
        if asked_for {
            if let Some(tried) = self
                .searches
                .get_mut(&id)
                .and_then(|search| search.tried.as_mut())
            {
                tried.again = self.now + self.options.grow;
            }
            self.answer_unprobed(id);
        }
        let Some(search) = self.drop_search(id) else {
            return;
        };
        let (key, tickets, stage) = (search.key, search.tickets, search.stage);
        let exact = search.exact.is_some();
        let lasting = matches!(
            status,
            Status::TimedOut | Status::NoData | Status::DestinationAddress
        );
        let now = self.now;
        let still = stage == (Stage::Route { asked: true })
            && self
                .cache
                .get(&key)
                .is_some_and(|entry| entry.is_alive(now) && entry.has_route(now));
        if lasting && !exact && !still && !asked_for {
            let is_static = self
                .cache
                .get(&key)
                .is_some_and(|entry| entry.origin == Origin::Static);
            if !is_static {
                self.cache.remove(&key);
            }
            let (first, last) = (self.options.refused_first, self.options.refused_last);
            self.negative_cache.add(now, key.clone(), status, first, last);
            self.note(EventKind::Refused(key.endpoint, key.address, status));
        }
        for ticket in tickets {
            self.end_question(ticket, Err(status));
        }
    }

    /// Ends a search without answering its queries.
    pub(super) fn drop_search(&mut self, id: SearchId) -> Option<Search> {
        self.timers.clear(Timer::Search(id));
        let search = self.searches.remove(&id)?;
        self.by_transaction.remove(&search.transaction);
        if self.by_key.get(&search.key) == Some(&id) {
            self.by_key.remove(&search.key);
        }
        if let Some(port) = self.port_mut(search.key.endpoint) {
            port.resolve.back(search.transaction);
            port.sa.back(id.0);
        }
        Some(search)
    }
}
