//! A carrier over UDP sockets.
//!
//! ```text
//!   endpoint eth0 ─┬─ 10.0.0.1:any       sends, and receives unicast frames: one per address
//!                  ├─ 10.0.0.3:any
//!                  ├─ [fe80::1]:any      the same over IPv6
//!                  ├─ [fd00::1]:any
//!                  ├─ 239.255.x.y:port   receives a group
//!                  └─ [ff15:4001:…]:port the same over IPv6
//! ```
//!
//! A frame for a group goes out over each family; a receiver of both takes the first. Answers go to the
//! address that a frame came from, and come from the address that it was sent to. One descriptor is readable
//! when any of the sockets is.

mod endpoints;
mod reach;
mod settings;
mod sockets;

use std::collections::{BTreeMap, VecDeque};
use std::hash::RandomState;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use doorbell_fabric::time::Time;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::unix::AsyncFd;

use super::filter::{Arrival, Filter, Reason};
use super::frame::{Frame, Header, Kind, PROBE, PROBE_MAX, TAG, TOKEN};
use super::ping::Pinger;
use super::prober::{PROBES_MAX, ProbeFrame, Prober, STEM};
use super::replay::Family;
use super::{
    Carrier, CarrierError, EndpointId, Event, Mad, Peer, ProbeId, SubnetGroup, Trouble, from_on,
    must_be_group, random, system, watch,
};
use crate::address::Gid;
use crate::endpoint::Endpoint;
use crate::path::Mtu;
use crate::register::registered;

use endpoints::ServedEndpoint;
pub use settings::{Counters, Limits, Settings};
use sockets::{Socket, destination};

/// Maximum number of groups of an endpoint.
const GROUPS_MAX: usize = 8;

/// A carrier of MADs over UDP sockets.
#[derive(Debug)]
pub struct UdpCarrier {
    settings: Settings,
    qpn: u32,
    ready: OwnedFd,
    ends: BTreeMap<EndpointId, ServedEndpoint>,
    filter: Filter,
    prober: Prober,
    pinger: Pinger,
    /// The socket that the next turn begins with.
    next: (EndpointId, usize),
    events: VecDeque<Event>,
    counters: Counters,
    buffer: Box<[u8]>,
    frame: Vec<u8>,
}

