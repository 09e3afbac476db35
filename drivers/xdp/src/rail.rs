//! The xdp rail: its peers, and the contract common to all rails.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate};
use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::{Datagram, Receive};
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::{EventKind, Life, RailEvent, Scope};
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::Place;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_inet::{
    Attached, CaptureWriter, Interface, LinkMonitor, NextHop, NoRoute, PeerHeaders, PeerNumbers, Program,
    Tap, frame_capabilities, headers, put_peer, system_error, unusable,
};
use rustix::net::RecvFlags;

use crate::attach::Steering;
use crate::check::check;
use crate::config::{Mode, XdpConfig};
use crate::diagnostics::Diagnostics;
use crate::next_hops::NextHops;
use crate::open::{self, Granted};
use crate::rx::{XdpRx, receiver};
use crate::sleep::{News, Sleep};
use crate::stats::XdpStats;
use crate::tx::XdpTx;

/// How often the link and the neighbours are looked at: a fifth of the bound within which a failure is acted
/// on.
const LOOK: Duration = Duration::from_millis(20);

/// The nanoseconds of a system call that has the device polled.
const BUSY_POLL_COST: u32 = 500;

/// Datagrams over AF_XDP queues. See the crate's documentation.
pub struct XdpRail {
    name: RailName,
    incarnation: Incarnation,
    capabilities: Capabilities,
    interface: Interface,
    config: XdpConfig,
    granted: Granted,
    port: u16,
    pub(crate) tx: XdpTx,
    pub(crate) rx: XdpRx,
    next_hops: NextHops,
    numbers: PeerNumbers,
    link: LinkMonitor,
    trouble: Diagnostics,
    sleep: Sleep,
    /// `None` after the end.
    held: Option<([OwnedFd; 2], Steering)>,
    astray: u64,
    events: VecDeque<RailEvent>,
    now: Time,
    next_look: Time,
}

impl XdpRail {
    /// Opens the rail `name`: `xdp:eth0` (an interface; `config.family` selects one of its addresses) or
    /// `xdp:10.0.0.1`. It takes the frames for its own two ports from the queues of that interface;
    /// everything else goes to the kernel.
    ///
    /// # Errors
    /// [`RailError::Unusable`] when there is no such interface or address, it is down, its queue or its ports
    /// are taken, a right is missing (which is named), the mode is not available, or a setting is out of
    /// bounds; [`RailError::System`] when the system refuses a step.
    pub fn open(name: &RailName, config: &XdpConfig) -> Result<Self, RailError> {
        if name.kind() != "xdp" {
            return Err(unusable(
                name,
                "it is not an xdp rail",
                "name it xdp:INTERFACE or xdp:ADDRESS",
            ));
        }
        config.check(name)?;
        let interface =
            Interface::find(name, &config.interface_query())?.require(name, &config.interface_query())?;
        let checked = check(name, &interface, config)?;
        let refused = |errno: rustix::io::Errno| system_error(name, "watch the queues", errno.into());
        let mut life = [0; 8];
        getrandom::fill(&mut life).map_err(|error| system_error(name, "get random bytes", error.into()))?;
        let opened = open::open(name, &interface, config, checked)?;
        let rx = receiver(opened.rx);
        // Watched only after the program was attached, so that no old notification reports the link as down
        // or the program as missing; the state is requested once for what changed in between.
        let link = LinkMonitor::watch(&interface).map_err(refused)?;
        link.request_state();
        let next_hops = NextHops::watch(interface.index, opened.mac).map_err(refused)?;
        let sleep =
            Sleep::new(link.socket(), next_hops.socket(), rx.queues.sources.len()).map_err(refused)?;
        Ok(Self {
            capabilities: capabilities(opened.granted.longest),
            name: name.clone(),
            incarnation: Incarnation(u64::from_ne_bytes(life)),
            config: *config,
            granted: opened.granted,
            port: opened.port,
            tx: XdpTx::new(opened.tx),
            rx,
            next_hops,
            numbers: PeerNumbers::default(),
            link,
            trouble: Diagnostics::default(),
            sleep,
            held: Some((opened.held, opened.steering)),
            astray: 0,
            events: VecDeque::new(),
            now: Time::ZERO,
            next_look: Time::ZERO,
            interface,
        })
    }

    /// Returns this rail's life: random, new at every opening; peers pass it to `open`.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns what the kernel granted of the configuration.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// The totals so far. Reads from the kernel what it dropped.
    #[must_use]
    pub fn stats(&self) -> XdpStats {
        let (sent, received) = (self.tx.stats, self.rx.counts());
        let kernel = self.rx.queues.kernel_counts();
        let (taken, nonsense) = self.tx.counts();
        XdpStats {
            sent: taken,
            send_calls: sent.send_calls,
            send_full: sent.send_full,
            unresolved: sent.unresolved,
            unsendable: sent.unsendable,
            nonsense: sent.nonsense + nonsense + received.nonsense + kernel.nonsense,
            overrun: kernel.drops,
            starved: kernel.starved,
            astray: self.astray,
            received: received.received,
            strangers: received.strangers,
            corrupt: received.corrupt,
            unfinished: received.unfinished,
            malformed: received.malformed,
        }
    }

