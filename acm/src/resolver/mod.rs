//! The resolver: questions and messages go in, answers and messages come out. It has no socket and no clock.
//!
//! ```text
//!    clients                 ┌────────────────────────── Resolver ──────────────────────────┐             network
//!    ask(ticket, question) ─►│ questions ─► loopback ─► table ─► cache ─► refusals          │
//!    Act::Answer ◄───────────│    ▲                                │ nothing, or not heard  │
//!                            │    │                                ▼ of lately              │
//!                            │    └──────────── search: confirm ─► address ─► route ─► probe│─► Act::Unicast, Multicast,
//!    host(endpoints) ───────►│ ports: groups, credits, announcements                        │   AskSa, Probe
//!                            │                                                              │◄─ hear, sa, probed
//!                            └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! # What is promised
//!
//! * Each question is answered once: at once where something is known, and [`Options::bound`] after it was asked at the
//!   latest; unless it is [forgotten](Resolver::forget).
//! * No path is told after it expired, and none whose owner was not heard within [`Options::confirm`]: he is asked again
//!   first, by one message to him alone. So a host that was renumbered, restarted or cut off is found again within two
//!   seconds, and what that costs grows with what is asked, not with the number of hosts.
//! * All tables are bounded ([`Options`]); an entry takes about 200 bytes. Nobody who was used goes for somebody who merely
//!   spoke.
//! * Nothing that others write makes it panic, or believe what they may not say.
//!
//! # How a host that changed becomes known
//!
//! It *announces* itself: it asks the group for its own address, three times within a second. Whoever hears that learns
//! where it is now, or (where authentication is demanded, and an old announcement could be played back) that it has to be
//! asked. Whoever did not hear it, behind a partition, asks before he tells its path again.
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

pub use self::action::{Act, EndpointId, Membership, NotProbed, Peer, ProbeId, Probed, Sender, Ticket};
pub use self::entry::Origin;
pub use self::options::{AddressProtocol, LoopbackProtocol, Options, RouteProtocol};
pub use self::stats::{Event, Known, State, Tally, What};
pub use self::table::Table;

use self::entry::{Entry, Key};
use self::lru::Lru;
use self::negative_cache::Refusals;
use self::ports::Port;
use self::refresh::Watch;
use self::search::{Search, SearchId};
use self::stats::History;
use crate::address::{Address, Gid};
use crate::ask::{Counters, Question};
use crate::endpoint::Endpoint;
use crate::sa;

/// See the module's own words.
pub struct Resolver {
    options: Options,
    random: Box<dyn FnMut() -> u64 + Send>,
    now: Time,
    ports: Vec<Port>,
    endpoints_made: u32,
    table: Table,
    cache: Lru<Key, Entry>,
    refusals: Refusals,
    searches: BTreeMap<SearchId, Search>,
    by_key: HashMap<Key, SearchId>,
    by_transaction: HashMap<u64, SearchId>,
    questions: BTreeMap<Ticket, questions::Waiting>,
    watch: Watch,
    timers: Timers<Timer>,
    numbers: u64,
    acts: VecDeque<Act>,
    counters: Counters,
    tally: Tally,
    history: History,
}

/// What waits for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Search(SearchId),
    Question(Ticket),
    Announce(EndpointId),
    Credits(EndpointId),
    Watch,
}

impl Resolver {
    /// A resolver that knows nothing, of a host that has nothing. `random` gives 64 bits that nobody can predict: they
    /// are what an answer has to know.
    #[must_use]
    pub fn new(options: Options, now: Time, random: Box<dyn FnMut() -> u64 + Send>) -> Self {
        Self {
            random,
            now,
            ports: Vec::new(),
            endpoints_made: 0,
            table: Table::default(),
            cache: Lru::new(options.entries),
            refusals: Refusals::new(options.entries),
            searches: BTreeMap::new(),
            by_key: HashMap::new(),
            by_transaction: HashMap::new(),
            questions: BTreeMap::new(),
            watch: Watch::default(),
            timers: Timers::new(),
            numbers: 0,
            acts: VecDeque::new(),
            counters: Counters::default(),
            tally: Tally::default(),
            history: History::new(options.history),
            options,
        }
    }

    /// What this host has now, in the order in which endpoints are counted. What went is forgotten, with all that belonged
    /// to it, and questions from there are answered; what came joins its groups and announces itself.
    pub fn host(&mut self, now: Time, mut endpoints: Vec<Endpoint>) {
        self.at(now);
        let addresses = endpoints.iter_mut().flat_map(|endpoint| &mut endpoint.addresses);
        addresses.for_each(|address| *address = address.canonical());
        self.compare(endpoints);
        self.settle();
    }

    /// What was loaded, in place of what was loaded before.
    pub fn preload(&mut self, now: Time, table: Table) {
        self.at(now);
        self.table = table;
        self.cache.retain(|_, entry| entry.origin != Origin::Static);
        self.settle();
    }

    /// A question. [`Act::Answer`] brings the answer under this ticket; a ticket that waits already is invalid, and its
    /// first question is answered so.
    ///
    /// `chosen` is the address that the kernel would talk from to the question's destination, where that is an IP address
    /// and the question has no source; none where it has no route to it.
    pub fn ask(&mut self, now: Time, ticket: Ticket, question: &Question, chosen: Option<IpAddr>) {
        self.at(now);
        self.take_question(ticket, &question.canonical(), chosen);
        self.settle();
    }

