//! Medium requests whose payload is written in place: prepare, write, commit (gasnet.md section 14:
//! negotiated payload).

use doorbell_fabric::ni::Ni;

use crate::chunks::ChunkUse;
use crate::conduit::Conduit;
use crate::credit::{BYTES_PER_CREDIT, CreditByte, credits_for};
use crate::error::{AmError, Stall, Try};
use crate::handler::MAX_ARGS;
use crate::match_bits::Flags;
use crate::request::{Head, Taken};
use crate::source::{Source, padded, write_args};
use crate::token::{checked, too_long};

impl<N: Ni> Conduit<N> {
    /// Reserves room for the payload of a Medium request, of `least` to `most` bytes: as many as the peer's
    /// credits allow now, so that a shorter message can be sent. [`PreparedMedium::commit`] cannot fail for
    /// lack of resources.
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
            while credits > 1 && !self.credits.has(to, credits) {
                credits -= 1;
            }
            room = room.min((usize::from(credits) * BYTES_PER_CREDIT).saturating_sub(head));
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

    pub(crate) fn untake(&mut self, to: u32, taken: Taken) {
        if to != self.me {
            self.credits.untake(to, taken.credit);
        }
        self.free_chunk(taken.chunk);
    }
}

/// Room for the payload of a Medium request, with all its resources. Dropping it returns them.
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

    /// Sends the first `length` bytes, with as many arguments as it was prepared for (or one less, where the
    /// payload does not move).
    ///
    /// # Errors
    /// [`AmError::TooManyArgs`], [`AmError::TooLong`]: nothing was sent, and all resources were returned.
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
