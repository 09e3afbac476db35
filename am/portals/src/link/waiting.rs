//! Messages that wait for room.
//!
//! It goes before anything new, and in this order: news of paths, what rails gave back, urgent messages.
//! Those are not numbered before they go, so that the window holds for them as well.

use doorbell_fabric::message::{Body, Message, Refused};
use doorbell_paths::{Layer, Reason, each, send_news};

use super::buffers::Kept;
use super::send::SEQ_AT;
use super::{Core, HEAD_MOST, Link};

impl<M: Message> Link<M> {
    /// Sends what waits, of all peers. Returns how many messages went.
    pub(super) fn drain(&mut self) -> usize {
        let mut work = 0;
        let mut at = 0;
        while let Some(&peer) = self.core.waiting.get(at) {
            let before = self.core.hot[peer as usize]
                .next
                .wrapping_add(self.core.stats.resent as u32);
            let done = self.drain_peer(peer);
            let after = self.core.hot[peer as usize]
                .next
                .wrapping_add(self.core.stats.resent as u32);
            work += after.wrapping_sub(before) as usize;
            // Without a path there is nothing to try: it is listed again when there is one.
            let known = &mut self.core.peers[peer as usize];
            if done || known.lost || known.states.used() == 0 {
                known.is_waiting = false;
                self.core.waiting.swap_remove(at);
            } else {
                at += 1;
            }
        }
        work
    }

    /// Sends what waits of one peer, as far as there is room. Whether nothing waits any more.
    pub(super) fn drain_peer(&mut self, peer: u32) -> bool {
        if !self.core.peers[peer as usize].waits() {
            return true;
        }
        if !send_news(self, peer) {
            return false;
        }
        while let Some(kept) = self.core.peers[peer as usize].again.pop_front() {
            let seq = seq_of(&kept);
            let (head, body) = kept.bytes().split_at(kept.len().min(HEAD_MOST));
            let sent = self.send_numbered(peer, head, &body_of(body), seq);
            if sent.is_err() {
                self.core.keep_again(peer, kept);
                return self.none_fits(peer);
            }
            self.core.buffers.give(kept);
            self.core.stats.resent += 1;
        }
        while let Some(mut kept) = self.core.peers[peer as usize].fresh.pop_front() {
            let length = kept.len();
            let (head, body) = kept.bytes_mut().split_at_mut(length.min(HEAD_MOST));
            if self.send_now(peer, head, &body_of(body)).is_err() {
                let known = &mut self.core.peers[peer as usize];
                if known.lost {
                    self.core.buffers.give(kept);
                } else {
                    known.fresh.push_front(kept);
                }
                return self.none_fits(peer);
            }
            self.core.peers[peer as usize].fresh_bytes -= length;
            self.core.buffers.give(kept);
        }
        self.reopen(peer);
        true
    }

    /// What waits could not be sent. When that is because no path takes a message of that length, it never
    /// will be. `false`: it waits.
    fn none_fits(&mut self, peer: u32) -> bool {
        let known = &self.core.peers[peer as usize];
        let Some(length) = known.again.front().or(known.fresh.front()).map(Kept::len) else {
            return false;
        };
        let fits = |at: usize| self.rails[usize::from(known.paths[at].rail)].can.limits.message >= length;
        if !each(known.states.living()).any(fits) {
            self.lose(peer, Reason::NotReclaimable);
        }
        false
    }
}

impl Core {
    /// An urgent message waits for room.
    pub(super) fn put_off(&mut self, peer: u32, head: &[u8], body: &Body<'_>) -> Result<(), Refused> {
        let length = head.len() + body.len();
        let known = &mut self.peers[peer as usize];
        if known.fresh_bytes + length > self.config.backlog {
            self.stats.refused += 1;
            return Err(Refused::Full);
        }
        known.fresh_bytes += length;
        known.fresh.push_back(self.buffers.gather(head, body));
        self.stats.waited += 1;
        self.list(peer);
        Ok(())
    }

    /// Puts a message that was to be sent again back into its place.
    pub(super) fn keep_again(&mut self, peer: u32, kept: Kept) {
        let next = self.hot[peer as usize].next;
        let known = &mut self.peers[peer as usize];
        if known.lost {
            return self.buffers.give(kept);
        }
        let age = |kept: &Kept| next.wrapping_sub(seq_of(kept));
        let place = known.again.partition_point(|other| age(other) >= age(&kept));
        known.again.insert(place, kept);
    }
}

/// The number of a message that has one.
pub(super) fn seq_of(kept: &Kept) -> u32 {
    let bytes = kept.bytes().get(SEQ_AT..).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn body_of(bytes: &[u8]) -> Body<'_> {
    if bytes.is_empty() {
        Body::Empty
    } else {
        Body::Bytes(bytes)
    }
}
