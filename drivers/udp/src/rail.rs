//! The udp rail: how it is opened, its peers, and the contract common to all rails.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::{Datagram, Receive, Transmit};
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::{EventKind, Life, RailEvent, Scope};
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::Place;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_inet::{
    CaptureWriter, Interface, LinkMonitor, NoRoute, PeerNumbers, Tap, headers, put_peer, system_error,
    unusable,
};
use rustix::io::Errno;

use crate::config::UdpConfig;
use crate::icmp::UnreachablePeers;
use crate::poll_schedule::UNKNOWN_PEER;
use crate::refused::Refusals;
use crate::rx::UdpRx;
use crate::sockets::{self, Granted};
use crate::stats::UdpStats;
use crate::sys::Name;
use crate::tx::{PARTS_MAX, PeerPath, UdpTx};

/// Interval of link polls: a fifth of the time within which a link failure has to be handled.
const LINK_POLL: Duration = Duration::from_millis(20);

/// A rail of datagrams over UDP sockets; see the crate's documentation.
pub struct UdpRail {
    name: RailName,
    incarnation: Incarnation,
    capabilities: Capabilities,
    interface: Interface,
    config: UdpConfig,
    granted: Granted,
    port: u16,
    poll_cost: u32,
    tx: UdpTx,
    rx: UdpRx,
    link: LinkMonitor,
    unreachable: UnreachablePeers,
    connected: usize,
    numbers: PeerNumbers,
    /// Counters of opening peers.
    opened: UdpStats,
    events: VecDeque<RailEvent>,
    now: Time,
    next_look: Time,
}

impl UdpRail {
    /// Opens the rail `name`: `udp:eth0` (an interface; `config.family` selects one of its addresses) or
    /// `udp:10.0.0.1`, `udp:fd00::1` (an address of this machine). Only that address is bound.
    ///
    /// # Errors
    /// [`RailError::Unusable`] when there is no such interface or address, it is down, its ports are taken,
    /// or a setting is out of bounds; [`RailError::System`] when the system refuses a step.
    pub fn open(name: &RailName, config: &UdpConfig) -> Result<Self, RailError> {
        if name.kind() != "udp" {
            return Err(unusable(
                name,
                "its kind is not udp",
                "name it udp:INTERFACE or udp:ADDRESS",
            ));
        }
        config.check(name)?;
        let interface =
            Interface::find(name, &config.interface_query())?.require(name, &config.interface_query())?;
        let own = sockets::own(name, &interface, config)?;
        let refused = |errno: Errno| system_error(name, "watch the sockets", errno.into());
        let link = LinkMonitor::watch(&interface).map_err(refused)?;
        let mut life = [0; 8];
        getrandom::fill(&mut life).map_err(|error| system_error(name, "get random bytes", error.into()))?;
        let (limit, granted) = (interface.limit(&config.interface_query()), own.granted);
        let sockets = own.sockets.map(Arc::new);
        let mut rx = UdpRx::new(link.socket(), limit, granted.gro, config).map_err(refused)?;
        for (channel, socket) in sockets.iter().enumerate() {
            rx.add(Arc::clone(socket), UNKNOWN_PEER, channel, granted.gro)
                .map_err(refused)?;
        }
        Ok(Self {
            capabilities: capabilities(&interface, config),
            poll_cost: measure(&sockets[0]),
            tx: UdpTx::new(sockets, limit, granted.gso, config),
            rx,
            link,
            unreachable: UnreachablePeers::default(),
            connected: 0,
            numbers: PeerNumbers::default(),
            opened: UdpStats::default(),
            events: VecDeque::new(),
            now: Time::ZERO,
            next_look: Time::ZERO,
            port: own.port,
            name: name.clone(),
            incarnation: Incarnation(u64::from_ne_bytes(life)),
            config: *config,
            granted,
            interface,
        })
    }