    /// Whoever asked under this ticket is gone: it is not answered. What is under way goes on, for whoever asks next.
    pub fn forget(&mut self, ticket: Ticket) {
        self.forget_question(ticket);
    }

    /// A message came to an endpoint. Nothing is believed of it that its author may not say.
    pub fn hear(&mut self, now: Time, endpoint: EndpointId, from: Sender, mad: &[u8]) {
        self.at(now);
        self.heard(endpoint, from, mad);
        self.settle();
    }

    /// What the subnet's administration said to [`Act::AskSa`].
    pub fn sa(&mut self, now: Time, id: sa::QueryId, answer: sa::Answer) {
        self.at(now);
        self.route_told(id, answer);
        self.settle();
    }

    /// What came of [`Act::Probe`].
    pub fn probed(&mut self, now: Time, id: ProbeId, result: Result<Probed, NotProbed>) {
        self.at(now);
        self.probe_ended(id, result);
        self.settle();
    }

    /// An answer of [`Act::Unicast`] is gone: the next may go. Where nobody calls this, they go one by one, slowly.
    pub fn sent(&mut self, now: Time, endpoint: EndpointId) {
        self.at(now);
        if let Some(port) = self.port_mut(endpoint) {
            port.send.back_first();
        }
        self.pump(endpoint);
    }

    /// What came of [`Act::Join`]: what the group is like, or none where the endpoint is not in it. Without this call, a
    /// group is taken to be what its name says.
    pub fn joined(&mut self, now: Time, endpoint: EndpointId, group: Gid, like: Option<Membership>) {
        self.at(now);
        let first = self.port(endpoint).and_then(|port| port.groups.first());
        if let Some(port) = self.port_mut(endpoint) {
            port.groups.joined(group, like);
        }
        match like {
            None => self.note(What::NotJoined(endpoint, group)),
            // What was said before, nobody heard.
            Some(_) if first == Some(group) => self.announce(endpoint),
            Some(_) => {}
        }
        self.settle();
    }

    /// Somebody could not use the path to this address: it is not told again before it was resolved anew.
    pub fn failed(&mut self, now: Time, destination: &Address) {
        self.at(now);
        let destination = destination.canonical();
        self.note(What::Failed(destination.clone()));
        for endpoint in self.endpoint_ids() {
            let key = self.key(endpoint, destination.clone());
            self.cache.remove(&key);
            self.refusals.forgive(&key);
        }
    }

    /// Looks at the time.
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

    /// When [`Resolver::tick`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    /// What is to be done next.
    pub fn pop_act(&mut self) -> Option<Act> {
        self.acts.pop_front()
    }

    /// The settings.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// All endpoints, in the order of [`Resolver::host`].
    pub fn endpoints(&self) -> impl Iterator<Item = (EndpointId, &Endpoint)> {
        self.ports.iter().map(|port| (port.id, &port.endpoint))
    }

    /// An endpoint, as long as this host has it.
    #[must_use]
    pub fn endpoint(&self, id: EndpointId) -> Option<&Endpoint> {
        self.port(id).map(|port| &port.endpoint)
    }

    /// The endpoint that owns this address.
    #[must_use]
    pub fn owner(&self, address: &Address) -> Option<EndpointId> {
        let address = address.canonical();
        let mut ports = self.ports.iter();
        ports.find(|port| port.endpoint.has(&address)).map(|port| port.id)
    }

    /// What is counted for clients: of the whole service, or of an endpoint.
    #[must_use]
    pub fn counters(&self, endpoint: Option<EndpointId>) -> Option<Counters> {
        match endpoint {
            None => Some(self.counters),
            Some(id) => self.port(id).map(|port| port.counters),
        }
    }

    /// What is counted for whoever looks after the service.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The last events, oldest first.
    pub fn history(&self) -> impl Iterator<Item = &Event> {
        self.history.iter()
    }

    /// Roughly how many bytes it holds.
    #[must_use]
    pub fn memory(&self) -> usize {
        let search = size_of::<Search>() + 2 * size_of::<(Key, SearchId)>() + 64;
        let question = size_of::<questions::Waiting>() + 96;
        let port = |port: &Port| size_of::<Port>() + 32 * port.endpoint.addresses.len();
        size_of::<Self>()
            + self.cache.memory()
            + self.refusals.memory()
            + self.searches.len() * search
            + self.questions.len() * question
            + self.ports.iter().map(port).sum::<usize>()
            + self.acts.capacity() * size_of::<Act>()
    }

    /// How many questions wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.questions.len()
    }

    /// How many destinations are remembered, and how many are being resolved.
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

    fn note(&mut self, what: What) {
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

    /// Counts for the service and for an endpoint.
    fn count(&mut self, endpoint: Option<EndpointId>, add: impl Fn(&mut Counters)) {
        add(&mut self.counters);
        if let Some(port) = endpoint.and_then(|id| self.port_mut(id)) {
            add(&mut port.counters);
        }
    }

    /// Lets go whoever has a credit now.
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
