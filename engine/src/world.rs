//! The user's handle on a running job: who we are, sending and receiving, waiting, the end.

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use doorbell_fabric::map::process::Kept;
use doorbell_fabric::select::Selection;
use doorbell_job::control::{Control, Fates};
use doorbell_job::diagnose::WayNow;
use doorbell_job::ends;
use doorbell_job::error::{Awaited, Error, Waiting};
use doorbell_job::handle::Job;
use doorbell_job::launcher::{Door, lock};
use doorbell_job::rails::{Capture, Manage as _};
use doorbell_job::types::Status;
use doorbell_job::wait::Hook;
use doorbell_pml::{Counters, Rank};
use serde::Serialize;

use crate::ledger::Ledger;
use crate::progress::{Each, Envelope, Front, LATE, Look};

/// Between two looks whether a rank was met.
const MEETING: Duration = Duration::from_micros(50);

/// The context of the user's messages.
pub(crate) const USER: u16 = 0;

/// One rank's handle on the job.
///
/// It may be moved to another thread, but is used by one at a time: everything below it works without locks. A thread
/// cannot borrow it while another uses it:
///
/// ```compile_fail,E0277
/// let world = doorbell::init()?;
/// std::thread::scope(|s| {
///     s.spawn(|| world.send(0, 1, b"x")); // `World` is not `Sync`
/// });
/// # Ok::<(), doorbell::Error>(())
/// ```
///
/// ```
/// let world = doorbell::init()?;
/// assert_eq!(world.hello(0).map(|hello| hello.pid), Some(std::process::id()));
/// assert!(world.hello(1).is_none(), "there is no such rank");
/// assert!(world.resolutions().is_empty() && world.rail_how("shm").is_none());
/// # Ok::<(), doorbell::Error>(())
/// ```
///
/// A child of `fork` has no part in the job: its calls fail with [`Error::Forked`], and dropping its copy
/// does nothing.
///
/// Calls that wait take the deadline `wait.deadline`; [`World::within`] gives another one. Dropping the world takes
/// leave of the peers, for at most `wait.close`.
pub struct World {
    front: Kept<Front>,
    job: Kept<Job>,
    counters: Option<PathBuf>,
    ledger: Ledger,
    hook: RefCell<Option<Hook>>,
    limit: Duration,
    closed: bool,
    control: Option<Control>,
    fates: Fates,
    /// The launcher that starts more ranks, once known: the world's own, or that of the world it has grown from.
    spawner: RefCell<Option<Door>>,
    /// Whether that was opened for this world.
    opened: Cell<bool>,
    /// The number of ranks before it has grown.
    before: Option<u32>,
}

shows_job!(World, job);

/// What is known about a peer, for people and tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its rank.
    pub rank: u32,
    /// Its process id, in its own namespace.
    pub pid: u32,
    /// Which life of the process.
    pub incarnation: u64,
    /// Its host, as the kernel names it.
    pub host: String,
    /// Why it is lost; `None` while it is not.
    pub lost: Option<String>,
    /// The rails that lead to it, in the order of preference.
    pub rails: Vec<PeerRail>,
}

/// One rail to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerRail {
    /// The rail's name.
    pub name: String,
    /// Whether it is up.
    pub up: bool,
    /// Whether it is the one of small messages, or next in turn among equals; [`WayNow::role`] says what the others do.
    pub carries: bool,
}

impl World {
    pub(crate) fn assemble(
        front: Front,
        job: Job,
        counters: Option<PathBuf>,
        hook: Option<Hook>,
        fates: Fates,
    ) -> Self {
        let limit = *job.config().wait.deadline.get();
        Self {
            front: Kept::new(front),
            job: Kept::new(job),
            counters,
            ledger: Ledger::default(),
            hook: RefCell::new(hook),
            limit,
            closed: false,
            control: None,
            fates,
            spawner: RefCell::new(None),
            opened: Cell::new(false),
            before: None,
        }
    }

    pub(crate) fn fates(&self) -> &Fates {
        &self.fates
    }

    pub(crate) fn set_control(&mut self, control: Control) {
        self.control = Some(control);
    }

    /// The control plane, where `control.mode` has asked for one.
    ///
    /// ```
    /// use std::time::Duration;
    /// let world = doorbell::Builder::new().set("control.mode", "true").build()?;
    /// let control = world.control().expect("it was asked for");
    /// let events = control.oob().events();
    /// while let Some(event) = events.take() {
    ///     println!("{event:?}");
    /// }
    /// # world.close();
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    pub fn control(&self) -> Option<&Control> {
        self.control.as_ref().filter(|_| self.front.is_here())
    }

