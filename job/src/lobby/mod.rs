//! The rendezvous of processes with Portals interfaces: two of them meet when one first needs the other;
//! there is no barrier of all.
//!
//! ```text
//!   Member ── owns ── Node<rails>                 used by one thread at a time, which makes progress
//!     │
//!     └── desk() ──── Desk                        listener for processes of this host (`desk`); any thread
//! ```
//!
//! A job of ranks meets as a whole; a Portals program does not name the members of its job before it names a
//! process {nid, pid}, and may name one of another job. So every process listens on its host, under its
//! process id. A process that first needs another one connects there and sends its card; from then on both
//! have each other's card, and notice each other's end. This takes neither the launcher nor a barrier of all.
//!
//! A nid identifies a network namespace of a host. Processes publish their cards for other hosts in the
//! launcher's key-value store, where the launcher speaks PMI-1 and a rail leads out of the host (`words`).

mod card;
mod desk;
mod words;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use doorbell_am_portals as portals;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::discover::Candidate;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::Message as _;
use doorbell_fabric::ni::{Kind, NID_ANY, Ni, NiError, NiLimits, PID_ANY, PID_MAX, Process};
use doorbell_fabric::rail::Rail as _;
use doorbell_fabric::time::Time;
use doorbell_oob::JobKey;
use doorbell_pml::RailId;
use rustix::fd::BorrowedFd;

pub use self::card::Card;
pub use self::desk::Desk;
use self::desk::{News, Place};
use self::words::Words;
pub use self::words::finish;
use crate::config::{Config, Rails};
use crate::connect::{RailOwner, add_rails, connect};
use crate::error::Error;
use crate::meet::{Key, RailEntry, RankInfo};
use crate::rails::{AnyRail, Manage as _, open_all};
use crate::random;

/// Process ids of processes that request no particular one: above all that can be requested, and below
/// [`PID_ANY`].
const OWN_IDS: std::ops::Range<u32> = PID_MAX + 1..PID_ANY;

/// How long after a process's end its rails may deliver what it sent before, and notice the end themselves.
const LEAVING: Duration = Duration::from_millis(250);

/// The requested process id belongs to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken;

/// A process with Portals interfaces, as its owner drives it.
pub struct Member {
    node: portals::Node<AnyRail>,
    desk: Desk,
    config: Config,
    candidates: Vec<Candidate>,
    clock: Clock,
    /// Processes that have ended, each with the time when the node is notified.
    leaving: Vec<(Time, Process)>,
    /// The cards of processes on other hosts, in the launcher's store.
    words: Option<Words>,
    /// Whether an unknown process has connected over a network.
    strangers: bool,
}

impl Member {
    /// Opens the rails that `config` names, and takes the process id `pid` of this host, or any one.
    /// `launcher` is a copy of the launcher's descriptor, where there is one: it is used when a rail leads
    /// out of the host.
    ///
    /// # Errors
    /// A rail that cannot be used; errors of the system.
    pub fn enter(
        config: Config,
        pid: Option<u32>,
        launcher: Option<OwnedFd>,
    ) -> Result<Result<Self, Taken>, Error> {
        let host = host();
        let nid = nid_of(&host);
        let Some(place) = take(pid)? else {
            return Ok(Err(Taken));
        };
        let me = Process::physical(nid, place.pid);
        let (rails, _) = open_all(&config)?;
        // All rails that were named are open now, and each leads to some of the processes only: shared memory
        // to those of this host, a network to those behind it. With the names kept, each of them would have
        // to reach every process.
        let mut config = config;
        config.rails.list.set(Rails::default());
        let candidates = rails.iter().map(AnyRail::candidate).collect();
        let entries = rails.iter().map(AnyRail::entry).collect();
        let mut info = RankInfo::of_this_process(0, 1, config.agreed(), entries)?;
        // Two namespaces of one host count as two hosts: neither abstract names nor sockets pass between
        // them.
        info.host = host;
        let desk =
            Desk::open(place, Card::new(me, info)).map_err(|source| io_error("open the desk", source))?;
        let mut settings = portals::Config::new(me);
        settings.uid = rustix::process::geteuid().as_raw();
        settings.seed = random::number()?;
        settings.patience = *config.pml.patience.get();
        let mut node = portals::Node::new(settings);
        let leads_out = rails.iter().any(leads_out);
        let words = match launcher.filter(|_| leads_out) {
            Some(launcher) => Words::put(launcher, desk.card()).map_err(|reason| Error::Job { reason })?,
            None => None,
        };
        let key = key()?;
        let mut owner = Toward {
            node: &mut node,
            process: me,
        };
        add_rails(&mut owner, rails, &key)?;
        Ok(Ok(Self {
            node,
            desk,
            config,
            candidates,
            clock: Clock::start(),
            leaving: Vec::new(),
            words,
            strangers: false,
        }))
    }

