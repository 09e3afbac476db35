//! The usnic rail: its peers, its device's comings and goings, and the contract common to all rails.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;
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
    CaptureWriter, NeighbourCache, PacketSender as _, PeerHeaders, StaticAddress, Tap, UDP_RAIL_KINDS,
    frame_capabilities, network_of,
};
use doorbell_vfio::{Claim, Device};

use crate::config::UsnicConfig;
use crate::health::{Health, Running, Verdict};
use crate::layout::Layout;
use crate::notify::News;
use crate::open::{self, Held, Plan};
use crate::restart::{Ending, Restart};
use crate::rx::UsnicRx;
use crate::sleep::Sleep;
use crate::stats::UsnicStats;
use crate::tx::UsnicTx;

/// How often link, queues and the agent are looked at: a fifth of the bound within which a failure is acted on.
const LOOK: Duration = Duration::from_millis(20);
/// Most functions of the same adapter that are kept in mind.
const BESIDE_MOST: usize = 256;

/// Datagrams over the queues of a VIC's usNIC function. See the crate's documentation.
pub struct UsnicRail {
    name: RailName,
    incarnation: Incarnation,
    capabilities: Capabilities,
    config: UsnicConfig,
    address: StaticAddress,
    pub(crate) tx: UsnicTx,
    pub(crate) rx: UsnicRx,
    neighbours: NeighbourCache,
    sleep: Sleep,
    layout: Layout,
    /// `None` after the end.
    held: Option<Held>,
    /// The way back to running queues, where they do not run.
    restart: Option<Restart>,
    /// The way out, once the rail has ended.
    ending: Option<Ending>,
    /// What still lets go of a physical function, after that.
    leaving: Option<JoinHandle<()>>,
    health: Health,
    mac: Mac,
    /// Functions of the same adapter that the agent has told of.
    beside: Vec<(Ipv4Addr, Mac)>,
    resets: u64,
    resources: [u32; 4],
    events: VecDeque<RailEvent>,
    was_up: bool,
    now: Time,
    next_look: Time,
}

impl UsnicRail {
    /// Opens the rail `name`: `usnic:` and the PCI address of a function that is bound to vfio-pci, or `usnic:model/DIR/vf0`. The
    /// device is reset, and this process's alone until the rail is closed.
    ///
    /// # Errors
    /// [`RailError::Unusable`] with the first step that is broken and its fix.
    pub fn open(name: &RailName, config: &UsnicConfig) -> Result<Self, RailError> {
        let plan = Self::plan(name, config)?;
        let (claim, plan) = open::claim(name, config, plan)?;
        Self::begin(name, config, &plan, claim)
    }

    /// The same over a device that is open, whoever models it; the name then only says which address of `config` is its own, and
    /// which number it has at its physical function.
    ///
    /// # Errors
    /// As of [`UsnicRail::open`].
    pub fn over(name: &RailName, config: &UsnicConfig, claim: Claim) -> Result<Self, RailError> {
        let plan = Self::plan(name, config)?;
        Self::begin(name, config, &plan, claim)
    }

    fn plan(name: &RailName, config: &UsnicConfig) -> Result<Plan, RailError> {
        if name.kind() != "usnic" {
            return Err(doorbell_inet::unusable(
                name,
                "it is not a usnic rail",
                "name it usnic: and a PCI address",
            ));
        }
        open::plan(name, config)
    }

    fn begin(name: &RailName, config: &UsnicConfig, plan: &Plan, claim: Claim) -> Result<Self, RailError> {
        let mut life = [0; 8];
        getrandom::fill(&mut life)
            .map_err(|error| doorbell_inet::system_error(name, "get random bytes", error.into()))?;
        let opened = open::open(name, config, plan, claim)?;
        let mut rail = Self {
            name: name.clone(),
            incarnation: Incarnation(u64::from_ne_bytes(life)),
            capabilities: capabilities(opened.limit),
            config: config.clone(),
            address: opened.address,
            neighbours: NeighbourCache::new((opened.address.ip, opened.mac)),
            tx: opened.tx,
            rx: opened.rx,
            sleep: opened.sleep,
            layout: opened.layout,
            held: Some(opened.held),
            restart: None,
            ending: None,
            leaving: None,
            health: Health::new(config.mtu),
            mac: opened.mac,
            beside: Vec::new(),
            resets: 0,
            resources: opened.resources,
            events: VecDeque::new(),
            was_up: true,
            now: Time::ZERO,
            next_look: Time::ZERO,
        };
        rail.first_look();
        rail.introduce();
        Ok(rail)
    }

