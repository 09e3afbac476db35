//! The xdp rail: its peers, and the contract common to all rails.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::{Datagram, Receive};
use doorbell_fabric::error::RailError;
use doorbell_fabric::ether::{Headers, Mac};
use doorbell_fabric::event::{Life, RailEvent, Scope};
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::Place;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_inet::{
    CaptureWriter, Interface, Link, Neighbours, No, Tap, Way as Route, headers, system, unusable,
};
use rustix::event::epoll;
use rustix::net::RecvFlags;

use crate::attach::Steering;
use crate::check::check;
use crate::config::{Mode, XdpConfig};
use crate::layout::chunk_and_limit;
use crate::open::{self, Granted};
use crate::rx::XdpRx;
use crate::stats::XdpStats;
use crate::tx::{PARTS_MAX, Way, XdpTx};

/// How often the link and the neighbours are looked at: a fifth of the bound within which a failure is acted on.
const LOOK: Duration = Duration::from_millis(20);

/// In how many looks the kernel is asked again for a neighbour that it does not know, and has those that it knows confirmed:
/// five times a second, and every five seconds. It does not send to them itself, so it would forget them.
const ASK_EVERY: u32 = 10;
const CONFIRM_EVERY: u32 = 250;

/// Most peers that are asked for in one look.
const PEERS_A_LOOK: usize = 16;

/// The nanoseconds of a system call that has the device polled.
const BUSY_POLL_COST: u32 = 500;

/// A peer's next station, and whether its hardware address is known.
struct Hop {
    station: IpAddr,
    mac: Option<Mac>,
    /// The look in which it was last asked for.
    asked: u32,
}

/// Datagrams over AF_XDP queues. See the crate's documentation.
pub struct XdpRail {
    name: RailName,
    incarnation: Incarnation,
    capabilities: Capabilities,
    interface: Interface,
    config: XdpConfig,
    granted: Granted,
    port: u16,
    mac: Mac,
    pub(crate) tx: XdpTx,
    pub(crate) rx: XdpRx,
    hops: Vec<Hop>,
    neighbours: Neighbours,
    link: Link,
    /// Always has the link's and the neighbours' sockets; the queues' only while somebody sleeps on it.
    epoll: OwnedFd,
    armed: bool,
    /// `None` after the end.
    held: Option<([OwnedFd; 2], Steering)>,
    astray: u64,
    events: VecDeque<RailEvent>,
    now: Time,
    next_look: Time,
    looks: u32,
}

impl XdpRail {
    /// Opens the rail `name`: `xdp:eth0` (an interface; `config.family` says which of its addresses) or `xdp:10.0.0.1`. It
    /// takes the frames for its own two ports from the queues of that interface; everything else goes to the kernel.
    ///
    /// # Errors
    /// [`RailError::Unusable`] when there is no such interface or address, it is down, its queue or its ports are taken, a
    /// right is missing (which is named), the mode cannot be had, or a setting is out of bounds; [`RailError::System`] when the
    /// system refuses a step.
    pub fn open(name: &RailName, config: &XdpConfig) -> Result<Self, RailError> {
        if name.kind() != "xdp" {
            return Err(unusable(
                name,
                "it is not an xdp rail",
                "name it xdp:INTERFACE or xdp:ADDRESS",
            ));
        }
        config.check(name)?;
        let interface = Interface::find(name, &config.wanted())?.require(name, &config.wanted())?;
        let checked = check(name, &interface, config)?;
        let refused = |errno: rustix::io::Errno| system(name, "watch the queues", errno.into());
        let link = Link::watch(&interface).map_err(refused)?;
        let neighbours = Neighbours::watch(interface.index).map_err(refused)?;
        let mut life = [0; 8];
        getrandom::fill(&mut life).map_err(|error| system(name, "get random bytes", error.into()))?;
        let opened = open::open(name, &interface, config, checked)?;
        let rx = XdpRx::new(opened.rx);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        let none = epoll::EventData::new_u64(0);
        for socket in [link.socket(), neighbours.socket()] {
            epoll::add(&epoll, socket, none, epoll::EventFlags::IN).map_err(refused)?;
        }
        Ok(Self {
            capabilities: capabilities(&interface, config),
            name: name.clone(),
            incarnation: Incarnation(u64::from_ne_bytes(life)),
            config: *config,
            granted: opened.granted,
            port: opened.port,
            mac: opened.mac,
            tx: XdpTx::new(opened.tx),
            rx,
            hops: Vec::new(),
            neighbours,
            link,
            epoll,
            armed: false,
            held: Some((opened.held, opened.steering)),
            astray: 0,
            events: VecDeque::new(),
            now: Time::ZERO,
            next_look: Time::ZERO,
            looks: 0,
            interface,
        })
    }

