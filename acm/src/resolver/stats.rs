//! What can be observed of a resolver: its entries, its events and its counters.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use doorbell_fabric::time::Time;

use super::Resolver;
use super::action::{EndpointId, Peer};
use super::entry::{Entry, Key, Origin};
use super::search::Stage;
use crate::address::Address;
use crate::mad::Malformed;
use crate::path::Mtu;
use crate::status::Status;

/// The state of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryState {
    /// The path answers queries at once.
    Ready,
    /// A path is known, but has to be confirmed by its owner before it is used.
    Unconfirmed,
    /// The address is known; the route is looked up when a query needs it.
    AddressOnly,
    /// The owner is being queried for confirmation.
    Confirming,
    /// The owner is being looked up.
    QueryAddress,
    /// The subnet administrator is being queried for the route.
    QueryRoute,
    /// The path is being probed.
    Probing,
    /// The last lookup failed; the next one waits.
    Refused(Status),
}

/// What is known about one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryInfo {
    /// The endpoint it is reached from; `None` for preloaded entries, which hold for all.
    pub endpoint: Option<EndpointId>,
    /// The destination's address.
    pub destination: Address,
    /// The state of the destination.
    pub state: EntryState,
    /// The address of its service.
    pub peer: Option<Peer>,
    /// The MTU of the path.
    pub mtu: Option<Mtu>,
    /// Where the path comes from.
    pub origin: Option<Origin>,
    /// Time since it was learned.
    pub age: Duration,
    /// Time since the last message of its owner; `None` if the entry cannot be confirmed.
    pub confirmed: Option<Duration>,
    /// Time until it expires; `None` for never.
    pub expires: Option<Duration>,
    /// Number of queries that wait for it.
    pub waiting: usize,
}

/// The kind of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// An endpoint has appeared.
    EndpointCame(EndpointId, String),
    /// An endpoint has disappeared.
    EndpointWent(EndpointId, String),
    /// An endpoint's addresses were announced.
    Announced(EndpointId, usize),
    /// An address was learned.
    Learned(EndpointId, Address, Peer),
    /// The owner of an address has restarted, or the address has another owner.
    Changed(EndpointId, Address, Peer),
    /// Another host claims an address of this host.
    Conflict(EndpointId, Address, Peer),
    /// A lookup has failed.
    Refused(EndpointId, Address, Status),
    /// A path was reported as not working.
    Failed(Address),
    /// A group could not be joined.
    NotJoined(EndpointId, crate::address::Gid),
    /// An entry was evicted to make room.
    Evicted(EndpointId, Address),
}

/// An event of the [history](super::Resolver::history).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it happened.
    pub at: Time,
    /// The event that happened.
    pub what: EventKind,
}

/// The last events, in a bounded ring.
#[derive(Debug)]
pub(super) struct History {
    events: VecDeque<Event>,
    most: usize,
}

impl History {
    pub(super) fn new(most: usize) -> Self {
        Self {
            events: VecDeque::new(),
            most,
        }
    }

    pub(super) fn push(&mut self, at: Time, what: EventKind) {
        if self.events.len() >= self.most {
            self.events.pop_front();
        }
        if self.most > 0 {
            self.events.push_back(Event { at, what });
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }
}

/// Counters beside [`Counters`](crate::query::Counters), since the resolver was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolverStats {
    /// Messages sent to groups.
    pub multicasts: u64,
    /// Announcements among those.
    pub announcements: u64,
    /// Unicast queries that confirm an entry.
    pub confirmations: u64,
    /// Confirmations in the background, for which no query waited.
    pub background: u64,
    /// Answers sent to other services.
    pub answers: u64,
    /// Queries sent to the subnet administrator.
    pub queries: u64,
    /// Probes that were started.
    pub probes: u64,
    /// Messages received from other services.
    pub received: u64,
    /// Malformed messages received, by reason.
    pub malformed: BTreeMap<Malformed, u64>,
    /// Messages from senders without the key.
    pub untrusted: u64,
    /// Answers to no open query.
    pub unasked: u64,
    /// Answers from a peer, or about an address, that was not queried.
    pub mismatched: u64,
    /// Queries received for other hosts' addresses.
    pub not_ours: u64,
    /// Answers dropped because the queue was full.
    pub unanswered: u64,
    /// Addresses whose owner has restarted or changed.
    pub changed: u64,
    /// Queries answered from the negative cache.
    pub refused_hits: u64,
    /// Cache entries evicted to make room.
    pub evicted: u64,
    /// Queries refused because the tables were full.
    pub no_room: u64,
}

