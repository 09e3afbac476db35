//! The user's handle on a running job: this rank's place in it, progress, what is known about peers, and the
//! end.

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use doorbell_fabric::map::process::Kept;
use doorbell_fabric::select::Selection;
use doorbell_job::binding::Binding;
use doorbell_job::control::{Control, LostPeers};
use doorbell_job::diagnose::PathStatus;
use doorbell_job::ends;
use doorbell_job::error::{Awaited, Error, Waiting};
use doorbell_job::handle::Job;
use doorbell_job::launcher::{LauncherHandle, lock};
use doorbell_job::rails::{Capture, Manage as _};
use doorbell_job::types::Status;
use doorbell_job::wait::Hook;
use doorbell_pml::{Counters, Rank};
use serde::Serialize;

use crate::ledger::{Ledger, WindowKeys};
use crate::pieces::Pieces;
use crate::progress::{Each, Engine, Envelope, LATE, Look, RequestToken};

/// Interval between two checks whether a rank is connected.
const MEETING: Duration = Duration::from_micros(50);

/// The context number of the user's messages.
pub(crate) const USER: u16 = 0;

/// One rank's handle on the job.
///
/// It may be moved to another thread, but only one thread uses it at a time: everything below it works
/// without locks. A thread cannot borrow it while another uses it:
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
/// assert_eq!(world.rank_info(0).map(|info| info.pid), Some(std::process::id()));
/// assert!(world.rank_info(1).is_none(), "there is no such rank");
/// assert!(world.resolutions().is_empty() && world.rail_how("shm").is_none());
/// # Ok::<(), doorbell::Error>(())
/// ```
///
/// A child of `fork` has no part in the job: its calls fail with [`Error::Forked`], and dropping its copy
/// does nothing.
///
/// Calls that wait take the deadline `wait.deadline`; [`World::within`] sets another one. Dropping the world
/// closes it as [`World::close`] does.
pub struct World {
    engine: Kept<Engine>,
    job: Kept<Job>,
    binding: Option<Binding>,
    counters: Option<PathBuf>,
    ledger: Ledger,
    window_keys: WindowKeys,
    pieces: Pieces,
    hook: RefCell<Option<Hook>>,
    limit: Duration,
    closed: bool,
    control: Option<Control>,
    lost_peers: LostPeers,
    /// The launcher that starts more ranks, once known: this world's own, or that of the world it has grown
    /// from.
    spawner: RefCell<Option<LauncherHandle>>,
    /// Whether `spawner` was opened for this world.
    opened: Cell<bool>,
    /// The number of ranks before [`World::spawn`] added some.
    before: Option<u32>,
}

shows_job!(World, job);

/// What is known about a peer, for people and tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// The peer's rank.
    pub rank: u32,
    /// Its process id, in its own PID namespace.
    pub pid: u32,
    /// The incarnation of the process: a restarted one has another number.
    pub incarnation: u64,
    /// Its host name, as its kernel reports it.
    pub host: String,
    /// The reason for which it is lost; `None` while it is not.
    pub lost: Option<String>,
    /// The rails that lead to it, in order of preference.
    pub rails: Vec<PeerRail>,
}

/// One rail to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerRail {
    /// The rail's name.
    pub name: String,
    /// Whether the rail is up.
    pub up: bool,
    /// Whether it carries small messages, or is next in turn among equals; [`PathStatus::role`] describes
    /// what the other rails do.
    pub carries: bool,
}

impl World {
    pub(crate) fn assemble(
        engine: Engine,
        job: Job,
        counters: Option<PathBuf>,
        hook: Option<Hook>,
        lost_peers: LostPeers,
    ) -> Self {
        let limit = *job.config().wait.deadline.get();
        let pieces = Pieces::new(*job.config().lend.pieces.get());
        Self {
            engine: Kept::new(engine),
            job: Kept::new(job),
            binding: None,
            counters,
            ledger: Ledger::default(),
            window_keys: WindowKeys::default(),
            pieces,
            hook: RefCell::new(hook),
            limit,
            closed: false,
            control: None,
            lost_peers,
            spawner: RefCell::new(None),
            opened: Cell::new(false),
            before: None,
        }
    }

    /// Records where the two threads of this rank were bound to.
    pub(crate) fn bound(mut self, binding: Option<Binding>) -> Self {
        self.binding = binding;
        self
    }

    /// Where the two threads of this rank run: the cores of the thread that made this world, and that of the
    /// progress thread, with the reason if it shares its core or has lost it. `None` in inline mode.
    ///
    /// ```
    /// let world = doorbell::Builder::new().set("progress.mode", "dedicated").build()?;
    /// let binding = world.binding().expect("there is a progress thread");
    /// if let Some(why) = &binding.shares {
    ///     println!("the progress thread has no core of its own: {why}");
    /// }
    /// assert!(doorbell::Builder::new().set("progress.mode", "inline").build()?.binding().is_none());
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    pub fn binding(&self) -> Option<Binding> {
        let binding = self.binding.clone()?;
        let lost = self.engine.lost_core();
        Some(Binding {
            shares: lost.or(binding.shares),
            ..binding
        })
    }

