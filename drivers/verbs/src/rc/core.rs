//! The connections of a rail and what they share: queues, memory, the table by queue pair numbers.

mod counters;
mod ending;
mod making;
mod peer;
mod sending;
mod sizes;
mod stats;

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_fabric::event::{DownReason, EventKind, Life, RailEvent, Scope};
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::recorder::Recorder;
use doorbell_fabric::time::Time;
use rustc_hash::FxHashMap;
use zerocopy::little_endian::{U16, U32, U64};

use super::destroyer::Destroyer;
use super::device::{self, Device};
use super::head::{Head, PROOF};
use super::inbox::Inbox;
use super::limits;
use super::link::Link;
use super::onesided::{Budget, Memory, OneSided};
use super::outbox::Pool;
use super::pairs::Pairs;
use super::record::{self, Event};
use super::ring::Rings;
use super::slots::Slots;
use crate::error::VerbsError;
use crate::sys::{Channel, Domain, Open, Registered, Wc};

pub(crate) use self::ending::reason_of;
pub(crate) use self::peer::{Peer, Stage, Step};
pub(crate) use self::sizes::{INLINE, Sizes};
pub use self::stats::RcStats;

/// Polls in vain after which peers are sent counters that they do not wait for.
const IDLE: u32 = 1 << 16;
/// Requests under way with which a busy poll looks for those that have ended, too.
const ENOUGH: usize = 16;
/// Completions that are taken off a queue at a time.
const BATCH: usize = 16;
/// The longest message that proves a connection: the largest path MTU.
pub(crate) const PROOF_MOST: usize = 4096;
/// What such messages begin with.
pub(crate) const PROOF_HEAD: Head = Head {
    consumed: U64::ZERO,
    granted: U32::ZERO,
    count: U16::ZERO,
    flags: U16::new(PROOF),
};

/// Puts a peer on a list, if its mark does not show that it is there.
#[inline(always)]
pub(crate) fn enlist(list: &mut Vec<u32>, is_listed: &mut bool, index: u32) {
    if !std::mem::replace(is_listed, true) {
        list.push(index);
    }
}

/// The connections of a rail.
pub(crate) struct Core {
    pub(crate) peers: Vec<Peer>,
    /// How many of them are in lists at times.
    met: usize,
    /// Connections that are over, until all that was received is taken.
    pub(crate) leaving: Vec<Link>,
    /// What destroys them then.
    pub(crate) destroyer: Destroyer,
    /// Messages of former connections that are not known to be taken, by peers.
    retired: FxHashMap<u32, Vec<(u64, Vec<u8>)>>,
    pub(crate) by_pair: Pairs,
    pub(crate) inbox: Inbox,
    pub(crate) rings: Rings,
    pub(crate) slots: Slots,
    pub(crate) pool: Pool,
    // Before the memory: queue pairs end before the registrations that they use.
    pub(crate) onesided: OneSided,
    /// Memory of this end, for bodies and one-sided operations.
    pub(crate) memory: Memory,
    /// `None` when it is gone.
    pub(crate) device: Option<Device>,
    /// One of the queues has failed.
    pub(crate) is_broken: bool,
    /// Since when the queues are about to be made again.
    pub(crate) renewal: Option<Time>,
    pub(crate) next_look: Time,
    /// When peers are sent counters that they do not wait for.
    pub(crate) next_told: Time,
    /// Entries of the queue of sends, and requests that may need one.
    entries: usize,
    under_way: usize,
    /// Promises to connections that are over, whose last sends may still be found.
    pub(crate) settling: usize,
    /// The completions that have been taken off the queue once all of connections that are over were among
    /// them.
    left_by: u64,
    /// Connections that are on their way to their ends.
    pub(crate) ending: Vec<u32>,
    /// Connections that are up, and the next of them to be looked at.
    pub(crate) live: Vec<u32>,
    pub(crate) turn: usize,
    /// Peers by what is to be done: something is to be posted; the outbox is not empty; counters are to be
    /// written; requests are under way.
    dirty: Vec<u32>,
    pub(crate) active: Vec<u32>,
    pub(crate) owed: Vec<u32>,
    pub(crate) busy: Vec<u32>,
    /// Peers that need a connection; connections that have ended, for their peers to learn.
    pub(crate) wanted: VecDeque<u32>,
    pub(crate) ended: VecDeque<(u32, DownReason)>,
    /// What has become of connections that are being made.
    pub(crate) steps: VecDeque<(u32, Step)>,
    pub(crate) events: VecDeque<RailEvent>,
    /// The last notable events.
    pub(crate) recorder: Recorder<Event>,
    pub(crate) port: (u8, u16),
    pub(crate) sizes: Sizes,
    pub(crate) stats: RcStats,
    pub(crate) now: Time,
    /// Empty polls in a row.
    idle: u32,
    /// A peer may have to wait for credits soon.
    pub(crate) is_low: bool,
    /// Completions of sends that were taken off their queue.
    reaped: [Wc; BATCH],
    /// The queue of sends may have completions of connections that are over.
    pub(crate) has_stale: bool,
    #[cfg(test)]
    pub(crate) expects_rnr: bool,
}

