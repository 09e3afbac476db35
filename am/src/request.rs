//! Requests: Short, Medium, Long; without waiting, with the caller's wait, and written in place (gasnet.md
//! section 4).
//!
//! What a request takes: credits of the peer, send tickets (two for an unpacked Long), one chunk, and a
//! temporary descriptor if an unpacked payload is outside of the segment. The original takes them in that
//! order, and waits in between; here all are looked at and taken in one step, or none is, so that a request
//! that waits holds nothing. Credits come last in that step, for a refusal there is remembered, and reported
//! to the peer as a need once the request goes.
//!
//! A message to oneself takes none of them: its handlers run in the call.

use doorbell_fabric::message::Body;
use doorbell_fabric::ni::{AckReq, Ni, NiError, Piece, Process, Put, Target};
use doorbell_fabric::time::Time;

use crate::chunks::ChunkUse;
use crate::conduit::Conduit;
use crate::config::AM_INDEX;
use crate::credit::{Ask, CreditByte, NoCredits, credits_for};
use crate::deferred::Then;
use crate::error::{AmError, Stall, Try};
use crate::handler::MAX_ARGS;
use crate::match_bits::{AmData, AmHeader, Flags, Id};
use crate::putget::SENDS;
use crate::reply::kind;
use crate::source::{ARGS_BYTES, PACKED_OFFSET, Source, args_bytes, padded, pairs, write_args};
use crate::token::{checked, inside, too_long};

/// The wait of the conduit's blocking calls: the caller's clock, and its limit.
///
/// `wait` is called each time that nothing can be done before something arrives. It returns the time, and the
/// conduit polls; or `None`, and the call ends with [`AmError::Ended`].
pub trait Wait {
    /// Returns the time, or `None` when the wait is over.
    fn wait(&mut self, stall: Stall) -> Option<Time>;
}

impl<F: FnMut(Stall) -> Option<Time>> Wait for F {
    fn wait(&mut self, stall: Stall) -> Option<Time> {
        self(stall)
    }
}

/// What a request is, before anything is taken for it.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(crate) flags: Flags,
    pub(crate) handler: u8,
    pub(crate) args: u8,
    /// Length of a payload that travels along.
    pub(crate) other: u32,
    /// Bytes in the chunk.
    pub(crate) length: usize,
}

/// What was taken for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) process: Process,
    pub(crate) chunk: u32,
    pub(crate) credit: CreditByte,
}

impl<N: Ni> Conduit<N> {
    /// Arguments that a message carries.
    #[must_use]
    pub const fn max_args(&self) -> usize {
        MAX_ARGS
    }

    /// Largest payload in bytes of a Medium request with `args` arguments.
    #[must_use]
    pub fn max_request_medium(&self, args: usize) -> usize {
        (self.reqsb.size() as usize).saturating_sub(padded(args))
    }

    /// Bytes of payload that every Medium carries, whatever its arguments: the chunk less 64.
    #[must_use]
    pub fn max_medium(&self) -> usize {
        self.reqsb.size() as usize - ARGS_BYTES
    }

    /// Largest Long request to a rank, in bytes: the length of its segment.
    ///
    /// # Errors
    /// [`AmError::NoSuchRank`].
    pub fn max_request_long(&self, to: u32) -> Result<u64, AmError> {
        Ok(self.segment_of(to)?.size.min(self.objects.most))
    }

    /// Largest payload in bytes that is packed with the header of a Long with `args` arguments.
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
    /// Those of [`Self::try_request_short`], and [`AmError::Ended`].
    pub fn request_short(
        &mut self,
        to: u32,
        handler: u8,
        args: &[u32],
        wait: &mut (impl Wait + ?Sized),
    ) -> Result<(), AmError> {
        self.insist(wait, |conduit| conduit.short(to, handler, args))
    }

    /// Sends a request with arguments and a payload, which the handler sees while it runs, if that can be
    /// done without waiting. The payload is copied: its source may be changed at once.
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