    /// Returns this rail's incarnation: random, new at every opening; peers pass it to `open`.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns what the kernel granted of the configured options.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> UdpStats {
        self.tx.stats.plus(self.rx.stats).plus(self.opened)
    }

    /// Returns how many frames the kernel dropped because a receive buffer was full. It queries every socket,
    /// so it is not for the hot path.
    #[must_use]
    pub fn kernel_drops(&self) -> u64 {
        self.rx.kernel_drops()
    }

    /// Returns the longest frame in bytes that fits the path to `peer` by the kernel's path MTU; `None` while
    /// that is unknown. The kernel learns it from routers and may be wrong, so the probe of the layer above
    /// decides.
    #[must_use]
    pub fn path_limit(&self, peer: PeerIndex) -> Option<usize> {
        let path = self.tx.paths.get(peer.index())?;
        let mtu = match &path.sockets {
            Some(sockets) => sockets::path_mtu(sockets[1].as_fd()).ok(),
            None => self.rx.path(peer.0),
        };
        let by_path = mtu?.saturating_sub(headers(self.interface.address));
        Some(by_path.min(self.capabilities.limits.message))
    }

    /// Captures every frame that the kernel takes or delivers from now on, as it is on the wire (merged runs
    /// as single frames). `clock` is the one whose epoch the writer has. It costs a copy of each frame; an
    /// earlier capture ends.
    ///
    /// ```
    /// # use doorbell_fabric::{clock::Clock, pcapng::Writer};
    /// # use doorbell_udp::{UdpConfig, UdpRail};
    /// let mut rail = UdpRail::open(&"udp:lo".parse()?, &UdpConfig::default())?;
    /// let file = std::io::sink(); // or a file
    /// rail.set_capture(Writer::new(Box::new(file), "an example", 0), Clock::start());
    /// assert_eq!(rail.end_capture().map(|writer| writer.written()), Some(0));
    /// # Ok::<(), doorbell_fabric::error::RailError>(())
    /// ```
    pub fn set_capture(&mut self, writer: CaptureWriter, clock: Clock) {
        let (told, own) = (
            (self.name.as_str(), self.granted.offloads()),
            self.interface.both_sockets(self.port),
        );
        let tap = Tap::new(
            writer,
            clock,
            told,
            own,
            self.tx.paths.iter().map(|path| path.addresses()),
        );
        (self.tx.tap, self.rx.tap) = (Some(tap.clone()), Some(tap));
    }

    /// Ends the capture, flushes it and returns its writer, which knows what was lost, and why.
    pub fn end_capture(&mut self) -> Option<CaptureWriter> {
        self.rx.tap = None;
        self.tx.tap.take()?.end()
    }

    /// Whether `peer` has connected sockets of its own.
    #[must_use]
    pub fn is_connected(&self, peer: PeerIndex) -> bool {
        self.tx
            .paths
            .get(peer.index())
            .is_some_and(|path| path.sockets.is_some())
    }

    /// Whether the interface and its link are up, as of the last `progress`.
    #[must_use]
    pub fn is_link_up(&self) -> bool {
        self.link.is_up()
    }

    /// Returns what is wrong on the path to a peer as far as the kernel reports it: frames that it refuses to
    /// send to that peer, or drops on receipt. With `in_doubt` the layers above see trouble; otherwise
    /// refusals count only before anything was received, since a link that was down for a moment refuses
    /// frames too.
    /// `in_doubt`: a link that was down for a moment refuses frames, too.
    #[cold]
    #[must_use]
    pub fn trouble(&self, peer: PeerIndex, in_doubt: bool) -> Option<String> {
        // Before anything has been received, every refusal counts.
        if !in_doubt && self.rx.stats.received > 0 {
            return None;
        }
        let path = self.tx.paths.get(peer.index())?;
        let refused = self.tx.refused.of(peer.0);
        let [to, _] = path.addresses();
        let name = &self.interface.name;
        let filtered = self.interface.filters_reverse_path(to.ip()).then(|| {
            format!(
                "the routing table prefers another interface than {name} for {}, and rp_filter of {name} is \
                 1 (strict), so the kernel drops what comes in by it: `sysctl -w \
                 net/ipv4/conf/{name}/rp_filter=2`",
                to.ip()
            )
        });
        let all: Vec<String> = refused.map(refusal).into_iter().chain(filtered).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Opens connected sockets for a peer; `None` if it has to share the rail's, because the limit is reached
    /// or the system refuses more.
    fn connect(&mut self, to: [SocketAddr; 2]) -> Result<Option<[Arc<OwnedFd>; 2]>, RailError> {
        if self.connected >= self.config.connected {
            return Ok(None);
        }
        let mut make = |channel: usize| {
            let port = self.port + channel as u16;
            let strays = &mut self.opened.strays;
            sockets::connected(&self.interface, port, to[channel], channel, &self.config, strays)
        };
        match (make(0), make(1)) {
            (Ok(first), Ok(second)) => Ok(Some([first, second].map(Arc::new))),
            (Err(error), _) | (_, Err(error)) => {
                let full = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
                if error.raw_os_error().is_some_and(|code| full.contains(&code)) || !self.link.is_up() {
                    return Ok(None);
                }
                let address = RailAddress::inet("udp", to[0]);
                Err(NoRoute::Because(error.to_string()).into_rail_error(&self.name, &address))
            }
        }
    }

    /// Returns the location of the interface as it was opened, from which peers compute what connects them.
    #[must_use]
    pub fn place(&self) -> Place {
        self.interface.place(&self.config.interface_query())
    }

    fn emit(events: &mut VecDeque<RailEvent>, at: Time, scope: Scope, kind: EventKind) {
        let life = Life::FIRST;
        events.push_back(RailEvent {
            at,
            scope,
            kind,
            life,
        });
    }

    /// Watches the sockets of a peer. Returns whether the system allows that; if not, none is watched, and
    /// the peer is one without sockets of its own.
    fn watch_sockets(&mut self, sockets: &[Arc<OwnedFd>; 2], to: [SocketAddr; 2], peer: u32) -> bool {
        let gro = self.granted.gro;
        let mut each = sockets.iter().enumerate();
        let watched =
            each.all(|(channel, socket)| self.rx.add(Arc::clone(socket), peer, channel, gro).is_ok());
        if !watched {
            self.rx.forget(to, peer);
        }
        watched
    }

    /// Emits events of the link; returns how many.
    fn look_at_link(&mut self) -> usize {
        let (before, now, events) = (self.events.len(), self.now, &mut self.events);
        self.link.poll(|kind| Self::emit(events, now, Scope::Rail, kind));
        events.len() - before
    }

    /// Whether the link is up, also where that has changed since the last look.
    #[cold]
    fn is_link_up_now(&mut self) -> bool {
        self.look_at_link();
        self.link.is_up()
    }

    /// Emits events about peers that answer with ICMP errors.
    fn report_unreachable(&mut self) {
        while let Some(peer) = self.tx.refusals.pop().or_else(|| self.rx.refusals.pop()) {
            if self.unreachable.refused(peer, self.now) {
                self.rx.suspect(peer);
            }
        }
        let (rx, events, now) = (&mut self.rx, &mut self.events, self.now);
        let heard = |peer| rx.heard(peer);
        self.unreachable.update(heard, |peer, kind| {
            Self::emit(events, now, Scope::Peer(PeerIndex(peer)), kind);
        });
    }
}

