//! Requests: Short, Medium, Long; without waiting, with the caller's wait, and written in place (gasnet.md section 4).
//!
//! What a request takes: credits of the peer, send tickets (two for an unpacked Long), one chunk, and a temporary descriptor if
//! an unpacked payload is outside of the segment. The original takes them in that order, and waits in between; here all are
//! looked at and taken in one step, or none is, so that nothing is held by whoever waits. Credits come last in that step, for
//! a refusal there is remembered, and told to the peer as a need once the request goes.
//!
//! A message to oneself takes none of them: its handlers run in the call.

use doorbell_fabric::ni::{AckReq, MdOptions, Ni, Piece, Process, Put, Target};
use doorbell_fabric::time::Time;

use crate::bits::{AmData, AmHeader, Flags, Id, LongData, LongSource, OpRef};
use crate::chunks::ChunkUse;
use crate::conduit::{Conduit, Then};
use crate::config::AM_INDEX;
use crate::credit::{Ask, CreditByte, NoCredits, credits_for};
use crate::error::{AmError, Stall, Try};
use crate::handler::MAX_ARGS;
use crate::ops::Handle;
use crate::putget::SENDS;
use crate::reply::kind;
use crate::source::{ARGS_BYTES, PACKED_OFFSET, Source, args_bytes, padded, write_args};
use crate::token::{checked, inside, reaches, too_long};

/// What the conduit's blocking calls do while they wait: the caller's clock, and its patience.
///
/// Each time that nothing can be done before something arrives, `wait` is asked. It says what time it is, and the conduit polls;
/// or it says `None`, and the call ends with [`AmError::Ended`].
pub trait Wait {
    /// What time it is, or that the wait is over.
    fn wait(&mut self, stall: Stall) -> Option<Time>;
}

impl<F: FnMut(Stall) -> Option<Time>> Wait for F {
    fn wait(&mut self, stall: Stall) -> Option<Time> {
        self(stall)
    }
}

/// A Long request that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongSent {
    /// `None`: its source may be changed now. Else when this was synchronised.
    pub source: Option<Handle>,
}

/// What a request is, before anything is taken for it.
#[derive(Clone, Copy)]
struct Head {
    flags: Flags,
    handler: u8,
    args: u8,
    /// Length of a payload that travels along.
    other: u32,
    /// Bytes in the chunk.
    length: usize,
}

/// What was taken for a request.
#[derive(Clone, Copy, Debug)]
struct Taken {
    process: Process,
    chunk: u32,
    credit: CreditByte,
}

impl<N: Ni> Conduit<N> {
    /// Arguments that a message carries.
    #[must_use]
    pub const fn max_args(&self) -> usize {
        MAX_ARGS
    }

    /// Bytes of payload that a Medium request with so many arguments carries.
    #[must_use]
    pub fn max_request_medium(&self, args: usize) -> usize {
        (self.reqsb.size() as usize).saturating_sub(padded(args))
    }

    /// Bytes of payload that every Medium carries, whatever its arguments: the chunk less 64.
    #[must_use]
    pub fn max_medium(&self) -> usize {
        self.reqsb.size() as usize - ARGS_BYTES
    }

    /// Bytes of a Long request to a rank: as far as its segment goes.
    ///
    /// # Errors
    /// [`AmError::NoSuchRank`].
    pub fn max_request_long(&self, to: u32) -> Result<u64, AmError> {
        Ok(self.segment_of(to)?.size.min(self.objects.most))
    }

    /// Bytes of payload that travel with the header of a Long with so many arguments.
    #[must_use]
    pub fn max_packed_long(&self, args: usize) -> usize {
        (self.reqsb.size() as usize).saturating_sub(padded(args) + PACKED_OFFSET)
    }

    /// Sends a request with arguments, if that can be done without waiting.
    ///
    /// # Errors
    /// [`AmError`]: the message cannot be, or the rank cannot be reached.
    #[inline]
    pub fn try_request_short(&mut self, to: u32, handler: u8, args: &[u32]) -> Result<Try<()>, AmError> {
        self.short(to, handler, args)
    }

    /// Sends a request with arguments; waits for what it needs, and handles what arrives meanwhile.
    ///
    /// # Errors
    /// As [`Self::try_request_short`], and [`AmError::Ended`].
    pub fn request_short(
        &mut self,
        to: u32,
        handler: u8,
        args: &[u32],
        wait: &mut (impl Wait + ?Sized),
    ) -> Result<(), AmError> {
        self.insist(wait, |conduit| conduit.short(to, handler, args))
    }

