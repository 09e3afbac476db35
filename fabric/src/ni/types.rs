//! The nouns of a Portals 4 interface: handles, processes, options, limits, descriptors.
//!
//! Numbers are those of the public header, so that the C library and a hardware driver pass them through
//! (reference: portals, sections 2 to 5 and 10).

use crate::message::Landing;

/// No portal table index in particular, any user, any rank: all of them are this number.
pub const ANY: u32 = u32::MAX;
/// Any node of a physical [`Process`].
pub const NID_ANY: u32 = 0xffff;
/// Any process of a physical [`Process`].
pub const PID_ANY: u32 = 0xffff;
/// The largest process id that can be requested.
pub const PID_MAX: u32 = 1024;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub u32);
    };
}

handle!(
    /// A memory descriptor: the initiator's memory.
    MdHandle
);
handle!(
    /// A list entry or match entry: the target's memory.
    EntryHandle
);
handle!(
    /// An event queue.
    EqHandle
);
handle!(
    /// A counting event.
    CtHandle
);

/// A process: a rank on a logical interface, a node and a process id on a physical one, depending on the
/// interface (the union of the C binding).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// The rank, or the node.
    pub nid: u32,
    /// The process of the node; zero with a rank.
    pub pid: u32,
}

impl Process {
    /// The process with this rank, of a logical interface.
    #[inline]
    #[must_use]
    pub const fn rank(rank: u32) -> Self {
        Self { nid: rank, pid: 0 }
    }

    /// A process of a node.
    #[inline]
    #[must_use]
    pub const fn physical(nid: u32, pid: u32) -> Self {
        Self { nid, pid }
    }
}

/// Which of the four interfaces of a process: with match lists or without, ranks or physical processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Match entries (true) or list entries.
    pub matching: bool,
    /// Ranks (true) or physical processes.
    pub logical: bool,
}

impl Kind {
    /// Match entries, ranks: what most programs use.
    pub const MATCHING_LOGICAL: Self = Self {
        matching: true,
        logical: true,
    };

    /// 0 to 3: as the wire and handles name it.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u32 {
        (!self.matching as u32) | (!self.logical as u32) << 1
    }

    /// The kind with that number, by its lowest two bits.
    #[inline]
    #[must_use]
    pub const fn of_number(number: u32) -> Self {
        Self {
            matching: number & 1 == 0,
            logical: number & 2 == 0,
        }
    }
}

