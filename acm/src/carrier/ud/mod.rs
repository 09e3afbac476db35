//! A carrier over queue pairs of unreliable datagrams.
//!
//! ```text
//!   endpoint mlx5_0:1, partition 0xffff ── one queue pair ─┬─ the groups that the subnet's administrator
//!                                                          │  has joined it to, by their LIDs
//!                                                          └─ datagrams to the queue pair itself
//!   endpoint eth0 (RoCE v2)             ── one queue pair ─┬─ ::ffff:239.255.x.y, where it has IPv4
//!                                                          ├─ ff15:4001:…, where it has IPv6
//!                                                          │  and a socket in each of these IP groups
//!                                                          └─ datagrams to the queue pair itself
//! ```
//!
//! The datagrams are the original's: 256 bytes behind a routing header, from which the receiver takes the GID
//! of the sender; the completion has its queue pair and LID. They have no room for a tag, so that there is no
//! key, and everyone in the partition or on the link is trusted.
//!
//! On Ethernet no switch learns that a queue pair is in a group, so an ordinary socket is in the same IP
//! group, which also has the interface receive its frames. A frame for a group goes out over each family, as
//! over UDP.
//!
//! An answer goes to the queue pair that the query came from, with the query's service level. On InfiniBand a
//! message that answers nothing has the service level of the last one that came from there.

mod endpoints;
#[cfg(test)]
pub(crate) mod fake;
mod levels;
mod membership;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::hash::RandomState;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use doorbell_fabric::time::Time;
use doorbell_verbs::gid;
use doorbell_verbs::mads::{GROUP_PAIR, MadCounts, MadDestination, MadEvent, MadPort, Received};
use rustix::event::epoll;
use tokio::io::unix::AsyncFd;

use super::filter::{Dropped, Reason, is_of_other_family, is_on_link};
use super::frame::{Header, Kind};
use super::groups::is_group;
use super::ping::Pinger;
use super::rate_limit::RateLimiter;
use super::replay::Family;
use super::{
    Carrier, CarrierError, Counters, EndpointId, Event, Mad, Peer, ProbeId, Settings, SubnetGroup, from_on,
    must_be_group, system, watch,
};
use crate::address::Gid;
use crate::endpoint::{Endpoint, Link};
use crate::path::Mtu;
use crate::register::registered;

use endpoints::ServedEndpoint;

/// The hop limit of messages on Ethernet: they stay on the link.
const HOPS: u8 = 1;
/// The first LID of multicast groups.
const FIRST_GROUP_LID: u16 = 0xc000;

/// A queue pair for MADs, with the Q_Key of the general services.
pub trait QueuePair: AsFd {
    /// Returns its number: 24 bits.
    fn number(&self) -> u32;

    /// Returns the name of its device, and the number of its port.
    fn port(&self) -> (String, u8);

    /// Returns the GIDs that it sends from, in order of preference.
    fn gids(&self) -> Vec<Gid>;

    /// Has it receive what is sent to a group, which has a LID on InfiniBand.
    ///
    /// # Errors
    /// Why it cannot, in words.
    fn attach(&mut self, group: Gid, lid: u16) -> Result<(), String>;

    /// Takes it out of a group.
    fn detach(&mut self, group: Gid);

    /// Sends a MAD, now or as soon as the hardware address of its destination is known.
    ///
    /// # Errors
    /// Why it cannot, in words.
    fn send(&mut self, now: Time, to: &MadDestination, mad: &Mad) -> Result<(), String>;

    /// Takes what has come, within a bound, and does what is due; returns how much it did. More is taken once
    /// that was taken from it.
    fn turn(&mut self, now: Time) -> usize;

    /// Returns the next MAD that has come.
    fn next_received(&mut self) -> Option<Received>;

    /// Returns the next thing that happened to its port.
    fn next_event(&mut self) -> Option<MadEvent>;

    /// Returns when something is due although nothing has come.
    fn next_deadline(&self) -> Time;

    /// Returns its counters.
    fn counts(&self) -> MadCounts;
}

impl QueuePair for MadPort {
    fn number(&self) -> u32 {
        Self::number(self)
    }

    fn port(&self) -> (String, u8) {
        let (device, port) = self.device();
        (device.to_owned(), port)
    }

