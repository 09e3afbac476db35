//! The rail: peers, housekeeping, events, and the contract common to all rails.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate};
use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::error::RailError;
use doorbell_fabric::ether::Mac;
use doorbell_fabric::event::{EventKind, Life, RailEvent, Scope};
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::{Kind, Place};
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_inet::{
    CaptureWriter, NeighbourCache, PacketSender, PeerHeaders, PeerNumbers, StaticAddress, Tap,
    UDP_RAIL_KINDS, frame_capabilities, network_of, put_peer, system_error, unusable,
};

use crate::rx::{PacketRx, ReceiveQueues};
use crate::stats::PacketStats;
use crate::tx::{PacketTx, SendRing};

/// How often the card is looked at: a fifth of the bound within which a failure is acted on.
const LOOK: Duration = Duration::from_millis(20);

/// Both halves of a rail.
pub type Halves<'a, N> = (
    &'a mut PacketTx<<N as Nic>::Ring>,
    &'a mut PacketRx<<N as Nic>::Queues>,
);

/// Both halves, read-only.
pub type Both<'a, N> = (&'a PacketTx<<N as Nic>::Ring>, &'a PacketRx<<N as Nic>::Queues>);

/// What a card is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its queues are on.
    Running,
    /// Its queues are off, and [`Nic::reset`] turns them on again: the next step is due at this time, or at
    /// the next check.
    Resetting(Time),
    /// It is being given back, step by step.
    Leaving,
    /// It was given back.
    Closed,
}

/// The result of a check of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is there, whatever its link and its queues do.
    Present,
    /// It is gone, or the system takes it back: the rail ends.
    Gone,
}

/// A card: what its driver brings beside its rings. The rail calls these on its own thread, none of them for
/// a frame; none waits, but [`leave`](Self::leave) where that is requested.
pub trait Nic: Sized + Send {
    /// The kind of the rail, which its names begin with.
    const KIND: &'static str;
    /// What a capture calls the rail's frames.
    const ABOUT: &'static str;
    /// The error's text for a peer in another network where no gateway is set.
    const NO_GATEWAY: &'static str;
    /// What selection may expect of it.
    const ESTIMATE: Estimate;

    /// The rail's settings.
    type Config;
    /// One of its send rings.
    type Ring: SendRing + Send;
    /// Its receive rings.
    type Queues: ReceiveQueues + Send;
    /// What the rail counts.
    type Stats;

    /// Opens the card of a rail's name, with its queues on.
    ///
    /// # Errors
    /// [`RailError::Unusable`] with the first step that fails and what to do.
    fn open(name: &RailName, config: &Self::Config) -> Result<Parts<Self>, RailError>;

    /// Returns what it is doing.
    fn state(&self) -> State;

    /// Whether frames pass: its link is up, and its queues are on.
    fn is_up(&self) -> bool;

