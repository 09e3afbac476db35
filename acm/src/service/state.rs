//! The state: the resolver, the clients that wait for it, the carrier, and what was preloaded.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use doorbell_fabric::clock::Clock;
use doorbell_fabric::time::Time;
use tokio::sync::Notify;

use super::ServiceError;
use super::config::ServiceConfig;
use super::config_check::check;
use super::log_dedup::Log;
use super::outbound::{self, Again};
use super::peers::{PeerAddr, Peers};
use crate::address::{Address, Gid, is_of_a_link};
use crate::carrier::{self, Carrier, Event, Key, UdCarrier, UdpCarrier};
use crate::config::{CarrierKind, Options, Preload, Warnings};
use crate::endpoint::{Endpoint, Link};
use crate::host::{HostInventory, source_for};
use crate::path::Path;
use crate::query::{Answer, Found, Question};
use crate::register::registered;
use crate::resolver::{Action, EndpointId, ProbeId, Resolver, Sender, Ticket};
use crate::sa::{Administration, Line, NoPath, QueryId, SubnetEvent, Subnets};
use crate::serve::{Reply, ServerCounters};
use crate::status::Status;

/// Maximum number of endpoints by which one name is looked up.
const ENDPOINTS: usize = 16;
/// Values of `log_level` above errors: changes, and each query.
const CHANGES: u8 = 1;
const QUESTIONS: u8 = 2;
/// About a second: the default of subnet managers.
const SUBNET_TIMEOUT: u8 = 18;
/// Maximum turns of the carrier before clients are served again.
const TURNS: usize = 16;

/// A query that the resolver is working on.
struct Asked {
    question: Question,
    chosen: Option<IpAddr>,
    /// Why no source could be chosen.
    unchosen: Option<Status>,
    waiter: Waiter,
}

/// The clients that wait for an answer.
enum Waiter {
    /// A client with one query.
    One(Reply),
    /// A client whose query went out by several endpoints.
    Several(Rc<Party>),
}

/// A client that gave no source for a name: all endpoints look it up, and the first result answers.
struct Party {
    reply: RefCell<Option<Reply>>,
    /// Lookups that have not ended yet.
    open: Cell<usize>,
}

impl Waiter {
    fn is_gone(&self) -> bool {
        match self {
            Self::One(reply) => reply.is_gone(),
            Self::Several(party) => party.reply.borrow().as_ref().is_none_or(Reply::is_gone),
        }
    }

    /// Sends the answer. For a party, the first success is sent, else the last failure.
    fn reply(self, answer: &Answer, source: Option<Address>) {
        match self {
            Self::One(reply) => reply.send(answer),
            Self::Several(party) => {
                party.open.set(party.open.get() - 1);
                if answer.is_err() && party.open.get() > 0 {
                    return;
                }
                let Some(reply) = party.reply.borrow_mut().take() else {
                    return;
                };
                match answer {
                    Ok(Found::Path { path, .. }) => reply.send(&Ok(Found::Path {
                        path: path.clone(),
                        source,
                    })),
                    other => reply.send(other),
                }
            }
        }
    }
}

/// The state of the actor.
pub(super) struct State {
    clock: Clock,
    pub(super) config: ServiceConfig,
    /// The options at start, which some settings keep.
    began: Options,
    key: Option<Key>,
    pub(super) resolver: Resolver,
    preload: Preload,
    /// The administrators of this host's InfiniBand subnets.
    pub(super) subnets: Subnets<Box<dyn Line>>,
    /// The interfaces of this host.
    here: HostInventory,
    /// Configuration that does not fit this host.
    misfits: Warnings,
    log: Log,
    pub(super) carrier: AsyncCarrier,
    pub(super) peers: Peers,
    asked: HashMap<Ticket, Asked>,
    tickets: Ticket,
    pub(super) probes: HashMap<carrier::ProbeId, ProbeId>,
    /// The groups that each endpoint is to be in.
    pub(super) groups: BTreeMap<EndpointId, BTreeSet<Gid>>,
    /// Why the carrier does not serve an endpoint.
    pub(super) unserved: BTreeMap<EndpointId, String>,
    /// The endpoints that were reported as not served, by the names of their devices and the reasons.
    reported: BTreeMap<EndpointId, (String, String)>,
    /// When the endpoints that are not served are retried.
    pub(super) again: Again,
    /// The last failure of the carrier.
    pub(super) trouble: Option<String>,
    /// Notified when the interfaces of this host are to be looked at: ports of InfiniBand change without a
    /// notification of the kernel.
    look: Rc<Notify>,
    served: Arc<ServerCounters>,
}

