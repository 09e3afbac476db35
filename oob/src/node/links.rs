//! Events of the transports.

use doorbell_fabric::time::Time;

use super::codec::{MOVED, Writer};
use super::{Key, Node};
use crate::bytes::Bytes;
use crate::name::{Epoch, Name};
use crate::path_choice::{Doing, Link, LinkKey, bar};
use crate::transport::{Attempt, Command, Event, LinkId, Loss, ModuleId, Refusal, TransportId};
use crate::wire::{Head, Lane};

impl Node {
    /// Handles an event of a transport.
    pub fn handle(&mut self, now: Time, transport: TransportId, event: Event) {
        self.at(now);
        match event {
            Event::ModuleUp { module, addresses } => {
                let before = self.modules.insert((transport, module), addresses.clone());
                if before.as_ref() != Some(&addresses) {
                    self.moved();
                }
            }
            Event::ModuleDown { module } => self.module_down(transport, module),
            Event::Paths { peer, paths } => {
                let ix = self.peer(peer);
                self.hop(ix).set_paths(transport, paths);
                self.wake(ix);
                self.touch(ix);
            }
            Event::Connected {
                link,
                module,
                peer,
                epoch,
                attempt,
            } => self.connected((transport, link), module, peer, epoch, attempt),
            Event::Refused { attempt, why } => self.refused(attempt, why),
            Event::Sent { link, frames } => self.sent((transport, link), frames),
            Event::Received { link, frame } => self.arrived((transport, link), &frame),
            Event::Lost { link, .. } => self.lost((transport, link)),
        }
        self.settle();
    }

    /// Sends our new addresses to every peer with a link to us, for use when the present path fails. Others
    /// look them up when they need them.
    fn moved(&mut self) {
        let talks = |peer: &super::Peer| peer.hop.as_ref().is_some_and(|hop| !hop.links.is_empty());
        let peers = self.peers.iter().enumerate().filter(|(_, peer)| talks(peer));
        let peers: Vec<u32> = peers.map(|(ix, _)| ix as u32).collect();
        if peers.is_empty() || self.ended {
            return;
        }
        let mut writer = Writer::default();
        self.contact().encode(&mut writer.0);
        let body = writer.done();
        for ix in peers {
            self.send_control(ix, MOVED, body.clone(), None);
        }
    }

    fn module_down(&mut self, transport: TransportId, module: ModuleId) {
        self.modules.remove(&(transport, module));
        for peer in &mut self.peers {
            if let Some(hop) = &mut peer.hop {
                hop.module_down(transport, module);
            }
        }
        // Its links will be reported lost one by one; until then they get no frames.
        let dead = |link: &(&LinkKey, &Link)| link.0.0 == transport && link.1.module == module;
        let links: Vec<LinkKey> = self.links.iter().filter(dead).map(|(key, _)| *key).collect();
        links.into_iter().for_each(|key| self.lost(key));
    }

    fn connected(
        &mut self,
        key: LinkKey,
        module: ModuleId,
        name: Name,
        epoch: Epoch,
        attempt: Option<Attempt>,
    ) {
        let ix = self.peer(name);
        if self.ended || !self.is_process(name) || name == self.config.name || epoch < self.of(ix).epoch {
            let why = if self.ended {
                Loss::Finished
            } else {
                Loss::Protocol
            };
            return self.command(key.0, Command::Close { link: key.1, why });
        }
        self.meet(ix, epoch);
        let job = Some(self.config.name.job).filter(|&job| job == name.job);
        let link = Link {
            peer: ix,
            module,
            epoch,
            job,
            sent: 0,
            given: std::collections::VecDeque::new(),
            bytes: 0,
        };
        self.links.insert(key, link);
        let (now, links) = (self.now, &self.links);
        let hop = self.peers[ix as usize].hop.get_or_insert_default();
        hop.connected(now, key, attempt, links);
        self.book(ix);
        self.pump_hop(ix);
        self.touch(ix);
    }

    fn refused(&mut self, attempt: Attempt, why: Refusal) {
        let trying = |peer: &super::Peer| {
            let hop = peer.hop.as_ref();
            hop.is_some_and(|hop| matches!(hop.doing, Doing::Trying(own, ..) if own == attempt))
        };
        let Some(ix) = self.peers.iter().position(trying) else {
            return;
        };
        let ix = ix as u32;
        let counts = !matches!(why, Refusal::Yielded | Refusal::Cancelled);
        let barred = if why.is_transient() {
            Time::ZERO
        } else {
            self.now + bar(&self.config)
        };
        let (now, config) = (self.now, self.config.clone());
        let hop = self.hop(ix);
        hop.refused(attempt, counts, barred);
        if counts && !hop.links.is_empty() {
            hop.missed(now, &config);
        }
        self.reroute(ix);
        self.wake(ix);
    }

