//! Sending replies: the handler's draft, or an empty reply (gasnet.md section 4).
//!
//! A reply needs no credits: it lands in the chunk that its request was sent from, and its events are within
//! the size of the SAFE queue. Its other resources are reserved before the request is handled.

use doorbell_fabric::message::{Body, Landing};
use doorbell_fabric::ni::{AckReq, Md, MdHandle, MdOptions, Memory, Ni, Piece, Put, Target};

use crate::conduit::Conduit;
use crate::config::RAR_INDEX;
use crate::deferred::Then;
use crate::error::Fault;
use crate::handler::NO_OP;
use crate::long::{PLACED_FROM, placed_at};
use crate::match_bits::{AmData, AmHeader, Flags, Id, LongData, LongSource, REPLY_LID};
use crate::putget::SENDS;
use crate::receiver::Owed;
use crate::source::{PACKED_OFFSET, padded, view};
use crate::token::{Draft, DraftData, From};

/// The reply of a handler that did not reply.
const NOTHING: Draft = Draft {
    flags: Flags::SHORT,
    handler: NO_OP,
    args: 0,
    other: 0,
    length: 0,
    data: None,
};

impl<N: Ni> Conduit<N> {
    /// Sends what the handler has drafted, with the credits of the request, into the requester's chunk.
    #[inline]
    pub(crate) fn send_reply(&mut self, owed: Owed) {
        let Owed {
            source: to,
            chunk,
            due,
        } = owed;
        let mut draft = self.outbox.draft.take().unwrap_or_else(|| {
            self.stats.no_reply += 1;
            NOTHING
        });
        let credit = self.credits.answer(to, due).wire();
        let Some(process) = self.ranks.process(to) else {
            return;
        };
        self.place_reply(process, &mut draft);
        self.stats.replies[kind(draft.flags)] += 1;
        let mut other = draft.other;
        if let Some(data) = draft.data.take() {
            other = REPLY_LID | self.next_lid;
            self.next_lid = (self.next_lid + 1) & (REPLY_LID - 1);
            let bits = LongData {
                id: Id::RarSrc,
                args: draft.args,
                handler: draft.handler,
                thread: self.settings.thread,
                source: self.me,
                lid: other,
            };
            self.reply_long_data(process, bits, data);
        }
        // In hand, or no request would have been looked at.
        let Some(own) = self.held.chunk else {
            return;
        };
        let target = Target {
            process,
            pt_index: RAR_INDEX,
            match_bits: AmHeader {
                id: Id::ReqSb,
                flags: draft.flags,
                handler: draft.handler,
                args: draft.args,
                offset: 0,
            }
            .bits(),
            remote_offset: u64::from(chunk),
        };
        let hdr_data = AmData {
            source: self.me,
            other,
            credit,
        }
        .bits();
        let at = self.rplsb.offset(own) as usize;
        let bytes = self
            .rplsb
            .memory()
            .as_shared()
            .skip(at)
            .take(draft.length as usize);
        if !self.is_full(process)
            && let Some(Ok(())) = self.ni.put_bytes(&target, hdr_data, &[], Body::Shared(bytes))
        {
            self.begun = true;
            return;
        }
        let volatile = u64::from(draft.length) <= self.objects.volatile;
        let mark = if volatile { 0 } else { SENDS };
        let put = Put {
            from: Piece {
                md: if volatile {
                    self.objects.rplsb.volatile
                } else {
                    self.objects.rplsb.send
                },
                offset: u64::from(self.rplsb.offset(own)),
            },
            length: u64::from(draft.length),
            ack: AckReq::None,
            target,
            user_ptr: AmHeader {
                id: Id::RplSb,
                flags: draft.flags,
                handler: draft.handler,
                args: draft.args,
                offset: own | mark,
            }
            .bits(),
            hdr_data,
        };
        if !volatile {
            // The SEND returns ticket and chunk.
            self.held.spend_ticket();
            self.held.spend_chunk();
            self.replies_under_way += 1;
            self.begin_put(&put, Then::Nothing);
        } else if !self.begin_put(&put, Then::FreeReply(own)) {
            self.held.spend_chunk();
            self.replies_under_way += 1;
        }
    }

    /// Places the data of a Long reply in the requester's segment, if that was offered: its header names the
    /// place.
    #[inline]
    fn place_reply(&mut self, process: doorbell_fabric::ni::Process, draft: &mut Draft) {
        let Some((data, own)) = draft.data.as_ref().zip(self.held.chunk) else {
            return;
        };
        let target = placed_at(process, data.to);
        let whole = padded(usize::from(draft.args)) + PACKED_OFFSET;
        if data.length < PLACED_FROM || whole > self.rplsb.size() as usize {
            return;
        }
        let bytes = match &data.from {
            From::Segment(offset) => {
                let bytes = self.segment.as_shared().skip(*offset as usize);
                bytes.take(data.length as usize)
            }
            From::Memory(memory) => view(memory),
        };
        if !self.ni.can_place(&target, data.length) || !self.ni.place(&target, bytes) {
            return;
        }
        let at = self.rplsb.offset(own) as usize + whole - PACKED_OFFSET;
        self.rplsb.memory().write(at, &data.to.to_le_bytes());
        draft.flags = Flags::PLACED;
        draft.other = data.length as u32;
        draft.length = whole as u32;
        draft.data = None;
    }

    /// The data of an unpacked Long reply.
    fn reply_long_data(&mut self, process: doorbell_fabric::ni::Process, bits: LongData, data: DraftData) {
        let (id, from, temporary) = match data.from {
            From::Segment(offset) => {
                let md = self.objects.segment.send;
                (Id::RarSrc, Piece { md, offset }, 0)
            }
            From::Memory(memory) => {
                let Some(number) = self.held.spend_temporary() else {
                    return;
                };
                let Some(md) = self.bind(number, memory, MdOptions::NONE) else {
                    return;
                };
                (Id::Temporary, Piece { md, offset: 0 }, number)
            }
        };
        self.held.spend_ticket();
        self.replies_under_way += 1;
        let put = Put {
            from,
            length: data.length,
            ack: AckReq::None,
            target: Target {
                process,
                pt_index: RAR_INDEX,
                match_bits: bits.match_bits(),
                remote_offset: data.to,
            },
            user_ptr: LongSource {
                id,
                op: None,
                temporary,
            }
            .bits(),
            hdr_data: bits.hdr_data(),
        };
        self.begin_put(&put, Then::Nothing);
    }

    /// Binds a temporary descriptor over a caller's memory; `None` is a failure of the interface, which is
    /// recorded, and the ticket is returned.
    pub(crate) fn bind(&mut self, number: u32, memory: Landing, options: MdOptions) -> Option<MdHandle> {
        let md = Md {
            memory: Memory::One(memory),
            options,
            eq: Some(self.objects.queues.safe),
            ct: None,
        };
        match self.ni.md_bind(md) {
            Ok(md) => {
                self.temporaries.bind(number, md);
                Some(md)
            }
            Err(error) => {
                self.temporaries.give(number);
                self.fail(Fault::Interface(error));
                None
            }
        }
    }
}

/// Returns which count of the statistics: Short, Medium, packed Long, unpacked Long.
#[inline]
pub(crate) const fn kind(flags: Flags) -> usize {
    if flags.has(Flags::SHORT) {
        0
    } else if flags.has(Flags::MEDIUM) {
        1
    } else if flags.has(Flags::PACKED) && !flags.has(Flags::PLACED) {
        2
    } else {
        3
    }
}