impl fmt::Debug for UdpRail {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("UdpRail")
            .field("name", &self.name)
            .field("address", &self.interface.address)
            .field("port", &self.port)
            .field("peers", &self.tx.paths.len())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Describes frames that the kernel refuses to send, with the command to run.
fn refusal(refused: &Refusals) -> String {
    let (count, errno) = (refused.frames, refused.errno);
    let look = match errno {
        Errno::PERM | Errno::ACCESS => {
            "a rule of this host's packet filter drops what goes out: look at the chains of the hooks \
             output, postrouting and egress (`nft list ruleset`), or let `doorbell doctor` do it"
        }
        Errno::NOBUFS => {
            "the device's queue takes no more, or a rule at its egress drops frames: `tc -s qdisc`, `nft \
             list ruleset`"
        }
        Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN | Errno::ADDRNOTAVAIL => {
            "no route to the peer: run `ip route get` with its address, and `ip -br address`"
        }
        _ => "run `ip -br address`, `ip route` and `nft list ruleset`",
    };
    let frames = if count == 1 { "frame" } else { "frames" };
    format!(
        "the kernel has refused to send {count} {frames} ({}): {look}",
        std::io::Error::from(errno)
    )
}

fn capabilities(interface: &Interface, config: &UdpConfig) -> Capabilities {
    let limit = interface.limit(&config.interface_query());
    Capabilities {
        features: Features {
            gather: true,
            // False even over the loopback: true would mean that another rail adds nothing, and there shared
            // memory adds nearly all.
            within_host: false,
            // UDP's own 16-bit checksum, computed and verified by the kernel or the device.
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
        estimate: if interface.is_loopback() {
            Estimate {
                latency_ns: 3_000,
                bandwidth: 3_000_000_000,
            }
        } else {
            Estimate {
                latency_ns: 10_000,
                bandwidth: 1_250_000_000,
            }
        },
    }
}

/// The capabilities that discovery shows before a rail is opened.
pub(crate) fn expected(interface: &Interface, config: &UdpConfig) -> Capabilities {
    capabilities(interface, config)
}

/// Measures the cost of an empty receive in nanoseconds: the minimum of a few rounds.
fn measure(socket: &OwnedFd) -> u32 {
    const TIMES: u32 = 32;
    let round = |_| {
        let start = Instant::now();
        for _ in 0..TIMES {
            // Peeks, so that a frame that has arrived stays queued.
            let flags = rustix::net::RecvFlags::PEEK;
            std::hint::black_box(rustix::net::recv(socket, &mut [0u8; 1], flags)).ok();
        }
        start.elapsed().as_nanos() as u32 / TIMES
    };
    (0..4).map(round).min().unwrap_or(0).max(1)
}

impl Rail for UdpRail {
    fn name(&self) -> &RailName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The address with the priority channel's port; the data channel has the next port. Without a scope,
    /// which is valid on this host only.
    fn address(&self) -> RailAddress {
        RailAddress::inet("udp", SocketAddr::new(self.interface.address, self.port))
    }

    fn progress(&mut self, now: Time) -> Work {
        self.now = now;
        let work = if self.tx.is_backed_up() {
            self.tx.flush()
        } else {
            0
        };
        if !self.tx.refusals.is_empty() || !self.rx.refusals.is_empty() || self.unreachable.any() {
            self.report_unreachable();
        }
        if now < self.next_look && !self.rx.link_changed() {
            return work;
        }
        self.rx.link_was_read();
        self.next_look = now + LINK_POLL;
        self.link.request_state_if_idle(self.rx.stats.received);
        work + self.look_at_link()
    }

    fn next_deadline(&self) -> Option<Time> {
        Some(if self.rx.link_changed() {
            Time::ZERO
        } else {
            self.next_look
        })
    }

    /// All sockets are in one level-triggered epoll set: one poll finds what arrived before the call, and
    /// what arrives later makes the set readable.
    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        self.tx.flush();
        let waits = self.rx.sleep();
        let waits = waits.map_err(|errno| system_error(&self.name, "watch the sockets", errno.into()))?;
        let busy = waits || self.tx.is_backed_up() || !self.events.is_empty();
        Ok(if busy {
            Armed::Ready
        } else {
            Armed::Sleep(self.rx.epoll())
        })
    }

    fn disarm(&mut self) {}

    fn poll_cost(&self) -> PollCost {
        PollCost::SystemCall(self.poll_cost)
    }

    fn event(&mut self) -> Option<RailEvent> {
        self.events.pop_front()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        self.now = now;
        self.tx.flush();
        if self.tx.is_backed_up() && now < by {
            return false;
        }
        self.tx.release();
        self.rx.release();
        self.unreachable = UnreachablePeers::default();
        self.numbers = PeerNumbers::default();
        true
    }
}

impl Datagram for UdpRail {
    type Tx = UdpTx;
    type Rx = UdpRx;

