//! Messages on their way out: accepted whole or not at all, cut into segments, listed.
//!
//! A message that fits one frame is one FRAG; a longer one is CHUNKs of equal size (reference: vic, section 6.3). The
//! bytes are copied once, into the frames that are kept until they are acknowledged.

use doorbell_fabric::datagram::{Channel, Transmit};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Body, MsgId, PeerIndex, Refused};
use zerocopy::IntoBytes;

use crate::connectivity::Why;
use crate::core::{BASIC, Core, RESERVE};
use crate::peer::about;
use crate::pool::Id;
use crate::segment::{Segment, State};
use crate::seq::Seq;
use crate::wire::{self, Kind};

/// Longest head of a message.
pub(crate) const HEAD: usize = 128;
/// Most parts of a gathered body.
pub(crate) const PARTS: usize = 64;

impl Core {
    /// Accepts a message; see [`Message::send`](doorbell_fabric::message::Message::send).
    #[inline]
    pub(crate) fn accept<T: Transmit>(
        &mut self,
        tx: &mut T,
        peer: PeerIndex,
        head: &[u8],
        body: Body<'_>,
    ) -> Result<MsgId, Refused> {
        let Some(state) = self.peers.get(peer) else {
            return Err(Refused::PeerDown);
        };
        if state.is(about::DOWN) || self.closing {
            return Err(Refused::PeerDown);
        }
        let length = head.len() + body.len();
        if head.len() > HEAD || length > self.longest || too_many_parts(&body) {
            return Err(Refused::TooLong);
        }
        if length > self.room {
            return self.accept_long(peer, head, body, length);
        }
        if !self.has_segments(peer, 1) {
            self.counters.refused_full += 1;
            return Err(Refused::Full);
        }
        let Some(index) = self.segments.take() else {
            return Err(Refused::Full);
        };
        let segment = &mut self.segments[index];
        gather_all(&mut segment.frame[BASIC..BASIC + length], head, &body);
        segment.length = length as u32;
        segment.kind = Kind::Frag;
        segment.channel = if length <= self.config.priority_limit {
            Channel::Priority
        } else {
            Channel::Data
        };
        let id = self.count(peer);
        self.segments[index].ends = id;
        let first = self.list(peer, index);
        // The fast path: nothing waits before it, and the window and the device have room.
        let channel = self.segments[index].channel;
        if first && self.peers[peer].may_send() && self.has_room(tx, channel) {
            self.post_first(tx, peer, index);
        } else {
            self.wait_for_turn(peer);
        }
        Ok(MsgId(id))
    }

    #[inline(never)]
    fn accept_long(
        &mut self,
        peer: PeerIndex,
        head: &[u8],
        body: Body<'_>,
        length: usize,
    ) -> Result<MsgId, Refused> {
        let own = Kind::Chunk.header();
        let size = self.room - own;
        let count = length.div_ceil(size);
        if !self.has_segments(peer, count) {
            self.counters.refused_full += 1;
            return Err(Refused::Full);
        }
        let header = wire::Chunk {
            first: self.peer(peer).next.0.into(),
            total: (length as u32).into(),
            size: (size as u16).into(),
            zero: 0.into(),
        };
        let id = self.count(peer);
        for n in 0..count {
            // There are as many, which was asked before.
            let Some(index) = self.segments.take() else {
                break;
            };
            let (at, bytes) = (n * size, size.min(length - n * size));
            let segment = &mut self.segments[index];
            segment.frame[BASIC..BASIC + own].copy_from_slice(header.as_bytes());
            gather(
                &mut segment.frame[BASIC + own..BASIC + own + bytes],
                head,
                &body,
                at,
            );
            segment.length = (own + bytes) as u32;
            segment.kind = Kind::Chunk;
            segment.channel = Channel::Data;
            segment.ends = if n + 1 == count { id } else { 0 };
            self.list(peer, index);
        }
        self.wait_for_turn(peer);
        Ok(MsgId(id))
    }

    /// Whether a peer may have so many more segments of messages.
    #[inline]
    fn has_segments(&self, peer: PeerIndex, count: usize) -> bool {
        self.has_place(peer, count + RESERVE - 1)
    }

    fn count(&mut self, peer: PeerIndex) -> u64 {
        self.counters.messages_sent += 1;
        let state = self.peer(peer);
        state.last += 1;
        state.last
    }

    /// Puts a segment at the end of a peer's list, with the next number. Whether it is the next to be sent.
    #[inline(always)]
    pub(crate) fn list(&mut self, peer: PeerIndex, index: Id<Segment>) -> bool {
        let state = &mut self.peers[peer];
        let segment = &mut self.segments[index];
        segment.peer = peer;
        segment.seq = state.next;
        segment.state = State::Queued;
        segment.again = false;
        segment.next = Id::NONE;
        state.next = state.next.plus(1);
        state.listed += 1;
        let last = std::mem::replace(&mut state.tail, index);
        if last == Id::NONE {
            state.head = index;
        } else {
            self.segments[last].next = index;
        }
        let first = state.unsent == Id::NONE;
        if first {
            state.unsent = index;
        }
        first
    }