    fn gids(&self) -> Vec<Gid> {
        Self::gids(self).map(|gid| Gid(gid.0)).collect()
    }

    fn attach(&mut self, group: Gid, lid: u16) -> Result<(), String> {
        Self::attach(self, gid::Gid(group.0), lid).map_err(|error| error.to_string())
    }

    fn detach(&mut self, group: Gid) {
        Self::detach(self, gid::Gid(group.0));
    }

    fn send(&mut self, now: Time, to: &MadDestination, mad: &Mad) -> Result<(), String> {
        Self::send(self, now, to, mad).map_err(|error| error.to_string())
    }

    fn turn(&mut self, now: Time) -> usize {
        Self::turn(self, now)
    }

    fn next_received(&mut self) -> Option<Received> {
        Self::next_received(self)
    }

    fn next_event(&mut self) -> Option<MadEvent> {
        Self::next_event(self)
    }

    fn next_deadline(&self) -> Time {
        Self::next_deadline(self)
    }

    fn counts(&self) -> MadCounts {
        Self::counts(self)
    }
}

/// Opens the queue pair of an endpoint, which holds so many MADs that were not taken yet.
type Opener<Q> = Box<dyn FnMut(&Endpoint, usize) -> Result<Q, String>>;

/// A carrier of MADs over queue pairs.
pub struct UdCarrier<Q = MadPort> {
    settings: Settings,
    /// MADs that a queue pair holds.
    depth: usize,
    open: Opener<Q>,
    ready: OwnedFd,
    ends: BTreeMap<EndpointId, ServedEndpoint<Q>>,
    limiter: RateLimiter,
    /// The endpoint that the next turn begins with.
    next: EndpointId,
    pinger: Pinger,
    events: VecDeque<Event>,
    /// What the queue pairs of endpoints that have ended had counted.
    ended: MadCounts,
    dropped: Dropped,
    taken: u64,
}

impl UdCarrier {
    /// Creates a carrier without endpoints, whose queue pairs hold `depth` MADs each. The library is loaded
    /// when the first endpoint is served.
    ///
    /// # Errors
    /// With a key, since messages have no tags; or when no descriptor is left.
    pub fn new(settings: Settings, depth: usize) -> Result<Self, CarrierError> {
        let open = |endpoint: &Endpoint, depth: usize| {
            MadPort::open(&endpoints::place(endpoint), depth).map_err(|error| error.to_string())
        };
        Self::with(settings, depth, Box::new(open))
    }

    /// Registers the carrier with tokio, as [`UdpCarrier::registered`](super::UdpCarrier::registered).
    ///
    /// # Errors
    /// When the runtime cannot register the descriptor.
    pub fn registered(self) -> io::Result<AsyncFd<Self>> {
        registered(self)
    }
}

