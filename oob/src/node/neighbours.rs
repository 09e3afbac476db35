//! Neighbours: which peers need a link, and how to get one.

use super::{Key, Node};
use crate::config::Routing;
use crate::contact::Contact;
use crate::event::Event;
use crate::path_choice::{Doing, Step, bit};
use crate::transport::{Attempt, Command, TransportId};
use crate::wire::Lane;

impl Node {
    pub(super) fn learned(&mut self, contact: Contact) {
        if contact.name == self.config.name || !self.is_process(contact.name) {
            return;
        }
        let ix = self.peer(contact.name);
        if contact.epoch < self.of(ix).epoch {
            if contact.epoch.is_known() {
                return;
            }
        } else if contact.epoch.is_known() {
            self.meet(ix, contact.epoch);
        }
        let peer = self.of_mut(ix);
        if peer.contact.as_deref() == Some(&contact) {
            return;
        }
        peer.contact = Some(Box::new(contact));
        if let Some(hop) = &mut peer.hop {
            hop.asked = false;
        }
        self.acquaint(ix);
        self.wake(ix);
        self.touch(ix);
    }

    /// Passes a contact to the transports that have to know a process before it calls.
    fn acquaint(&mut self, ix: u32) {
        let config = self.config.clone();
        for (nth, transport) in config.transports.iter().enumerate() {
            let contact = self.of(ix).contact.as_ref().filter(|_| transport.mutual);
            let clause =
                contact.and_then(|contact| Some((contact.name, contact.clauses.get(&transport.name)?)));
            if let Some((peer, addresses)) = clause {
                let addresses = addresses.clone();
                self.command(TransportId(nth as u8), Command::Reach { peer, addresses });
            }
        }
    }

    /// Marks a peer as one that needs a lasting link, or not.
    pub(super) fn set_neighbour(&mut self, ix: u32, is: bool) {
        self.of_mut(ix).neighbour = is;
        self.allow(ix);
        if is {
            self.wake(ix);
        }
        self.touch(ix);
    }

    /// Whether a peer needs a link at all.
    fn is_wanted(&self, ix: u32) -> bool {
        let peer = self.of(ix);
        let waits = peer
            .hop
            .as_ref()
            .is_some_and(|hop| !hop.relay.is_empty() || !hop.waiting.is_empty());
        peer.neighbour || waits
    }

    /// Continues to get a link, where one is needed, or a better one.
    pub(super) fn wake(&mut self, ix: u32) {
        if self.ended {
            return;
        }
        let linked = self.of(ix).hop.as_ref().is_some_and(|hop| !hop.links.is_empty());
        if linked {
            self.allow(ix);
            self.request_paths(ix);
            let now = self.now;
            let step = self.of(ix).hop.as_ref().map(|hop| hop.better(now, &self.links));
            if let Some(Step::Connect(transport, module, addresses)) = step {
                self.connect(ix, transport, module, addresses);
            }
            self.book(ix);
        } else if self.is_wanted(ix) {
            self.pursue(ix);
        } else {
            self.book(ix);
        }
    }

    /// Allows calls: a peer that is not a neighbour in the tree is called only over transports that connect
    /// to all peers.
    fn allow(&mut self, ix: u32) {
        let mut direct = 0;
        for (nth, transport) in self.config.transports.iter().enumerate().take(32) {
            direct |= u32::from(transport.routing == Routing::Direct) << nth;
        }
        let allowed = if self.of(ix).neighbour { u32::MAX } else { direct };
        self.hop(ix).allowed = allowed;
    }

    pub(super) fn pursue(&mut self, ix: u32) {
        self.allow(ix);
        self.request_paths(ix);
        if self.hop(ix).awaited != 0 {
            // All transports answer at once; the paths known already may be worse.
            return self.book(ix);
        }
        let (now, config) = (self.now, self.config.clone());
        match self.hop(ix).pursue(now, &config) {
            Step::Nothing => self.book(ix),
            Step::Rest(_) => self.book(ix),
            Step::Connect(transport, module, addresses) => self.connect(ix, transport, module, addresses),
            Step::GiveUp => {
                self.book(ix);
                self.given_up(ix);
            }
        }
    }

