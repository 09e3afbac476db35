//! The transport itself: commands in, events out, on one thread and without blocking.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use doorbell_fabric::time::Time;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedSender, channel};
use tokio::task::AbortHandle;

use super::line::{Note, Shared};
use super::module::Module;
use super::settings::Settings;
use super::source::Source;
use crate::error::OobError;
use crate::lines::connections::{Connections, Lines};
use crate::lines::stream::Order;
use crate::lines::{Clock, Counters, Who};
use crate::name::Name;
use crate::runner::Carrier;
use crate::transport::{Address, Command, Event, ModuleId, Path};

/// The purpose of the control plane's sessions, different from those by which ranks connect.
const PURPOSE: u16 = 2;
/// Capacity of the queue of notes; senders wait when it is full.
const NOTES: usize = 512;
/// Maximum notes handled in one turn.
const HEARD: usize = 256;

/// The task of a connection, which ends with this.
#[derive(Debug)]
pub(in crate::lines) struct Task {
    /// Our address of the connection.
    pub(super) local: IpAddr,
    pub(super) orders: UnboundedSender<Order>,
    pub(super) task: AbortHandle,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The transport `tcp`; see the documentation of [`tcp`](super).
///
/// It runs on a tokio runtime, whose thread calls it; nothing here blocks.
#[derive(Debug)]
pub struct Tcp {
    pub(super) shared: Arc<Shared>,
    pub(super) connections: Connections<Task, Source>,
    pub(super) runtime: Handle,
    notes: Receiver<Note>,
    pub(super) tell: Sender<Note>,
    pub(super) watch: Option<AbortHandle>,
    pub(super) modules: BTreeMap<ModuleId, Module>,
    /// Number of modules created so far.
    pub(super) module_count: usize,
    /// All addresses of this host.
    pub(super) host: Vec<IpAddr>,
    /// The time at which failed listeners are retried.
    pub(super) again: Option<Time>,
    /// The addresses requested for each peer, and the paths returned.
    pub(super) asked: BTreeMap<Name, (Vec<Address>, Vec<Path>)>,
    /// Peers whose paths have to be looked up again.
    pub(super) stale: BTreeSet<Name>,
    pub(super) leaving: bool,
}

impl Tcp {
    /// Opens the listeners, and watches the interfaces. Call it within a tokio runtime with I/O and time, on
    /// which everything runs.
    ///
    /// # Errors
    /// [`OobError::KeyNeeded`] when others than loopback are selected and there is no key;
    /// [`OobError::NoNic`]; [`OobError::Ports`]; [`OobError::Nics`]; [`OobError::Thread`].
    pub fn start(settings: Settings, who: Who, clock: Clock) -> Result<Self, OobError> {
        let runtime = Handle::try_current().map_err(|error| OobError::Thread {
            what: "the transport outside of a tokio runtime",
            source: std::io::Error::other(error),
        })?;
        let (tell, notes) = channel(NOTES);
        let connections = Connections::new(&who, settings.limits);
        let shared = Arc::new(Shared {
            terms: who.terms(PURPOSE, &settings.limits),
            settings,
            clock,
        });
        let mut tcp = Self {
            shared,
            connections,
            runtime,
            notes,
            tell,
            watch: None,
            modules: BTreeMap::new(),
            module_count: 0,
            host: Vec::new(),
            again: None,
            asked: BTreeMap::new(),
            stale: BTreeSet::new(),
            leaving: false,
        };
        tcp.begin()?;
        Ok(tcp)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.connections.counters()
    }

    /// Returns the number of handshakes with accepted connections.
    #[must_use]
    pub fn guests(&self) -> usize {
        self.connections.guests()
    }

    /// Returns the oldest problem of interest to a user; only the latest are kept.
    pub fn trouble(&mut self) -> Option<OobError> {
        self.connections.troubles.pop_front()
    }
}

impl Carrier for Tcp {
    fn command(&mut self, now: Time, command: Command) {
        match command {
            Command::Reach { peer, addresses } => self.reach(peer, addresses),
            command => self.obey(now, command),
        }
        self.act(now);
    }

    fn event(&mut self) -> Option<Event> {
        self.connections.events.pop_front()
    }

    /// Handles notes. Ready when there were some; otherwise the task of `cx` is woken by the next one.
    fn poll(&mut self, cx: &mut Context<'_>, now: Time) -> Poll<()> {
        let mut any = false;
        for _ in 0..HEARD {
            let Poll::Ready(Some(note)) = self.notes.poll_recv(cx) else {
                return if any { Poll::Ready(()) } else { Poll::Pending };
            };
            any = true;
            self.note(now, note);
            self.act(now);
        }
        Poll::Ready(())
    }

    fn tick(&mut self, now: Time) {
        self.connections.meeting.tick(now);
        if self.again.is_some_and(|again| again <= now) {
            self.look(now);
        }
        self.look_again();
        self.act(now);
    }

    fn next_deadline(&self) -> Option<Time> {
        let stale = (!self.stale.is_empty()).then_some(Time::ZERO);
        [stale, self.again, self.connections.meeting.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Closes all listeners, and all links once everything queued is written.
    fn leave(&mut self, now: Time) {
        self.leaving = true;
        self.again = None;
        self.stale.clear();
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
        self.modules.values_mut().for_each(Module::shut);
        self.leave_all(now);
    }

    fn is_quiet(&self) -> bool {
        self.connections.all.is_empty()
    }
}

impl Drop for Tcp {
    /// Ends the watch of the interfaces; all other tasks end with their connections and modules.
    fn drop(&mut self) {
        self.watch.iter().for_each(AbortHandle::abort);
    }
}