    /// What is known of the link when the rail is open.
    fn first_look(&mut self) {
        if let Some(held) = &mut self.held {
            self.health.first(held);
        }
        self.change();
    }

    /// Tells the agent where we are, for the functions beside this one.
    fn introduce(&mut self) {
        if let (Some(held), IpAddr::V4(ip)) = (&mut self.held, self.address.ip) {
            held.steering.introduce(ip, self.mac);
        }
    }

    /// What the agent tells of functions beside this one, which are found so where ARP is not.
    fn meet(&mut self) {
        let Some(held) = &mut self.held else { return };
        while let Some((ip, mac)) = held.steering.neighbour() {
            self.beside.retain(|(other, _)| *other != ip);
            if self.beside.len() < BESIDE_MOST {
                self.beside.push((ip, mac));
            }
            // ARP's own answer is the better word.
            self.neighbours.suggest(ip.into(), mac, &mut self.tx);
        }
    }

    /// This rail's life: random, new at every opening; peers pass it to `open`.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The hardware address of its frames.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// The totals so far.
    #[must_use]
    pub fn stats(&self) -> UsnicStats {
        let (sent, received) = (self.tx.stats, self.rx.stats);
        UsnicStats {
            sent: sent.sent,
            doorbells: sent.doorbells,
            strangers: self.rx.demux.unknown_senders,
            unresolved: sent.unresolved,
            nonsense: sent.nonsense + received.nonsense,
            answered: self.neighbours.answered,
            rung_again: self.health.rung_again,
            torn: self.health.torn,
            resets: self.resets,
            ..received
        }
    }

    /// What the function or its physical one tells of the link; `None` where neither does.
    #[must_use]
    pub fn news(&self) -> Option<News> {
        self.health.news()
    }

    /// Whether the link is up, and the queues run.
    #[must_use]
    pub fn is_link_up(&self) -> bool {
        self.is_alive() && self.restart.is_none() && self.health.is_up()
    }

    fn is_alive(&self) -> bool {
        self.held.is_some() && self.ending.is_none()
    }

