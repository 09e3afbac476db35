//! The rail: peers, housekeeping, events, and the contract common to all rails.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate};
use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::{EventKind, Life, RailEvent, Scope};
use doorbell_fabric::gid::{self, Link};
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::{Kind, Place};
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_inet::{PeerNumbers, frame_capabilities, put_peer, system_error};

use super::open;
use super::rx::{ReceiveCounts, UdRx};
use super::tx::{SendCounts, To, UdTx};
use crate::address::PortAddress;
use crate::config::VerbsConfig;
use crate::discover::of_port;
use crate::name::Service;
use crate::source::{From, Source};
use crate::sys::{Channel, DatagramPair, Open};
use crate::watch::{Needs, PortWatch, wake_set};
use crate::ways::{Marks, Ways};

/// The kind of the rail's name and of its addresses.
const KIND: &str = "verbs";
/// What selection may expect of it.
pub(crate) const ESTIMATE: Estimate = Estimate {
    latency_ns: 2_000,
    bandwidth: 5_000_000_000,
};

/// What a rail has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdStats {
    /// Of its sending half.
    pub sent: SendCounts,
    /// Of its receiving half.
    pub received: ReceiveCounts,
    /// How often a queue pair was set up again.
    pub resets: u64,
    /// Asynchronous events that mean nothing here.
    pub other_events: u64,
}

impl UdStats {
    /// Every counter with its name. Names and order never change.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("sent", self.sent.sent),
            ("doorbells", self.sent.doorbells),
            ("unresolved", self.sent.unresolved),
            ("send_errors", self.sent.failed),
            ("received", self.received.received),
            ("strangers", self.received.strangers),
            ("receive_errors", self.received.failed),
            ("nonsense", self.sent.nonsense + self.received.nonsense),
            ("resets", self.resets),
            ("other_events", self.other_events),
        ]
        .into_iter()
    }
}

/// The sizes of a channel's queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSizes {
    /// Frames that can wait to be sent.
    pub sends: usize,
    /// Frames that can wait to be received.
    pub receives: usize,
    /// Bytes of a frame that go with its request.
    pub inline: usize,
}

/// Datagrams over two queue pairs of a port.
pub struct UdRail {
    name: RailName,
    incarnation: Incarnation,
    capabilities: Capabilities,
    watch: PortWatch,
    key: u32,
    /// The numbers of its queue pairs.
    pairs: [u32; 2],
    /// What keeps the device; `None` when it is gone, or the rail was closed.
    device: Option<Device>,
    numbers: PeerNumbers,
    from: Vec<[From; 2]>,
    ways: Ways,
    tx: UdTx,
    rx: UdRx,
    wake: OwnedFd,
    events: VecDeque<RailEvent>,
    is_over: bool,
    resets: u64,
    other_events: u64,
    now: Time,
    config: VerbsConfig,
}

/// What a rail has of its device, beside what its halves have. The deletion of a device may wait until
/// all of it was let go of.
struct Device {
    pairs: [Arc<DatagramPair>; 2],
    channel: Arc<Channel>,
    open: Arc<Open>,
}

impl UdRail {
    /// Opens the rail `name`, `verbs:DEVICE:PORT:ud`.
    ///
    /// # Errors
    /// [`RailError::Unusable`] with the first step that fails and what to do.
    pub fn open(name: &RailName, config: &VerbsConfig) -> Result<Self, RailError> {
        Self::open_from(name, config, crate::discover::source(name)?)
    }

    pub(crate) fn open_from(
        name: &RailName,
        config: &VerbsConfig,
        source: open::Source,
    ) -> Result<Self, RailError> {
        let parts = open::open(name, config, &source)?;
        let mut life = [0; 8];
        getrandom::fill(&mut life).map_err(|error| system_error(name, "get random bytes", error.into()))?;
        let marks = Marks {
            service_level: config.service_level,
            traffic_class: config.traffic_class,
        };
        let ways = Ways::new(&parts.domain, &parts.port, marks);
        let wake = wake_set(&parts.channel, &parts.open, &ways)
            .map_err(|error| system_error(name, "make an epoll set", error.into()))?;
        let needs = Needs {
            gid_index: config.gid_index,
            gids: ways.own().to_vec(),
            mtu: Some(parts.limit),
        };
        Ok(Self {
            name: name.clone(),
            incarnation: Incarnation(u64::from_ne_bytes(life)),
            capabilities: of_port(frame_capabilities(parts.limit, ESTIMATE), name),
            watch: PortWatch::new(source.tree, &parts.file, parts.port, needs),
            key: parts.key,
            pairs: [0, 1].map(|channel: usize| parts.pairs[channel].number()),
            device: Some(Device {
                pairs: parts.pairs,
                channel: parts.channel,
                open: parts.open,
            }),
            numbers: PeerNumbers::default(),
            from: Vec::new(),
            ways,
            tx: parts.tx,
            rx: parts.rx,
            wake,
            events: VecDeque::new(),
            is_over: false,
            resets: 0,
            other_events: 0,
            now: Time::ZERO,
            config: config.clone(),
        })
    }

