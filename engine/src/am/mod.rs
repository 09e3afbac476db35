//! A job whose processes exchange active messages, and put to and get from each other's segments: this rank's
//! handle ([`Am`]).
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use doorbell::am::{Handlers, Setup};
//! let sum = Arc::new(AtomicU32::new(0));
//! let total = Arc::clone(&sum);
//! let mut handlers = Handlers::new();
//! // Each request is answered with the sum of its arguments; the reply stores it.
//! handlers.request(200, |request| {
//!     let sum = request.args().iter().sum();
//!     let _ = request.reply_short(201, &[sum]);
//! })?;
//! handlers.reply(201, move |reply| total.store(reply.args()[0], Ordering::Relaxed))?;
//! let mut am = doorbell::Builder::new().build_am(Setup::new(handlers, 1 << 20))?;
//! let neighbour = (am.rank() + 1) % am.size();
//! am.request_short(neighbour, 200, &[1, 2, 3])?;
//! am.wait_until("the sum", || (sum.load(Ordering::Relaxed) == 6).then_some(()))?;
//! am.barrier()?;
//! # Ok::<(), doorbell::Error>(())
//! ```
//!
//! The calls of the conduit ([`Am::conduit`]) are those of [`doorbell_am`]: all of GASNet's core and extended
//! interface, with variants that do not wait. Those of [`Am`] wait, with the settings of `progress.*` and
//! `wait.*`.

mod clients;
mod counted;
mod field;
mod interrupt;
mod setup;
mod wait;

use std::io::Write as _;
use std::ops::DerefMut;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use doorbell_am::threads::{Args, NotTaken, Outcome, Owned, Ticket, Work};
pub use doorbell_am::{
    AmError, BarrierName, Conduit, Destination, Handle, Handlers, Leaving, LongSent, Payload, Remote,
    RemoteSegment, Reply, Request, Resources, Settings, SettingsError, Source, Stall, Stats, Try, Unclean,
};
use doorbell_fabric::map::process::Kept;
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::ni::Ni;
use doorbell_job::binding::Binding;
use doorbell_job::ends;
use doorbell_job::error::{Awaited, Error};
use doorbell_job::handle::Job;
use doorbell_job::wait::NodeWaiter;

pub use self::clients::Client;
use self::clients::Counter;
use self::field::{Below, ConduitHold, Field};
use self::interrupt::Interrupt;
pub use self::setup::{Setup, Waiting, local_am, simulated_am};
use crate::portals::LostRank;
use crate::shared_node::{SharedNode, resume};

/// One rank's handle on a job of active messages. One thread owns it at a time, and all handlers run in its
/// calls; other threads send through it as its [`Client`]s.
///
/// With `progress.mode = dedicated`, a thread of its own makes progress while no call of this handle waits.
/// It moves data; with `am.handlers = progress` it runs handlers, too, one at a time, and never at the same
/// time as a call of this handle. A handler that panics there ends the thread, and the panic goes on in the
/// owner's next call.
///
/// A child of `fork` has no part in the job: its calls fail with [`Error::Forked`], and dropping its copy
/// does nothing.
///
/// Every wait ends: when it is satisfied, at its deadline (`wait.deadline`), with [`Error::PeerLost`] when a
/// rank is lost, or with [`AmError::ShuttingDown`] when another rank has ended the job ([`Am::exit`]).
pub struct Am {
    field: Kept<SharedNode<Field>>,
    waiter: Kept<NodeWaiter>,
    job: Kept<Job>,
    segment: Kept<RegionSlice>,
    /// The cores of its two threads, in dedicated mode.
    binding: Option<Binding>,
    counter_file: Option<PathBuf>,
    /// The file for the statistics at the end.
    statistics: Option<PathBuf>,
    /// Whether it has entered a barrier that not all others have reached.
    at_barrier: bool,
    closed: bool,
    /// SIGINT ends the job until this is dropped.
    _interrupt: Option<Interrupt>,
}

shows_job!(Am, job);

