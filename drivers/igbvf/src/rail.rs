//! The igbvf rail: its peers, its device's comings and goings, and the contract common to all rails.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
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
    CaptureWriter, NeighbourCache, PeerHeaders, StaticAddress, Tap, UDP_RAIL_KINDS, frame_capabilities,
    network_of,
};
use doorbell_vfio::{Claim, Device, Put};

use crate::config::IgbvfConfig;
use crate::layout::Layout;
use crate::mailbox::{Handshake, Silence};
use crate::open::{self, Held, Plan};
use crate::regs::{
    CONTROL_RESET, GONE, STATUS_FULL_DUPLEX, STATUS_LINK_UP, STATUS_SPEED_100, STATUS_SPEED_1000,
};
use crate::rx::IgbvfRx;
use crate::sleep::Sleep;
use crate::stats::IgbvfStats;
use crate::tx::IgbvfTx;

/// How often link and mailbox are looked at: a fifth of the bound within which a failure is acted on.
const LOOK: Duration = Duration::from_millis(20);
/// After how long a physical function that did not answer is asked again.
const AGAIN: Duration = Duration::from_millis(200);
/// Between two steps of an agreement: the physical function answers in an interrupt of its own.
const STEP: Duration = Duration::from_micros(500);
/// Bits of the status, and the speeds that they stand for.
const SPEEDS: [(u32, u32); 2] = [(STATUS_SPEED_1000, 1000), (STATUS_SPEED_100, 100)];

/// What the physical function has to do with us.
enum Agreed {
    /// It has turned the queues on.
    Yes,
    /// It is being asked.
    Asking(Box<Handshake>),
    /// It did not answer, and is asked again at this time.
    Later(Time),
}

/// Datagrams over the rings of an 82576's virtual function. See the crate's documentation.
pub struct IgbvfRail {
    name: RailName,
    incarnation: Incarnation,
    capabilities: Capabilities,
    config: IgbvfConfig,
    address: StaticAddress,
    pub(crate) tx: IgbvfTx,
    pub(crate) rx: IgbvfRx,
    neighbours: NeighbourCache,
    sleep: Sleep,
    layout: Layout,
    /// `None` after the end.
    held: Option<Held>,
    agreed: Agreed,
    mac: Mac,
    own: Mac,
    link: bool,
    resets: u64,
    events: VecDeque<RailEvent>,
    now: Time,
    next_look: Time,
    next_step: Time,
}

impl IgbvfRail {
    /// Opens the rail `name`, `igbvf:` and the PCI address of a virtual function that is bound to vfio-pci. The device is reset,
    /// and this process's alone until the rail is closed.
    ///
    /// # Errors
    /// [`RailError::Unusable`] with the first step that is broken and its fix.
    pub fn open(name: &RailName, config: &IgbvfConfig) -> Result<Self, RailError> {
        let plan = Self::plan(name, config)?;
        let claim = open::claim(name, &plan)?;
        Self::begin(name, config, &plan, claim)
    }

    /// The same over a device that is open, whoever models it; the PCI address in the name then only says which address of
    /// `config` is its own.
    ///
    /// # Errors
    /// As of [`IgbvfRail::open`].
    pub fn over(name: &RailName, config: &IgbvfConfig, claim: Claim) -> Result<Self, RailError> {
        let plan = Self::plan(name, config)?;
        Self::begin(name, config, &plan, claim)
    }

    fn plan(name: &RailName, config: &IgbvfConfig) -> Result<Plan, RailError> {
        if name.kind() != "igbvf" {
            return Err(doorbell_inet::unusable(
                name,
                "it is not an igbvf rail",
                "name it igbvf: and a PCI address",
            ));
        }
        open::plan(name, config)
    }

