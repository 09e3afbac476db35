//! The header of a frame, in front of each message of the control plane, on any transport.
//!
//! ```text
//!  0               8               16      20      24      28      32      36      40      44   46   48
//!  │ epoch         │ destination's │origin │ dest. │ tag   │sequen-│ ack   │length │back│win-│ │ │ │ │ body
//!  │ of the origin │ epoch         │ rank  │ rank  │       │ce     │       │       │    │dow │k f h 0│
//!  48              56              64                                                 kind ──┘ │ │
//!  │ origin's job  │ destination's │  only with FOREIGN                              flags ────┘ │
//!  │               │ job           │                                                 hops ───────┘
//! ```
//!
//! All numbers are in network byte order. Nearly every frame has 48 bytes of header: the job of both ends is
//! that of the link, and is included only where it differs. A malformed header ([`Head::read`]) means that
//! the link cannot be trusted any further.
//!
//! * **epochs**: those of both ends. A [`Kind::Data`] has both, so that it is delivered to exactly the
//!   process it was meant for. Only a [`Kind::Probe`] may leave the destination's open, in order to learn it.
//! * **sequence**: the position of the message in the stream from this origin to this destination (one for
//!   each [`Lane`]); **back**, how many positions before it the stream begins: earlier messages are
//!   acknowledged or given up.
//! * **ack**: the first position of the *opposite* stream that is missing here, and **window**: how much more
//!   there is room for, in units of [`WINDOW_UNIT`]. Both are valid with [`ACKS`](flags::ACKS) only.
//! * **hops**: the number of relays passed. A frame that has passed [`HOPS_MAX`] is looping and is dropped.
//!
//! reference: oob, section 4 (the header of 30 bytes that this one follows; it adds acknowledgement and
//! replay).

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::Bytes;
use crate::name::{Epoch, Name};

/// Bytes of a header between processes of the link's job.
pub const HEAD: usize = 48;
/// Bytes of the longest header.
pub const HEAD_MAX: usize = HEAD + 16;
/// Maximum number of relays that a frame may pass.
pub const HOPS_MAX: u8 = 32;
/// Bytes per unit of a window on the wire.
pub const WINDOW_UNIT: u32 = 256;

/// The bits of the flags byte.
pub mod flags {
    /// The stream belongs to the control plane itself ([`Lane::Control`](super::Lane::Control)).
    pub const CONTROL: u8 = 1;
    /// The fields `ack` and `window` are valid.
    pub const ACKS: u8 = 2;
    /// Both jobs follow the header.
    pub const FOREIGN: u8 = 4;
    /// A flag of an acknowledgement: something beyond a gap has arrived; `sequence` is its first position.
    pub const GAP: u8 = 8;
    /// All defined flags.
    pub const ALL: u8 = CONTROL | ACKS | FOREIGN | GAP;
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHead {
    epoch: U64,
    to_epoch: U64,
    origin: U32,
    destination: U32,
    tag: U32,
    sequence: U32,
    ack: U32,
    length: U32,
    back: U16,
    window: U16,
    kind: u8,
    flags: u8,
    hops: u8,
    zero: u8,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawJobs {
    origin: U64,
    destination: U64,
}

const _: () =
    assert!(size_of::<RawHead>() == HEAD && size_of::<RawHead>() + size_of::<RawJobs>() == HEAD_MAX);

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A message of a stream.
    Data,
    /// An acknowledgement without data.
    Ack,
    /// A request for the peer's epoch and acknowledgement, answered by a [`Kind::Ack`].
    Probe,
    /// A relay cannot pass on what was sent to the destination that the body names. Only a hint: it is sent
    /// once, and may be lost.
    Nack,
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Ack => 2,
            Self::Probe => 3,
            Self::Nack => 4,
        }
    }

    fn of(number: u8) -> Option<Self> {
        [Self::Data, Self::Ack, Self::Probe, Self::Nack]
            .into_iter()
            .find(|kind| kind.number() == number)
    }
}

/// One of the two streams from each origin to each destination: messages that no receive takes never hold up
/// those of the control plane itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Messages of users.
    User,
    /// The tree, collectives, failure notices.
    Control,
}

impl Lane {
    /// Lists both lanes.
    pub const ALL: [Self; 2] = [Self::User, Self::Control];