    /// This rail's epoch: random, new at every opening; peers pass it to `open`.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The totals so far.
    #[must_use]
    pub fn stats(&self) -> UdStats {
        UdStats {
            sent: self.tx.counts,
            received: self.rx.counts,
            resets: self.resets,
            other_events: self.other_events,
        }
    }

    /// Whether the port is up, as of the last look.
    #[must_use]
    pub fn is_link_up(&self) -> bool {
        self.watch.is_up() && !self.is_over
    }

    /// Describes what the rail uses: the link, the GIDs by rank, the partition and the longest frame.
    #[must_use]
    pub fn how(&self) -> String {
        let own = self.ways.own();
        let gids: Vec<String> = own
            .iter()
            .map(|own| format!("{} ({})", own.gid, own.kind))
            .collect();
        let (_, partition) = self.watch.partition();
        format!(
            "{}, frames of {} bytes, partition {partition:#06x}, GIDs {}",
            self.watch.port().link.name(),
            self.capabilities.limits.message,
            gids.join(", ")
        )
    }

    /// Why no frame passes, and what to do, where that is known.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        let (reason, remedy) = self.watch.port().reason()?;
        Some(format!("{reason}; {remedy}"))
    }

    /// Returns its place in the network, for its peers to judge.
    #[must_use]
    pub fn place(&self) -> Place {
        let mtu = self.capabilities.limits.message;
        Place {
            interface: self.watch.port().interface.clone().unwrap_or_default(),
            network: doorbell_inet::network(),
            prefix: self.ways.own().first().map_or(0, |own| own.prefix),
            mtu,
            takes: mtu,
            kind: Kind::Plain,
            port: Some(gid::Port {
                link: self.watch.port().link,
                partition: self.watch.partition().1,
                gids: self.ways.own().to_vec(),
            }),
        }
    }

    /// The queue pair of the data channel: what was requested, and what the device granted; nothing when it
    /// is gone.
    #[must_use]
    pub fn queues(&self) -> [QueueSizes; 2] {
        let wanted = QueueSizes {
            sends: self.config.send,
            receives: self.config.receive,
            inline: open::INLINE.min(self.capabilities.limits.message),
        };
        let granted = self.device.as_ref().map(|device| device.pairs[1].granted());
        let granted = granted.map(|granted| QueueSizes {
            sends: granted.sends,
            receives: granted.receives,
            inline: granted.inline,
        });
        [wanted, granted.unwrap_or_default()]
    }

    /// Whether frames to a peer are sent.
    #[must_use]
    pub fn is_resolved(&self, peer: PeerIndex) -> bool {
        self.ways.is_made(peer.0)
    }

    fn published(&self) -> PortAddress {
        PortAddress {
            service: Service::Datagrams,
            link: self.watch.port().link,
            lid: self.watch.port().attributes.lid,
            partition: self.watch.partition().1,
            key: self.key,
            pairs: self.pairs,
            mtu: self.watch.port().attributes.active_mtu as u8,
            gids: self.ways.own().to_vec(),
        }
    }

    fn report(&mut self, kind: EventKind) {
        self.events.push_back(RailEvent {
            at: self.now,
            scope: Scope::Rail,
            kind,
            life: Life::FIRST,
        });
    }

    /// Looks after the device, if it is time to: is it there, do frames pass, are its queue pairs whole?
    fn look(&mut self, now: Time) {
        // What a path carries is for the layer above to find out.
        while self.ways.next_path().is_some() {}
        let Some(device) = &self.device else { return };
        let other_events = &mut self.other_events;
        let is_behind = self.ways.begin_pass(now);
        let found = self
            .watch
            .look(now, &device.open, &self.ways, &mut |_| *other_events += 1);
        let Some(found) = found else {
            if is_behind {
                self.ways.look(now, self.watch.port(), &mut self.tx);
            }
            return;
        };
        if found.is_gone {
            return self.lose();
        }
        let is_back = found.link == Some(true);
        if let Some(is_up) = found.link {
            self.report(if is_up {
                EventKind::LinkUp
            } else {
                EventKind::LinkDown
            });
        }
        if found.has_moved || is_back {
            self.ways.doubt();
        }
        // Its queue pairs name the partition by its place.
        self.tx.is_broken |= found.is_partition_moved;
        if self.watch.is_up() && (self.tx.is_broken || self.rx.is_broken) {
            self.restart();
        }
        self.ways.look(now, self.watch.port(), &mut self.tx);
    }

    /// Sets both queue pairs up again, under their numbers. What they had is lost, as frames may be.
    fn restart(&mut self) {
        self.resets += 1;
        for channel in 0..2 {
            let pair = self.device.as_ref().map(|device| &device.pairs[channel]);
            let started = pair.is_some_and(|pair| open::start(pair, self.watch.port(), self.key).is_ok());
            self.tx.queues[channel].restart();
            if !started || !self.rx.restart(channel) {
                return self.lose();
            }
        }
        (self.tx.is_broken, self.rx.is_broken) = (false, false);
    }

    /// The device is gone.
    fn lose(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.report(EventKind::DeviceGone);
            self.leave();
        }
    }

    /// Lets go of everything that is the device's.
    fn leave(&mut self) {
        self.tx.release();
        self.rx.release();
        self.ways.release();
        self.numbers = PeerNumbers::default();
        self.device = None;
    }
}

