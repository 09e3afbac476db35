//! The configuration of credits: sizes, limits, and the user's settings for the initial distribution.

/// Bytes of receive buffer per credit.
pub const BYTES_PER_CREDIT: usize = 256;
/// Bytes of one event in the conduit's Portals 3.3 original, on which the seed's figures are based.
pub const SEED_EVENT_BYTES: usize = 128;
/// The most extra buffers: more would be a mistake.
const MOST_SPARES: u32 = 64;

/// How long a message in one piece may be: the size of a chunk of every send and receive buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Chunk {
    /// 1,024 bytes: a full one takes 4 credits.
    Small,
    /// 2,048 bytes: a full one takes 8 credits.
    #[default]
    Large,
}

impl Chunk {
    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Small => 1024,
            Self::Large => 2048,
        }
    }

    /// The chunk of `bytes` bytes.
    pub const fn of(bytes: usize) -> Option<Self> {
        match bytes {
            1024 => Some(Self::Small),
            2048 => Some(Self::Large),
            _ => None,
        }
    }

    /// Credits of a full one, and with that the least that a peer ever has: a request that fits can always be
    /// sent once all earlier ones are answered.
    pub const fn least(self) -> u16 {
        (self.bytes() / BYTES_PER_CREDIT) as u16
    }
}

/// Credits of a request of `bytes` bytes in all, header and payload; `None` if no chunk holds it. An unpacked
/// Long takes one more, for the event of its data.
#[inline]
pub const fn credits_for(chunk: Chunk, bytes: usize) -> Option<u8> {
    if bytes > chunk.bytes() {
        return None;
    }
    let credits = bytes.div_ceil(BYTES_PER_CREDIT);
    Some(if credits == 0 { 1 } else { credits as u8 })
}

/// How stalls and refusals are remembered when a lender chooses victims of revocations. The alternatives are
/// compared in docs/credits.md; the third is the original's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Memory {
    /// A flag for each peer, which the end of an epoch clears: one epoch is remembered, whatever happened in
    /// it.
    #[default]
    Flags,
    /// A counter for each peer, which the end of an epoch divides by four, so that frequent events are
    /// remembered longer. A peer that had nothing to return is spared for two epochs.
    Counters,
    /// Stalls as counters, refusals as flags.
    Mixed,
}

/// The limits of the credit protocol; all are settings, and all processes of a job must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most credits that one peer is ever lent (`MAX_CRED_PER_NODE`).
    pub most_per_node: u16,
    /// Requests that a process receives in one of its epochs (`EPOCH_DURATION`).
    pub epoch: u32,
    /// The most that one peer is granted in an epoch, as a counter that each epoch's end divides by four.
    pub lend: u16,
    /// The most that one peer returns in an epoch of its lender, counted likewise.
    pub revoke: u16,
    /// The most revocations in flight.
    pub fan_out: u16,
    /// Entries of the list that one look for a victim passes, so that no poll takes long.
    pub steps: u16,
    /// How stalls and refusals are remembered.
    pub memory: Memory,
}

impl Limits {
    /// The original's defaults.
    pub const DEFAULT: Self = Self {
        most_per_node: 400,
        epoch: 1024,
        lend: 32,
        revoke: 32,
        fan_out: 6,
        steps: 256,
        memory: Memory::Flags,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The configuration of one process's credit state. All processes of a job must have the same except for
/// `me`: each computes from it the credits that every other process lends it, without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditConfig {
    /// Processes of the job.
    pub nodes: u32,
    /// The rank of this one.
    pub me: u32,
    /// The size of a chunk.
    pub chunk: Chunk,
    /// Chunks of one receive buffer; at least 2.
    pub chunks_per_buffer: u32,
    /// Receive buffers beyond those that credits account for: they cover the time between the return of
    /// credits and the release of their buffer. 1 where one thread runs the handlers in order of arrival,
    /// which is always so here; the original had 2 for several threads.
    pub spares: u32,
    /// Whether there are credits at all (`FLOW_CONTROL`). A job of one process has none.
    pub flow_control: bool,
    /// Whether they migrate (`DYNAMIC_CREDITS`).
    pub dynamic: bool,
    /// `CRED_PER_NODE`, where it was set.
    pub per_node: Option<u16>,
    /// `BANKED_CREDITS`, where it was set.
    pub banked: Option<u32>,
    /// `AMRECV_SPACE` in bytes, where it was set.
    pub space: Option<u64>,
    /// The limits of the credit state.
    pub limits: Limits,
}

impl CreditConfig {
    /// The defaults of a job of `nodes` processes.
    pub const fn new(nodes: u32, me: u32, chunk: Chunk) -> Self {
        Self {
            nodes,
            me,
            chunk,
            chunks_per_buffer: 1024,
            spares: 1,
            flow_control: true,
            dynamic: true,
            per_node: None,
            banked: None,
            space: None,
            limits: Limits::DEFAULT,
        }
    }