macro_rules! options {
    ($(#[$doc:meta])* $name:ident { $($(#[$flag_doc:meta])* $flag:ident = $bit:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// None of them.
            pub const NONE: Self = Self(0);
            $($(#[$flag_doc])* pub const $flag: Self = Self(1 << $bit);)*
            /// All that there are: other bits are an invalid argument.
            pub const ALL: Self = Self(0 $(| 1 << $bit)*);

            /// Whether all options of `other` are set.
            #[inline]
            #[must_use]
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Joins these options and others.
            #[inline]
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// Whether there is no bit that means nothing.
            #[inline]
            #[must_use]
            pub const fn is_known(self) -> bool {
                self.0 & !Self::ALL.0 == 0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.with(other)
            }
        }
    };
}

options! {
    /// Options of a portal table entry (section 4).
    PtOptions {
        /// A promise: every entry is used once.
        ONLY_USE_ONCE = 0;
        /// Flow control: a request without a matching entry disables the table entry and is reported; nothing
        /// is dropped silently.
        FLOWCTRL = 1;
        /// A promise: no entry refuses what it has to cut.
        ONLY_TRUNCATE = 2;
        /// Messages need not be matched in the order in which they were sent.
        MATCH_UNORDERED = 3;
        /// The table entry starts disabled.
        ALLOC_DISABLED = 4;
    }
}

options! {
    /// Options of a list entry or match entry (section 5); 15 to 18 are for match entries.
    EntryOptions {
        /// The memory is a list of pieces. Set by the C binding; here [`Memory`] itself has it.
        IOVEC = 0;
        /// Put and the first half of atomics.
        OP_PUT = 1;
        /// Get and the second half of fetching atomics.
        OP_GET = 2;
        /// Unlinked by its first operation.
        USE_ONCE = 3;
        /// Keeps no header of what an entry of the overflow list takes.
        UNEXPECTED_HDR_DISABLE = 4;
        /// All of the memory can be reached.
        IS_ACCESSIBLE = 5;
        /// Posts no LINK event.
        EVENT_LINK_DISABLE = 6;
        /// Posts no events of communication.
        EVENT_COMM_DISABLE = 7;
        /// Posts no event of flow control.
        EVENT_FLOWCTRL_DISABLE = 8;
        /// Posts no events of success.
        EVENT_SUCCESS_DISABLE = 9;
        /// Posts no *_OVERFLOW events.
        EVENT_OVER_DISABLE = 10;
        /// Posts no AUTO_UNLINK and AUTO_FREE.
        EVENT_UNLINK_DISABLE = 11;
        /// Counts operations that move data.
        EVENT_CT_COMM = 12;
        /// Count what meets an unexpected header.
        EVENT_CT_OVERFLOW = 13;
        /// Count bytes, not events.
        EVENT_CT_BYTES = 14;
        /// The entry places messages one behind the other.
        MANAGE_LOCAL = 15;
        /// Skipped by what does not fit.
        NO_TRUNCATE = 16;
        /// The local offset may be rounded up.
        MAY_ALIGN = 17;
        /// An extension: an unexpected header advances the local offset by the requested length.
        LOCAL_INC_UH_RLENGTH = 18;
        /// An extension, and an option of specifications up to 4.2: what the entry takes is not acknowledged.
        ACK_DISABLE = 19;
    }
}

options! {
    /// Options of a memory descriptor (section 5).
    MdOptions {
        /// The memory is a list of pieces. Set by the C binding; here [`Memory`] itself has it.
        IOVEC = 0;
        /// Counts SEND events.
        EVENT_CT_SEND = 1;
        /// Counts REPLY events.
        EVENT_CT_REPLY = 2;
        /// Counts ACK events.
        EVENT_CT_ACK = 3;
        /// Operations of this descriptor need not be matched in order.
        UNORDERED = 4;
        /// Posts no events of success.
        EVENT_SUCCESS_DISABLE = 5;
        /// The memory may be changed when the call has returned, up to `max_volatile_size`.
        VOLATILE = 6;
        /// Posts no SEND events.
        EVENT_SEND_DISABLE = 7;
        /// An extension: lost data need not be sent again. Nothing is lost here.
        UNRELIABLE = 8;
        /// Count bytes, not events.
        EVENT_CT_BYTES = 14;
    }
}

/// Memory of a descriptor or an entry. Offsets count through all of its pieces.
#[derive(Clone, Debug, Default)]
pub enum Memory {
    /// Memory without bytes.
    #[default]
    Empty,
    /// Memory in one piece.
    One(Landing),
    /// Several, in order (an iovec).
    Many(Box<[Landing]>),
}

impl Memory {
    /// The bytes of all pieces together.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::One(piece) => piece.len(),
            Self::Many(pieces) => pieces.iter().map(Landing::len).sum(),
        }
    }

    /// Whether there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of its byte `at`: what an event calls `start`. Zero where there is none.
    #[must_use]
    pub fn address(&self, at: usize) -> usize {
        match self {
            Self::Empty => 0,
            Self::One(piece) => piece.as_mut_ptr().addr().wrapping_add(at),
            Self::Many(pieces) => {
                let mut at = at;
                for piece in pieces {
                    if at < piece.len() {
                        return piece.as_mut_ptr().addr().wrapping_add(at);
                    }
                    at -= piece.len();
                }
                0
            }
        }
    }
}

/// Initiator's memory, as `md_bind` takes it.
#[derive(Clone, Debug, Default)]
pub struct Md {
    /// The memory of the descriptor.
    pub memory: Memory,
    /// The counting event of its operations.
    pub options: MdOptions,
    /// Where full events go.
    pub eq: Option<EqHandle>,
    /// The counting event, if there is one.
    pub ct: Option<CtHandle>,
}

/// Target's memory, as `append` and `search` take it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The memory of the entry.
    pub memory: Memory,
    /// The counting event, if there is one.
    pub ct: Option<CtHandle>,
    /// The user whose operations it accepts; [`ANY`] accepts all.
    pub uid: u32,
    /// The options of the entry.
    pub options: EntryOptions,
    /// Match entries: the initiator. [`ANY`] as the rank, [`NID_ANY`] and [`PID_ANY`] match all.
    pub match_id: Process,
    /// Match entries: the match bits.
    pub match_bits: u64,
    /// Match entries: the bits that may differ.
    pub ignore_bits: u64,
    /// Match entries with MANAGE_LOCAL: unlinked when fewer bytes are free. Zero: never.
    pub min_free: u64,
}

impl Entry {
    /// An entry that accepts everything from all initiators, as far as its options allow.
    #[must_use]
    pub const fn open(memory: Memory, options: EntryOptions) -> Self {
        Self {
            memory,
            ct: None,
            uid: ANY,
            options,
            match_id: Process {
                nid: ANY,
                pid: PID_ANY,
            },
            match_bits: 0,
            ignore_bits: u64::MAX,
            min_free: 0,
        }
    }

    /// Restricts the entry to these match bits.
    #[must_use]
    pub const fn matching(mut self, match_bits: u64, ignore_bits: u64) -> Self {
        self.match_bits = match_bits;
        self.ignore_bits = ignore_bits;
        self
    }

    /// Restricts the entry to this process.
    #[must_use]
    pub const fn from(mut self, match_id: Process) -> Self {
        self.match_id = match_id;
        self
    }

    /// Has the entry counted by `ct`.
    #[must_use]
    pub const fn counted(mut self, ct: CtHandle) -> Self {
        self.ct = Some(ct);
        self
    }
}

