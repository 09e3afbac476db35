//! The owner's part of long transfers: memory exposed for gets, fragments that were requested, gets that are
//! served. The puller's is in `pulls`, with the picture of both.

use doorbell_fabric::message::{Access, Body, Exposure, Inbound, Landing, Message, Refused, RemoteKey};
use doorbell_fabric::ni::NiFail;
use zerocopy::IntoBytes;

use crate::bytes;
use crate::core::Core;
use crate::drops::Drop;
use crate::link::{First, Link, PeerId};
use crate::ops::{Role, SOURCES, Stream};
use crate::pulls::STRIPE;
use crate::wire::{Head, Source, Words, flag, kind, list_flag};

impl Core {
    /// Exposes memory to a peer over the ways that can read it.
    pub(crate) fn expose<M: Message>(
        &mut self,
        link: &mut Link<M>,
        op: u32,
        peer: PeerId,
        memory: Option<Landing>,
        length: u64,
    ) -> ([Source; SOURCES], usize) {
        let mut sources = [Source::NONE; SOURCES];
        let worth = link
            .sizes(peer)
            .get_from
            .is_some_and(|from| length >= from as u64);
        let Some(memory) = memory.filter(|_| worth) else {
            return (sources, 0);
        };
        let what = match memory {
            Landing::Loan(loan) => Exposure::Read(loan.as_const()),
            Landing::Region(slice) => Exposure::Region(slice),
        };
        let most = if length >= 2 * STRIPE { SOURCES } else { 1 };
        let mut count = 0;
        if let Some(at) = self.ops.at_mut(op) {
            link.expose_over(peer, what, Access::Read, most, |way, remote| {
                sources[count] = Source::new(way, remote);
                at.exposed[count] = Some((way, RemoteKey(remote.key.get())));
                count += 1;
            });
        }
        (sources, count)
    }

    /// Takes back what was exposed for an operation.
    pub(crate) fn withdraw<M: Message>(&mut self, link: &mut Link<M>, op: u32) {
        if let Some(at) = self.ops.at_mut(op) {
            let peer = PeerId(at.peer);
            for (way, key) in at.exposed.iter_mut().filter_map(Option::take) {
                link.withdraw(peer, way, key);
            }
        }
    }

    /// Takes back the memory that was exposed for an operation, as soon as the rails are free.
    pub(crate) fn unexpose(&mut self, op: u32) {
        let Some(at) = self.ops.at_mut(op) else { return };
        let peer = PeerId(at.peer);
        for (way, key) in at.exposed.iter_mut().filter_map(Option::take) {
            self.pulls.withdrawals.push((peer, way, key));
        }
    }

    /// Handles the puller's request for fragments.
    pub(crate) fn pull_arrived(&mut self, peer: PeerId, _first: First, inbound: &Inbound<'_>) {
        let mut words = Words::of(inbound);
        let (Some(id), Some(to), Some(offset), Some(length)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return self.drops.count(Drop::Short);
        };
        let Some(op) = self.answered(peer, id, &[Role::Rts, Role::Serve]) else {
            return self.outbox.push(peer, Head::new(kind::GONE, 0, 0).word(to), &[]);
        };
        let Some(at) = self.ops.at_mut(op) else { return };
        let served = at.role == Role::Rts || at.announced;
        if !bytes::range(at.length, offset, length) || length == 0 || at.stream.is_some() || !served {
            return self.drops.count(Drop::Malformed);
        }
        at.stream = Some(Stream {
            to,
            next: offset,
            end: offset + length,
        });
        self.enqueue(op);
    }

    /// FIN: the puller has all bytes that it requested, or needs no more.
    pub(crate) fn fin_arrived(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) {
        let Some(id) = Words::of(inbound).next() else {
            return self.drops.count(Drop::Short);
        };
        let Some(fail) = NiFail::of_number(first.flags & flag::FAIL) else {
            return self.drops.count(Drop::Malformed);
        };
        if let Some(op) = self.answered(peer, id, &[Role::Serve]) {
            self.end_target(op, fail);
        }
    }

