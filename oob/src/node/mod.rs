//! A process of the control plane: names, streams, tags, routes, the tree and the paths to neighbours,
//! combined.
//!
//! ```text
//!    send, post, broadcast, gather                    Event: Received, Sent, PeerLost, …
//!              │                                                  ▲
//!    ┌─────────▼──────────────────────────────────────────────────┴──────────┐
//!    │ rml      which receive                          broadcast, gather     │
//!    │ stream   once and in order, end to end          tree: who is whose child, who is lost
//!    │ routed   which neighbour                                              │
//!    │ path_choice  which transport, which module, which link                │
//!    └─────────┬──────────────────────────────────────────────────▲──────────┘
//!              ▼ Command                                          │ transport::Event
//! ```
//!
//! Sans I/O: every call takes the time, and queues its effects, which [`Node::output`] returns. Call
//! [`Node::tick`] when [`Node::next_deadline`] has come.
//!
//! The files: `api` (calls for users), `links` and `neighbours`, `relay` (frames on their way), `streams`
//! (frames at their ends), `lifeline`, `reparent` and `failure_notice` (the tree), `broadcast`, `gather`
//! (collectives), `codec` (control messages).

mod api;
mod broadcast;
mod codec;
mod failure_notice;
mod gather;
mod lifeline;
mod links;
mod neighbours;
mod relay;
mod reparent;
mod streams;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use doorbell_fabric::time::Time;
use doorbell_fabric::timers::Timers;

use crate::bytes::Bytes;
use crate::config::{Config, Routing};
use crate::contact::{Address, Contact};
use crate::event::{Event, OpId, Output, SendId};
use crate::name::{Epoch, Name};
use crate::path_choice::{Hop, Link, LinkKey};
use crate::rml::Rml;
use crate::routed::{Routed, Tree};
use crate::stream::{Rx, Tx};
use crate::transport::{Command, ModuleId, TransportId};
use crate::wire::Lane;

/// A process of the control plane; see the module's documentation.
pub struct Node {
    config: Arc<Config>,
    now: Time,
    peers: Vec<Peer>,
    index: BTreeMap<Name, u32>,
    links: BTreeMap<LinkKey, Link>,
    modules: BTreeMap<(TransportId, ModuleId), Vec<Address>>,
    rml: Rml,
    routed: Routed,
    life: lifeline::Life,
    notices: BTreeMap<u32, failure_notice::Notice>,
    casts: broadcast::Broadcasts,
    gathers: gather::Gathers,
    /// Control messages whose completion has an effect.
    purposes: BTreeMap<SendId, Purpose>,
    /// Control messages to this process itself.
    local: VecDeque<(u32, Bytes)>,
    /// Streams that may have something to send.
    dirty: BTreeSet<(u32, Lane)>,
    /// Streams whose sender has received a narrow window.
    shut: BTreeSet<(u32, Lane)>,
    /// Peers for which a send found no room.
    wanted: BTreeSet<u32>,
    pending: usize,
    timers: Timers<Key>,
    out: VecDeque<Output>,
    numbers: u64,
    counters: Counters,
    ended: bool,
}

/// Counters of a node, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames given to links.
    pub frames: u64,
    /// Messages of our own streams among those.
    pub messages: u64,
    /// Messages delivered to receives.
    pub delivered: u64,
    /// Duplicate messages dropped.
    pub duplicates: u64,
    /// Messages of others that were relayed.
    pub relayed: u64,
    /// Frames that could not be relayed.
    pub dropped: u64,
    /// Frames from or for an earlier epoch.
    pub stale: u64,
    /// Malformed frames that arrived.
    pub malformed: u64,
    /// Retransmission time-outs of messages.
    pub timeouts: u64,
    /// Frames that a lost link had not sent, and that took another path.
    pub requeued: u64,
    /// Attempts to connect.
    pub attempts: u64,
}