    /// A peer's segments wait: for the check, which begins with the first of them, or for the window. No part of
    /// its callers: what leaves at once would pay for it in registers.
    #[inline(never)]
    pub(crate) fn wait_for_turn(&mut self, peer: PeerIndex) {
        let (now, attended) = (self.now, self.attended);
        (self.waiting, self.held) = (true, true);
        if self.peer(peer).is(about::UP) {
            if self.peer(peer).una == Id::NONE {
                // No time-out runs, and if the device never takes anything, none ever will.
                self.peer(peer).waiting = attended;
                self.arm(peer, now.saturating_add(self.config.give_up.as_nanos() as u64));
            }
            self.make_ready(peer);
        } else {
            self.start_check(peer, Why::First);
        }
    }

    /// Whether a peer may have one more segment, and so many places are left then.
    #[inline]
    pub(crate) fn has_place(&self, peer: PeerIndex, kept: usize) -> bool {
        self.peers[peer].listed as usize + kept < self.config.window as usize
            && self.segments.available() > kept
    }

    /// A segment to be written for a peer, which [`Core::commit`] lists or `segments.give` gives back.
    #[inline]
    pub(crate) fn blank(&mut self, peer: PeerIndex) -> Option<Id<Segment>> {
        if self.peer(peer).listed >= self.config.window {
            return None;
        }
        self.segments.take()
    }

    /// Lists a segment that is not of a message: an operation, an answer, a goodbye; with `length` bytes written behind
    /// the basic header.
    pub(crate) fn commit(&mut self, peer: PeerIndex, index: Id<Segment>, kind: Kind, length: usize) -> Seq {
        let segment = &mut self.segments[index];
        segment.length = length as u32;
        segment.kind = kind;
        segment.ends = 0;
        let bulk = matches!(kind, Kind::Put | Kind::Data) || length > self.config.priority_limit;
        segment.channel = if bulk { Channel::Data } else { Channel::Priority };
        self.list(peer, index);
        self.segments[index].seq
    }

    /// Lists a segment that is a header and nothing else. `None` when there is no room, and nothing was done: requests
    /// leave some to answers.
    pub(crate) fn header(&mut self, peer: PeerIndex, kind: Kind, header: &[u8]) -> Option<Seq> {
        let kept = match kind {
            Kind::Get | Kind::Atomic => RESERVE,
            _ => 0,
        };
        if !self.has_place(peer, kept) {
            return None;
        }
        let index = self.blank(peer)?;
        self.segments[index].frame[BASIC..BASIC + header.len()].copy_from_slice(header);
        let seq = self.commit(peer, index, kind, header.len());
        self.wait_for_turn(peer);
        Some(seq)
    }
}

fn too_many_parts(body: &Body<'_>) -> bool {
    matches!(body, Body::Parts(parts) if parts.len() > PARTS)
}

/// Copies all of head and body into `to`, which is as long as they are; short ones without a call.
#[inline(always)]
fn gather_all(to: &mut [u8], head: &[u8], body: &Body<'_>) {
    let (first, rest) = to.split_at_mut(head.len());
    SharedBytes::of(head).copy_to(0, first);
    match body {
        Body::Loan(loan) => _ = loan.copy_to(0, rest),
        body => gather(rest, &[], body, 0),
    }
}

/// Copies what is at `at` of head and body, as one, into `to`, which is not longer than what there is.
#[inline]
pub(crate) fn gather(to: &mut [u8], head: &[u8], body: &Body<'_>, at: usize) {
    let near = head.len().saturating_sub(at).min(to.len());
    let (first, rest) = to.split_at_mut(near);
    if near > 0 {
        first.copy_from_slice(&head[at..at + near]);
    }
    let at = (at + near).saturating_sub(head.len());
    match body {
        Body::Empty => {}
        Body::Bytes(bytes) => {
            let n = rest.len();
            rest.copy_from_slice(&bytes[at..at + n]);
        }
        Body::Loan(loan) => {
            loan.copy_to(at, rest);
        }
        Body::Shared(bytes) => {
            bytes.copy_to(at, rest);
        }
        Body::Region(slice) => {
            slice.copy_to(at, rest);
        }
        Body::Parts(parts) => {
            let (mut at, mut done) = (at, 0);
            for part in *parts {
                if at >= part.len() {
                    at -= part.len();
                    continue;
                }
                done += part.copy_to(at, &mut rest[done..]);
                at = 0;
                if done == rest.len() {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::memory::{ConstLoan, Region};

    #[test]
    fn any_part_of_any_body_is_gathered() {
        let head = b"abcde";
        let all = b"abcde0123456789";
        let region = Region::new(10).unwrap();
        region.write(0, &all[5..]);
        let slice = region.whole();
        let parts = [&b"012"[..], b"", b"3456", b"789"].map(ConstLoan::of_static);
        let bodies = [
            Body::Bytes(&all[5..]),
            Body::Loan(ConstLoan::of_static(b"0123456789")),
            Body::Region(&slice),
            Body::Shared(slice.as_shared()),
            Body::Parts(&parts),
        ];
        for body in bodies {
            for at in 0..all.len() {
                for end in at..=all.len() {
                    let mut to = vec![0; end - at];
                    gather(&mut to, head, &body, at);
                    assert_eq!(to, all[at..end], "{at}..{end} of {body:?}");
                }
            }
        }
    }
}