    /// Returns this process's id.
    pub fn process(&self) -> Process {
        self.desk.process()
    }

    /// Returns the listener for other processes of this host.
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Whether a process is open here, or is this one.
    pub fn knows(&self, process: Process) -> bool {
        process == self.process() || self.node.knows(process)
    }

    /// Opens a process by its card.
    ///
    /// # Errors
    /// When no rail leads to it, with the reasons.
    pub fn meet(&mut self, card: &Card) -> Result<(), Error> {
        let process = card.process();
        if self.knows(process) {
            return Ok(());
        }
        let (own, theirs) = self.desk.card().ranked(card);
        let mut toward = Toward {
            node: &mut self.node,
            process,
        };
        connect(&mut toward, &self.config, &self.candidates, &own, &theirs).map(drop)
    }

    /// Reads the cards of processes on other hosts and opens these, until `process` is open, or all cards are
    /// read for `None`. Uses the launcher's descriptor, so it must only run inside a call of the program.
    /// Returns the error of the last process that could not be opened.
    #[cold]
    pub fn look_up(&mut self, process: Option<Process>) -> Option<Error> {
        self.strangers = false;
        let mut trouble = None;
        while process.is_none_or(|process| !self.knows(process)) {
            let ours = self.desk.card();
            let Some(card) = self.words.as_mut().and_then(|words| words.next(ours)) else {
                break;
            };
            // Processes of this host connect to each other's listeners.
            if card.process().nid != self.process().nid {
                trouble = self.meet(&card).err().or(trouble);
            } else if card.info.host != self.desk.card().info.host {
                self.warn_of_namesake(&card.info.host);
            }
        }
        trouble
    }

    /// Prints one line about a collision of nids: nothing else would explain why the other host's processes
    /// stay unknown.
    #[cold]
    fn warn_of_namesake(&self, host: &str) {
        use std::io::Write as _;
        let (nid, own) = (self.process().nid, &self.desk.card().info.host);
        let line = format!(
            "doorbell: the hosts {own:?} and {host:?} have both become nid {nid}, so their processes cannot meet: leave one of them out, or restart it\n"
        );
        let _ = io::stderr().write_all(line.as_bytes());
    }

    /// Whether an unknown process has connected, which [`Member::look_up`] may find.
    #[inline]
    pub fn has_strangers(&self) -> bool {
        self.strangers
    }

    /// Checks the rails for connections of unknown processes.
    fn listen(&mut self) {
        if self.words.is_none() {
            return;
        }
        let rails: Vec<_> = self.node.rails().map(|(rail, _)| rail).collect();
        for rail in rails {
            let Some(rail) = self.node.rail_mut(rail).filter(|rail| leads_out(rail)) else {
                continue;
            };
            while rail.stranger().is_some() {
                self.strangers = true;
            }
        }
    }

