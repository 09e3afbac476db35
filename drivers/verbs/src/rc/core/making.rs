//! The making of connections.

use std::sync::Arc;

use doorbell_fabric::event::{DownReason, EventKind, Life};

use super::{Core, PROOF_MOST, Stage, Step};
use crate::error::VerbsError;
use crate::rc::hello::{FEWEST_CREDITS, Hello, Route};
use crate::rc::link::{DEPTH, FIRST_CREDITS, LINE, Link, State};
use crate::sys::{Poster, Registered, ReliablePair, ReliableSizes};

impl Core {
    /// Makes our end of a connection, which receives nothing yet; what the other end needs for it. One
    /// that was made and not connected is given up.
    ///
    /// # Errors
    /// If the system refuses a step, or there are no slots to promise.
    pub(crate) fn prepare(&mut self, index: u32) -> Result<Hello, VerbsError> {
        self.discard(index);
        self.begin_with(index);
        self.slots.refill(true);
        if self.slots.unpromised() < FIRST_CREDITS {
            self.slots.grow()?;
        }
        let credits = self.slots.unpromised().min(FIRST_CREDITS);
        let (Some(device), Some(queue), Some(pool)) = (&self.device, self.slots.queue(), self.pool.memory())
        else {
            return Err(VerbsError::NoDevice {
                device: "it".to_owned(),
                reason: "it is gone".to_owned(),
            });
        };
        let nonsense = |what: &str| VerbsError::Nonsense {
            device: device.open.name().to_owned(),
            what: what.to_owned(),
        };
        if self.peers[index as usize].link.is_some() {
            return Err(nonsense("the former connection to this peer is not over"));
        }
        if credits < FEWEST_CREDITS {
            return Err(nonsense("no receive slots left to promise"));
        }
        let line = index as usize * LINE;
        let slice = device.lines.memory().slice(line, LINE);
        let slice = slice.ok_or_else(|| nonsense("a peer without a line"))?;
        let page = Registered::written(&device.domain, slice)?;
        let sizes = ReliableSizes {
            sends: DEPTH,
            inline: self.sizes.inline,
            pieces: self.sizes.pieces,
        };
        let pair = ReliablePair::new(queue, (&device.sent, &device.received), sizes)?;
        let mut psn = [0; 4];
        // Without random numbers, late packets are distinguished by the queue pair's number alone.
        let _ = getrandom::fill(&mut psn);
        let hello = Hello {
            pair: pair.number(),
            psn: u32::from_ne_bytes(psn) >> 8,
            credits: credits as u32,
            slot: self.sizes.slot as u32,
            page: (page.memory().address() as u64, page.remote_key()),
        };
        let memory = [Arc::clone(pool), Arc::clone(&device.lines)];
        let poster = Poster::new(pair, DEPTH, memory);
        let place = (page, Arc::clone(&device.lines), line);
        let link = Link::new(poster, hello, place, self.port, self.now)?;
        self.slots.promise(credits);
        self.peers[index as usize].link = Some(Box::new(link));
        Ok(hello)
    }

    /// Gives up a connection that is not up: no layer above has seen it, and what waits goes on waiting.
    pub(crate) fn discard(&mut self, index: u32) {
        let link = &mut self.peers[index as usize].link;
        let is_begun = |link: &mut Box<Link>| matches!(link.state, State::Made | State::Receiving);
        if let Some(link) = link.take_if(is_begun) {
            self.let_go_of(index, link);
        }
    }

    /// Nothing of a connection is waited for any more. Its queue pair stays in ERR until all that was
    /// received is taken: some devices drop what one has received when it is destroyed, and slots with it.
    pub(super) fn let_go_of(&mut self, index: u32, mut link: Box<Link>) {
        link.sever();
        self.drop_ring(index);
        self.by_pair.remove(link.ours.pair);
        self.under_way -= link.under_way();
        // Their completions may come until it is destroyed.
        self.has_stale = true;
        self.settling += link.promised();
        if link.may_hold_slot() {
            self.slots.doubt_one();
            self.stats.doubtful += 1;
        }
        self.steps.retain(|(peer, _)| *peer != index);
        self.leaving.push(*link);
        self.left_by = self.inbox.fetched + self.sizes.receives.1 as u64;
    }

    /// The partition is at another place of the table: connections that name it by the old one are over.
    pub(crate) fn set_partition(&mut self, index: u16) {
        self.port.1 = index;
        // Those that are made and not connected are in no table yet.
        (0..self.peers.len() as u32).for_each(|peer| self.end(peer, DownReason::Abandoned));
    }

    /// Connects our end to the other one: it receives from now on.
    ///
    /// # Errors
    /// Why the connection cannot be: [`DownReason::Hostile`] where the other end states what cannot be,
    /// [`DownReason::Resources`] where the system refuses it.
    pub(crate) fn connect(
        &mut self,
        index: u32,
        theirs: &Hello,
        route: &Route,
        life: Life,
    ) -> Result<(), DownReason> {
        let peer = &mut self.peers[index as usize];
        let Some(link) = peer.link.as_mut().filter(|link| link.state == State::Made) else {
            return Err(DownReason::Resources);
        };
        if !theirs.is_possible(self.sizes.slot) {
            return Err(DownReason::Hostile);
        }
        if link.connect(theirs, route, self.sizes.retries).is_err() {
            return Err(DownReason::Resources);
        }
        peer.life = life;
        self.by_pair.insert(link.ours.pair, index);
        Ok(())
    }

    /// Sends what proves that messages pass, short ones and those of the path MTU.
    pub(crate) fn prove(&mut self, index: u32, mtu: usize) {
        let (at, now) = (self.sizes.peers * LINE, self.now);
        let mtu = mtu.min(PROOF_MOST).min(self.sizes.slot);
        if let Some(link) = &mut self.peers[index as usize].link {
            let posted = link.prove(at, mtu, now);
            self.book(index, posted);
        }
    }

    /// A request of a connection that is not up has ended.
    #[cold]
    pub(super) fn proved(&mut self, index: u32) {
        if let Some(link) = &mut self.peers[index as usize].link {
            while let Some(size) = link.passed() {
                self.steps.push_back((index, Step::Passed(size)));
            }
        }
    }

    /// The other end receives, too: what waits may be sent, and the peer is up.
    pub(crate) fn ready(&mut self, index: u32) {
        let now = self.now;
        let peer = &mut self.peers[index as usize];
        if let Some(link) = &mut peer.link
            && link.state == State::Receiving
        {
            link.state = State::Up;
            link.posted_at = now;
            (peer.stage, peer.is_wanted) = (Stage::Open, false);
            peer.live_at = self.live.len() as u32;
            self.live.push(index);
            let life = peer.life;
            self.report(index, EventKind::PeerUp, life);
            self.mark_dirty(index);
            // What proved the connection took credits.
            self.mark_owed(index);
            self.one_sided_up(index);
        }
    }
}