impl<Q: QueuePair> UdCarrier<Q> {
    /// Creates a carrier whose queue pairs `open` makes.
    ///
    /// # Errors
    /// As [`UdCarrier::new`].
    pub fn with(settings: Settings, depth: usize, open: Opener<Q>) -> Result<Self, CarrierError> {
        if settings.key.is_some() {
            return Err(CarrierError::NoTags);
        }
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("wait for frames", "any"))?;
        let limits = settings.limits;
        Ok(Self {
            limiter: RateLimiter::new(RandomState::new(), limits.rate, limits.burst),
            settings,
            depth,
            open,
            ready,
            ends: BTreeMap::new(),
            next: EndpointId(0),
            pinger: Pinger::default(),
            events: VecDeque::new(),
            ended: MadCounts::default(),
            dropped: Dropped::default(),
            taken: 0,
        })
    }

    fn known(&mut self, id: EndpointId) -> Result<&mut ServedEndpoint<Q>, CarrierError> {
        self.ends.get_mut(&id).ok_or(CarrierError::Unknown(id))
    }

    /// Handles what has come to an endpoint, as much as one gives in a turn; returns how much that was.
    fn receive(&mut self, now: Time, id: EndpointId) -> usize {
        let Some(pair) = self.ends.get_mut(&id).and_then(|end| end.pair.as_mut()) else {
            return 0;
        };
        let mut done = pair.turn(now);
        for _ in 0..self.settings.limits.turn {
            let Some(received) = self.next_received(id) else {
                break;
            };
            done += 1;
            match self.judge(now, id, &received) {
                Ok((from, group)) => {
                    self.taken += 1;
                    self.events.push_back(Event::Mad {
                        endpoint: id,
                        from,
                        group,
                        mad: received.mad,
                    });
                }
                Err(reason) => self.dropped.count(reason),
            }
        }
        while let Some(event) = self
            .ends
            .get_mut(&id)
            .and_then(|end| end.pair.as_mut()?.next_event())
        {
            done += 1;
            self.happened(id, event);
        }
        done
    }

    fn next_received(&mut self, id: EndpointId) -> Option<Received> {
        self.ends.get_mut(&id)?.pair.as_mut()?.next_received()
    }

    fn happened(&mut self, endpoint: EndpointId, event: MadEvent) {
        match event {
            MadEvent::Renew => self.events.push_back(Event::Renew { endpoint }),
            MadEvent::Gone => {
                let Some(end) = self.ends.get_mut(&endpoint) else {
                    return;
                };
                let device = end.endpoint.device.clone();
                let error = CarrierError::QueuePair(format!(
                    "the RDMA device of {device} has failed or is gone; `rdma link` lists those that there are"
                ));
                if !std::mem::replace(&mut end.failed, true) {
                    self.events.push_back(Event::Failed { endpoint, error });
                }
            }
        }
    }

    /// Returns the sender of a MAD, and the group that it was sent to; or why it is dropped. The order of the
    /// checks is that of the filter over UDP.
    fn judge(
        &mut self,
        now: Time,
        id: EndpointId,
        received: &Received,
    ) -> Result<(Peer, Option<Gid>), Reason> {
        let must = |is: bool, reason: Reason| if is { Ok(()) } else { Err(reason) };
        let (gid, to) = received.gid.zip(received.to).ok_or(Reason::Grh)?;
        let (gid, to) = (Gid(gid.0), Gid(to.0));
        must(self.limiter.allow(now, (id, gid.ip())), Reason::Flood)?;
        let end = self.ends.get_mut(&id).ok_or(Reason::NotForUs)?;
        let pair = end.pair.as_ref().ok_or(Reason::NotForUs)?;
        let own = pair.gids();
        must(received.pair != pair.number() || !own.contains(&gid), Reason::Own)?;
        let group = end.group_of(to);
        must(group.is_some() || own.contains(&to), Reason::NotForUs)?;
        let is_from_port = match end.endpoint.link {
            Link::InfiniBand => !is_group(gid) && (1..FIRST_GROUP_LID).contains(&received.lid),
            _ => is_on_link(&end.endpoint, gid.ip()) || is_of_other_family(&end.endpoint, gid.ip()),
        };
        must(
            is_from_port && (2..GROUP_PAIR).contains(&received.pair),
            Reason::Source,
        )?;
        if group.is_some() && end.endpoint.link != Link::InfiniBand {
            // Both copies have one queue pair and one transaction, and the GIDs of their families.
            let header = Header {
                kind: Kind::Mad,
                qpn: received.pair,
                lid: 0,
                sgid: Gid::NONE,
                dgid: Gid::NONE,
            };
            let is_new = end
                .copies
                .is_new(now, &header, &received.mad, Family::of(to.ip()));
            must(is_new, Reason::Again)?;
        }
        // On Ethernet, some devices report the kind of packet where the level would be.
        if end.endpoint.link == Link::InfiniBand {
            end.levels
                .record((gid, received.lid), (received.service_level, received.path_bits));
        }
        let peer = Peer {
            gid,
            lid: received.lid,
            qpn: received.pair,
            at: None,
            by: None,
        };
        Ok((peer, group))
    }
}

