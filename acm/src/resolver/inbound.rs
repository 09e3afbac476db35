//! Messages from other services.
//!
//! A query teaches where its sender is, unless authentication is required; the owner of the address answers
//! it. An answer counts only if its query is open, and it arrives at the endpoint that sent the query, about
//! the address that was queried, from the peer that was queried.
//!
//! reference: acm, section 10 (exchange).

use std::time::Duration;

use doorbell_fabric::time::Time;

use super::Resolver;
use super::action::{Action, EndpointId, Peer, Sender};
use super::credits::Priority;
use super::entry::{Key, Origin};
use super::lru::Rank;
use super::ports::Port;
use super::search::Stage;
use super::stats::EventKind;
use crate::address::Address;
use crate::endpoint::Link;
use crate::mad::{Direction, Groups, MAD, Resolve};
use crate::status::Status;

/// When an answer is taken to have been sent, if no [`Resolver::sent`] reports it.
const GONE: Duration = Duration::from_millis(5);

impl Resolver {
    pub(super) fn on_message(&mut self, endpoint: EndpointId, from: Sender, mad: &[u8]) {
        self.stats.received += 1;
        if self.options.authenticated && !from.trusted {
            self.stats.untrusted += 1;
            return;
        }
        let said = match Resolve::read(mad) {
            Ok(said) => said,
            Err(why) => {
                *self.stats.malformed.entry(why).or_default() += 1;
                return;
            }
        };
        if self.port(endpoint).is_none() {
            return;
        }
        match said.direction {
            Direction::Question => self.on_query(endpoint, from.peer(), said),
            Direction::Answer { status } => self.on_answer(endpoint, from.peer(), status, &said),
        }
    }

    fn on_query(&mut self, endpoint: EndpointId, from: Peer, said: Resolve) {
        let (Some(destination), Some(source)) = (said.destination, said.source) else {
            return;
        };
        self.on_claim(endpoint, source.clone(), from, &said.groups);
        let Some(port) = self.port(endpoint) else { return };
        if !port.endpoint.has(&destination) {
            self.stats.not_ours += 1;
            return;
        }
        if source == destination {
            // An announcement: its sender expects no answer.
            return;
        }
        let common = port.groups.common(&port.endpoint, &said.groups);
        let status = match common {
            Some(_) => 0,
            None => u16::from(Status::DestinationAddress.code()) << 8,
        };
        let answer = Resolve {
            direction: Direction::Answer { status },
            transaction: said.transaction,
            destination: Some(source),
            source: Some(destination),
            groups: Groups::new(common.map(|(gid, _)| gid)),
        };
        let answer = (from, Box::new(answer.bytes()));
        let room = self
            .port_mut(endpoint)
            .is_some_and(|port| port.send.want(answer, Priority::First));
        self.stats.unanswered += u64::from(!room);
    }

    /// Handles a claim that an address is at `from`.
    fn on_claim(&mut self, endpoint: EndpointId, source: Address, from: Peer, groups: &Groups) {
        if self.owner(&source).is_some() {
            if self.owner(&Address::Gid(from.gid)).is_none() {
                self.note(EventKind::Conflict(endpoint, source, from));
            }
            return;
        }
        self.on_new_lid(endpoint, from);
        let near = |ip| self.port(endpoint).is_some_and(|port| port.endpoint.is_near(ip));
        if !self.leads_to(endpoint, from) || self.is_ip(endpoint) && !source.ip().is_none_or(near) {
            return;
        }
        let key = self.key(endpoint, source);
        let search = self.by_key.get(&key).copied();
        if self.options.authenticated {
            return self.suspect(&key, from, search);
        }
        let like = self.like(endpoint, groups, false);
        if !self.uses_sa(endpoint) && like.is_none() {
            return;
        }
        let looked_for = search.filter(|id| {
            let search = self.searches.get(id);
            search.is_some_and(|search| matches!(search.stage, Stage::Address { .. } | Stage::Confirm { .. }))
        });
        match looked_for {
            Some(id) => self.address_found(id, from, like),
            None => self.learn(key, from, like, Rank::Oldest),
        }
    }

    /// Whether an endpoint uses IP, so that the GIDs of its link are addresses.
    fn is_ip(&self, endpoint: EndpointId) -> bool {
        let port = self.port(endpoint);
        port.is_some_and(|port| port.endpoint.link != Link::InfiniBand)
    }

    /// Whether a path may lead to the sender. A host without addresses of a family receives from neighbours
    /// with GIDs of that family, which need not belong to its link; and a path must begin and end in one
    /// family.
    fn leads_to(&self, endpoint: EndpointId, from: Peer) -> bool {
        let near = |port: &Port| port.endpoint.is_near(from.gid.ip());
        !self.is_ip(endpoint) || self.port(endpoint).is_some_and(near)
    }

    /// Queries the subnet administrator again when a port has another LID than it answered.
    fn on_new_lid(&mut self, endpoint: EndpointId, from: Peer) {
        let key = self.key(endpoint, Address::Gid(from.gid));
        let entry = self.cache.get(&key);
        if entry.is_some_and(|entry| entry.origin == Origin::Sa && entry.peer.lid != from.lid) {
            self.cache.remove(&key);
        }
    }

    /// Marks an entry for revalidation: the claim may be an old message played back.
    fn suspect(&mut self, key: &Key, from: Peer, search: Option<super::search::SearchId>) {
        self.negative_cache.remove(key);
        if let Some(entry) = self.cache.get_mut(key)
            && entry.peer != from
            && entry.confirmed != Time::NEVER
        {
            entry.suspect = true;
        }
        if let Some(id) = search {
            self.query_peer(id, from);
        }
    }

    fn on_answer(&mut self, endpoint: EndpointId, from: Peer, status: u16, said: &Resolve) {
        let found = self.by_transaction.get(&said.transaction).copied();
        let Some((id, search)) = found.and_then(|id| Some((id, self.searches.get(&id)?))) else {
            self.stats.unasked += 1;
            return;
        };
        let about = match (&said.source, &said.destination) {
            (Some(source), _) if *source == search.key.address => true,
            // The query's own addresses, returned as they were.
            (Some(_), Some(destination)) => *destination == search.key.address,
            (Some(_), None) => false,
            (None, _) => true,
        };
        let who = match search.stage {
            // Without InfiniBand a host may send from any of its addresses.
            Stage::Confirm { .. } if !self.is_ip(endpoint) => {
                search.peer.gid == from.gid && search.peer.lid == from.lid
            }
            _ => self.leads_to(endpoint, from),
        };
        if search.key.endpoint != endpoint || !about || !who {
            self.stats.mismatched += 1;
            return;
        }
        if status != 0 {
            return self.fail(id, Status::DestinationAddress);
        }
        let like = self.like(endpoint, &said.groups, true);
        self.address_found(id, from, like);
    }

    pub(super) fn send_answer(&mut self, endpoint: EndpointId, to: Peer, mad: Box<[u8; MAD]>) {
        let (number, until) = (self.number(), self.now + GONE);
        if let Some(port) = self.port_mut(endpoint) {
            port.send.lend(number, until);
        }
        self.stats.answers += 1;
        self.actions.push_back(Action::Unicast {
            endpoint,
            to,
            mad,
            answer: true,
        });
    }
}