/// What is known about a process.
struct Peer {
    name: Name,
    epoch: Epoch,
    lost: bool,
    /// Whether it is a parent or child, or about to be one, and needs a lasting link.
    neighbour: bool,
    contact: Option<Box<Contact>>,
    hop: Option<Box<Hop>>,
    lanes: [Option<Box<Stream>>; 2],
}

/// Both directions of a lane.
#[derive(Debug)]
struct Stream {
    tx: Tx,
    rx: Option<Rx>,
    /// The link that its last message used.
    via: Option<LinkKey>,
    /// Whether a probe is in flight.
    probed: bool,
}

/// The effect of a control message's completion.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Attach(u32),
    Check(u32),
    CastRequest(OpId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Stream(u32, Lane),
    Hop(u32),
    Seek,
    Home,
    Broadcast(u64),
    Gather(u32),
    Op(OpId),
}

const _: () = assert!(size_of::<Peer>() <= 80, "the record of an idle peer is small");

impl Node {
    /// Creates a node. Report modules and contacts to it, then call [`start`](Node::start).
    #[must_use]
    pub fn new(config: Config, now: Time) -> Self {
        let tree = Tree::new(config.ranks, config.radix);
        Self {
            now,
            peers: Vec::new(),
            index: BTreeMap::new(),
            links: BTreeMap::new(),
            modules: BTreeMap::new(),
            rml: Rml::default(),
            routed: Routed::new(tree, config.name.rank),
            life: lifeline::Life::default(),
            notices: BTreeMap::new(),
            casts: broadcast::Broadcasts::default(),
            gathers: gather::Gathers::default(),
            purposes: BTreeMap::new(),
            local: VecDeque::new(),
            dirty: BTreeSet::new(),
            shut: BTreeSet::new(),
            wanted: BTreeSet::new(),
            pending: 0,
            timers: Timers::new(),
            out: VecDeque::new(),
            numbers: 0,
            counters: Counters::default(),
            ended: false,
            config: Arc::new(config),
        }
    }

    /// Returns the next thing to do or to report.
    pub fn output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// Returns when [`Node::tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Handles everything that is due.
    pub fn tick(&mut self, now: Time) {
        self.at(now);
        while let Some(key) = self.timers.due(self.now) {
            match key {
                Key::Stream(ix, lane) => self.stream_due(ix, lane),
                Key::Hop(ix) => self.hop_due(ix),
                Key::Seek => self.seek_due(),
                Key::Home => self.home_due(),
                Key::Broadcast(number) => self.cast_due(number),
                Key::Gather(id) => self.gather_due(id),
                Key::Op(op) => self.op_due(op),
            }
        }
        self.settle();
    }

