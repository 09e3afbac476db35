//! Accepting messages: each is taken whole or refused, cut into segments, and queued.
//!
//! A message that fits one frame is one FRAG; a longer one is CHUNKs of equal size (reference: vic, section
//! 6.3). The bytes are copied once, into the frames that are kept until they are acknowledged.

use doorbell_fabric::datagram::{Channel, Transmit};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Body, MsgId, PeerIndex, Refused};
use zerocopy::IntoBytes;

use crate::connectivity::Why;
use crate::core::Core;
use crate::peer::about;
use crate::pool::Id;
use crate::send_window::Segment;
use crate::seq::Seq;
use crate::wire::{self, Kind};

/// Segments that are kept for answers to peers.
pub(crate) const RESERVE: usize = 16;
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
        index: PeerIndex,
        head: &[u8],
        body: Body<'_>,
    ) -> Result<MsgId, Refused> {
        let Some(peer) = self.peers.get(index) else {
            return Err(Refused::PeerDown);
        };
        if peer.is(about::GONE) || self.phase.is_closing() {
            return Err(Refused::PeerDown);
        }
        let length = head.len() + body.len();
        if head.len() > HEAD || length > self.longest() || too_many_parts(&body) {
            return Err(Refused::TooLong);
        }
        if length > self.framing.room() {
            return self.accept_long(tx, index, head, body, length);
        }
        if !self.has_segments(index, 1) {
            self.counters.refused_full += 1;
            return Err(Refused::Full);
        }
        let Some(id) = self.segments.take() else {
            return Err(Refused::Full);
        };
        let channel = if length <= self.config.priority_limit {
            Channel::Priority
        } else {
            Channel::Data
        };
        self.counters.messages_sent += 1;
        let message = self.peers[index].send.accept();
        let payload = self.segments[id].fill(Kind::Frag, channel, length, message);
        gather_all(payload, head, &body);
        let peer = &mut self.peers[index];
        let first = peer.send.push(&mut self.segments, index, id);
        // The fast path: nothing waits before it, and the window and the device have room.
        if first && peer.may_send() && self.outbox.has_room(tx, channel) {
            self.post_first(tx, index, id);
        } else {
            self.wait_for_turn(index);
        }
        Ok(MsgId(message))
    }

    #[inline(never)]
    fn accept_long<T: Transmit>(
        &mut self,
        tx: &mut T,
        index: PeerIndex,
        head: &[u8],
        body: Body<'_>,
        length: usize,
    ) -> Result<MsgId, Refused> {
        let is_awaited = self.awaited.take() == Some(index);
        let own = Kind::Chunk.header();
        let size = self.framing.room() - own;
        let count = length.div_ceil(size);
        if !self.has_segments(index, count) {
            self.counters.refused_full += 1;
            return Err(Refused::Full);
        }
        let at_once = match body.in_one_piece() {
            Some(bytes) if head.len() < size => Some((bytes, self.room_for_run(tx, index, count))),
            _ => None,
        };
        let peer = &mut self.peers[index];
        let header = wire::Chunk {
            first: peer.send.next_seq().0.into(),
            total: (length as u32).into(),
            size: (size as u16).into(),
            zero: 0.into(),
        };
        self.counters.messages_sent += 1;
        let message = peer.send.accept();
        let mut first = Id::NONE;
        for n in 0..count {
            // There are as many, which was checked before.
            let Some(id) = self.segments.take() else {
                break;
            };
            if n == 0 {
                first = id;
            }
            let bytes = size.min(length - n * size);
            let ends = if n + 1 == count { message } else { 0 };
            let frame = self.segments[id].fill(Kind::Chunk, Channel::Data, own + bytes, ends);
            frame[..own].copy_from_slice(header.as_bytes());
            peer.send.push(&mut self.segments, index, id);
            if n + 1 == count && is_awaited {
                self.segments[id].ask();
            }
        }
        let mut posted = 0;
        if let Some((bytes, n)) = at_once.filter(|(_, n)| *n > 0) {
            self.post_run(tx, index, n, head, bytes);
            posted = n;
        }
        self.fill_segments(first, count, head, &body);
        if posted < count {
            self.wait_for_turn(index);
        }
        Ok(MsgId(message))
    }

    /// Whether a peer may have `count` more segments of messages.
    #[inline]
    fn has_segments(&self, peer: PeerIndex, count: usize) -> bool {
        self.has_place(peer, count + RESERVE - 1)
    }

    /// A peer's segments wait: for the check, which begins with the first of them, or for the window. No part
    /// of its callers: what leaves at once would pay for it in registers.
    #[inline(never)]
    pub(crate) fn wait_for_turn(&mut self, index: PeerIndex) {
        self.backlog.note();
        let peer = &mut self.peers[index];
        if peer.is(about::UP) {
            if !peer.send.awaits_ack() {
                // No time-out runs, and if the device never takes anything, none ever will.
                peer.liveness.wait(self.clock.attended());
                let give_up = self.clock.after(self.config.give_up.as_nanos() as u64);
                self.timers.arm(index, &mut peer.alarm, give_up);
            }
            self.make_ready(index);
        } else {
            self.start_check(index, Why::First);
        }
    }

    /// How many more segments, of `count`, a peer may have if `kept` places are left then.
    #[inline]
    pub(crate) fn places(&self, peer: PeerIndex, kept: usize, count: usize) -> usize {
        let listed = self.peers[peer].send.len() as usize + kept;
        let by_window = (self.config.window as usize).saturating_sub(listed);
        let by_pool = self.segments.available().saturating_sub(kept);
        count.min(by_window).min(by_pool)
    }

    /// Whether a peer may have one more segment, and `kept` places are left then.
    #[inline]
    pub(crate) fn has_place(&self, peer: PeerIndex, kept: usize) -> bool {
        self.peers[peer].send.len() as usize + kept < self.config.window as usize
            && self.segments.available() > kept
    }

    /// A segment to be drafted for a peer, which [`Core::commit`] lists or `segments.give` gives back.
    #[inline]
    pub(crate) fn blank(&mut self, peer: PeerIndex) -> Option<Id<Segment>> {
        if self.peers[peer].send.len() >= self.config.window {
            return None;
        }
        self.segments.take()
    }

    /// Lists a segment that is not of a message: an operation, an answer, a BYE; with `length` bytes drafted.
    pub(crate) fn commit(&mut self, index: PeerIndex, id: Id<Segment>, kind: Kind, length: usize) -> Seq {
        let bulk = matches!(kind, Kind::Put | Kind::Data) || length > self.config.priority_limit;
        let channel = if bulk { Channel::Data } else { Channel::Priority };
        self.segments[id].fill(kind, channel, length, 0);
        self.peers[index].send.push(&mut self.segments, index, id);
        self.segments[id].seq()
    }

    /// Lists a segment that is a header and nothing else. `None` when there is no room, and nothing was done:
    /// requests leave some to answers.
    pub(crate) fn header(&mut self, peer: PeerIndex, kind: Kind, header: &[u8]) -> Option<Seq> {
        let kept = match kind {
            Kind::Get | Kind::Atomic => RESERVE,
            _ => 0,
        };
        if !self.has_place(peer, kept) {
            return None;
        }
        let id = self.blank(peer)?;
        self.segments[id].draft(header.len()).copy_from_slice(header);
        let seq = self.commit(peer, id, kind, header.len());
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