    /// Opens the processes that have connected since the last call, and closes those whose grace time is
    /// over; returns how many.
    fn attend(&mut self, now: Time) -> usize {
        let mut count = 0;
        self.leaving.retain(|(when, process)| {
            let is_over = *when <= now;
            if is_over {
                self.node.ended(*process, DownReason::Control);
                count += 1;
            }
            !is_over
        });
        if !self.desk.any() {
            return count;
        }
        let news = self.desk.take();
        count += news.len();
        for news in news {
            match news {
                // A process that cannot be opened gets no notice: it waits for an answer until it gives this
                // one up.
                News::Called(card) => _ = self.meet(&card),
                News::Ended(process) => self.leaving.push((now + LEAVING, process)),
            }
        }
        count
    }

    /// Initializes an interface, or counts one more user of it; see [`portals::Node::ni_init`].
    ///
    /// # Errors
    /// Those of [`portals::Node::ni_init`].
    pub fn ni_init(&mut self, kind: Kind, desired: Option<&NiLimits>) -> Result<NiLimits, NiError> {
        self.node.ni_init(kind, desired)
    }

    /// Ends one use of an interface; see [`portals::Node::ni_fini`].
    ///
    /// # Errors
    /// Those of [`portals::Node::ni_fini`].
    pub fn ni_fini(&mut self, kind: Kind) -> Result<(), NiError> {
        self.node.ni_fini(kind)
    }

    /// Whether memory of this process is still being written; see [`portals::Node::is_writing`].
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.node.is_writing()
    }

    /// Sets the process of each rank.
    ///
    /// # Errors
    /// [`NiError::Ignored`] when the map was set before; [`NiError::NoInit`] without such an interface.
    pub fn set_map(&mut self, kind: Kind, map: &[Process]) -> Result<(), NiError> {
        self.node.set_map(kind, map)
    }

    /// Returns the map that was set.
    ///
    /// # Errors
    /// [`NiError::NoInit`] without such an interface.
    pub fn map(&self, kind: Kind) -> Result<&[Process], NiError> {
        self.node.get_map(kind)
    }

    /// Returns an interface, for one call.
    pub fn ni(&mut self, kind: Kind) -> impl Ni + '_ {
        self.node.ni(kind)
    }

    /// Delivers arrivals to the interfaces; see [`Ni::poll`].
    pub fn poll(&mut self, budget: usize) -> usize {
        self.node.poll(budget)
    }

    /// Runs what depends on the clock, and reads it; returns the work done.
    pub fn progress(&mut self) -> usize {
        let now = self.clock.now();
        self.listen();
        self.attend(now) + self.node.progress(now)
    }

    /// Returns how long the next call of [`Member::progress`] can wait.
    pub fn idle(&self) -> Option<Duration> {
        let leaving = self.leaving.iter().map(|(when, _)| *when).min();
        let deadline = self.node.next_deadline().into_iter().chain(leaving).min();
        let deadline = deadline.map(|deadline| deadline.since(self.clock.now()));
        deadline.into_iter().chain(self.desk.idle()).min()
    }

    /// As [`Ni::arm`], with the listener's descriptor among those that are passed to `each`.
    pub fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        each(self.desk.ready());
        self.node.arm(each) || self.desk.any()
    }

    /// Ends what [`Member::arm`] has prepared; see [`Ni::disarm`].
    pub fn disarm(&mut self) {
        self.node.disarm();
    }

    /// Rings one doorbell for everything that was started.
    pub fn flush(&mut self) {
        self.node.flush();
    }

    /// Sends what was accepted, for at most `limit`.
    pub fn close(&mut self, limit: Duration) {
        let by = self.clock.now() + limit;
        let until = Instant::now() + limit;
        while !self.node.close(self.clock.now(), by) && Instant::now() < until {
            self.desk.serve();
            self.attend(self.clock.now());
            self.node.poll(64);
            std::thread::yield_now();
        }
    }

    /// Leaves the rails to the system at the end of the process, since dropping them may wait for a peer.
    pub fn forget(self) {
        // The listener closes, which others notice; [`finish`] has the launcher's descriptor.
        let Self { node, .. } = self;
        let _ = std::mem::ManuallyDrop::new(node);
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Process { nid, pid } = self.process();
        write!(out, "Member(nid {nid}, pid {pid})")
    }
}