    /// Writes every frame from now on to a capture, with the headers that it has on the wire. `clock` is the
    /// one whose epoch the writer was given. It costs a copy of each frame; an earlier capture ends.
    pub fn set_capture(&mut self, writer: CaptureWriter, clock: Clock) {
        let about = format!("AF_XDP, {}", self.granted.mode);
        let (told, own) = (
            (self.name.as_str(), about.as_str()),
            self.interface.both_sockets(self.port),
        );
        let tap = Tap::new(writer, clock, told, own, self.tx.ways.iter().map(|way| way.to));
        (self.tx.tap, self.rx.demux().tap) = (Some(tap.clone()), Some(tap));
    }

    /// Ends the capture and gives its writer back, written out; it knows what was lost, and why.
    pub fn end_capture(&mut self) -> Option<CaptureWriter> {
        self.rx.demux().tap = None;
        self.tx.tap.take()?.end()
    }

    /// Whether the interface and its link are up and frames pass, as far as `progress` has seen.
    #[must_use]
    pub fn is_link_up(&self) -> bool {
        self.link.is_up() && !self.trouble.is_fatal()
    }

    /// Describes what is wrong here, and what to do, as far as the rail sees it; `in_doubt`: something is, on
    /// the way to a peer at least.
    #[must_use]
    pub fn trouble(&self, in_doubt: bool) -> Option<&'static str> {
        self.trouble.in_words(self.astray, in_doubt)
    }

    /// Whether the hardware address of the next hop to `peer` is known.
    #[must_use]
    pub fn is_resolved(&self, peer: PeerIndex) -> bool {
        self.next_hops.is_resolved(peer.index())
    }

    /// Returns its place in the network, for its peers to judge: as it was opened, whatever has that name
    /// now.
    #[must_use]
    pub fn place(&self) -> Place {
        let limit = self.capabilities.limits.message;
        Place {
            mtu: limit + headers(self.interface.address),
            takes: limit + headers(self.interface.address),
            ..self.interface.place(&self.config.interface_query())
        }
    }

    /// The next hop on the way to `to`.
    fn next_hop(&self, to: SocketAddr, address: &RailAddress) -> Result<IpAddr, RailError> {
        match self.interface.next_hop(to) {
            Ok(NextHop::OnLink) => Ok(to.ip()),
            Ok(NextHop::Gateway(gateway)) => Ok(gateway),
            Ok(NextHop::Local) => {
                let reason =
                    "it is on this host, and frames that bypass the kernel do not come back to it".to_owned();
                Err(NoRoute::Because(reason).into_rail_error(&self.name, address))
            }
            Err(no) => Err(no.into_rail_error(&self.name, address)),
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

    /// Reads news of the link, and reports them as events.
    fn read_link(&mut self) {
        let (mut told, fatal) = (Vec::new(), self.trouble.is_fatal());
        self.link.poll(|kind| told.push(kind));
        if !told.is_empty() {
            // The kernel drops routes with their link, without a notification.
            self.next_hops.doubt();
        }
        // If nothing passes anyway, only the end of the device is news.
        told.retain(|kind| !fatal || *kind == EventKind::DeviceGone);
        told.into_iter().for_each(|kind| self.report(kind));
        if let Some(mac) = self.link.mac() {
            self.next_hops.set_own(mac, &mut self.tx);
        }
        self.trouble.shrunk =
            self.link.mtu() < self.capabilities.limits.message + headers(self.interface.address);
        let ours = |program: Program| program.id == self.granted.program || program.how == Attached::Several;
        self.trouble.no_program = self
            .link
            .program()
            .is_some_and(|program| !program.is_some_and(ours));
    }

    fn report(&mut self, kind: EventKind) {
        self.events.push_back(RailEvent {
            at: self.now,
            scope: Scope::Rail,
            kind,
            life: Life::FIRST,
        });
    }

    /// Sends again what waits; reports a queue that never moves as a link that is down, with a reason of its
    /// own.
    fn look_at_sends(&mut self) -> Work {
        // An interface that was down may be up again, which only a new attempt shows.
        let sent = self.tx.retry();
        let waits = self.link.is_up() && self.tx.is_backed_up();
        self.trouble.look_at_sends(self.now, self.tx.counts().0, waits);
        sent
    }
}

impl fmt::Debug for XdpRail {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("XdpRail")
            .field("name", &self.name)
            .field("address", &self.interface.address)
            .field("port", &self.port)
            .field("granted", &self.granted)
            .field("peers", &self.next_hops.len())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Returns what discovery shows before a rail is opened, and what an open one has.
pub(crate) fn capabilities(limit: usize) -> Capabilities {
    frame_capabilities(
        limit,
        Estimate {
            latency_ns: 5_000,
            bandwidth: 1_250_000_000,
        },
    )
}

impl Rail for XdpRail {
    fn name(&self) -> &RailName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The address and the priority channel's port; the data channel has the next port. Without a scope,
    /// which means something here only.
    fn address(&self) -> RailAddress {
        RailAddress::inet("xdp", SocketAddr::new(self.interface.address, self.port))
    }

    fn progress(&mut self, now: Time) -> Work {
        self.now = now;
        let due = now >= self.next_look;
        if !due && self.sleep.news == News::default() {
            return 0;
        }
        if due {
            self.next_look = now + LOOK;
            self.sleep.look();
            self.link.request_state_if_idle(self.rx.counts().received);
        }
        let (news, before, was_up) = (
            std::mem::take(&mut self.sleep.news),
            self.events.len(),
            self.is_link_up(),
        );
        let fatal = self.trouble.is_fatal();
        if due || news.link {
            self.read_link();
        }
        if due {
            self.next_hops.look(now, &self.interface, &mut self.tx);
            self.look_astray();
            if self.granted.busy_poll_asked && !self.granted.busy_poll {
                self.granted.busy_poll = self.rx.queues.polls_busily();
            }
        } else if news.neighbours {
            self.next_hops.read(&mut self.tx);
        }
        let sent = self.look_at_sends();
        if self.trouble.is_fatal() != fatal && self.is_link_up() != was_up {
            self.report(if was_up {
                EventKind::LinkDown
            } else {
                EventKind::LinkUp
            });
        }
        self.events.len() - before + sent
    }

    fn next_deadline(&self) -> Option<Time> {
        Some(if self.sleep.news == News::default() {
            self.next_look
        } else {
            Time::ZERO
        })
    }

    /// All sockets are in one epoll set: what came before the call is found by a look at the rings, what
    /// comes later makes it readable.
    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        self.sleep
            .arm(self.rx.queues.sockets())
            .map_err(|errno| system_error(&self.name, "watch the queues", errno.into()))?;
        if self.tx.is_backed_up() {
            self.tx.flush();
        }
        // Nothing wakes a sleeper when chunks come back.
        let waits = self.tx.is_backed_up() || self.tx.is_starved();
        let busy = waits || self.rx.has_more() || !self.events.is_empty();
        Ok(if busy {
            Armed::Ready
        } else {
            Armed::Sleep(self.sleep.fd())
        })
    }

    /// Leaves what woke the sleeper to the next `progress`, which reads it: unread events would keep the set
    /// readable.
    fn disarm(&mut self) {
        self.sleep.look();
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
        self.next_hops.clear();
        self.numbers = PeerNumbers::default();
        self.tx.release();
        self.rx.queues.release();
        self.rx.release();
        true
    }
}

impl Datagram for XdpRail {
    type Tx = XdpTx;
    type Rx = XdpRx;

    /// Adds a peer; opening an address again returns the same peer. Returns before its hardware address is
    /// known; frames that are posted until then are lost, and counted.
    fn open(&mut self, address: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        let to = self.interface.sockets_of(&self.name, address)?;
        let known = self.rx.demux().peer_at(to[0]);
        if let Some(known) = known.filter(|&peer| self.tx.ways[peer as usize].to[0] == to[0]) {
            return Ok(PeerIndex(known));
        }
        let next_hop = self.next_hop(to[0], address)?;
        let peer = self.numbers.take(|_| true);
        let own = self.interface.both_sockets(self.port);
        put_peer(&mut self.tx.ways, peer, PeerHeaders::new(own, to));
        to.iter()
            .for_each(|&address| self.rx.demux().add_peer(address, peer));
        if let Some(tap) = &self.tx.tap {
            tap.add_peer(peer, to);
        }
        self.next_hops
            .add(peer, (to[0], next_hop), self.now, &mut self.tx);
        Ok(PeerIndex(peer))
    }

    fn forget(&mut self, peer: PeerIndex) {
        let Some(way) = self.tx.ways.get(peer.index()) else {
            return;
        };
        if self.numbers.free(peer.0) {
            for address in way.to {
                self.rx.demux().remove_peer(address, peer.0);
            }
            self.next_hops.remove(peer.0);
        }
    }

    #[inline]
    fn split(&mut self) -> (&mut XdpTx, &mut XdpRx) {
        (&mut self.tx, &mut self.rx)
    }
}

/// Describes how frames get to the rail's memory, for discovery.
pub(crate) fn in_words(modes: impl Iterator<Item = Mode>) -> String {
    let words: Vec<String> = modes.map(|mode| mode.to_string()).collect();
    words.join(", else ")
}

// A rail moves to the thread that owns it.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<XdpRail>();
    is_send::<<XdpRx as Receive>::Kept>();
};