/// The carrier, registered with tokio.
pub(super) type AsyncCarrier = tokio::io::unix::AsyncFd<AnyCarrier>;

/// The carrier that is configured.
pub(super) struct AnyCarrier(Box<dyn Carrier>);

impl Deref for AnyCarrier {
    type Target = dyn Carrier;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl DerefMut for AnyCarrier {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.0
    }
}

impl AsRawFd for AnyCarrier {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Returns 64 unpredictable bits. The kernel delivered random numbers when the carrier was made, and once it
/// has, it always does (getrandom(2)).
fn random() -> u64 {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes),
        Err(_) => 0,
    }
}

fn resolver(config: &ServiceConfig, key: Option<&Key>, now: Time) -> Resolver {
    Resolver::new(config.resolver(key.is_some()), now, Box::new(random))
}

fn subnets(config: &ServiceConfig) -> Subnets<Box<dyn Line>> {
    let options = config.resolver(false);
    Subnets::of_system(options.attempt(SUBNET_TIMEOUT), options.retries)
}

fn carrier(config: &ServiceConfig, key: Option<&Key>) -> Result<AsyncCarrier, ServiceError> {
    let settings = config.carrier(key.cloned());
    let carrier: Box<dyn Carrier> = match config.options.doorbell_carrier {
        CarrierKind::Udp => Box::new(UdpCarrier::new(settings)?),
        CarrierKind::Ud => {
            let depth = usize::from(config.options.recv_depth.get());
            Box::new(UdCarrier::new(settings, depth)?)
        }
    };
    registered(AnyCarrier(carrier)).map_err(ServiceError::Runtime)
}

impl State {
    pub(super) fn new(
        config: ServiceConfig,
        key: Option<Key>,
        here: HostInventory,
        served: Arc<ServerCounters>,
        log: Log,
    ) -> Result<Self, ServiceError> {
        let clock = Clock::system();
        let mut state = Self {
            resolver: resolver(&config, key.as_ref(), clock.now()),
            carrier: carrier(&config, key.as_ref())?,
            subnets: subnets(&config),
            clock,
            began: config.options.clone(),
            config,
            key,
            preload: Preload::default(),
            here: HostInventory::default(),
            misfits: Warnings::default(),
            log,
            peers: Peers::default(),
            asked: HashMap::new(),
            tickets: 0,
            probes: HashMap::new(),
            groups: BTreeMap::new(),
            unserved: BTreeMap::new(),
            reported: BTreeMap::new(),
            again: Again::default(),
            trouble: None,
            look: Rc::default(),
            served,
        };
        state.host_is(here);
        state.load();
        state.warn(false);
        state.report_unserved();
        Ok(state)
    }

    /// Logs which endpoints that are to be served are not, with the reason, and which are served again; each
    /// once.
    fn report_unserved(&mut self) {
        let unserved = self.unserved.iter().filter_map(|(id, why)| {
            let own = self.resolver.endpoint(*id)?;
            let is_wanted = self.is_to_be_served(own);
            is_wanted.then(|| (*id, (own.device.clone(), why.clone())))
        });
        let unserved: BTreeMap<_, _> = unserved.collect();
        if unserved == self.reported {
            return;
        }
        for (id, found) in &unserved {
            if self.reported.get(id) != Some(found) {
                self.log.log(&format!("{} is not served: {}", found.0, found.1));
            }
        }
        let mut reported = unserved;
        for (id, was) in std::mem::take(&mut self.reported) {
            let own = self.resolver.endpoint(id).filter(|own| own.device == was.0);
            if reported.contains_key(&id) || !own.is_some_and(|own| self.is_to_be_served(own)) {
                continue;
            }
            if self.is_in_its_groups(id) {
                self.log.log(&format!("{} is served now", was.0));
            } else {
                reported.insert(id, was);
            }
        }
        self.reported = reported;
    }

