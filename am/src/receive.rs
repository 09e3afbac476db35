//! What arrives: requests and their data on the AM queue, replies and the ends of our own operations on the
//! SAFE queue (gasnet.md sections 3 and 4).

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::ni::{Event, EventKind, List, Ni, NiFail};

use crate::chunks::ChunkUse;
use crate::conduit::Conduit;
use crate::error::Fault;
use crate::handler::{Payload, Reply};
use crate::long::PLACED_FROM;
use crate::long_cache::{Half, ReplyHeader, RequestHeader};
use crate::match_bits::{AmHeader, Id, Kind, LongData, LongSource, OneSided, REPLY_LID};
use crate::objects;
use crate::ops::Ended;
use crate::putget::SENDS;
use crate::receiver::{Answered, Arrived, Came, Owed, receiver};
use crate::source::read_args;

impl<N: Ni> Conduit<N> {
    /// An event of the AM queue. A reply of any kind can be sent.
    #[inline]
    pub(crate) fn am_event(&mut self, event: &Event) {
        match event.kind {
            EventKind::Put if event.list == List::Overflow => self.fail(Fault::CatchBasin),
            EventKind::Put if event.user_ptr == objects::RARAM_POINTER => self.long_data(event, Id::RarAm),
            EventKind::Put => {
                let buffer = event.user_ptr as usize;
                if event.fail == NiFail::Ok {
                    self.request_header(event, buffer);
                }
                if self.reqrb.done(buffer, event.place, event.mlength) {
                    self.recycle(buffer);
                }
            }
            EventKind::AutoUnlink => {
                let buffer = event.user_ptr as usize;
                if self.reqrb.unlinked(buffer) {
                    self.recycle(buffer);
                }
            }
            EventKind::PtDisabled => self.fail(Fault::Disabled(event.pt_index)),
            _ => {}
        }
    }

    /// An event of the SAFE queue.
    #[inline]
    pub(crate) fn safe_event(&mut self, event: &Event) {
        match event.kind {
            EventKind::Put => match Id::of(event.match_bits) {
                Some(Id::ReqSb) => self.reply_header(event),
                Some(Id::RarSrc) => self.long_data(event, Id::RarSrc),
                _ => self.hostile(),
            },
            EventKind::Send => self.sent(event),
            EventKind::Ack | EventKind::Reply => self.one_sided_ended(event),
            EventKind::PtDisabled => self.fail(Fault::Disabled(event.pt_index)),
            _ => {}
        }
    }

    /// The header of a request, with what travels along.
    #[inline]
    fn request_header(&mut self, event: &Event, buffer: usize) {
        let bytes = self.reqrb.bytes(buffer, event.place, event.mlength);
        let Some(bytes) = bytes.filter(|_| event.rlength == event.mlength) else {
            return self.hostile();
        };
        match receiver!(self).request(&arrived(event, bytes)) {
            Came::Handled(owed) => self.send_reply(owed),
            Came::Half(source, kept) => self.request_half(source, kept),
            Came::Hostile => self.hostile(),
        }
    }

    /// Handles a request's header whose data is a message of its own.
    fn request_half(&mut self, source: u32, header: RequestHeader) {
        let lid = header.chunk;
        match self.lids.take(source, lid) {
            None => {
                self.stats.halves[1] += 1;
                if let Err(Half::Request(header)) = self.lids.put(source, lid, Half::Request(header)) {
                    // Its credits are returned all the same.
                    self.hostile();
                    let (chunk, due) = (header.chunk, header.due);
                    self.outbox.draft = None;
                    self.send_reply(Owed { source, chunk, due });
                }
            }
            Some(Half::Data { offset, length }) => self.long_request(source, header, offset, length),
            Some(other) => {
                // The same LID twice: the earlier half is what it is.
                self.hostile();
                let _ = self.lids.put(source, lid, other);
                self.credits.answer(source, header.due);
            }
        }
    }