impl fmt::Debug for UdRail {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("UdRail")
            .field("name", &self.name)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Rail for UdRail {
    fn name(&self) -> &RailName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn address(&self) -> RailAddress {
        RailAddress::native(KIND, self.published().to_bytes())
    }

    fn progress(&mut self, now: Time) -> Work {
        self.now = now;
        if self.is_over {
            return 0;
        }
        let before = self.events.len();
        self.look(now);
        self.events.len() - before
    }

    fn next_deadline(&self) -> Option<Time> {
        let look = self.watch.next_look();
        let next = if self.ways.is_behind() { self.now } else { look };
        (!self.is_over).then_some(next)
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        if let Some(device) = &self.device {
            device.pairs.iter().for_each(|pair| pair.received().arm());
        }
        let busy = !self.events.is_empty() || self.tx.is_starved() || self.rx.has_more();
        Ok(if busy {
            Armed::Ready
        } else {
            Armed::Sleep(self.wake.as_fd())
        })
    }

    fn disarm(&mut self) {
        if let Some(device) = &self.device {
            device.channel.drain();
        }
    }

    fn poll_cost(&self) -> PollCost {
        PollCost::Memory
    }

    fn event(&mut self) -> Option<RailEvent> {
        self.events.pop_front()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        self.now = now;
        if !self.is_over && now < by && !self.tx.is_settled() {
            return false;
        }
        self.is_over = true;
        self.leave();
        true
    }
}

impl Datagram for UdRail {
    type Tx = UdTx;
    type Rx = UdRx;

    /// Knows an address once: opening it again gives the same peer. Returns before the way to it is known;
    /// frames that are posted until then are lost, and counted.
    fn open(&mut self, address: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        let bad = |reason| RailError::BadAddress {
            rail: self.name.to_string(),
            address: address.to_string(),
            reason,
        };
        if self.is_over {
            return Err(bad("the rail has ended: its device is gone, or it was closed"));
        }
        let bytes = address
            .native_of(KIND)
            .ok_or_else(|| bad("is of another kind of rail"))?;
        let to = PortAddress::parse(bytes, Service::Datagrams).map_err(bad)?;
        let (pairs, key, link) = (to.pairs, to.key, self.watch.port().link);
        if to.link != link {
            return Err(bad("is of a port of InfiniBand, and the other one of Ethernet"));
        }
        let gids = crate::gid::pair(link, self.ways.own(), &to.gids);
        let gids = gids.ok_or_else(|| bad("has no GID of one kind and family with one of ours"))?;
        let port = match link {
            Link::Ethernet => Source::Gid(gids.theirs.0),
            Link::InfiniBand => Source::Lid(to.lid),
        };
        let from = pairs.map(|pair| From { pair, port });
        let known = self.rx.peers.get(&from[0]).copied();
        let is_it = |peer: &u32| {
            let to = &self.tx.peers[*peer as usize];
            (to.pairs, to.key) == (pairs, key)
        };
        if let Some(known) = known.filter(is_it) {
            return Ok(PeerIndex(known));
        }
        let peer = self.numbers.take(|_| true);
        self.ways.add(peer, to.lid, gids);
        put_peer(&mut self.tx.peers, peer, To { pairs, key });
        put_peer(&mut self.from, peer, from);
        self.rx.peers.extend(from.map(|from| (from, peer)));
        self.ways.make(peer, self.now, self.watch.port(), &mut self.tx);
        Ok(PeerIndex(peer))
    }

    fn forget(&mut self, peer: PeerIndex) {
        if self.numbers.free(peer.0) {
            for from in self.from[peer.index()] {
                self.rx.peers.remove(&from);
            }
            self.ways.remove(peer.0, self.now, &mut self.tx);
        }
    }

    #[inline]
    fn split(&mut self) -> (&mut Self::Tx, &mut Self::Rx) {
        (&mut self.tx, &mut self.rx)
    }
}