    /// Opening an address again returns the same peer.
    fn open(&mut self, address: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        let to = self.interface.sockets_of(&self.name, address)?;
        if let Some(known) = self
            .rx
            .peer_at(to[0])
            .filter(|&peer| self.tx.paths[peer as usize].starts_at(to[0]))
        {
            return Ok(PeerIndex(known));
        }
        // While the link is down, the system has no routes over it: they come back with it.
        if let Err(no) = self.interface.next_hop(to[0])
            && self.is_link_up_now()
        {
            return Err(no.into_rail_error(&self.name, address));
        }
        let mut sockets = self.connect(to)?;
        // What comes from here on does not fail: a number that is taken is the next place of the table.
        let peer = self.numbers.take(|peer| !self.tx.has_posts_for(peer));
        if let Some(both) = &sockets
            && !self.watch_sockets(both, to, peer)
        {
            sockets = None;
        }
        if sockets.is_some() {
            self.connected += 1;
        } else {
            self.opened.unconnected += 1;
        }
        to.iter().for_each(|&address| self.rx.add_peer(address, peer));
        if let Some(tap) = &self.tx.tap {
            tap.add_peer(peer, to);
        }
        let names = to.map(Name::of);
        // Without hardware nothing segments a run before it arrives, and a rail that takes frames before the
        // peer's kernel does would receive the run as one frame that is too long.
        if address.kind == "xdp" && !self.interface.is_wire() {
            self.tx.singles.push(peer);
        }
        put_peer(&mut self.tx.paths, peer, PeerPath { names, sockets });
        Ok(PeerIndex(peer))
    }

    /// Closes the peer's sockets. Frames that wait for room in the kernel leave by the rail's own.
    fn forget(&mut self, peer: PeerIndex) {
        let Some(path) = self.tx.paths.get_mut(peer.index()) else {
            return;
        };
        if !self.numbers.free(peer.0) {
            return;
        }
        let (addresses, sockets) = (path.addresses(), path.sockets.take());
        self.connected -= usize::from(sockets.is_some());
        self.tx.forget(peer.0);
        self.rx.forget(addresses, peer.0);
        self.unreachable.forget(peer.0);
        self.events.retain(|event| event.scope != Scope::Peer(peer));
    }

    #[inline]
    fn split(&mut self) -> (&mut UdpTx, &mut UdpRx) {
        (&mut self.tx, &mut self.rx)
    }
}

// A rail can be moved to the thread that owns it.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<UdpRail>();
    is_send::<<UdpRx as Receive>::Kept>();
};
