//! Everything of a BTL but its driver: the parts that its steps work on, and the small steps that several of
//! them need.
//!
//! Each part keeps its own fields; what a part does is its methods. What concerns several parts is a method
//! of [`Core`], in the file of its subject.

use doorbell_fabric::domain::KeyTable;
use doorbell_fabric::event::{EventKind, Scope};
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::rail::PollCost;
use doorbell_fabric::strangers::Strangers;
use doorbell_fabric::time::Time;

use crate::ack_schedule::AckSchedule;
use crate::batching::Row;
use crate::clock::Clock;
use crate::config::{BtlConfig, nanos};
use crate::connectivity::Probing;
use crate::counters::Counters;
use crate::departure::Departures;
use crate::error::BtlError;
use crate::framing::Framing;
use crate::hellos::Hellos;
use crate::key::JobKey;
use crate::message::PollOrder;
use crate::onesided::Operations;
use crate::peer::about;
use crate::peer_keys::{Name, PeerKeys};
use crate::peer_queue::PeerQueue;
use crate::peers::Peers;
use crate::pooled_list::PooledLists;
use crate::reassembly::Reassemblies;
use crate::reconnect::Reconnects;
use crate::record::Journal;
use crate::recv_window::Bitmaps;
use crate::report::History;
use crate::rtt::Bounds;
use crate::run::Heads;
use crate::send_window::Segments;
use crate::serve::Inflow;
use crate::stream::Stream;
use crate::teardown::{Phase, Unclaimed};
use crate::timers::Timers;
use crate::transmit::{Backlog, Outbox};

/// The state of a BTL.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: BtlConfig,
    pub(crate) counters: Counters,
    pub(crate) key: Option<JobKey>,
    pub(crate) peer_keys: PeerKeys,
    pub(crate) phase: Phase,
    /// The peer whose next long message is to be acknowledged as soon as it is taken.
    pub(crate) awaited: Option<PeerIndex>,

    // Time.
    pub(crate) clock: Clock,
    pub(crate) timers: Timers,
    pub(crate) bounds: Bounds,

    // Peers, and those that may become some.
    pub(crate) peers: Peers,
    pub(crate) strangers: Strangers,
    pub(crate) hellos: Hellos,
    pub(crate) reconnects: Reconnects,
    pub(crate) departures: Departures,
    pub(crate) probing: Probing,

    // The parts that these share.
    pub(crate) segments: Segments,
    pub(crate) bitmaps: Bitmaps,
    pub(crate) reassemblies: Reassemblies,
    pub(crate) streams: PooledLists<Stream>,
    pub(crate) inflows: PooledLists<Inflow>,
    pub(crate) operations: Operations,
    pub(crate) exposures: KeyTable,
    /// Messages that peers which are down did not take.
    pub(crate) unclaimed: Unclaimed,

    // Frames, out and in.
    pub(crate) framing: Framing,
    pub(crate) outbox: Outbox,
    pub(crate) heads: Heads,
    pub(crate) backlog: Backlog,
    pub(crate) row: Row,
    /// Peers that have something to send, and may.
    pub(crate) ready: PeerQueue<{ about::READY }>,
    pub(crate) acks: AckSchedule,
    pub(crate) polls: PollOrder,

    // The reports to the owner.
    pub(crate) journal: Journal,
    pub(crate) history: History,

    /// Longest message that we send.
    longest: usize,
}

