//! The match bits, header data and user pointers of every operation (gasnet.md section 1).
//!
//! ```text
//!   put, get      63 ───── bounce offset ───── 32 31 thread 24 23 ── operation ── 8 7 kind 4 3 id 0
//!   AM header     63 ───────── offset ──────── 32 31  args  24 23 handler 16 15 flags 8 7 kind 4 3 id 0
//!     its header data    63 ── source node ─── 32 31 ────────── other ────────── 8 7 credit byte 0
//!   AM Long data  63 args 56 55 handler 48      31 thread 24                        7 kind 4 3 id 0
//!     its header data    63 ── source node ─── 32 31 ──────────────── LID ──────────────────── 0
//!   system        63 ───── argument 0 ──────── 32              15 message 8                 3 id 0
//!     its header data    63 ── argument 1 ──── 32 31 ──────────── argument 2 ───────────────── 0
//! ```
//!
//! The target looks at the low four bits alone: they name the memory ([`Id`]). In Portals 3.3 an initiator's
//! event carried the match bits back; in Portals 4 it carries the user pointer, so the same layout goes
//! there, with the *local* memory in the low four bits: what has to be freed when the event comes.

/// Bits that every match entry of the conduit passes over: all but the lowest four.
pub const IGNORE: u64 = 0xFFFF_FFFF_FFFF_FFF0;

/// A LID with this bit set is a reply's; without, a request's, and the offset of its chunk.
pub const REPLY_LID: u32 = 1 << 23;
/// Largest value of the 24 bits called "other" in an AM header's header data.
pub const OTHER_MOST: u32 = 0x00FF_FFFF;

/// Which memory: the low four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Id {
    /// The whole segment: target of puts and gets.
    Rar = 0,
    /// The whole segment: target of the data of a Long request.
    RarAm = 1,
    /// The whole segment: source of puts, destination of gets, target of the data of a Long reply.
    RarSrc = 2,
    /// Receive buffers: target of AM request headers. The catch basin has the same bits.
    ReqRb = 3,
    /// The chunked send buffer: source of requests, target of replies, bounce buffer.
    ReqSb = 4,
    /// The entry for system messages.
    Sys = 5,
    /// The exchange at the start.
    Boot = 6,
    /// A temporary descriptor over a caller's memory; in user pointers only.
    Temporary = 7,
    /// The chunked buffer that replies leave from; in user pointers only.
    RplSb = 8,
}

impl Id {
    /// Decodes the low four bits.
    #[inline]
    #[must_use]
    pub const fn of(bits: u64) -> Option<Self> {
        Some(match bits & 0xF {
            0 => Self::Rar,
            1 => Self::RarAm,
            2 => Self::RarSrc,
            3 => Self::ReqRb,
            4 => Self::ReqSb,
            5 => Self::Sys,
            6 => Self::Boot,
            7 => Self::Temporary,
            8 => Self::RplSb,
            _ => return None,
        })
    }
}

/// What kind of message: bits 7 to 4, one of them set; none in system messages and the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A put by the program.
    Put = 0x10,
    /// A get by the program.
    Get = 0x20,
    /// The header of an active message, with what travels with it.
    Am = 0x40,
    /// The data of an unpacked Long.
    AmData = 0x80,
}

impl Kind {
    /// Decodes bits 7 to 4.
    #[inline]
    #[must_use]
    pub const fn of(bits: u64) -> Option<Self> {
        Some(match bits & 0xF0 {
            0x10 => Self::Put,
            0x20 => Self::Get,
            0x40 => Self::Am,
            0x80 => Self::AmData,
            _ => return None,
        })
    }
}

/// Flags of an AM header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// Short: arguments only.
    pub const SHORT: Self = Self(1);
    /// Arguments and a payload that is there while the handler runs.
    pub const MEDIUM: Self = Self(2);
    /// Arguments and a payload in the segment.
    pub const LONG: Self = Self(4);
    /// A request; else a reply.
    pub const REQUEST: Self = Self(8);
    /// A Long whose payload is in the message of its header.
    pub const PACKED: Self = Self(0x10);
    /// A Long whose payload is a message of its own, for which the handler waits.
    pub const SYNC: Self = Self(0x20);

    /// A Long whose payload is in the segment already when its header is sent.
    pub const PLACED: Self = Self(0x34);

    /// Whether all flags of `other` are set.
    #[inline]
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Joins these flags and others.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The 24 bits by which a put or get finds its operation again: the address (16 bits) and the thread (8
/// bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpRef {
    /// The operation's place in the table.
    pub address: u16,
    /// The thread that began it.
    pub thread: u8,
}