impl UdpCarrier {
    /// Creates a carrier without endpoints: nothing listens yet.
    ///
    /// # Errors
    /// When the kernel returns no random numbers, or no descriptor is left.
    pub fn new(settings: Settings) -> Result<Self, CarrierError> {
        let mut qpn = [0; 4];
        random(&mut qpn[1..])?;
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("wait for frames", "any"))?;
        let limits = settings.limits;
        Ok(Self {
            filter: Filter::new(
                settings.key.clone(),
                RandomState::new(),
                limits.rate,
                limits.burst,
            ),
            settings,
            // 0 and 1 are the queue pairs of subnet management.
            qpn: u32::from_be_bytes(qpn).max(2),
            ready,
            ends: BTreeMap::new(),
            prober: Prober::default(),
            pinger: Pinger::default(),
            next: (EndpointId(0), 0),
            events: VecDeque::new(),
            counters: Counters::default(),
            buffer: vec![0; PROBE_MAX + 1].into(),
            frame: Vec::with_capacity(PROBE_MAX),
        })
    }

    /// Returns the queue pair number of this run: 24 bits.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Returns the carrier's counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            dropped: self.filter.dropped,
            ..self.counters
        }
    }

    /// Registers the carrier with tokio; call it within a runtime. The caller runs [`Carrier::turn`] until it
    /// does nothing, clears the readiness *before* that, and sleeps no longer than until
    /// [`Carrier::next_deadline`].
    ///
    /// # Errors
    /// When the runtime cannot register the descriptor.
    pub fn registered(self) -> io::Result<AsyncFd<Self>> {
        registered(self)
    }

    fn known(&self, id: EndpointId) -> Result<&ServedEndpoint, CarrierError> {
        self.ends.get(&id).ok_or(CarrierError::Unknown(id))
    }

    /// Sends the frame in the buffer, from our address `by` or else from the best one for the destination.
    fn post(&mut self, id: EndpointId, by: Option<IpAddr>, to: SocketAddr) -> Result<(), Errno> {
        let end = self.ends.get(&id).ok_or(Errno::NODEV)?;
        let socket = end.sender(by, to.ip()).ok_or(Errno::AFNOSUPPORT)?;
        let sent = rustix::net::sendto(&socket.fd, &self.frame, SendFlags::empty(), &to);
        match sent {
            Ok(_) => self.counters.sent += 1,
            Err(_) => self.counters.unsent += 1,
        }
        sent.map(drop)
    }

    /// Writes a frame from an endpoint into the buffer.
    fn write(&mut self, id: EndpointId, kind: Kind, from: Gid, to: Gid, body: &[u8], size: usize) {
        let lid = self.ends.get(&id).map_or(0, |end| end.endpoint.lid);
        let header = Header {
            kind,
            qpn: self.qpn,
            lid,
            sgid: from,
            dgid: to,
        };
        header.write(body, size, self.filter.key(), &mut self.frame);
    }

    /// Builds the error of a failed system call; an endpoint whose interface or address is gone is reported,
    /// once.
    fn trouble(&mut self, id: EndpointId, step: &'static str, errno: Errno) -> CarrierError {
        let Some(end) = self.ends.get_mut(&id) else {
            return CarrierError::Unknown(id);
        };
        let error = system(step, &end.interface)(errno);
        if is_lost(errno) && !std::mem::replace(&mut end.failed, true) {
            self.events.push_back(Event::Failed {
                endpoint: id,
                error: error.clone(),
            });
        }
        error
    }

    /// Receives on one socket of an endpoint; returns the number of datagrams.
    fn receive(&mut self, now: Time, id: EndpointId, at: usize) -> usize {
        for done in 0..self.settings.limits.turn {
            if self.events.len() >= self.settings.limits.events {
                return done;
            }
            let Some(socket) = self.ends.get(&id).and_then(|end| end.sockets.get(at)) else {
                return done;
            };
            let got = rustix::net::recvfrom(&socket.fd, &mut self.buffer[..], RecvFlags::TRUNC);
            match got {
                Ok((_, length, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    if let Some(from) = from {
                        self.take(now, id, at, from, length);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return done,
                Err(errno) => {
                    self.trouble(id, "receive", errno);
                    // Reading a socket error clears it, and datagrams may be behind it without a further
                    // edge: count it as work.
                    return done + 1;
                }
            }
        }
        self.settings.limits.turn
    }

    /// Handles a datagram of `length` bytes.
    fn take(&mut self, now: Time, id: EndpointId, at: usize, from: SocketAddr, length: usize) {
        let Some(end) = self.ends.get_mut(&id) else {
            return;
        };
        let is_ours = end.sends_from(from);
        let socket = &end.sockets[at];
        let place = Arrival {
            id,
            endpoint: &end.endpoint,
            group: socket.group,
            family: socket.family,
            qpn: self.qpn,
            is_ours,
        };
        // A datagram that is longer than the buffer is not truncated to a frame, but dropped.
        let bytes = std::mem::take(&mut self.buffer);
        let frame = &bytes[..length.min(bytes.len())];
        let taken = self.filter.accept(now, from, frame, &place, &mut end.copies);
        let (group, own) = (socket.group, socket.own.ip());
        if let Some(frame) = taken {
            self.counters.taken += 1;
            self.act(now, id, (group, own), from, frame);
        }
        self.buffer = bytes;
    }

    fn act(
        &mut self,
        now: Time,
        id: EndpointId,
        (group, own): (Option<Gid>, IpAddr),
        from: SocketAddr,
        frame: Frame<'_>,
    ) {
        let header = frame.header;
        if let Some(mad) = frame.mad() {
            let peer = Peer {
                gid: header.sgid,
                lid: header.lid,
                qpn: header.qpn,
                at: Some(from),
                by: Some(own).filter(|_| group.is_none()),
            };
            let mad = Box::new(*mad);
            return self.events.push_back(Event::Mad {
                endpoint: id,
                from: peer,
                group,
                mad,
            });
        }
        let Some(token) = frame.token() else { return };
        let tag = self.filter.key().map_or(0, |_| TAG);
        // An echo is as long as its probe, the tag included: no amplification.
        let size = PROBE - TOKEN + frame.body.len() + tag;
        if header.kind == Kind::Probe {
            self.write(id, Kind::Echo, header.dgid, header.sgid, &token, size);
            match self.post(id, Some(own), from) {
                Ok(()) => self.counters.echoes += 1,
                Err(errno) => drop(self.trouble(id, "send an echo", errno)),
            }
        } else if !self.prober.echo(now, id, from, &token, size) {
            self.filter.dropped.count(Reason::Unasked);
        }
    }

    /// Sends the frames of probes that are due.
    fn send_due(&mut self, now: Time) -> usize {
        self.prober.tick(now);
        let mut done = 0;
        while let Some(shot) = self.prober.shot() {
            done += 1;
            self.send_probe(now, &shot);
        }
        while let Some((probe, result)) = self.prober.ended() {
            done += 1;
            self.events.push_back(Event::Probed { probe, result });
        }
        done
    }

    fn send_probe(&mut self, now: Time, shot: &ProbeFrame) {
        let Some(at) = shot.to.at else { return };
        self.write(
            shot.endpoint,
            Kind::Probe,
            shot.from,
            shot.to.gid,
            &shot.token,
            shot.size,
        );
        let trouble = match self.post(shot.endpoint, Some(shot.from.ip()), at) {
            // The failure may be transient; the next attempt sends again.
            Ok(()) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR | Errno::CONNREFUSED) => {
                return;
            }
            Err(Errno::MSGSIZE) => Trouble::FullRefused,
            Err(errno) => {
                self.trouble(shot.endpoint, "send a probe", errno);
                Trouble::NoWay
            }
        };
        self.prober.refused(now, shot, trouble);
    }
}

/// Whether the interface or its address is gone. Peers cannot cause that: they send from the link.
fn is_lost(errno: Errno) -> bool {
    let lost = [
        Errno::NODEV,
        Errno::NXIO,
        Errno::NETDOWN,
        Errno::NETUNREACH,
        Errno::ADDRNOTAVAIL,
    ];
    lost.contains(&errno)
}

impl Carrier for UdpCarrier {
    fn kind(&self) -> &'static str {
        "udp"
    }

    fn update(&mut self, id: EndpointId, endpoint: &Endpoint) -> Result<(), CarrierError> {
        Self::update(self, id, endpoint)
    }

    fn end(&mut self, id: EndpointId) {
        Self::end(self, id);
    }

    fn served(&self) -> Vec<EndpointId> {
        self.ends.keys().copied().collect()
    }

    fn lacks(&self, id: EndpointId) -> usize {
        Self::lacks(self, id)
    }

    fn joins_by_subnet(&self, _: &Endpoint) -> bool {
        false
    }

    fn needs_addresses(&self) -> bool {
        true
    }

    fn queue_pair(&self, _: EndpointId) -> Option<String> {
        None
    }

    fn counters(&self) -> Counters {
        Self::counters(self)
    }

    fn is_in(&self, endpoint: EndpointId, group: Gid) -> bool {
        let end = self.ends.get(&endpoint);
        end.is_some_and(|end| end.groups().contains(&group))
    }

    /// A socket receives a group until the endpoint's others are closed.
    fn leave(&mut self, _: EndpointId, _: Gid) {}

    fn reach(&mut self, now: Time, endpoint: EndpointId, to: Gid, mtu: Mtu) -> Result<ProbeId, CarrierError> {
        self.ping(now, endpoint, to, mtu)
    }

    fn join_in(
        &mut self,
        endpoint: EndpointId,
        group: Gid,
        _: Option<SubnetGroup>,
    ) -> Result<(), CarrierError> {
        must_be_group(group)?;
        let end = self.known(endpoint)?;
        let missing: Vec<Family> = end.families();
        let missing: Vec<Family> = missing.into_iter().filter(|of| !end.is_in(group, *of)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let groups = end.groups();
        if groups.len() >= GROUPS_MAX && !groups.contains(&group) {
            return Err(CarrierError::Full {
                what: "groups of an endpoint",
                most: GROUPS_MAX,
            });
        }
        let (mut sockets, mut failed) = (Vec::new(), None);
        for family in missing {
            let made = Socket::group(&end.endpoint, &end.interface, family, group, self.settings.port);
            match made.and_then(|socket| watch(&self.ready, socket.fd.as_fd()).map(|()| socket)) {
                Ok(socket) => sockets.push(socket),
                Err(errno) => failed = Some(errno),
            }
        }
        if let (true, Some(errno)) = (sockets.is_empty() && !groups.contains(&group), failed) {
            return Err(self.trouble(endpoint, "join a group", errno));
        }
        if let Some(end) = self.ends.get_mut(&endpoint) {
            end.sockets.append(&mut sockets);
        }
        Ok(())
    }

    fn multicast(
        &mut self,
        _: Time,
        endpoint: EndpointId,
        (group, from): (Gid, Gid),
        mad: &Mad,
    ) -> Result<(), CarrierError> {
        must_be_group(group)?;
        let end = self.known(endpoint)?;
        let (interface, families) = (end.endpoint.interface, end.families());
        self.write(endpoint, Kind::Mad, from, group, mad, 0);
        let (mut any, mut failed) = (false, None);
        for family in families {
            let to = destination(family, group, self.settings.port, interface);
            match self.post(endpoint, None, to) {
                Ok(()) => any = true,
                Err(errno) => failed = Some(errno),
            }
        }
        match failed {
            Some(errno) if !any => Err(self.trouble(endpoint, "send to a group", errno)),
            _ => Ok(()),
        }
    }

    fn send(
        &mut self,
        _: Time,
        endpoint: EndpointId,
        (to, from): (&Peer, Gid),
        mad: &Mad,
    ) -> Result<(), CarrierError> {
        self.known(endpoint)?;
        let at = to.at.ok_or(CarrierError::NoPeer(to.gid))?;
        self.write(endpoint, Kind::Mad, from, to.gid, mad, 0);
        let sent = self.post(endpoint, to.by, at);
        sent.map_err(|errno| self.trouble(endpoint, "send to a peer", errno))
    }

    fn probe(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        to: &Peer,
        from: Gid,
        mtu: Mtu,
    ) -> Result<ProbeId, CarrierError> {
        self.known(endpoint)?;
        to.at.ok_or(CarrierError::NoPeer(to.gid))?;
        let mut stem = [0; STEM];
        random(&mut stem)?;
        let full = CarrierError::Full {
            what: "probes",
            most: PROBES_MAX,
        };
        let probe = self
            .prober
            .start(now, (endpoint, *to, from), mtu, stem)
            .ok_or(full)?;
        self.send_due(now);
        Ok(probe)
    }

    fn turn(&mut self, now: Time) -> usize {
        let mut done = self.send_due(now);
        let each = self.ends.iter();
        let each = each.flat_map(|(id, end)| (0..end.sockets.len()).map(|at| (*id, at)));
        let mut received = 0;
        for (id, at) in from_on(self.next, each.collect()) {
            if received >= self.settings.limits.turn || self.events.len() >= self.settings.limits.events {
                self.next = (id, at);
                break;
            }
            received += self.receive(now, id, at);
        }
        done += received;
        // The messages that arrived may have ended a probe.
        done + self.send_due(now) + self.pinged(now)
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn next_deadline(&self) -> Time {
        self.prober.next_deadline().min(self.pinger.next_deadline())
    }
}

impl AsFd for UdpCarrier {
    /// Readable when a frame has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl AsRawFd for UdpCarrier {
    fn as_raw_fd(&self) -> RawFd {
        self.ready.as_raw_fd()
    }
}
