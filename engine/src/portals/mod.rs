//! A job whose processes use Portals 4 interfaces in software: this rank's handle ([`Portals`]).
//!
//! ```
//! use doorbell::fabric::memory::Region;
//! use doorbell::fabric::message::Landing;
//! use doorbell::fabric::ni::{AckReq, Entry, EntryOptions, Kind, List, Md, Memory, Piece, Process};
//! use doorbell::fabric::ni::{PtOptions, Put, Target};
//! let mut job = doorbell::Builder::new().build_portals()?;
//! let kind = Kind::MATCHING_LOGICAL;
//! job.init(kind, None)?;
//! // Eight bytes that any rank may write to, and a counting event of the writes.
//! let room = Region::new(8)?;
//! let arrived = job.ask(kind, |ni| ni.ct_alloc())?;
//! let index = job.ask(kind, |ni| ni.pt_alloc(PtOptions::NONE, None, Some(4)))?;
//! let options = EntryOptions::OP_PUT | EntryOptions::EVENT_CT_COMM;
//! let entry = Entry::open(Memory::One(Landing::Region(room.whole())), options).counted(arrived);
//! job.ask(kind, |ni| ni.append(index, entry.clone(), List::Priority, 0))?;
//! job.barrier()?;
//! // Each rank writes to its neighbour.
//! let word = Region::new(8)?;
//! word.write(0, &job.rank().to_le_bytes());
//! let memory = Memory::One(Landing::Region(word.whole()));
//! let md = job.ask(kind, |ni| ni.md_bind(Md { memory: memory.clone(), ..Md::default() }))?;
//! let neighbour = Process::rank((job.rank() + 1) % job.size());
//! let target = Target { process: neighbour, pt_index: index, match_bits: 0, remote_offset: 0 };
//! let from = Piece { md, offset: 0 };
//! let put = Put { from, length: 8, ack: AckReq::None, target, user_ptr: 0, hdr_data: 0 };
//! job.ask(kind, |ni| ni.put(&put))?;
//! assert_eq!(job.wait_count(kind, arrived, 1)?.success, 1);
//! # Ok::<(), doorbell::Error>(())
//! ```
//!
//! The calls of an interface ([`Portals::ni`]) never wait; those of [`Portals`] do, with the settings of
//! `progress.*` and `wait.*`. The rails are those of a [`World`](crate::World): chosen, opened and failing
//! over in the same way.

mod build;
mod collect;
mod counted;
mod node;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use doorbell_am_portals::{Guarded, Seen};
use doorbell_fabric::map::process::Kept;
use doorbell_fabric::ni::{Count, CtHandle, EqGet, EqHandle, Kind, Ni, NiError, NiLimits, Process};
use doorbell_job::binding::Binding;
use doorbell_job::ends;
use doorbell_job::error::{Awaited, Error};
use doorbell_job::handle::Job;
use doorbell_job::rails::Manage as _;
use doorbell_job::wait::NodeWaiter;

pub(crate) use self::build::{build, jobs_in_process, refuse, simulated_jobs};
pub use self::build::{local_portals, simulated_portals};
pub(crate) use self::collect::{AboveNode, Collect, INTERNAL, refused};
pub(crate) use self::counted::{Each, path, totals};
pub(crate) use self::node::{PortalsNode, Ranks, is_cut_off, rail_counts, recorded, troubles};
pub use doorbell_job::wait::LostRank;

use self::node::NodeHold;
use crate::shared_node::{Hold, SharedNode, resume};

/// One rank's handle on a job of Portals processes. One thread owns it at a time.
///
/// With `progress.mode = dedicated`, a thread of its own makes progress while no call of this handle waits:
/// operations of peers are carried out, and events and counts are posted, while the owner computes.
///
/// A child of `fork` has no part in the job: its calls fail ([`Error::Forked`]; those of an interface with
/// [`NiError::NoInit`]), and dropping its copy does nothing.
///
/// Every wait ends: when it is satisfied, at its deadline (`wait.deadline`), or with [`Error::PeerLost`] when
/// a rank is lost that the program has not excused ([`Portals::go_on_without`]). A rank that has closed
/// counts as lost, too, but ends only a [`Portals::barrier`] or [`Portals::allgather`] that needs it.
pub struct Portals {
    node: Kept<SharedNode<PortalsNode>>,
    parts: Kept<Parts>,
    ranks: Kept<Arc<Ranks>>,
    counter_file: Option<PathBuf>,
    /// The interfaces of a child of `fork`, of which there are none.
    orphan: Option<Box<PortalsNode>>,
    closed: bool,
}

