//! A member with Portals interfaces: its name is a process id, {nid, pid}.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use doorbell_am_portals as portals;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::Message as _;
use doorbell_fabric::ni::{Kind, Ni, NiError, NiLimits, PID_ANY, PID_MAX, Process};
use doorbell_fabric::time::Time;
use doorbell_oob::JobKey;
use doorbell_pml::RailId;

use super::card::{Card, Name};
use super::desk::{Desk, Place};
use super::layer::{MemberLayer, PeerName};
use super::words::Words;
use super::{Member, host, io_error, leads_out, prepare};
use crate::config::Config;
use crate::connect::PeerPath;
use crate::error::Error;
use crate::meet::{Key, RailEntry};
use crate::rails::AnyRail;
use crate::random;

/// Process ids of processes that request no particular one: above all that can be requested, and below
/// [`PID_ANY`].
const OWN_IDS: std::ops::Range<u32> = PID_MAX + 1..PID_ANY;

/// Arrivals that one pass of a close shows at most.
const BUDGET: usize = 64;

/// The requested process id belongs to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken;

/// A process with Portals interfaces.
pub type PortalsMember = Member<PortalsLayer>;

/// A Portals node above the rails of a member.
pub struct PortalsLayer {
    node: portals::Node<AnyRail>,
    me: Process,
    /// The cards of processes on other hosts, in the launcher's store.
    words: Option<Words>,
    /// Whether an unknown process has connected over a network.
    strangers: bool,
}

impl PortalsLayer {
    /// Whether a process is open here, or is this one.
    fn knows(&self, process: Process) -> bool {
        process == self.me || self.node.knows(process)
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
}

impl MemberLayer for PortalsLayer {
    type Peer = Process;

    const GRACE: Duration = Duration::from_millis(250);

    fn each_rail(&self) -> impl Iterator<Item = (RailId, &AnyRail)> {
        self.node.rails().map(|(rail, found)| (RailId(rail.0), found))
    }

    fn add_rail(&mut self, rail: AnyRail) -> Result<(), Error> {
        self.node.add_rail(rail).map(drop).map_err(node_error)
    }

    fn rail_mut(&mut self, rail: RailId) -> Option<&mut AnyRail> {
        self.node.rail_mut(portals::RailId(rail.0))
    }

    fn open(&mut self, peer: Process, rail: RailId, to: &RailEntry) -> Result<(), Error> {
        self.node
            .connect(peer, portals::RailId(rail.0), &to.address, to.life())
            .map_err(node_error)
    }

    fn admit(&mut self, card: &Card, _: Time) -> Option<Process> {
        card.process().filter(|process| !self.knows(*process))
    }

    // A process that cannot be opened gets no notice: it waits for an answer until it gives this one up.
    fn opened(&mut self, _: &Desk, _: Process, _: Result<Vec<PeerPath>, Error>) {}

    // Processes are called by `Desk::call`, which returns its error.
    fn not_reached(&mut self, _: &PeerName, _: String) {}

    fn ended(&mut self, PeerName(name): &PeerName, _: Time, reason: DownReason) {
        if let Name::Process(process) = name {
            self.node.ended(*process, reason);
        }
    }

    fn tend(&mut self, _: &Desk, _: Time) -> usize {
        self.listen();
        0
    }

    fn poll(&mut self) -> usize {
        self.node.poll(BUDGET)
    }

    fn progress(&mut self, _: &Desk, now: Time) -> usize {
        self.node.progress(now)
    }

    fn next_deadline(&self) -> Option<Time> {
        self.node.next_deadline()
    }

    fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        self.node.arm(each)
    }

    fn disarm(&mut self) {
        self.node.disarm();
    }

    fn flush(&mut self) {
        self.node.flush();
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        self.node.close(now, by)
    }

    fn forget(&mut self) {
        // `finish` takes the launcher's descriptor.
        self.words = None;
    }
}

