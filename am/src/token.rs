//! The token of a request: its one right to reply.
//!
//! [`Request`] is handed to the handler by value. Each `reply_…` consumes it, so a second reply does not
//! compile; none of them takes a rank, so a reply goes to the requester alone; and its lifetime ends with the
//! handler. A handler that lets it go has the conduit send a Short reply to the handler that does nothing,
//! which takes the credits back.
//!
//! ```compile_fail,E0382
//! fn handler(request: doorbell_am::Request<'_>) {
//!     let _ = request.reply_short(1, &[]);
//!     let _ = request.reply_short(1, &[]); // a request is replied to once
//! }
//! ```
//!
//! ```compile_fail,E0061
//! fn handler(request: doorbell_am::Request<'_>) {
//!     let somebody_else = 3;
//!     let _ = request.reply_short(somebody_else, 1, &[]); // a reply goes to the requester
//! }
//! ```
//!
//! ```compile_fail,E0521
//! let (kept, _) = std::sync::mpsc::channel();
//! let mut handlers = doorbell_am::Handlers::new();
//! handlers.request(1, move |request| {
//!     let _ = kept.send(request); // a request does not outlive its handler
//! })?;
//! # Ok::<(), doorbell_am::AmError>(())
//! ```
//!
//! ```
//! let (kept, _) = std::sync::mpsc::channel();
//! let mut handlers = doorbell_am::Handlers::new();
//! handlers.request(1, move |request| {
//!     let _ = kept.send(request.source()); // what it said may be kept
//! })?;
//! # Ok::<(), doorbell_am::AmError>(())
//! ```
//!
//! ```
//! fn handler(request: doorbell_am::Request<'_>) {
//!     let payload = request.payload().bytes();
//!     let _ = request.reply_medium(1, &[7], payload); // an echo
//! }
//! ```

use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::Landing;

use crate::error::AmError;
use crate::handler::{MAX_ARGS, Payload};
use crate::match_bits::Flags;
use crate::source::{PACKED_OFFSET, Source, args_bytes, padded, write_args};

/// A request that has arrived, with the right to reply once.
#[derive(Debug)]
#[must_use = "dropped, it is replied to by an empty message"]
pub struct Request<'a> {
    pub(crate) source: u32,
    pub(crate) args: &'a [u32],
    pub(crate) payload: Payload<'a>,
    pub(crate) outbox: &'a mut Outbox,
}

/// The draft of a reply: its chunk, and what is to be sent when the handler has returned.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// The buffer of all replies.
    pub(crate) memory: RegionSlice,
    /// Offset of the chunk of this reply, and its bytes.
    pub(crate) offset: usize,
    pub(crate) chunk: usize,
    /// The segment of this process, where payloads may lie.
    pub(crate) segment: RegionSlice,
    /// Bytes of the requester's segment.
    pub(crate) their_segment: u64,
    /// The requester, for errors.
    pub(crate) requester: u32,
    /// The rank of this process, for errors.
    pub(crate) me: u32,
    pub(crate) packed_long: bool,
    /// The most bytes that one data message carries.
    pub(crate) most: u64,
    pub(crate) draft: Option<Draft>,
}

/// A reply that is to be sent.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) flags: Flags,
    pub(crate) handler: u8,
    pub(crate) args: u8,
    /// Length of a payload that travels along.
    pub(crate) other: u32,
    /// Bytes in the chunk.
    pub(crate) length: u32,
    /// What an unpacked Long sends separately.
    pub(crate) data: Option<DraftData>,
}

/// The data of an unpacked Long reply.
#[derive(Debug)]
pub(crate) struct DraftData {
    pub(crate) from: From,
    pub(crate) length: u64,
    /// Where in the requester's segment.
    pub(crate) to: u64,
}

/// Memory that the data of an unpacked Long leaves from.
#[derive(Clone, Debug)]
pub(crate) enum From {
    Segment(u64),
    Memory(Landing),
}

impl<'a> Request<'a> {
    /// The requesting rank.
    #[inline]
    #[must_use]
    pub const fn source(&self) -> u32 {
        self.source
    }