impl Core {
    /// The state of a BTL without peers, over a rail of these frames, which sends messages of at most
    /// `longest` bytes.
    ///
    /// # Errors
    /// [`BtlError`], when there is no memory for its tables.
    pub(crate) fn new(
        config: BtlConfig,
        framing: Framing,
        longest: usize,
        poll: PollCost,
    ) -> Result<Self, BtlError> {
        Ok(Self {
            counters: Counters::default(),
            key: None,
            peer_keys: PeerKeys::new(config.max_peers),
            phase: Phase::Open,
            awaited: None,
            clock: Clock::new(poll),
            timers: Timers::new(config.max_peers)?,
            bounds: Bounds::new(&config),
            peers: Peers::new(),
            strangers: Strangers::new(),
            hellos: Hellos::new(),
            reconnects: Reconnects::default(),
            departures: Departures::default(),
            probing: Probing::default(),
            segments: Segments::new(config.segments, framing.mtu()),
            bitmaps: Bitmaps::default(),
            reassemblies: Reassemblies::new(config.max_reassemblies, config.eager_limit),
            streams: PooledLists::new(2 * config.operations),
            // Bounded for each peer.
            inflows: PooledLists::new(usize::MAX),
            operations: Operations::new(config.operations)?,
            exposures: KeyTable::new(config.exposures)?,
            unclaimed: Unclaimed::default(),
            framing,
            outbox: Outbox::default(),
            heads: Heads::new(config.quantum),
            backlog: Backlog::new(),
            row: Row::new(),
            ready: PeerQueue::new(),
            acks: {
                let (delay, tail) = (nanos(config.ack_delay), nanos(config.retrans_tail));
                AckSchedule::new(delay, delay.min(tail / 8 * 5))
            },
            polls: PollOrder::default(),
            journal: Journal::new(config.recorder),
            history: History::default(),
            longest,
            config,
        })
    }

    /// The key of the peer of this name: its own, or the job's.
    pub(crate) fn key_of(&self, name: Name) -> Option<&JobKey> {
        self.peer_keys.get(name).or(self.key.as_ref())
    }

    /// Longest message that we send.
    #[inline]
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Makes room in every queue for all peers: each is in each queue at most once, so none of them allocates
    /// later.
    pub(crate) fn make_room(&mut self) {
        let peers = self.peers.len();
        self.ready.reserve(peers);
        self.acks.reserve(peers);
        self.timers.reserve(peers);
        self.probing.reserve(peers);
    }

    /// Takes the time. The owner was `expected` by then (ns), or not at all.
    pub(crate) fn attend(&mut self, now: Time, expected: Option<u64>) {
        if let Some(before) = self.clock.advance(now, expected) {
            self.segments.stamp(before, self.clock.now());
        }
    }

    /// Sees to it that the peer is looked at by `deadline` (ns).
    #[inline]
    pub(crate) fn arm(&mut self, index: PeerIndex, deadline: u64) {
        self.timers.arm(index, &mut self.peers[index].alarm, deadline);
    }

    /// Puts a peer that can send into the queue of those that do.
    #[inline]
    pub(crate) fn make_ready(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[index];
        if peer.has_work() && peer.may_send() {
            self.ready.push(index, peer);
        }
    }

    /// An acknowledgement goes out at the end of this pass.
    #[inline]
    pub(crate) fn ack_now(&mut self, index: PeerIndex) {
        self.acks.now(index, &mut self.peers[index]);
    }

    /// An acknowledgement goes out after a while, sooner for a `long` message which is whole, unless a frame
    /// takes it along before.
    #[inline]
    pub(crate) fn ack_later(&mut self, index: PeerIndex, long: bool) {
        let peer = &mut self.peers[index];
        if let Some(at) = self.acks.later(index, peer, &self.clock, long)
            && peer.alarm.is_later_than(at)
        {
            self.timers.arm(index, &mut peer.alarm, at);
        }
    }

    /// A frame of the peer has arrived, and it was what it should be.
    #[inline]
    pub(crate) fn mark_alive(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[index];
        peer.liveness.hear(self.clock.attended());
        if !peer.is(about::GREETED) {
            self.greet(index);
        }
    }

    #[cold]
    fn greet(&mut self, index: PeerIndex) {
        self.peers[index].set(about::GREETED);
        self.tell(Scope::Peer(index), EventKind::PeerUp);
        self.replace(index);
        self.arm_keep_alive(index);
    }

    /// Sees to it that the peer is looked at when it may have been silent for too long.
    pub(crate) fn arm_keep_alive(&mut self, index: PeerIndex) {
        let deadline = self.clock.after(self.config.keep_alive.as_nanos() as u64);
        self.arm(index, deadline);
    }
}
