//! The resolver, sans I/O: queries and messages go in, answers and messages come out.
//!
//! ```text
//!  clients                 ┌───────────────────────── Resolver ──────────────────────────┐   network
//!  query(ticket, …) ──────►│ questions ─► loopback ─► table ─► cache ─► negative cache   │
//!  Action::Answer ◄────────│    ▲                               │ nothing, or not        │
//!                          │    │                               ▼ confirmed lately       │   Unicast,
//!                          │    └─────────── search: confirm ─► address ─► route ─► probe│─► Multicast,
//!  host(endpoints) ───────►│ ports: groups, credits, announcements                       │   QuerySa, Probe
//!                          │                                                             │◄─ receive, sa,
//!                          └─────────────────────────────────────────────────────────────┘   probed
//! ```
//!
//! # Guarantees
//!
//! * Each query is answered once: at once from what is known, and after [`Options::bound`] at the latest;
//!   unless it is [cancelled](Resolver::forget).
//! * No path is used after it expired, and none whose owner has sent nothing within [`Options::confirm`]: the
//!   owner is queried first, by one unicast message. So a host that was renumbered, restarted or cut off is
//!   found again within two seconds, at a cost that grows with the queries, not with the number of hosts.
//! * All tables are bounded ([`Options`]); an entry takes about 200 bytes. An entry that was looked up is
//!   never evicted in favour of one that was only overheard.
//! * No input makes it panic, and nothing is accepted from a sender that is not entitled to it.
//!
//! # How a changed host becomes known
//!
//! It *announces* itself: it queries the group for its own address, three times within a second. Receivers
//! learn the new address from that, or (where authentication is required, since an old announcement could be
//! replayed) mark the entry for revalidation. A resolver that missed the announcement revalidates the entry
//! before using it.
//!
//! reference: acm, sections 5 and 10.

mod action;
mod announce;
mod completion;
mod credits;
mod entry;
mod groups;
mod inbound;
mod lru;
mod negative_cache;
mod options;
mod ports;
mod questions;
mod refresh;
mod routes;
mod search;
mod stats;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;

use doorbell_fabric::time::Time;
use doorbell_fabric::timers::Timers;

pub use self::action::{Action, EndpointId, Membership, NotProbed, Peer, ProbeId, Probed, Sender, Ticket};
pub use self::entry::Origin;
pub use self::options::{AddressProtocol, LoopbackProtocol, Options, RouteProtocol};
pub use self::stats::{EntryInfo, EntryState, Event, EventKind, ResolverStats};
pub use self::table::Table;

use self::entry::{Entry, Key};
use self::lru::Lru;
use self::negative_cache::NegativeCache;
use self::ports::Port;
use self::refresh::Refresher;
use self::search::{Search, SearchId};
use self::stats::History;
use crate::address::{Address, Gid};
use crate::endpoint::Endpoint;
use crate::query::{Counters, Question};
use crate::sa;

/// The resolver of one host; see the module's documentation.
pub struct Resolver {
    options: Options,
    random: Box<dyn FnMut() -> u64 + Send>,
    now: Time,
    ports: Vec<Port>,
    endpoints_made: u32,
    table: Table,
    cache: Lru<Key, Entry>,
    negative_cache: NegativeCache,
    searches: BTreeMap<SearchId, Search>,
    by_key: HashMap<Key, SearchId>,
    by_transaction: HashMap<u64, SearchId>,
    questions: BTreeMap<Ticket, questions::Waiting>,
    watch: Refresher,
    timers: Timers<Timer>,
    numbers: u64,
    actions: VecDeque<Action>,
    counters: Counters,
    stats: ResolverStats,
    history: History,
}

/// Something that is due at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Search(SearchId),
    Question(Ticket),
    Announce(EndpointId),
    Credits(EndpointId),
    Watch,
}

