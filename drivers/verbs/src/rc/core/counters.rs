//! The counters that both ends write each other, and what follows the messages of a poll.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::MsgId;

use super::{Core, ENOUGH, IDLE, Stage, enlist};
use crate::rc::destroyer::Over;
use crate::rc::link::State;
use crate::rc::record::Drop;

impl Core {
    /// Reads what the peer has written to our counter page.
    #[inline]
    pub(crate) fn read_page(&mut self, index: u32) {
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return;
        };
        let accepted = peer.accepted();
        let Some(link) = &mut peer.link else { return };
        if link.state != State::Up {
            return;
        }
        match link.read_page(accepted) {
            Ok(false) => {}
            Ok(true) => self.release_together(index),
            Err(_) => {
                self.drop_send(index, Drop::Page);
                self.end(index, DownReason::Hostile);
            }
        }
    }

    /// The last message of a peer that was taken.
    pub(crate) fn watermark(&mut self, index: u32) -> MsgId {
        self.read_page(index);
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return MsgId(0);
        };
        // What is left of a former connection is not taken, whatever a new one brings.
        if let Some(link) = &peer.link
            && !self.retired.contains_key(&index)
        {
            peer.passed = peer.passed.max(peer.base + link.known.consumed);
        }
        MsgId(peer.passed)
    }

    /// The number of the last message that was accepted for a peer.
    pub(crate) fn last_accepted(&self, index: u32) -> MsgId {
        let peer = self.peers.get(index as usize);
        MsgId(peer.map_or(0, |peer| peer.base + peer.accepted()))
    }

    /// What is left of former connections.
    pub(crate) fn reclaim(&mut self, index: u32, each: &mut dyn FnMut(MsgId, &[u8])) {
        for (number, message) in self.retired.remove(&index).unwrap_or_default() {
            each(MsgId(number), &message);
        }
    }

    /// What follows the messages of a poll.
    #[inline]
    pub(crate) fn after_poll(&mut self, found: bool) {
        self.slots.check();
        self.reap_one_sided();
        if found {
            self.idle = 0;
            if self.under_way >= ENOUGH {
                self.reap();
            }
            if self.is_low {
                self.tell(true);
            }
        } else {
            self.idle = self.idle.wrapping_add(1);
            if self.idle == 2 || self.idle.is_multiple_of(16) {
                self.after_idle_polls();
            }
        }
        self.flush();
    }

    /// Nothing has come for some polls: there is time for what ends here.
    fn after_idle_polls(&mut self) {
        self.reap();
        self.read_pages();
        // For an owner that polls and does nothing else.
        if self.idle.is_multiple_of(IDLE) {
            self.tell(false);
        }
    }

    /// Writes counters to the peers that wait for them; at leisure to all that do not know them.
    pub(crate) fn tell(&mut self, only_low: bool) {
        let mut at = 0;
        self.is_low = false;
        while let Some(&index) = self.owed.get(at) {
            let is_done = self.tell_one(index, only_low);
            let link = &self.peers[index as usize].link;
            self.is_low |= link.as_ref().is_some_and(|link| link.is_low());
            if is_done {
                self.owed.swap_remove(at);
                self.peers[index as usize].is_owed = false;
            } else {
                at += 1;
            }
        }
    }

    /// A peer does not know all of what was taken of it, or that it has used a credit.
    #[inline]
    pub(crate) fn mark_owed(&mut self, index: u32) {
        if let Some(peer) = self.peers.get_mut(index as usize) {
            enlist(&mut self.owed, &mut peer.is_owed, index);
        }
    }

    /// Writes its counters to a peer that does not know all of what was taken. It stays among those that get
    /// them later, where its queue has no room.
    pub(crate) fn acknowledge(&mut self, index: u32) {
        if self.peers.get(index as usize).is_some_and(|peer| peer.is_owed) {
            self.tell_one(index, false);
        }
    }

    /// Whether a peer does not know all of what was taken.
    pub(crate) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Grants more credits to a peer that waits for them soon, for the next head to bring: one that only
    /// looks and answers does not poll.
    pub(crate) fn grant_more(&mut self, index: u32) {
        if let Some(link) = &mut self.peers[index as usize].link {
            link.widen(&self.slots);
            self.stats.granted += link.grant(&mut self.slots);
        }
    }

    fn tell_one(&mut self, index: u32, only_low: bool) -> bool {
        let peer = &mut self.peers[index as usize];
        let Some(link) = &mut peer.link else { return true };
        if only_low && !link.is_low() {
            return false;
        }
        if only_low {
            link.widen(&self.slots);
        }
        self.stats.granted += link.grant(&mut self.slots);
        if link.promised() == 0 {
            // Slots that came back may wait for others to be posted with.
            if !self.slots.grow().unwrap_or(false) {
                self.slots.refill(true);
            }
            self.stats.granted += link.grant(&mut self.slots);
        }
        // What waits to be sent brings it, too.
        let brings_it = peer.outbox.as_ref().is_some_and(|outbox| outbox.waits());
        if !brings_it || !only_low {
            let posted = link.tell(self.now, self.under_way > self.entries / 4);
            let is_done = link.has_told() || link.state != State::Up;
            self.stats.told += posted.requests as u64;
            self.book(index, posted);
            return is_done;
        }
        self.mark_dirty(index);
        false
    }

    /// A send of a connection that is over was found: one of its promises ends.
    pub(crate) fn settle_one(&mut self) {
        if self.settling > 0 {
            self.settling -= 1;
            self.slots.redeem(1);
        }
    }

    pub(crate) fn read_pages(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.active.get(at) {
            self.read_page(index);
            self.release(index);
            let peer = &mut self.peers[index as usize];
            if peer.outbox.as_ref().is_none_or(|outbox| outbox.is_empty()) {
                peer.is_active = false;
                self.active.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Nothing more is there to be received: promises to former connections hold no more, and connections
    /// that are over are reported.
    #[inline]
    pub(crate) fn received_all(&mut self) {
        if !self.leaving.is_empty() {
            self.destroy_leaving();
        }
        self.slots.redeem(std::mem::take(&mut self.settling));
        if !self.ending.is_empty() {
            self.reap();
            self.finish_ending(u64::MAX);
        }
    }

    /// Whether queue pairs wait to be destroyed.
    #[inline]
    pub(crate) fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Destroys the queue pairs of connections that are over, where all completions of theirs are among
    /// those that were taken off the queue: this many in all.
    pub(crate) fn destroy_passed(&mut self, fetched: u64) {
        if self.has_leaving() && fetched >= self.left_by {
            self.destroy_leaving();
            self.slots.redeem(std::mem::take(&mut self.settling));
        }
    }

    /// Has the queue pairs of connections that are over be destroyed.
    #[cold]
    pub(crate) fn destroy_leaving(&mut self) {
        self.has_stale = true;
        for link in self.leaving.drain(..) {
            self.destroyer.take(Over::Messages(Box::new(link)));
        }
    }

    /// Whether everything that was accepted is taken, or cannot be.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.flush();
        self.reap();
        self.read_pages();
        let is_down = |index: &u32| self.peers[*index as usize].stage == Stage::Down;
        self.active.iter().all(is_down)
    }

    /// Whether something that was accepted for any peer is not posted.
    pub(crate) fn holds_back(&self) -> bool {
        let waits = |index: &u32| {
            let outbox = &self.peers[*index as usize].outbox;
            outbox.as_ref().is_some_and(|outbox| outbox.waits())
        };
        self.active.iter().any(waits)
    }
}
