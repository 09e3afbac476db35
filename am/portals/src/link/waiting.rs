//! What waits for room.
//!
//! It goes before anything new, and in this order: news of ways, what rails gave back, urgent messages. Those are not
//! numbered before they go, so that the window holds for them as well.

use doorbell_fabric::event::Life;
use doorbell_fabric::message::{Body, Message, Refused};
use doorbell_paths::each;

use super::buffers::Kept;
use super::send::SEQ_AT;
use super::way::{Way, Why};
use super::{Core, FIRST_LEN, First, HEAD_MOST, Link, kind};

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
            // Without a way there is nothing to try: it is listed again when there is one.
            let known = &mut self.core.peers[peer as usize];
            if done || known.lost || !known.ways.iter().any(|way| way.state.is_used()) {
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
        while let Some(&(way, life)) = self.core.peers[peer as usize].news.last() {
            if !self.tell_all(peer, way, life) {
                return false;
            }
            self.core.peers[peer as usize].news.pop();
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

    /// What waits could not be sent. When that is because no way takes so long a message, it never will be. `false`: it
    /// waits.
    fn none_fits(&mut self, peer: u32) -> bool {
        let known = &self.core.peers[peer as usize];
        let Some(length) = known.again.front().or(known.fresh.front()).map(Kept::len) else {
            return false;
        };
        let hopes = |way: &Way| !way.dead && self.rails[usize::from(way.rail)].can.limits.message >= length;
        if !known.ways.iter().any(hopes) {
            self.lose(peer, Why::NotReclaimable);
        }
        false
    }

    /// Sends a word over one way and no other; `false` when its rail does not take it.
    pub(super) fn say_over(&mut self, peer: u32, at: usize, kind: u8, about: u16, number: u32) -> bool {
        let way = &self.core.peers[peer as usize].ways[at];
        let rail = &mut self.rails[usize::from(way.rail)].rail;
        let word = First {
            kind,
            flags: 0,
            short: about.into(),
            seq: number.into(),
        };
        let word: [u8; FIRST_LEN] = zerocopy::transmute!(word);
        let sent = rail.send(way.index, &word, Body::Empty).is_ok();
        if sent {
            rail.flush();
            // The answer is waited for.
            self.paces.expect(usize::from(way.rail));
        }
        sent
    }

    /// Tells the peer over all of the ways that are used that one is given up. Whether one of them took it.
    pub(super) fn tell_all(&mut self, peer: u32, broken: u16, life: Life) -> bool {
        let mut told = false;
        for at in each(self.core.peers[peer as usize].ways_that(|way| way.state.is_used())) {
            told |= self.say_over(peer, at, kind::BROKEN, broken, life.0);
        }
        told
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

    /// What was to be sent again waits on, in its place.
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