impl<Q: QueuePair> Carrier for UdCarrier<Q> {
    fn kind(&self) -> &'static str {
        "ud"
    }

    fn update(&mut self, id: EndpointId, endpoint: &Endpoint) -> Result<(), CarrierError> {
        self.serve(id, endpoint)
    }

    fn end(&mut self, id: EndpointId) {
        // Closing a descriptor removes it from the epoll set.
        if let Some(pair) = self.ends.remove(&id).and_then(|end| end.pair) {
            self.ended = endpoints::sum(self.ended, pair.counts());
        }
    }

    fn served(&self) -> Vec<EndpointId> {
        self.ends.keys().copied().collect()
    }

    fn lacks(&self, id: EndpointId) -> usize {
        let Some(end) = self.ends.get(&id) else { return 0 };
        end.lacks(&self.settings.families().collect::<Vec<_>>())
    }

    fn joins_by_subnet(&self, endpoint: &Endpoint) -> bool {
        endpoint.link == Link::InfiniBand
    }

    fn needs_addresses(&self) -> bool {
        false
    }

    fn queue_pair(&self, id: EndpointId) -> Option<String> {
        let pair = self.ends.get(&id)?.pair.as_ref()?;
        let (device, port) = pair.port();
        Some(format!("{device}:{port} {:#08x}", pair.number()))
    }

    fn counters(&self) -> Counters {
        let each = self.ends.values().filter_map(|end| end.pair.as_ref());
        let counts = each.fold(self.ended, |all, pair| endpoints::sum(all, pair.counts()));
        let mut dropped = self.dropped;
        dropped.add(Reason::Size, counts.length);
        Counters {
            sent: counts.sent,
            unsent: counts.unsent,
            taken: self.taken,
            echoes: 0,
            dropped,
            unresolved: counts.unresolved,
            failed: counts.failed,
            resets: counts.resets,
        }
    }

    fn join_in(
        &mut self,
        endpoint: EndpointId,
        group: Gid,
        subnet: Option<SubnetGroup>,
    ) -> Result<(), CarrierError> {
        must_be_group(group)?;
        let families: Vec<Family> = self.settings.families().collect();
        self.known(endpoint)?.join(group, subnet, &families)
    }

    fn is_in(&self, endpoint: EndpointId, group: Gid) -> bool {
        self.ends.get(&endpoint).is_some_and(|end| end.is_in(group))
    }

    fn leave(&mut self, endpoint: EndpointId, group: Gid) {
        if let Some(end) = self.ends.get_mut(&endpoint) {
            end.leave(group);
        }
    }

    fn multicast(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        (group, from): (Gid, Gid),
        mad: &Mad,
    ) -> Result<(), CarrierError> {
        must_be_group(group)?;
        self.known(endpoint)?.multicast(now, group, from, mad)
    }

    fn send(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        (to, from): (&Peer, Gid),
        mad: &Mad,
    ) -> Result<(), CarrierError> {
        self.known(endpoint)?.send(now, to, from, mad)
    }

    fn reach(&mut self, now: Time, endpoint: EndpointId, to: Gid, mtu: Mtu) -> Result<ProbeId, CarrierError> {
        let end = self.ends.get(&endpoint).ok_or(CarrierError::Unknown(endpoint))?;
        if end.endpoint.link == Link::InfiniBand {
            return Err(CarrierError::NoProbe);
        }
        let ready = &self.ready;
        let watch = |socket: BorrowedFd<'_>| watch(ready, socket);
        self.pinger
            .reach(now, (&end.endpoint, &end.interface), to, mtu, watch)
    }

    /// Probes by pings: other services answer queries only.
    fn probe(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        to: &Peer,
        _: Gid,
        mtu: Mtu,
    ) -> Result<ProbeId, CarrierError> {
        self.reach(now, endpoint, to.gid, mtu)
    }

    fn turn(&mut self, now: Time) -> usize {
        let limits = self.settings.limits;
        let mut done = 0;
        for id in from_on(self.next, self.ends.keys().copied().collect()) {
            if done >= limits.turn || self.events.len() >= limits.events {
                self.next = id;
                break;
            }
            done += self.receive(now, id);
        }
        done += self.pinger.turn(now);
        while let Some((probe, result)) = self.pinger.ended() {
            self.events.push_back(Event::Probed { probe, result });
        }
        done
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn next_deadline(&self) -> Time {
        let pairs = self.ends.values().filter_map(|end| end.pair.as_ref());
        let pairs = pairs.map(QueuePair::next_deadline).min();
        pairs.unwrap_or(Time::NEVER).min(self.pinger.next_deadline())
    }
}

impl<Q> AsFd for UdCarrier<Q> {
    /// Readable when something has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl<Q> AsRawFd for UdCarrier<Q> {
    fn as_raw_fd(&self) -> RawFd {
        self.ready.as_raw_fd()
    }
}