    /// Looks after the card, every 20 ms until it leaves: is it there, does it run, what does it report?
    /// Where its queues have to be set up again, turns both halves off, and goes to [`State::Resetting`].
    fn look(&mut self, now: Time, halves: Halves<'_, Self>) -> Verdict;

    /// One step towards queues that are on, or of leaving; returns the rail's hardware address when they have
    /// just been turned on again. Called whenever the state's time has come, and after each look; does
    /// nothing where the queues are on.
    ///
    /// # Errors
    /// [`Gone`](Verdict::Gone) as of [`look`](Self::look).
    fn reset(&mut self, now: Time, halves: Halves<'_, Self>) -> Result<Option<Mac>, Gone>;

    /// Prepares to sleep: from here on, what arrives makes [`fd`](Self::fd) readable.
    fn arm(&mut self);

    /// Ends that, and drains what woke.
    fn disarm(&mut self);

    /// The descriptor to sleep on.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Turns the queues off and gives the card back, step by step, or at once where it `waits`; returns
    /// whether that is done. Releases both halves. Later calls are harmless.
    fn leave(&mut self, halves: Halves<'_, Self>, waits: bool) -> bool;

    /// Describes how the card is reached.
    fn how(&self, halves: Both<'_, Self>) -> String;

    /// The rail's totals: those that are `common` to all cards, and the card's own.
    fn stats(&self, common: PacketStats, halves: Both<'_, Self>) -> Self::Stats;

    /// Returns a hardware address that a third party has reported, once.
    fn hint(&mut self) -> Option<(IpAddr, Mac)> {
        None
    }

    /// The last hint for this address.
    fn hinted(&self, _: IpAddr) -> Option<Mac> {
        None
    }
}

/// The card is gone, or the system takes it back.
#[derive(Clone, Copy, Debug)]
pub struct Gone;

/// What a rail is made of.
pub struct Parts<N: Nic> {
    /// The card, open, with its queues on.
    pub nic: N,
    /// The sending half.
    pub tx: PacketTx<N::Ring>,
    /// The receiving half.
    pub rx: PacketRx<N::Queues>,
    /// The rail's IP address.
    pub address: StaticAddress,
    /// Its hardware address.
    pub mac: Mac,
    /// The port of its priority channel.
    pub port: u16,
    /// Largest IP packet.
    pub mtu: usize,
    /// The longest frame, in bytes.
    pub limit: usize,
}

/// Datagrams over the queues of a card.
pub struct PacketRail<N: Nic> {
    name: RailName,
    incarnation: Incarnation,
    capabilities: Capabilities,
    address: StaticAddress,
    port: u16,
    mtu: usize,
    mac: Mac,
    tx: PacketTx<N::Ring>,
    rx: PacketRx<N::Queues>,
    neighbours: NeighbourCache,
    numbers: PeerNumbers,
    nic: N,
    resets: u64,
    events: VecDeque<RailEvent>,
    was_up: bool,
    now: Time,
    next_look: Time,
}

impl<N: Nic> PacketRail<N> {
    /// Opens the rail `name`: the driver's kind and the card's name. The card is this process's alone until
    /// the rail is closed.
    ///
    /// # Errors
    /// [`RailError::Unusable`] with the first step that fails and its fix.
    pub fn open(name: &RailName, config: &N::Config) -> Result<Self, RailError> {
        Self::build(name, || N::open(name, config))
    }

    /// A rail over what `open` returns, for drivers that have several ways to a card.
    ///
    /// # Errors
    /// Those of [`PacketRail::open`].
    pub fn build(
        name: &RailName,
        open: impl FnOnce() -> Result<Parts<N>, RailError>,
    ) -> Result<Self, RailError> {
        let kind = N::KIND;
        if name.kind() != kind {
            return Err(unusable(
                name,
                format!("it is no {kind} rail"),
                format!("name it {kind}: and a PCI address"),
            ));
        }
        let mut life = [0; 8];
        getrandom::fill(&mut life).map_err(|error| system_error(name, "get random bytes", error.into()))?;
        let parts = open()?;
        let mut rail = Self {
            name: name.clone(),
            incarnation: Incarnation(u64::from_ne_bytes(life)),
            capabilities: capabilities::<N>(parts.limit),
            address: parts.address,
            port: parts.port,
            mtu: parts.mtu,
            mac: parts.mac,
            neighbours: NeighbourCache::new((parts.address.ip, parts.mac)),
            numbers: PeerNumbers::default(),
            tx: parts.tx,
            rx: parts.rx,
            nic: parts.nic,
            resets: 0,
            events: VecDeque::new(),
            was_up: true,
            now: Time::ZERO,
            next_look: Time::ZERO,
        };
        rail.note_link();
        Ok(rail)
    }

    /// The card, for what other cards do not have.
    pub fn nic(&self) -> &N {
        &self.nic
    }

    /// The card, mutably.
    pub fn nic_mut(&mut self) -> &mut N {
        &mut self.nic
    }

    /// This rail's epoch: random, new at every opening; peers pass it to `open`.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The hardware address of its frames.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Describes how the card is reached.
    pub fn how(&self) -> String {
        match self.nic.state() {
            State::Closed => "closed".to_owned(),
            _ => self.nic.how((&self.tx, &self.rx)),
        }
    }

    /// The totals so far.
    #[must_use]
    pub fn stats(&self) -> N::Stats {
        let (sent, received) = (self.tx.counts, self.rx.counts());
        let common = PacketStats {
            sent: sent.sent,
            doorbells: sent.doorbells,
            unresolved: sent.unresolved,
            received: received.received,
            strangers: received.strangers,
            corrupt: received.corrupt,
            checked_by_device: received.checked_by_device,
            malformed: received.malformed,
            nonsense: sent.nonsense + received.nonsense,
            answered: self.neighbours.answered,
            resets: self.resets,
        };
        self.nic.stats(common, (&self.tx, &self.rx))
    }

    /// Whether the link is up and the queues are on, as of the last look.
    #[must_use]
    pub fn is_link_up(&self) -> bool {
        self.nic.is_up()
    }

    /// Writes every frame from now on to a capture, with the headers that it has on the wire. `clock` is the
    /// one whose epoch the writer has. It costs a copy of each frame; an earlier capture ends.
    pub fn set_capture(&mut self, writer: CaptureWriter, clock: Clock) {
        let peers = self.tx.peers.iter().map(|peer| peer.to);
        let about = (self.name.as_str(), N::ABOUT);
        let tap = Tap::new(writer, clock, about, self.sockets(), peers);
        (self.tx.tap, self.rx.arrivals.demux.tap) = (Some(tap.clone()), Some(tap));
    }

    /// Ends the capture and gives its writer back, written out; it knows what was lost, and why.
    pub fn end_capture(&mut self) -> Option<CaptureWriter> {
        self.rx.arrivals.demux.tap = None;
        self.tx.tap.take()?.end()
    }

    /// Whether the hardware address of the next hop to a peer is known.
    #[must_use]
    pub fn is_resolved(&self, peer: PeerIndex) -> bool {
        self.neighbours.is_resolved(peer.index())
    }

    /// Returns its place in the network, for its peers to judge: a link of its own that leads out of the
    /// host.
    #[must_use]
    pub fn place(&self) -> Place {
        Place {
            interface: self.name.object().to_owned(),
            network: network_of(self.name.object()),
            prefix: self.address.prefix,
            mtu: self.mtu,
            takes: self.mtu,
            kind: Kind::Plain,
            port: None,
        }
    }

    /// This rail itself as a peer, for diagnosis: whether frames to it come back is a matter of the card's
    /// switch.
    pub fn open_itself(&mut self) -> PeerIndex {
        let peer = self.add(self.sockets(), self.address.ip);
        // No other host answers for our address.
        self.tx.set_macs(peer.index(), self.mac, self.mac);
        peer
    }

    /// A new peer at these sockets, behind this next hop.
    fn add(&mut self, to: [SocketAddr; 2], next_hop: IpAddr) -> PeerIndex {
        let peer = PeerIndex(self.numbers.take(|_| true));
        let headers = PeerHeaders::new(self.sockets(), to);
        put_peer(&mut self.tx.peers, peer.0, headers);
        for address in to {
            self.rx.arrivals.demux.add_peer(address, peer.0);
        }
        if let Some(tap) = &self.tx.tap {
            tap.add_peer(peer.0, to);
        }
        self.neighbours.add(peer.0, next_hop, self.now, &mut self.tx);
        peer
    }

    fn sockets(&self) -> [SocketAddr; 2] {
        [self.port, self.port + 1].map(|port| SocketAddr::new(self.address.ip, port))
    }

    fn report(&mut self, kind: EventKind) {
        self.events.push_back(RailEvent {
            at: self.now,
            scope: Scope::Rail,
            kind,
            life: Life::FIRST,
        });
    }

    /// Makes an event of a link that went or came.
    fn note_link(&mut self) {
        let is_up = self.nic.is_up();
        if is_up != std::mem::replace(&mut self.was_up, is_up) {
            self.report(if is_up {
                EventKind::LinkUp
            } else {
                EventKind::LinkDown
            });
        }
    }

    /// The card is gone, or its owner waits for us to give it back.
    fn lose(&mut self) {
        if matches!(self.nic.state(), State::Running | State::Resetting(_)) {
            self.report(EventKind::DeviceGone);
            self.leave(false);
        }
    }

    fn leave(&mut self, waits: bool) -> bool {
        self.neighbours.clear();
        self.numbers = PeerNumbers::default();
        self.nic.leave((&mut self.tx, &mut self.rx), waits)
    }

    fn look(&mut self) {
        if !matches!(self.nic.state(), State::Running | State::Resetting(_)) {
            return;
        }
        match self.nic.look(self.now, (&mut self.tx, &mut self.rx)) {
            Verdict::Present => self.note_link(),
            Verdict::Gone => self.lose(),
        }
    }

    /// A step towards queues that are on, or of leaving.
    fn reset(&mut self) {
        match self.nic.reset(self.now, (&mut self.tx, &mut self.rx)) {
            Ok(None) => {}
            // Frames in the queues are lost, which the layer above expects of frames.
            Ok(Some(mac)) => {
                self.mac = mac;
                self.resets += 1;
                self.neighbours.set_own_mac(mac, &mut self.tx);
                self.note_link();
            }
            Err(Gone) => self.lose(),
        }
    }

    /// Returns when there is something to do.
    fn due(&self) -> Time {
        match self.nic.state() {
            State::Closed => Time::NEVER,
            State::Leaving => Time::ZERO,
            // Neighbours wait for an answer.
            _ if !self.rx.arrivals.demux.neighbour_messages.is_empty() => Time::ZERO,
            State::Resetting(step) => self.next_look.min(step),
            State::Running => self.next_look,
        }
    }
}

impl<N: Nic> Drop for PacketRail<N> {
    fn drop(&mut self) {
        self.leave(true);
    }
}

impl<N: Nic> fmt::Debug for PacketRail<N>
where
    N::Stats: fmt::Debug,
{
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("PacketRail")
            .field("name", &self.name)
            .field("address", &self.address)
            .field("peers", &self.neighbours.len())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Returns what discovery shows before a rail with frames of up to `limit` bytes is opened, and what an open
/// one has.
#[must_use]
pub fn capabilities<N: Nic>(limit: usize) -> Capabilities {
    frame_capabilities(limit, N::ESTIMATE)
}

impl<N: Nic> Rail for PacketRail<N> {
    fn name(&self) -> &RailName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The address and the priority channel's port; the data channel has the next port.
    fn address(&self) -> RailAddress {
        RailAddress::inet(N::KIND, self.sockets()[0])
    }

    fn progress(&mut self, now: Time) -> Work {
        self.now = now;
        if now < self.due() {
            return 0;
        }
        let is_due = now >= self.next_look;
        let before = self.events.len();
        if is_due {
            self.next_look = now + LOOK;
            self.look();
        }
        self.reset();
        if is_due {
            while let Some((ip, mac)) = self.nic.hint() {
                // ARP's own answer is the better word.
                self.neighbours.suggest(ip, mac, &mut self.tx);
            }
        }
        let mut work = 0;
        while let Some(heard) = self.rx.arrivals.demux.neighbour_messages.pop_front() {
            self.neighbours.on_message(heard, now, &mut self.tx);
            work += 1;
        }
        if is_due && self.nic.state() == State::Running {
            self.neighbours.poll(now, &mut self.tx);
        }
        work + self.events.len().saturating_sub(before)
    }

    fn next_deadline(&self) -> Option<Time> {
        Some(self.due()).filter(|due| *due < Time::NEVER)
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        self.nic.arm();
        let is_open = self.nic.state() != State::Closed;
        let waits =
            is_open && !self.rx.arrivals.demux.neighbour_messages.is_empty() || !self.events.is_empty();
        let busy = waits || self.tx.is_starved() || self.rx.has_more();
        Ok(if busy {
            Armed::Ready
        } else {
            Armed::Sleep(self.nic.fd())
        })
    }

    fn disarm(&mut self) {
        self.nic.disarm();
    }

    fn poll_cost(&self) -> PollCost {
        PollCost::Memory
    }

    fn event(&mut self) -> Option<RailEvent> {
        self.events.pop_front()
    }

    /// Never waits before `by`. From then on it waits for the card's steps of leaving, each of which has an
    /// end.
    fn close(&mut self, now: Time, by: Time) -> bool {
        self.now = now;
        let is_there = matches!(self.nic.state(), State::Running | State::Resetting(_));
        if now < by && is_there && !self.tx.is_settled() {
            return false;
        }
        self.leave(now >= by)
    }
}

impl<N: Nic> Datagram for PacketRail<N> {
    type Tx = PacketTx<N::Ring>;
    type Rx = PacketRx<N::Queues>;

    /// Knows an address once: opening it again gives the same peer. Returns before its hardware address is
    /// known; frames that are posted until then are lost, and counted.
    fn open(&mut self, address: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        let bad = |reason| RailError::BadAddress {
            rail: self.name.to_string(),
            address: address.to_string(),
            reason,
        };
        if !matches!(self.nic.state(), State::Running | State::Resetting(_)) {
            return Err(bad("the rail has ended: its device is gone, or it was closed"));
        }
        let found = UDP_RAIL_KINDS.iter().find_map(|kind| address.inet_of(kind));
        let to = self.neighbours.sockets(found).map_err(bad)?;
        let known = self.rx.arrivals.demux.peer_at(to[0]);
        if let Some(known) = known.filter(|&peer| self.tx.peers[peer as usize].to[0] == to[0]) {
            return Ok(PeerIndex(known));
        }
        let next_hop = self
            .address
            .next_hop(to[0].ip())
            .ok_or_else(|| bad(N::NO_GATEWAY))?;
        let peer = self.add(to, next_hop);
        if let Some(mac) = self.nic.hinted(next_hop) {
            self.neighbours.suggest(next_hop, mac, &mut self.tx);
        }
        Ok(peer)
    }

    fn forget(&mut self, peer: PeerIndex) {
        let Some(headers) = self.tx.peers.get(peer.index()) else {
            return;
        };
        if self.numbers.free(peer.0) {
            for address in headers.to {
                self.rx.arrivals.demux.remove_peer(address, peer.0);
            }
            self.neighbours.remove(peer.0);
        }
    }

    #[inline]
    fn split(&mut self) -> (&mut Self::Tx, &mut Self::Rx) {
        (&mut self.tx, &mut self.rx)
    }
}