    pub(crate) fn lost_peers(&self) -> &LostPeers {
        &self.lost_peers
    }

    pub(crate) fn set_control(&mut self, control: Control) {
        self.control = Some(control);
    }

    /// The control plane, if `control.mode` enables it.
    ///
    /// ```
    /// use std::time::Duration;
    /// let world = doorbell::Builder::new().set("control.mode", "true").build()?;
    /// let control = world.control().expect("control.mode is on");
    /// let events = control.oob().events();
    /// while let Some(event) = events.take() {
    ///     println!("{event:?}");
    /// }
    /// # world.close();
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    pub fn control(&self) -> Option<&Control> {
        self.control.as_ref().filter(|_| self.engine.is_here())
    }

    /// Sets the launcher that started this process, which the world leaves when it closes.
    pub(crate) fn under(mut self, launcher: Option<LauncherHandle>) -> Self {
        self.job.set_launcher(launcher);
        *self.spawner.get_mut() = self.job.launcher_handle().cloned();
        self
    }

    /// Marks a world that has grown from one of `before` ranks, and whose new ranks `spawner` starts.
    pub(crate) fn grown_from(mut self, before: u32, spawner: Option<LauncherHandle>) -> Self {
        self.before = Some(before);
        *self.spawner.get_mut() = spawner;
        self
    }

    /// Returns the launcher that starts more ranks, if it is known.
    pub(crate) fn spawner(&self) -> Option<LauncherHandle> {
        self.spawner.borrow().clone()
    }

    /// Records the launcher that starts more ranks. It was opened for this world, which closes it.
    pub(crate) fn set_spawner(&self, launcher: LauncherHandle) {
        *self.spawner.borrow_mut() = Some(launcher);
        self.opened.set(true);
    }

    /// The number of ranks before [`World::spawn`] added some: the ranks below it are the old ones. `None`
    /// for a world that was never smaller.
    pub fn spawned(&self) -> Option<u32> {
        self.before
    }

    /// Ends the whole job, as far as the launcher supports that: it sends the launcher the request to end the
    /// other ranks, with the status `exit` and the `reason`, and then ends this process with that status,
    /// without closing the connections to its peers. Under `doorbell run`, and where the launcher only sees
    /// how its processes end, the exit status alone ends the job.
    pub fn abort(mut self, exit: u8, reason: &str) -> ! {
        let launcher = self.job.take_launcher().or_else(|| self.spawner());
        ends::abort(launcher.filter(|_| self.engine.is_here()), exit, reason)
    }

    /// Makes one bounded pass of progress, for programs that compute for a long time (with a dedicated
    /// thread, it does nothing). Returns the amount of work done; zero means that there was none.
    pub fn progress(&self) -> usize {
        self.engine.progress()
    }

    /// What is known about a peer; `None` when there is no such rank, or it is not connected yet
    /// ([`World::rank_info`]).
    pub fn peer(&self, rank: u32) -> Option<Peer> {
        let info = self.rank_info(rank)?;
        let report = self.engine.call(move |core| {
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
            pid: info.pid,
            incarnation: info.incarnation,
            host: info.host.clone(),
            lost,
            rails,
        })
    }

    /// The latest events that the rails to a peer have recorded: for each rail with a recorder
    /// (`btl.recorder`) a heading, then one line per event, newest last. [`Error::PeerLost`] and
    /// [`Error::Timeout`] contain the same lines.
    ///
    /// # Errors
    /// [`Error::Busy`] inside a callback, [`Error::Ended`] when the engine's thread has ended.
    pub fn recorded(&self, rank: u32) -> Result<Vec<String>, Error> {
        self.engine.call(move |core| core.recent_of(&[rank]))
    }