    /// Requests paths to a peer from the transports, once per contact.
    fn request_paths(&mut self, ix: u32) {
        let Some(contact) = self.of(ix).contact.clone() else {
            return;
        };
        if std::mem::replace(&mut self.hop(ix).asked, true) {
            return;
        }
        for (nth, transport) in self.config.transports.clone().iter().enumerate() {
            if let Some(addresses) = contact.clauses.get(&transport.name) {
                let (peer, addresses) = (contact.name, addresses.clone());
                let transport = TransportId(nth as u8);
                self.hop(ix).awaited |= bit(transport);
                self.command(transport, Command::Reach { peer, addresses });
            }
        }
    }

    fn connect(
        &mut self,
        ix: u32,
        transport: TransportId,
        module: crate::transport::ModuleId,
        addresses: Vec<crate::contact::Address>,
    ) {
        let attempt = Attempt(self.number());
        self.counters.attempts += 1;
        self.hop(ix).doing = Doing::Trying(attempt, transport, module);
        let (peer, epoch) = (self.of(ix).name, self.of(ix).epoch);
        let deadline = self.now + self.config.connect;
        self.book(ix);
        self.command(
            transport,
            Command::Connect {
                attempt,
                peer,
                epoch,
                module,
                addresses,
                deadline,
            },
        );
    }

    pub(super) fn hop_due(&mut self, ix: u32) {
        let now = self.now;
        let hop = self.hop(ix);
        if !hop.links.is_empty() {
            if !matches!(hop.doing, Doing::Trying(..)) {
                hop.doing = Doing::Idle;
                hop.renew();
            }
            hop.retry_better(now);
        }
        self.wake(ix);
    }

    /// Handles a neighbour to which all paths have failed, over all transports.
    fn given_up(&mut self, ix: u32) {
        let rank = self.of(ix).name.rank;
        let ours = self.of(ix).name.job == self.config.name.job;
        let hop = self.hop(ix);
        hop.relay_bytes = 0;
        let relay = std::mem::take(&mut hop.relay);
        let waiting = std::mem::take(&mut hop.waiting);
        self.dirty.extend(waiting);
        if ours && self.routed.children.contains(&rank) {
            self.child_gone(rank);
        } else if ours && self.life.is_about(rank, self.routed.parent) {
            self.parent_gone(rank);
        }
        let name = self.of(ix).name;
        if !self.has_tree() && !self.of(ix).lost {
            // There is neither another path nor a process that could report one.
            self.mark_lost(ix);
        }
        for parcel in relay {
            if parcel.to != name {
                self.post_parcel(parcel);
            }
        }
    }

    /// Whether this peer can be reached directly, over a transport that connects to all peers.
    pub(super) fn is_direct(&self, ix: u32) -> bool {
        let peer = self.of(ix);
        let transports = self.config.transports.iter().enumerate();
        let mut direct = transports.filter(|(_, transport)| transport.routing == Routing::Direct);
        direct.any(|(nth, transport)| match (&peer.hop, &peer.contact) {
            (Some(hop), _) if hop.asked => {
                !matches!(hop.doing, Doing::Failed(_)) && hop.has_path(TransportId(nth as u8))
            }
            (_, Some(contact)) => contact
                .clauses
                .get(&transport.name)
                .is_some_and(|clause| !clause.is_empty()),
            _ => false,
        })
    }

    /// Reconsiders the streams to a peer whose path may have changed.
    pub(super) fn touch(&mut self, ix: u32) {
        for lane in Lane::ALL {
            if self.of(ix).lanes[lane.index()].is_some() {
                self.dirty.insert((ix, lane));
            }
        }
    }

    /// Reconsiders all streams.
    pub(super) fn touch_all(&mut self) {
        for ix in 0..self.peers.len() as u32 {
            self.touch(ix);
        }
    }

    /// Marks a peer as lost, and reports it once.
    pub(super) fn mark_lost(&mut self, ix: u32) {
        if std::mem::replace(&mut self.of_mut(ix).lost, true) {
            return;
        }
        let (peer, epoch) = (self.of(ix).name, self.of(ix).epoch);
        self.emit(Event::PeerLost { peer, epoch });
        for lane in Lane::ALL {
            self.fail(ix, lane, crate::event::Status::PeerLost);
        }
        self.timers.clear(Key::Stream(ix, Lane::User));
        self.review_all();
    }

    /// Marks a lost peer as alive again.
    pub(super) fn mark_back(&mut self, ix: u32) {
        if std::mem::replace(&mut self.of_mut(ix).lost, false) {
            let peer = self.of(ix).name;
            self.emit(Event::PeerBack { peer });
            self.plan_home(true);
        }
    }
}