    /// The same world, started by a launcher that is to be taken leave of.
    pub(crate) fn under(mut self, door: Option<Door>) -> Self {
        self.job.set_launcher(door);
        *self.spawner.get_mut() = self.job.door().cloned();
        self
    }

    /// The same world, which has grown out of one of `before` ranks, and has new ones started by `spawner`.
    pub(crate) fn grown_from(mut self, before: u32, spawner: Option<Door>) -> Self {
        self.before = Some(before);
        *self.spawner.get_mut() = spawner;
        self
    }

    /// Who is asked for more ranks, where that is known.
    pub(crate) fn spawner(&self) -> Option<Door> {
        self.spawner.borrow().clone()
    }

    /// From here on this launcher is asked for more ranks, which was opened for this world.
    pub(crate) fn set_spawner(&self, door: Door) {
        *self.spawner.borrow_mut() = Some(door);
        self.opened.set(true);
    }

    /// How many ranks there were before this world has grown by [`World::spawn`]: those below are the old ones. `None` for
    /// a world that was never smaller.
    pub fn spawned(&self) -> Option<u32> {
        self.before
    }

    /// Ends the whole job, as far as the launcher has a call for that: it is told to end the other ranks, with the status
    /// `exit` and the `reason`. Then this process ends, with that status, without taking leave of anybody. Under
    /// `doorbell run`, and where the launcher only sees how its processes end, that is all that is needed.
    pub fn abort(mut self, exit: u8, reason: &str) -> ! {
        let door = self.job.take_door().or_else(|| self.spawner());
        ends::abort(door.filter(|_| self.front.is_here()), exit, reason)
    }

    /// One bounded pass of progress, for programs that compute for long (with a dedicated thread, none is needed).
    /// Returns the work done; zero means that nothing was found.
    pub fn progress(&self) -> usize {
        self.front.progress()
    }

    /// What is known about a peer; `None` when there is no such rank, or it was not met yet ([`World::hello`]).
    pub fn peer(&self, rank: u32) -> Option<Peer> {
        let hello = self.hello(rank)?;
        let report = self.front.call(move |core| {
            let report = core.pml.peer(Rank(rank))?;
            let rails = report.paths.iter().map(|path| PeerRail {
                name: core.rail_name(path.rail),
                up: path.up,
                carries: path.current,
            });
            Some((
                report.lost.map(|reason| reason.as_str().to_owned()),
                rails.collect(),
            ))
        });
        let (lost, rails) = report.ok().flatten().unwrap_or_default();
        Some(Peer {
            rank,
            pid: hello.pid,
            incarnation: hello.incarnation,
            host: hello.host.clone(),
            lost,
            rails,
        })
    }

    /// What the rails to a peer have recorded last about it: for each rail that keeps a recorder (`btl.recorder`) a
    /// heading, then one line per notable event, newest last. Errors tell the same ([`Error::PeerLost`],
    /// [`Error::Timeout`]).
    ///
    /// # Errors
    /// [`Error::Busy`] inside a callback, [`Error::Ended`] when the engine's thread has ended.
    pub fn recorded(&self, rank: u32) -> Result<Vec<String>, Error> {
        self.front.call(move |core| core.recent_of(&[rank]))
    }

