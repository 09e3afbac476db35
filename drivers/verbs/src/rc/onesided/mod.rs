//! One-sided operations: get, put, atomics and fences, and the memory that peers may use them on.
//!
//! ```text
//!   get, put, atomic ─► Op ─► queue of the peer ─► flush: requests of its queue pair ─► completions ─► ended
//!   expose ─► Exposed ─► window bound over that queue pair          (messages wait until it is)
//! ```
//!
//! | file | job |
//! |---|---|
//! | `wire` | what both ends send each other in band |
//! | `memory` | registrations, slots, and the limit of locked memory |
//! | `op` | one operation, and which request it needs next |
//! | `side` | what a peer has: its queue pair, its requests and operations |
//! | `exposures` | exposed memory, keys and windows |
//! | `operations` | what starts operations and ends them |
//! | `renewal` | how both ends agree on a queue pair, break it and replace it |
//! | `probe` | what the windows of a device are worth |
//!
//! A queue pair of its own, because a denied access ends the one that it came over. It is made at the first
//! operation or exposure, and again after a denied access, by the same exchange over the queue pair of
//! messages: so the contact knows nothing of it, and a peer without one-sided operations costs nothing.
//!
//! A key names an exposure in 64 bits: below, the device's key; above it, the round of the queue pair that
//! its window is bound over (0: it is good over each), then 24 random bits. A window that was bound again
//! after a denied access has another key of the device's, which its user looks up when the round is not the
//! present one.

mod exposures;
mod memory;
mod op;
mod operations;
mod probe;
mod renewal;
mod side;
pub(crate) mod wire;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::message::{OpError, OpId};
use rustc_hash::FxHashMap;

use self::exposures::Exposures;
pub(crate) use self::memory::{Budget, Memory, memory_limit};
use self::op::Ops;
pub use self::probe::WindowFacts;
use self::side::Side;
use crate::error::VerbsError;
use crate::sys::{Channel, Completions, DeviceAttr, Event, Open, numbers};

/// Operations that are open or not reported at most.
const MOST_OPERATIONS: usize = 1024;
/// Fences that wait at most.
const MOST_FENCES: usize = 64;
/// The time between two looks whether a queue pair is destroyed, where nothing else is left to do.
const A_LOOK: Duration = Duration::from_micros(200);
/// Entries of the queue of completions.
const ENTRIES: usize = 1024;

/// Sizes of one-sided operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Slots for short operations, and bytes of each.
    pub(crate) short: (usize, usize),
    /// Slots for longer ones.
    pub(crate) long: usize,
    /// Bytes of those: loans that are longer are registered for their operation.
    pub(crate) register: usize,
    /// The length from which on a region's bytes are used where they lie.
    pub(crate) zero_copy: usize,
    /// Bytes that go with a request itself.
    pub(crate) inline: usize,
    /// Whether borrowed memory may be registered: not where registered pages vanish from children of fork.
    pub(crate) pins_loans: bool,
    /// The length from which on a get is better than messages.
    pub(crate) get_from: usize,
    /// Exposures at a time at most.
    pub(crate) exposures: usize,
    /// Bytes of a request at most, where the port carries more.
    pub(crate) request: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            short: (256, 256),
            long: 16,
            register: 64 << 10,
            zero_copy: 4 << 10,
            inline: 64,
            pins_loans: true,
            get_from: 32 << 10,
            exposures: 4096,
            request: 4 << 20,
        }
    }
}

impl Sizes {
    /// Bytes of slots.
    pub(crate) fn locked(&self) -> usize {
        self.short.0 * self.short.1 + self.long * self.register
    }
}

/// What a device can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// It binds windows of type 2B.
    pub(crate) windows: bool,
    /// A window's key reaches no further than the window: known by a probe.
    pub(crate) checks_range: bool,
    pub(crate) atomics: bool,
    /// Reads and atomics of a queue pair at a time, that it starts and that it answers.
    pub(crate) reads: (u32, u32),
    /// Bytes of a request at most.
    pub(crate) message: usize,
}

/// Reads under way of one queue pair at most, whatever the device can.
const MOST_READS: u32 = 16;

impl Abilities {
    fn of(open: &Arc<Open>, port: u8) -> Result<Self, VerbsError> {
        let attributes: DeviceAttr = open.attributes()?;
        let reads = |number: i32| u32::try_from(number).unwrap_or(0).min(MOST_READS);
        let message = open.port(port)?.max_msg_sz as usize;
        Ok(Self {
            windows: attributes.device_cap_flags & numbers::CAN_MW_TYPE_2B != 0 && open.makes_windows(),
            checks_range: false,
            atomics: attributes.atomic_cap != numbers::ATOMIC_NONE,
            reads: (
                reads(attributes.max_qp_init_rd_atom),
                reads(attributes.max_qp_rd_atom),
            ),
            // A device that reports none takes what every device does.
            message: if message == 0 {
                1 << 20
            } else {
                message.min(1 << 30)
            },
        })
    }

    /// Whether there are gets: a device may have reads switched off.
    pub(crate) fn gets(&self) -> bool {
        self.reads.0 > 0 && self.reads.1 > 0
    }
}

/// A fence that waits.
struct Fence {
    op: OpId,
    peer: Option<u32>,
    /// The number of the first operation that it does not wait for, and how many it does.
    before: u64,
    left: usize,
}