impl Resolver {
    /// Creates a resolver with an empty cache, for a host without endpoints. `random` returns 64
    /// unpredictable bits, which an answer has to repeat.
    #[must_use]
    pub fn new(options: Options, now: Time, random: Box<dyn FnMut() -> u64 + Send>) -> Self {
        Self {
            random,
            now,
            ports: Vec::new(),
            endpoints_made: 0,
            table: Table::default(),
            cache: Lru::new(options.entries),
            negative_cache: NegativeCache::new(options.entries),
            searches: BTreeMap::new(),
            by_key: HashMap::new(),
            by_transaction: HashMap::new(),
            questions: BTreeMap::new(),
            watch: Refresher::default(),
            timers: Timers::new(),
            numbers: 0,
            actions: VecDeque::new(),
            counters: Counters::default(),
            stats: ResolverStats::default(),
            history: History::new(options.history),
            options,
        }
    }

    /// Takes over the endpoints of this host, in the order in which clients count them. Endpoints that are
    /// gone are forgotten with all that belonged to them, and their queries are answered; new ones join their
    /// groups and announce themselves.
    pub fn host(&mut self, now: Time, mut endpoints: Vec<Endpoint>) {
        self.at(now);
        let addresses = endpoints.iter_mut().flat_map(|endpoint| &mut endpoint.addresses);
        addresses.for_each(|address| *address = address.canonical());
        self.compare(endpoints);
        self.settle();
    }

    /// Replaces the preloaded table.
    pub fn preload(&mut self, now: Time, table: Table) {
        self.at(now);
        self.table = table;
        self.cache.retain(|_, entry| entry.origin != Origin::Static);
        self.settle();
    }

    /// Takes a query. [`Action::Answer`] returns the answer under this ticket; a ticket that is in use is
    /// invalid, and the first query is answered so.
    ///
    /// `chosen` is the source address that the kernel would use towards the destination, if that is an IP
    /// address and the query has no source; `None` if there is no route.
    pub fn query(&mut self, now: Time, ticket: Ticket, question: &Question, chosen: Option<IpAddr>) {
        self.at(now);
        self.take_question(ticket, &question.canonical(), chosen);
        self.settle();
    }

    /// Cancels the query of a client that is gone. A search in progress goes on, for the next query.
    pub fn forget(&mut self, ticket: Ticket) {
        self.forget_question(ticket);
    }

    /// Handles a message that arrived at an endpoint, from any sender.
    pub fn receive(&mut self, now: Time, endpoint: EndpointId, from: Sender, mad: &[u8]) {
        self.at(now);
        self.on_message(endpoint, from, mad);
        self.settle();
    }

    /// Takes the subnet administrator's answer to [`Action::QuerySa`].
    pub fn sa(&mut self, now: Time, id: sa::QueryId, answer: sa::Answer) {
        self.at(now);
        self.on_route(id, answer);
        self.settle();
    }

    /// Takes the result of [`Action::Probe`].
    pub fn probed(&mut self, now: Time, id: ProbeId, result: Result<Probed, NotProbed>) {
        self.at(now);
        self.probe_ended(id, result);
        self.settle();
    }

    /// Reports that an answer of [`Action::Unicast`] has been sent, so that the next may go. Without these
    /// calls they go slowly, one by one.
    pub fn sent(&mut self, now: Time, endpoint: EndpointId) {
        self.at(now);
        if let Some(port) = self.port_mut(endpoint) {
            port.send.back_first();
        }
        self.pump(endpoint);
    }

    /// Takes the outcome of [`Action::Join`]: the group's properties, or `None` if the endpoint is not in it.
    /// Without this call the properties follow from the group's GID.
    pub fn joined(&mut self, now: Time, endpoint: EndpointId, group: Gid, like: Option<Membership>) {
        self.at(now);
        let first = self.port(endpoint).and_then(|port| port.groups.first());
        if let Some(port) = self.port_mut(endpoint) {
            port.groups.joined(group, like);
        }
        match like {
            None => self.note(EventKind::NotJoined(endpoint, group)),
            // Announcements before the join reached no host.
            Some(_) if first == Some(group) => self.announce(endpoint),
            Some(_) => {}
        }
        self.settle();
    }

    /// Reports that a path to this address does not work: it is resolved again before it is used.
    pub fn failed(&mut self, now: Time, destination: &Address) {
        self.at(now);
        let destination = destination.canonical();
        self.note(EventKind::Failed(destination.clone()));
        for endpoint in self.endpoint_ids() {
            let key = self.key(endpoint, destination.clone());
            self.cache.remove(&key);
            self.negative_cache.remove(&key);
        }
    }