    /// The current state of the rails to a peer, in the order in which both ends number them; empty for a
    /// rank without rails.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn paths(&self, rank: u32) -> Result<Vec<PathStatus>, Error> {
        let mut paths = self.engine.call(move |core| core.path_statuses(rank))?;
        for path in &mut paths {
            let mut chosen = self.selection(rank).into_iter().flat_map(Selection::chosen);
            if let Some((_, to)) = chosen.find(|(rail, _)| rail.as_str() == path.rail) {
                path.to = to.rail.to_string();
            }
        }
        Ok(paths)
    }

    /// Waits until a rank is connected; returns at once if it already is. For programs that check at startup
    /// that all ranks are present, or that read [`World::peer`]. Sends nothing to that rank.
    ///
    /// ```
    /// let world = doorbell::init()?;
    /// world.meet(0)?;
    /// assert!(world.meet(1).is_err(), "there is no such rank");
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchRank`]; [`Error::PeerLost`] for one that is lost or cannot be connected;
    /// [`Error::Timeout`] after `wait.deadline`.
    pub fn meet(&self, rank: u32) -> Result<(), Error> {
        let (mut waited, mut before) = (Duration::ZERO, Instant::now());
        while !self.engine.call(move |core| core.meet(rank))?? {
            // A longer gap means that the process itself was not running: see `doorbell_job::wait::turns`.
            let now = Instant::now();
            waited += now.duration_since(std::mem::replace(&mut before, now)).min(LATE);
            if waited >= self.limit {
                let what = Awaited::Meeting { peer: rank };
                let late = self.engine.call(move |core| core.expired(what, waited));
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
        self.engine.call(|core| *core.pml.counters())
    }

    /// The file in which other programs of the same user can read this rank's counters while it lives
    /// (`doorbell_fabric::counters::Reader`); `None` with `counters.place = off`. As long as the rank makes
    /// calls, the values are at most a millisecond and 64 calls old.
    pub fn counter_file(&self) -> Option<&Path> {
        self.counters.as_deref()
    }

    /// Ends the captures of this rank's rails (`udp.capture`) and returns what their files contain. Otherwise
    /// they end with the world.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn end_captures(&self) -> Result<Vec<Capture>, Error> {
        let config = self.config().clone();
        self.engine.call(move |core| {
            let rails = core.pml.rails_mut();
            rails.filter_map(|(_, rail)| rail.end_capture(&config)).collect()
        })
    }

    /// Closes the connections to the peers, after pushing out what was accepted, for at most `wait.close`.
    /// Dropping does the same.
    pub fn close(mut self) {
        self.take_leave();
    }

    /// # Errors
    /// [`Error::Forked`] in a child of the process that made this world.
    pub(crate) fn here(&self) -> Result<(), Error> {
        match self.engine.is_here() {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    fn take_leave(&mut self) {
        if !self.engine.is_here() {
            // A copy in a child of `fork`: the job, its launcher and its threads belong to the parent.
            self.closed = true;
            std::mem::forget((self.control.take(), self.spawner.take()));
            return;
        }
        if !std::mem::replace(&mut self.closed, true) {
            let limit = *self.config().wait.close.get();
            if let Some(control) = &mut self.control {
                control.release_cores();
            }
            self.pieces.detach(&self.engine);
            self.engine.close(limit);
            self.job.directory().close();
            if let Some(control) = self.control.take() {
                // While panicking, skip the collective shutdown.
                let falls = std::thread::panicking();
                control.end(if falls { Duration::ZERO } else { self.limit });
            }
            let (own, spawner) = (self.job.take_launcher(), self.spawner.take());
            if let Some(launcher) = own.or_else(|| spawner.clone().filter(|_| self.opened.get())) {
                ends::farewell(&launcher);
            } else if let Some(launcher) = spawner {
                lock(&launcher).tidy();
            }
        }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn window_keys(&self) -> &WindowKeys {
        &self.window_keys
    }

    pub(crate) fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Waits until a send needs no further call of this rank, for at most the world's limit.
    pub(crate) fn hand_to_peer(&self, token: RequestToken, envelope: Envelope) -> Result<(), Error> {
        let what = || envelope.awaited_send();
        self.engine
            .hand_to_peer(token, self.limit, &what, &mut |waiting| self.complain(waiting))
    }

    /// Waits until the operations on windows of a rank (`None`: of all ranks) have ended that are open now.
    pub(crate) fn wait_operations(
        &self,
        rank: Option<u32>,
        limit: Duration,
        what: Awaited,
    ) -> Result<(), Error> {
        self.engine
            .flush_operations(rank, limit, what, &mut |waiting| self.complain(waiting))
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Waits until `done` returns something.
    pub(crate) fn wait_look<R>(
        &self,
        limit: Duration,
        what: &dyn Fn() -> Awaited,
        done: &mut dyn FnMut(&mut dyn Look) -> Option<R>,
    ) -> Result<R, Error> {
        self.engine
            .wait_until(limit, what, &mut |waiting| self.complain(waiting), done)
    }

    /// Waits until all requests in `left` have ended.
    pub(crate) fn wait_each(&self, limit: Duration, left: &mut impl Each) -> Result<(), Error> {
        self.engine
            .wait_each(limit, left, &mut |waiting| self.complain(waiting))
    }

    /// Waits until the devices have what their rails accepted for a rank (`None`: for any).
    pub(crate) fn hand_over(&self, to: Option<u32>, limit: Duration, what: &dyn Fn() -> Awaited) {
        self.engine
            .hand_over(to, limit, what, &mut |waiting| self.complain(waiting));
    }

    /// Waits for a matching message.
    pub(crate) fn wait_probe(&self, envelope: Envelope, limit: Duration) -> Result<Status, Error> {
        self.engine
            .probe(envelope, limit, &mut |waiting| self.complain(waiting))
    }

    /// Reports a wait that has been quiet for `wait.quiet`, through the hook or on stderr.
    #[cold]
    pub(crate) fn complain(&self, waiting: &Waiting) {
        match self.hook.try_borrow_mut().as_deref_mut() {
            // Not while a panic unwinds through a scope that still waits: a second panic would abort the
            // process.
            Ok(Some(hook)) if !std::thread::panicking() => hook(waiting),
            // One write, since several ranks may write at once. If stderr is closed, there is nowhere to
            // report this.
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