/// The parts of a job beside its node.
pub(crate) struct Parts {
    pub(crate) waiter: NodeWaiter,
    pub(crate) collect: Collect,
    pub(crate) job: Job,
    /// The cores of its two threads, in dedicated mode.
    pub(crate) binding: Option<Binding>,
}

shows_job!(Portals, parts.job);

impl Portals {
    pub(crate) fn of((mut node, parts): (PortalsNode, Parts)) -> Result<Self, Error> {
        let counter_file = node.publish(&parts.job, parts.binding.as_ref())?;
        let ranks = Arc::clone(&node.ranks);
        let node = SharedNode::new(node, parts.binding.as_ref(), &parts.job, &parts.waiter.clock)?;
        Ok(Self {
            node: Kept::new(node),
            parts: Kept::new(parts),
            ranks: Kept::new(ranks),
            counter_file,
            orphan: None,
            closed: false,
        })
    }

    /// The process of a rank: the number of its host, and its index among the ranks there. `None`: there is
    /// no such rank.
    pub fn process(&self, rank: u32) -> Option<Process> {
        self.ranks.process(rank)
    }

    /// The rank of a process.
    pub fn rank_of(&self, process: Process) -> Option<u32> {
        self.ranks.rank(process)
    }

    /// Where the two threads of this rank run, in dedicated mode: the cores of its own and of its progress
    /// thread, with the reason if it shares its core. `None` in inline mode.
    pub fn binding(&self) -> Option<Binding> {
        self.parts.binding.clone()
    }

    /// The counters of this rank's rails, by name: `shm.sent`, ….
    pub fn rail_counts(&self) -> Vec<(String, u64)> {
        match self.node.is_here() {
            true => self.node.look(|node| rail_counts(&node.node)),
            false => Vec::new(),
        }
    }

    /// The file in which other programs of the same user can read this rank's counters while it lives
    /// (`doorbell_fabric::counters::Reader`); `None` with `counters.place = off`. As long as the rank makes
    /// calls, it is at most a millisecond and 128 waits behind.
    pub fn counter_file(&self) -> Option<&Path> {
        self.counter_file.as_deref()
    }

    /// Initialises an interface of this process within these limits; a logically addressed one gets the map
    /// of ranks. Initialisations are counted: each needs a [`Portals::fini`].
    ///
    /// [`Portals::barrier`] and [`Portals::allgather`] use the non-matching interface with physical
    /// addressing, too: it keeps the limits of its first initialisation, which was theirs, and the last
    /// entries of its portal table are taken.
    ///
    /// # Errors
    /// [`Error::Interface`]: limits that cannot be met.
    pub fn init(&mut self, kind: Kind, desired: Option<&NiLimits>) -> Result<NiLimits, Error> {
        self.parts.waiter.here()?;
        self.node.hold().init(kind, desired)
    }

    /// Undoes one initialisation of an interface; the last one frees everything that the interface holds, and
    /// returns when no memory of this process is being read into or written by a peer any more.
    ///
    /// # Errors
    /// [`Error::Interface`] for an interface that was not initialised; [`Error::Timeout`] when a peer was
    /// stopped in the middle of a write: the interface has ended, and its memory may still change.
    pub fn fini(&mut self, kind: Kind) -> Result<(), Error> {
        self.parts.waiter.here()?;
        let mut node = self.node.hold();
        let ended = node.node.ni_fini(kind);
        let is_writing = node.node.is_writing();
        drop(node);
        ended.map_err(refused("the end of an interface"))?;
        if !is_writing {
            return Ok(());
        }
        let what = Awaited::Interface {
            what: "the end of writes into its memory",
        };
        let limit = self.parts.waiter.limit;
        let is_over = |node: &mut PortalsNode| (!node.node.is_writing()).then_some(());
        self.node.wait(&mut self.parts.waiter, limit, what, is_over)
    }