    /// Sends a request with arguments and a payload, which the handler sees while it runs, if that can be done without
    /// waiting. The payload is copied: its source may be changed at once.
    ///
    /// # Errors
    /// [`AmError`]: the message cannot be, or the rank cannot be reached.
    pub fn try_request_medium<'a>(
        &mut self,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: impl Into<Source<'a>>,
    ) -> Result<Try<()>, AmError> {
        self.medium(to, handler, args, &payload.into())
    }

    /// The same; waits for what it needs, and handles what arrives meanwhile.
    ///
    /// # Errors
    /// As [`Self::try_request_medium`], and [`AmError::Ended`].
    pub fn request_medium<'a>(
        &mut self,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: impl Into<Source<'a>>,
        wait: &mut (impl Wait + ?Sized),
    ) -> Result<(), AmError> {
        let payload = payload.into();
        self.insist(wait, |conduit| conduit.medium(to, handler, args, &payload))
    }

    /// Sends a request with arguments and a payload that lands at offset `place` of the rank's segment, if that can be done
    /// without waiting. Bytes that are only borrowed travel with the header, so they must fit ([`Self::max_packed_long`]).
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

    /// The same; waits for what it needs, and handles what arrives meanwhile.
    ///
    /// # Errors
    /// As [`Self::try_request_long`], and [`AmError::Ended`].
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

    /// Room for the payload of a Medium request, of `least` to `most` bytes: as many as the peer's credits allow now, so that a
    /// shorter message goes rather than none. Then [`PreparedMedium::commit`], which cannot fail for want of anything.
    ///
    /// # Errors
    /// [`AmError`]: `least` is more than a Medium carries, or the rank cannot be reached.
    pub fn prepare_medium(
        &mut self,
        to: u32,
        args: usize,
        least: usize,
        most: usize,
    ) -> Result<Try<PreparedMedium<'_, N>>, AmError> {
        if args > MAX_ARGS {
            return Err(AmError::TooManyArgs { given: args });
        }
        self.reachable(to)?;
        let limit = self.max_request_medium(args);
        if least > limit {
            return Err(too_long(
                "a Medium request",
                least as u64,
                limit as u64,
                "request_medium",
            ));
        }
        let head = padded(args);
        let mut room = most.clamp(least, limit);
        if to != self.me {
            let Some(mut credits) = credits_for(self.settings.chunk, head + room) else {
                return Ok(Try::Stalled(Stall::Credits));
            };
            while credits > 1 && !self.economy.has(to, credits) {
                credits -= 1;
            }
            room = room.min((usize::from(credits) * crate::credit::BYTES_PER_CREDIT).saturating_sub(head));
            if room < least {
                return Ok(self.stall(Stall::Credits));
            }
        }
        let taken = if to == self.me {
            self.take_for_self()
        } else {
            self.take(to, head + room, 1)?
        };
        let taken = match taken {
            Try::Done(taken) => taken,
            Try::Stalled(stall) => return Ok(Try::Stalled(stall)),
        };
        Ok(Try::Done(PreparedMedium {
            conduit: self,
            to,
            args,
            room,
            taken: Some(taken),
        }))
    }

    /// Calls until it is done, and polls in between.
    pub(crate) fn insist<T>(
        &mut self,
        wait: &mut (impl Wait + ?Sized),
        mut attempt: impl FnMut(&mut Self) -> Result<Try<T>, AmError>,
    ) -> Result<T, AmError> {
        loop {
            match attempt(self)? {
                Try::Done(value) => return Ok(value),
                Try::Stalled(stall) => {
                    let now = wait.wait(stall).ok_or(AmError::Ended(stall))?;
                    self.wait_step(stall, now)?;
                }
            }
        }
    }

    #[inline]
    fn short(&mut self, to: u32, handler: u8, args: &[u32]) -> Result<Try<()>, AmError> {
        let head = Head {
            flags: Flags::SHORT,
            handler,
            args: checked(args)?,
            other: 0,
            length: args_bytes(args.len()),
        };
        self.reachable(to)?;
        if to == self.me {
            return self.short_to_self(handler, args);
        }
        match self.take(to, head.length, 1)? {
            Try::Stalled(stall) => Ok(Try::Stalled(stall)),
            Try::Done(taken) => {
                if !args.is_empty() {
                    write_args(args, self.reqsb.memory(), self.reqsb.offset(taken.chunk) as usize);
                }
                self.send_header(to, head, taken);
                Ok(Try::Done(()))
            }
        }
    }

    fn medium(
        &mut self,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &Source<'_>,
    ) -> Result<Try<()>, AmError> {
        let count = checked(args)?;
        self.reachable(to)?;
        inside(payload, &self.segment, self.me)?;
        let most = self.max_request_medium(args.len()) as u64;
        if payload.len() > most {
            return Err(too_long(
                "a Medium request",
                payload.len(),
                most,
                "request_medium",
            ));
        }
        if to == self.me {
            return self.medium_to_self(handler, args, payload);
        }
        let length = padded(args.len()) + payload.len() as usize;
        match self.take(to, length, 1)? {
            Try::Stalled(stall) => Ok(Try::Stalled(stall)),
            Try::Done(taken) => {
                let at = self.reqsb.offset(taken.chunk) as usize;
                write_args(args, self.reqsb.memory(), at);
                payload.copy_into(&self.segment, self.reqsb.memory(), at + padded(args.len()));
                let head = Head {
                    flags: Flags::MEDIUM,
                    handler,
                    args: count,
                    other: payload.len() as u32,
                    length,
                };
                self.send_header(to, head, taken);
                Ok(Try::Done(()))
            }
        }
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

    /// Packed when that is on, header and payload fit one chunk, and packing is not what makes it wait for credits.
    fn goes_packed(&self, to: u32, args: usize, length: u64, may_go_alone: bool) -> bool {
        if !may_go_alone {
            return true;
        }
        if !self.settings.packed_long || length > self.max_packed_long(args) as u64 {
            return false;
        }
        let whole = padded(args) + PACKED_OFFSET + length as usize;
        let packed = credits_for(self.settings.chunk, whole);
        packed.is_some_and(|packed| self.economy.has(to, packed) || !self.economy.has(to, UNPACKED_CREDITS))
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
        // One of the two tickets: it comes back with the SEND of the data.
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

    /// Where the data of an unpacked Long leaves from.
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

    /// Takes a chunk and the credits of a message of so many bytes, and one credit more for an unpacked Long's data. A ticket is
    /// only looked at: it is taken when the message is one that SEND ends.
    #[inline]
    fn take(&mut self, to: u32, bytes: usize, events: u8) -> Result<Try<Taken>, AmError> {
        let Some(process) = self.ranks.process(to) else {
            return Err(AmError::NoSuchRank {
                rank: to,
                size: self.size(),
            });
        };
        if self.is_full(process) {
            return Ok(self.stall(Stall::Interface));
        }
        if self.tickets.free() == 0 {
            return Ok(self.stall(Stall::Tickets));
        }
        if self.reqsb.free() == 0 {
            return Ok(self.stall(Stall::Chunk));
        }
        let Some(credits) = credits_for(self.settings.chunk, bytes) else {
            return Err(too_long(
                "a message",
                bytes as u64,
                u64::from(self.reqsb.size()),
                "medium",
            ));
        };
        // One that stalled before counts as the same one, in whichever form it is tried again: its stall counts once, and what
        // it lacked then is told when one goes.
        let Some(ask) = self.asks.get_mut(to as usize) else {
            return Ok(self.stall(Stall::Credits));
        };
        ask.renew(credits + (events - 1));
        match self.economy.take(to, ask) {
            Ok(credit) => match self.reqsb.take() {
                Some(chunk) => {
                    *ask = Ask::new(1);
                    if let Some(slot) = self.uses.get_mut(chunk as usize) {
                        *slot = ChunkUse::Request(to);
                    }
                    Ok(Try::Done(Taken {
                        process,
                        chunk,
                        credit,
                    }))
                }
                None => {
                    self.economy.untake(to, credit);
                    Ok(self.stall(Stall::Chunk))
                }
            },
            Err(NoCredits::Stalled) => Ok(self.stall(Stall::Credits)),
            Err(error) => Err(error.into()),
        }
    }

    /// A chunk, and what the reply to oneself needs.
    fn take_for_self(&mut self) -> Try<Taken> {
        let Some(process) = self.ranks.process(self.me).filter(|_| self.hold()) else {
            return self.stall(Stall::Reply);
        };
        let Some(chunk) = self.reqsb.take() else {
            return self.stall(Stall::Chunk);
        };
        if let Some(slot) = self.uses.get_mut(chunk as usize) {
            *slot = ChunkUse::Request(self.me);
        }
        Try::Done(Taken {
            process,
            chunk,
            credit: CreditByte::NOTHING,
        })
    }

    fn untake(&mut self, to: u32, taken: Taken) {
        if to != self.me {
            self.economy.untake(to, taken.credit);
        }
        self.free_chunk(taken.chunk);
    }

    #[inline]
    pub(crate) fn stall<T>(&mut self, stall: Stall) -> Try<T> {
        self.stats.stalled(stall);
        Try::Stalled(stall)
    }

    /// Sends the header of a request; what travels along is in its chunk.
    #[inline]
    fn send_header(&mut self, to: u32, head: Head, taken: Taken) {
        debug_assert!(to != self.me && head.length <= self.reqsb.size() as usize);
        let offset = self.reqsb.offset(taken.chunk);
        let volatile = head.length as u64 <= self.objects.volatile;
        let mark = if volatile { 0 } else { SENDS };
        let header = |id, offset| AmHeader {
            id,
            flags: head.flags.with(Flags::REQUEST),
            handler: head.handler,
            args: head.args,
            offset,
        };
        let put = Put {
            from: Piece {
                md: if volatile {
                    self.objects.reqsb.volatile
                } else {
                    self.objects.reqsb.send
                },
                offset: u64::from(offset),
            },
            length: head.length as u64,
            ack: AckReq::None,
            target: Target {
                process: taken.process,
                pt_index: AM_INDEX,
                match_bits: header(Id::ReqRb, offset).bits(),
                remote_offset: 0,
            },
            user_ptr: header(Id::ReqSb, taken.chunk | mark).bits(),
            hdr_data: AmData {
                source: self.me,
                other: head.other,
                credit: taken.credit.wire(),
            }
            .bits(),
        };
        if !volatile {
            // Looked at before; SEND gives it back.
            let _ = self.tickets.take(1);
        }
        self.stats.requests[kind(head.flags)] += 1;
        self.begin_put(&put, Then::Nothing);
    }
}

/// Credits of an unpacked Long: its header, and the event of its data.
const UNPACKED_CREDITS: u8 = 2;

/// Room for the payload of a Medium request, with everything that it needs in hand. Dropped, all of it is given back.
#[derive(Debug)]
#[must_use = "nothing is sent before it is committed"]
pub struct PreparedMedium<'a, N: Ni> {
    conduit: &'a mut Conduit<N>,
    to: u32,
    args: usize,
    room: usize,
    taken: Option<Taken>,
}

