//! What arrives: requests and their data on the AM queue, replies and the ends of our own operations on the
//! SAFE queue (gasnet.md sections 3 and 4).
//!
//! Whatever a peer wrote is looked at before it is believed: the process that sent it must be the rank that
//! it names, lengths must add up, offsets must be inside. What does not is counted and dropped.

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::ni::{Event, EventKind, List, Ni, NiFail};

use crate::chunks::ChunkUse;
use crate::conduit::Conduit;
use crate::credit::CreditByte;
use crate::error::Fault;
use crate::handler::{Handlers, MAX_ARGS, Payload, Reply};
use crate::long_cache::{Half, ReplyHeader, RequestHeader};
use crate::match_bits::{AmData, AmHeader, Flags, Id, Kind, LongData, LongSource, OneSided, REPLY_LID};
use crate::objects;
use crate::ops::Ended;
use crate::putget::SENDS;
use crate::source::{PACKED_OFFSET, args_bytes, padded, read_args};
use crate::token::{Outbox, Request};

/// Where a message's payload is, once its lengths have been found to add up.
enum Body<'a> {
    Short,
    Medium(SharedBytes<'a>),
    /// The payload is to be copied to this offset of the segment.
    Packed(u64, SharedBytes<'a>),
    /// The payload is a message of its own.
    Unpacked,
}

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
        let data = AmData::of(event.hdr_data);
        let Some(header) = AmHeader::of(event.match_bits) else {
            return self.hostile();
        };
        if event.rlength != event.mlength
            || !header.flags.has(Flags::REQUEST)
            || header.offset >= REPLY_LID
            || self.ranks.process(data.source) != Some(event.initiator)
        {
            return self.hostile();
        }
        let Some(bytes) = self.reqrb.bytes(buffer, event.place, event.mlength) else {
            return self.hostile();
        };
        let Some(body) = body(&header, &data, bytes) else {
            return self.hostile();
        };
        let Ok(due) = self
            .credits
            .arrived(data.source, CreditByte::from_wire(data.credit))
        else {
            return self.hostile();
        };
        let (source, handler) = (data.source, header.handler);
        let args = read_args(usize::from(header.args), bytes);
        let count = usize::from(header.args);
        let payload = match body {
            Body::Short => Payload::None,
            Body::Medium(bytes) => Payload::Medium(bytes),
            Body::Packed(offset, bytes) => {
                let length = bytes.len() as u64;
                let end = offset.checked_add(length);
                if end.is_none_or(|end| end > self.segment.len() as u64) {
                    // Its credits go back all the same: that the place is wrong is the requester's mistake,
                    // not a thief's.
                    self.hostile();
                    return self.send_reply(source, header.offset, due);
                }
                self.segment.write_shared(offset as usize, bytes);
                Payload::Long {
                    offset,
                    bytes: self.segment.as_shared().skip(offset as usize).take(bytes.len()),
                }
            }
            Body::Unpacked => {
                let kept = RequestHeader {
                    handler,
                    count: header.args,
                    args,
                    chunk: header.offset,
                    due,
                };
                return self.request_half(source, kept);
            }
        };
        address(&mut self.outbox, source, &self.remotes);
        let args = args.get(..count).unwrap_or(&args);
        let found = run_request(
            &mut self.handlers,
            &mut self.outbox,
            source,
            handler,
            args,
            payload,
        );
        self.ran(found);
        self.send_reply(source, header.offset, due);
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
                    address(&mut self.outbox, source, &self.remotes);
                    self.send_reply(source, header.chunk, header.due);
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
        address(&mut self.outbox, source, &self.remotes);
        let bytes = self
            .segment
            .as_shared()
            .skip(offset as usize)
            .take(length as usize);
        let payload = Payload::Long { offset, bytes };
        let args = args.get(..usize::from(count)).unwrap_or(&args);
        let found = run_request(
            &mut self.handlers,
            &mut self.outbox,
            source,
            handler,
            args,
            payload,
        );
        self.ran(found);
        self.send_reply(source, chunk, due);
    }

    #[inline]
    fn ran(&mut self, found: bool) {
        self.stats.handled[0] += 1;
        self.stats.unhandled += u64::from(!found);
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
        let data = AmData::of(event.hdr_data);
        let (Some(header), Some(chunk)) = (AmHeader::of(event.match_bits), self.reqsb.at(event.place)) else {
            return self.hostile();
        };
        let asked =
            matches!(self.uses.get(chunk as usize), Some(ChunkUse::Request(to)) if *to == data.source);
        if !asked
            || event.fail != NiFail::Ok
            || event.rlength != event.mlength
            || header.flags.has(Flags::REQUEST)
            || self.ranks.process(data.source) != Some(event.initiator)
        {
            return self.hostile();
        }
        let bytes = self.reqsb.bytes(chunk, 0).take(event.mlength as usize);
        let Some(body) = body(&header, &data, bytes) else {
            return self.hostile();
        };
        if bytes.len() as u64 != event.mlength
            || self
                .credits
                .replied(data.source, CreditByte::from_wire(data.credit))
                .is_err()
        {
            return self.hostile();
        }
        let payload = match body {
            Body::Short => Payload::None,
            Body::Medium(bytes) => Payload::Medium(bytes),
            Body::Packed(offset, bytes) => {
                let end = offset.checked_add(bytes.len() as u64);
                if end.is_none_or(|end| end > self.segment.len() as u64) {
                    self.hostile();
                    return self.free_chunk(chunk);
                }
                self.segment.write_shared(offset as usize, bytes);
                Payload::Long {
                    offset,
                    bytes: self.segment.as_shared().skip(offset as usize).take(bytes.len()),
                }
            }
            Body::Unpacked => {
                let kept = ReplyHeader {
                    chunk,
                    handler: header.handler,
                    count: header.args,
                };
                return self.reply_half(data.source, data.other, kept);
            }
        };
        let args = read_args(usize::from(header.args), bytes);
        let args = args.get(..usize::from(header.args)).unwrap_or(&args);
        let reply = Reply {
            source: data.source,
            args,
            payload,
        };
        let found = self.handlers.run_reply(header.handler, reply);
        self.reply_ran(found, chunk);
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

/// Points the outbox at a requester.
#[inline]
pub(crate) fn address(outbox: &mut Outbox, source: u32, remotes: &[crate::boot::RemoteSegment]) {
    outbox.requester = source;
    outbox.their_segment = remotes.get(source as usize).map_or(0, |remote| remote.size);
    outbox.draft = None;
}

/// Runs the handler of a request; whether there is one.
#[inline]
pub(crate) fn run_request(
    handlers: &mut Handlers,
    outbox: &mut Outbox,
    source: u32,
    handler: u8,
    args: &[u32],
    payload: Payload<'_>,
) -> bool {
    handlers.run_request(
        handler,
        Request {
            source,
            args,
            payload,
            outbox,
        },
    )
}

/// Whether the flags are one valid kind of message, and the lengths add up.
#[inline]
fn body<'a>(header: &AmHeader, data: &AmData, bytes: SharedBytes<'a>) -> Option<Body<'a>> {
    let count = usize::from(header.args);
    if count > MAX_ARGS {
        return None;
    }
    let kind = header.flags.0 & !Flags::REQUEST.0;
    let other = data.other as usize;
    const SHORT: u8 = Flags::SHORT.0;
    const MEDIUM: u8 = Flags::MEDIUM.0;
    const PACKED: u8 = Flags::LONG.with(Flags::PACKED).0;
    const UNPACKED: u8 = Flags::LONG.with(Flags::SYNC).0;
    match kind {
        SHORT if bytes.len() == args_bytes(count) => Some(Body::Short),
        MEDIUM if bytes.len() == padded(count) + other => Some(Body::Medium(bytes.skip(padded(count)))),
        PACKED if bytes.len() == padded(count) + PACKED_OFFSET + other => {
            let to = bytes.read(padded(count)).map(u64::from_le_bytes)?;
            Some(Body::Packed(to, bytes.skip(padded(count) + PACKED_OFFSET)))
        }
        UNPACKED if bytes.len() == args_bytes(count) => Some(Body::Unpacked),
        _ => None,
    }
}