    /// Why the queues do not run, where they do not: the last step that failed.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.restart.as_ref().and_then(Restart::trouble)
    }

    /// What to do about [`trouble`](Self::trouble).
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.restart.as_ref().and_then(Restart::fix)
    }

    /// Whether frames that ask for our address reach us.
    #[must_use]
    pub fn has_arp(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.has_arp)
    }

    /// Whether an interrupt arrives; raises one, and waits that long at most. `None` where there are none. Not while the rail sleeps.
    pub fn check_interrupt(&mut self, limit: Duration) -> Option<bool> {
        let held = self.held.as_ref().filter(|_| self.sleep.count() > 0)?;
        Some(self.sleep.check(&held.claim, limit))
    }

    /// What the function has: work queues, receive queues, completion queues, interrupts.
    #[must_use]
    pub fn resources(&self) -> [u32; 4] {
        self.resources
    }

    /// How it is reached, for people.
    pub fn how(&self) -> String {
        let Some(held) = &self.held else {
            return "closed".to_owned();
        };
        let registers = match self.tx.rings.first() {
            Some(ring) if ring.is_mapped() => "registers mapped",
            _ => "registers by messages",
        };
        let queues = match self.rx.done.len() {
            2 => "3 completion queues",
            _ => "2 completion queues",
        };
        let sums = if self.config.checksum {
            "checksums by the device"
        } else {
            "checksums here"
        };
        let commands = if held.own.devcmd.is_ring() {
            "commands by devcmd2"
        } else {
            "commands by devcmd"
        };
        let (way, steering) = (held.claim.device().backend(), held.steering.how());
        format!("{way}, {registers}, {commands}, {queues}, {steering}, {sums}")
    }

    /// Writes every frame from now on to a capture, with the headers that it has on the wire. `clock` is the one whose epoch the
    /// writer was told. It costs a copy of each frame; an earlier capture ends.
    pub fn set_capture(&mut self, writer: CaptureWriter, clock: Clock) {
        let told = (self.name.as_str(), "queues of a VIC's usNIC function");
        let ways = self.tx.ways.iter().map(|way| way.to);
        let tap = Tap::new(writer, clock, told, self.sockets(), ways);
        (self.tx.tap, self.rx.demux.tap) = (Some(tap.clone()), Some(tap));
    }

    /// Ends the capture and gives its writer back, written out; it knows what was lost, and why.
    pub fn end_capture(&mut self) -> Option<CaptureWriter> {
        self.rx.demux.tap = None;
        self.tx.tap.take()?.end()
    }

    /// Whether the hardware address of the next hop to a peer is known.
    #[must_use]
    pub fn is_resolved(&self, peer: PeerIndex) -> bool {
        self.neighbours.is_resolved(peer.index())
    }

    /// Where it is, for its peers to judge: a link of its own that leads out of the host.
    #[must_use]
    pub fn place(&self) -> Place {
        Place {
            interface: self.name.object().to_owned(),
            network: network_of(self.name.object()),
            prefix: self.address.prefix,
            mtu: self.config.mtu,
            takes: self.config.mtu,
            kind: Kind::Plain,
        }
    }

    /// This rail itself as a peer, for those who look for what is wrong with it: whether frames to it come back is a matter of the adapter's
    /// switch, of which nobody knows `[U]`.
    pub fn open_itself(&mut self) -> PeerIndex {
        let peer = self.add(self.sockets(), self.address.ip);
        // Nobody would answer for us but ourselves.
        self.tx.set_macs(peer as usize, self.mac, self.mac);
        PeerIndex(peer)
    }

    /// A new peer at these sockets, behind this next hop.
    fn add(&mut self, to: [SocketAddr; 2], next_hop: IpAddr) -> u32 {
        let (peer, own) = (self.neighbours.len() as u32, self.sockets());
        self.tx.ways.push(PeerHeaders::new(own, to));
        to.iter()
            .for_each(|&address| self.rx.demux.add_peer(address, peer));
        if let Some(tap) = &self.tx.tap {
            tap.add_peer(to);
        }
        self.neighbours.add(next_hop, self.now, &mut self.tx);
        peer
    }

    fn sockets(&self) -> [SocketAddr; 2] {
        [self.config.port, self.config.port + 1].map(|port| SocketAddr::new(self.address.ip, port))
    }

    /// The device below, for those who look for what is wrong with it; `None` after the end.
    pub fn device(&self) -> Option<&dyn Device> {
        Some(self.held.as_ref()?.claim.device())
    }

    /// The bus address and length of the memory that the device reaches.
    pub fn bus_memory(&self) -> Option<(u64, usize)> {
        let held = self.held.as_ref()?;
        Some((held.slab.iova(), self.layout.bytes()))
    }

    fn tell(&mut self, kind: EventKind) {
        self.events.push_back(RailEvent {
            at: self.now,
            scope: Scope::Rail,
            kind,
            life: Life::FIRST,
        });
    }

    fn change(&mut self) {
        let is_up = self.is_link_up();
        self.tx.is_down = !is_up;
        if is_up != std::mem::replace(&mut self.was_up, is_up) {
            self.tell(if is_up {
                EventKind::LinkUp
            } else {
                EventKind::LinkDown
            });
        }
    }

    /// The device is gone, or wanted by somebody who waits for us to let go of it.
    fn lose(&mut self) {
        if self.is_alive() {
            self.tell(EventKind::DeviceGone);
            self.end();
            self.go_out();
        }
    }

    /// The end begins: nothing is posted or taken any more.
    fn end(&mut self) {
        self.neighbours.clear();
        (self.tx.is_off, self.rx.is_off) = (true, true);
        let restart = self.restart.take();
        if self.ending.is_none() && self.held.is_some() {
            self.ending = Some(Ending::new(restart));
        }
    }

    /// A step of the way out: queues off, as far as the device obeys soon, and what was steered taken away; then it is given back.
    fn go_out(&mut self) {
        if let (Some(held), Some(ending)) = (&mut self.held, &mut self.ending)
            && ending.step(&mut self.tx, &mut self.rx, held)
        {
            self.release(false);
        }
    }

    fn release(&mut self, waits: bool) {
        let Some(held) = self.held.take() else { return };
        self.ending = None;
        self.tx.release();
        self.rx.release();
        self.sleep.release();
        self.leaving = held.leave(waits);
    }

    /// The same, waiting for all steps.
    fn leave(&mut self) {
        self.end();
        if let (Some(held), Some(ending)) = (&mut self.held, &mut self.ending) {
            ending.finish(&mut self.tx, &mut self.rx, held);
        }
        self.release(true);
        if let Some(leaving) = self.leaving.take() {
            // Each of its steps has an end.
            let _ = leaving.join();
        }
    }

    /// Link, queues and agent.
    fn look(&mut self) {
        let (wanted, failed) = self.sleep.is_over();
        let Some(held) = self.held.as_mut().filter(|_| self.ending.is_none()) else {
            return;
        };
        // The memory of a model that has ended stays mapped, and tells nothing.
        if wanted || failed || held.claim.device().is_gone() {
            return self.lose();
        }
        let state = match &self.restart {
            None => Running::Yes,
            Some(restart) if restart.is_resetting() => Running::Untouchable,
            Some(_) => Running::No,
        };
        let was_steered = self.health.is_steered();
        match self.health.look(&mut self.tx, &mut self.rx, held, state) {
            Verdict::Well => {}
            Verdict::Gone => return self.lose(),
            Verdict::Restart => {
                (self.tx.is_off, self.rx.is_off) = (true, true);
                if self.restart.is_none() {
                    self.restart = Some(Restart::new(self.now));
                }
            }
        }
        if let Some(restart) = self
            .restart
            .as_mut()
            .filter(|_| !was_steered && self.health.is_steered())
        {
            restart.hasten(self.now);
        }
        self.change();
    }

    /// A step towards running queues, where they do not run.
    fn go_on(&mut self) {
        if self.ending.is_some() {
            return self.go_out();
        }
        let (Some(held), Some(restart)) = (&mut self.held, &mut self.restart) else {
            return;
        };
        let IpAddr::V4(address) = self.address.ip else {
            return;
        };
        let socket: (Ipv4Addr, u16) = (address, self.config.port);
        match restart.step(self.now, (&mut self.tx, &mut self.rx, held, &self.sleep), socket) {
            Ok(false) => {}
            Ok(true) => self.begin_anew(),
            Err(_) => self.lose(),
        }
    }

    /// The queues run: what was in them is lost, which the layer above expects of frames.
    fn begin_anew(&mut self) {
        self.restart = None;
        (self.tx.is_off, self.rx.is_off) = (false, false);
        self.resets += 1;
        if let Some(held) = &mut self.held {
            self.health.begin(held);
            let mac = held.station(&self.config);
            if let Some(mac) = mac.filter(|mac| *mac != self.mac) {
                self.mac = mac;
                self.introduce();
            }
        }
        self.neighbours.set_own_mac(self.mac, &mut self.tx);
        self.change();
    }

    /// Whether registers may be touched: not while the function is reset.
    fn may_touch(&self) -> bool {
        !self.restart.as_ref().is_some_and(Restart::is_resetting)
            && !self.ending.as_ref().is_some_and(Ending::is_resetting)
    }

    /// When there is something to do.
    fn due(&self) -> Time {
        match &self.restart {
            _ if self.held.is_none() => Time::NEVER,
            _ if self.ending.is_some() => Time::ZERO,
            // Neighbours wait for an answer.
            _ if !self.rx.demux.neighbour_messages.is_empty() => Time::ZERO,
            Some(restart) => self.next_look.min(restart.due()),
            None => self.next_look,
        }
    }
}

