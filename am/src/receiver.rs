//! The handling of requests and replies, wherever their bytes are: in a receive buffer, in the chunk of a
//! request, or where they arrived ([`crate::in_place`]).
//!
//! Whatever a peer wrote is looked at before it is believed: the process that sent it must be the rank that
//! it names, lengths must add up, offsets must be inside. What does not is counted and dropped.

use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::ni::Process;

use crate::boot::RemoteSegment;
use crate::config::Ranks;
use crate::credit::{CreditByte, CreditState, Due};
use crate::handler::{Handlers, MAX_ARGS, Payload, Reply};
use crate::long_cache::RequestHeader;
use crate::match_bits::{AmData, AmHeader, Flags, REPLY_LID};
use crate::source::{PACKED_OFFSET, args_bytes, padded, read_args};
use crate::stats::Stats;
use crate::token::{Outbox, Request};

/// A message as it came.
#[derive(Clone, Copy)]
pub(crate) struct Arrived<'a> {
    pub(crate) initiator: Process,
    pub(crate) match_bits: u64,
    pub(crate) hdr_data: u64,
    pub(crate) bytes: SharedBytes<'a>,
}

/// What a request that was handled is owed: a reply into this chunk of its source, with its credits.
#[derive(Debug)]
pub(crate) struct Owed {
    pub(crate) source: u32,
    pub(crate) chunk: u32,
    pub(crate) due: Due,
}

/// What a request was.
pub(crate) enum Came {
    /// Its handler has run, or it has none that can: it is to be replied to.
    Handled(Owed),
    /// The header of an unpacked Long.
    Half(u32, RequestHeader),
    /// It does not keep to the protocol.
    Hostile,
}

/// What a reply was.
pub(crate) enum Answered {
    /// Its handler has run: the chunk of its request is free.
    Handled,
    /// Its place is outside of the segment, and its chunk is free.
    Misplaced,
    /// The header of an unpacked Long, for this LID.
    Half {
        source: u32,
        lid: u32,
        handler: u8,
        count: u8,
    },
    /// It does not keep to the protocol.
    Hostile,
}

/// Where a message's payload is, once its lengths have been found to add up.
enum Body<'a> {
    Short,
    Medium(SharedBytes<'a>),
    /// The payload is to be copied to this offset of the segment.
    Packed(u64, SharedBytes<'a>),
    /// The payload is in the segment, from this offset on, of this length.
    Placed(u64, u64),
    /// The payload is a message of its own.
    Unpacked,
}

/// What handling a message needs of a conduit; the interface is not among it, so that messages can be handled
/// while it is polled.
pub(crate) struct Receiver<'a> {
    pub(crate) ranks: &'a Ranks,
    pub(crate) remotes: &'a [RemoteSegment],
    pub(crate) segment: &'a RegionSlice,
    pub(crate) credits: &'a mut CreditState,
    pub(crate) handlers: &'a mut Handlers,
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) stats: &'a mut Stats,
}

/// Borrows a conduit's receiver, and leaves its other fields to be borrowed, too.
macro_rules! receiver {
    ($conduit:expr) => {
        $crate::receiver::Receiver {
            ranks: &$conduit.ranks,
            remotes: &$conduit.remotes,
            segment: &$conduit.segment,
            credits: &mut $conduit.credits,
            handlers: &mut $conduit.handlers,
            outbox: &mut $conduit.outbox,
            stats: &mut $conduit.stats,
        }
    };
}
pub(crate) use receiver;