    /// The rails to a peer as they are now, in the order in which both ends number them; none for a rank without.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn ways(&self, rank: u32) -> Result<Vec<WayNow>, Error> {
        let mut ways = self.front.call(move |core| core.ways_now(rank))?;
        for way in &mut ways {
            let mut chosen = self.selection(rank).into_iter().flat_map(Selection::chosen);
            if let Some((_, to)) = chosen.find(|(rail, _)| rail.as_str() == way.rail) {
                way.to = to.rail.to_string();
            }
        }
        Ok(ways)
    }

    /// Returns when a rank was met, at once where it was: for a program that is to find out at its start who is not there, or
    /// asks [`World::peer`] for it. Nothing is sent to that rank.
    ///
    /// ```
    /// let world = doorbell::init()?;
    /// world.meet(0)?;
    /// assert!(world.meet(1).is_err(), "there is no such rank");
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchRank`]; [`Error::PeerLost`] for one that is lost or cannot be met; [`Error::Timeout`] after
    /// `wait.deadline`.
    pub fn meet(&self, rank: u32) -> Result<(), Error> {
        let (mut waited, mut before) = (Duration::ZERO, Instant::now());
        while !self.front.call(move |core| core.meet(rank))?? {
            // A gap is time in which this process did not run: see `doorbell_job::wait::turns`.
            let now = Instant::now();
            waited += now.duration_since(std::mem::replace(&mut before, now)).min(LATE);
            if waited >= self.limit {
                let what = Awaited::Meeting { peer: rank };
                let late = self.front.call(move |core| core.expired(what, waited));
                return Err(late.unwrap_or_else(|error| error));
            }
            std::thread::sleep(MEETING);
        }
        Ok(())
    }

    /// The protocol's counters so far.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn counters(&self) -> Result<Counters, Error> {
        self.front.call(|core| *core.pml.counters())
    }

    /// Where other programs of the same user read this rank's counters while it lives
    /// (`doorbell_fabric::counters::Reader`); `None` with `counters.place = off`. What they see is at most a
    /// millisecond and 64 calls old, as long as the rank makes calls.
    pub fn counter_file(&self) -> Option<&Path> {
        self.counters.as_deref()
    }

    /// Ends the captures of this rank's rails (`udp.capture`), and tells what is in their files. Without this they end
    /// with the world.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn end_captures(&self) -> Result<Vec<Capture>, Error> {
        let config = self.config().clone();
        self.front.call(move |core| {
            let rails = core.pml.rails_mut();
            rails.filter_map(|(_, rail)| rail.end_capture(&config)).collect()
        })
    }

    /// Takes leave of the peers: what was accepted is pushed out, for at most `wait.close`. Dropping does the same.
    pub fn close(mut self) {
        self.take_leave();
    }

    /// # Errors
    /// [`Error::Forked`] in a child of the process that made this world.
    pub(crate) fn here(&self) -> Result<(), Error> {
        match self.front.is_here() {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    fn take_leave(&mut self) {
        if !self.front.is_here() {
            // A copy in a child of `fork`: the job, its launcher and its threads are the parent's.
            self.closed = true;
            std::mem::forget((self.control.take(), self.spawner.take()));
            return;
        }
        if !std::mem::replace(&mut self.closed, true) {
            let limit = *self.config().wait.close.get();
            self.front.close(limit);
            self.job.directory().close();
            if let Some(control) = self.control.take() {
                // Nobody agrees with one that falls.
                let falls = std::thread::panicking();
                control.end(if falls { Duration::ZERO } else { self.limit });
            }
            let (own, spawner) = (self.job.take_door(), self.spawner.take());
            if let Some(door) = own.or_else(|| spawner.clone().filter(|_| self.opened.get())) {
                ends::farewell(&door);
            } else if let Some(door) = spawner {
                lock(&door).tidy();
            }
        }
    }

    pub(crate) fn front(&self) -> &Front {
        &self.front
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Waits until `done` finds something.
    pub(crate) fn wait_look<R>(
        &self,
        limit: Duration,
        what: &dyn Fn() -> Awaited,
        done: &mut dyn FnMut(&mut dyn Look) -> Option<R>,
    ) -> Result<R, Error> {
        self.front
            .wait_until(limit, what, &mut |waiting| self.complain(waiting), done)
    }

    /// Waits until all that `left` holds have ended.
    pub(crate) fn wait_each(&self, limit: Duration, left: &mut impl Each) -> Result<(), Error> {
        self.front
            .wait_each(limit, left, &mut |waiting| self.complain(waiting))
    }

    /// Waits until the rails' devices have what was accepted for a rank (`None`: for any).
    pub(crate) fn hand_over(&self, to: Option<u32>, limit: Duration, what: &dyn Fn() -> Awaited) {
        self.front
            .hand_over(to, limit, what, &mut |waiting| self.complain(waiting));
    }

    /// Waits for a matching message.
    pub(crate) fn wait_probe(&self, envelope: Envelope, limit: Duration) -> Result<Status, Error> {
        self.front
            .probe(envelope, limit, &mut |waiting| self.complain(waiting))
    }

    /// Says once who waits for what.
    #[cold]
    pub(crate) fn complain(&self, waiting: &Waiting) {
        match self.hook.try_borrow_mut().as_deref_mut() {
            // Not while a panic unwinds through a scope that still waits: a second one would end the process.
            Ok(Some(hook)) if !std::thread::panicking() => hook(waiting),
            // In one write, because several ranks may say something at once; nobody can be told that nobody can be told.
            _ => _ = std::io::stderr().write_all(format!("doorbell: {waiting}\n").as_bytes()),
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.take_leave();
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "World(rank {} of {})", self.rank(), self.size())
    }
}
