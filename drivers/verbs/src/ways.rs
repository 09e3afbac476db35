//! The way to each peer: which GIDs are used, and the address handle, which is made once that waits for
//! nothing (module `neighbour`).

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::gid::Link;
use doorbell_fabric::time::Time;
use rustc_hash::FxHashMap;

use crate::gid::{self, Gid, GidPair, Published};
use crate::neighbour::Neighbours;
use crate::paths::{Ends, Path, Paths, Wanted};
use crate::ports::{Port, ip_of};
use crate::subnet::PathRecord;
use crate::sys::{AddressHandle, AhAttr, Domain};

/// How often a peer without a way is looked at again.
const AGAIN: Duration = Duration::from_millis(200);
/// The most of them in one look, and handles that are made in one pass: each takes a call of the kernel.
const AT_A_TIME: usize = 16;
const HANDLES: usize = 4;
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
    lid: u16,
    gids: GidPair,
    /// Whether its handle is made.
    is_made: bool,
    asked: Time,
}

/// The ways to the peers that something was sent to, by their numbers.
pub(crate) struct Ways {
    list: FxHashMap<u32, Way>,
    /// `None` when the device was let go of.
    domain: Option<Arc<Domain>>,
    neighbours: Neighbours,
    retired: Vec<(Time, AddressHandle)>,
    /// Paths to peers, on InfiniBand.
    paths: Option<Paths>,
    /// Handles that may still be made in this pass, and whether ways are left for the next one.
    left: usize,
    is_behind: bool,
    marks: Marks,
    /// What we have published.
    own: Vec<Published>,
}

impl Way {
    /// The peer's IP address, where it has one.
    fn ip(&self) -> Option<IpAddr> {
        ip_of(&Published {
            gid: self.gids.theirs,
            kind: self.gids.kind,
            prefix: 0,
        })
    }
}

impl Ways {
    pub(crate) fn new(domain: &Arc<Domain>, port: &Port, marks: Marks) -> Self {
        Self {
            list: FxHashMap::default(),
            domain: Some(Arc::clone(domain)),
            neighbours: Neighbours::watch(port),
            retired: Vec::new(),
            paths: paths(domain, port, marks),
            left: HANDLES,
            is_behind: false,
            marks,
            own: published(port),
        }
    }

    /// What we have published.
    pub(crate) fn own(&self) -> &[Published] {
        &self.own
    }

    /// The path to a peer, on InfiniBand, once it is known.
    pub(crate) fn path(&self, peer: u32) -> Option<&Path> {
        self.paths.as_ref()?.get(peer)
    }

    /// Why paths are assumed, on InfiniBand, where nothing answers requests for them.
    pub(crate) fn reason_of_assumption(&self) -> Option<&str> {
        self.paths.as_ref()?.reason()
    }

    /// Takes a path that the resolver of addresses gave.
    pub(crate) fn give_path(&mut self, record: PathRecord) {
        if let Some(paths) = &mut self.paths {
            paths.give(record);
        }
    }

    /// The next peer whose path has become known, with the code of its MTU, where it has one.
    pub(crate) fn next_path(&mut self) -> Option<(u32, Option<u8>)> {
        let paths = self.paths.as_mut()?;
        let peer = paths.news()?;
        if let Some(way) = self.list.get_mut(&peer).filter(|way| !way.is_made) {
            way.asked = Time::ZERO;
            self.is_behind = true;
        }
        Some((peer, paths.get(peer).and_then(|path| path.mtu)))
    }

    /// Has something else answer requests for paths.
    #[cfg(test)]
    pub(crate) fn set_administration(&mut self, administration: Box<dyn crate::paths::Administration>) {
        let partition = 0xffff;
        self.paths = Some(Paths::new(
            Ok(administration),
            partition,
            self.marks.service_level,
        ));
    }

    /// Readable when the kernel knows another neighbour.
    pub(crate) fn news(&self) -> Option<&OwnedFd> {
        self.neighbours.news()
    }

    /// Whether frames to a peer are sent.
    pub(crate) fn is_made(&self, peer: u32) -> bool {
        self.list.get(&peer).is_some_and(|way| way.is_made)
    }

    /// Whether there is a peer of this number.
    pub(crate) fn is_known(&self, peer: u32) -> bool {
        self.list.contains_key(&peer)
    }

    /// Adds a peer, at a port with this LID, by the pair of GIDs that both ports use.
    pub(crate) fn add(&mut self, peer: u32, lid: u16, gids: GidPair) {
        let way = Way {
            lid,
            gids,
            is_made: false,
            asked: Time::ZERO,
        };
        self.list.insert(peer, way);
    }

    /// Whether the GIDs of all ways are those of the port as it is now.
    pub(crate) fn begin_at(&self, port: &Port) -> bool {
        let mut ways = self.list.values();
        ways.all(|way| {
            let ours = way.gids.ours;
            let mut usable = port.gids.usable.iter();
            ours == Gid([0; 16]) || usable.any(|entry| entry.published.gid == ours)
        })
    }

    /// Removes a peer.
    pub(crate) fn remove(&mut self, peer: u32, now: Time, tx: &mut impl SendsBy) {
        self.list.remove(&peer);
        if let Some(paths) = &mut self.paths {
            paths.remove(peer);
        }
        self.retire(peer, None, now, tx);
    }