    /// The data of an unpacked Long: a request's, or a reply's, by the memory that they were put into.
    fn long_data(&mut self, event: &Event, id: Id) {
        let Some((source, lid)) = self.data_of(event, id) else {
            return self.hostile();
        };
        let (offset, length) = (event.place, event.mlength);
        if length >= PLACED_FROM {
            self.ni.offer(event.initiator, self.objects.open, length);
        }
        match self.lids.take(source, lid) {
            None => {
                self.stats.halves[0] += 1;
                let there = self.lids.data(source, lid);
                if there >= self.most_data(source, id)
                    || self.lids.put(source, lid, Half::Data { offset, length }).is_err()
                {
                    self.hostile();
                }
            }
            Some(Half::Request(header)) if id == Id::RarAm => {
                self.long_request(source, header, offset, length);
            }
            Some(Half::Reply(header)) if id == Id::RarSrc => self.long_reply(source, header, offset, length),
            Some(other) => {
                self.hostile();
                let _ = self.lids.put(source, lid, other);
            }
        }
    }

    /// Returns how much data of a rank may wait for its headers. That of requests has taken credits that we
    /// lent; that of replies answers our requests, which hold credits that it lent.
    fn most_data(&self, source: u32, id: Id) -> u16 {
        match self.credits.peer(source) {
            Some(peer) if self.credits.counts() && id == Id::RarAm => peer.loan(),
            Some(peer) if self.credits.counts() => peer.in_use(),
            _ => u16::MAX,
        }
    }

    /// Source and LID of the data of an unpacked Long, if they can be.
    fn data_of(&self, event: &Event, id: Id) -> Option<(u32, u32)> {
        let data = LongData::of(event.match_bits, event.hdr_data)?;
        let is_reply = data.lid & REPLY_LID != 0;
        let fits = data.id == id
            && is_reply == (id == Id::RarSrc)
            && event.fail == NiFail::Ok
            && event.rlength == event.mlength
            && self.ranks.process(data.source) == Some(event.initiator);
        fits.then_some((data.source, data.lid))
    }

    /// Handles a request both of whose halves are there.
    fn long_request(&mut self, source: u32, header: RequestHeader, offset: u64, length: u64) {
        let RequestHeader {
            handler,
            count,
            args,
            chunk,
            due,
        } = header;
        let bytes = self
            .segment
            .as_shared()
            .skip(offset as usize)
            .take(length as usize);
        let payload = Payload::Long { offset, bytes };
        let args = args.get(..usize::from(count)).unwrap_or(&args);
        receiver!(self).run(source, handler, args, payload);
        self.send_reply(Owed { source, chunk, due });
    }

    /// Appends a completed buffer to the list again.
    #[cold]
    fn recycle(&mut self, buffer: usize) {
        if let Err(error) = objects::attach_buffer(&mut self.ni, &mut self.reqrb, buffer) {
            self.fail(Fault::Interface(error));
        }
    }

    /// The header of a reply, in the chunk of its request.
    #[inline]
    fn reply_header(&mut self, event: &Event) {
        let Some(chunk) = self.reqsb.at(event.place) else {
            return self.hostile();
        };
        let bytes = self.reqsb.bytes(chunk, 0).take(event.mlength as usize);
        if event.fail != NiFail::Ok || event.rlength != event.mlength || bytes.len() as u64 != event.mlength {
            return self.hostile();
        }
        let asked = asked(&self.uses, chunk);
        match receiver!(self).reply(&arrived(event, bytes), asked) {
            Answered::Handled => self.free_chunk(chunk),
            Answered::Misplaced => {
                self.hostile();
                self.free_chunk(chunk);
            }
            Answered::Half {
                source,
                lid,
                handler,
                count,
            } => {
                let kept = ReplyHeader {
                    chunk,
                    handler,
                    count,
                };
                self.reply_half(source, lid, kept);
            }
            Answered::Hostile => self.hostile(),
        }
    }

    #[inline]
    fn reply_ran(&mut self, found: bool, chunk: u32) {
        self.stats.handled[1] += 1;
        self.stats.unhandled += u64::from(!found);
        self.free_chunk(chunk);
    }

    /// Handles a reply's header whose data is a message of its own. The header stays in its chunk.
    fn reply_half(&mut self, source: u32, lid: u32, header: ReplyHeader) {
        if lid & REPLY_LID == 0 {
            self.hostile();
            return self.free_chunk(header.chunk);
        }
        match self.lids.take(source, lid) {
            None => {
                self.stats.halves[1] += 1;
                if self.lids.put(source, lid, Half::Reply(header)).is_err() {
                    self.hostile();
                    self.free_chunk(header.chunk);
                }
            }
            Some(Half::Data { offset, length }) => self.long_reply(source, header, offset, length),
            Some(other) => {
                // The same LID twice: the earlier half is what it is, and keeps its chunk.
                self.hostile();
                let kept = matches!(&other, Half::Reply(earlier) if earlier.chunk == header.chunk);
                let _ = self.lids.put(source, lid, other);
                if !kept {
                    self.free_chunk(header.chunk);
                }
            }
        }
    }

