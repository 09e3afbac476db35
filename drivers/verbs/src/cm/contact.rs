//! All peers of a rail, and what the rail requests of their contact.

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::gid::{Link, share_partition};
use doorbell_fabric::message::{Caller, Incarnation, PeerIndex};
use doorbell_fabric::strangers::{self, Strangers};
use doorbell_fabric::time::Time;
use doorbell_inet::{PeerNumbers, put_peer};
use rustc_hash::FxHashMap;

use super::counts::ContactCounts;
use super::deadlines::Deadlines;
use super::event::{Attempt, Event, Farewell};
use super::key::{ContactKey, End};
use super::mtu::Mtu;
use super::peer::{Effort, Peer, Phase, Remote};
use crate::address::PortAddress;
use crate::gid;
use crate::name::Service;

/// How long an attempt may stand still that the peer began, or that only tries whether it is back.
const BRIEFLY: Duration = Duration::from_secs(2);
/// How long a farewell is repeated.
pub(super) const FAREWELL: Duration = Duration::from_secs(5);

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContactConfig {
    /// After this long without progress, a peer that was called is given up.
    pub(crate) patience: Duration,
    /// A size that has not passed after this does not pass.
    pub(crate) proof: Duration,
}

impl Default for ContactConfig {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(60),
            proof: Duration::from_secs(1),
        }
    }
}

/// Our end: what we have published, and who we are.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    pub(crate) address: PortAddress,
    pub(crate) incarnation: Incarnation,
}

/// The contact of a rail with all its peers.
#[derive(Clone, Debug)]
pub(crate) struct Contact {
    pub(super) config: ContactConfig,
    pub(super) local: Local,
    /// The bytes of our address.
    bytes: Vec<u8>,
    /// The MTU of our port.
    pub(super) mtu: Mtu,
    pub(super) key: Option<ContactKey>,
    /// Whether there are peers with keys of their own, so that a stranger's key is not known.
    pub(super) has_own_keys: bool,
    numbers: PeerNumbers,
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) ids: FxHashMap<u64, u32>,
    pub(super) strangers: Strangers,
    pub(super) deadlines: Deadlines,
    /// Peers to which a frame is to be sent.
    pub(super) queue: VecDeque<u32>,
    pub(super) events: VecDeque<Event>,
    pub(super) counts: ContactCounts,
    /// Peers that were forgotten.
    terms: u32,
    pub(super) is_closing: bool,
    pub(super) now: Time,
}

impl Contact {
    /// No peer is open yet. `None` where our own address has an MTU that there is not.
    pub(crate) fn new(config: ContactConfig, local: Local) -> Option<Self> {
        Some(Self {
            config,
            bytes: local.address.to_bytes(),
            mtu: Mtu::of(local.address.mtu)?,
            local,
            key: None,
            has_own_keys: false,
            numbers: PeerNumbers::default(),
            peers: Vec::new(),
            ids: FxHashMap::default(),
            strangers: Strangers::new(),
            deadlines: Deadlines::default(),
            queue: VecDeque::new(),
            events: VecDeque::new(),
            counts: ContactCounts::default(),
            terms: 0,
            is_closing: false,
            now: Time::ZERO,
        })
    }

    /// The key of the job, which holds for peers without one of their own.
    pub(crate) fn set_key(&mut self, key: &[u8; 32]) {
        self.key = Some(ContactKey::new(key));
    }