/// What one-sided operations of a rail have.
pub(crate) struct OneSided {
    pub(crate) abilities: Abilities,
    /// `None` when the device is gone.
    completions: Option<Arc<Completions>>,
    by_pair: FxHashMap<u32, u32>,
    sides: Vec<Option<Box<Side>>>,
    ops: Ops,
    exposures: Exposures,
    budget: Arc<Budget>,
    fences: Vec<Fence>,
    /// Operations whose memory may be written until a former queue pair is destroyed.
    written: Vec<u32>,
    /// The process whose queue pairs these are.
    process: u32,
    /// What is to be reported.
    pub(crate) ended: VecDeque<(OpId, Result<u64, OpError>)>,
    /// Peers whose operations wait for a flush, and those that have something to be looked after.
    dirty: Vec<u32>,
    active: Vec<u32>,
    /// Requests under way, and those of queue pairs that are gone whose completions may still come.
    under_way: usize,
    stale: usize,
    pub(crate) stats: Stats,
}

/// What one-sided operations count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) gets: u64,
    pub(crate) puts: u64,
    pub(crate) atomics: u64,
    pub(crate) requests: u64,
    pub(crate) doorbells: u64,
    /// Windows that were bound, and keys that were ended.
    pub(crate) bound: u64,
    pub(crate) withdrawn: u64,
    /// Operations that were refused, and queue pairs that were made.
    pub(crate) denied: u64,
    pub(crate) rounds: u64,
    /// Completions that cannot be true, and of queue pairs that are gone.
    pub(crate) nonsense: u64,
    pub(crate) stale: u64,
}

impl Stats {
    /// Every counter's name and total.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("gets", self.gets),
            ("puts", self.puts),
            ("atomics", self.atomics),
            ("one_sided_requests", self.requests),
            ("one_sided_doorbells", self.doorbells),
            ("windows_bound", self.bound),
            ("withdrawn", self.withdrawn),
            ("denied", self.denied),
            ("one_sided_pairs", self.rounds),
            ("one_sided_nonsense", self.nonsense),
            ("one_sided_stale", self.stale),
        ]
        .into_iter()
    }
}

impl OneSided {
    /// Makes the queue of completions.
    ///
    /// # Errors
    /// If the system refuses a step.
    pub(crate) fn new(
        open: &Arc<Open>,
        channel: &Arc<Channel>,
        port: u8,
        budget: &Arc<Budget>,
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            abilities: Abilities::of(open, port)?,
            completions: Some(Completions::new(channel, ENTRIES)?),
            by_pair: FxHashMap::default(),
            sides: Vec::new(),
            ops: Ops::default(),
            exposures: Exposures::default(),
            budget: Arc::clone(budget),
            fences: Vec::with_capacity(MOST_FENCES),
            written: Vec::new(),
            process: std::process::id(),
            ended: VecDeque::new(),
            dirty: Vec::new(),
            active: Vec::new(),
            under_way: 0,
            stale: 0,
            stats: Stats::default(),
        })
    }

    /// Has the next completion raise an event.
    pub(crate) fn arm(&self) {
        if let Some(completions) = &self.completions {
            completions.arm();
        }
    }

    /// Replaces the queue of completions, which no queue pair uses any more.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn renew_queue(&mut self, channel: &Arc<Channel>) -> Result<(), VerbsError> {
        self.completions = None;
        (self.under_way, self.stale) = (0, 0);
        self.completions = Some(Completions::new(channel, ENTRIES)?);
        Ok(())
    }

    /// Whether an event is about the queue of completions.
    pub(crate) fn is_meant(&self, event: &Event) -> bool {
        let completions = self.completions.as_ref();
        completions.is_some_and(|completions| completions.is_meant(event))
    }

    /// Lets go of everything that is the device's. No peer has a connection any more.
    pub(crate) fn release(&mut self) {
        self.exposures.drop_windows();
        self.sides.clear();
        self.exposures.clear();
        self.active.clear();
        self.dirty.clear();
        self.completions = None;
        (self.under_way, self.stale) = (0, 0);
    }

    /// Waits for the kernel, as the destruction of a queue pair does, until no device writes to memory of
    /// operations that have not ended. A child of `fork` has none of them.
    pub(crate) fn await_written(&mut self) {
        let Self { written, ops, .. } = self;
        let mut is_written = |at: &u32| ops.get(*at).is_some_and(|op| op.is_written());
        while self.process == std::process::id() && written.iter().any(&mut is_written) {
            std::thread::sleep(A_LOOK);
        }
    }

    fn side(&mut self, peer: u32) -> &mut Side {
        let index = peer as usize;
        if self.sides.len() <= index {
            self.sides.resize_with(index + 1, || None);
            self.dirty.reserve(index + 1);
            self.active.reserve(index + 1);
        }
        self.sides[index].get_or_insert_with(Box::default)
    }

    /// Whether no peer has something to be looked after.
    pub(crate) fn is_quiet(&self) -> bool {
        self.active.is_empty() && self.written.is_empty()
    }

    /// Whether an operation waits for a flush.
    pub(crate) fn has_to_post(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Whether a peer may have a control message that waits.
    #[inline]
    pub(crate) fn has_controls(&self) -> bool {
        !self.sides.is_empty()
    }

    /// A peer has something to be looked after.
    fn mark_active(&mut self, peer: u32) {
        if !std::mem::replace(&mut self.side(peer).is_active, true) {
            self.active.push(peer);
        }
    }

    fn known(&mut self, peer: u32) -> Option<&mut Side> {
        self.sides.get_mut(peer as usize)?.as_deref_mut()
    }

    /// Requests that may still be posted, so that each has room for its completion.
    fn room(&self) -> usize {
        ENTRIES.saturating_sub(self.under_way + self.stale)
    }
}

impl Drop for OneSided {
    /// Windows first, then queue pairs, then registrations: a registration with a bound window stays, and a
    /// queue pair with one ends late.
    fn drop(&mut self) {
        self.exposures.drop_windows();
        self.sides.clear();
        self.await_written();
        self.ops = Ops::default();
    }
}