impl Am {
    /// The counters of this rank's rails, by name: `shm.sent`, ….
    pub fn rail_counts(&self) -> Vec<(String, u64)> {
        match self.field.is_here() {
            true => self.field.look(|field| crate::portals::rail_counts(field.node())),
            false => Vec::new(),
        }
    }

    /// Where the two threads of this rank run, in dedicated mode: the cores of its own and of its progress
    /// thread, with the reason if it shares its core. `None` in inline mode.
    pub fn binding(&self) -> Option<Binding> {
        self.binding.clone()
    }

    /// The file in which other programs of the same user can read this rank's counters while it lives; see
    /// [`Portals::counter_file`](crate::Portals::counter_file).
    pub fn counter_file(&self) -> Option<&Path> {
        self.counter_file.as_deref()
    }

    /// The conduit, whose calls do not wait. The progress thread stands still as long as this is held.
    ///
    /// # Panics
    /// In a child of `fork`, if the job has a progress thread: what that thread was doing at the fork never
    /// ends there.
    #[inline]
    pub fn conduit(&mut self) -> impl DerefMut<Target = Conduit<impl Ni>> + '_ {
        if !self.field.is_here() {
            self.disown();
        }
        ConduitHold(self.field.hold())
    }

    #[cold]
    fn disown(&mut self) {
        match &mut *self.field {
            SharedNode::Own(field) => field.conduit.ni_mut().node_mut().disown(),
            SharedNode::Shared(_) => panic!("{}", Error::Forked),
        }
    }

    /// This process's segment.
    pub fn segment(&self) -> &RegionSlice {
        &self.segment
    }

    /// The segment of a rank.
    ///
    /// # Errors
    /// [`AmError::NoSuchRank`]; [`Error::Forked`].
    pub fn segment_of(&self, rank: u32) -> Result<RemoteSegment, Error> {
        self.waiter.here()?;
        let segment = self.field.look(|field| field.conduit.segment_of(rank));
        segment.map_err(Error::from)
    }

    /// Sends a request with arguments to a handler of rank `to`. Handles arrivals while it waits for room.
    ///
    /// # Errors
    /// [`Error::Am`] for an invalid message; [`Error::PeerLost`], [`Error::Timeout`].
    #[inline]
    pub fn request_short(&mut self, to: u32, handler: u8, args: &[u32]) -> Result<(), Error> {
        self.begin(MESSAGE, |conduit| conduit.try_request_short(to, handler, args))
    }

    /// Sends a request with a payload, which is copied and which the handler sees while it runs.
    ///
    /// # Errors
    /// Those of [`Am::request_short`].
    #[inline]
    pub fn request_medium<'a>(
        &mut self,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: impl Into<Source<'a>>,
    ) -> Result<(), Error> {
        let payload = payload.into();
        self.begin(MESSAGE, |conduit| {
            conduit.try_request_medium(to, handler, args, &payload)
        })
    }

    /// Sends a request with a payload that is at offset `at` of the other's segment when its handler runs.
    ///
    /// # Errors
    /// Those of [`Am::request_short`].
    pub fn request_long<'a>(
        &mut self,
        to: Remote,
        handler: u8,
        args: &[u32],
        payload: impl Into<Source<'a>>,
    ) -> Result<LongSent, Error> {
        let payload = payload.into();
        self.begin(MESSAGE, |conduit| {
            conduit.try_request_long(to.rank, handler, args, &payload, to.offset)
        })
    }

    /// Writes into a rank's segment, and waits until the bytes are there.
    ///
    /// # Errors
    /// Those of [`Am::request_short`].
    pub fn put<'a>(&mut self, to: Remote, from: impl Into<Source<'a>>) -> Result<(), Error> {
        let handle = self.put_later(to, from)?;
        self.sync(handle)
    }

    /// Reads a rank's segment, and waits until the bytes are here.
    ///
    /// # Errors
    /// Those of [`Am::request_short`].
    pub fn get(&mut self, into: impl Into<Destination>, from: Remote, length: u64) -> Result<(), Error> {
        let handle = self.get_later(into, from, length)?;
        self.sync(handle)
    }

    /// Begins a write into a rank's segment, which [`Am::sync`] waits for.
    ///
    /// # Errors
    /// Those of [`Am::request_short`].
    pub fn put_later<'a>(&mut self, to: Remote, from: impl Into<Source<'a>>) -> Result<Handle, Error> {
        let from = from.into();
        self.begin(OPERATION, |conduit| conduit.put_bulk(to, &from))
    }

    /// Begins a read of a rank's segment, which [`Am::sync`] waits for.
    ///
    /// # Errors
    /// Those of [`Am::request_short`].
    pub fn get_later(
        &mut self,
        into: impl Into<Destination>,
        from: Remote,
        length: u64,
    ) -> Result<Handle, Error> {
        let into = into.into();
        self.begin(OPERATION, |conduit| conduit.get(&into, from, length))
    }

    /// Waits until an operation has completed.
    ///
    /// # Errors
    /// Those of [`Am::request_short`].
    pub fn sync(&mut self, handle: Handle) -> Result<(), Error> {
        self.until("its put or get", |conduit| conduit.try_sync(handle))
    }

    /// Waits until all ranks have called it. After [`Error::Timeout`], the next call goes on waiting for the
    /// same barrier.
    ///
    /// # Errors
    /// Those of [`Am::request_short`].
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.waiter.here()?;
        if !self.at_barrier {
            let mut field = self.field.hold();
            let come = field.conduit.notify_barrier(BarrierName::Anonymous);
            field.conduit.flush();
            drop(field);
            come.map_err(|error| self.explained(error))?;
            self.at_barrier = true;
        }
        let all = self.until("all ranks at a barrier", |conduit| {
            conduit.try_barrier(BarrierName::Anonymous)
        });
        self.at_barrier = match &all {
            Ok(()) => false,
            // The barrier is over.
            Err(Error::Am(error)) => !matches!(**error, AmError::BarrierMismatch | AmError::Order(_)),
            Err(_) => true,
        };
        if all.is_ok() {
            let what = Awaited::Interface {
                what: "its last messages to leave",
            };
            let limit = self.waiter.limit;
            self.field.hand_over(&mut self.waiter, limit, what);
        }
        all
    }

    /// Waits until `done` returns something, and handles arrivals. `what` describes it in errors and reports
    /// of long waits.
    ///
    /// # Errors
    /// Those of [`Am::request_short`].
    #[inline]
    pub fn wait_until<R>(
        &mut self,
        what: &'static str,
        mut done: impl FnMut() -> Option<R>,
    ) -> Result<R, Error> {
        let (limit, what) = (self.waiter.limit, Awaited::Interface { what });
        let look = |field: &mut Field| match done() {
            Some(found) => Some(Ok(found)),
            None => field.trouble_now().map(Err),
        };
        let found = self.field.wait(&mut self.waiter, limit, what, look)?;
        found.map_err(|error| self.explained(error))
    }

    /// Makes a mailbox through which other threads send, to be cloned for each; it holds up to `capacity`
    /// operations, a power of two. Every wait of this handle, and [`progress`](Self::progress), serves them;
    /// [`serve`](Self::serve) does so until all clients are gone.
    ///
    /// ```
    /// use doorbell::am::{Args, Handlers, NotTaken, Outcome, Setup, Ticket, Work};
    /// let mut handlers = Handlers::new();
    /// handlers.request(200, |request| println!("{:?}", request.args()))?;
    /// let mut am = doorbell::Builder::new().build_am(Setup::new(handlers, 4096))?;
    /// let (client, to) = (am.client(64)?, am.rank());
    /// let other = std::thread::spawn(move || {
    ///     let (mut ticket, args) = (Ticket::new(), Args::new(&[7]).unwrap_or_default());
    ///     client.begin(&mut ticket, Work::Short { to, handler: 200, args })?;
    ///     while ticket.outcome() == Outcome::Pending {
    ///         std::thread::yield_now();
    ///     }
    ///     Ok::<Outcome, NotTaken>(ticket.outcome())
    /// });
    /// am.serve()?;
    /// assert_eq!(other.join().unwrap(), Ok(Outcome::Done));
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AmError::Order`] while there are clients; [`Error::Interface`] for an invalid capacity;
    /// [`Error::Forked`].
    pub fn client(&mut self, capacity: usize) -> Result<Client, Error> {
        self.waiter.here()?;
        let mut field = self.field.hold();
        if field
            .counter
            .as_ref()
            .is_some_and(|counter| !counter.is_abandoned())
        {
            return Err(AmError::Order("this job has clients already: clone one of them").into());
        }
        let (client, counter) = Counter::open(capacity)?;
        field.counter = Some(counter);
        Ok(client)
    }

    /// Sends for other threads, and handles arrivals, until all [`Client`]s are dropped and their operations
    /// have ended, without a limit.
    ///
    /// # Errors
    /// Those of [`Am::request_short`], except the timeout.
    pub fn serve(&mut self) -> Result<(), Error> {
        let what = Awaited::Interface {
            what: "other threads, which are its clients",
        };
        let look = |field: &mut Field| match field.counter {
            None => Some(Ok(())),
            Some(_) => field.trouble_now().map(Err),
        };
        let found = self.field.wait(&mut self.waiter, Duration::MAX, what, look)?;
        found.map_err(|error| self.explained(error))
    }

    /// Makes one bounded pass of progress, in which handlers run. Returns the amount of work done.
    pub fn progress(&mut self) -> usize {
        self.field.progress(&mut self.waiter)
    }

    /// Sets the limit of waits from here on, instead of `wait.deadline`.
    pub fn set_deadline(&mut self, limit: Duration) {
        self.waiter.limit = limit;
    }

    /// The ranks that this one knows to be lost.
    pub fn lost(&self) -> &[LostRank] {
        self.waiter.lost()
    }

    /// Ends the job: all ranks end, whichever rank calls this, with the largest status that any of them
    /// passes, which this returns. Waits at most as long as `GASNET_EXITTIMEOUT` and its like set.
    ///
    /// # Errors
    /// [`AmError::Unclean`], which names the rank that is lost or does not answer: then the launcher has to
    /// end the ranks that are left.
    pub fn exit(mut self, status: u8) -> Result<u8, Error> {
        self.leave(status)
    }

    fn leave(&mut self, status: u8) -> Result<u8, Error> {
        self.waiter.here()?;
        let size = self.size();
        let mut field = self.field.hold();
        field.conduit.exit(status);
        // The exit has a limit of its own, and a lost rank ends it.
        let limit = field.conduit.settings().exit.wait(size);
        drop(field);
        let limit = limit.saturating_add(EXIT_MARGIN);
        let what = Awaited::Interface {
            what: "the other ranks to end, too",
        };
        self.waiter.excuse_all();
        let over = |field: &mut Field| match field.conduit.leaving() {
            Leaving::Over(how) => Some(how),
            _ => None,
        };
        let how = self.field.wait(&mut self.waiter, limit, what, over);
        self.take_leave();
        how?.map_err(|unclean| Error::Am(Box::new(AmError::Unclean(unclean))))
    }

    /// The state of the job's end, if another rank, or an interrupt ([`Setup::end_on_interrupt`]), has ended
    /// it. In a child of `fork`, no job ends.
    pub fn leaving(&self) -> Leaving {
        match self.field.is_here() {
            true => self.field.look(|field| field.conduit.leaving()),
            false => Leaving::No,
        }
    }

    /// Ends the whole job through its launcher; see [`World::abort`](crate::World::abort).
    pub fn abort(mut self, exit: u8, reason: &str) -> ! {
        let launcher = self.job.take_launcher();
        ends::abort(launcher.filter(|_| self.waiter.here().is_ok()), exit, reason)
    }

    /// Closes the connections to the peers without ending the job, after pushing out what was accepted, for
    /// at most `wait.close`. If the job's end is in progress, this rank takes part in it first, as by
    /// [`exit`](Self::exit). Dropping does the same.
    pub fn close(mut self) {
        self.take_leave_in_order();
    }

    /// A program that returns with [`AmError::ShuttingDown`] has not called `exit`: without this, the rank
    /// that ends the job would find this one lost.
    fn take_leave_in_order(&mut self) {
        let is_ending =
            !self.closed && self.waiter.here().is_ok() && matches!(self.leaving(), Leaving::Underway { .. });
        if is_ending && !std::thread::panicking() {
            // The status that counts is that of the others, and there is nowhere to report an error.
            let _ = self.leave(0);
        }
        self.take_leave();
    }

    /// Repeats a call that does not wait until it has room.
    #[inline]
    fn begin<R>(
        &mut self,
        what: &'static str,
        mut begin: impl FnMut(&mut Conduit<Below>) -> Result<Try<R>, AmError>,
    ) -> Result<R, Error> {
        let limit = self.waiter.limit;
        let what = Awaited::Interface { what };
        let begun = |field: &mut Field| match begin(&mut field.conduit) {
            Ok(Try::Stalled(_)) => None,
            Ok(Try::Done(done)) => Some(Ok(done)),
            Err(error) => Some(Err(error)),
        };
        let begun = self.field.begin(&mut self.waiter, limit, what, begun)?;
        self.field.hold().conduit.flush();
        begun.map_err(|error| self.explained(error))
    }

    fn until(
        &mut self,
        what: &'static str,
        mut is_so: impl FnMut(&mut Conduit<Below>) -> Result<bool, AmError>,
    ) -> Result<(), Error> {
        let limit = self.waiter.limit;
        let look = |field: &mut Field| match is_so(&mut field.conduit) {
            // A conduit that cannot go on completes nothing that is in progress.
            Ok(false) => field.conduit.health().err().map(Err),
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        };
        let what = Awaited::Interface { what };
        let found = self.field.wait(&mut self.waiter, limit, what, look)?;
        found.map_err(|error| self.explained(error))
    }

    /// Adds what the rails know about a lost rank to an error.
    #[cold]
    fn explained(&self, error: AmError) -> Error {
        self.field
            .look(|field| wait::explained(&self.waiter, field, error))
    }

    fn take_leave(&mut self) {
        if self.waiter.here().is_err() {
            // A copy in a child of `fork`: the job and its launcher belong to the parent.
            self.closed = true;
            std::mem::forget(self._interrupt.take());
            return;
        }
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let panic = self.field.stop();
        if let Some(file) = &self.statistics {
            let text = self.field.look(|field| field.conduit.statistics());
            let written = doorbell_fabric::error::check_file_size(text.len() as u64)
                .and_then(|()| std::fs::write(file, text));
            if let Err(error) = written {
                // There is no other place to report this. One write, since several ranks may write at once.
                let text = format!(
                    "doorbell: rank {}: cannot write the credit statistics to {}: {error}; check that the folder \
                     exists and is writable\n",
                    self.rank(),
                    file.display()
                );
                let _ = std::io::stderr().write_all(text.as_bytes());
            }
        }
        let limit = *self.config().wait.close.get();
        self.field.close(&mut self.waiter, limit);
        self.job.directory().close();
        if let Some(launcher) = self.job.take_launcher() {
            ends::farewell(&launcher);
        }
        resume(panic);
    }
}

/// What a request waits for.
const MESSAGE: &str =
    "credits of the rank that its message goes to, or tickets, chunks or descriptors of its conduit";
/// What a put or a get waits for before it begins.
const OPERATION: &str = "room for another operation: tickets, chunks or descriptors of its conduit";

/// The time that an exit may take beyond its own limit.
const EXIT_MARGIN: Duration = Duration::from_secs(1);

impl Drop for Am {
    fn drop(&mut self) {
        self.take_leave_in_order();
    }
}

impl std::fmt::Debug for Am {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Am(rank {} of {})", self.rank(), self.size())
    }
}

/// Handles can move to another thread; one thread uses them at a time.
const _: () = {
    const fn moves<T: Send>() {}
    moves::<Am>();
    moves::<Waiting>();
};
