//! Sending: messages are accepted and posted, and what has ended is given back.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::{Body, MsgId, Refused};

use super::{BATCH, Core, Stage, reason_of};
use crate::rc::link::{DEPTH, Ended, Posted, State};
use crate::rc::outbox::{Far, Outbox};
use crate::rc::record::Event;
use crate::sys::{Wc, numbers};

/// A list of peers, each at most once, by a mark of its own.
macro_rules! enlist {
    ($core:ident, $list:ident, $mark:ident, $index:expr) => {
        let index = $index;
        if let Some(peer) = $core.peers.get_mut(index as usize)
            && !std::mem::replace(&mut peer.$mark, true)
        {
            $core.$list.push(index);
        }
    };
}

impl Core {
    /// Accepts a message.
    #[inline]
    pub(crate) fn accept(&mut self, index: u32, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        let result = self.try_accept(index, head, body);
        if result != Err(Refused::Full) {
            return result;
        }
        // Perhaps something has ended meanwhile.
        self.reap();
        self.read_page(index);
        self.release(index);
        if self.pool.is_low() {
            self.read_pages();
        }
        self.try_accept(index, head, body)
    }

    #[inline]
    fn try_accept(&mut self, index: u32, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        let peer = self.peers.get_mut(index as usize).ok_or(Refused::PeerDown)?;
        if peer.stage == Stage::Down {
            return Err(Refused::PeerDown);
        }
        let is_ending = peer
            .link
            .as_ref()
            .is_some_and(|link| matches!(link.state, State::Ending(..)));
        if is_ending {
            return Err(Refused::Full);
        }
        let far = match body {
            Body::Region(slice) if slice.len() >= self.sizes.zero_copy => {
                self.memory.regions.place(slice).map(|place| Far {
                    place,
                    slice: (*slice).clone(),
                })
            }
            _ => None,
        };
        let is_far = far.is_some();
        let Some(outbox) = &mut peer.outbox else {
            return self.accept_first(index, head, body);
        };
        outbox.accept(&mut self.pool, head, body, far)?;
        let id = MsgId(peer.base + outbox.accepted);
        self.stats.sent += 1;
        self.stats.zero_copy += u64::from(is_far);
        if peer.stage == Stage::Fresh && !std::mem::replace(&mut peer.is_wanted, true) {
            self.wanted.push_back(index);
        }
        self.mark_dirty(index);
        Ok(id)
    }

    /// Accepts a peer's first message.
    #[cold]
    fn accept_first(&mut self, index: u32, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        self.begin_with(index);
        self.peers[index as usize].outbox = Some(Box::new(Outbox::new()));
        self.try_accept(index, head, body)
    }

    #[inline]
    pub(crate) fn mark_dirty(&mut self, index: u32) {
        enlist!(self, dirty, is_dirty, index);
    }

    #[inline]
    pub(crate) fn mark_owed(&mut self, index: u32) {
        enlist!(self, owed, is_owed, index);
    }

    /// Posts everything that waits and may be sent: one doorbell for each peer.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.flush_one_sided();
        while let Some(index) = self.dirty.pop() {
            self.post_controls(index);
            let peer = &mut self.peers[index as usize];
            peer.is_dirty = false;
            let Some(outbox) = &mut peer.outbox else { continue };
            let Some(link) = &mut peer.link else {
                if !outbox.is_empty() {
                    enlist!(self, active, is_active, index);
                }
                continue;
            };
            let most = (self.entries - DEPTH).saturating_sub(self.under_way);
            let posted = link.post(outbox, &self.pool, most, self.now);
            let is_kept = !outbox.is_empty();
            self.stats.sends += posted.sends as u64;
            self.stats.asked += u64::from(posted.asks);
            self.stats.inline += posted.inline as u64;
            self.stats.coalesced += posted.messages.saturating_sub(posted.sends) as u64;
            self.stats.stalls += u64::from(posted.is_stalled);
            self.stats.ring += posted.ring as u64;
            self.book(index, posted);
            if is_kept {
                enlist!(self, active, is_active, index);
            }
        }
    }

    pub(crate) fn book(&mut self, index: u32, posted: Posted) {
        if posted.requests > 0 {
            self.under_way += posted.requests;
            self.stats.doorbells += 1;
            enlist!(self, busy, is_busy, index);
        }
        if posted.is_broken {
            self.end(index, DownReason::Resources);
        }
    }

    /// Takes the completions of sends.
    #[inline]
    pub(crate) fn reap(&mut self) {
        // A queue that is broken ends nothing: time ends its connections.
        while (self.under_way > 0 || self.has_stale)
            && let Some(device) = &self.device
            && let Ok(count) = device.sent.poll(&mut self.reaped)
        {
            for at in 0..count {
                let completion = self.reaped[at];
                self.complete(&completion);
            }
            if count < BATCH {
                self.has_stale = false;
                return;
            }
        }
    }

    /// One completion: of one in error, only its request, its status and its queue pair count.
    #[inline]
    fn complete(&mut self, completion: &Wc) {
        let Some(&index) = self.by_pair.get(&completion.qp_num) else {
            self.stats.stale += 1;
            return;
        };
        let peer = &mut self.peers[index as usize];
        let Some(link) = &mut peer.link else { return };
        let is_error = completion.status != numbers::SUCCESS;
        match link.ended(completion.wr_id, is_error, self.now) {
            Ended::Nonsense => self.stats.nonsense += 1,
            Ended::Well(count) => {
                let is_up = link.state != State::Receiving;
                self.under_way -= count;
                if is_up {
                    self.release_together(index);
                } else {
                    self.proved(index);
                }
            }
            Ended::Badly(count) => {
                self.under_way -= count;
                self.failed(index, completion);
            }
        }
    }

    #[cold]
    fn failed(&mut self, index: u32, completion: &Wc) {
        let (status, vendor) = (completion.status, completion.vendor_err);
        self.record(Some(index), Event::Failed { status, vendor });
        self.stats.retries += u64::from(status == numbers::RETRY_EXC_ERR);
        self.stats.flushed += u64::from(status == numbers::WR_FLUSH_ERR);
        self.stats.rnr += u64::from(status == numbers::RNR_RETRY_EXC_ERR);
        self.end(index, reason_of(status));
    }

    /// Gives back what has ended and was taken, together with others unless something needs it now.
    #[inline]
    pub(crate) fn release_together(&mut self, index: u32) {
        let outbox = &self.peers[index as usize].outbox;
        if self.pool.is_low() || outbox.as_ref().is_some_and(|outbox| outbox.is_pressed()) {
            self.release(index);
        }
    }

    /// Gives back what has ended and was taken; what waits for room goes on.
    pub(super) fn release(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        if let (Some(outbox), Some(link)) = (&mut peer.outbox, &peer.link) {
            outbox.release(&mut self.pool, link.known.consumed, link.done());
            if outbox.waits() {
                self.mark_dirty(index);
            }
        }
    }
}