    /// Returns the index of the lane.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::User => 0,
            Self::Control => 1,
        }
    }
}

/// A position in a stream. Positions wrap: they are compared only here, and only where they are less than 2³¹
/// apart, as the window ensures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// Returns the position `by` further on.
    #[must_use]
    pub fn plus(self, by: u32) -> Self {
        Self(self.0.wrapping_add(by))
    }

    /// Returns how far this is behind `other`; negative if it is ahead.
    #[must_use]
    pub fn until(self, other: Self) -> i32 {
        other.0.wrapping_sub(self.0) as i32
    }

    /// Whether this is before `other`.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        self.until(other) > 0
    }
}

/// A header, parsed or to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The type of the frame.
    pub kind: Kind,
    /// The stream it belongs to.
    pub lane: Lane,
    /// The process that sent it first.
    pub origin: Name,
    /// The epoch of the origin.
    pub epoch: Epoch,
    /// The process it is for.
    pub destination: Name,
    /// The epoch of the destination; [`Epoch::UNKNOWN`] in probes and their answers only.
    pub to_epoch: Epoch,
    /// The tag, which selects the receive.
    pub tag: u32,
    /// The position in the stream.
    pub sequence: Seq,
    /// How many positions before it the stream begins.
    pub back: u16,
    /// The acknowledgement of the opposite stream, and its window in [`WINDOW_UNIT`]s.
    pub ack: Option<(Seq, u16)>,
    /// Whether `sequence` is the first position beyond a gap (acknowledgements only).
    pub gap: bool,
    /// The number of relays passed so far.
    pub hops: u8,
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than a header has.
    #[error("{0} bytes are too few for a frame header; the link carried something else, or was cut")]
    Short(usize),
    /// The length in the header differs from that of the body.
    #[error(
        "the header of a frame announces {said} bytes, but {come} followed: the sender is broken or hostile"
    )]
    Length {
        /// The length in the header.
        said: u32,
        /// The actual length.
        come: usize,
    },
    /// The body is longer than allowed.
    #[error("a frame of {length} bytes is longer than the limit of {limit}: raise the limit on both sides")]
    Long {
        /// The length of the body.
        length: usize,
        /// The maximum length.
        limit: usize,
    },
    /// A field has an invalid value.
    #[error(
        "{field} in the header of a frame has the invalid value {value}: use the same doorbell on both sides"
    )]
    Value {
        /// The name of the field.
        field: &'static str,
        /// The value of the field.
        value: u64,
    },
}

fn value(field: &'static str, value: impl Into<u64>) -> Malformed {
    Malformed::Value {
        field,
        value: value.into(),
    }
}

impl Head {
    /// Writes the header for a body of this length. `job` is the job of the link's both ends, or `None` if
    /// they differ.
    #[must_use]
    pub fn write(&self, job: Option<u64>, length: u32) -> HeadBytes {
        let mut flags = 0;
        let foreign = job.is_none_or(|job| job != self.origin.job || job != self.destination.job);
        for (bit, is) in [
            (flags::CONTROL, self.lane == Lane::Control),
            (flags::ACKS, self.ack.is_some()),
            (flags::FOREIGN, foreign),
            (flags::GAP, self.gap),
        ] {
            flags |= if is { bit } else { 0 };
        }
        let (ack, window) = self.ack.unwrap_or_default();
        let raw = RawHead {
            epoch: self.epoch.0.into(),
            to_epoch: self.to_epoch.0.into(),
            origin: self.origin.rank.into(),
            destination: self.destination.rank.into(),
            tag: self.tag.into(),
            sequence: self.sequence.0.into(),
            ack: ack.0.into(),
            length: length.into(),
            back: self.back.into(),
            window: window.into(),
            kind: self.kind.number(),
            flags,
            hops: self.hops,
            zero: 0,
        };
        let mut bytes = [0; HEAD_MAX];
        bytes[..HEAD].copy_from_slice(raw.as_bytes());
        if foreign {
            let jobs = RawJobs {
                origin: self.origin.job.into(),
                destination: self.destination.job.into(),
            };
            bytes[HEAD..].copy_from_slice(jobs.as_bytes());
        }
        HeadBytes { bytes, foreign }
    }