    /// This rail's life: random, new at every opening; peers pass it to `open`.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// What the kernel granted of what the configuration asked for.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// The totals so far. Asks the kernel for what it dropped.
    #[must_use]
    pub fn stats(&self) -> XdpStats {
        let (sent, received) = (self.tx.stats, self.rx.stats);
        let (overrun, invalid) = self.rx.kernel_counts();
        let (taken, nonsense) = self.tx.counts();
        XdpStats {
            sent: taken,
            send_calls: sent.send_calls,
            send_full: sent.send_full,
            unresolved: sent.unresolved,
            unsendable: sent.unsendable,
            nonsense: sent.nonsense + nonsense + received.nonsense + invalid,
            overrun,
            astray: self.astray,
            ..received
        }
    }

    /// Writes every frame from now on to a capture, with the headers that it has on the wire. `clock` is the one
    /// whose epoch the writer was told. It costs a copy of each frame; an earlier capture ends.
    pub fn set_capture(&mut self, writer: CaptureWriter, clock: Clock) {
        let own = [0, 1].map(|channel| self.interface.socket_address(self.port + channel));
        let about = format!("AF_XDP, {}", self.granted.mode);
        let tap = Tap::new(writer, clock, (self.name.as_str(), &about), own);
        self.tx.ways.iter().for_each(|way| tap.peer(way.to));
        (self.tx.tap, self.rx.tap) = (Some(tap.clone()), Some(tap));
    }

    /// Ends the capture and gives its writer back, written out; it knows what was lost, and why.
    pub fn end_capture(&mut self) -> Option<CaptureWriter> {
        self.rx.tap = None;
        self.tx.tap.take()?.end()
    }

    /// Whether the interface and its link are up, as far as `progress` has seen.
    #[must_use]
    pub fn is_link_up(&self) -> bool {
        self.link.is_up()
    }

    /// Whether the hardware address of the next station to `peer` is known.
    #[must_use]
    pub fn is_resolved(&self, peer: PeerIndex) -> bool {
        self.hops.get(peer.index()).is_some_and(|hop| hop.mac.is_some())
    }

    /// Where it is, for its peers to judge: as it was opened, whatever has that name now.
    #[must_use]
    pub fn place(&self) -> Place {
        let limit = self.capabilities.limits.message;
        Place {
            mtu: limit + headers(self.interface.address),
            ..self.interface.place(&self.config.wanted())
        }
    }

    /// The next station on the way to `to`.
    fn station(&self, to: SocketAddr, address: &RailAddress) -> Result<IpAddr, RailError> {
        match self.interface.way(to) {
            Ok(Route::Neighbour) => Ok(to.ip()),
            Ok(Route::Gateway(gateway)) => Ok(gateway),
            Ok(Route::Here) => {
                let reason =
                    "it is on this host, and frames past the kernel do not come back to it".to_owned();
                Err(No::Because(reason).told(&self.name, address))
            }
            Err(no) => Err(no.told(&self.name, address)),
        }
    }

    /// Asks the kernel for a peer's next station; has it find out, where it does not know.
    fn resolve(&mut self, peer: usize) {
        let station = self.hops[peer].station;
        self.hops[peer].asked = self.looks;
        self.neighbours.query(station);
        self.read_neighbours();
        if self.hops[peer].mac.is_none() {
            self.neighbours.find_out(station);
        }
    }