    fn retire(&mut self, peer: u32, handle: Option<AddressHandle>, now: Time, tx: &mut impl SendsBy) {
        let before = tx.replace(peer, handle);
        self.retired.extend(before.map(|handle| (now + RETIRED, handle)));
    }

    /// Every way may be another one: they are made again, one after the other.
    pub(crate) fn doubt(&mut self) {
        if let Some(paths) = &mut self.paths {
            paths.doubt();
        }
        self.list
            .values_mut()
            .for_each(|way| (way.is_made, way.asked) = (false, Time::ZERO));
    }

    /// A pass begins: a few handles may be made in it. Whether ways were left by the last one.
    pub(crate) fn begin_pass(&mut self, now: Time) -> bool {
        self.left = HANDLES;
        if let Some(paths) = &mut self.paths {
            paths.look(now);
        }
        self.is_behind
    }

    /// A peer does not answer over its path.
    pub(crate) fn distrust(&mut self, peer: u32) {
        let is_given = |paths: &mut Paths| paths.distrust(peer);
        if self.paths.as_mut().is_some_and(is_given)
            && let Some(way) = self.list.get_mut(&peer)
        {
            (way.is_made, way.asked) = (false, Time::ZERO);
        }
    }

    /// Whether ways were left for the next pass.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Makes ways that are not made, a few at a time, and lets go of handles that are not used any more.
    pub(crate) fn look(&mut self, now: Time, port: &Port, tx: &mut impl SendsBy) {
        self.retired.retain(|(until, _)| now < *until);
        let known = self.neighbours.read();
        let is_due = |way: &Way| {
            let hop = || known.iter().any(|ip| Some(*ip) == way.ip());
            !way.is_made && (way.asked == Time::ZERO || now >= way.asked + AGAIN || hop())
        };
        let due = self.list.iter().filter(|(_, way)| is_due(way));
        let due: Vec<u32> = due.map(|(peer, _)| *peer).take(AT_A_TIME + 1).collect();
        self.is_behind = due.len() > AT_A_TIME;
        for peer in due.into_iter().take(AT_A_TIME) {
            self.make(peer, now, port, tx);
        }
    }

    /// Makes the handle of a peer, if nothing has to be waited for, and there were not too many in this pass.
    pub(crate) fn make(&mut self, peer: u32, now: Time, port: &Port, tx: &mut impl SendsBy) {
        if self.left == 0 {
            self.is_behind = true;
            return;
        }
        let Some(way) = self.list.get_mut(&peer) else {
            return;
        };
        way.asked = now;
        let ip = way.ip();
        let ends = Ends {
            lid: way.lid,
            ours: way.gids.ours,
            theirs: way.gids.theirs,
        };
        let wanted = self.paths.as_mut();
        match wanted.map(|paths| paths.want(peer, ends, now, &mut self.left)) {
            None | Some(Wanted::Known) => {}
            Some(Wanted::Requested) => return,
            Some(Wanted::Later) => {
                (way.asked, self.is_behind) = (Time::ZERO, true);
                return;
            }
        }
        let Some(attributes) = self.attributes(peer, port) else {
            return;
        };
        if !self.neighbours.is_ready(port, ip) {
            return;
        }
        let Some(domain) = &self.domain else { return };
        self.left -= 1;
        if let Ok(handle) = AddressHandle::new(domain, attributes) {
            self.list.entry(peer).and_modify(|way| way.is_made = true);
            self.retire(peer, Some(handle), now, tx);
        }
    }

    /// Where frames to a peer go, by the port's table as it is now; `None` while our GID is not in it.
    pub(crate) fn attributes(&self, peer: u32, port: &Port) -> Option<AhAttr> {
        let way = self.list.get(&peer)?;
        let mut to = AhAttr::zeroed();
        (to.dlid, to.sl, to.port_num) = (way.lid, self.marks.service_level, port.number);
        let path = self.path(peer);
        let is_routed = path.is_some_and(|path| path.hops > 1);
        if let Some(path) = path {
            (to.dlid, to.sl, to.static_rate) = (path.lid, path.service_level, path.rate);
        }
        if (port.needs_route() || is_routed) && way.gids.theirs != Gid([0; 16]) {
            let ours = (way.gids.ours, way.gids.kind);
            let mut usable = port.gids.usable.iter();
            let entry = usable.find(|entry| (entry.published.gid, entry.published.kind) == ours)?;
            to.is_global = 1;
            to.grh.dgid.0 = way.gids.theirs.0;
            to.grh.sgid_index = entry.index;
            to.grh.hop_limit = HOPS;
            to.grh.traffic_class = self.marks.traffic_class;
            if let Some(path) = path.filter(|_| is_routed) {
                (to.grh.hop_limit, to.grh.flow_label) = (path.hops, path.flow_label);
                to.grh.traffic_class = path.traffic_class;
            }
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

/// What finds paths from a port of InfiniBand.
fn paths(domain: &Domain, port: &Port, marks: Marks) -> Option<Paths> {
    if port.link != Link::InfiniBand {
        return None;
    }
    let (_, partition) = port.partition.unwrap_or_default();
    Some(Paths::of_port(
        domain.device(),
        port.number,
        partition,
        marks.service_level,
    ))
}

/// The GIDs that a port publishes.
pub(crate) fn published(port: &Port) -> Vec<Published> {
    let usable = port.gids.usable.iter().take(gid::PUBLISHED);
    usable.map(|entry| entry.published).collect()
}