    fn begin(name: &RailName, config: &IgbvfConfig, plan: &Plan, claim: Claim) -> Result<Self, RailError> {
        let mut life = [0; 8];
        getrandom::fill(&mut life)
            .map_err(|error| doorbell_inet::system_error(name, "get random bytes", error.into()))?;
        let opened = open::open(name, config, plan, claim)?;
        let link = opened.held.general.status.read() & STATUS_LINK_UP != 0;
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
            agreed: Agreed::Yes,
            mac: opened.mac,
            own: opened.own,
            link,
            resets: 0,
            events: VecDeque::new(),
            now: Time::ZERO,
            next_look: Time::ZERO,
            next_step: Time::ZERO,
        };
        if !link {
            rail.tell(EventKind::LinkDown);
        }
        Ok(rail)
    }

    /// This rail's life: random, new at every opening; peers pass it to `open`.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The function's hardware address.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Queues to send by: two where the function has them, so that urgent frames wait for no others.
    pub fn send_queues(&self) -> usize {
        self.tx.rings.len()
    }

    /// The totals so far.
    #[must_use]
    pub fn stats(&self) -> IgbvfStats {
        let (sent, received) = (self.tx.stats, self.rx.stats);
        IgbvfStats {
            sent: sent.sent,
            doorbells: sent.doorbells,
            strangers: self.rx.demux.unknown_senders,
            unresolved: sent.unresolved,
            answered: self.neighbours.answered,
            resets: self.resets,
            ..received
        }
    }

    /// Whether the link is up by the physical function's word, and it has turned our queues on.
    #[must_use]
    pub fn is_link_up(&self) -> bool {
        self.link && matches!(self.agreed, Agreed::Yes) && self.held.is_some()
    }

    /// The link's speed in Mb/s and whether it is full duplex, as the device has it; `None` where the link is down.
    pub fn speed(&self) -> Option<(u32, bool)> {
        let status = self.held.as_ref()?.general.status.read();
        if status == GONE || status & STATUS_LINK_UP == 0 {
            return None;
        }
        let known = SPEEDS.iter().find(|(bit, _)| status & bit != 0);
        Some((
            known.map_or(10, |(_, speed)| *speed),
            status & STATUS_FULL_DUPLEX != 0,
        ))
    }

    /// Whether an interrupt of the receive queue arrives; raises one, and waits that long at most. Not while the rail sleeps.
    pub fn check_interrupt(&mut self, limit: Duration) -> bool {
        self.sleep.check(limit)
    }

    /// How it is reached, for people.
    pub fn how(&self) -> String {
        let way = self
            .held
            .as_ref()
            .map(|held| held.claim.device().backend().to_string());
        let queues = match self.send_queues() {
            2 => "two send queues",
            _ => "one send queue",
        };
        let sums = if self.config.checksum {
            "checksums by the device"
        } else {
            "checksums here"
        };
        format!("{}, {queues}, {sums}", way.unwrap_or_else(|| "closed".to_owned()))
    }

    /// Writes every frame from now on to a capture, with the headers that it has on the wire. `clock` is the one whose epoch the
    /// writer was told. It costs a copy of each frame; an earlier capture ends.
    pub fn set_capture(&mut self, writer: CaptureWriter, clock: Clock) {
        let told = (self.name.as_str(), "rings of an 82576's virtual function");
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

    fn change(&mut self, was_up: bool) {
        let is_up = self.is_link_up();
        if is_up != was_up {
            self.tell(if is_up {
                EventKind::LinkUp
            } else {
                EventKind::LinkDown
            });
        }
    }

    /// The device is gone, or wanted by somebody who waits for us to let go of it.
    fn lose(&mut self) {
        if self.held.is_some() {
            self.tell(EventKind::DeviceGone);
            self.leave();
        }
    }

    /// Gives the device back.
    fn leave(&mut self) {
        self.tx.release();
        self.rx.release();
        self.sleep.release();
        self.neighbours.clear();
        if let Some(held) = self.held.take() {
            held.leave();
        }
    }

    /// Link and mailbox.
    fn look(&mut self) {
        let was_up = self.is_link_up();
        let (wanted, failed) = self.sleep.is_over();
        let Some(held) = &mut self.held else { return };
        let status = held.general.status.read();
        if wanted || failed || status == GONE {
            return self.lose();
        }
        self.link = status & STATUS_LINK_UP != 0;
        if matches!(self.agreed, Agreed::Yes) {
            let heard = held.mailbox.hear();
            if heard.gone {
                return self.lose();
            }
            if heard.reset || heard.stranger {
                self.agreed = Agreed::Later(self.now);
                self.tx.is_off = true;
            }
        }
        self.change(was_up);
    }

    /// A step towards an agreement with the physical function, where there is none.
    fn agree(&mut self) {
        let Some(held) = &mut self.held else { return };
        match &mut self.agreed {
            Agreed::Yes => {}
            Agreed::Later(at) => {
                if self.now >= *at {
                    held.general
                        .control
                        .put(held.general.control.read() | CONTROL_RESET);
                    let handshake = open::handshake(self.own, &self.address, self.config.mtu);
                    self.agreed = Agreed::Asking(Box::new(handshake));
                }
            }
            Agreed::Asking(_) if self.now < self.next_step => {}
            Agreed::Asking(handshake) => match handshake.step(&mut held.mailbox) {
                Ok(None) => self.next_step = self.now + STEP,
                Ok(Some(mac)) => self.begin_anew(mac),
                Err(Silence::Gone) => self.lose(),
                Err(Silence::NoAnswer | Silence::Refused) => self.agreed = Agreed::Later(self.now + AGAIN),
            },
        }
    }

    /// The queues are as after power-on: what was in them is lost, which the layer above expects of frames.
    fn begin_anew(&mut self, mac: Mac) {
        let was_up = self.is_link_up();
        let Some(held) = &self.held else { return };
        self.tx.restart();
        self.rx.restart();
        if !open::start(&mut self.tx, &mut self.rx, &held.slab, &self.layout) {
            self.agreed = Agreed::Later(self.now + AGAIN);
            return;
        }
        self.sleep.begin();
        if self.sleep.armed {
            self.sleep.arm();
        }
        (self.mac, self.agreed, self.tx.is_off) = (mac, Agreed::Yes, false);
        self.resets += 1;
        self.neighbours.set_own_mac(mac, &mut self.tx);
        self.change(was_up);
    }

    /// When there is something to do.
    fn due(&self) -> Time {
        match self.agreed {
            _ if self.held.is_none() => Time::NEVER,
            // Neighbours wait for an answer.
            _ if !self.rx.demux.neighbour_messages.is_empty() => Time::ZERO,
            Agreed::Asking(_) => self.next_look.min(self.next_step),
            Agreed::Yes | Agreed::Later(_) => self.next_look,
        }
    }
}

