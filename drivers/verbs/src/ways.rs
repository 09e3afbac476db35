//! The way to each peer: which GIDs are used, and the address handle, which is made once that waits for
//! nothing (module `neighbour`).

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::gid::Link;
use doorbell_fabric::time::Time;
use doorbell_inet::put_peer;

use crate::address::PortAddress;
use crate::gid::{self, Published};
use crate::neighbour::Neighbours;
use crate::ports::{Port, ip_of};
use crate::source::{From, Source};
use crate::sys::{AddressHandle, AhAttr, Domain};

/// How often a peer without a way is looked at again.
const AGAIN: Duration = Duration::from_millis(200);
/// The most of them in one look.
const AT_A_TIME: usize = 16;
/// How long a handle that is not used any more is kept: its last frames are sent by then.
const RETIRED: Duration = Duration::from_secs(2);
/// Packets that a router forwards live this long.
const HOPS: u8 = 64;

/// Settings of packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
}

/// What sends frames by the handles of peers.
pub(crate) trait SendsBy {
    /// Gives a peer another handle, or none; returns the one that it had, which no frame that waits names.
    fn replace(&mut self, peer: u32, handle: Option<AddressHandle>) -> Option<AddressHandle>;
}

/// The way to one peer.
struct Way {
    to: PortAddress,
    /// The places of the GIDs that are used, in our published list and in theirs; `None` without GIDs.
    pair: Option<gid::Pair>,
    /// Whether its handle is made.
    is_made: bool,
    asked: Time,
    is_gone: bool,
}

/// The ways to all peers, by their numbers.
pub(crate) struct Ways {
    list: Vec<Way>,
    /// `None` when the device was let go of.
    domain: Option<Arc<Domain>>,
    neighbours: Neighbours,
    retired: Vec<(Time, AddressHandle)>,
    marks: Marks,
    /// What we have published.
    own: Vec<Published>,
}

impl Ways {
    pub(crate) fn new(domain: &Arc<Domain>, port: &Port, marks: Marks) -> Self {
        Self {
            list: Vec::new(),
            domain: Some(Arc::clone(domain)),
            neighbours: Neighbours::watch(port),
            retired: Vec::new(),
            marks,
            own: published(port),
        }
    }

    /// What we have published.
    pub(crate) fn own(&self) -> &[Published] {
        &self.own
    }

    /// Readable when the kernel knows another neighbour.
    pub(crate) fn news(&self) -> Option<&OwnedFd> {
        self.neighbours.news()
    }

    /// The peer with this address, if it is known.
    pub(crate) fn find(&self, to: &PortAddress) -> Option<u32> {
        let at = self.list.iter().position(|way| !way.is_gone && way.to == *to);
        at.map(|at| at as u32)
    }

    /// Whether frames to a peer are sent.
    pub(crate) fn is_made(&self, peer: usize) -> bool {
        self.list.get(peer).is_some_and(|way| way.is_made)
    }

    /// Whether there is a peer of this number.
    pub(crate) fn is_known(&self, peer: usize) -> bool {
        self.list.get(peer).is_some_and(|way| !way.is_gone)
    }