    /// Sends fragments. Whether there is more to be sent.
    pub(crate) fn stream<M: Message>(&mut self, link: &mut Link<M>, op: u32) -> bool {
        let Some(at) = self.ops.at(op) else { return false };
        let Some(mut stream) = at.stream else { return false };
        let (peer, ni, object, base, ours) = (
            PeerId(at.peer),
            usize::from(at.ni),
            at.object,
            at.at,
            at.is_ours(),
        );
        let piece = (link.sizes(peer).fragment.saturating_sub(64)).max(512) as u64;
        for _ in 0..PIECES {
            if stream.next == stream.end || !link.room(peer) {
                break;
            }
            let length = piece.min(stream.end - stream.next);
            let Some(ni) = self.nis[ni].as_deref() else {
                return false;
            };
            let memory = if ours {
                ni.mds.at(object).map(|md| &md.memory)
            } else {
                ni.entries.at(object).map(|entry| &entry.memory)
            };
            let Some(memory) = memory else { return false };
            let body = bytes::body(
                memory,
                (base + stream.next) as usize,
                length as usize,
                &mut self.scratch,
            );
            let mut head = Head::new(kind::FRAG, 0, 0).word(stream.to).word(stream.next);
            match link.send(peer, head.as_mut_bytes(), body, false) {
                Ok(()) => stream.next += length,
                Err(Refused::Full) => break,
                // The peer will be lost, and the operation with it.
                Err(_) => return false,
            }
        }
        let all = stream.next == stream.end;
        if let Some(at) = self.ops.at_mut(op) {
            at.stream = (!all).then_some(stream);
        }
        !all
    }

    /// Serves a get: in one message, by exposed memory, or in fragments.
    pub(crate) fn serve<M: Message>(&mut self, link: &mut Link<M>, op: u32) -> bool {
        let Some(at) = self.ops.at(op) else { return false };
        if at.announced {
            return self.stream(link, op);
        }
        let (peer, ni, entry, place, length) =
            (PeerId(at.peer), usize::from(at.ni), at.object, at.at, at.length);
        let (far, offset, list, managed) = (at.far, at.offset, at.event.list, at.user_ptr != 0);
        if !link.room(peer) {
            return true;
        }
        let Some(slot) = self.nis[ni].as_deref().and_then(|ni| ni.entries.at(entry)) else {
            return false;
        };
        if length + 64 <= link.sizes(peer).eager as u64 {
            let mut head = crate::target::reply(far, list, managed.then_some(offset));
            let body = bytes::body(&slot.memory, place as usize, length as usize, &mut self.scratch);
            return match link.send(peer, head.as_mut_bytes(), body, false) {
                Ok(()) => {
                    self.end_target(op, NiFail::Ok);
                    false
                }
                Err(refused) => refused == Refused::Full,
            };
        }
        let memory = bytes::in_one_piece(&slot.memory, place as usize, length as usize);
        let (sources, count) = self.expose(link, op, peer, memory, length);
        let mut head = Head::new(kind::READY, list_flag(list), 0)
            .word(far)
            .word(self.ops.id(op))
            .word(length)
            .word(offset);
        let body = match count {
            0 => Body::Empty,
            count => Body::Bytes(sources[..count].as_bytes()),
        };
        match link.send(peer, head.as_mut_bytes(), body, false) {
            Ok(()) => {}
            Err(refused) => {
                self.withdraw(link, op);
                return refused == Refused::Full;
            }
        }
        if let Some(at) = self.ops.at_mut(op) {
            at.announced = true;
            if count == 0 {
                at.stream = Some(Stream {
                    to: far,
                    next: 0,
                    end: length,
                });
            }
        }
        count == 0
    }
}

/// Fragments that one operation sends before another one has its turn.
const PIECES: usize = 8;