    fn set_mac(&mut self, peer: usize, mac: Option<Mac>) {
        // What was known is used until something else is: the kernel forgets whom it does not send to itself.
        if let Some(mac) = mac {
            self.hops[peer].mac = Some(mac);
            self.tx.ways[peer].set_macs(self.mac, mac);
        }
    }

    /// Reads what the kernel tells of neighbours; returns whether it told more than could be read.
    fn read_neighbours(&mut self) -> bool {
        let mut found = Vec::new();
        let lost = self.neighbours.changes(|change| found.push(change));
        for (station, mac) in found {
            for peer in 0..self.hops.len() {
                if self.hops[peer].station == station {
                    self.set_mac(peer, mac);
                }
            }
        }
        lost
    }

    /// Reads what is new, asks again for those that the kernel does not know, and has the others confirmed now and then. A few
    /// at a time: the others' turn comes with the next looks.
    fn look_at_neighbours(&mut self) {
        let lost = self.read_neighbours();
        let mut left = PEERS_A_LOOK;
        for peer in 0..self.hops.len() {
            let hop = &self.hops[peer];
            let since = self.looks.wrapping_sub(hop.asked);
            let due = if hop.mac.is_none() {
                ASK_EVERY
            } else {
                CONFIRM_EVERY
            };
            if left == 0 || since < due && !lost {
                continue;
            }
            left -= 1;
            if hop.mac.is_some() {
                // "Somebody uses it": a stale entry is made sure of, and one that was forgotten is found again.
                self.neighbours.find_out(hop.station);
            }
            self.resolve(peer);
        }
    }

    /// The interface may have been given another hardware address.
    fn look_at_own_mac(&mut self) {
        if let Some(now) = self.link.mac().filter(|now| *now != self.mac) {
            self.mac = now;
            for peer in 0..self.hops.len() {
                self.set_mac(peer, self.hops[peer].mac);
            }
        }
    }

    /// Counts what came by the kernel's own stack. Bounded: the rest is counted later.
    fn look_astray(&mut self) {
        let Some((held, _)) = &self.held else { return };
        for socket in held {
            for _ in 0..64 {
                if rustix::net::recv(socket, &mut [0u8; 1], RecvFlags::TRUNC | RecvFlags::DONTWAIT).is_err() {
                    break;
                }
                self.astray += 1;
            }
        }
    }

    fn look_at_link(&mut self) -> Work {
        self.link.ask_in_silence(self.rx.stats.received);
        let (before, now, events) = (self.events.len(), self.now, &mut self.events);
        self.link.look(|kind| {
            events.push_back(RailEvent {
                at: now,
                scope: Scope::Rail,
                kind,
                life: Life::FIRST,
            });
        });
        self.look_at_own_mac();
        self.events.len() - before
    }
}

impl fmt::Debug for XdpRail {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("XdpRail")
            .field("name", &self.name)
            .field("address", &self.interface.address)
            .field("port", &self.port)
            .field("granted", &self.granted)
            .field("peers", &self.hops.len())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// What discovery shows before a rail is opened, and what an open one has.
pub(crate) fn capabilities(interface: &Interface, config: &XdpConfig) -> Capabilities {
    let (_, limit) = chunk_and_limit(interface, config);
    Capabilities {
        features: Features {
            gather: true,
            // UDP's own, made and checked here: 16 bits.
            checksum: true,
            ..Features::default()
        },
        limits: Limits {
            head: 128,
            message: limit,
            inline: 256.min(limit),
            eager: limit,
            fragment: limit,
            get_from: 0,
            parts: PARTS_MAX,
            one_sided: 0,
        },
        estimate: Estimate {
            latency_ns: 5_000,
            bandwidth: 1_250_000_000,
        },
    }
}

impl Rail for XdpRail {
    fn name(&self) -> &RailName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The address and the priority channel's port; the data channel has the next port. Without a scope, which means
    /// something here only.
    fn address(&self) -> RailAddress {
        RailAddress::inet("xdp", SocketAddr::new(self.interface.address, self.port))
    }

