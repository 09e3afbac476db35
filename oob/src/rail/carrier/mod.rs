//! The transport itself: commands in, events out, on one thread and without blocking.

mod actions;
mod connections;
mod paths;
mod send;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::task::{Context, Poll};

use doorbell_fabric::time::Time;
use doorbell_inet::network;

use self::paths::Requested;
use super::address;
use super::connection::{Line, Spot};
use super::counters::Counters;
use super::endpoint::{Endpoint, Open};
use super::module::Module;
use super::peer::LineId;
use super::settings::Settings;
use crate::connect::{self, Conn, Meeting};
use crate::error::OobError;
use crate::name::Name;
use crate::net::Order;
use crate::net::{TROUBLES, Who};
use crate::runner::Carrier;
use crate::session::Terms;
use crate::transport::{Command, Event, LinkId, Loss, ModuleId, Refusal};

/// The purpose of the sessions over rails, different from those over `tcp`.
const PURPOSE: u16 = 3;
/// The version of everything sent over links: hello, headers, streams.
const VERSION: u32 = 1;
/// Maximum number of ended lines that still have something to send.
const GHOSTS: usize = 64;
/// The kernel's file with the id of this boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// The transport `rail`; see the documentation of [`rail`](super).
#[derive(Debug)]
pub struct Rails {
    settings: Settings,
    terms: Terms,
    meeting: Meeting,
    modules: Vec<Module>,
    lines: BTreeMap<LineId, Line>,
    /// Lines by peer, by whether we made the call, and by the caller's number.
    of_wire: HashMap<(Spot, bool, u64), LineId>,
    of_conn: HashMap<Conn, LineId>,
    of_link: HashMap<LinkId, LineId>,
    /// Number of lines created so far.
    count: u64,
    guests: usize,
    ghosts: usize,
    asked: BTreeMap<Name, Requested>,
    /// The next time lines and peers are checked for time-outs.
    scan_at: Time,
    now: Time,
    events: VecDeque<Event>,
    troubles: VecDeque<OobError>,
    counters: Counters,
    /// The deadline for closing, once that has begun.
    leaving: Option<Time>,
}

impl Rails {
    /// Opens the rails, each as a module, in this order of preference. Call it within a tokio runtime with
    /// I/O, on whose thread everything runs.
    ///
    /// # Errors
    /// [`OobError::Rail`] for one that cannot be opened; [`OobError::RailKey`] for one that leads out of the
    /// host, without a key; [`OobError::RailShort`]; [`OobError::Setting`] for one whose address is too long
    /// for a contact.
    pub fn start(settings: Settings, who: Who, rails: Vec<Open>) -> Result<Self, OobError> {
        let opened: Result<Vec<Box<dyn Endpoint>>, OobError> = rails
            .into_iter()
            .take(usize::from(u16::MAX))
            .map(|open| Ok(open()?))
            .collect();
        Self::of(settings, who, opened?)
    }

    /// Creates the transport from open rails.
    pub(super) fn of(settings: Settings, who: Who, rails: Vec<Box<dyn Endpoint>>) -> Result<Self, OobError> {
        let keyed = who.key.is_some();
        let boot = std::fs::read_to_string(BOOT).unwrap_or_default();
        let host = address::host(boot.trim(), network());
        let modules: Result<Vec<Module>, OobError> = rails
            .into_iter()
            .map(|rail| Module::new(rail, host, keyed, &settings))
            .collect();
        let terms = Terms {
            name: who.name,
            handshake: settings.handshake,
            longest: settings.frame(),
            ..Terms::new(who.key, PURPOSE, who.epoch.0)
        };
        let meeting = Meeting::new(who.name, who.epoch, VERSION, settings.meeting);
        let mut rails = Self {
            settings,
            terms,
            meeting,
            modules: modules?,
            lines: BTreeMap::new(),
            of_wire: HashMap::new(),
            of_conn: HashMap::new(),
            of_link: HashMap::new(),
            count: 0,
            guests: 0,
            ghosts: 0,
            asked: BTreeMap::new(),
            scan_at: Time::NEVER,
            now: Time::ZERO,
            events: VecDeque::new(),
            troubles: VecDeque::new(),
            counters: Counters::default(),
            leaving: None,
        };
        (0..rails.modules.len()).for_each(|module| rails.report_module(module));
        Ok(rails)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let meeting: connect::Counters = self.meeting.counters();
        let mut counters = self.counters;
        counters.sessions.meeting = meeting;
        counters
    }