    /// Whether the carrier serves an endpoint and receives all groups that it is to be in.
    fn is_in_its_groups(&self, id: EndpointId) -> bool {
        let (carrier, of_carrier) = (self.carrier.get_ref(), carrier::EndpointId(id.0));
        let mut groups = self.groups.get(&id).into_iter().flatten();
        carrier.served().contains(&of_carrier) && groups.all(|group| carrier.is_in(of_carrier, *group))
    }

    /// Whether an endpoint is beyond the loopback, and the configuration has it be served.
    fn is_to_be_served(&self, own: &Endpoint) -> bool {
        own.link != Link::Loopback && self.config.options.doorbell_interfaces.serve(own)
    }

    /// Fails if this host has endpoints that are to be served, and the system or the configuration lets none
    /// of them be.
    pub(super) fn must_serve_any(&self) -> Result<(), ServiceError> {
        let each = self.resolver.endpoints();
        let all = each.filter(|(_, own)| self.is_to_be_served(own)).count();
        if all == 0 || all > self.reported.len() {
            return Ok(());
        }
        let Some((device, why)) = self.reported.values().next() else {
            return Ok(());
        };
        Err(ServiceError::NoneServed {
            device: device.clone(),
            why: why.clone(),
            others: all - 1,
        })
    }

    pub(super) fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    pub(super) fn served(&self) -> &ServerCounters {
        &self.served
    }

    pub(super) fn config(&self) -> &ServiceConfig {
        &self.config
    }

    pub(super) fn carried(&self) -> carrier::Counters {
        self.carrier.get_ref().counters()
    }