    fn progress(&mut self, now: Time) -> Work {
        self.now = now;
        if now < self.next_look {
            return 0;
        }
        self.next_look = now + LOOK;
        self.looks = self.looks.wrapping_add(1);
        self.look_at_neighbours();
        self.look_astray();
        let events = self.look_at_link();
        // An interface that was down may be up again, which only a new attempt shows.
        events + self.tx.retry()
    }

    fn next_deadline(&self) -> Option<Time> {
        Some(self.next_look)
    }

    /// All sockets are in one epoll set, by level: what came before the call is found by a look at the rings, what comes
    /// later makes it readable. The queues are in it only from here to `disarm`: the kernel tells the set of each frame, at
    /// the sender's cost where that is on the same machine.
    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        if !self.armed {
            self.armed = true;
            let none = epoll::EventData::new_u64(0);
            for socket in self.rx.sockets() {
                epoll::add(&self.epoll, socket, none, epoll::EventFlags::IN)
                    .map_err(|errno| system(&self.name, "watch the queues", errno.into()))?;
            }
        }
        if self.tx.is_backed_up() {
            self.tx.flush();
        }
        // Nothing wakes a sleeper when chunks come back.
        let waits = self.tx.is_backed_up() || self.tx.is_starved();
        let busy = waits || self.rx.has_more() || !self.events.is_empty();
        Ok(if busy {
            Armed::Ready
        } else {
            Armed::Sleep(std::os::fd::AsFd::as_fd(&self.epoll))
        })
    }

    fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            for socket in self.rx.sockets() {
                // One that was never added is not there.
                let _ = epoll::delete(&self.epoll, socket);
            }
        }
        // Announcements of links and neighbours would keep it readable.
        self.next_look = Time::ZERO;
    }

    fn poll_cost(&self) -> PollCost {
        if self.granted.busy_poll {
            PollCost::SystemCall(BUSY_POLL_COST)
        } else {
            PollCost::Memory
        }
    }

    fn event(&mut self) -> Option<RailEvent> {
        self.events.pop_front()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        self.now = now;
        self.tx.flush();
        if !self.tx.is_settled() && now < by {
            return false;
        }
        self.held = None;
        self.hops.clear();
        self.tx.release();
        self.rx.release();
        true
    }
}

impl Datagram for XdpRail {
    type Tx = XdpTx;
    type Rx = XdpRx;

    /// Knows an address once: opening it again gives the same peer. Returns before its hardware address is known; frames
    /// that are posted until then are lost, and counted.
    fn open(&mut self, address: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        let to = self.interface.sockets_of(&self.name, address)?;
        let known = self.rx.named(to[0]);
        if let Some(known) = known.filter(|&peer| self.tx.ways[peer as usize].to[0] == to[0]) {
            return Ok(PeerIndex(known));
        }
        let station = self.station(to[0], address)?;
        let peer = self.hops.len() as u32;
        let own = |channel: u16| self.interface.socket_address(self.port + channel);
        self.hops.push(Hop {
            station,
            mac: None,
            asked: 0,
        });
        self.tx.ways.push(Way {
            headers: [Headers::new(own(0), to[0]), Headers::new(own(1), to[1])],
            is_known: false,
            to,
        });
        to.iter().for_each(|&address| self.rx.name(address, peer));
        if let Some(tap) = &self.tx.tap {
            tap.peer(to);
        }
        self.resolve(peer as usize);
        Ok(PeerIndex(peer))
    }

    #[inline]
    fn split(&mut self) -> (&mut XdpTx, &mut XdpRx) {
        (&mut self.tx, &mut self.rx)
    }
}

/// How frames get to the rail's memory, in words, for discovery.
pub(crate) fn in_words(modes: &[Mode]) -> String {
    let words: Vec<String> = modes.iter().map(Mode::to_string).collect();
    words.join(", else ")
}

// A rail moves to the thread that owns it.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<XdpRail>();
    is_send::<<XdpRx as Receive>::Kept>();
};