impl Drop for UsnicRail {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for UsnicRail {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("UsnicRail")
            .field("name", &self.name)
            .field("address", &self.address)
            .field("peers", &self.neighbours.len())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// What discovery shows before a rail is opened, and what an open one has. The latency is a guess: nothing here was measured.
pub(crate) fn capabilities(limit: usize) -> Capabilities {
    frame_capabilities(
        limit,
        Estimate {
            latency_ns: 5_000,
            bandwidth: 1_250_000_000,
        },
    )
}

impl Rail for UsnicRail {
    fn name(&self) -> &RailName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The address and the priority channel's port; the data channel has the next port.
    fn address(&self) -> RailAddress {
        RailAddress::inet("usnic", self.sockets()[0])
    }

    fn progress(&mut self, now: Time) -> Work {
        self.now = now;
        if now < self.due() {
            return 0;
        }
        let due = now >= self.next_look;
        let before = self.events.len();
        if due {
            self.next_look = now + LOOK;
            self.look();
        }
        self.go_on();
        if due {
            self.meet();
        }
        let mut work = 0;
        while let Some(said) = self.rx.demux.neighbour_messages.pop_front() {
            self.neighbours.on_message(said, now, &mut self.tx);
            work += 1;
        }
        if due && self.restart.is_none() {
            self.neighbours.poll(now, &mut self.tx);
        }
        work + self.events.len().saturating_sub(before)
    }

