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
use doorbell_inet::{CaptureWriter, Interface, LinkMonitor, NoRoute, Tap, headers, system_error, unusable};
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

/// How often the link is looked at: a fifth of the bound within which its failure is acted on.
const LINK_POLL: Duration = Duration::from_millis(20);

/// Datagrams over UDP sockets. See the crate's documentation.
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
    /// What opening peers counted.
    opened: UdpStats,
    events: VecDeque<RailEvent>,
    now: Time,
    next_look: Time,
}

impl UdpRail {
    /// Opens the rail `name`: `udp:eth0` (an interface; `config.family` says which of its addresses) or
    /// `udp:10.0.0.1`, `udp:fd00::1` (an address of this machine). Only that address is bound.
    ///
    /// # Errors
    /// [`RailError::Unusable`] when there is no such interface or address, it is down, its ports are taken, or a
    /// setting is out of bounds; [`RailError::System`] when the system refuses a step.
    pub fn open(name: &RailName, config: &UdpConfig) -> Result<Self, RailError> {
        if name.kind() != "udp" {
            return Err(unusable(
                name,
                "it is not a udp rail",
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

    /// This rail's life: random, new at every opening; peers pass it to `open`.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// What the kernel granted of what the configuration asked for.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// The totals so far.
    #[must_use]
    pub fn stats(&self) -> UdpStats {
        self.tx.stats.plus(self.rx.stats).plus(self.opened)
    }

    /// Frames that the kernel dropped because a receive buffer was full. Asks every socket: for now and then.
    #[must_use]
    pub fn kernel_drops(&self) -> u64 {
        self.rx.kernel_drops()
    }

    /// Longest frame that the kernel believes the path to `peer` passes, in bytes; `None` while it believes nothing. It
    /// learns from routers that refuse longer ones; it may be wrong, so the probe of the layer above decides.
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

    /// Writes every frame from now on to a capture: those that the kernel took and those that it gave, as they were on
    /// the wire (runs in one piece as single frames). `clock` is the one whose epoch the writer was told. It costs a
    /// copy of each frame; an earlier capture ends.
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

    /// Ends the capture and gives its writer back, written out; it knows what was lost, and why.
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

    /// Whether the interface and its link are up, as far as `progress` has seen.
    #[must_use]
    pub fn is_link_up(&self) -> bool {
        self.link.is_up()
    }

    /// What is wrong on the way to a peer, in words, as far as the kernel says it: frames that it has refused to
    /// send since one to that peer was sent, or that it drops when they come in. That is a reason only where there is trouble, which is
    /// `in_doubt`: a link that was down for a moment refuses frames, too.
    #[cold]
    #[must_use]
    pub fn trouble(&self, peer: PeerIndex, in_doubt: bool) -> Option<String> {
        // Where nothing has ever come, whatever the kernel says is news.
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

    /// Sockets of its own for a peer; `None` when it has to share the rail's, because there are enough or the system
    /// gives no more.
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
                if error.raw_os_error().is_some_and(|code| full.contains(&code)) {
                    return Ok(None);
                }
                let address = RailAddress::inet("udp", to[0]);
                Err(NoRoute::Because(error.to_string()).into_rail_error(&self.name, &address))
            }
        }
    }

    /// Where it is, for its peers to judge: as it was opened, whatever has that name now.
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

    /// What came of refused frames: events about peers.
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

/// What it means that the kernel refuses to send, with what to look at.
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
            "no way leads to the peer now: `ip route get` with its address, `ip -br address`"
        }
        _ => "look at `ip -br address`, `ip route` and `nft list ruleset`",
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
            // Not even over the loopback: what the word means is that another rail adds nothing, and there shared memory
            // adds nearly all.
            within_host: false,
            // UDP's own, made and checked by the kernel or the device: 16 bits.
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

/// What discovery shows before a rail is opened.
pub(crate) fn expected(interface: &Interface, config: &UdpConfig) -> Capabilities {
    capabilities(interface, config)
}

/// The cost of an empty receive, in nanoseconds: the least of a few rounds.
fn measure(socket: &OwnedFd) -> u32 {
    const TIMES: u32 = 32;
    let round = |_| {
        let start = Instant::now();
        for _ in 0..TIMES {
            // Peeks: a frame that came already stays.
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

    /// The address and the priority channel's port; the data channel has the next port. Without a scope, which means
    /// something here only.
    fn address(&self) -> RailAddress {
        RailAddress::inet("udp", SocketAddr::new(self.interface.address, self.port))
    }

    fn progress(&mut self, now: Time) -> Work {
        self.now = now;
        let mut work = if self.tx.is_backed_up() {
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
        let before = self.events.len();
        let events = &mut self.events;
        self.link.poll(|kind| Self::emit(events, now, Scope::Rail, kind));
        work += self.events.len() - before;
        work
    }

    fn next_deadline(&self) -> Option<Time> {
        Some(if self.rx.link_changed() {
            Time::ZERO
        } else {
            self.next_look
        })
    }

    /// All sockets are in one epoll set, by level: what came before the call is found by asking it once, what comes
    /// later makes it readable.
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
        true
    }
}

impl Datagram for UdpRail {
    type Tx = UdpTx;
    type Rx = UdpRx;

    /// Knows an address once: opening it again gives the same peer.
    fn open(&mut self, address: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        let to = self.interface.sockets_of(&self.name, address)?;
        if let Some(known) = self
            .rx
            .named(to[0])
            .filter(|&peer| self.tx.paths[peer as usize].starts_at(to[0]))
        {
            return Ok(PeerIndex(known));
        }
        if let Err(no) = self.interface.next_hop(to[0]) {
            return Err(no.into_rail_error(&self.name, address));
        }
        let peer = self.tx.paths.len() as u32;
        let sockets = self.connect(to)?;
        if let Some(sockets) = &sockets {
            for (channel, socket) in sockets.iter().enumerate() {
                self.rx
                    .add(Arc::clone(socket), peer, channel, self.granted.gro)
                    .map_err(|errno| system_error(&self.name, "watch a peer's socket", errno.into()))?;
            }
            self.connected += 1;
        } else {
            self.opened.unconnected += 1;
        }
        to.iter().for_each(|&address| self.rx.add_peer(address, peer));
        if let Some(tap) = &self.tx.tap {
            tap.add_peer(to);
        }
        let names = to.map(Name::of);
        // But for hardware nothing cuts a run up before it is there, and a rail that takes frames before the peer's kernel does
        // would get the run as one frame, which is too long for it.
        if address.kind == "xdp" && !self.interface.is_wire() {
            self.tx.singles.push(peer);
        }
        self.tx.paths.push(PeerPath { names, sockets });
        Ok(PeerIndex(peer))
    }

    #[inline]
    fn split(&mut self) -> (&mut UdpTx, &mut UdpRx) {
        (&mut self.tx, &mut self.rx)
    }
}

// A rail moves to the thread that owns it.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<UdpRail>();
    is_send::<<UdpRx as Receive>::Kept>();
};