    /// The arguments of the request.
    #[inline]
    #[must_use]
    pub const fn args(&self) -> &'a [u32] {
        self.args
    }

    /// The payload of the request.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> Payload<'a> {
        self.payload
    }

    /// Largest payload in bytes of a Medium reply with `args` arguments.
    #[must_use]
    pub const fn max_reply_medium(&self, args: usize) -> usize {
        self.outbox.chunk.saturating_sub(padded(args))
    }

    /// Largest Long reply in bytes: the length of the requester's segment.
    #[must_use]
    pub fn max_reply_long(&self) -> u64 {
        self.outbox.their_segment.min(self.outbox.most)
    }

    /// Replies with arguments.
    ///
    /// # Errors
    /// [`AmError::TooManyArgs`]. Nothing was sent; the conduit replies with nothing.
    #[inline]
    pub fn reply_short(self, handler: u8, args: &[u32]) -> Result<(), AmError> {
        let count = checked(args)?;
        if count > 0 {
            write_args(args, &self.outbox.memory, self.outbox.offset);
        }
        self.outbox.draft = Some(Draft {
            flags: Flags::SHORT,
            handler,
            args: count,
            other: 0,
            length: args_bytes(args.len()) as u32,
            data: None,
        });
        Ok(())
    }

    /// Replies with arguments and a payload, which the requester's handler sees while it runs.
    ///
    /// # Errors
    /// [`AmError::TooManyArgs`], [`AmError::TooLong`], [`AmError::OutsideSegment`]. Nothing was sent; the
    /// conduit replies with nothing.
    pub fn reply_medium<'b>(
        self,
        handler: u8,
        args: &[u32],
        payload: impl Into<Source<'b>>,
    ) -> Result<(), AmError> {
        let payload = payload.into();
        let prepared = self.prepare_reply_medium(args.len())?;
        let length = payload.len();
        if length > prepared.len() as u64 {
            return Err(too_long(
                "a Medium reply",
                length,
                prepared.len() as u64,
                "reply_medium",
            ));
        }
        let outbox = &prepared.request.outbox;
        inside(&payload, &outbox.segment, outbox.me)?;
        payload.copy_into(&outbox.segment, &outbox.memory, outbox.offset + prepared.at);
        prepared.commit(handler, args, length as usize)
    }

    /// Replies with arguments and a payload that lands at offset `to` of the requester's segment. A payload
    /// in this process's segment or in memory that stays is not to be changed before the requester's handler
    /// has run (or before [`Conduit::replies_under_way`](crate::Conduit::replies_under_way) is zero).
    ///
    /// # Errors
    /// [`AmError::TooManyArgs`], [`AmError::MustStay`] for borrowed bytes that no chunk holds,
    /// [`AmError::OutsideSegment`]. Nothing was sent; the conduit replies with nothing.
    pub fn reply_long<'b>(
        self,
        handler: u8,
        args: &[u32],
        payload: impl Into<Source<'b>>,
        to: u64,
    ) -> Result<(), AmError> {
        let payload = payload.into();
        let count = checked(args)?;
        let outbox = self.outbox;
        let length = payload.len();
        reaches(outbox.requester, to, length, outbox.their_segment)?;
        inside(&payload, &outbox.segment, outbox.me)?;
        if length > outbox.most {
            return Err(too_long("a Long reply", length, outbox.most, "reply_long"));
        }
        let head = padded(args.len()) + PACKED_OFFSET;
        let room = outbox.chunk.saturating_sub(head) as u64;
        if length <= room && (outbox.packed_long || !payload.stays() || length == 0) {
            write_args(args, &outbox.memory, outbox.offset);
            let at = outbox.offset + padded(args.len());
            outbox.memory.write(at, &to.to_le_bytes());
            payload.copy_into(&outbox.segment, &outbox.memory, at + PACKED_OFFSET);
            outbox.draft = Some(Draft {
                flags: Flags::LONG.with(Flags::PACKED),
                handler,
                args: count,
                other: length as u32,
                length: (head as u64 + length) as u32,
                data: None,
            });
            return Ok(());
        }
        let from = match payload {
            Source::Segment { offset, .. } => From::Segment(offset),
            Source::Memory(memory) => From::Memory(memory),
            Source::Bytes(_) | Source::Shared(_) => {
                return Err(AmError::MustStay {
                    given: length,
                    most: room,
                });
            }
        };
        write_args(args, &outbox.memory, outbox.offset);
        outbox.draft = Some(Draft {
            flags: Flags::LONG.with(Flags::SYNC),
            handler,
            args: count,
            other: 0,
            length: args_bytes(args.len()) as u32,
            data: Some(DraftData { from, length, to }),
        });
        Ok(())
    }

    /// Reserves room for a Medium reply whose payload is written in place, for [`PreparedReply::commit`].
    ///
    /// # Errors
    /// [`AmError::TooManyArgs`].
    pub fn prepare_reply_medium(self, args: usize) -> Result<PreparedReply<'a>, AmError> {
        if args > MAX_ARGS {
            return Err(AmError::TooManyArgs { given: args });
        }
        Ok(PreparedReply {
            at: padded(args),
            args,
            request: self,
        })
    }
}