impl Held {
    /// The device reaches no memory from here on, and then is given back.
    fn leave(self) {
        let Self {
            general,
            mailbox,
            slab,
            claim,
        } = self;
        drop((general, mailbox));
        // Where it does not obey, the IOMMU keeps it from the memory one line further.
        let _ = claim.close();
        drop(slab);
    }
}

impl Drop for IgbvfRail {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for IgbvfRail {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("IgbvfRail")
            .field("name", &self.name)
            .field("address", &self.address)
            .field("peers", &self.neighbours.len())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// What discovery shows before a rail is opened, and what an open one has.
pub(crate) fn capabilities(limit: usize) -> Capabilities {
    frame_capabilities(
        limit,
        Estimate {
            latency_ns: 10_000,
            bandwidth: 125_000_000,
        },
    )
}

impl Rail for IgbvfRail {
    fn name(&self) -> &RailName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The address and the priority channel's port; the data channel has the next port.
    fn address(&self) -> RailAddress {
        RailAddress::inet("igbvf", self.sockets()[0])
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
        self.agree();
        let mut work = 0;
        while let Some(said) = self.rx.demux.neighbour_messages.pop_front() {
            self.neighbours.on_message(said, now, &mut self.tx);
            work += 1;
        }
        if due && matches!(self.agreed, Agreed::Yes) {
            self.neighbours.poll(now, &mut self.tx);
        }
        work + self.events.len().saturating_sub(before)
    }

    fn next_deadline(&self) -> Option<Time> {
        Some(self.due()).filter(|due| *due < Time::NEVER)
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        self.sleep.arm();
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
        self.sleep.disarm();
    }

    fn poll_cost(&self) -> PollCost {
        PollCost::Memory
    }

    fn event(&mut self) -> Option<RailEvent> {
        self.events.pop_front()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        self.now = now;
        if self.held.is_some() && !self.tx.is_settled() && now < by {
            return false;
        }
        self.leave();
        true
    }
}

impl Datagram for IgbvfRail {
    type Tx = IgbvfTx;
    type Rx = IgbvfRx;

    /// Knows an address once: opening it again gives the same peer. Returns before its hardware address is known; frames that
    /// are posted until then are lost, and counted.
    fn open(&mut self, address: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        let bad = |reason| RailError::BadAddress {
            rail: self.name.to_string(),
            address: address.to_string(),
            reason,
        };
        if self.held.is_none() {
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
            .ok_or_else(|| bad("it is in another network, and igbvf.gateway is not set"))?;
        let peer = self.neighbours.len() as u32;
        let own = self.sockets();
        self.tx.ways.push(PeerHeaders::new(own, to));
        to.iter()
            .for_each(|&address| self.rx.demux.add_peer(address, peer));
        if let Some(tap) = &self.tx.tap {
            tap.add_peer(to);
        }
        self.neighbours.add(next_hop, self.now, &mut self.tx);
        Ok(PeerIndex(peer))
    }

    #[inline]
    fn split(&mut self) -> (&mut IgbvfTx, &mut IgbvfRx) {
        (&mut self.tx, &mut self.rx)
    }
}

// A rail moves to the thread that owns it.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<IgbvfRail>();
};
