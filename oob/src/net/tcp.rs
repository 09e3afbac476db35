//! The transport itself: commands in, events out, and everything that happens in between, on one thread and without a wait.

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
use super::counters::Counters;
use super::pending::Guests;
use super::connection::{Io, Note, Order, Shared};
use super::module::Module;
use super::settings::{Settings, Who};
use crate::connect::{Conn, Meeting};
use crate::error::OobError;
use crate::name::Name;
use crate::session::{Peer, Terms};
use crate::transport::{Address, Command, Event, LinkId, Loss, ModuleId, Refusal, Way};

/// What the control plane's sessions are for: others than those by which ranks meet.
const PURPOSE: u16 = 2;
/// The version of all that is said over links: hello, heads, streams.
const VERSION: u32 = 1;
/// Notes that may wait; whoever has more to tell waits.
const NOTES: usize = 512;
/// Notes that are heard in one turn.
const HEARD: usize = 256;
/// Peers whose ways are looked for in one turn, after routes have changed.
const LOOKED: usize = 32;
/// Troubles that are kept for whoever asks.
pub(crate) const TROUBLES: usize = 64;
/// Connections that are ending and belong to nobody any more, at most.
const ENDING: usize = 64;

/// A connection, as the transport knows it.
#[derive(Debug)]
struct Line {
    module: ModuleId,
    /// Our address of it.
    local: IpAddr,
    orders: UnboundedSender<Order>,
    task: AbortHandle,
    /// What the meeting calls it, as long as it knows of it.
    conn: Option<Conn>,
    /// What the core calls it, if it is a link.
    link: Option<LinkId>,
    /// Who is there, as the handshake says.
    peer: Option<Peer>,
    /// Why it is being closed.
    why: Option<Loss>,
}

/// The transport `tcp`. See the module's own words ([`net`](super)).
///
/// It lives on a tokio runtime, whose thread calls it; nothing here waits.
#[derive(Debug)]
pub struct Tcp {
    shared: Arc<Shared>,
    meeting: Meeting,
    guests: Guests,
    runtime: Handle,
    notes: Receiver<Note>,
    tell: Sender<Note>,
    watch: Option<AbortHandle>,
    lines: HashMap<Io, Line>,
    of_conn: HashMap<Conn, Io>,
    of_link: HashMap<LinkId, Io>,
    ios: u64,
    modules: BTreeMap<ModuleId, Module>,
    /// Modules that there have been.
    module_count: usize,
    /// All addresses of this host.
    host: Vec<IpAddr>,
    /// When to look again at what could not be had.
    again: Option<Time>,
    /// What was asked for each peer, and answered.
    asked: BTreeMap<Name, (Vec<Address>, Vec<Way>)>,
    /// Those that are to be asked about again.
    stale: BTreeSet<Name>,
    events: VecDeque<Event>,
    troubles: VecDeque<OobError>,
    counters: Counters,
    leaving: bool,
}

impl Tcp {
    /// Opens the doors, and watches the interfaces. Within a tokio runtime (with I/O and time), on which all of it lives.
    ///
    /// # Errors
    /// [`OobError::KeyNeeded`] when others than loopback are named and there is no key; [`OobError::NoNic`];
    /// [`OobError::Ports`]; [`OobError::Nics`]; [`OobError::Thread`].
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
            guests: Guests::default(),
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

    /// Does what the core wants.
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

    /// What happened next.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes in what has happened. Ready when something has; otherwise the task of `cx` is woken when it does.
    pub fn poll(&mut self, cx: &mut Context<'_>, now: Time) -> Poll<()> {
        let mut any = false;
        for _ in 0..HEARD {
            let Poll::Ready(Some(note)) = self.notes.poll_recv(cx) else {
                return if any { Poll::Ready(()) } else { Poll::Pending };
            };
            any = true;
            self.hear(now, note);
            self.act(now);
        }
        Poll::Ready(())
    }

    /// Looks at the time.
    pub fn tick(&mut self, now: Time) {
        self.meeting.tick(now);
        if self.again.is_some_and(|again| again <= now) {
            self.look(now);
        }
        self.look_again();
        self.act(now);
    }

    /// When [`Tcp::tick`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let stale = (!self.stale.is_empty()).then_some(Time::ZERO);
        [stale, self.again, self.meeting.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Closes all doors, and all links when what was given to them is written.
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

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            meeting: self.meeting.counters(),
            ..self.counters
        }
    }

    /// Handshakes under way with those who have connected to us.
    #[must_use]
    pub fn guests(&self) -> usize {
        self.guests.len()
    }

    /// Something that did not work and that a person may want to know of, the oldest first; only the latest are kept.
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
    /// Nothing is left: no task, no socket.
    fn drop(&mut self) {
        self.watch.iter().for_each(AbortHandle::abort);
        self.lines.values().for_each(|line| line.task.abort());
    }
}