impl Core {
    /// Makes the queues and the memory of a rail, on a port with its partition's place.
    ///
    /// # Errors
    /// If the system refuses a step.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        channel: &Arc<Channel>,
        open: &Arc<Open>,
        port: (u8, u16),
        mut sizes: Sizes,
    ) -> Result<Self, VerbsError> {
        sizes.one_sided.pins_loans &= open.copies_at_fork();
        let device = Device::new((domain, channel, open), &sizes)?;
        let slots = Slots::new(domain, sizes.slot, sizes.receives)?;
        if let Some(queue) = slots.queue() {
            sizes.inline = limits::inline(queue, (&device.sent, &device.received), &sizes)?;
        }
        let pool = Registered::new(domain, &device::memory(open, sizes.sends * sizes.slot)?)?;
        let budget = Arc::new(Budget::of_process(sizes.locked() - sizes.one_sided.locked()));
        let onesided = OneSided::new(open, channel, port.0, &budget)?;
        Ok(Self {
            peers: Vec::new(),
            leaving: Vec::new(),
            destroyer: Destroyer::default(),
            met: 0,
            retired: FxHashMap::default(),
            by_pair: Pairs::default(),
            inbox: Inbox::default(),
            rings: Rings::new(sizes.ring),
            slots,
            pool: Pool::new(pool, sizes.slot),
            memory: Memory::new(domain, &budget, onesided.abilities.windows),
            onesided,
            device: Some(device),
            is_broken: false,
            renewal: None,
            next_look: Time::ZERO,
            next_told: Time::ZERO,
            entries: Device::entries(&sizes),
            under_way: 0,
            settling: 0,
            left_by: 0,
            ending: Vec::new(),
            live: Vec::new(),
            turn: 0,
            dirty: Vec::new(),
            active: Vec::new(),
            owed: Vec::new(),
            busy: Vec::new(),
            wanted: VecDeque::new(),
            ended: VecDeque::new(),
            steps: VecDeque::new(),
            events: VecDeque::new(),
            recorder: record::recorder(),
            port,
            sizes,
            stats: RcStats::default(),
            now: Time::ZERO,
            idle: 0,
            is_low: false,
            reaped: [Wc::zeroed(); BATCH],
            has_stale: false,
            #[cfg(test)]
            expects_rnr: false,
        })
    }

    /// Adds a peer; `None` where there are as many as the memory is for.
    pub(crate) fn add(&mut self) -> Option<u32> {
        let index = self.peers.len();
        if index == self.sizes.peers {
            return None;
        }
        self.peers.push(Peer::new());
        Some(index as u32)
    }

    /// Something is sent to a peer, or received from it: it is in lists from then on.
    pub(crate) fn begin_with(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        if std::mem::replace(&mut peer.is_met, true) {
            return;
        }
        self.met += 1;
        let lists = [
            &mut self.dirty,
            &mut self.active,
            &mut self.owed,
            &mut self.busy,
            &mut self.live,
            &mut self.ending,
        ];
        for list in lists {
            // Each has every peer at most once.
            list.reserve(self.met.saturating_sub(list.len()));
        }
    }

    /// Forgets what a peer has had: its number is another one's from then on.
    pub(crate) fn forget(&mut self, index: u32) {
        if self.peers[index as usize].stage != Stage::Down {
            self.bury(index);
        }
        self.discard(index);
        self.retired.remove(&index);
        let is_other = |event: &RailEvent| event.scope != Scope::Peer(PeerIndex(index));
        self.events.retain(is_other);
        let peer = &mut self.peers[index as usize];
        *peer = Peer {
            stage: Stage::Down,
            is_forgotten: true,
            is_met: peer.is_met,
            is_dirty: peer.is_dirty,
            is_active: peer.is_active,
            is_owed: peer.is_owed,
            is_busy: peer.is_busy,
            ..Peer::new()
        };
    }

    /// There is a peer of this number, perhaps a new one; `None` where it is beyond the memory.
    pub(crate) fn meet(&mut self, index: u32) -> Option<u32> {
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return self.add();
        };
        if std::mem::take(&mut peer.is_forgotten) {
            peer.stage = Stage::Fresh;
        }
        Some(index)
    }

    pub(crate) fn report(&mut self, index: u32, kind: EventKind, life: Life) {
        self.record(Some(index), Event::Told(kind));
        self.events.push_back(RailEvent {
            at: self.now,
            scope: Scope::Peer(PeerIndex(index)),
            kind,
            life,
        });
    }
}

#[cfg(test)]
impl Core {
    pub(crate) fn requests_under_way(&self) -> usize {
        self.under_way
    }

    pub(crate) fn registrations(&self) -> u64 {
        self.memory.regions.made
    }

    pub(crate) fn free_slots(&self) -> usize {
        self.pool.free()
    }
}