    /// Parses a whole frame that was received over a link of this job, without copying the body, which may
    /// have `longest` bytes.
    ///
    /// # Errors
    /// Why it is malformed.
    pub fn read(frame: &Bytes, job: Option<u64>, longest: usize) -> Result<(Self, Bytes), Malformed> {
        let (raw, rest) = RawHead::ref_from_prefix(frame).map_err(|_| Malformed::Short(frame.len()))?;
        if raw.flags & !flags::ALL != 0 {
            return Err(value("flags", raw.flags));
        }
        let foreign = raw.flags & flags::FOREIGN != 0;
        let (origin, destination) = if foreign {
            let (jobs, _) = RawJobs::ref_from_prefix(rest).map_err(|_| Malformed::Short(frame.len()))?;
            (jobs.origin.get(), jobs.destination.get())
        } else {
            let job = job.ok_or_else(|| value("flags", raw.flags))?;
            (job, job)
        };
        let start = if foreign { HEAD_MAX } else { HEAD };
        let come = frame.len() - start;
        if come > longest {
            return Err(Malformed::Long {
                length: come,
                limit: longest,
            });
        }
        if usize::try_from(raw.length.get()) != Ok(come) {
            return Err(Malformed::Length {
                said: raw.length.get(),
                come,
            });
        }
        let head = raw.check(
            Name::new(origin, raw.origin.get()),
            Name::new(destination, raw.destination.get()),
        )?;
        let body = frame.slice(start, come).ok_or(Malformed::Short(frame.len()))?;
        Ok((head, body))
    }
}

impl RawHead {
    fn check(&self, origin: Name, destination: Name) -> Result<Head, Malformed> {
        let kind = Kind::of(self.kind).ok_or_else(|| value("kind", self.kind))?;
        let has = |flag| self.flags & flag != 0;
        let (epoch, to_epoch) = (Epoch(self.epoch.get()), Epoch(self.to_epoch.get()));
        if !epoch.is_known() {
            return Err(value("epoch", epoch.0));
        }
        if !to_epoch.is_known() && (kind == Kind::Data || has(flags::ACKS)) {
            return Err(value("destination's epoch", to_epoch.0));
        }
        if has(flags::GAP) && (kind != Kind::Ack || !has(flags::ACKS)) {
            return Err(value("flags", self.flags));
        }
        if kind != Kind::Data && self.back.get() != 0 {
            return Err(value("back", self.back.get()));
        }
        if !has(flags::ACKS) && (self.ack.get() != 0 || self.window.get() != 0) {
            return Err(value("ack", self.ack.get()));
        }
        if self.hops > HOPS_MAX {
            return Err(value("hops", self.hops));
        }
        if self.zero != 0 {
            return Err(value("the reserved byte", self.zero));
        }
        Ok(Head {
            kind,
            lane: if has(flags::CONTROL) {
                Lane::Control
            } else {
                Lane::User
            },
            origin,
            epoch,
            destination,
            to_epoch,
            tag: self.tag.get(),
            sequence: Seq(self.sequence.get()),
            back: self.back.get(),
            ack: has(flags::ACKS).then(|| (Seq(self.ack.get()), self.window.get())),
            gap: has(flags::GAP),
            hops: self.hops,
        })
    }
}

/// The bytes of a header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HeadBytes {
    bytes: [u8; HEAD_MAX],
    foreign: bool,
}

impl HeadBytes {
    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        if self.foreign {
            &self.bytes
        } else {
            &self.bytes[..HEAD]
        }
    }
}

/// A frame to be sent: its header, and its body, which may be shared.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    head: HeadBytes,
    body: Bytes,
}

impl Frame {
    /// Joins a header and a body.
    #[must_use]
    pub fn new(head: &Head, job: Option<u64>, body: Bytes) -> Self {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        Self {
            head: head.write(job, length),
            body,
        }
    }

    /// Returns what is to be sent first.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        self.head.as_slice()
    }

    /// Returns what is to be sent next.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the number of bytes of both.
    #[must_use]
    pub fn length(&self) -> usize {
        self.head().len() + self.body.len()
    }

    /// Copies both into one piece.
    #[must_use]
    pub fn joined(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(self.length());
        bytes.extend_from_slice(self.head());
        bytes.extend_from_slice(&self.body);
        bytes.into()
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Frame({} + {} bytes)", self.head().len(), self.body.len())
    }
}

#[cfg(test)]
mod tests;