    /// Whether requests take credits.
    pub const fn counts(&self) -> bool {
        self.flow_control && self.nodes > 1
    }

    pub(super) const fn checked(&self) -> Result<(), CreditConfigError> {
        if self.nodes == 0 {
            return Err(CreditConfigError::NoNodes);
        }
        if self.me >= self.nodes {
            return Err(CreditConfigError::NotANode {
                me: self.me,
                nodes: self.nodes,
            });
        }
        if self.chunks_per_buffer < 2 || self.chunks_per_buffer > 1 << 20 {
            return Err(CreditConfigError::ChunksPerBuffer(self.chunks_per_buffer));
        }
        if self.spares > MOST_SPARES {
            return Err(CreditConfigError::Spares(self.spares));
        }
        let name = match self.limits {
            Limits { epoch: 0, .. } => "GASNET_PORTAL_EPOCH_DURATION",
            Limits { fan_out: 0, .. } => "GASNET_PORTAL_NUM_SCAVENGE",
            Limits { steps: 0, .. } => "Limits::steps",
            _ => return Ok(()),
        };
        Err(CreditConfigError::NoLimit(name))
    }
}

/// Why these values allow no credit state. Settings are named as the environment has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreditConfigError {
    /// A job without processes.
    #[error("a job of no processes has no credits: pass at least 1 process")]
    NoNodes,
    /// The rank is none of the job's.
    #[error("rank {me} is not in a job of {nodes} processes: pass one below {nodes}")]
    NotANode {
        /// The rank of this process.
        me: u32,
        /// The size of the job.
        nodes: u32,
    },
    /// A buffer must be able to take a chunk after the one that it is unlinked with.
    #[error("GASNET_PORTAL_CHUNKS_PER_BUFFER={0} is outside 2 to 1048576: set it within this range")]
    ChunksPerBuffer(u32),
    /// There are too many spare buffers.
    #[error("CreditConfig::spares is {0}, and the limit is 64 spare receive buffers: lower it")]
    Spares(u32),
    /// An epoch, a fan-out or a number of steps is zero.
    #[error("{0}=0: credits could never migrate; set it to 1 or more")]
    NoLimit(&'static str),
    /// A full message could never be sent.
    #[error(
        "{name}={value} leaves each of {others} other processes {given} credits, and a full message takes {least}: \
         set {name} to {enough} or more"
    )]
    BelowLeast {
        /// The setting to change.
        name: &'static str,
        /// The value that was given.
        value: u64,
        /// The smallest value that suffices.
        enough: u64,
        /// Processes beside this one.
        others: u32,
        /// The credits that result.
        given: u64,
        /// The credits that are needed.
        least: u16,
    },
    /// CRED_PER_NODE does not fit AMRECV_SPACE.
    #[error(
        "GASNET_PORTAL_CRED_PER_NODE={per_node} for {others} other processes takes {needed} bytes, and \
         GASNET_PORTAL_AMRECV_SPACE is {space}: raise GASNET_PORTAL_AMRECV_SPACE to {needed}, or lower \
         GASNET_PORTAL_CRED_PER_NODE"
    )]
    SpaceTooSmall {
        /// The value of CRED_PER_NODE.
        per_node: u16,
        /// Processes beside this one.
        others: u32,
        /// Bytes that they need.
        needed: u64,
        /// Bytes that there are.
        space: u64,
    },
    /// BANKED_CREDITS alone takes more than AMRECV_SPACE.
    #[error(
        "GASNET_PORTAL_BANKED_CREDITS={banked} takes {needed} bytes, and GASNET_PORTAL_AMRECV_SPACE is {space}: raise \
         GASNET_PORTAL_AMRECV_SPACE above {needed}, or lower GASNET_PORTAL_BANKED_CREDITS"
    )]
    BankTooLarge {
        /// The value of BANKED_CREDITS.
        banked: u32,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that there are.
        space: u64,
    },
    /// More than the counters hold.
    #[error(
        "{name}={value} results in {credits} credits of a process, and the limit is 4294967295: lower {name}"
    )]
    TooMany {
        /// The setting to lower.
        name: &'static str,
        /// The value that was given, or its default in a job of this size.
        value: u64,
        /// The sum of all credits.
        credits: u64,
    },
}