    /// Returns the number of handshakes with peers that called us.
    #[must_use]
    pub fn guests(&self) -> usize {
        self.guests
    }

    /// Returns the oldest problem of interest to a user; only the latest are kept.
    pub fn trouble(&mut self) -> Option<OobError> {
        self.troubles.pop_front()
    }

    fn troubled(&mut self, error: OobError) {
        if self.troubles.len() == TROUBLES {
            self.troubles.pop_front();
        }
        self.troubles.push_back(error);
    }

    /// Makes the next check for time-outs no later than `at`.
    fn book(&mut self, at: Time) {
        self.scan_at = self.scan_at.min(at);
    }

    /// Handles what has happened on all rails; returns whether there was anything.
    fn look(&mut self, now: Time) -> bool {
        let mut any = false;
        for at in 0..self.modules.len() {
            let found = self.modules[at].look(now, &self.settings);
            any |= !found.events.is_empty() || !found.messages.is_empty();
            self.counters.oversized += found.oversized;
            for event in found.events {
                self.happened(now, at, event);
            }
            for (peer, message) in found.messages {
                self.arrived(now, Spot { module: at, peer }, &message);
            }
            any |= self.service(now, at);
            self.modules[at].looked(now, &self.settings);
        }
        any
    }

    fn end_rails(&mut self, now: Time) {
        let Some(until) = self.leaving.filter(|_| self.lines.is_empty()) else {
            return;
        };
        for module in self.modules.iter_mut().filter(|module| !module.closed) {
            module.wake.end(&mut *module.rail);
            module.closing = true;
            module.closed = module.rail.close(now, until);
        }
    }
}

impl Carrier for Rails {
    fn command(&mut self, now: Time, command: Command) {
        self.now = now;
        match command {
            Command::Reach { peer, addresses } => self.reach(now, peer, addresses),
            Command::Connect {
                attempt,
                peer,
                epoch,
                module,
                addresses,
                deadline,
            } => self
                .meeting
                .connect(now, attempt, peer, epoch, module, addresses, deadline),
            Command::Cancel { attempt } => self.meeting.cancel(now, attempt),
            Command::Send { link, frame } => {
                let line = self.of_link.get(&link).copied();
                if let Some(id) = line {
                    self.order(id, Order::Frame(frame));
                }
            }
            Command::Close { link, why } => self.close(now, link, why),
        }
        self.act(now);
        self.service_all(now);
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Polls for events: ready when something has happened. Otherwise every rail is armed and wakes the task
    /// of `cx`; rails that cannot are polled when [`Carrier::next_deadline`] has come.
    fn poll(&mut self, cx: &mut Context<'_>, now: Time) -> Poll<()> {
        self.now = now;
        let mut any = self.look(now);
        if !any && !self.settings.spin {
            for module in &mut self.modules {
                any |= !module.sleep(cx);
            }
        }
        if any { Poll::Ready(()) } else { Poll::Pending }
    }

    fn tick(&mut self, now: Time) {
        self.now = now;
        self.meeting.tick(now);
        if now >= self.scan_at {
            self.scan(now);
        }
        self.act(now);
        self.service_all(now);
        self.end_rails(now);
    }

    fn next_deadline(&self) -> Option<Time> {
        let modules = self.modules.iter();
        let modules = modules.filter_map(|module| module.next_deadline(self.now, &self.settings));
        let ends = self.leaving.filter(|_| !self.is_quiet());
        modules
            .chain(self.meeting.next_deadline())
            .chain((self.scan_at != Time::NEVER).then_some(self.scan_at))
            .chain(ends.map(|_| self.now + self.settings.look))
            .min()
    }

    fn leave(&mut self, now: Time) {
        self.leaving = Some(now + self.settings.linger);
        let links: Vec<LinkId> = self.of_link.keys().copied().collect();
        for link in links {
            self.close(now, link, Loss::Finished);
        }
        let others = self
            .lines
            .iter()
            .filter(|(_, line)| line.link.is_none() && !line.ghost);
        let others: Vec<LineId> = others.map(|(&id, _)| id).collect();
        for id in others {
            self.end(now, id, Refusal::Cancelled, Loss::Finished);
        }
        self.act(now);
        self.service_all(now);
    }

    fn is_quiet(&self) -> bool {
        self.lines.is_empty() && self.modules.iter().all(|module| module.closed)
    }
}

/// Returns the number of a module.
fn module_id(at: usize) -> ModuleId {
    ModuleId(at as u16)
}