/// A node for opening one process.
struct Toward<'a> {
    node: &'a mut portals::Node<AnyRail>,
    process: Process,
}

impl RailOwner for Toward<'_> {
    fn each_rail(&self) -> impl Iterator<Item = (RailId, &AnyRail)> {
        self.node.rails().map(|(rail, found)| (RailId(rail.0), found))
    }

    fn add_rail(&mut self, rail: AnyRail) -> Result<(), Error> {
        self.node.add_rail(rail).map(drop).map_err(node_error)
    }

    fn rail_mut(&mut self, rail: RailId) -> Option<&mut AnyRail> {
        self.node.rail_mut(portals::RailId(rail.0))
    }

    fn open(&mut self, _: u32, rail: RailId, to: &RailEntry) -> Result<(), Error> {
        let rail = portals::RailId(rail.0);
        self.node
            .connect(self.process, rail, &to.address, to.life())
            .map_err(node_error)
    }
}

fn take(pid: Option<u32>) -> Result<Option<Place>, Error> {
    let taken = |pid| Place::take(pid).map_err(|source| io_error("take a process id", source));
    if let Some(pid) = pid {
        return taken(pid);
    }
    // The search starts at an id that depends on the process, so that the first one is usually free. A later
    // member of the same process gets another id, since others know the one before as ended.
    static LIVES: AtomicU32 = AtomicU32::new(0);
    let many = OWN_IDS.end - OWN_IDS.start;
    let lives = LIVES.fetch_add(1, Ordering::Relaxed);
    let first = std::process::id().wrapping_add(lives.wrapping_mul(7919)) % many;
    for step in 0..many {
        if let Some(place) = taken(OWN_IDS.start + (first + step) % many)? {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

/// Whether a rail leads to other hosts.
fn leads_out(rail: &AnyRail) -> bool {
    rail.name().kind() != "shm" && rail.place().kind != doorbell_fabric::pairs::Kind::Loopback
}

/// Returns the name of this network namespace of this host.
fn host() -> String {
    let space = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{} {}", crate::meet::host_id(), space.display())
}

/// Hashes a host's name to a nid: any of 32 bits but the wildcards.
fn nid_of(host: &str) -> u32 {
    // FNV-1a.
    let hash = host.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    match hash {
        NID_ANY | u32::MAX => hash - 1,
        hash => hash,
    }
}

/// Returns the key from which connection ids and MAC keys are derived: the same for all processes of a user,
/// since any of them may name each other. It is a secret if a file has it (`PTL_KEY_FILE`).
fn key() -> Result<Key, Error> {
    let base = match std::env::var_os("PTL_KEY_FILE") {
        Some(path) => JobKey::read(path.as_ref())?,
        None => JobKey::from_bytes([0; 32]),
    };
    let uid = rustix::process::geteuid().as_raw();
    Ok(Key::of_bytes(*base.derive(&format!("portals {uid}")).expose()))
}

fn node_error(error: portals::NodeError) -> Error {
    match error {
        portals::NodeError::Rail(error) => Error::Rail(error),
        error => Error::Job {
            reason: error.to_string(),
        },
    }
}

fn io_error(step: &'static str, source: io::Error) -> Error {
    let remedy = "raise the limit of open files (ulimit -n), and check that Unix sockets are allowed here";
    Error::io(step, "this process", source, remedy)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn many_hosts_have_as_many_numbers() {
        let nids: HashSet<u32> = (0..4000)
            .map(|host| nid_of(&format!("node{host:04} net:[4026531840]")))
            .collect();
        assert_eq!(nids.len(), 4000);
        assert!(!nids.contains(&NID_ANY) && !nids.contains(&u32::MAX));
    }
}
