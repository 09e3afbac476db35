//! The connections of a rail and what they share: queues, memory, the table by queue pair numbers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Life, RailEvent, Scope};
use doorbell_fabric::message::{Body, MsgId, PeerIndex, Refused};
use doorbell_fabric::recorder::Recorder;
use doorbell_fabric::time::Time;
use rustc_hash::FxHashMap;
use zerocopy::little_endian::{U16, U32, U64};

use super::destroyer::{Destroyer, Over};
use super::device::{self, Device};
use super::head::{HEAD, Head, LENGTH, PROOF};
use super::hello::{FEWEST_CREDITS, Hello, Route};
use super::inbox::Inbox;
use super::limits;
use super::link::{DEPTH, Ended, FIRST_CREDITS, LINE, Link, Posted, Retries, State};
use super::onesided::{self, Budget, Memory, OneSided};
use super::outbox::{Far, Outbox, Pool};
use super::record::{self, DROPS, Drop, Event};
use super::ring::{self, Rings};
use super::slots::Slots;
use crate::cm::Size;
use crate::error::VerbsError;
use crate::sys::{
    Channel, Domain, Open, PIECES, Poster, Registered, ReliablePair, ReliableSizes, Wc, numbers,
};

/// Polls in vain after which peers are sent counters that they do not wait for.
const IDLE: u32 = 1 << 16;
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

/// Bytes that go with a request itself, where the device can.
pub(crate) const INLINE: usize = 128;

/// Sizes of a rail of reliable connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Bytes of a slot, and so of a send.
    pub(crate) slot: usize,
    /// Slots to send from.
    pub(crate) sends: usize,
    /// Slots to receive into: at the beginning, and at most.
    pub(crate) receives: (usize, usize),
    /// Peers at most.
    pub(crate) peers: usize,
    /// Bytes that go with a request itself, where the device can.
    pub(crate) inline: usize,
    /// Pieces of a request.
    pub(crate) pieces: usize,
    /// The length from which on a region's bytes are sent from where they lie.
    pub(crate) zero_copy: usize,
    pub(crate) retries: Retries,
    /// How long a connection may be idle before the peer is tried.
    pub(crate) keep_alive: Duration,
    pub(crate) one_sided: onesided::Sizes,
    pub(crate) ring: ring::Sizes,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            slot: 8 << 10,
            sends: 256,
            receives: (64, 512),
            peers: 1024,
            inline: INLINE,
            pieces: PIECES,
            zero_copy: 4 << 10,
            retries: Retries {
                count: 6,
                timeout: 14,
            },
            keep_alive: Duration::from_millis(500),
            one_sided: onesided::Sizes::default(),
            ring: ring::Sizes::default(),
        }
    }
}

impl Sizes {
    /// Bytes of memory that a rail locks at most, besides what contact has.
    pub(crate) fn locked(&self) -> usize {
        let messages = (self.sends + self.receives.1) * self.slot;
        messages + self.peers * LINE + PROOF_MOST + self.one_sided.locked() + self.ring.locked()
    }

    /// With as many slots to receive into as a limit of locked memory leaves room for, besides `others`
    /// bytes, but no fewer than it begins with.
    pub(crate) fn fit(mut self, limit: Option<u64>, others: usize) -> Self {
        let (first, most) = self.receives;
        let rest = self.locked() - most * self.slot + others;
        if let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) {
            let room = limit.saturating_sub(rest) / self.slot;
            self.receives.1 = most.min((room - room % first).max(first));
        }
        self
    }

    /// The longest message.
    pub(crate) fn message(&self) -> usize {
        self.slot - HEAD - LENGTH
    }
}