    /// Opens a peer by its published address; sends nothing. The same address and incarnation give the same
    /// peer.
    ///
    /// # Errors
    /// Why there can be no connection, as the predicate of "the address".
    pub(crate) fn open(
        &mut self,
        address: &[u8],
        incarnation: Incarnation,
        own_key: Option<&[u8; 32]>,
    ) -> Result<PeerIndex, &'static str> {
        let remote = self.remote(address)?;
        let own_key = own_key.map(ContactKey::new);
        let links = {
            let key = own_key.as_ref().or(self.key.as_ref());
            self.links(key.ok_or("needs a key, and none is set")?, address, incarnation)
        };
        let known = self.ids.get(&links[1]).copied();
        let stays = |index: &u32| {
            self.peers[*index as usize]
                .as_ref()
                .is_some_and(|peer| !peer.leaving)
        };
        if let Some(known) = known.filter(stays) {
            return Ok(PeerIndex(known));
        }
        let mut peer = Peer::new(incarnation, links, remote, self.terms);
        self.has_own_keys |= own_key.is_some();
        peer.key = own_key.map(Box::new);
        let number = self.numbers.take(|_| true);
        self.reserve();
        put_peer(&mut self.peers, number, Some(peer));
        self.ids.insert(links[1], number);
        self.strangers.forget(links[1]);
        Ok(PeerIndex(number))
    }

    /// Room for one more, by a quarter of what there is.
    fn reserve(&mut self) {
        let length = self.peers.len();
        if length == self.peers.capacity() {
            self.peers.reserve_exact((length / 4).max(16));
        }
    }

    /// Reads an address, and judges whether there can be a connection.
    fn remote(&self, address: &[u8]) -> Result<Remote, &'static str> {
        let to = PortAddress::parse(address, Service::Connections)?;
        let ours = &self.local.address;
        if to.link != ours.link {
            return Err("is of a port of InfiniBand, and the other one of Ethernet");
        }
        if to.link == Link::InfiniBand && !share_partition(ours.partition, to.partition) {
            return Err("is in another partition, or both are limited members of theirs");
        }
        let gids = gid::pair(to.link, &ours.gids, &to.gids);
        let gids = gids.ok_or("has no GID of one kind and family with one of ours")?;
        let mtu = Mtu::of(to.mtu).ok_or("has an MTU that there cannot be")?;
        Ok(Remote::new(&to, mtu, gids))
    }

    /// The ids of what we send to a peer, and of what it sends.
    fn links(&self, key: &ContactKey, address: &[u8], incarnation: Incarnation) -> [u64; 2] {
        let (us, them) = (
            End(&self.bytes, self.local.incarnation),
            End(address, incarnation),
        );
        [key.link(us, them), key.link(them, us)]
    }

    /// Our epoch as a process: peers pass it to `open`.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.local.incarnation
    }

    /// By which name the peer at this address calls, if it has no key of its own.
    pub(crate) fn caller(
        &self,
        address: &[u8],
        incarnation: Incarnation,
        own_key: Option<&[u8; 32]>,
    ) -> Option<Caller> {
        let own_key = own_key.map(ContactKey::new);
        let key = own_key.as_ref().or(self.key.as_ref())?;
        Some(strangers::name(self.links(key, address, incarnation)[1]))
    }

    /// The next that has called and is not open.
    #[inline]
    pub(crate) fn stranger(&mut self) -> Option<Caller> {
        self.strangers.report()
    }

    /// Where a peer's frames go.
    pub(crate) fn remote_of(&self, peer: PeerIndex) -> Option<&Remote> {
        self.peers.get(peer.index())?.as_ref().map(|peer| &peer.remote)
    }

    /// Whether there is something to do or to know.
    pub(crate) fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next thing to do or to know.
    pub(crate) fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the totals so far.
    pub(crate) fn counts(&self) -> &ContactCounts {
        &self.counts
    }

    /// First use of a peer: it is called until it answers, or patience ends.
    pub(crate) fn call(&mut self, peer: PeerIndex, now: Time) {
        self.want(peer, now, self.config.patience, true);
    }

    /// Tries whether a peer that is down is back: a few calls, without a report where it is not.
    pub(crate) fn revive(&mut self, peer: PeerIndex, now: Time) {
        self.want(peer, now, BRIEFLY, false);
    }

    fn want(&mut self, index: PeerIndex, now: Time, bears: Duration, wanted: bool) {
        self.now = now;
        let Some(peer) = self.peer(index.0) else {
            return;
        };
        if peer.over && wanted {
            let attempt = peer.attempt(index.0);
            self.events.push_back(Event::Down(attempt, DownReason::Closed));
            return;
        }
        if peer.over || peer.leaving {
            return;
        }
        peer.refusal = None;
        if peer.phase == Phase::Down {
            self.start(index.0, bears);
        }
        let effort = self.peer(index.0).and_then(|peer| peer.effort.as_mut());
        if let Some(effort) = effort.filter(|_| wanted) {
            (effort.wanted, effort.bears) = (true, effort.bears.max(bears));
        }
    }

    /// The peer called, or is called.
    pub(super) fn start(&mut self, index: u32, bears: Duration) {
        if self.is_closing {
            return;
        }
        let effort = Effort::new(self.now, bears, self.mtu);
        if let Some(peer) = self.peer(index) {
            peer.effort = Some(Box::new(effort));
            self.begin(index);
        }
    }

    /// The peer called.
    pub(super) fn start_called(&mut self, index: u32) {
        self.start(index, BRIEFLY);
        if let Some(way) = self.under_way(index) {
            way.effort.called_by_peer = true;
        }
    }

    /// Gives up the connection, or what is under way, without a report.
    pub(crate) fn abandon(&mut self, peer: PeerIndex, now: Time) {
        self.now = now;
        if self.phase(peer.0) > Phase::Down {
            self.finish(peer.0, None, Farewell::Abandoned);
        }
    }

    /// The queue pairs of an attempt have failed, or the connection has.
    pub(crate) fn died(&mut self, attempt: Attempt, reason: DownReason, now: Time) {
        self.now = now;
        let index = attempt.peer.0;
        if !self.is_present(attempt) {
            return;
        }
        if let Some(peer) = self.peer(index).filter(|_| reason == DownReason::Hostile) {
            peer.over = true;
        }
        match self.phase(index) {
            Phase::Down | Phase::Resting => {}
            _ if reason == DownReason::Hostile => self.finish(index, Some(reason), Farewell::Abandoned),
            Phase::Up => self.finish(index, Some(reason), Farewell::Abandoned),
            _ if reason == DownReason::Resources => self.refuse_for_lack(index),
            Phase::Proving if reason == DownReason::Silent => self.fall_or_rest(index),
            _ => self.rest(index),
        }
    }

    /// Forgets a peer, to which a farewell is sent. Its number is free at [`Event::Released`].
    pub(crate) fn forget(&mut self, peer: PeerIndex, now: Time) {
        self.now = now;
        let index = peer.0;
        let Some(entry) = self.peer(index).filter(|entry| !entry.leaving) else {
            return;
        };
        entry.leaving = true;
        let was_down = entry.phase == Phase::Down;
        self.terms = self.terms.wrapping_add(1);
        if !was_down {
            self.finish(index, None, Farewell::Closed);
        } else if !self.says_closed(index) {
            self.release(index);
        }
    }

    /// Reports to a peer without a connection that none follows. `false`: it needs no report.
    fn says_closed(&mut self, index: u32) -> bool {
        let Some(peer) = self.peer(index) else {
            return false;
        };
        peer.farewell = Farewell::Closed;
        if !peer.heard || peer.over {
            return false;
        }
        self.bid_farewell(index);
        true
    }

    /// Ends everything, with a farewell to each peer in contact. Whether all of them know, or had the time.
    pub(crate) fn close(&mut self, now: Time) -> bool {
        self.now = now;
        if !std::mem::replace(&mut self.is_closing, true) {
            for index in 0..self.peers.len() as u32 {
                if self.phase(index) > Phase::Down {
                    self.finish(index, None, Farewell::Closed);
                } else {
                    self.says_closed(index);
                }
            }
        }
        let is_done = |peer: &Peer| peer.effort.is_none() && !peer.pending.queued;
        self.peers.iter().flatten().all(is_done)
    }

    /// The MTU of our port is another one: connections with a greater one are made again.
    pub(crate) fn set_mtu(&mut self, mtu: Mtu, now: Time) {
        self.now = now;
        self.mtu = mtu;
        for index in 0..self.peers.len() as u32 {
            self.lessen(index, mtu);
        }
    }

    /// The path to a peer is known, and what it carries: a connection with a greater MTU is made again.
    pub(crate) fn set_path(&mut self, peer: PeerIndex, mtu: Option<Mtu>, now: Time) {
        self.now = now;
        if let Some(peer) = self.peer(peer.0) {
            peer.remote.path = mtu;
        }
        if let Some(mtu) = mtu {
            self.lessen(peer.0, mtu);
        }
    }

    /// No more passes to a peer than this.
    fn lessen(&mut self, index: u32, mtu: Mtu) {
        let now = self.now;
        let effort = self.peer(index).and_then(|peer| peer.effort.as_ref());
        let Some(effort) = effort.filter(|effort| effort.agreed() > mtu) else {
            return;
        };
        let offer = effort.offer.min(mtu);
        match self.phase(index) {
            Phase::Down | Phase::Resting => {}
            // Nothing was offered yet.
            Phase::Making => {
                if let Some(effort) = self.peer(index).and_then(|peer| peer.effort.as_mut()) {
                    effort.offer = offer;
                }
            }
            Phase::Up => {
                self.finish(index, Some(DownReason::Abandoned), Farewell::Abandoned);
                self.call(PeerIndex(index), now);
            }
            _ => self.renew(index),
        }
    }

    /// The rail's queue pair of contact is another one: what is under way begins again, and names it.
    pub(crate) fn restart(&mut self, now: Time) {
        self.now = now;
        for index in 0..self.peers.len() as u32 {
            match self.phase(index) {
                Phase::Down | Phase::Resting | Phase::Up => {}
                _ => self.renew(index),
            }
        }
    }

    /// Has a peer's calls judged by another pair of GIDs than its rail uses.
    #[cfg(test)]
    pub(crate) fn mistake_gids(&mut self, index: PeerIndex) {
        if let Some(peer) = self.peer(index.0) {
            peer.remote.gids.theirs.0[15] ^= 0x80;
        }
    }

    pub(super) fn peer(&mut self, index: u32) -> Option<&mut Peer> {
        self.peers.get_mut(index as usize)?.as_mut()
    }

    pub(super) fn phase(&self, index: u32) -> Phase {
        let peer = self.peers.get(index as usize).and_then(Option::as_ref);
        peer.map_or(Phase::Down, |peer| peer.phase)
    }

    /// Whether an answer of the rail's is about what is under way.
    pub(super) fn is_present(&self, attempt: Attempt) -> bool {
        let peer = self.peers.get(attempt.peer.index()).and_then(Option::as_ref);
        peer.is_some_and(|peer| peer.ours == attempt.epoch)
    }

    /// A peer that was forgotten needs nothing any more.
    pub(super) fn release(&mut self, index: u32) {
        let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        // It may have been opened again meanwhile, under another number.
        if self.ids.get(&peer.from) == Some(&index) {
            self.ids.remove(&peer.from);
        }
        self.queue.retain(|queued| *queued != index);
        self.numbers.free(index);
        self.events.push_back(Event::Released(PeerIndex(index)));
    }
}