    /// Sends what waits for a peer that cannot be called directly along the tree, if that leads there.
    fn reroute(&mut self, ix: u32) {
        let linked = self.of(ix).hop.as_ref().is_some_and(|hop| !hop.links.is_empty());
        if linked || self.of(ix).neighbour || !self.has_tree() || self.is_direct(ix) {
            return;
        }
        if self.route(ix, false).is_none_or(|hop| hop == ix) {
            return;
        }
        let hop = self.hop(ix);
        hop.relay_bytes = 0;
        let (relay, waiting) = (std::mem::take(&mut hop.relay), std::mem::take(&mut hop.waiting));
        self.dirty.extend(waiting);
        relay.into_iter().for_each(|parcel| self.post_parcel(parcel));
    }

    fn sent(&mut self, key: LinkKey, frames: u64) {
        let Some(link) = self.links.get_mut(&key) else {
            return;
        };
        while link.sent < frames {
            let Some(parcel) = link.given.pop_front() else {
                break;
            };
            link.bytes -= parcel.frame.length();
            link.sent += 1;
        }
        let ix = link.peer;
        self.pump_hop(ix);
    }

    fn arrived(&mut self, key: LinkKey, frame: &Bytes) {
        let Some(link) = self.links.get(&key) else { return };
        let (ix, job) = (link.peer, link.job);
        match Head::read(frame, job, self.config.longest) {
            Ok((head, body)) if self.is_process(head.origin) && self.is_process(head.destination) => {
                if head.destination == self.config.name {
                    self.mine(&head, body);
                } else {
                    self.pass_on(ix, &head, body);
                }
            }
            _ => {
                self.counters.malformed += 1;
                let why = Loss::Protocol;
                self.command(key.0, Command::Close { link: key.1, why });
                self.lost(key);
            }
        }
    }

    /// Handles a lost link: unsent frames of others take another path, in order, and our own streams repeat
    /// what is not acknowledged.
    fn lost(&mut self, key: LinkKey) {
        let Some(link) = self.links.remove(&key) else {
            return;
        };
        let ix = link.peer;
        let (now, config) = (self.now, self.config.clone());
        let hop = self.hop(ix);
        hop.disconnected(now, key, &config);
        hop.relay_bytes = 0;
        let later = std::mem::take(&mut hop.relay);
        self.replay_via(key);
        self.counters.requeued += link.given.iter().filter(|parcel| !parcel.own).count() as u64;
        for parcel in link.given.into_iter().chain(later).filter(|parcel| !parcel.own) {
            self.post_parcel(parcel);
        }
        self.wake(ix);
    }

    /// Replays the unacknowledged messages of all streams that used this link.
    fn replay_via(&mut self, key: LinkKey) {
        let (now, config) = (self.now, &self.config);
        for (ix, peer) in self.peers.iter_mut().enumerate() {
            for lane in Lane::ALL {
                let Some(stream) = &mut peer.lanes[lane.index()] else {
                    continue;
                };
                if stream.via == Some(key) {
                    stream.via = None;
                    if !stream.tx.is_empty() {
                        stream.tx.replay(now, config);
                        self.dirty.insert((ix as u32, lane));
                    }
                }
            }
        }
    }

    pub(super) fn book(&mut self, ix: u32) {
        let at = match self.of(ix).hop.as_ref().map(|hop| hop.doing) {
            // Expired waits are handled when the peer is needed.
            Some(Doing::Resting(until) | Doing::Failed(until)) if until > self.now => until,
            _ => Time::NEVER,
        };
        let again = self.of(ix).hop.as_ref().map_or(Time::NEVER, |hop| hop.again);
        self.timers.set(Key::Hop(ix), at.min(again));
    }

    /// Closes all links to a peer.
    pub(super) fn close(&mut self, ix: u32, why: Loss) {
        let links = self.of(ix).hop.as_ref().map(|hop| hop.links.clone());
        for (transport, link) in links.unwrap_or_default() {
            self.command(transport, Command::Close { link, why });
            self.lost((transport, link));
        }
    }

    /// Returns the key of a link.
    #[must_use]
    pub fn link_to(&self, name: Name) -> Option<(TransportId, LinkId, ModuleId)> {
        let hop = self.of(*self.index.get(&name)?).hop.as_ref()?;
        let &key = hop.links.first()?;
        Some((key.0, key.1, self.links.get(&key)?.module))
    }
}