    /// Sends a Medium request; waits for what it needs, and handles what arrives meanwhile.
    ///
    /// # Errors
    /// Those of [`Self::try_request_medium`], and [`AmError::Ended`].
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
                if !self.send_args(head, taken, args) {
                    write_args(args, self.reqsb.memory(), self.reqsb.offset(taken.chunk) as usize);
                    self.send_header(to, head, taken);
                }
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
                let head = Head {
                    flags: Flags::MEDIUM,
                    handler,
                    args: count,
                    other: payload.len() as u32,
                    length,
                };
                if !self.send_payload(head, taken, args, payload) {
                    let at = self.reqsb.offset(taken.chunk) as usize;
                    write_args(args, self.reqsb.memory(), at);
                    payload.copy_into(&self.segment, self.reqsb.memory(), at + padded(args.len()));
                    self.send_header(to, head, taken);
                }
                Ok(Try::Done(()))
            }
        }
    }

    /// Takes a chunk and the credits of a message of `bytes` bytes, and one credit more for an unpacked
    /// Long's data. A ticket is only checked for: it is taken when the message is one that SEND ends.
    #[inline]
    pub(crate) fn take(&mut self, to: u32, bytes: usize, events: u8) -> Result<Try<Taken>, AmError> {
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
        // A retry counts as the same request, whatever its form: its stall counts once, and the message that
        // is sent reports what it lacked.
        let Some(ask) = self.asks.get_mut(to as usize) else {
            return Ok(self.stall(Stall::Credits));
        };
        ask.renew(credits + (events - 1));
        match self.credits.take(to, ask) {
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
                    self.credits.untake(to, credit);
                    Ok(self.stall(Stall::Chunk))
                }
            },
            Err(NoCredits::Stalled) => Ok(self.stall(Stall::Credits)),
            Err(error) => Err(error.into()),
        }
    }

    #[inline]
    pub(crate) fn stall<T>(&mut self, stall: Stall) -> Try<T> {
        self.stats.stalled(stall);
        Try::Stalled(stall)
    }

    /// Sends a Short without writing it into its chunk, which then is only where the reply goes; returns
    /// whether the interface took it.
    #[inline]
    fn send_args(&mut self, head: Head, taken: Taken, args: &[u32]) -> bool {
        let (words, last) = pairs(args);
        let words = words.get(..args.len() / 2).unwrap_or(&[]);
        let body = match args.len() % 2 {
            0 => Body::Empty,
            _ => Body::Bytes(&last),
        };
        let (target, data) = (self.target(head, taken), self.data(head, taken));
        let sent = self.ni.put_bytes(&target, data, words, body);
        self.was_sent(head, sent)
    }

    /// Sends a Medium out of its caller's memory, without writing it into its chunk; returns whether the
    /// interface took it.
    #[inline]
    pub(crate) fn send_payload(
        &mut self,
        head: Head,
        taken: Taken,
        args: &[u32],
        payload: &Source<'_>,
    ) -> bool {
        let (words, _) = pairs(args);
        let words = words.get(..args.len().div_ceil(2)).unwrap_or(&[]);
        let (target, data) = (self.target(head, taken), self.data(head, taken));
        let bytes = payload.bytes(&self.segment);
        let sent = self.ni.put_bytes(&target, data, words, Body::Shared(bytes));
        self.was_sent(head, sent)
    }

    /// Counts a request, if it was sent.
    #[inline]
    fn was_sent(&mut self, head: Head, sent: Option<Result<(), NiError>>) -> bool {
        let sent = sent == Some(Ok(()));
        self.stats.requests[kind(head.flags)] += u64::from(sent);
        self.begun |= sent;
        sent
    }

    /// Where a request goes.
    #[inline]
    fn target(&self, head: Head, taken: Taken) -> Target {
        let header = AmHeader {
            id: Id::ReqRb,
            flags: head.flags.with(Flags::REQUEST),
            handler: head.handler,
            args: head.args,
            offset: self.reqsb.offset(taken.chunk),
        };
        Target {
            process: taken.process,
            pt_index: AM_INDEX,
            match_bits: header.bits(),
            remote_offset: 0,
        }
    }

    /// The header data of a request.
    #[inline]
    fn data(&self, head: Head, taken: Taken) -> u64 {
        let data = AmData {
            source: self.me,
            other: head.other,
            credit: taken.credit.wire(),
        };
        data.bits()
    }

    /// Sends the header of a request; what travels along is in its chunk.
    #[inline]
    pub(crate) fn send_header(&mut self, to: u32, head: Head, taken: Taken) {
        debug_assert!(to != self.me && head.length <= self.reqsb.size() as usize);
        let offset = self.reqsb.offset(taken.chunk);
        let volatile = head.length as u64 <= self.objects.volatile;
        let mark = if volatile { 0 } else { SENDS };
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
            target: self.target(head, taken),
            user_ptr: AmHeader {
                id: Id::ReqSb,
                flags: head.flags.with(Flags::REQUEST),
                handler: head.handler,
                args: head.args,
                offset: taken.chunk | mark,
            }
            .bits(),
            hdr_data: self.data(head, taken),
        };
        if !volatile {
            // Checked before; SEND returns it.
            let _ = self.tickets.take(1);
        }
        self.stats.requests[kind(head.flags)] += 1;
        self.begin_put(&put, Then::Nothing);
    }
}