    /// Handles everything that is due by `now`.
    pub fn tick(&mut self, now: Time) {
        self.at(now);
        while let Some(timer) = self.timers.due(self.now) {
            match timer {
                Timer::Search(id) => self.search_due(id),
                Timer::Question(ticket) => self.question_due(ticket),
                Timer::Announce(endpoint) => self.announce_due(endpoint),
                Timer::Credits(endpoint) => self.pump(endpoint),
                Timer::Watch => self.watch_due(),
            }
        }
        self.settle();
    }

    /// Returns when [`Resolver::tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Returns the next action to carry out.
    pub fn pop_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the options that the resolver was created with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns all endpoints, in the order of [`Resolver::host`].
    pub fn endpoints(&self) -> impl Iterator<Item = (EndpointId, &Endpoint)> {
        self.ports.iter().map(|port| (port.id, &port.endpoint))
    }

    /// Returns an endpoint, as long as this host has it.
    #[must_use]
    pub fn endpoint(&self, id: EndpointId) -> Option<&Endpoint> {
        self.port(id).map(|port| &port.endpoint)
    }

    /// Returns the endpoint that has this address.
    #[must_use]
    pub fn owner(&self, address: &Address) -> Option<EndpointId> {
        let address = address.canonical();
        let mut ports = self.ports.iter();
        ports.find(|port| port.endpoint.has(&address)).map(|port| port.id)
    }

    /// Returns the counters that clients can read: of the whole service, or of one endpoint.
    #[must_use]
    pub fn counters(&self, endpoint: Option<EndpointId>) -> Option<Counters> {
        match endpoint {
            None => Some(self.counters),
            Some(id) => self.port(id).map(|port| port.counters),
        }
    }

    /// Returns the resolver's own counters, for monitoring.
    #[must_use]
    pub fn stats(&self) -> &ResolverStats {
        &self.stats
    }

    /// Returns the last events, oldest first.
    pub fn history(&self) -> impl Iterator<Item = &Event> {
        self.history.iter()
    }

    /// Returns roughly how many bytes the resolver holds.
    #[must_use]
    pub fn memory(&self) -> usize {
        let search = size_of::<Search>() + 2 * size_of::<(Key, SearchId)>() + 64;
        let question = size_of::<questions::Waiting>() + 96;
        let port = |port: &Port| size_of::<Port>() + 32 * port.endpoint.addresses.len();
        size_of::<Self>()
            + self.cache.memory()
            + self.negative_cache.memory()
            + self.searches.len() * search
            + self.questions.len() * question
            + self.ports.iter().map(port).sum::<usize>()
            + self.actions.capacity() * size_of::<Action>()
    }

    /// Returns how many queries wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.questions.len()
    }

    /// Returns the number of cache entries and of searches in progress.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        (self.cache.len(), self.searches.len())
    }

    fn at(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn note(&mut self, what: EventKind) {
        self.history.push(self.now, what);
    }

    fn port(&self, id: EndpointId) -> Option<&Port> {
        self.ports.iter().find(|port| port.id == id)
    }

    fn port_mut(&mut self, id: EndpointId) -> Option<&mut Port> {
        self.ports.iter_mut().find(|port| port.id == id)
    }

    fn endpoint_ids(&self) -> Vec<EndpointId> {
        self.ports.iter().map(|port| port.id).collect()
    }

    /// Adds to the counters of the service and of an endpoint.
    fn count(&mut self, endpoint: Option<EndpointId>, add: impl Fn(&mut Counters)) {
        add(&mut self.counters);
        if let Some(port) = endpoint.and_then(|id| self.port_mut(id)) {
            add(&mut port.counters);
        }
    }

    /// Sends what has a credit now.
    fn settle(&mut self) {
        for endpoint in self.endpoint_ids() {
            self.pump(endpoint);
        }
    }
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver")
            .field("now", &self.now)
            .field("endpoints", &self.ports.len())
            .field("entries", &self.cache.len())
            .field("searches", &self.searches.len())
            .field("questions", &self.questions.len())
            .finish_non_exhaustive()
    }
}
