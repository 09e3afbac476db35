//! What a conduit is made of: ranks, segment, settings, limits.

use std::time::Duration;

use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::ni::{NiLimits, Process};

use crate::credit::Shares;
use crate::error::AmError;
use crate::exit::ExitFlag;
use crate::settings::Settings;

/// The processes of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// The number of ranks, on a logical interface whose map is set.
    Logical(u32),
    /// The rank map, from the launcher, on a physical interface.
    Physical(Box<[Process]>),
}

impl Ranks {
    /// Returns the number of processes.
    #[must_use]
    pub fn count(&self) -> u32 {
        match self {
            Self::Logical(count) => *count,
            Self::Physical(map) => u32::try_from(map.len()).unwrap_or(u32::MAX),
        }
    }

    /// The process of a rank; `None` where there is none.
    #[inline]
    #[must_use]
    pub fn process(&self, rank: u32) -> Option<Process> {
        match self {
            Self::Logical(count) if rank < *count => Some(Process::rank(rank)),
            Self::Logical(_) => None,
            Self::Physical(map) => map.get(rank as usize).copied(),
        }
    }

    /// The rank of a process. A walk through the map on a physical interface: not for every message.
    #[must_use]
    pub fn rank(&self, process: Process) -> Option<u32> {
        match self {
            Self::Logical(count) => (process.nid < *count).then_some(process.nid),
            Self::Physical(map) => {
                let at = map.iter().position(|known| *known == process)?;
                u32::try_from(at).ok()
            }
        }
    }
}

/// What of a process's memory its peers may reach.
#[derive(Clone, Debug)]
pub enum Segment {
    /// GASNet's FAST: one piece, pinned at the start.
    Fast(RegionSlice),
    /// GASNet's EVERYTHING: all of the process. Refused by name, [`AmError::Everything`]: no safe Rust can
    /// lend memory that other code of the process uses and frees at any time.
    Everything,
}

/// What a conduit is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// This process's rank.
    pub me: u32,
    /// The processes of the job.
    pub ranks: Ranks,
    /// The segment of this process.
    pub segment: Segment,
    /// The settings of the conduit.
    pub settings: Settings,
    /// Bytes that this process may lock in memory (`RLIMIT_MEMLOCK`), where the interface pins memory;
    /// `None`: no limit, or an interface in software.
    pub memlock: Option<u64>,
    /// Bytes of memory that the host has left, where that is known: what takes more is refused before
    /// anything is taken, since the kernel would end some process for it.
    pub memory: Option<u64>,
    /// Time limit of the start-up.
    pub patience: Duration,
    /// The flag that a signal handler may set to have the job end, tested in polls.
    pub exit_flag: ExitFlag,
}

impl Config {
    /// The defaults, for a job of `size` ranks on a logical interface.
    #[must_use]
    pub fn new(me: u32, ranks: u32, segment: RegionSlice) -> Self {
        Self {
            me,
            ranks: Ranks::Logical(ranks),
            segment: Segment::Fast(segment),
            settings: Settings::default(),
            memlock: None,
            memory: None,
            patience: Duration::from_secs(60),
            exit_flag: ExitFlag::default(),
        }
    }

    /// The limits that the interface needs, to be requested when it is initialised.
    ///
    /// # Errors
    /// [`AmError::CreditConfig`], [`AmError::NoSuchRank`]: settings that do not fit the job.
    pub fn needs(&self) -> Result<NiLimits, AmError> {
        let shares = self.shares()?;
        let base = NiLimits::default();
        let entries = shares.buffers.saturating_add(OTHER_ENTRIES);
        Ok(NiLimits {
            max_entries: base.max_entries.max(entries),
            max_list_size: base.max_list_size.max(entries),
            max_mds: base
                .max_mds
                .max(self.settings.temporaries.saturating_add(OTHER_MDS)),
            max_unexpected_headers: base.max_unexpected_headers.max(1),
            max_eqs: base.max_eqs.max(3),
            max_cts: base.max_cts.max(1),
            max_pt_index: base.max_pt_index.max(SYS_INDEX),
            // Messages up to this length cost no SEND event.
            max_volatile_size: 512,
            ..base
        })
    }

    pub(crate) fn shares(&self) -> Result<Shares, AmError> {
        let count = self.ranks.count();
        if self.me >= count {
            return Err(AmError::NoSuchRank {
                rank: self.me,
                size: count,
            });
        }
        Ok(Shares::new(&self.settings.terms(count, self.me))?)
    }

    /// The segment, within what may be pinned.
    pub(crate) fn segment(&self, shares: &Shares) -> Result<RegionSlice, AmError> {
        let Segment::Fast(segment) = &self.segment else {
            return Err(AmError::Everything);
        };
        let chunks = u64::from(self.settings.request_chunks) + u64::from(self.settings.reply_chunks);
        let send = chunks.saturating_mul(self.settings.chunk.bytes() as u64);
        let receive = shares.receive_bytes();
        let bytes = segment.len() as u64;
        let need = bytes.saturating_add(send).saturating_add(receive);
        if let Some(limit) = self.memlock.filter(|limit| need > *limit) {
            return Err(AmError::Pinning {
                need,
                segment: bytes,
                receive,
                send,
                limit,
            });
        }
        // The segment is there already.
        let more = send.saturating_add(receive);
        if let Some(left) = self.memory.filter(|left| more > *left) {
            return Err(AmError::NoMemory { receive, send, left });
        }
        Ok(segment.clone())
    }
}

/// The portal table entry of puts, gets and the SAFE queue's events: the RAR entry of the original.
pub const RAR_INDEX: u32 = 38;
/// The portal table index of requests: the AM entry of the original.
pub const AM_INDEX: u32 = 39;
/// The portal table index of system messages and the exchange at the start, which Portals 4 needs because
/// queues belong to table entries.
pub const SYS_INDEX: u32 = 40;
/// Entries beside the receive buffers: RAR, RARSRC, ReqSB, RARAM, the catch basin, SYS, BOOT.
pub(crate) const OTHER_ENTRIES: u32 = 7;
/// Memory descriptors beside the temporary ones.
pub(crate) const OTHER_MDS: u32 = 10;