/// Match bits of a put or get, and their user pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneSided {
    /// The memory: the target's in match bits, the local one in a user pointer.
    pub id: Id,
    /// Put or get.
    pub kind: Kind,
    /// The operation that it belongs to.
    pub op: OpRef,
    /// Offset of the chunk in the send buffer, or (in a user pointer) the number of the temporary descriptor.
    pub bounce: u32,
}

impl OneSided {
    /// Encodes the match bits.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.id as u64
            | self.kind as u64
            | (self.op.address as u64) << 8
            | (self.op.thread as u64) << 24
            | (self.bounce as u64) << 32
    }

    /// Decodes match bits; `None` where they are neither put nor get.
    #[inline]
    #[must_use]
    pub const fn of(bits: u64) -> Option<Self> {
        let (Some(id), Some(kind)) = (Id::of(bits), Kind::of(bits)) else {
            return None;
        };
        if !matches!(kind, Kind::Put | Kind::Get) {
            return None;
        }
        let op = OpRef {
            address: (bits >> 8) as u16,
            thread: (bits >> 24) as u8,
        };
        Some(Self {
            id,
            kind,
            op,
            bounce: (bits >> 32) as u32,
        })
    }
}

/// Match bits of an active message's header, and the user pointer of its initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmHeader {
    /// The entry or memory that it addresses.
    pub id: Id,
    /// What it is.
    pub flags: Flags,
    /// The number of the handler.
    pub handler: u8,
    /// How many arguments.
    pub args: u8,
    /// A request: the offset of its chunk at the requester. In a user pointer: that of the chunk it left
    /// from.
    pub offset: u32,
}

impl AmHeader {
    /// Encodes the match bits.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.id as u64
            | Kind::Am as u64
            | (self.flags.0 as u64) << 8
            | (self.handler as u64) << 16
            | (self.args as u64) << 24
            | (self.offset as u64) << 32
    }

    /// Decodes match bits; `None` where they are no header.
    #[inline]
    #[must_use]
    pub const fn of(bits: u64) -> Option<Self> {
        if bits & 0xF0 != Kind::Am as u64 {
            return None;
        }
        let Some(id) = Id::of(bits) else {
            return None;
        };
        Some(Self {
            id,
            flags: Flags((bits >> 8) as u8),
            handler: (bits >> 16) as u8,
            args: (bits >> 24) as u8,
            offset: (bits >> 32) as u32,
        })
    }
}

/// Header data of an active message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmData {
    /// The rank that sent it.
    pub source: u32,
    /// Length of the payload; for an unpacked Long its LID, which for a request is 0 here (it is its chunk's
    /// offset).
    pub other: u32,
    /// Credits: see [`CreditByte`](crate::credit::CreditByte).
    pub credit: u8,
}

impl AmData {
    /// Encodes the match bits. Of `other`, 24 bits go.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u64 {
        (self.source as u64) << 32 | ((self.other & OTHER_MOST) as u64) << 8 | self.credit as u64
    }

    /// Decodes match bits, all of which mean something.
    #[inline]
    #[must_use]
    pub const fn of(bits: u64) -> Self {
        Self {
            source: (bits >> 32) as u32,
            other: (bits >> 8) as u32 & OTHER_MOST,
            credit: bits as u8,
        }
    }
}

/// Match bits and header data of the data of an unpacked Long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongData {
    /// The memory: [`Id::RarAm`] of a request, [`Id::RarSrc`] of a reply.
    pub id: Id,
    /// How many arguments the header has.
    pub args: u8,
    /// Which handler the header names.
    pub handler: u8,
    /// The thread that sent it.
    pub thread: u8,
    /// The rank that sent it.
    pub source: u32,
    /// What header and data find each other by, together with the source.
    pub lid: u32,
}

