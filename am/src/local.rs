//! Messages to the own rank: handlers run in the call, and nothing goes through the interface.
//!
//! They take no credits, tickets or chunks of requests, only what a poll reserves for a reply, whose chunk
//! the reply is drafted in.

use doorbell_fabric::ni::Ni;

use crate::conduit::Conduit;
use crate::error::{AmError, Stall, Try};
use crate::handler::{Payload, Reply};
use crate::long::LongSent;
use crate::match_bits::Flags;
use crate::receiver::{address, run_request};
use crate::source::{PACKED_OFFSET, Source, padded, read_args, view};
use crate::token::{Draft, From};

impl<N: Ni> Conduit<N> {
    pub(crate) fn short_to_self(&mut self, handler: u8, args: &[u32]) -> Result<Try<()>, AmError> {
        if !self.prepare_self() {
            return Ok(self.stall(Stall::Reply));
        }
        let found = run_request(
            &mut self.handlers,
            &mut self.outbox,
            self.me,
            handler,
            args,
            Payload::None,
        );
        self.reply_to_self(found, 0);
        Ok(Try::Done(()))
    }

    pub(crate) fn medium_to_self(
        &mut self,
        handler: u8,
        args: &[u32],
        payload: &Source<'_>,
    ) -> Result<Try<()>, AmError> {
        if !self.prepare_self() {
            return Ok(self.stall(Stall::Reply));
        }
        let payload = Payload::Medium(payload.bytes(&self.segment));
        let found = run_request(
            &mut self.handlers,
            &mut self.outbox,
            self.me,
            handler,
            args,
            payload,
        );
        self.reply_to_self(found, 1);
        Ok(Try::Done(()))
    }

    pub(crate) fn long_to_self(
        &mut self,
        handler: u8,
        args: &[u32],
        payload: &Source<'_>,
        place: u64,
    ) -> Result<Try<LongSent>, AmError> {
        if !self.prepare_self() {
            return Ok(self.stall(Stall::Reply));
        }
        payload.copy_into(&self.segment, &self.segment, place as usize);
        let bytes = self
            .segment
            .as_shared()
            .skip(place as usize)
            .take(payload.len() as usize);
        let payload = Payload::Long { offset: place, bytes };
        let found = run_request(
            &mut self.handlers,
            &mut self.outbox,
            self.me,
            handler,
            args,
            payload,
        );
        self.reply_to_self(found, 2);
        Ok(Try::Done(LongSent { source: None }))
    }

    /// Points the outbox at oneself, if a reply's chunk is in hand.
    fn prepare_self(&mut self) -> bool {
        if !self.hold() {
            return false;
        }
        address(&mut self.outbox, self.me, &self.remotes);
        true
    }

    fn reply_to_self(&mut self, found: bool, kind: usize) {
        self.stats.requests[kind] += 1;
        self.stats.handled[0] += 1;
        self.stats.unhandled += u64::from(!found);
        let (Some(draft), Some(chunk)) = (self.outbox.draft.take(), self.held.chunk) else {
            self.stats.no_reply += 1;
            return;
        };
        let Draft {
            flags,
            handler,
            args: count,
            other,
            data,
            ..
        } = draft;
        self.stats.replies[crate::reply::kind(flags)] += 1;
        let count = usize::from(count);
        let args = read_args(count, self.rplsb.bytes(chunk, 0));
        let body = self.rplsb.bytes(chunk, padded(count));
        let own = |offset: u64, length: u64| Payload::Long {
            offset,
            bytes: self
                .segment
                .as_shared()
                .skip(offset as usize)
                .take(length as usize),
        };
        let payload = if let Some(data) = &data {
            let bytes = match &data.from {
                From::Segment(offset) => self.segment.as_shared().skip(*offset as usize),
                From::Memory(memory) => view(memory),
            };
            let bytes = bytes.take(data.length as usize);
            self.segment.write_shared(data.to as usize, bytes);
            own(data.to, data.length)
        } else if flags.has(Flags::MEDIUM) {
            Payload::Medium(body.take(other as usize))
        } else if flags.has(Flags::PACKED) {
            let to = body.read(0).map_or(0, u64::from_le_bytes);
            let bytes = body.skip(PACKED_OFFSET).take(other as usize);
            self.segment.write_shared(to as usize, bytes);
            own(to, other.into())
        } else {
            Payload::None
        };
        let reply = Reply {
            source: self.me,
            args: args.get(..count).unwrap_or(&args),
            payload,
        };
        let found = self.handlers.run_reply(handler, reply);
        self.stats.handled[1] += 1;
        self.stats.unhandled += u64::from(!found);
    }
}