    /// An interface of this process, for calls that do not wait. If it was not initialised, they fail with
    /// [`NiError::NoInit`] or [`NiError::ArgInvalid`]. The progress thread stands still as long as this is
    /// held.
    #[inline]
    pub fn ni(&mut self, kind: Kind) -> impl Ni + '_ {
        let node = match self.node.is_here() {
            true => self.node.hold(),
            false => self.orphan(),
        };
        Guarded::new(NodeHold(node), kind)
    }

    /// The node of a child of `fork`.
    #[cold]
    fn orphan(&mut self) -> Hold<'_, PortalsNode> {
        let orphan = self.orphan.get_or_insert_with(|| Box::new(PortalsNode::orphan()));
        Hold::Own(orphan)
    }

    /// Sets the limit of waits from here on, instead of `wait.deadline`.
    pub fn set_deadline(&mut self, limit: Duration) {
        self.parts.waiter.limit = limit;
    }

    /// Makes one call of an interface, and repeats it while there is no room for it ([`NiError::Full`]).
    ///
    /// # Errors
    /// [`Error::Interface`] with the interface's error; [`Error::Timeout`]; [`Error::PeerLost`].
    #[inline]
    pub fn ask<R>(
        &mut self,
        kind: Kind,
        mut call: impl FnMut(&mut dyn Ni) -> Result<R, NiError>,
    ) -> Result<R, Error> {
        let what = Awaited::Interface {
            what: "room for another operation of its interface",
        };
        let limit = self.parts.waiter.limit;
        let begin = |node: &mut PortalsNode| match call(&mut node.ni(kind)) {
            Err(NiError::Full) => None,
            begun => Some(begun),
        };
        let begun = self.node.begin(&mut self.parts.waiter, limit, what, begin)?;
        begun.map_err(refused("a call of an interface"))
    }

    /// Waits until `done` returns something. `what` describes it in errors and reports of long waits.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::PeerLost`].
    #[inline]
    pub fn wait_until<R>(
        &mut self,
        kind: Kind,
        what: &'static str,
        mut done: impl FnMut(&mut dyn Ni) -> Option<R>,
    ) -> Result<R, Error> {
        let (limit, what) = (self.parts.waiter.limit, Awaited::Interface { what });
        let look = |node: &mut PortalsNode| done(&mut node.ni(kind));
        self.node.wait(&mut self.parts.waiter, limit, what, look)
    }

    /// Waits until a counting event has reached `test` or has counted a failure, and returns its value.
    ///
    /// # Errors
    /// [`Error::Interface`] for an invalid handle; [`Error::Timeout`]; [`Error::PeerLost`].
    #[inline]
    pub fn wait_count(&mut self, kind: Kind, ct: CtHandle, test: u64) -> Result<Count, Error> {
        let what = Awaited::Interface {
            what: "its counting event",
        };
        let limit = self.parts.waiter.limit;
        // A value that the poll has just counted need not be read again.
        let counted = Cell::new(None);
        let linger = |node: &mut PortalsNode, looks| {
            let seen = node.node.linger_for(kind, ct, looks);
            if let Seen::Counted(count) = seen {
                counted.set(Some(count));
            }
            seen
        };
        let look = |node: &mut PortalsNode| {
            let found = counted.take().map_or_else(|| node.ni(kind).ct_get(ct), Ok);
            match found {
                Ok(found) if !found.reaches(test) => None,
                found => Some(found),
            }
        };
        let waiter = &mut self.parts.waiter;
        let found = self.node.wait_by(waiter, limit, what, linger, look)?;
        found.map_err(refused("a counting event"))
    }

    /// Waits for an event of a queue, and takes it.
    ///
    /// # Errors
    /// Those of [`Portals::wait_count`].
    pub fn wait_event(&mut self, kind: Kind, eq: EqHandle) -> Result<EqGet, Error> {
        let what = Awaited::Interface {
            what: "an event of its queue",
        };
        let limit = self.parts.waiter.limit;
        let look = |node: &mut PortalsNode| match node.ni(kind).eq_get(eq) {
            Ok(EqGet::Empty) => None,
            found => Some(found),
        };
        let found = self.node.wait(&mut self.parts.waiter, limit, what, look)?;
        found.map_err(refused("an event queue"))
    }

    /// Makes one bounded pass of progress; returns the amount of work done.
    pub fn progress(&mut self) -> usize {
        self.node.progress(&mut self.parts.waiter)
    }

    /// Waits until all ranks have called it. All that a rank did before is done: entries that it has appended
    /// are in place.
    ///
    /// # Errors
    /// [`Error::Timeout`], which names rank and step; [`Error::PeerLost`].
    pub fn barrier(&mut self) -> Result<(), Error> {
        let Parts { collect, waiter, .. } = &mut *self.parts;
        waiter.here()?;
        match &mut *self.node {
            SharedNode::Own(node) => collect.barrier(node, waiter)?,
            SharedNode::Shared(node) => collect.barrier(&mut node.turns(), waiter)?,
        }
        self.hand_over();
        Ok(())
    }

    /// Gathers every rank's `own` bytes at every rank, in the order of ranks. `all` is `size()` times as long
    /// as `own`, which has the same length everywhere.
    ///
    /// # Errors
    /// Those of [`Portals::barrier`]; [`Error::Layout`] when the lengths do not fit.
    pub fn allgather(&mut self, own: &[u8], all: &mut [u8]) -> Result<(), Error> {
        let Parts { collect, waiter, .. } = &mut *self.parts;
        waiter.here()?;
        match &mut *self.node {
            SharedNode::Own(node) => collect.allgather(node, waiter, own, all)?,
            SharedNode::Shared(node) => collect.allgather(&mut node.turns(), waiter, own, all)?,
        }
        self.hand_over();
        Ok(())
    }

    /// Waits until the last messages of a collective call have left.
    fn hand_over(&mut self) {
        let what = Awaited::Interface {
            what: "its last messages to leave",
        };
        let limit = self.parts.waiter.limit;
        self.node.hand_over(&mut self.parts.waiter, limit, what);
    }

    /// The ranks that this one knows to be lost.
    pub fn lost(&self) -> &[LostRank] {
        self.parts.waiter.lost()
    }

    /// Excuses a lost rank, so that its loss ends no more waits. Operations to it have ended as
    /// undeliverable.
    pub fn go_on_without(&mut self, rank: u32) {
        self.parts.waiter.excuse(rank);
    }

    /// Breaks a rail to all its peers, as if by itself, for tests of failures.
    #[doc(hidden)]
    pub fn break_rail(&mut self, name: &str) -> bool {
        let node = &mut self.node.hold().node;
        let found = node
            .rails()
            .find(|(_, rail)| doorbell_fabric::rail::Rail::name(*rail).as_str() == name);
        let Some(id) = found.map(|(id, _)| id) else {
            return false;
        };
        node.rail_mut(id).map(|rail| rail.inject_failure(None)).is_some()
    }

    /// Ends the whole job; see [`World::abort`](crate::World::abort).
    pub fn abort(mut self, exit: u8, reason: &str) -> ! {
        let launcher = self.parts.job.take_launcher();
        ends::abort(launcher.filter(|_| self.node.is_here()), exit, reason)
    }

    /// Closes the connections to the peers, after pushing out what was accepted, for at most `wait.close`.
    /// Dropping does the same.
    pub fn close(mut self) {
        self.take_leave();
    }

    fn take_leave(&mut self) {
        if self.parts.waiter.here().is_err() {
            // A copy in a child of `fork`: the job, its launcher and its threads belong to the parent.
            self.closed = true;
        } else if !std::mem::replace(&mut self.closed, true) {
            let limit = *self.config().wait.close.get();
            let panic = self.node.stop();
            self.node.close(&mut self.parts.waiter, limit);
            self.parts.job.directory().close();
            if let Some(launcher) = self.parts.job.take_launcher() {
                ends::farewell(&launcher);
            }
            resume(panic);
        }
    }
}

impl Drop for Portals {
    fn drop(&mut self) {
        self.take_leave();
    }
}

impl std::fmt::Debug for Portals {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Portals(rank {} of {})", self.rank(), self.size())
    }
}

/// Handles can move to another thread; one thread uses them at a time.
const _: () = {
    const fn moves<T: Send>() {}
    moves::<Portals>();
};