    /// Returns the kind of the carrier.
    pub(super) fn carrier_kind(&self) -> &'static str {
        self.carrier.get_ref().kind()
    }

    /// Returns the port and the queue pair that an endpoint is served by.
    pub(super) fn queue_pair(&self, id: EndpointId) -> Option<String> {
        self.carrier.get_ref().queue_pair(carrier::EndpointId(id.0))
    }

    pub(super) fn unserved(&self) -> &BTreeMap<EndpointId, String> {
        &self.unserved
    }

    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Returns what is notified when the interfaces of this host are to be looked at.
    pub(super) fn look(&self) -> Rc<Notify> {
        Rc::clone(&self.look)
    }

    /// Returns all warnings about files and the command line.
    pub(super) fn warnings(&self) -> Vec<String> {
        super::lines(&[&self.config.warnings, &self.misfits])
    }

    fn warn(&mut self, again: bool) {
        let warnings = self.warnings();
        self.log.warn(warnings, again);
    }

    /// Logs a line if `log_level` enables it.
    fn log(&self, level: u8, line: impl FnOnce() -> String) {
        if level <= self.config.options.log_level {
            self.log.log(&line());
        }
    }

    /// Records a failure, and logs it once.
    pub(super) fn report_error(&mut self, what: String) {
        self.log.trouble(&what);
        self.trouble = Some(what);
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns what tokio waits for.
    pub(super) fn carrier(&mut self) -> &mut AsyncCarrier {
        &mut self.carrier
    }

    /// Returns when something is due although nothing has arrived.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let carrier = self.carrier.get_ref().next_deadline();
        let carrier = (carrier != Time::NEVER).then_some(carrier);
        let subnets = self.subnets.next_deadline();
        let subnets = (subnets != Time::NEVER).then_some(subnets);
        [self.resolver.next_deadline(), carrier, subnets, self.again.at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Handles a client's query.
    pub(super) fn query(&mut self, question: Question, reply: Reply) {
        let chosen = match &question {
            Question::Resolve {
                source: None,
                destination,
                ..
            } => destination.ip().map(|ip| self.source_for(ip)),
            _ => None,
        };
        let unchosen = chosen.and_then(Result::err);
        let chosen = chosen.and_then(Result::ok);
        match self.by_all_endpoints(&question) {
            Some(questions) if questions.is_empty() => reply.send(&Err(Status::NotConnected)),
            Some(questions) => {
                let party = Rc::new(Party {
                    reply: RefCell::new(Some(reply)),
                    open: Cell::new(questions.len()),
                });
                for question in questions {
                    self.take(Asked {
                        question,
                        chosen: None,
                        unchosen: None,
                        waiter: Waiter::Several(Rc::clone(&party)),
                    });
                }
            }
            None => self.take(Asked {
                question,
                chosen,
                unchosen,
                waiter: Waiter::One(reply),
            }),
        }
        self.act();
    }

    /// Chooses the source for a destination without one. A link-local address does not name its link: where
    /// several endpoints qualify, the caller has to name the source.
    fn source_for(&self, destination: IpAddr) -> Result<IpAddr, Status> {
        if !is_of_a_link(destination) {
            return source_for(destination);
        }
        if self.resolver.owner(&destination.into()).is_some() {
            return Ok(destination);
        }
        let endpoints = self.resolver.endpoints();
        let served =
            endpoints.filter(|(id, end)| end.link != Link::Loopback && !self.unserved.contains_key(id));
        let mut sources = served.filter_map(|(_, end)| {
            let mut own = end.addresses.iter().filter_map(Address::ip);
            own.find(|ip| is_of_a_link(*ip))
        });
        match (sources.next(), sources.next()) {
            (Some(source), None) => Ok(source),
            (Some(_), Some(_)) => Err(Status::SourceAddress),
            (None, _) => Err(Status::NotConnected),
        }
    }

    /// Returns the same query once per possible source, where it has none and no route selects one. The
    /// original refuses such a query (reference: acm, section 5), and gets one with a source.
    fn by_all_endpoints(&self, question: &Question) -> Option<Vec<Question>> {
        let Question::Resolve {
            source: None,
            destination,
            no_delay,
        } = question
        else {
            return None;
        };
        if destination.ip().is_some() {
            return None;
        }
        let own = self.resolver.owner(destination);
        let fits = |id: EndpointId| own.map_or_else(|| !self.unserved.contains_key(&id), |own| own == id);
        let each = self.resolver.endpoints().filter(|(id, _)| fits(*id));
        let beyond = each.filter(|(id, endpoint)| own == Some(*id) || endpoint.link != Link::Loopback);
        let with = |source: &Address| Question::Resolve {
            source: Some(source.clone()),
            destination: destination.clone(),
            no_delay: *no_delay,
        };
        let sources = beyond.filter_map(|(_, endpoint)| {
            let mut addresses = endpoint.addresses.iter();
            addresses.find(|address| address.ip().is_some())
        });
        Some(sources.map(with).take(ENDPOINTS).collect())
    }

    fn take(&mut self, asked: Asked) {
        self.tickets += 1;
        let now = self.now();
        self.resolver
            .query(now, self.tickets, &asked.question, asked.chosen);
        self.asked.insert(self.tickets, asked);
    }

    /// Records that the path to this address does not work.
    pub(super) fn failed(&mut self, address: &Address) {
        let now = self.now();
        self.resolver.failed(now, address);
        self.act();
    }

    /// Drops the queries of clients that are gone.
    pub(super) fn sweep(&mut self) {
        let gone = self.asked.iter().filter(|(_, asked)| asked.waiter.is_gone());
        let gone: Vec<Ticket> = gone.map(|(ticket, _)| *ticket).collect();
        for ticket in gone {
            self.resolver.forget(ticket);
            self.asked.remove(&ticket);
        }
    }

    /// Whether a client is waiting.
    pub(super) fn is_in_use(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Takes over this host's interfaces.
    pub(super) fn host(&mut self, here: HostInventory) {
        self.log.forget_troubles();
        self.host_is(here);
        self.warn(false);
        self.log(CHANGES, || {
            let devices = self.here.endpoints.iter().map(|end| end.device.as_str());
            format!(
                "interfaces of this host: {}",
                devices.collect::<Vec<_>>().join(" ")
            )
        });
    }

    fn host_is(&mut self, here: HostInventory) {
        self.misfits = check(&self.config, &here);
        let now = self.now();
        self.resolver.host(now, here.endpoints.clone());
        self.here = here;
        self.serve_endpoints();
        self.act();
    }

    /// Loads the preload files.
    pub(super) fn load(&mut self) {
        let (preload, table) = self.config.preload(&self.here.endpoints);
        self.preload = preload;
        let now = self.now();
        self.resolver.preload(now, table);
        self.act();
    }

    /// Takes over a changed configuration. If it concerns the resolver, a new one replaces it and gets the
    /// open queries; the old cache is dropped. If the system refuses a new carrier, everything stays as it
    /// was.
    pub(super) fn configure(&mut self, mut config: ServiceConfig, changed: bool) {
        let same = self.config.options == config.options;
        config.warn_of_lasting(&self.began);
        if !same {
            match carrier(&config, self.key.as_ref()) {
                Ok(carrier) => self.carrier = carrier,
                Err(error) => {
                    return self.report_error(format!("the new configuration is not used: {error}"));
                }
            }
        }
        self.config = config;
        if !same {
            let now = self.now();
            self.resolver = resolver(&self.config, self.key.as_ref(), now);
            self.subnets.leave_all(now);
            self.subnets = subnets(&self.config);
            self.probes.clear();
            self.groups.clear();
            self.peers = Peers::default();
            self.host_is(self.here.clone());
        }
        self.misfits = check(&self.config, &self.here);
        self.load();
        self.warn(changed);
        if changed {
            self.log.forget_troubles();
            self.log(CHANGES, || "configuration reloaded".to_owned());
        }
        if !same {
            let open: Vec<Asked> = std::mem::take(&mut self.asked).into_values().collect();
            open.into_iter().for_each(|asked| self.take(asked));
            self.act();
        }
    }

    /// Handles what has arrived and what is due; returns whether there may be more.
    pub(super) fn turn(&mut self) -> bool {
        let mut more = true;
        for _ in 0..TURNS {
            let now = self.now();
            let done = self.carrier.get_mut().turn(now);
            while let Some(event) = self.carrier.get_mut().event() {
                self.happened(event);
            }
            if done == 0 {
                more = false;
                break;
            }
        }
        self.turn_subnets(self.now());
        if self.again.is_due(self.now()) {
            self.serve_endpoints();
        }
        // To serve endpoints may have taken long.
        self.resolver.tick(self.now());
        self.act();
        self.report_unserved();
        more
    }

    fn happened(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Mad {
                endpoint, from, mad, ..
            } => {
                let endpoint = EndpointId(endpoint.0);
                if let Some(at) = from.at {
                    let (qpn, by) = (from.qpn, from.by);
                    self.peers.record(endpoint, from.gid, PeerAddr { qpn, at, by });
                }
                let sender = Sender {
                    gid: from.gid,
                    lid: from.lid,
                    qpn: from.qpn,
                    // The carrier drops messages without the tag of the key.
                    trusted: self.key.is_some(),
                };
                self.resolver.receive(now, endpoint, sender, &*mad);
            }
            Event::Probed { probe, result } => {
                if let Some(id) = self.probes.remove(&probe) {
                    self.resolver.probed(now, id, outbound::probed(&result));
                }
            }
            Event::Renew { endpoint } => {
                // Its LID may be another one. If so, the endpoint is served as it is then, and joins again.
                self.look.notify_one();
                self.join_again(EndpointId(endpoint.0));
            }
            Event::Failed { endpoint, error } => {
                self.carrier.get_mut().end(endpoint);
                self.lost(EndpointId(endpoint.0), error.to_string());
            }
        }
    }

    /// Carries out the resolver's actions.
    fn act(&mut self) {
        while let Some(act) = self.resolver.pop_action() {
            match act {
                Action::Answer { ticket, answer } => self.answer(ticket, &answer),
                Action::Join { endpoint, group } => _ = self.join(endpoint, group),
                Action::Leave { endpoint, group } => self.leave(endpoint, group),
                Action::Multicast { endpoint, group, mad } => self.multicast(endpoint, group, &mad),
                Action::Unicast {
                    endpoint,
                    to,
                    mad,
                    answer,
                } => self.unicast(endpoint, to, &mad, answer),
                Action::QuerySa { id, endpoint, path } => self.query_sa(id, endpoint, &path),
                Action::Probe {
                    id,
                    endpoint,
                    source,
                    destination,
                    large,
                } => self.probe(id, endpoint, (source, destination), large),
            }
        }
    }

    /// Looks a path up in the preloaded file, if there is one; else queries the administrator of the
    /// endpoint's subnet.
    fn query_sa(&mut self, id: QueryId, endpoint: EndpointId, path: &Path) {
        let now = self.now();
        let own = self.resolver.endpoint(endpoint);
        match own.filter(|own| own.link == Link::InfiniBand && self.preload.paths().is_empty()) {
            Some(own) => self.subnets.path(now, own, id, path),
            None => {
                let found = self.preload.path(path);
                self.resolver.sa(now, id, found);
            }
        }
        self.on_subnet_events(now, Some(endpoint));
    }

    fn turn_subnets(&mut self, now: Time) {
        self.subnets.turn(now);
        self.on_subnet_events(now, None);
    }

    /// Hands the administrators' answers to the resolver.
    pub(super) fn on_subnet_events(&mut self, now: Time, endpoint: Option<EndpointId>) {
        while let Some(event) = self.subnets.event() {
            match event {
                SubnetEvent::Path { id, answer } => {
                    let own = endpoint.and_then(|id| self.resolver.endpoint(id));
                    let trouble = own.and_then(|own| self.subnets.trouble(own)).map(str::to_owned);
                    if let (Err(NoPath::NoAdministrator), Some(why)) = (&answer, trouble) {
                        self.report_error(why);
                    }
                    self.resolver.sa(now, id, answer);
                }
                SubnetEvent::Joined {
                    endpoint,
                    group,
                    lid,
                    like,
                } => self.attach(endpoint, group, carrier::SubnetGroup { lid, like }),
                SubnetEvent::NotJoined { endpoint, group, why } => {
                    self.report_error(format!("cannot join the group {group}: {why}"));
                    // While a manager takes over, the switches forward the group as before.
                    let id = carrier::EndpointId(endpoint.0);
                    if !self.carrier.get_ref().is_in(id, group) {
                        self.resolver.joined(now, endpoint, group, None);
                    }
                }
            }
        }
    }

    /// Leaves all groups of this host's subnets: their administrators do not notice that a process has ended.
    pub(super) fn end(&mut self) {
        let now = self.now();
        self.subnets.leave_all(now);
    }

    fn answer(&mut self, ticket: Ticket, answer: &Answer) {
        if let Some(asked) = self.asked.remove(&ticket) {
            let unchosen = asked.unchosen.filter(|_| *answer == Err(Status::SourceAddress));
            let answer = &unchosen.map_or_else(|| answer.clone(), Err);
            self.log(QUESTIONS, || outcome_text(&asked.question, answer));
            let source = match asked.question {
                Question::Resolve { source, .. } => source,
                _ => None,
            };
            asked.waiter.reply(answer, source);
        }
    }
}

/// Formats a query and its outcome as a log line.
fn outcome_text(question: &Question, answer: &Answer) -> String {
    let what = match question {
        Question::Resolve {
            source, destination, ..
        } => match source {
            Some(source) => format!("{destination} from {source}"),
            None => destination.to_string(),
        },
        Question::Path { path, .. } if path.dgid.is_none() => format!("LID {}", path.dlid),
        Question::Path { path, .. } => path.dgid.to_string(),
        Question::Counters(_) => "counters".to_owned(),
        Question::Endpoint { port, index } => format!("endpoint {index} of port {port}"),
    };
    match answer {
        Ok(_) => format!("query for {what}: answered"),
        Err(status) => format!("query for {what}: {status}"),
    }
}

#[cfg(test)]
mod tests;
