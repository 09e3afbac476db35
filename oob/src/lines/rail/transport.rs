//! The transport itself: commands in, events out, on one thread and without blocking.

use std::collections::{BTreeMap, HashMap};
use std::task::{Context, Poll};

use doorbell_fabric::time::Time;
use doorbell_inet::network;

use super::address;
use super::counters::Counters;
use super::endpoint::{Endpoint, Open};
use super::line::{Line, Spot};
use super::module::Module;
use super::paths::Requested;
use super::settings::Settings;
use crate::error::OobError;
use crate::lines::Who;
use crate::lines::connections::{Connections, LineId, Lines};
use crate::name::Name;
use crate::runner::Carrier;
use crate::session::Terms;
use crate::transport::{Command, Event, ModuleId};

/// The purpose of the sessions over rails, different from those over `tcp`.
const PURPOSE: u16 = 3;
/// The kernel's file with the id of this boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// The transport `rail`; see the documentation of [`rail`](super).
#[derive(Debug)]
pub struct Rails {
    pub(super) settings: Settings,
    pub(super) terms: Terms,
    pub(super) connections: Connections<Line, Spot>,
    pub(super) modules: Vec<Module>,
    /// Lines by peer, by whether we made the call, and by the caller's number.
    pub(super) of_wire: HashMap<(Spot, bool, u64), LineId>,
    /// Number of connections that have ended and still send.
    pub(super) ghosts: usize,
    pub(super) asked: BTreeMap<Name, Requested>,
    /// The next time lines and peers are checked for time-outs.
    pub(super) scan_at: Time,
    now: Time,
    pub(super) counters: Counters,
    /// The deadline for closing, once that has begun.
    pub(super) leaving: Option<Time>,
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
        let mut rails = Self {
            terms: who.terms(PURPOSE, &settings.limits),
            connections: Connections::new(&who, settings.limits),
            settings,
            modules: modules?,
            of_wire: HashMap::new(),
            ghosts: 0,
            asked: BTreeMap::new(),
            scan_at: Time::NEVER,
            now: Time::ZERO,
            counters: Counters::default(),
            leaving: None,
        };
        (0..rails.modules.len()).for_each(|module| rails.report_module(module));
        Ok(rails)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            sessions: self.connections.counters(),
            ..self.counters
        }
    }

    /// Returns the number of handshakes with peers that called us.
    #[must_use]
    pub fn guests(&self) -> usize {
        self.connections.guests()
    }

    /// Returns the oldest problem of interest to a user; only the latest are kept.
    pub fn trouble(&mut self) -> Option<OobError> {
        self.connections.troubles.pop_front()
    }

    /// Makes the next check for time-outs no later than `at`.
    pub(super) fn book(&mut self, at: Time) {
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
        let Some(until) = self.leaving.filter(|_| self.connections.all.is_empty()) else {
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
            command => self.obey(now, command),
        }
        self.act(now);
        self.service_all(now);
    }

    fn event(&mut self) -> Option<Event> {
        self.connections.events.pop_front()
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
        self.connections.meeting.tick(now);
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
            .chain(self.connections.meeting.next_deadline())
            .chain((self.scan_at != Time::NEVER).then_some(self.scan_at))
            .chain(ends.map(|_| self.now + self.settings.look))
            .min()
    }

    fn leave(&mut self, now: Time) {
        self.leaving = Some(now + self.settings.limits.linger);
        self.leave_all(now);
        self.service_all(now);
    }

    fn is_quiet(&self) -> bool {
        self.connections.all.is_empty() && self.modules.iter().all(|module| module.closed)
    }
}

/// Returns the number of a module.
pub(super) fn module_id(at: usize) -> ModuleId {
    ModuleId(at as u16)
}
