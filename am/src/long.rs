//! Long requests, whose payload lands in the peer's segment (gasnet.md section 4).
//!
//! Packed, the payload is in the message of its header, if that is on, both fit one chunk, and packing alone
//! would not make it wait for credits. Otherwise it is a message of its own, and the target's LID cache joins
//! the two. Where the peer has offered its segment (over shared memory, after some Longs), the payload is
//! written there first, and the header is the only message.

use doorbell_fabric::ni::{AckReq, MdOptions, Ni, Piece, Process, Put, Target};

use crate::conduit::Conduit;
use crate::config::{AM_INDEX, RAR_INDEX};
use crate::credit::credits_for;
use crate::deferred::Then;
use crate::error::{AmError, Stall, Try};
use crate::match_bits::{Flags, Id, LongData, LongSource, OpRef};
use crate::ops::Handle;
use crate::request::{Head, Wait};
use crate::source::{PACKED_OFFSET, Source, args_bytes, padded, write_args};
use crate::token::{checked, inside, reaches, too_long};

/// A Long request that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongSent {
    /// `None`: its source may be changed now. Else when this was synchronised.
    pub source: Option<Handle>,
}

impl<N: Ni> Conduit<N> {
    /// Sends a request with arguments and a payload that lands at offset `place` of the rank's segment, if
    /// that can be done without waiting. Bytes that are only borrowed travel with the header, so they must
    /// fit ([`Self::max_packed_long`]).
    ///
    /// # Errors
    /// [`AmError`]: the message cannot be, or the rank cannot be reached.
    pub fn try_request_long<'a>(
        &mut self,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: impl Into<Source<'a>>,
        place: u64,
    ) -> Result<Try<LongSent>, AmError> {
        self.long(to, handler, args, &payload.into(), place)
    }

    /// Sends a Long request; waits for what it needs, and handles what arrives meanwhile.
    ///
    /// # Errors
    /// Those of [`Self::try_request_long`], and [`AmError::Ended`].
    pub fn request_long<'a>(
        &mut self,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: impl Into<Source<'a>>,
        place: u64,
        wait: &mut (impl Wait + ?Sized),
    ) -> Result<LongSent, AmError> {
        let payload = payload.into();
        self.insist(wait, |conduit| conduit.long(to, handler, args, &payload, place))
    }

    fn long(
        &mut self,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &Source<'_>,
        place: u64,
    ) -> Result<Try<LongSent>, AmError> {
        let count = checked(args)?;
        self.reachable(to)?;
        inside(payload, &self.segment, self.me)?;
        let length = payload.len();
        reaches(to, place, length, self.segment_of(to)?.size)?;
        if length > self.objects.most {
            return Err(too_long(
                "a Long request",
                length,
                self.objects.most,
                "request_long",
            ));
        }
        if to == self.me {
            return self.long_to_self(handler, args, payload, place);
        }
        let room = self.max_packed_long(args.len()) as u64;
        let may_go_alone = payload.stays() && length > 0;
        if length > room && !may_go_alone {
            return Err(AmError::MustStay {
                given: length,
                most: room,
            });
        }
        if length >= PLACED_FROM
            && let Some(placed) = self.placed_long(to, (handler, count), args, payload, place)?
        {
            return Ok(placed);
        }
        if !self.goes_packed(to, args.len(), length, may_go_alone) {
            return self.unpacked_long(to, (handler, count), args, payload, place);
        }
        let whole = padded(args.len()) + PACKED_OFFSET + length as usize;
        match self.take(to, whole, 1)? {
            Try::Stalled(stall) => Ok(Try::Stalled(stall)),
            Try::Done(taken) => {
                let start = self.reqsb.offset(taken.chunk) as usize;
                let at = start + padded(args.len());
                let memory = self.reqsb.memory();
                write_args(args, memory, start);
                memory.write(at, &place.to_le_bytes());
                payload.copy_into(&self.segment, memory, at + PACKED_OFFSET);
                let head = Head {
                    flags: Flags::LONG.with(Flags::PACKED),
                    handler,
                    args: count,
                    other: length as u32,
                    length: whole,
                };
                self.send_header(to, head, taken);
                Ok(Try::Done(LongSent { source: None }))
            }
        }
    }

    /// Writes the payload into the rank's segment and sends a header that names its place, if the segment was
    /// offered.
    /// `None`: it was not, and nothing was done.
    fn placed_long(
        &mut self,
        to: u32,
        (handler, count): (u8, u8),
        args: &[u32],
        payload: &Source<'_>,
        place: u64,
    ) -> Result<Option<Try<LongSent>>, AmError> {
        let Some(process) = self.ranks.process(to) else {
            return Ok(None);
        };
        let target = placed_at(process, place);
        if !self.ni.can_place(&target, payload.len()) {
            return Ok(None);
        }
        let at = padded(args.len());
        let head = Head {
            flags: Flags::PLACED,
            handler,
            args: count,
            other: payload.len() as u32,
            length: at + PACKED_OFFSET,
        };
        let ask = self.asks.get(to as usize).copied();
        let taken = match self.take(to, head.length, 1)? {
            Try::Stalled(stall) => return Ok(Some(Try::Stalled(stall))),
            Try::Done(taken) => taken,
        };
        if !self.ni.place(&target, payload.bytes(&self.segment)) {
            self.untake(to, taken);
            // It goes on as the same request: what it lacked is still to be reported.
            if let (Some(slot), Some(ask)) = (self.asks.get_mut(to as usize), ask) {
                *slot = ask;
            }
            return Ok(None);
        }
        let place = place.to_le_bytes();
        if !self.send_payload(head, taken, args, &Source::Bytes(&place)) {
            let start = self.reqsb.offset(taken.chunk) as usize;
            write_args(args, self.reqsb.memory(), start);
            self.reqsb.memory().write(start + at, &place);
            self.send_header(to, head, taken);
        }
        Ok(Some(Try::Done(LongSent { source: None })))
    }

    /// Packed when that is on, header and payload fit one chunk, and packing is not what makes it wait for
    /// credits.
    fn goes_packed(&self, to: u32, args: usize, length: u64, may_go_alone: bool) -> bool {
        if !may_go_alone {
            return true;
        }
        if !self.settings.packed_long || length > self.max_packed_long(args) as u64 {
            return false;
        }
        let whole = padded(args) + PACKED_OFFSET + length as usize;
        let packed = credits_for(self.settings.chunk, whole);
        packed.is_some_and(|packed| self.credits.has(to, packed) || !self.credits.has(to, UNPACKED_CREDITS))
    }

    fn unpacked_long(
        &mut self,
        to: u32,
        (handler, count): (u8, u8),
        args: &[u32],
        payload: &Source<'_>,
        place: u64,
    ) -> Result<Try<LongSent>, AmError> {
        if self.tickets.free() < 2 {
            return Ok(self.stall(Stall::Tickets));
        }
        let (address, handle) = self.ops.begin()?;
        let op = Some(self.ops.reference(address));
        let (from, source) = match self.long_source(payload, op)? {
            Try::Done(from) => from,
            Try::Stalled(stall) => {
                self.ops.abandon(handle);
                return Ok(Try::Stalled(stall));
            }
        };
        let taken = match self.take(to, args_bytes(args.len()), 2) {
            Ok(Try::Done(taken)) => taken,
            refused => {
                if source.id == Id::Temporary {
                    self.release(source.temporary);
                }
                self.ops.abandon(handle);
                return refused.map(|refused| refused.map(|_| LongSent { source: None }));
            }
        };
        // One of the two tickets: the SEND of the data returns it.
        let _ = self.tickets.take(1);
        self.ops.source_begun(address, to);
        let lid = self.reqsb.offset(taken.chunk);
        let bits = LongData {
            id: Id::RarAm,
            args: count,
            handler,
            thread: self.settings.thread,
            source: self.me,
            lid,
        };
        let data = Put {
            from,
            length: payload.len(),
            ack: AckReq::None,
            target: Target {
                process: taken.process,
                pt_index: AM_INDEX,
                match_bits: bits.match_bits(),
                remote_offset: place,
            },
            user_ptr: source.bits(),
            hdr_data: bits.hdr_data(),
        };
        write_args(args, self.reqsb.memory(), lid as usize);
        self.begin_put(&data, Then::Nothing);
        let head = Head {
            flags: Flags::LONG.with(Flags::SYNC),
            handler,
            args: count,
            other: 0,
            length: args_bytes(args.len()),
        };
        self.send_header(to, head, taken);
        Ok(Try::Done(LongSent { source: Some(handle) }))
    }

    /// Returns where the data of an unpacked Long leaves from.
    fn long_source(
        &mut self,
        payload: &Source<'_>,
        op: Option<OpRef>,
    ) -> Result<Try<(Piece, LongSource)>, AmError> {
        match payload {
            Source::Segment { offset, .. } => {
                let from = Piece {
                    md: self.objects.segment.send,
                    offset: *offset,
                };
                let source = LongSource {
                    id: Id::RarSrc,
                    op,
                    temporary: 0,
                };
                Ok(Try::Done((from, source)))
            }
            Source::Memory(memory) => {
                let Some(temporary) = self.temporaries.take() else {
                    return Ok(self.stall(Stall::Temporary));
                };
                let Some(md) = self.bind(temporary, memory.clone(), MdOptions::NONE) else {
                    self.health()?;
                    return Ok(self.stall(Stall::Temporary));
                };
                let source = LongSource {
                    id: Id::Temporary,
                    op,
                    temporary,
                };
                Ok(Try::Done((Piece { md, offset: 0 }, source)))
            }
            // These do not outlive the call.
            Source::Bytes(_) | Source::Shared(_) => Err(AmError::MustStay {
                given: payload.len(),
                most: self.max_packed_long(0) as u64,
            }),
        }
    }
}

/// Shortest payload in bytes that is placed: a shorter one would have to be in order with what was sent
/// before it.
pub(crate) const PLACED_FROM: u64 = 513;

/// Where the payload of a Long is placed.
pub(crate) const fn placed_at(process: Process, place: u64) -> Target {
    Target {
        process,
        pt_index: RAR_INDEX,
        match_bits: Id::Rar as u64,
        remote_offset: place,
    }
}

/// Credits of an unpacked Long: its header, and the event of its data.
const UNPACKED_CREDITS: u8 = 2;