impl Receiver<'_> {
    /// Handles a request: runs its handler.
    #[inline]
    pub(crate) fn request(&mut self, message: &Arrived<'_>) -> Came {
        let data = AmData::of(message.hdr_data);
        let Some(header) = AmHeader::of(message.match_bits) else {
            return Came::Hostile;
        };
        if !header.flags.has(Flags::REQUEST)
            || header.offset >= REPLY_LID
            || self.ranks.process(data.source) != Some(message.initiator)
        {
            return Came::Hostile;
        }
        let Some(body) = body(&header, &data, message.bytes) else {
            return Came::Hostile;
        };
        let byte = CreditByte::from_wire(data.credit);
        let Ok(due) = self.credits.arrived(data.source, byte) else {
            return Came::Hostile;
        };
        let count = usize::from(header.args);
        let args = read_args(count, message.bytes);
        let payload = match body {
            Body::Unpacked => {
                let kept = RequestHeader {
                    handler: header.handler,
                    count: header.args,
                    args,
                    chunk: header.offset,
                    due,
                };
                return Came::Half(data.source, kept);
            }
            body => match payload(self.segment, body) {
                Some(payload) => payload,
                None => {
                    // Its credits go back all the same: that the place is wrong is the requester's mistake,
                    // not a thief's.
                    self.stats.hostile += 1;
                    return Came::Handled(owed(&data, &header, due));
                }
            },
        };
        let args = args.get(..count).unwrap_or(&args);
        self.run(data.source, header.handler, args, payload);
        Came::Handled(owed(&data, &header, due))
    }

    /// Runs the handler of a request, which drafts the reply.
    #[inline]
    pub(crate) fn run(&mut self, source: u32, handler: u8, args: &[u32], payload: Payload<'_>) {
        address(self.outbox, source, self.remotes);
        let found = run_request(self.handlers, self.outbox, source, handler, args, payload);
        self.stats.handled[0] += 1;
        self.stats.unhandled += u64::from(!found);
    }

    /// Handles a reply: runs its handler. `asked` is the rank that the request in its chunk went to.
    #[inline]
    pub(crate) fn reply(&mut self, message: &Arrived<'_>, asked: Option<u32>) -> Answered {
        let data = AmData::of(message.hdr_data);
        let Some(header) = AmHeader::of(message.match_bits) else {
            return Answered::Hostile;
        };
        if asked != Some(data.source)
            || header.flags.has(Flags::REQUEST)
            || self.ranks.process(data.source) != Some(message.initiator)
        {
            return Answered::Hostile;
        }
        let Some(body) = body(&header, &data, message.bytes) else {
            return Answered::Hostile;
        };
        let byte = CreditByte::from_wire(data.credit);
        if self.credits.replied(data.source, byte).is_err() {
            return Answered::Hostile;
        }
        let count = usize::from(header.args);
        let payload = match body {
            Body::Unpacked => {
                return Answered::Half {
                    source: data.source,
                    lid: data.other,
                    handler: header.handler,
                    count: header.args,
                };
            }
            body => match payload(self.segment, body) {
                Some(payload) => payload,
                None => return Answered::Misplaced,
            },
        };
        let args = read_args(count, message.bytes);
        let args = args.get(..count).unwrap_or(&args);
        let reply = Reply {
            source: data.source,
            args,
            payload,
        };
        let found = self.handlers.run_reply(header.handler, reply);
        self.stats.handled[1] += 1;
        self.stats.unhandled += u64::from(!found);
        Answered::Handled
    }
}

fn owed(data: &AmData, header: &AmHeader, due: Due) -> Owed {
    Owed {
        source: data.source,
        chunk: header.offset,
        due,
    }
}

/// Returns a payload as a handler gets it; that of a packed Long is copied into the segment, unless it is
/// outside.
#[inline]
fn payload<'a>(segment: &'a RegionSlice, body: Body<'a>) -> Option<Payload<'a>> {
    Some(match body {
        Body::Short | Body::Unpacked => Payload::None,
        Body::Medium(bytes) => Payload::Medium(bytes),
        Body::Packed(offset, bytes) => {
            let end = offset.checked_add(bytes.len() as u64)?;
            if end > segment.len() as u64 {
                return None;
            }
            segment.write_shared(offset as usize, bytes);
            let bytes = segment.as_shared().skip(offset as usize).take(bytes.len());
            Payload::Long { offset, bytes }
        }
        Body::Placed(offset, length) => {
            let end = offset.checked_add(length)?;
            if end > segment.len() as u64 {
                return None;
            }
            let bytes = segment.as_shared().skip(offset as usize).take(length as usize);
            Payload::Long { offset, bytes }
        }
    })
}

/// Points the outbox at a requester.
#[inline]
pub(crate) fn address(outbox: &mut Outbox, source: u32, remotes: &[RemoteSegment]) {
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

/// Whether a header is one of an unpacked Long, whose payload is a message of its own.
#[inline]
pub(crate) fn is_unpacked(header: &AmHeader) -> bool {
    header.flags.0 & !Flags::REQUEST.0 == UNPACKED
}

const UNPACKED: u8 = Flags::LONG.with(Flags::SYNC).0;

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
    const PLACED: u8 = Flags::PLACED.0;
    match kind {
        SHORT if bytes.len() == args_bytes(count) => Some(Body::Short),
        MEDIUM if bytes.len() == padded(count) + other => Some(Body::Medium(bytes.skip(padded(count)))),
        PACKED if bytes.len() == padded(count) + PACKED_OFFSET + other => {
            let to = bytes.read(padded(count)).map(u64::from_le_bytes)?;
            Some(Body::Packed(to, bytes.skip(padded(count) + PACKED_OFFSET)))
        }
        PLACED if bytes.len() == padded(count) + PACKED_OFFSET => {
            let at = bytes.read(padded(count)).map(u64::from_le_bytes)?;
            Some(Body::Placed(at, other as u64))
        }
        UNPACKED if bytes.len() == args_bytes(count) => Some(Body::Unpacked),
        _ => None,
    }
}
