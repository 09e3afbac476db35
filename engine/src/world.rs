//! The user's handle on a running job: who we are, sending and receiving, waiting, the end.

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use doorbell_fabric::map::process::Kept;
use doorbell_fabric::memory::{Region, RegionSlice};
use doorbell_fabric::select::Selection;
use doorbell_job::acm::Resolution;
use doorbell_job::config::Config;
use doorbell_job::control::{Control, Fates};
use doorbell_job::diagnose::WayNow;
use doorbell_job::error::{Awaited, Error, Waiting};
use doorbell_job::launcher::Door;
use doorbell_job::meet::Hello;
use doorbell_job::rails::Capture;
use doorbell_job::ranks::Directory;
use doorbell_job::types::{Source, Status, Tag};
use doorbell_job::wait::Hook;
use doorbell_oob::launch::Kind;
use doorbell_pml::{Counters, Rank};
use serde::Serialize;

use crate::message::Message;
use crate::progress::{Each, Envelope, Front, LATE, Look};
use crate::raw::Raw;
use crate::request::{Phase, Request};
use crate::scope::{self, Ledger, Scope};
use crate::spawn::{self, Spawn};
use crate::within::Within;

/// Time for what a launcher is told at the end.
const LAST_WORDS: Duration = Duration::from_secs(5);
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
/// A child of `fork` has no part in the job: its calls fail with [`Error::Forked`], and dropping its copy
/// does nothing.
///
/// Calls that wait take the deadline `wait.deadline`; [`World::within`] gives another one. Dropping the world takes
/// leave of the peers, for at most `wait.close`.
pub struct World {
    front: Kept<Front>,
    rank: u32,
    config: Config,
    directory: Kept<Directory>,
    counters: Option<PathBuf>,
    met_over: Option<SocketAddr>,
    hows: Vec<(String, String)>,
    ledger: Ledger,
    hook: RefCell<Option<Hook>>,
    limit: Duration,
    closed: bool,
    control: Option<Control>,
    fates: Fates,
    door: Option<Door>,
    /// Who is asked for more ranks, once that was known: the world's own launcher, or that of the world it has grown from.
    spawner: RefCell<Option<Door>>,
    /// Whether that was opened for this world.
    opened: Cell<bool>,
    /// How many ranks there were before it has grown.
    before: Option<u32>,
}

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
        rank: u32,
        config: Config,
        directory: Directory,
        counters: Option<PathBuf>,
        hook: Option<Hook>,
    ) -> Self {
        let limit = *config.wait.deadline.get();
        Self {
            front: Kept::new(front),
            rank,
            config,
            directory: Kept::new(directory),
            counters,
            met_over: None,
            hows: Vec::new(),
            ledger: Ledger::default(),
            hook: RefCell::new(hook),
            limit,
            closed: false,
            control: None,
            fates: Fates::default(),
            door: None,
            spawner: RefCell::new(None),
            opened: Cell::new(false),
            before: None,
        }
    }

    /// The same world, of ranks that met over a connection.
    pub(crate) fn over(mut self, met_over: Option<SocketAddr>) -> Self {
        self.met_over = met_over;
        self
    }

    /// The same world, whose rails hear of losses by these.
    pub(crate) fn with_fates(mut self, fates: Fates) -> Self {
        self.fates = fates;
        self
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
        self.door = door;
        *self.spawner.get_mut() = self.door.clone();
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

    /// Who is asked for more ranks: opened when that is not known. What was opened is taken leave of at the end.
    pub(crate) fn door_to_ask(&self) -> Result<Door, Error> {
        if let Some(door) = self.spawner() {
            return Ok(door);
        }
        let door = spawn::open_door(self)?;
        *self.spawner.borrow_mut() = Some(door.clone());
        self.opened.set(true);
        Ok(door)
    }

    /// The same world, whose rails were had in these ways.
    pub(crate) fn with_hows(mut self, hows: Vec<(String, String)>) -> Self {
        self.hows = hows;
        self
    }

    /// How the addresses of peers on other hosts were resolved, where `acm.mode` has the address service asked; empty
    /// otherwise.
    ///
    /// ```
    /// let world = doorbell::init()?;
    /// assert!(world.resolutions().is_empty());
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    pub fn resolutions(&self) -> Vec<Resolution> {
        self.directory.resolutions()
    }

    /// In which of several ways a rail was had, in words, where its kind has several: the mode of an xdp rail, as the kernel
    /// says it.
    ///
    /// ```
    /// let world = doorbell::init()?;
    /// assert_eq!(world.rail_how("shm"), None);
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    pub fn rail_how(&self, rail: &str) -> Option<&str> {
        let found = self.hows.iter().find(|(name, _)| name == rail)?;
        Some(&found.1)
    }

    /// This process's rank, from 0.
    #[inline]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks the job has.
    #[inline]
    pub fn size(&self) -> u32 {
        self.directory.size()
    }

    /// The other side's address, when the two ranks met over a connection ([`crate::Builder::build_over`]).
    pub fn met_over(&self) -> Option<SocketAddr> {
        self.met_over
    }

    /// By which launcher this rank was started, when that was not `doorbell run`.
    pub fn launcher(&self) -> Option<Kind> {
        let door = self.door.as_ref()?;
        Some(door.lock().unwrap_or_else(PoisonError::into_inner).kind())
    }

    /// How many ranks there were before this world has grown by [`World::spawn`]: those below are the old ones. `None` for
    /// a world that was never smaller.
    pub fn spawned(&self) -> Option<u32> {
        self.before
    }

    /// Starts more ranks, and gives a new world of the old ones, which keep their numbers, and the new ones behind them. All
    /// ranks of this world call it together, and all of it is done within about `limit`; what rank 0 says counts. In the new
    /// processes, [`crate::init`] gives the same new world, and [`World::spawned`] how many were there before.
    ///
    /// This world goes on beside the new one, and each ends by itself. The new one has rails of its own. New ranks end as
    /// those of any job: with 0 when they are done, while the others go on; a failure is the job's, as its launcher sees it.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use doorbell::Spawn;
    /// let world = doorbell::init()?;
    /// if world.spawned().is_none() {
    ///     let more = Spawn::new("./worker").arg("--fast").ranks(2);
    ///     let grown = world.spawn(more, Duration::from_secs(30))?;
    ///     grown.send(world.size(), 7, b"to the first of the new ones")?;
    ///     grown.close();
    /// }
    /// world.barrier()?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotSpawned`], at all ranks in the same words, when there is no such program, the launcher starts no more, a
    /// new process ends before it has joined, or `limit` passes: then this world goes on as if nothing had been asked, and
    /// what was started is ended as far as the launcher can do that. As [`World::barrier`] when the ranks of this world
    /// do not come together.
    pub fn spawn(&self, what: Spawn, limit: Duration) -> Result<Self, Error> {
        self.here()?;
        spawn::spawn(self, &what, limit)
    }

    /// Ends the whole job, as far as the launcher has a call for that: it is told to end the other ranks, with the status
    /// `exit` and the `reason`. Then this process ends, with that status, without taking leave of anybody. Under
    /// `doorbell run`, and where the launcher only sees how its processes end, that is all that is needed.
    pub fn abort(mut self, exit: u8, reason: &str) -> ! {
        let door = self.door.take().or_else(|| self.spawner());
        if let Some(door) = door.filter(|_| self.front.is_here()) {
            // One that cannot be told sees how we end.
            let mut door = door.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = door.abort(exit, reason, LAST_WORDS);
        }
        std::process::exit(i32::from(exit))
    }

    /// The configuration in use.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The same blocking calls with another deadline than `wait.deadline`.
    ///
    /// ```
    /// # let world = doorbell::init()?;
    /// use std::time::Duration;
    /// let mut buffer = [0; 8];
    /// let error = world.within(Duration::from_millis(10)).recv(0, 1, &mut buffer).unwrap_err();
    /// assert_eq!(error.code(), "timeout");
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    #[inline]
    pub fn within(&self, limit: Duration) -> Within<'_> {
        Within { world: self, limit }
    }

    #[inline]
    fn usual(&self) -> Within<'_> {
        self.within(self.limit)
    }

    /// Sends `data` to rank `to`; returns when it may be changed again, and needs no later call to leave this
    /// process (which does not mean that it was received). A rank that does not answer yet is waited for,
    /// for the call's limit at most; after that, the message stays queued, and each later call moves it on.
    ///
    /// # Errors
    /// An unknown or lost rank; [`Error::Timeout`].
    #[inline(always)]
    pub fn send(&self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        scope::send::<false>(self, Envelope::to(USER, to, tag, false), data, self.limit)
    }

    /// As [`World::send`], with a promise: more follows at once. The message may stay with the rail until the next call
    /// that is not `send_more` (a send, a receive, [`World::progress`], …), so that a rail whose doorbell is a system
    /// call takes many with one. It leaves by itself when the rail has no room for another. `FI_MORE` of libfabric,
    /// `MSG_MORE` of sockets. In dedicated mode the progress thread gathers by itself, and there is no difference.
    ///
    /// ```
    /// use doorbell::World;
    /// # fn example(world: &World) -> Result<(), doorbell::Error> {
    /// for (n, line) in ["one", "two", "three"].iter().enumerate() {
    ///     world.send_more(1, n as u64, line.as_bytes())?;
    /// }
    /// world.send(1, 3, b"and that was it")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`World::send`].
    #[inline(always)]
    pub fn send_more(&self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        scope::send::<true>(self, Envelope::to(USER, to, tag, false), data, self.limit)
    }

    /// Sends `data` and returns when a receive at rank `to` has matched it.
    ///
    /// # Errors
    /// As [`World::send`].
    pub fn ssend(&self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        self.usual().ssend(to, tag, data)
    }

    /// Sends `data` in buffered mode: what no rail takes now is copied, and the call returns at once.
    ///
    /// # Errors
    /// An unknown or lost rank; [`Error::Full`] when `pml.buffer` bytes wait already: make progress and try again;
    /// [`Error::Layout`] for more bytes than that.
    pub fn bsend(&self, to: u32, tag: u64, data: &[u8]) -> Result<(), Error> {
        Raw::of(self, USER).inject(to, tag, data)
    }

    /// Receives a message that matches into `into`.
    ///
    /// ```
    /// # let world = doorbell::init()?;
    /// use doorbell::{Source, Tag};
    /// let mut buffer = [0; 64];
    /// world.send(0, 7, b"to myself")?;
    /// let status = world.recv(Source::Any, Tag::any(), &mut buffer)?;
    /// assert_eq!((status.source, status.tag, &buffer[..status.len]), (0, 7, &b"to myself"[..]));
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// An unknown or lost rank; [`Error::Truncated`] when the message is longer; [`Error::Timeout`].
    #[inline(always)]
    pub fn recv(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        into: &mut [u8],
    ) -> Result<Status, Error> {
        scope::recv(
            self,
            Envelope::from(USER, from.into(), tag.into()),
            into,
            self.limit,
        )
    }

    /// Waits until a matching message is there, and leaves it there.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::PeerLost`] when the one rank that it may come from is lost.
    pub fn probe(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Status, Error> {
        self.usual().probe(from, tag)
    }

    /// Looks once whether a matching message is there.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn iprobe(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Option<Status>, Error> {
        let envelope = Envelope::from(USER, from.into(), tag.into());
        self.front.call(move |core| {
            core.poll_or_progress();
            core.probe(envelope)
        })
    }

    /// Waits until a matching message is there, and takes it out of matching: no other receive can get it.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn mprobe(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Message<'_>, Error> {
        self.usual().mprobe(from, tag)
    }

    /// Looks once for a matching message, and takes it out of matching.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Busy`].
    pub fn improbe(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Option<Message<'_>>, Error> {
        Message::claim(self, Envelope::from(USER, from.into(), tag.into()))
    }

    /// Runs `work` with a [`Scope`] in which buffers may be lent to requests. When `work` returns (or panics), every
    /// request of the scope is waited for, at most for `wait.deadline` (after an error of `work`: `wait.close`); what is
    /// left then is ended by force, and only then this call returns. So it does not matter what happens to the handles:
    ///
    /// ```
    /// # let world = doorbell::init()?;
    /// let (out, mut into) = (*b"eight by", [0; 8]);
    /// world.scope(|s| {
    ///     let receive = s.irecv(0, 1, &mut into)?;
    ///     std::mem::forget(s.isend(0, 1, &out)?); // even this is sound
    ///     receive.wait()?;
    ///     Ok(())
    /// })?;
    /// assert_eq!(into, out);
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// A buffer cannot be used while a request has it:
    ///
    /// ```compile_fail,E0502
    /// # let world = doorbell::init()?;
    /// let mut into = [0; 8];
    /// world.scope(|s| {
    ///     let receive = s.irecv(0, 1, &mut into)?;
    ///     println!("{into:?}"); // still lent
    ///     receive.wait()
    /// })?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// a request cannot leave its scope:
    ///
    /// ```compile_fail
    /// # let world = doorbell::init()?;
    /// let mut into = [0; 8];
    /// let escaped = world.scope(|s| s.irecv(0, 1, &mut into))?;
    /// escaped.wait()?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// and a buffer that lives shorter than the scope cannot be lent:
    ///
    /// ```compile_fail,E0597
    /// # let world = doorbell::init()?;
    /// world.scope(|s| {
    ///     let mut into = [0; 8];
    ///     s.irecv(0, 1, &mut into)?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of `work`, else the first error of a request that nobody waited for; [`Error::Timeout`];
    /// [`Error::Busy`] in a hook, and then `work` is not called.
    pub fn scope<'env, T>(
        &'env self,
        work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        scope::run(self, self.limit, work)
    }

    /// Makes `length` bytes of memory that the engine may share: for requests that outlive any scope, and for peers.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn region(&self, length: usize) -> Result<Region, Error> {
        Ok(Region::new(length)?)
    }

    /// Starts sending a region's slice, outside any scope. The bytes must not be changed before the request has ended;
    /// if they are, the receiver gets a mixture.
    ///
    /// ```
    /// # let world = doorbell::init()?;
    /// let region = world.region(64)?;
    /// region.write(0, b"shared");
    /// let receive = world.irecv_region(0, 3, region.slice(32, 6).unwrap())?;
    /// world.isend_region(0, 3, region.slice(0, 6).unwrap())?.wait()?;
    /// receive.wait()?;
    /// let mut bytes = [0; 6];
    /// region.read(32, &mut bytes);
    /// assert_eq!(&bytes, b"shared");
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// An unknown rank, or a lost one.
    pub fn isend_region(&self, to: u32, tag: u64, slice: RegionSlice) -> Result<Request<'_>, Error> {
        self.send_region(Envelope::to(USER, to, tag, false), slice)
    }

    /// As [`World::isend_region`]; it ends when a receive has matched it.
    ///
    /// # Errors
    /// As [`World::isend_region`].
    pub fn issend_region(&self, to: u32, tag: u64, slice: RegionSlice) -> Result<Request<'_>, Error> {
        self.send_region(Envelope::to(USER, to, tag, true), slice)
    }

    fn send_region(&self, envelope: Envelope, slice: RegionSlice) -> Result<Request<'_>, Error> {
        let len = slice.len();
        let phase = match self.front.send_region(envelope, slice)? {
            Some(ticket) => Phase::Open(ticket),
            None => Phase::Done(Status {
                source: envelope.peer(),
                tag: envelope.tag,
                len,
            }),
        };
        Ok(Request {
            world: self,
            phase,
            lent: None,
            envelope,
            sends: true,
        })
    }

    /// Starts receiving into a region's slice, outside any scope.
    ///
    /// # Errors
    /// An unknown rank, or a lost one.
    pub fn irecv_region(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        slice: RegionSlice,
    ) -> Result<Request<'_>, Error> {
        let envelope = Envelope::from(USER, from.into(), tag.into());
        let ticket = self.front.recv_region(envelope, slice)?;
        Ok(Request {
            world: self,
            phase: Phase::Open(ticket),
            lent: None,
            envelope,
            sends: false,
        })
    }

    /// Waits until one of `requests` has ended, and tells which; `None` when none of them is under way any more.
    ///
    /// # Errors
    /// Those of the request that ended; [`Error::Timeout`], and then all go on.
    pub fn wait_any(&self, requests: &mut [Request<'_>]) -> Result<Option<(usize, Status)>, Error> {
        self.usual().wait_any(requests)
    }

    /// Waits until all of `requests` have ended; [`Request::status`] then tells how.
    ///
    /// # Errors
    /// The first error among them; [`Error::Timeout`], and then those under way go on.
    pub fn wait_all(&self, requests: &mut [Request<'_>]) -> Result<(), Error> {
        self.usual().wait_all(requests)
    }

    /// Returns when every rank has called it: a dissemination barrier of ⌈log₂ n⌉ steps.
    ///
    /// # Errors
    /// A lost rank; [`Error::Timeout`], which names the rank and the step.
    pub fn barrier(&self) -> Result<(), Error> {
        self.usual().barrier()
    }

    /// Gives `data` of rank `root` to every rank: a binomial tree of ⌈log₂ n⌉ steps. Equally long everywhere.
    ///
    /// # Errors
    /// A lost rank; [`Error::Timeout`]; [`Error::Truncated`] when the lengths differ.
    pub fn broadcast(&self, root: u32, data: &mut [u8]) -> Result<(), Error> {
        self.usual().broadcast(root, data)
    }

    /// Gathers everybody's `own` bytes at every rank, in the order of ranks: Bruck's algorithm, ⌈log₂ n⌉ steps.
    /// `all` is `size()` times as long as `own`, which is equally long everywhere.
    ///
    /// # Errors
    /// A lost rank; [`Error::Timeout`]; [`Error::Layout`] when the lengths do not fit.
    pub fn allgather(&self, own: &[u8], all: &mut [u8]) -> Result<(), Error> {
        self.usual().allgather(own, all)
    }

    /// One bounded pass of progress, for programs that compute for long (with a dedicated thread, none is needed).
    /// Returns the work done; zero means that nothing was found.
    pub fn progress(&self) -> usize {
        self.front.progress()
    }

    /// What is known about a peer; `None` when there is no such rank, or it was not met yet ([`World::hello`]).
    pub fn peer(&self, rank: u32) -> Option<Peer> {
        let hello = self.directory.hello(rank)?;
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

    /// Which rails lead to a peer, and why the others do not; `None` when there is no such rank, or it was not met yet.
    pub fn selection(&self, rank: u32) -> Option<&Selection> {
        self.directory.selection(rank)
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

    /// What a rank has published about itself; `None` when there is no such rank, and in a job of more ranks than
    /// `job.lazy_above` also as long as this rank had nothing to do with it.
    ///
    /// ```
    /// let world = doorbell::init()?;
    /// assert_eq!(world.hello(0).map(|hello| hello.pid), Some(std::process::id()));
    /// assert!(world.hello(1).is_none());
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    pub fn hello(&self, rank: u32) -> Option<&Hello> {
        self.directory.hello(rank)
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

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
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
        let config = self.config.clone();
        self.front.call(move |core| {
            let rails = core.pml.rails_mut();
            rails.filter_map(|(_, rail)| rail.end_capture(&config)).collect()
        })
    }

    /// The interface for foreign front ends: contexts, match bits, claims, multi-receives, one-sided operations.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the contexts that the world uses itself, below [`Raw::FIRST_CONTEXT`].
    pub fn raw(&self, context: u16) -> Result<Raw<'_>, Error> {
        Raw::new(self, context)
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
            std::mem::forget((self.control.take(), self.door.take(), self.spawner.take()));
            return;
        }
        if !std::mem::replace(&mut self.closed, true) {
            self.front.close(*self.config.wait.close.get());
            self.directory.close();
            if let Some(control) = self.control.take() {
                // Nobody agrees with one that falls.
                let falls = std::thread::panicking();
                control.end(if falls { Duration::ZERO } else { self.limit });
            }
            let (own, spawner) = (self.door.take(), self.spawner.take());
            if let Some(door) = own.or_else(|| spawner.clone().filter(|_| self.opened.get())) {
                // One that does not hear it takes our end for a failure, and has its own words for that.
                let _ = door
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .finalize(LAST_WORDS);
            } else if let Some(door) = spawner {
                door.lock().unwrap_or_else(PoisonError::into_inner).tidy();
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
        write!(out, "World(rank {} of {})", self.rank, self.size())
    }
}