    /// Returns the name of this process.
    #[must_use]
    pub fn name(&self) -> Name {
        self.config.name
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the addresses of this process, at the modules that are up.
    #[must_use]
    pub fn contact(&self) -> Contact {
        let mut contact = Contact::new(self.config.name, self.config.epoch);
        for (&(transport, _), addresses) in &self.modules {
            if let Some(transport) = self.config.transports.get(usize::from(transport.0)) {
                let clause = contact.clauses.entry(transport.name.clone()).or_default();
                clause.extend(addresses.iter().cloned());
            }
        }
        contact
    }

    /// Returns the parent in the tree, once attached.
    #[must_use]
    pub fn parent(&self) -> Option<u32> {
        self.routed.parent
    }

    /// Returns the children that have attached.
    pub fn children(&self) -> impl Iterator<Item = u32> {
        self.routed.children.iter().copied()
    }

    /// Whether nothing is in flight: no message waits, and no neighbour is being called.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let idle = |peer: &Peer| {
            let quiet = |lane: &Option<Box<Stream>>| lane.as_ref().is_none_or(|stream| stream.tx.is_empty());
            peer.lanes.iter().all(quiet) && peer.hop.as_ref().is_none_or(|hop| hop.relay.is_empty())
        };
        self.out.is_empty() && self.peers.iter().all(idle) && self.casts.is_quiet() && self.gathers.is_quiet()
    }

    /// Returns roughly how many bytes this node holds, including shared ones: the payload of a message counts
    /// at each holder.
    #[must_use]
    pub fn memory(&self) -> usize {
        let peer = |peer: &Peer| {
            let hop = peer
                .hop
                .as_ref()
                .map_or(0, |hop| size_of::<Hop>() + hop.relay_bytes + 64 * hop.relay.len());
            let lane = |lane: &Option<Box<Stream>>| {
                lane.as_ref()
                    .map_or(0, |stream| size_of::<Stream>() + stream.tx.waiting())
            };
            let contact = peer
                .contact
                .as_ref()
                .map_or(0, |contact| size_of::<Contact>() + 96 * contact.clauses.len());
            // Including its entry in the index.
            size_of::<Peer>() + 40 + hop + contact + peer.lanes.iter().map(lane).sum::<usize>()
        };
        let peers: usize = self.peers.iter().map(peer).sum();
        let links: usize = self
            .links
            .values()
            .map(|link| size_of::<Link>() + link.bytes)
            .sum();
        size_of::<Self>() + peers + links + self.rml.waiting() + self.casts.memory() + self.gathers.memory()
    }

    /// Describes what this node knows about another process, for finding out why something waits.
    #[must_use]
    pub fn explain(&self, name: Name) -> String {
        let Some(peer) = self.index.get(&name).map(|&ix| self.of(ix)) else {
            return format!("{name}: nothing was ever sent to it or received from it");
        };
        let (epoch, lost, neighbour) = (peer.epoch, peer.lost, peer.neighbour);
        let [user, control] = &peer.lanes;
        format!(
            "{name}: epoch {epoch}, lost: {lost}, neighbour: {neighbour}; in the tree {:?}; {:?}; messages: {user:?}; \
             control: {control:?}",
            self.routed.next(name.rank, false),
            peer.hop,
        )
    }

    fn at(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn emit(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }

    fn command(&mut self, transport: TransportId, command: Command) {
        self.out.push_back(Output::Command(transport, command));
    }

    /// Returns the index of a process's record, creating it if there is none.
    fn peer(&mut self, name: Name) -> u32 {
        if let Some(&ix) = self.index.get(&name) {
            return ix;
        }
        let ix = self.peers.len() as u32;
        self.peers.push(Peer {
            name,
            epoch: Epoch::UNKNOWN,
            lost: false,
            neighbour: false,
            contact: None,
            hop: None,
            lanes: [None, None],
        });
        self.index.insert(name, ix);
        ix
    }

    fn rank(&mut self, rank: u32) -> u32 {
        self.peer(Name::new(self.config.name.job, rank))
    }

    fn of(&self, ix: u32) -> &Peer {
        &self.peers[ix as usize]
    }

    fn of_mut(&mut self, ix: u32) -> &mut Peer {
        &mut self.peers[ix as usize]
    }

    fn hop(&mut self, ix: u32) -> &mut Hop {
        self.of_mut(ix).hop.get_or_insert_with(|| Box::new(Hop::new()))
    }

    /// Whether a process can have this name.
    fn is_process(&self, name: Name) -> bool {
        name.rank != u32::MAX && (name.job != self.config.name.job || name.rank < self.config.ranks)
    }

    fn is_root(&self) -> bool {
        self.config.name.rank == 0
    }

    fn has_tree(&self) -> bool {
        let mut transports = self.config.transports.iter();
        transports.any(|transport| transport.routing == Routing::Tree)
    }

    /// Processes all pending effects, until there are none.
    fn settle(&mut self) {
        loop {
            if let Some((tag, body)) = self.local.pop_front() {
                let me = self.peer(self.config.name);
                self.control(me, tag, &body);
            } else if let Some((ix, lane)) = self.dirty.pop_first() {
                self.pump(ix, lane);
            } else {
                return;
            }
        }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (parent, children, life) = (self.routed.parent, &self.routed.children, &self.life);
        write!(
            out,
            "Node({}, parent {parent:?}, children {children:?}, {life:?})",
            self.config.name
        )
    }
}