impl LongData {
    /// The match bits.
    #[inline]
    #[must_use]
    pub const fn match_bits(self) -> u64 {
        self.id as u64
            | Kind::AmData as u64
            | (self.thread as u64) << 24
            | (self.handler as u64) << 48
            | (self.args as u64) << 56
    }

    /// The header data.
    #[inline]
    #[must_use]
    pub const fn hdr_data(self) -> u64 {
        (self.source as u64) << 32 | self.lid as u64
    }

    /// Decodes match bits and header data; `None` where they are no data of a Long.
    #[inline]
    #[must_use]
    pub const fn of(match_bits: u64, hdr_data: u64) -> Option<Self> {
        let (Some(id), Some(Kind::AmData)) = (Id::of(match_bits), Kind::of(match_bits)) else {
            return None;
        };
        Some(Self {
            id,
            args: (match_bits >> 56) as u8,
            handler: (match_bits >> 48) as u8,
            thread: (match_bits >> 24) as u8,
            source: (hdr_data >> 32) as u32,
            lid: hdr_data as u32,
        })
    }
}

/// The initiator's user pointer of the data of an unpacked Long: which local memory it leaves from, which
/// operation waits for that memory (none of a reply), and the number of the temporary descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongSource {
    /// The local memory.
    pub id: Id,
    /// The operation, if one is to be completed.
    pub op: Option<OpRef>,
    /// Number of the temporary descriptor.
    pub temporary: u32,
}

impl LongSource {
    const WAITED_FOR: u64 = 1 << 63;

    /// Encodes the match bits.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u64 {
        let op = match self.op {
            Some(op) => Self::WAITED_FOR | (op.address as u64) << 8 | (op.thread as u64) << 24,
            None => 0,
        };
        self.id as u64 | Kind::AmData as u64 | (self.temporary as u64 & 0x7FFF_FFFF) << 32 | op
    }

    /// Decodes match bits; `None` where they are another kind.
    #[inline]
    #[must_use]
    pub const fn of(bits: u64) -> Option<Self> {
        let (Some(id), Some(Kind::AmData)) = (Id::of(bits), Kind::of(bits)) else {
            return None;
        };
        let op = if bits & Self::WAITED_FOR == 0 {
            None
        } else {
            Some(OpRef {
                address: (bits >> 8) as u16,
                thread: (bits >> 24) as u8,
            })
        };
        Some(Self {
            id,
            op,
            temporary: (bits >> 32) as u32 & 0x7FFF_FFFF,
        })
    }
}

/// Which system message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SysKind {
    /// The job ends.
    ShutdownRequest = 0,
    /// Reports a step of a barrier.
    Barrier = 1,
    /// A lender revokes credits.
    CreditRevoke = 2,
    /// Returns credits, in answer to a revocation.
    CreditReturn = 3,
}

/// A system message: all of it, for it has no body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysMessage {
    /// The kind of system message.
    pub kind: SysKind,
    /// The three arguments of the message.
    pub args: [u32; 3],
}

impl SysMessage {
    /// The match bits.
    #[inline]
    #[must_use]
    pub const fn match_bits(self) -> u64 {
        Id::Sys as u64 | (self.kind as u64) << 8 | (self.args[0] as u64) << 32
    }

    /// The header data.
    #[inline]
    #[must_use]
    pub const fn hdr_data(self) -> u64 {
        (self.args[1] as u64) << 32 | self.args[2] as u64
    }