    /// Handles a reply both of whose halves are there. Its arguments are still in the chunk.
    fn long_reply(&mut self, source: u32, header: ReplyHeader, offset: u64, length: u64) {
        let ReplyHeader {
            chunk,
            handler,
            count,
        } = header;
        let Some(ChunkUse::Request(to)) = self.uses.get(chunk as usize) else {
            return self.hostile();
        };
        if *to != source {
            return self.hostile();
        }
        let args = read_args(usize::from(count), self.reqsb.bytes(chunk, 0));
        let args = args.get(..usize::from(count)).unwrap_or(&args);
        let bytes = self
            .segment
            .as_shared()
            .skip(offset as usize)
            .take(length as usize);
        let payload = Payload::Long { offset, bytes };
        let found = self.handlers.run_reply(
            handler,
            Reply {
                source,
                args,
                payload,
            },
        );
        self.reply_ran(found, chunk);
    }

    /// Handles the event that a send's memory may be changed.
    fn sent(&mut self, event: &Event) {
        match Kind::of(event.user_ptr) {
            Some(Kind::Am) => {
                let Some(header) = AmHeader::of(event.user_ptr) else {
                    return self.hostile();
                };
                // Of a volatile descriptor: nothing waits for it, and nothing was taken.
                if header.offset & SENDS == 0 {
                    return;
                }
                self.tickets.give();
                if header.id == Id::RplSb {
                    self.rplsb.give(header.offset & !SENDS);
                    self.replies_under_way = self.replies_under_way.saturating_sub(1);
                }
            }
            Some(Kind::AmData) => {
                let Some(source) = LongSource::of(event.user_ptr) else {
                    return self.hostile();
                };
                self.tickets.give();
                if source.id == Id::Temporary {
                    self.release(source.temporary);
                }
                match source.op {
                    Some(op) => {
                        self.ops.ended(op, Ended::Source, 0, event.fail);
                    }
                    None => self.replies_under_way = self.replies_under_way.saturating_sub(1),
                }
            }
            Some(Kind::Put) => {
                if let Some(put) = OneSided::of(event.user_ptr)
                    && put.bounce & SENDS != 0
                {
                    self.ops.ended(put.op, Ended::Source, 0, NiFail::Ok);
                }
            }
            _ => {}
        }
    }

    /// A put was acknowledged, a get was answered.
    #[inline]
    fn one_sided_ended(&mut self, event: &Event) {
        let Some(one) = OneSided::of(event.user_ptr) else {
            return self.hostile();
        };
        self.tickets.give();
        let number = one.bounce & !SENDS;
        match one.id {
            Id::ReqSb => self.bounced(number, event),
            Id::Temporary => self.release(number),
            _ => {}
        }
        let what = if one.kind == Kind::Put {
            Ended::Put
        } else {
            Ended::Get
        };
        if !self.ops.ended(one.op, what, event.mlength, event.fail) {
            self.hostile();
        }
    }

    /// Copies a get out of its chunk. The chunk of a put is only freed.
    #[inline]
    fn bounced(&mut self, chunk: u32, event: &Event) {
        if event.kind == EventKind::Reply
            && event.fail == NiFail::Ok
            && let Some(ChunkUse::Get(into)) = self.uses.get(chunk as usize)
        {
            let bytes = self.reqsb.bytes(chunk, 0).take(event.mlength as usize);
            into.write_shared(0, bytes);
        }
        self.free_chunk(chunk);
    }
}

/// A message that has landed, as its event has it.
#[inline]
fn arrived<'a>(event: &Event, bytes: SharedBytes<'a>) -> Arrived<'a> {
    Arrived {
        initiator: event.initiator,
        match_bits: event.match_bits,
        hdr_data: event.hdr_data,
        bytes,
    }
}

/// The rank that the request in a chunk went to.
#[inline]
pub(crate) fn asked(uses: &[ChunkUse], chunk: u32) -> Option<u32> {
    match uses.get(chunk as usize) {
        Some(ChunkUse::Request(to)) => Some(*to),
        _ => None,
    }
}