/// Room for the payload of a Medium reply. Dropping it sends the empty reply.
#[derive(Debug)]
#[must_use = "nothing is sent before it is committed"]
pub struct PreparedReply<'a> {
    request: Request<'a>,
    /// Offset of the payload in the chunk.
    at: usize,
    args: usize,
}

impl PreparedReply<'_> {
    /// Bytes that fit.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.request.outbox.chunk.saturating_sub(self.at)
    }

    /// Whether none fits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes at offset `at` of the payload; returns how many bytes fitted.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> usize {
        let outbox = &self.request.outbox;
        let room = self.len().saturating_sub(at);
        let bytes = bytes.get(..room.min(bytes.len())).unwrap_or(bytes);
        outbox
            .memory
            .write(outbox.offset + self.at + at.min(self.len()), bytes)
    }

    /// Sends the first `length` bytes of it, with at most as many arguments as it was prepared for.
    ///
    /// # Errors
    /// [`AmError::TooManyArgs`], [`AmError::TooLong`]. Nothing was sent; the conduit replies with nothing.
    pub fn commit(self, handler: u8, args: &[u32], length: usize) -> Result<(), AmError> {
        // Fewer arguments would move the payload: they must be as many, up to the padding.
        if padded(args.len()) != padded(self.args) {
            return Err(AmError::TooManyArgs { given: args.len() });
        }
        if length > self.len() {
            return Err(too_long(
                "a Medium reply",
                length as u64,
                self.len() as u64,
                "reply_medium",
            ));
        }
        let count = checked(args)?;
        let outbox = self.request.outbox;
        write_args(args, &outbox.memory, outbox.offset);
        outbox.draft = Some(Draft {
            flags: Flags::MEDIUM,
            handler,
            args: count,
            other: length as u32,
            length: (self.at + length) as u32,
            data: None,
        });
        Ok(())
    }
}

/// Returns the number of arguments, if a message can carry them.
#[inline]
pub(crate) fn checked(args: &[u32]) -> Result<u8, AmError> {
    if args.len() > MAX_ARGS {
        return Err(AmError::TooManyArgs { given: args.len() });
    }
    Ok(args.len() as u8)
}

/// A source in the segment is inside it.
#[inline]
pub(crate) fn inside(source: &Source<'_>, segment: &RegionSlice, me: u32) -> Result<(), AmError> {
    let Source::Segment { offset, length } = *source else {
        return Ok(());
    };
    let size = segment.len() as u64;
    if offset.checked_add(length).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(AmError::OutsideSegment {
        rank: me,
        offset,
        length,
        size,
    })
}

/// A place in a peer's segment is inside it.
#[inline]
pub(crate) fn reaches(rank: u32, offset: u64, length: u64, size: u64) -> Result<(), AmError> {
    if offset.checked_add(length).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(AmError::OutsideSegment {
        rank,
        offset,
        length,
        size,
    })
}

#[cold]
pub(crate) const fn too_long(what: &'static str, given: u64, most: u64, query: &'static str) -> AmError {
    AmError::TooLong {
        what,
        given,
        most,
        query,
    }
}