/// What a rail of reliable connections counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RcStats {
    /// Messages accepted, and sends that carried them.
    pub sent: u64,
    /// Sends: several messages may share one.
    pub sends: u64,
    /// Messages shown to the layer above.
    pub received: u64,
    /// How often a doorbell was rung.
    pub doorbells: u64,
    /// Bodies sent from where they lay.
    pub zero_copy: u64,
    /// Counters written to peers.
    pub told: u64,
    /// Peers tried while they were idle.
    pub probes: u64,
    /// Sends whose bytes went with the request.
    pub inline: u64,
    /// Messages that shared a send with one before them.
    pub coalesced: u64,
    /// Times that a send had to wait for a credit.
    pub stalls: u64,
    /// Registrations of regions that were sent from where they lay, and their bytes.
    pub registrations: u64,
    /// Bytes of those registrations.
    pub registered_bytes: u64,
    /// Credits granted, besides those that connections begin with.
    pub granted: u64,
    /// Sends whose head requests more credits.
    pub asked: u64,
    /// Times that idle credits were requested back.
    pub recalled: u64,
    /// Times that idle credits were given back.
    pub returned: u64,
    /// Times that a peer had no slot for a send: a promise was broken.
    pub rnr: u64,
    /// Requests flushed at the end of connections.
    pub flushed: u64,
    /// Completions of connections that are over.
    pub stale: u64,
    /// Completions that cannot be true.
    pub nonsense: u64,
    /// Times that few receives were left and more were posted, or there were no more.
    pub grown: u64,
    /// Times that few receives were left, and the limit was reached.
    pub at_limit: u64,
    /// Times that the queues were made again.
    pub renewed: u64,
    /// Asynchronous events that mean nothing here.
    pub other_events: u64,
    /// Requests that the device repeated in vain, of messages and of one-sided operations. What it repeats
    /// with success only its own counters report.
    pub retries: u64,
    /// Registrations of borrowed memory for one operation or exposure.
    pub pinned: u64,
    /// Bytes of those registrations.
    pub pinned_bytes: u64,
    /// Sends that were dropped as a rule of the wire was broken, by reasons.
    pub(crate) dropped: [u64; DROPS],
    /// Messages that were sent over rings of peers.
    pub ring: u64,
    /// Messages that came over rings of this end.
    pub ring_received: u64,
    /// Rings that peers were given.
    pub rings: u64,
    /// Connections that may have ended in the middle of a send, and cost a slot until the queue of receives
    /// was replaced.
    pub doubtful: u64,
}

impl RcStats {
    /// Every counter with its name. Names and order never change.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("sent", self.sent),
            ("sends", self.sends),
            ("received", self.received),
            ("doorbells", self.doorbells),
            ("zero_copy", self.zero_copy),
            ("told", self.told),
            ("probes", self.probes),
            ("rnr", self.rnr),
            ("flushed", self.flushed),
            ("stale", self.stale),
            ("nonsense", self.nonsense),
            ("grown", self.grown),
            ("at_limit", self.at_limit),
            ("other_events", self.other_events),
            ("inline", self.inline),
            ("coalesced", self.coalesced),
            ("stalls", self.stalls),
            ("asked", self.asked),
            ("granted", self.granted),
            ("recalled", self.recalled),
            ("returned", self.returned),
            ("registrations", self.registrations),
            ("registered_bytes", self.registered_bytes),
            ("renewed", self.renewed),
            ("retries", self.retries),
            ("pinned", self.pinned),
            ("pinned_bytes", self.pinned_bytes),
            ("ring", self.ring),
            ("ring_received", self.ring_received),
            ("rings", self.rings),
            ("doubtful", self.doubtful),
        ]
        .into_iter()
        .chain(Drop::NAMES.into_iter().zip(self.dropped))
    }
}

/// How far a peer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There was no connection yet, or one is being made.
    Fresh,
    /// There is one.
    Open,
    /// It is down.
    Down,
}

/// How a connection that is being made has come further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something has come over it: the other end is connected.
    Established,
    /// What proves that this size passes was acknowledged.
    Passed(Size),
    /// A message of the layer above has come: the other end is up.
    Heard,
}

/// What the rail keeps of a peer.
pub(crate) struct Peer {
    pub(crate) outbox: Option<Box<Outbox>>,
    pub(crate) link: Option<Box<Link>>,
    pub(crate) stage: Stage,
    /// Messages accepted for former connections, and the last that is known to be taken.
    base: u64,
    passed: u64,
    pub(crate) life: Life,
    is_dirty: bool,
    is_active: bool,
    is_owed: bool,
    pub(crate) is_wanted: bool,
    /// Whether the lists have room for it.
    is_met: bool,
    /// Its number is free.
    is_forgotten: bool,
    pub(crate) is_busy: bool,
    /// Its place among the connections that are up.
    live_at: u32,
}