    fn next_deadline(&self) -> Option<Time> {
        Some(self.due()).filter(|due| *due < Time::NEVER)
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        self.sleep.arm(self.may_touch());
        let told =
            self.held.is_some() && !self.rx.demux.neighbour_messages.is_empty() || !self.events.is_empty();
        let busy = told || self.tx.is_starved() || self.rx.has_more();
        Ok(if busy {
            Armed::Ready
        } else {
            Armed::Sleep(self.sleep.fd())
        })
    }

    fn disarm(&mut self) {
        self.sleep.disarm(self.may_touch());
    }

    fn poll_cost(&self) -> PollCost {
        PollCost::Memory
    }

    fn event(&mut self) -> Option<RailEvent> {
        self.events.pop_front()
    }

    /// Never waits before `by`. From then on it waits for the end of a reset that is under way, for the steps of leaving (a second at most,
    /// counted from where they began), and for a physical function that this process has to be closed.
    fn close(&mut self, now: Time, by: Time) -> bool {
        self.now = now;
        if now >= by {
            self.leave();
            return true;
        }
        if self.is_alive() && !self.tx.is_settled() {
            return false;
        }
        self.end();
        self.go_out();
        self.held.is_none() && self.leaving.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Datagram for UsnicRail {
    type Tx = UsnicTx;
    type Rx = UsnicRx;

    /// Knows an address once: opening it again gives the same peer. Returns before its hardware address is known; frames that
    /// are posted until then are lost, and counted.
    fn open(&mut self, address: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        let bad = |reason| RailError::BadAddress {
            rail: self.name.to_string(),
            address: address.to_string(),
            reason,
        };
        if !self.is_alive() {
            return Err(bad("the rail has ended: its device is gone, or it was closed"));
        }
        let found = UDP_RAIL_KINDS.iter().find_map(|kind| address.inet_of(kind));
        let to = self.neighbours.sockets(found).map_err(bad)?;
        let known = self.rx.demux.peer_at(to[0]);
        if let Some(known) = known.filter(|&peer| self.tx.ways[peer as usize].to[0] == to[0]) {
            return Ok(PeerIndex(known));
        }
        let next_hop: IpAddr = self
            .address
            .next_hop(to[0].ip())
            .ok_or_else(|| bad("it is in another network, and usnic.gateway is not set"))?;
        let peer = self.add(to, next_hop);
        if let Some((ip, mac)) = self.beside.iter().find(|(ip, _)| IpAddr::V4(*ip) == next_hop) {
            self.neighbours.suggest((*ip).into(), *mac, &mut self.tx);
        }
        Ok(PeerIndex(peer))
    }

    #[inline]
    fn split(&mut self) -> (&mut UsnicTx, &mut UsnicRx) {
        (&mut self.tx, &mut self.rx)
    }
}

// A rail moves to the thread that owns it.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<UsnicRail>();
};
