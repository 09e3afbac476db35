//! Sending: messages are accepted and posted, and what has ended is given back.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::{Body, MsgId, Refused};

use super::{BATCH, Core, Stage, enlist, reason_of};
use crate::rc::link::{DEPTH, Posted, State};
use crate::rc::outbox::{Far, Outbox};
use crate::rc::record::Event;
use crate::sys::{Wc, numbers};

impl Core {
    /// Accepts a message.
    #[inline(always)]
    pub(crate) fn accept(&mut self, index: u32, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        match self.try_accept(index, head, body) {
            Err(Refused::Full) => self.accept_again(index, head, body),
            result => result,
        }
    }

    /// Accepts a message for which there was no room: perhaps something has ended meanwhile.
    #[cold]
    fn accept_again(&mut self, index: u32, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        self.reap();
        self.read_page(index);
        self.release(index);
        if self.pool.is_low() {
            self.read_pages();
        }
        self.try_accept(index, head, body)
    }

    #[inline(always)]
    fn try_accept(&mut self, index: u32, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return Err(Refused::PeerDown);
        };
        if peer.stage == Stage::Down {
            return Err(Refused::PeerDown);
        }
        if let Some(link) = &peer.link
            && matches!(link.state, State::Ending(..))
        {
            return Err(Refused::Full);
        }
        let Some(outbox) = &mut peer.outbox else {
            return self.accept_first(index, head, body);
        };
        let far = match body {
            Body::Region(slice) if slice.len() >= self.sizes.zero_copy => {
                self.memory.regions.place(slice).map(|place| Far {
                    place,
                    slice: (*slice).clone(),
                })
            }
            _ => None,
        };
        match far {
            None => outbox.accept(&mut self.pool, head, body)?,
            Some(far) => {
                outbox.accept_far(&mut self.pool, head, far)?;
                self.stats.zero_copy += 1;
            }
        }
        let id = MsgId(peer.base + outbox.accepted);
        self.stats.sent += 1;
        if peer.stage == Stage::Fresh && !std::mem::replace(&mut peer.is_wanted, true) {
            self.wanted.push_back(index);
        }
        enlist(&mut self.dirty, &mut peer.is_dirty, index);
        Ok(id)
    }

    /// Accepts a peer's first message.
    #[cold]
    fn accept_first(&mut self, index: u32, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        self.begin_with(index);
        self.peers[index as usize].outbox = Some(Box::new(Outbox::new()));
        self.accept(index, head, body)
    }

    #[inline]
    pub(crate) fn mark_dirty(&mut self, index: u32) {
        if let Some(peer) = self.peers.get_mut(index as usize) {
            enlist(&mut self.dirty, &mut peer.is_dirty, index);
        }
    }

    /// Posts everything that waits and may be sent: one doorbell for each peer.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.onesided.has_to_post() {
            self.flush_one_sided();
        }
        while let Some(index) = self.dirty.pop() {
            self.post(index);
        }
    }

    /// Posts what waits for one peer and may be sent.
    fn post(&mut self, index: u32) {
        if self.onesided.has_controls() {
            self.post_controls(index);
        }
        let peer = &mut self.peers[index as usize];
        peer.is_dirty = false;
        let Some(outbox) = &mut peer.outbox else { return };
        if !outbox.is_empty() {
            enlist(&mut self.active, &mut peer.is_active, index);
        }
        let Some(link) = &mut peer.link else { return };
        let most = (self.entries - DEPTH).saturating_sub(self.under_way);
        if let Some(is_posted) = link.post_only((outbox, &self.pool), most, self.now, &mut self.stats) {
            if !is_posted {
                return self.end(index, DownReason::Resources);
            }
            self.under_way += 1;
            self.stats.doorbells += 1;
            return enlist(&mut self.busy, &mut peer.is_busy, index);
        }
        let posted = link.post((outbox, &self.pool), most, self.now, &mut self.stats);
        self.book(index, posted);
    }

    /// Takes what was posted for a peer into account.
    #[inline]
    pub(crate) fn book(&mut self, index: u32, posted: Posted) {
        if posted.requests > 0 {
            self.under_way += posted.requests;
            self.stats.doorbells += 1;
            enlist(&mut self.busy, &mut self.peers[index as usize].is_busy, index);
        }
        if posted.is_broken {
            self.end(index, DownReason::Resources);
        }
    }

    /// Takes the completions of sends, if there can be any.
    #[inline]
    pub(crate) fn reap(&mut self) {
        if self.under_way > 0 || self.has_stale {
            self.reap_all();
        }
    }

    fn reap_all(&mut self) {
        // A queue that is broken ends nothing: time ends its connections.
        while let Some(device) = &self.device
            && let Ok(count) = device.sent.poll(&mut self.reaped)
        {
            let mut at = 0;
            while at < count {
                at = self.complete(at, count);
            }
            if count < BATCH {
                self.has_stale = false;
                return;
            }
            if self.under_way == 0 && !self.has_stale {
                return;
            }
        }
    }

    /// Takes the completions of one queue pair from a place on, up to the first one in error: of that, only
    /// its request, its status and its queue pair count. Returns the place behind them.
    fn complete(&mut self, mut at: usize, count: usize) -> usize {
        let first = &self.reaped[at];
        let pair = first.qp_num;
        let Some(index) = self.by_pair.get(pair) else {
            self.stats.stale += 1;
            return at + 1;
        };
        let Some(link) = &mut self.peers[index as usize].link else {
            return at + 1;
        };
        let (mut failed, mut last) = (None, link.done());
        for completion in &self.reaped[at..count] {
            if completion.qp_num != pair || failed.is_some() {
                break;
            }
            at += 1;
            if completion.wr_id <= last || !link.has_posted(completion.wr_id) {
                self.stats.nonsense += 1;
                continue;
            }
            last = completion.wr_id;
            if completion.status != numbers::SUCCESS {
                failed = Some(*completion);
            }
        }
        // Requests end in order: with the last one, all before it.
        self.under_way -= link.ended(last, self.now);
        let is_beginning = link.state == State::Receiving;
        if let Some(completion) = failed {
            self.failed(index, &completion);
        } else if is_beginning {
            self.proved(index);
        } else {
            self.release_together(index);
        }
        at
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
    #[inline(always)]
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
                enlist(&mut self.dirty, &mut peer.is_dirty, index);
            }
        }
    }
}
