//! The transport itself: commands in, events out, on one thread and without blocking.

mod actions;
mod connections;
mod nics;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use doorbell_fabric::time::Time;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedSender, channel};
use tokio::task::AbortHandle;

use super::clock::Clock;
use super::connection::{Io, Note, Order, Shared};
use super::counters::Counters;
use super::module::Module;
use super::pending::Pending;
use super::settings::{Settings, Who};
use crate::connect::{Conn, Meeting};
use crate::error::OobError;
use crate::name::Name;
use crate::session::{Peer, Terms};
use crate::transport::{Address, Command, Event, LinkId, Loss, ModuleId, Path, Refusal};

/// The purpose of the control plane's sessions, different from those by which ranks connect.
const PURPOSE: u16 = 2;
/// The version of everything sent over links: hello, headers, streams.
const VERSION: u32 = 1;
/// Capacity of the queue of notes; senders wait when it is full.
const NOTES: usize = 512;
/// Maximum notes handled in one turn.
const HEARD: usize = 256;
/// Maximum peers whose paths are looked up again in one turn, after routes have changed.
const LOOKED: usize = 32;
/// Number of problems kept for reports.
pub(crate) const TROUBLES: usize = 64;
/// Maximum number of connections that are closing and have no owner any more.
const ENDING: usize = 64;

/// A connection, as the transport knows it.
#[derive(Debug)]
struct Line {
    module: ModuleId,
    /// Our address of the connection.
    local: IpAddr,
    orders: UnboundedSender<Order>,
    task: AbortHandle,
    /// Its number in the meeting, as long as that knows it.
    conn: Option<Conn>,
    /// Its number in the core, if it is a link.
    link: Option<LinkId>,
    /// The peer, as the handshake identified it.
    peer: Option<Peer>,
    /// Why it is being closed.
    why: Option<Loss>,
}

/// The transport `tcp`; see the documentation of [`net`](super).
///
/// It runs on a tokio runtime, whose thread calls it; nothing here blocks.
#[derive(Debug)]
pub struct Tcp {
    shared: Arc<Shared>,
    meeting: Meeting,
    pending: Pending,
    runtime: Handle,
    notes: Receiver<Note>,
    tell: Sender<Note>,
    watch: Option<AbortHandle>,
    lines: HashMap<Io, Line>,
    of_conn: HashMap<Conn, Io>,
    of_link: HashMap<LinkId, Io>,
    ios: u64,
    modules: BTreeMap<ModuleId, Module>,
    /// Number of modules created so far.
    module_count: usize,
    /// All addresses of this host.
    host: Vec<IpAddr>,
    /// The time at which failed listeners are retried.
    again: Option<Time>,
    /// The addresses requested for each peer, and the paths returned.
    asked: BTreeMap<Name, (Vec<Address>, Vec<Path>)>,
    /// Peers whose paths have to be looked up again.
    stale: BTreeSet<Name>,
    events: VecDeque<Event>,
    troubles: VecDeque<OobError>,
    counters: Counters,
    leaving: bool,
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
        let terms = Terms {
            name: who.name,
            handshake: settings.handshake,
            longest: settings.frame(),
            ..Terms::new(who.key, PURPOSE, who.epoch.0)
        };
        let meeting = Meeting::new(who.name, who.epoch, VERSION, settings.meeting);
        let (tell, notes) = channel(NOTES);
        let shared = Arc::new(Shared {
            settings,
            terms,
            clock,
        });
        let mut tcp = Self {
            shared,
            meeting,
            pending: Pending::default(),
            runtime,
            notes,
            tell,
            watch: None,
            lines: HashMap::new(),
            of_conn: HashMap::new(),
            of_link: HashMap::new(),
            ios: 0,
            modules: BTreeMap::new(),
            module_count: 0,
            host: Vec::new(),
            again: None,
            asked: BTreeMap::new(),
            stale: BTreeSet::new(),
            events: VecDeque::new(),
            troubles: VecDeque::new(),
            counters: Counters::default(),
            leaving: false,
        };
        tcp.begin()?;
        Ok(tcp)
    }

    /// Carries out a command of the core.
    pub fn command(&mut self, now: Time, command: Command) {
        match command {
            Command::Reach { peer, addresses } => self.reach(peer, addresses),
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
            Command::Send { link, frame } => self.send(link, Order::Frame(frame)),
            Command::Close { link, why } => self.close(now, link, why),
        }
        self.act(now);
    }

    /// Returns the next event.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Handles notes. Ready when there were some; otherwise the task of `cx` is woken by the next one.
    pub fn poll(&mut self, cx: &mut Context<'_>, now: Time) -> Poll<()> {
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

    /// Handles everything that is due.
    pub fn tick(&mut self, now: Time) {
        self.meeting.tick(now);
        if self.again.is_some_and(|again| again <= now) {
            self.look(now);
        }
        self.look_again();
        self.act(now);
    }

    /// Returns when [`Tcp::tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let stale = (!self.stale.is_empty()).then_some(Time::ZERO);
        [stale, self.again, self.meeting.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Closes all listeners, and all links once everything queued is written.
    pub fn leave(&mut self, now: Time) {
        self.leaving = true;
        self.again = None;
        self.stale.clear();
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
        self.modules.values_mut().for_each(Module::shut);
        let links: Vec<LinkId> = self.of_link.keys().copied().collect();
        for link in links {
            self.close(now, link, Loss::Finished);
        }
        let others = self.lines.iter().filter(|(_, line)| line.link.is_none());
        let others: Vec<Io> = others.map(|(&io, _)| io).collect();
        for io in others {
            self.end(now, io, Refusal::Cancelled, Loss::Finished);
        }
        self.act(now);
    }

    /// Whether no connection is left.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            meeting: self.meeting.counters(),
            ..self.counters
        }
    }

    /// Returns the number of handshakes with accepted connections.
    #[must_use]
    pub fn guests(&self) -> usize {
        self.pending.len()
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
}

impl Drop for Tcp {
    /// Ends all tasks and closes all sockets.
    fn drop(&mut self) {
        self.watch.iter().for_each(AbortHandle::abort);
        self.lines.values().for_each(|line| line.task.abort());
    }
}