    /// Adds a peer.
    ///
    /// # Errors
    /// Why it cannot be reached.
    pub(crate) fn add(&mut self, peer: u32, to: PortAddress, port: &Port) -> Result<From, &'static str> {
        if to.link != port.link {
            return Err("is of a port of InfiniBand, and the other one of Ethernet");
        }
        let pair = gid::choose(&self.own, &to.gids);
        if port.link == Link::Ethernet && pair.is_none() {
            return Err("has no GID of one kind and family with one of ours");
        }
        let from = From {
            pair: to.pairs[0],
            port: match (&pair, port.link) {
                (Some(pair), Link::Ethernet) => Source::Gid(to.gids[pair.theirs].gid.0),
                _ => Source::Lid(to.lid),
            },
        };
        let way = Way {
            to,
            pair,
            is_made: false,
            asked: Time::ZERO,
            is_gone: false,
        };
        put_peer(&mut self.list, peer, way);
        Ok(from)
    }

    /// Removes a peer.
    pub(crate) fn remove(&mut self, peer: u32, now: Time, tx: &mut impl SendsBy) {
        if let Some(way) = self.list.get_mut(peer as usize) {
            (way.is_gone, way.is_made) = (true, false);
        }
        self.retire(peer, None, now, tx);
    }

    fn retire(&mut self, peer: u32, handle: Option<AddressHandle>, now: Time, tx: &mut impl SendsBy) {
        let before = tx.replace(peer, handle);
        self.retired.extend(before.map(|handle| (now + RETIRED, handle)));
    }

    /// Every way may be another one: they are made again, one after the other.
    pub(crate) fn doubt(&mut self) {
        self.list
            .iter_mut()
            .for_each(|way| (way.is_made, way.asked) = (false, Time::ZERO));
    }

    /// Makes ways that are not made, a few at a time, and lets go of handles that are not used any more.
    pub(crate) fn look(&mut self, now: Time, port: &Port, tx: &mut impl SendsBy) {
        self.retired.retain(|(until, _)| now < *until);
        let known = self.neighbours.read();
        let mut left = AT_A_TIME;
        for peer in 0..self.list.len() {
            let way = &self.list[peer];
            let hop = || known.iter().any(|ip| Some(*ip) == self.ip_of_peer(way));
            let is_due = way.asked == Time::ZERO || now >= way.asked + AGAIN || hop();
            if way.is_gone || way.is_made || left == 0 || !is_due {
                continue;
            }
            left -= 1;
            self.list[peer].asked = now;
            self.make(peer as u32, now, port, tx);
        }
    }

    fn ip_of_peer(&self, way: &Way) -> Option<IpAddr> {
        ip_of(way.to.gids.get(way.pair?.theirs)?)
    }

    /// Makes the handle of a peer, if nothing has to be waited for.
    fn make(&mut self, peer: u32, now: Time, port: &Port, tx: &mut impl SendsBy) {
        let Some(attributes) = self.attributes(peer as usize, port) else {
            return;
        };
        let ip = self.ip_of_peer(&self.list[peer as usize]);
        if !self.neighbours.is_ready(port, ip) {
            return;
        }
        let Some(domain) = &self.domain else { return };
        if let Ok(handle) = AddressHandle::new(domain, attributes) {
            self.list[peer as usize].is_made = true;
            self.retire(peer, Some(handle), now, tx);
        }
    }

    /// Where frames to a peer go, by the port's table as it is now; `None` while our GID is not in it.
    pub(crate) fn attributes(&self, peer: usize, port: &Port) -> Option<AhAttr> {
        let way = &self.list[peer];
        let mut to = AhAttr::zeroed();
        (to.dlid, to.sl, to.port_num) = (way.to.lid, self.marks.service_level, port.number);
        if let Some(pair) = way.pair.filter(|_| port.needs_route()) {
            let ours = self.own[pair.ours];
            let entry = port
                .gids
                .usable
                .iter()
                .find(|entry| (entry.published.gid, entry.published.kind) == (ours.gid, ours.kind))?;
            to.is_global = 1;
            to.grh.dgid.0 = way.to.gids[pair.theirs].gid.0;
            to.grh.sgid_index = entry.index;
            to.grh.hop_limit = HOPS;
            to.grh.traffic_class = self.marks.traffic_class;
        }
        Some(to)
    }

    /// Forgets everything, and lets go of the device.
    pub(crate) fn release(&mut self) {
        self.list.clear();
        self.retired.clear();
        self.domain = None;
    }
}

/// The GIDs that a port publishes.
pub(crate) fn published(port: &Port) -> Vec<Published> {
    let usable = port.gids.usable.iter().take(gid::PUBLISHED);
    usable.map(|entry| entry.published).collect()
}