impl Member<PortalsLayer> {
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
        let nid = host::nid_of(&host::name());
        let Some((place, me)) = take(nid, pid)? else {
            return Ok(Err(Taken));
        };
        let prepared = prepare(config)?;
        let mut settings = portals::Config::new(me);
        settings.uid = rustix::process::geteuid().as_raw();
        settings.seed = random::number()?;
        settings.patience = *prepared.config.pml.patience.get();
        let make = |desk: &Desk, rails: &[AnyRail]| {
            let words = match launcher.filter(|_| rails.iter().any(leads_out)) {
                Some(launcher) => {
                    Words::put(launcher, desk.card()).map_err(|reason| Error::Job { reason })?
                }
                None => None,
            };
            Ok(PortalsLayer {
                node: portals::Node::new(settings),
                me,
                words,
                strangers: false,
            })
        };
        Self::assemble(place, prepared, &key()?, make).map(Ok)
    }

    /// Returns this process's id.
    pub fn process(&self) -> Process {
        self.layer.me
    }

    /// Whether a process is open here, or is this one.
    pub fn knows(&self, process: Process) -> bool {
        self.layer.knows(process)
    }

    /// Opens a process by its card.
    ///
    /// # Errors
    /// When no rail leads to it, with the reasons.
    pub fn meet(&mut self, card: &Card) -> Result<(), Error> {
        match card.process().filter(|process| !self.knows(*process)) {
            Some(process) => self.open(process, card).map(drop),
            None => Ok(()),
        }
    }

    /// Reads the cards of processes on other hosts and opens these, until `process` is open, or all cards are
    /// read for `None`. Uses the launcher's descriptor, so it must only run inside a call of the program.
    /// Returns the error of the last process that could not be opened.
    #[cold]
    pub fn look_up(&mut self, process: Option<Process>) -> Option<Error> {
        self.layer.strangers = false;
        let mut trouble = None;
        while process.is_none_or(|process| !self.knows(process)) {
            let ours = self.desk.card();
            let Some(card) = self.layer.words.as_mut().and_then(|words| words.next(ours)) else {
                break;
            };
            // Processes of this host connect to each other's listeners.
            if !card.name.is_beside(&ours.name) {
                trouble = self.meet(&card).err().or(trouble);
            } else if card.info.host != ours.info.host {
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

    /// Whether an unknown process has connected, which [`PortalsMember::look_up`] may find.
    #[inline]
    pub fn has_strangers(&self) -> bool {
        self.layer.strangers
    }

    /// Initializes an interface, or counts one more user of it; see [`portals::Node::ni_init`].
    ///
    /// # Errors
    /// Those of [`portals::Node::ni_init`].
    pub fn ni_init(&mut self, kind: Kind, desired: Option<&NiLimits>) -> Result<NiLimits, NiError> {
        self.layer.node.ni_init(kind, desired)
    }

    /// Ends one use of an interface; see [`portals::Node::ni_fini`].
    ///
    /// # Errors
    /// Those of [`portals::Node::ni_fini`].
    pub fn ni_fini(&mut self, kind: Kind) -> Result<(), NiError> {
        self.layer.node.ni_fini(kind)
    }

    /// Whether memory of this process is still being written; see [`portals::Node::is_writing`].
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.layer.node.is_writing()
    }

    /// Sets the process of each rank.
    ///
    /// # Errors
    /// [`NiError::Ignored`] when the map was set before; [`NiError::NoInit`] without such an interface.
    pub fn set_map(&mut self, kind: Kind, map: &[Process]) -> Result<(), NiError> {
        self.layer.node.set_map(kind, map)
    }

    /// Returns the map that was set.
    ///
    /// # Errors
    /// [`NiError::NoInit`] without such an interface.
    pub fn map(&self, kind: Kind) -> Result<&[Process], NiError> {
        self.layer.node.get_map(kind)
    }

    /// Returns an interface, for one call.
    #[inline]
    pub fn ni(&mut self, kind: Kind) -> impl Ni + '_ {
        self.layer.node.ni(kind)
    }

    /// Delivers arrivals to the interfaces; see [`Ni::poll`].
    #[inline]
    pub fn poll(&mut self, budget: usize) -> usize {
        self.layer.node.poll(budget)
    }
}

impl std::fmt::Debug for Member<PortalsLayer> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Process { nid, pid } = self.process();
        write!(out, "Member(nid {nid}, pid {pid})")
    }
}

impl Desk {
    /// Returns this process's id; `None` where its name is a random one.
    pub fn process(&self) -> Option<Process> {
        self.card().process()
    }

    /// Connects to another process of this host, exchanges cards, and returns its card. Serves other
    /// connections meanwhile.
    ///
    /// # Errors
    /// When there is no such process, its card does not match, or it does not answer until then.
    pub fn call(&self, process: Process, until: Instant) -> io::Result<Card> {
        self.call_name(Name::Process(process), until)
    }
}

fn take(nid: u32, pid: Option<u32>) -> Result<Option<(Place, Process)>, Error> {
    let taken = |pid| {
        let process = Process::physical(nid, pid);
        let place = Place::of_process(process).map_err(|source| io_error("take a process id", source));
        place.map(|place| place.map(|place| (place, process)))
    };
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