/// Which of the two lists of a portal table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum List {
    /// What the program waits for.
    Priority = 0,
    /// Room for unexpected messages (the overflow list).
    Overflow = 1,
}

/// What a search does with the header that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Search {
    /// Reports the header, and leaves it.
    Only = 0,
    /// Takes the header.
    Delete = 1,
}

/// What acknowledges an operation to its initiator (section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AckReq {
    /// No acknowledgement at all.
    None = 0,
    /// An event with length and offset.
    Full = 1,
    /// A count, without an event.
    Ct = 2,
    /// A count, without length and offset: it has been done at the target.
    Oc = 3,
}

/// Operations of atomics (section 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum AtomicKind {
    Min = 0,
    Max = 1,
    Sum = 2,
    Prod = 3,
    Lor = 4,
    Land = 5,
    Bor = 6,
    Band = 7,
    Lxor = 8,
    Bxor = 9,
    Swap = 10,
    Cswap = 11,
    CswapNe = 12,
    CswapLe = 13,
    CswapLt = 14,
    CswapGe = 15,
    CswapGt = 16,
    Mswap = 17,
}

impl AtomicKind {
    /// All of them, by number.
    pub const ALL: [Self; 18] = [
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Prod,
        Self::Lor,
        Self::Land,
        Self::Bor,
        Self::Band,
        Self::Lxor,
        Self::Bxor,
        Self::Swap,
        Self::Cswap,
        Self::CswapNe,
        Self::CswapLe,
        Self::CswapLt,
        Self::CswapGe,
        Self::CswapGt,
        Self::Mswap,
    ];

    /// The operation with that number.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Types of the operands of atomics (section 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Datatype {
    Int8 = 0,
    Uint8 = 1,
    Int16 = 2,
    Uint16 = 3,
    Int32 = 4,
    Uint32 = 5,
    Float = 6,
    Int64 = 7,
    Uint64 = 8,
    Double = 9,
    FloatComplex = 10,
    DoubleComplex = 11,
    LongDouble = 12,
    LongDoubleComplex = 13,
}

impl Datatype {
    /// All of them, by number.
    pub const ALL: [Self; 14] = [
        Self::Int8,
        Self::Uint8,
        Self::Int16,
        Self::Uint16,
        Self::Int32,
        Self::Uint32,
        Self::Float,
        Self::Int64,
        Self::Uint64,
        Self::Double,
        Self::FloatComplex,
        Self::DoubleComplex,
        Self::LongDouble,
        Self::LongDoubleComplex,
    ];

    /// The type with that number.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Bytes of one element, as C on x86-64 has them.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float => 4,
            Self::Int64 | Self::Uint64 | Self::Double | Self::FloatComplex => 8,
            Self::DoubleComplex | Self::LongDouble => 16,
            Self::LongDoubleComplex => 32,
        }
    }
}

/// The limits of an interface (section 3). Each `max_…` is exact: one more is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct NiLimits {
    /// List and match entries.
    pub max_entries: u32,
    /// Headers kept of messages that matched an overflow entry.
    pub max_unexpected_headers: u32,
    pub max_mds: u32,
    pub max_cts: u32,
    pub max_eqs: u32,
    /// The largest index of the portal table.
    pub max_pt_index: u32,
    /// Pieces of an iovec.
    pub max_iovecs: u32,
    /// Entries of one list.
    pub max_list_size: u32,
    /// Triggered operations that wait for one counting event.
    pub max_triggered_ops: u32,
    /// Bytes of one operation.
    pub max_msg_size: u64,
    pub max_atomic_size: u64,
    pub max_fetch_atomic_size: u64,
    /// The length up to which writes to one address are in the order in which they were sent.
    pub max_waw_ordered_size: u64,
    /// The length up to which reads and writes of one address are in order.
    pub max_war_ordered_size: u64,
    pub max_volatile_size: u64,
    /// 1: TARGET_BIND_INACCESSIBLE; 2: TOTAL_DATA_ORDERING.
    pub features: u32,
}

impl Default for NiLimits {
    /// The defaults of an interface in software. Ordered sizes are the specification's minimum (the reference
    /// implementation's 8 for `max_waw_ordered_size` is below that).
    fn default() -> Self {
        Self {
            max_entries: 1024,
            max_unexpected_headers: 1024,
            max_mds: 1024,
            max_cts: 1024,
            max_eqs: 1024,
            max_pt_index: 63,
            max_iovecs: 1024,
            max_list_size: 1024,
            max_triggered_ops: 1024,
            max_msg_size: 4 << 30,
            max_atomic_size: 512,
            max_fetch_atomic_size: 512,
            max_waw_ordered_size: 64,
            max_war_ordered_size: 8,
            max_volatile_size: 64,
            features: 0,
        }
    }
}

/// Error counters of an interface (section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Register {
    /// Requests that found no table entry, or no list entry.
    DropCount = 0,
    /// Requests of a user that the entry is not for.
    PermissionViolations = 1,
    /// Requests that the entry does not allow.
    OperationViolations = 2,
}