    /// Decodes match bits and header data; `None` where they are no system message.
    #[inline]
    #[must_use]
    pub const fn of(match_bits: u64, hdr_data: u64) -> Option<Self> {
        if match_bits & 0xF != Id::Sys as u64 {
            return None;
        }
        let kind = match (match_bits >> 8) as u8 {
            0 => SysKind::ShutdownRequest,
            1 => SysKind::Barrier,
            2 => SysKind::CreditRevoke,
            3 => SysKind::CreditReturn,
            _ => return None,
        };
        Some(Self {
            kind,
            args: [
                (match_bits >> 32) as u32,
                (hdr_data >> 32) as u32,
                hdr_data as u32,
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the reference, bit by bit: what another implementation of the layouts would send.
    #[test]
    fn golden_match_bits() {
        let op = OpRef {
            address: 0xBEEF,
            thread: 0x5A,
        };
        let put = OneSided {
            id: Id::Rar,
            kind: Kind::Put,
            op,
            bounce: 0x0012_3400,
        };
        assert_eq!(put.bits(), 0x0012_3400_5ABE_EF10);
        let get = OneSided {
            id: Id::RarSrc,
            kind: Kind::Get,
            op,
            bounce: 0,
        };
        assert_eq!(get.bits(), 0x0000_0000_5ABE_EF22);
        let header = AmHeader {
            id: Id::ReqRb,
            flags: Flags::MEDIUM.with(Flags::REQUEST),
            handler: 0xC8,
            args: 16,
            offset: 0x800,
        };
        assert_eq!(header.bits(), 0x0000_0800_10C8_0A43);
        let long = AmHeader {
            id: Id::ReqSb,
            flags: Flags::LONG.with(Flags::SYNC).with(Flags::PACKED),
            handler: 1,
            args: 0,
            offset: 0,
        };
        assert_eq!(long.bits(), 0x0000_0000_0001_3444);
        let data = AmData {
            source: 9,
            other: 0xFFAB_CDEF,
            credit: 0xB8,
        };
        assert_eq!(data.bits(), 0x0000_0009_ABCD_EFB8, "of 'other' 24 bits go");
    }

    #[test]
    fn golden_long_data_and_system_messages() {
        let long = LongData {
            id: Id::RarAm,
            args: 3,
            handler: 0x81,
            thread: 7,
            source: 2,
            lid: REPLY_LID | 5,
        };
        assert_eq!(long.match_bits(), 0x0381_0000_0700_0081);
        assert_eq!(long.hdr_data(), 0x0000_0002_0080_0005);
        let message = SysMessage {
            kind: SysKind::CreditReturn,
            args: [0x11, 0x22, 0x33],
        };
        assert_eq!(message.match_bits(), 0x0000_0011_0000_0305);
        assert_eq!(message.hdr_data(), 0x0000_0022_0000_0033);
        let numbers = [
            SysKind::ShutdownRequest,
            SysKind::Barrier,
            SysKind::CreditRevoke,
            SysKind::CreditReturn,
        ];
        assert_eq!(numbers.map(|kind| kind as u8), [0, 1, 2, 3]);
    }

    #[test]
    fn what_was_packed_comes_out() {
        let header = AmHeader {
            id: Id::ReqRb,
            flags: Flags(0x3F),
            handler: 255,
            args: 255,
            offset: u32::MAX,
        };
        assert_eq!(AmHeader::of(header.bits()), Some(header));
        let op = OpRef {
            address: u16::MAX,
            thread: u8::MAX,
        };
        for kind in [Kind::Put, Kind::Get] {
            let one = OneSided {
                id: Id::Temporary,
                kind,
                op,
                bounce: u32::MAX,
            };
            assert_eq!(OneSided::of(one.bits()), Some(one));
            assert_eq!(AmHeader::of(one.bits()), None);
        }
        for op in [None, Some(op)] {
            let source = LongSource {
                id: Id::Temporary,
                op,
                temporary: 1023,
            };
            assert_eq!(LongSource::of(source.bits()), Some(source));
            assert_eq!(OneSided::of(source.bits()), None);
        }
        let message = SysMessage {
            kind: SysKind::Barrier,
            args: [u32::MAX, 0, u32::MAX],
        };
        assert_eq!(
            SysMessage::of(message.match_bits(), message.hdr_data()),
            Some(message)
        );
    }

    #[test]
    fn what_means_nothing_is_refused() {
        assert_eq!(Id::of(9), None);
        assert_eq!(Kind::of(0x30), None);
        assert_eq!(Kind::of(0), None);
        assert_eq!(SysMessage::of(Id::Sys as u64 | 4 << 8, 0), None);
        assert_eq!(SysMessage::of(Id::Boot as u64, 0), None);
        assert_eq!(LongData::of(Id::RarAm as u64 | Kind::Am as u64, 0), None);
        assert_eq!(AmHeader::of(0xF | Kind::Am as u64), None);
    }
}