impl<N: Ni> PreparedMedium<'_, N> {
    /// Bytes that fit.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.room
    }

    /// Whether none fits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.room == 0
    }

    /// Writes at offset `at` of the payload; returns how many bytes fitted.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> usize {
        let Some(taken) = self.taken else {
            return 0;
        };
        let room = self.room.saturating_sub(at);
        let bytes = bytes.get(..room.min(bytes.len())).unwrap_or(bytes);
        let start = self.conduit.reqsb.offset(taken.chunk) as usize + padded(self.args);
        self.conduit
            .reqsb
            .memory()
            .write(start + at.min(self.room), bytes)
    }

    /// Sends the first `length` bytes of it, with as many arguments as it was prepared for (or one less, where that moves
    /// nothing).
    ///
    /// # Errors
    /// [`AmError::TooManyArgs`], [`AmError::TooLong`]: nothing was sent, and everything was given back.
    pub fn commit(mut self, handler: u8, args: &[u32], length: usize) -> Result<(), AmError> {
        let count = checked(args)?;
        if padded(args.len()) != padded(self.args) {
            return Err(AmError::TooManyArgs { given: args.len() });
        }
        if length > self.room {
            return Err(too_long(
                "a Medium request",
                length as u64,
                self.room as u64,
                "request_medium",
            ));
        }
        let Some(taken) = self.taken.take() else {
            return Ok(());
        };
        let conduit = &mut *self.conduit;
        let start = conduit.reqsb.offset(taken.chunk) as usize;
        if self.to == conduit.me {
            let memory = conduit.reqsb.memory().clone();
            let bytes = memory.as_shared().skip(start + padded(args.len())).take(length);
            let sent = conduit.medium_to_self(handler, args, &Source::Shared(bytes));
            conduit.free_chunk(taken.chunk);
            return sent.map(|_| ());
        }
        write_args(args, conduit.reqsb.memory(), start);
        let head = Head {
            flags: Flags::MEDIUM,
            handler,
            args: count,
            other: length as u32,
            length: padded(args.len()) + length,
        };
        conduit.send_header(self.to, head, taken);
        Ok(())
    }
}

impl<N: Ni> Drop for PreparedMedium<'_, N> {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            self.conduit.untake(self.to, taken);
        }
    }
}
