//! What can be seen of a resolver from outside: what it knows, what it did, what it counted.

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

/// How far the resolver is with a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A path is told at once.
    Ready,
    /// A path is known, but its owner was not heard lately: he is asked before it is told.
    Unconfirmed,
    /// The address is known, and the route is asked for when somebody wants it.
    AddressOnly,
    /// The place that is known is being asked whether it is still right.
    Confirming,
    /// The owner is being looked for.
    QueryAddress,
    /// The subnet's administration is being asked for the route.
    QueryRoute,
    /// The path is being probed.
    Probing,
    /// It was not found lately, and is not looked for at once.
    Refused(Status),
}

/// What is known of one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// From where; none for what was loaded for all.
    pub endpoint: Option<EndpointId>,
    /// To where.
    pub destination: Address,
    /// How far it is.
    pub state: State,
    /// Where it is.
    pub peer: Option<Peer>,
    /// The path's MTU.
    pub mtu: Option<Mtu>,
    /// Who told.
    pub origin: Option<Origin>,
    /// Time since it was learned.
    pub age: Duration,
    /// Time since its owner was heard; none where there is nobody to ask.
    pub confirmed: Option<Duration>,
    /// Time until it is forgotten; none for never.
    pub expires: Option<Duration>,
    /// Questions that wait for it.
    pub waiting: usize,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// An endpoint came.
    EndpointCame(EndpointId, String),
    /// An endpoint went.
    EndpointWent(EndpointId, String),
    /// An endpoint's addresses were announced.
    Announced(EndpointId, usize),
    /// An address was learned.
    Learned(EndpointId, Address, Peer),
    /// Its owner has restarted, or it belongs to somebody else now.
    Changed(EndpointId, Address, Peer),
    /// Somebody else says that an address of this host is his.
    Conflict(EndpointId, Address, Peer),
    /// It was not found.
    Refused(EndpointId, Address, Status),
    /// A path to it was said to be of no use.
    Failed(Address),
    /// A group could not be joined.
    NotJoined(EndpointId, crate::address::Gid),
    /// It was forgotten to make room.
    Evicted(EndpointId, Address),
}

/// An event of the [history](super::Resolver::history).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Time,
    /// What.
    pub what: What,
}

/// The last events.
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

    pub(super) fn push(&mut self, at: Time, what: What) {
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

/// What was counted beside [`Counters`](crate::ask::Counters), since the resolver was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Messages to groups.
    pub multicasts: u64,
    /// Of these, announcements.
    pub announcements: u64,
    /// Questions to single hosts, to confirm what is known.
    pub confirmations: u64,
    /// Of these, those that nobody waited for.
    pub background: u64,
    /// Answers to others.
    pub answers: u64,
    /// Questions to the subnet's administration.
    pub queries: u64,
    /// Probes.
    pub probes: u64,
    /// Messages that were heard.
    pub heard: u64,
    /// Messages that were not understood, by reason.
    pub malformed: BTreeMap<Malformed, u64>,
    /// Messages of those who did not show that they have the key.
    pub untrusted: u64,
    /// Answers to no question that was open.
    pub unasked: u64,
    /// Answers of somebody, or about something, that was not asked.
    pub mismatched: u64,
    /// Questions that were for others.
    pub not_ours: u64,
    /// Answers to others that found no room to wait.
    pub unanswered: u64,
    /// Addresses whose owner has restarted, or is another one.
    pub changed: u64,
    /// Questions that found it remembered that nobody had answered.
    pub refused_hits: u64,
    /// Destinations that were forgotten to make room.
    pub evicted: u64,
    /// Questions for which there was no room.
    pub no_room: u64,
}

impl Resolver {
    /// All that is known, by endpoint and destination: what was loaded, what was learned, what is being looked for, and what
    /// was not found. Its size is bounded as those tables are.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Known> {
        let loaded = self.table.addresses().map(|(address, gid)| {
            let peer = Some(Peer { gid, lid: 0, qpn: 0 });
            let state = State::AddressOnly;
            Known {
                peer,
                origin: Some(Origin::Static),
                ..Known::new(None, address, state)
            }
        });
        let cached = self.cache.iter().map(|(key, entry)| self.seen(key, entry));
        let unknown = |key: &&Key| self.cache.get(key).is_none();
        let searched = self.searches.values().map(|search| &search.key).filter(unknown);
        let searched = searched.map(|key| Known {
            waiting: self.waiting_for(key),
            ..Known::new(
                Some(key.endpoint),
                &key.address,
                self.state(key).unwrap_or(State::QueryAddress),
            )
        });
        let refused = self
            .refusals
            .iter()
            .filter(|(_, refusal)| refusal.until > self.now);
        let refused = refused.map(|(key, refusal)| Known {
            age: self.now.since(refusal.since),
            expires: Some(refusal.until.since(self.now)),
            ..Known::new(Some(key.endpoint), &key.address, State::Refused(refusal.status))
        });
        let mut all: Vec<Known> = loaded.chain(cached).chain(searched).chain(refused).collect();
        all.sort_by_cached_key(|known| {
            (
                known.endpoint,
                known.destination.kind(),
                known.destination.to_string(),
            )
        });
        all
    }

    fn seen(&self, key: &Key, entry: &Entry) -> Known {
        let now = self.now;
        let still = if !entry.has_route(now) {
            State::AddressOnly
        } else if entry.is_confirmed(now, self.options.confirm) {
            State::Ready
        } else {
            State::Unconfirmed
        };
        let never = |time: Time| time == Time::NEVER;
        let until = entry.expires();
        Known {
            peer: Some(entry.peer),
            mtu: entry.route.within(entry.tried).mtu(),
            origin: Some(entry.origin),
            age: now.since(entry.learned),
            confirmed: (!never(entry.confirmed)).then(|| now.since(entry.confirmed)),
            expires: (!never(until)).then(|| until.since(now)),
            waiting: self.waiting_for(key),
            ..Known::new(Some(key.endpoint), &key.address, self.state(key).unwrap_or(still))
        }
    }

    /// What is being done about a destination.
    fn state(&self, key: &Key) -> Option<State> {
        let search = self.searches.get(self.by_key.get(key)?)?;
        Some(match search.stage {
            Stage::Confirm { .. } => State::Confirming,
            Stage::Address { .. } => State::QueryAddress,
            Stage::Route { .. } => State::QueryRoute,
            Stage::Probe => State::Probing,
        })
    }

    fn waiting_for(&self, key: &Key) -> usize {
        let search = self.by_key.get(key).and_then(|id| self.searches.get(id));
        search.map_or(0, |search| search.tickets.len())
    }
}

impl Known {
    fn new(endpoint: Option<EndpointId>, destination: &Address, state: State) -> Self {
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