impl Resolver {
    /// Returns all entries by endpoint and destination: preloaded, learned, being looked up, and failed.
    /// Their number is bounded as those tables are.
    #[must_use]
    pub fn snapshot(&self) -> Vec<EntryInfo> {
        let loaded = self.table.addresses().map(|(address, gid)| {
            let peer = Some(Peer { gid, lid: 0, qpn: 0 });
            let state = EntryState::AddressOnly;
            EntryInfo {
                peer,
                origin: Some(Origin::Static),
                ..EntryInfo::new(None, address, state)
            }
        });
        let cached = self.cache.iter().map(|(key, entry)| self.entry_info(key, entry));
        let unknown = |key: &&Key| self.cache.get(key).is_none();
        let searched = self.searches.values().map(|search| &search.key).filter(unknown);
        let searched = searched.map(|key| EntryInfo {
            waiting: self.waiting_for(key),
            ..EntryInfo::new(
                Some(key.endpoint),
                &key.address,
                self.state(key).unwrap_or(EntryState::QueryAddress),
            )
        });
        let refused = self
            .negative_cache
            .iter()
            .filter(|(_, refusal)| refusal.until > self.now);
        let refused = refused.map(|(key, refusal)| EntryInfo {
            age: self.now.since(refusal.since),
            expires: Some(refusal.until.since(self.now)),
            ..EntryInfo::new(
                Some(key.endpoint),
                &key.address,
                EntryState::Refused(refusal.status),
            )
        });
        let mut all: Vec<EntryInfo> = loaded.chain(cached).chain(searched).chain(refused).collect();
        all.sort_by_cached_key(|known| {
            (
                known.endpoint,
                known.destination.kind(),
                known.destination.to_string(),
            )
        });
        all
    }

    fn entry_info(&self, key: &Key, entry: &Entry) -> EntryInfo {
        let now = self.now;
        let still = if !entry.has_route(now) {
            EntryState::AddressOnly
        } else if entry.is_confirmed(now, self.options.confirm) {
            EntryState::Ready
        } else {
            EntryState::Unconfirmed
        };
        let never = |time: Time| time == Time::NEVER;
        let until = entry.expires();
        EntryInfo {
            peer: Some(entry.peer),
            mtu: entry.route.within(entry.tried).mtu(),
            origin: Some(entry.origin),
            age: now.since(entry.learned),
            confirmed: (!never(entry.confirmed)).then(|| now.since(entry.confirmed)),
            expires: (!never(until)).then(|| until.since(now)),
            waiting: self.waiting_for(key),
            ..EntryInfo::new(Some(key.endpoint), &key.address, self.state(key).unwrap_or(still))
        }
    }

    /// Returns the stage of a search for a destination.
    fn state(&self, key: &Key) -> Option<EntryState> {
        let search = self.searches.get(self.by_key.get(key)?)?;
        Some(match search.stage {
            Stage::Confirm { .. } => EntryState::Confirming,
            Stage::Address { .. } => EntryState::QueryAddress,
            Stage::Route { .. } => EntryState::QueryRoute,
            Stage::Probe => EntryState::Probing,
        })
    }

    fn waiting_for(&self, key: &Key) -> usize {
        let search = self.by_key.get(key).and_then(|id| self.searches.get(id));
        search.map_or(0, |search| search.tickets.len())
    }
}

impl EntryInfo {
    fn new(endpoint: Option<EndpointId>, destination: &Address, state: EntryState) -> Self {
        Self {
            endpoint,
            destination: destination.clone(),
            state,
            peer: None,
            mtu: None,
            origin: None,
            age: Duration::ZERO,
            confirmed: None,
            expires: None,
            waiting: 0,
        }
    }
}