impl Peer {
    fn new() -> Self {
        Self {
            outbox: None,
            link: None,
            stage: Stage::Fresh,
            base: 0,
            passed: 0,
            life: Life::FIRST,
            is_dirty: false,
            is_active: false,
            is_owed: false,
            is_wanted: false,
            is_met: false,
            is_forgotten: false,
            is_busy: false,
            live_at: u32::MAX,
        }
    }

    /// The numbers of the messages accepted over the present connection.
    pub(crate) fn accepted(&self) -> u64 {
        self.outbox.as_ref().map_or(0, |outbox| outbox.accepted)
    }
}

/// A list of peers, each at most once, by a mark of its own.
macro_rules! enlist {
    ($core:ident, $list:ident, $mark:ident, $index:expr) => {
        let index = $index;
        if let Some(peer) = $core.peers.get_mut(index as usize)
            && !std::mem::replace(&mut peer.$mark, true)
        {
            $core.$list.push(index);
        }
    };
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
    pub(crate) by_pair: FxHashMap<u32, u32>,
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
    /// Connections that are on their way to their ends.
    pub(crate) ending: Vec<u32>,
    /// Connections that are up, and the next of them to be looked at.
    pub(crate) live: Vec<u32>,
    pub(crate) turn: usize,
    /// Peers by what is to be done: something is to be posted; the outbox is not empty; counters are to be
    /// written; requests are under way.
    dirty: Vec<u32>,
    pub(crate) active: Vec<u32>,
    owed: Vec<u32>,
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
            by_pair: FxHashMap::default(),
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

    // The making of connections.

    /// Makes our end of a connection, which receives nothing yet; what the other end needs for it. One
    /// that was made and not connected is given up.
    ///
    /// # Errors
    /// If the system refuses a step, or there are no slots to promise.
    pub(crate) fn prepare(&mut self, index: u32) -> Result<Hello, VerbsError> {
        self.discard(index);
        self.begin_with(index);
        self.slots.refill(true);
        if self.slots.unpromised() < FIRST_CREDITS {
            self.slots.grow()?;
        }
        let credits = self.slots.unpromised().min(FIRST_CREDITS);
        let (Some(device), Some(queue), Some(pool)) = (&self.device, self.slots.queue(), self.pool.memory())
        else {
            return Err(VerbsError::NoDevice {
                device: "it".to_owned(),
                reason: "it is gone".to_owned(),
            });
        };
        let nonsense = |what: &str| VerbsError::Nonsense {
            device: device.open.name().to_owned(),
            what: what.to_owned(),
        };
        if self.peers[index as usize].link.is_some() {
            return Err(nonsense("the former connection to this peer is not over"));
        }
        if credits < FEWEST_CREDITS {
            return Err(nonsense("no receive slots left to promise"));
        }
        let line = index as usize * LINE;
        let slice = device.lines.memory().slice(line, LINE);
        let slice = slice.ok_or_else(|| nonsense("a peer without a line"))?;
        let page = Registered::written(&device.domain, slice)?;
        let sizes = ReliableSizes {
            sends: DEPTH,
            inline: self.sizes.inline,
            pieces: self.sizes.pieces,
        };
        let pair = ReliablePair::new(queue, (&device.sent, &device.received), sizes)?;
        let mut psn = [0; 4];
        // Without random numbers, late packets are distinguished by the queue pair's number alone.
        let _ = getrandom::fill(&mut psn);
        let hello = Hello {
            pair: pair.number(),
            psn: u32::from_ne_bytes(psn) >> 8,
            credits: credits as u32,
            slot: self.sizes.slot as u32,
            page: (page.memory().address() as u64, page.remote_key()),
        };
        let memory = [Arc::clone(pool), Arc::clone(&device.lines)];
        let poster = Poster::new(pair, DEPTH, memory);
        let place = (page, Arc::clone(&device.lines), line);
        let link = Link::new(poster, hello, place, self.port, self.now)?;
        self.slots.promise(credits);
        self.peers[index as usize].link = Some(Box::new(link));
        Ok(hello)
    }

    /// Gives up a connection that is not up: no layer above has seen it, and what waits goes on waiting.
    pub(crate) fn discard(&mut self, index: u32) {
        let link = &mut self.peers[index as usize].link;
        let is_begun = |link: &mut Box<Link>| matches!(link.state, State::Made | State::Receiving);
        if let Some(link) = link.take_if(is_begun) {
            self.let_go_of(index, link);
        }
    }

    /// Nothing of a connection is waited for any more. Its queue pair stays in ERR until all that was
    /// received is taken: some devices drop what one has received when it is destroyed, and slots with it.
    fn let_go_of(&mut self, index: u32, mut link: Box<Link>) {
        link.sever();
        self.drop_ring(index);
        self.by_pair.remove(&link.ours.pair);
        self.under_way -= link.under_way();
        // Their completions may come until it is destroyed.
        self.has_stale = true;
        self.settling += link.promised();
        if link.may_hold_slot() {
            self.slots.doubt_one();
            self.stats.doubtful += 1;
        }
        self.steps.retain(|(peer, _)| *peer != index);
        self.leaving.push(*link);
    }

    /// The partition is at another place of the table: connections that name it by the old one are over.
    pub(crate) fn set_partition(&mut self, index: u16) {
        self.port.1 = index;
        // Those that are made and not connected are in no table yet.
        (0..self.peers.len() as u32).for_each(|peer| self.end(peer, DownReason::Abandoned));
    }

    /// Connects our end to the other one: it receives from now on.
    ///
    /// # Errors
    /// Why the connection cannot be: [`DownReason::Hostile`] where the other end states what cannot be,
    /// [`DownReason::Resources`] where the system refuses it.
    pub(crate) fn connect(
        &mut self,
        index: u32,
        theirs: &Hello,
        route: &Route,
        life: Life,
    ) -> Result<(), DownReason> {
        let peer = &mut self.peers[index as usize];
        let Some(link) = peer.link.as_mut().filter(|link| link.state == State::Made) else {
            return Err(DownReason::Resources);
        };
        if !theirs.is_possible(self.sizes.slot) {
            return Err(DownReason::Hostile);
        }
        if link.connect(theirs, route, self.sizes.retries).is_err() {
            return Err(DownReason::Resources);
        }
        peer.life = life;
        self.by_pair.insert(link.ours.pair, index);
        Ok(())
    }

    /// Sends what proves that messages pass, short ones and those of the path MTU.
    pub(crate) fn prove(&mut self, index: u32, mtu: usize) {
        let (at, now) = (self.sizes.peers * LINE, self.now);
        let mtu = mtu.min(PROOF_MOST).min(self.sizes.slot);
        if let Some(link) = &mut self.peers[index as usize].link {
            let posted = link.prove(at, mtu, now);
            self.book(index, posted);
        }
    }

    /// A request of a connection that is not up has ended.
    #[cold]
    fn proved(&mut self, index: u32) {
        if let Some(link) = &mut self.peers[index as usize].link {
            while let Some(size) = link.passed() {
                self.steps.push_back((index, Step::Passed(size)));
            }
        }
    }

    /// The other end receives, too: what waits may be sent, and the peer is up.
    pub(crate) fn ready(&mut self, index: u32) {
        let now = self.now;
        let peer = &mut self.peers[index as usize];
        if let Some(link) = &mut peer.link
            && link.state == State::Receiving
        {
            link.state = State::Up;
            link.posted_at = now;
            (peer.stage, peer.is_wanted) = (Stage::Open, false);
            peer.live_at = self.live.len() as u32;
            self.live.push(index);
            let life = peer.life;
            self.report(index, EventKind::PeerUp, life);
            self.mark_dirty(index);
            // What proved the connection took credits.
            self.mark_owed(index);
            self.one_sided_up(index);
        }
    }

    // The ends of connections.

    /// Ends a connection for a reason: what has come is shown before, and what was posted ends; then the peer
    /// is down.
    pub(crate) fn end(&mut self, index: u32, reason: DownReason) {
        let now = self.now;
        let Some(link) = &mut self.peers[index as usize].link else {
            return;
        };
        match link.state {
            // It was not up: contact makes another one, or reports that there is none.
            State::Made | State::Receiving => {
                self.discard(index);
                self.ended.push_back((index, reason));
            }
            State::Up => {
                let posted = link.fail(reason, now);
                // Its last sends are among those that the queue has room for.
                link.last_send = self.inbox.fetched + self.sizes.receives.1 as u64;
                self.record(Some(index), Event::Ending(reason));
                self.ending.push(index);
                self.under_way += posted.requests;
                self.is_live_no_more(index);
                self.one_sided_failed(index);
            }
            State::Ending(..) => {}
        }
    }

    /// Whether a peer's connection carries messages.
    #[inline]
    pub(crate) fn is_up(&self, index: u32) -> bool {
        let link = self.peers[index as usize].link.as_ref();
        link.is_some_and(|link| link.state == State::Up)
    }

    /// Whether one is being made, and receives.
    #[inline]
    pub(crate) fn is_beginning(&self, index: u32) -> bool {
        let link = self.peers[index as usize].link.as_ref();
        link.is_some_and(|link| link.state == State::Receiving)
    }

    /// Whether messages wait for a connection that there was none of yet.
    pub(crate) fn is_wanted(&self, index: u32) -> bool {
        self.peers[index as usize].is_wanted
    }

    /// Takes a connection off the list of those that are up.
    fn is_live_no_more(&mut self, index: u32) {
        let at = std::mem::replace(&mut self.peers[index as usize].live_at, u32::MAX);
        if at != u32::MAX {
            self.live.swap_remove(at as usize);
            if let Some(&moved) = self.live.get(at as usize) {
                self.peers[moved as usize].live_at = at;
            }
        }
    }

    /// There will be no connection to a peer: what waits for one is given back.
    pub(crate) fn lose(&mut self, index: u32, reason: DownReason) {
        if self.peers[index as usize].stage != Stage::Down {
            self.bury(index);
            self.report(index, EventKind::PeerDown(reason), Life::FIRST);
        }
    }

    /// Breaks a connection without a report to either end.
    pub(crate) fn sever(&mut self, index: u32) {
        if let Some(link) = &mut self.peers[index as usize].link {
            link.sever();
        }
    }

    /// Ends a peer at once and without an event, whatever it has.
    pub(crate) fn drop_peer(&mut self, index: u32) {
        if self.peers[index as usize].stage != Stage::Down {
            self.bury(index);
        }
    }

    /// Takes a connection down: its queue pair is destroyed, and what was not taken is kept to be reclaimed.
    pub(crate) fn bury(&mut self, index: u32) {
        self.reap();
        self.is_live_no_more(index);
        let peer = &mut self.peers[index as usize];
        (peer.stage, peer.is_wanted) = (Stage::Down, false);
        let (accepted, link) = (peer.accepted(), peer.link.take());
        let mut taken = 0;
        if let Some(mut link) = link {
            // What cannot be is no news.
            let _ = link.read_page(accepted);
            taken = link.known.consumed;
            self.let_go_of(index, link);
            if let Some(at) = self.ending.iter().position(|ending| *ending == index) {
                self.ending.swap_remove(at);
            }
        }
        let has_left = self.retired.contains_key(&index);
        let peer = &mut self.peers[index as usize];
        if !has_left {
            peer.passed = peer.passed.max(peer.base + taken);
        }
        let (base, mut retired) = (peer.base, Vec::new());
        if let Some(outbox) = &mut peer.outbox {
            peer.base += outbox.accepted;
            outbox.end(&mut self.pool, taken, |number, message| {
                retired.push((base + number, message));
            });
        }
        if !retired.is_empty() {
            self.retired.entry(index).or_default().extend(retired);
        }
        self.inbox.forget(index, &mut self.slots);
        self.one_sided_over(index);
    }

    // Sending.

    /// Accepts a message.
    #[inline]
    pub(crate) fn accept(&mut self, index: u32, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        let result = self.try_accept(index, head, body);
        if result != Err(Refused::Full) {
            return result;
        }
        // Perhaps something has ended meanwhile.
        self.reap();
        self.read_page(index);
        self.release(index);
        if self.pool.is_low() {
            self.read_pages();
        }
        self.try_accept(index, head, body)
    }

    #[inline]
    fn try_accept(&mut self, index: u32, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        let peer = self.peers.get_mut(index as usize).ok_or(Refused::PeerDown)?;
        if peer.stage == Stage::Down {
            return Err(Refused::PeerDown);
        }
        let is_ending = peer
            .link
            .as_ref()
            .is_some_and(|link| matches!(link.state, State::Ending(..)));
        if is_ending {
            return Err(Refused::Full);
        }
        let far = match body {
            Body::Region(slice) if slice.len() >= self.sizes.zero_copy => {
                self.memory.regions.place(slice).map(|place| Far {
                    place,
                    slice: (*slice).clone(),
                })
            }
            _ => None,
        };
        let is_far = far.is_some();
        let Some(outbox) = &mut peer.outbox else {
            return self.accept_first(index, head, body);
        };
        outbox.accept(&mut self.pool, head, body, far)?;
        let id = MsgId(peer.base + outbox.accepted);
        self.stats.sent += 1;
        self.stats.zero_copy += u64::from(is_far);
        if peer.stage == Stage::Fresh && !std::mem::replace(&mut peer.is_wanted, true) {
            self.wanted.push_back(index);
        }
        self.mark_dirty(index);
        Ok(id)
    }

    /// Accepts a peer's first message.
    #[cold]
    fn accept_first(&mut self, index: u32, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        self.begin_with(index);
        self.peers[index as usize].outbox = Some(Box::new(Outbox::new()));
        self.try_accept(index, head, body)
    }

    #[inline]
    pub(crate) fn mark_dirty(&mut self, index: u32) {
        enlist!(self, dirty, is_dirty, index);
    }

    #[inline]
    pub(crate) fn mark_owed(&mut self, index: u32) {
        enlist!(self, owed, is_owed, index);
    }

    /// Posts everything that waits and may be sent: one doorbell for each peer.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.flush_one_sided();
        while let Some(index) = self.dirty.pop() {
            self.post_controls(index);
            let peer = &mut self.peers[index as usize];
            peer.is_dirty = false;
            let Some(outbox) = &mut peer.outbox else { continue };
            let Some(link) = &mut peer.link else {
                if !outbox.is_empty() {
                    enlist!(self, active, is_active, index);
                }
                continue;
            };
            let most = (self.entries - DEPTH).saturating_sub(self.under_way);
            let posted = link.post(outbox, &self.pool, most, self.now);
            let is_kept = !outbox.is_empty();
            self.stats.sends += posted.sends as u64;
            self.stats.asked += u64::from(posted.asks);
            self.stats.inline += posted.inline as u64;
            self.stats.coalesced += posted.messages.saturating_sub(posted.sends) as u64;
            self.stats.stalls += u64::from(posted.is_stalled);
            self.stats.ring += posted.ring as u64;
            self.book(index, posted);
            if is_kept {
                enlist!(self, active, is_active, index);
            }
        }
    }

    pub(crate) fn book(&mut self, index: u32, posted: Posted) {
        if posted.requests > 0 {
            self.under_way += posted.requests;
            self.stats.doorbells += 1;
            enlist!(self, busy, is_busy, index);
        }
        if posted.is_broken {
            self.end(index, DownReason::Resources);
        }
    }

    /// Takes the completions of sends.
    #[inline]
    pub(crate) fn reap(&mut self) {
        // A queue that is broken ends nothing: time ends its connections.
        while (self.under_way > 0 || self.has_stale)
            && let Some(device) = &self.device
            && let Ok(count) = device.sent.poll(&mut self.reaped)
        {
            for at in 0..count {
                let completion = self.reaped[at];
                self.complete(&completion);
            }
            if count < BATCH {
                self.has_stale = false;
                return;
            }
        }
    }

    /// One completion: of one in error, only its request, its status and its queue pair count.
    #[inline]
    fn complete(&mut self, completion: &Wc) {
        let Some(&index) = self.by_pair.get(&completion.qp_num) else {
            self.stats.stale += 1;
            return;
        };
        let peer = &mut self.peers[index as usize];
        let Some(link) = &mut peer.link else { return };
        let is_error = completion.status != numbers::SUCCESS;
        match link.ended(completion.wr_id, is_error, self.now) {
            Ended::Nonsense => self.stats.nonsense += 1,
            Ended::Well(count) => {
                let is_up = link.state != State::Receiving;
                self.under_way -= count;
                if is_up {
                    self.release_together(index);
                } else {
                    self.proved(index);
                }
            }
            Ended::Badly(count) => {
                self.under_way -= count;
                self.failed(index, completion);
            }
        }
    }

    #[cold]
    fn failed(&mut self, index: u32, completion: &Wc) {
        let (status, vendor) = (completion.status, completion.vendor_err);
        self.record(Some(index), Event::Failed { status, vendor });
        self.stats.retries += u64::from(status == numbers::RETRY_EXC_ERR);
        self.stats.flushed += u64::from(status == numbers::WR_FLUSH_ERR);
        self.stats.rnr += u64::from(status == numbers::RNR_RETRY_EXC_ERR);
        self.end(index, reason_of(status));
    }

    /// Gives back what has ended and was taken, together with others unless something needs it now.
    #[inline]
    pub(crate) fn release_together(&mut self, index: u32) {
        let outbox = &self.peers[index as usize].outbox;
        if self.pool.is_low() || outbox.as_ref().is_some_and(|outbox| outbox.is_pressed()) {
            self.release(index);
        }
    }

    /// Gives back what has ended and was taken; what waits for room goes on.
    fn release(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        if let (Some(outbox), Some(link)) = (&mut peer.outbox, &peer.link) {
            outbox.release(&mut self.pool, link.known.consumed, link.done());
            if outbox.waits() {
                self.mark_dirty(index);
            }
        }
    }

    /// Reads what the peer has written to our counter page.
    #[inline]
    pub(crate) fn read_page(&mut self, index: u32) {
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return;
        };
        let accepted = peer.accepted();
        let Some(link) = &mut peer.link else { return };
        if link.state != State::Up {
            return;
        }
        match link.read_page(accepted) {
            Ok(false) => {}
            Ok(true) => self.release_together(index),
            Err(_) => {
                self.drop_send(index, Drop::Page);
                self.end(index, DownReason::Hostile);
            }
        }
    }

    /// The last message of a peer that was taken.
    pub(crate) fn watermark(&mut self, index: u32) -> MsgId {
        self.read_page(index);
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return MsgId(0);
        };
        // What is left of a former connection is not taken, whatever a new one brings.
        if let Some(link) = &peer.link
            && !self.retired.contains_key(&index)
        {
            peer.passed = peer.passed.max(peer.base + link.known.consumed);
        }
        MsgId(peer.passed)
    }

    /// The number of the last message that was accepted for a peer.
    pub(crate) fn last_accepted(&self, index: u32) -> MsgId {
        let peer = self.peers.get(index as usize);
        MsgId(peer.map_or(0, |peer| peer.base + peer.accepted()))
    }

    /// What is left of former connections.
    pub(crate) fn reclaim(&mut self, index: u32, each: &mut dyn FnMut(MsgId, &[u8])) {
        for (number, message) in self.retired.remove(&index).unwrap_or_default() {
            each(MsgId(number), &message);
        }
    }

    // Housekeeping.

    /// What follows the messages of a poll.
    #[inline]
    pub(crate) fn after_poll(&mut self, found: bool) {
        self.slots.check();
        self.reap();
        self.reap_one_sided();
        self.idle = if found { 0 } else { self.idle.wrapping_add(1) };
        if found {
            self.tell(true);
        } else if self.idle == 2 || self.idle.is_multiple_of(16) {
            self.read_pages();
            // For an owner that polls and does nothing else.
            if self.idle.is_multiple_of(IDLE) {
                self.tell(false);
            }
        }
        self.flush();
    }

    /// Writes counters to the peers that wait for them; at leisure to all that do not know them.
    pub(crate) fn tell(&mut self, only_low: bool) {
        let mut at = 0;
        while let Some(&index) = self.owed.get(at) {
            let is_done = self.tell_one(index, only_low);
            if is_done {
                self.owed.swap_remove(at);
                self.peers[index as usize].is_owed = false;
            } else {
                at += 1;
            }
        }
    }

    /// Whether a peer does not know all of what was taken.
    pub(crate) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Grants more credits to a peer that waits for them soon, for the next head to bring: one that only
    /// looks and answers does not poll.
    #[inline]
    pub(crate) fn grant_if_low(&mut self, index: u32) {
        if let Some(link) = &mut self.peers[index as usize].link
            && link.is_low()
        {
            link.widen(&self.slots);
            self.stats.granted += link.grant(&mut self.slots);
        }
    }

    fn tell_one(&mut self, index: u32, only_low: bool) -> bool {
        let peer = &mut self.peers[index as usize];
        let Some(link) = &mut peer.link else { return true };
        if only_low && !link.is_low() {
            return false;
        }
        if only_low {
            link.widen(&self.slots);
        }
        self.stats.granted += link.grant(&mut self.slots);
        if link.promised() == 0 {
            // Slots that came back may wait for others to be posted with.
            if !self.slots.grow().unwrap_or(false) {
                self.slots.refill(true);
            }
            self.stats.granted += link.grant(&mut self.slots);
        }
        // What waits to be sent brings it, too.
        let brings_it = peer.outbox.as_ref().is_some_and(|outbox| outbox.waits());
        if !brings_it || !only_low {
            let posted = link.tell(self.now, self.under_way > self.entries / 4);
            let is_done = link.has_told() || link.state != State::Up;
            self.stats.told += posted.requests as u64;
            self.book(index, posted);
            return is_done;
        }
        self.mark_dirty(index);
        false
    }

    /// A send of a connection that is over was found: one of its promises ends.
    pub(crate) fn settle_one(&mut self) {
        if self.settling > 0 {
            self.settling -= 1;
            self.slots.redeem(1);
        }
    }

    pub(crate) fn read_pages(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.active.get(at) {
            self.read_page(index);
            self.release(index);
            let peer = &mut self.peers[index as usize];
            if peer.outbox.as_ref().is_none_or(|outbox| outbox.is_empty()) {
                peer.is_active = false;
                self.active.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Nothing more is there to be received: promises to former connections hold no more, and connections
    /// that are over are reported.
    #[inline]
    pub(crate) fn received_all(&mut self) {
        if !self.leaving.is_empty() {
            self.destroy_leaving();
        }
        self.slots.redeem(std::mem::take(&mut self.settling));
        if !self.ending.is_empty() {
            self.reap();
            self.finish_ending(u64::MAX);
        }
    }

    /// Has the queue pairs of connections that are over be destroyed.
    #[cold]
    pub(crate) fn destroy_leaving(&mut self) {
        self.has_stale = true;
        for link in self.leaving.drain(..) {
            self.destroyer.take(Over::Messages(Box::new(link)));
        }
    }

    /// Whether everything that was accepted is taken, or cannot be.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.flush();
        self.reap();
        self.read_pages();
        let is_down = |index: &u32| self.peers[*index as usize].stage == Stage::Down;
        self.active.iter().all(is_down)
    }

    /// Whether something that was accepted for any peer is not posted.
    pub(crate) fn holds_back(&self) -> bool {
        let waits = |index: &u32| {
            let outbox = &self.peers[*index as usize].outbox;
            outbox.as_ref().is_some_and(|outbox| outbox.waits())
        };
        self.active.iter().any(waits)
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

/// Why a connection ended, by the status of the request that found it out. None of them shows that the peer's
/// process has ended: a first error may be a flush without a cause, as where an interface goes down.
pub(crate) fn reason_of(status: i32) -> DownReason {
    match status {
        numbers::RETRY_EXC_ERR => DownReason::Silent,
        numbers::LOC_LEN_ERR | numbers::LOC_QP_OP_ERR | numbers::LOC_PROT_ERR | numbers::MW_BIND_ERR => {
            DownReason::Resources
        }
        _ => DownReason::Abandoned,
    }
}
