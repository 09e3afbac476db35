//! The table of ranks: what each rank of a job has published, read for all ranks at the start or for each
//! when it is needed.
//!
//! ```text
//!   owner of the rails                  thread `doorbell-names`                      the launcher
//!     ask(7), search() ───────────────►   get "hello" of 7  ──────────────────────►
//!     housekeeping looks at ◄── news ──   check it against rank 0's, resolve addresses  ◄
//! ```
//!
//! In a small job each rank reads the entries of all others before it begins, so that contradictory settings
//! are an error of all ranks at once. In a larger one (`job.lazy_above`) it reads those of the ranks that it
//! sends to, receives from or waits for. A thread of its own, which starts with the first such rank, makes
//! the requests to the launcher, so that only operations with that rank wait for the answer.
//!
//! An entry that was read never changes: it is read without a lock.

mod reader;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use doorbell_fabric::select::Selection;
use doorbell_verbs::subnet::PathRecord;
use rustix::fd::BorrowedFd;

use self::reader::Reader;
pub use self::reader::Source;
use crate::acm::Resolution;
use crate::error::Error;
use crate::meet::RankInfo;
use crate::notices::Notices;

/// The entry of one rank.
#[derive(Debug)]
struct Known {
    info: RankInfo,
    /// The rails to the rank, once they are chosen.
    selection: OnceLock<Selection>,
}

/// The result of a look-up: the rank's entry is in the table, or `trouble` has the reason why it is not.
#[derive(Debug, PartialEq, Eq)]
pub struct News {
    /// The rank that was looked up.
    pub rank: u32,
    /// Why the rank cannot be connected to, if so.
    pub trouble: Option<String>,
}

#[derive(Debug)]
struct Shared {
    known: Box<[OnceLock<Box<Known>>]>,
    /// How many entries are filled.
    count: AtomicUsize,
    /// How the addresses of ranks on other hosts were resolved.
    resolutions: Mutex<Vec<Resolution>>,
    /// The results of look-ups.
    news: Notices<News>,
}

/// The table of ranks; clones refer to the same table.
#[derive(Clone, Debug)]
pub struct Directory {
    shared: Arc<Shared>,
    reader: Option<Arc<Reader>>,
    /// Whether the ranks are on several hosts.
    apart: bool,
    /// How many ranks this host has, where only the launcher knows.
    here: Option<u32>,
    /// This rank's place among those of its host, where only the launcher knows.
    local_rank: Option<u32>,
}

impl Directory {
    /// Makes a table that is complete from the start.
    pub fn whole(table: Vec<RankInfo>) -> Self {
        let apart = table.iter().any(|info| info.host != table[0].host);
        let count = AtomicUsize::new(table.len());
        let known = table
            .into_iter()
            .map(|info| OnceLock::from(Box::new(Known::of(info))));
        let shared = Shared {
            known: known.collect(),
            count,
            resolutions: Mutex::default(),
            news: Notices::default(),
        };
        Self {
            shared: Arc::new(shared),
            reader: None,
            apart,
            here: None,
            local_rank: None,
        }
    }

    /// Makes a table with this rank and rank 0; the others are read from `source` when they are needed.
    ///
    /// # Errors
    /// When the system is out of descriptors.
    pub fn lazy(own: RankInfo, zero: RankInfo, source: Source) -> Result<Self, Error> {
        let news = Notices::default();
        news.begin("make an eventfd for the look-up of other ranks")?;
        let (here, local_rank) = (source.here(), source.local_rank());
        let apart = own.host != zero.host || here.is_none_or(|here| here < own.size);
        let known: Box<[OnceLock<_>]> = (0..own.size).map(|_| OnceLock::new()).collect();
        let shared = Arc::new(Shared {
            known,
            count: AtomicUsize::new(0),
            resolutions: Mutex::default(),
            news,
        });
        let reader = Reader::new(source, own.clone(), zero.clone(), Arc::downgrade(&shared));
        let directory = Self {
            shared,
            reader: Some(Arc::new(reader)),
            apart,
            here,
            local_rank,
        };
        directory.shared.learn(own);
        directory.shared.learn(zero);
        Ok(directory)
    }

    /// Returns the number of ranks in the job.
    pub fn size(&self) -> u32 {
        self.shared.known.len() as u32
    }

    /// Whether entries are read when they are needed.
    pub fn is_lazy(&self) -> bool {
        self.reader.is_some()
    }

    /// Whether the ranks are on several hosts, or may be.
    pub fn is_apart(&self) -> bool {
        self.apart
    }

    /// Returns how many ranks this host has, where the table is not complete; `None` where the launcher does
    /// not report it.
    pub fn here(&self) -> Option<u32> {
        self.here
    }

    /// Returns this rank's place among those of its host, where the table is not complete; `None` where the
    /// launcher does not report it.
    pub fn local_rank(&self) -> Option<u32> {
        self.local_rank
    }

    /// Returns a rank's entry, if it was read.
    pub fn rank_info(&self, rank: u32) -> Option<&RankInfo> {
        self.shared.rank_info(rank)
    }

    /// Returns all entries that were read.
    pub fn rank_infos(&self) -> impl Iterator<Item = &RankInfo> + Clone {
        let known = self.shared.known.iter();
        known.filter_map(|known| known.get().map(|known| &known.info))
    }

    /// Returns the rails to a rank, once they are chosen.
    pub fn selection(&self, rank: u32) -> Option<&Selection> {
        let known = self.shared.known.get(rank as usize)?.get()?;
        known.selection.get()
    }

    /// Sets the rails that lead to a rank.
    pub fn choose(&self, rank: u32, selection: Selection) {
        let known = self.shared.known.get(rank as usize).and_then(OnceLock::get);
        if let Some(known) = known {
            // A later choice of the same rails changes nothing.
            let _ = known.selection.set(selection);
        }
    }

    /// Returns how addresses of ranks on other hosts have been resolved so far.
    pub fn resolutions(&self) -> Vec<Resolution> {
        let resolutions = self.shared.resolutions.lock();
        resolutions.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the paths between ports of InfiniBand that were resolved for a rank.
    pub fn paths_to(&self, rank: u32) -> Vec<PathRecord> {
        let resolutions = self.shared.resolutions.lock();
        let resolutions = resolutions.unwrap_or_else(PoisonError::into_inner);
        let of_rank = resolutions.iter().filter(|one| one.rank == rank);
        of_rank.filter_map(|one| one.record().copied()).collect()
    }

    /// Adds how addresses were resolved.
    pub fn resolved(&self, found: Vec<Resolution>) {
        self.shared.resolved(found);
    }

    /// Requests the entry of a rank; [`Directory::take`] returns the result.
    ///
    /// # Errors
    /// When the thread cannot be started, with the reason.
    pub fn ask(&self, rank: u32) -> Result<(), String> {
        self.reader.as_ref().map_or(Ok(()), |reader| reader.ask(rank))
    }

    /// Reads entries until the rank of an incoming connection is found ([`Directory::found`]): those not read
    /// yet, one after the other, the ranks nearest to `from` first.
    ///
    /// # Errors
    /// When the thread cannot be started, with the reason.
    pub fn search(&self, from: u32) -> Result<(), String> {
        let size = self.size();
        let around = (1..=size / 2).flat_map(|step| [(from + step) % size, (from + size - step) % size]);
        self.reader
            .as_ref()
            .map_or(Ok(()), |reader| reader.search(around))
    }

    /// Ends the search: every incoming connection belongs to a rank with an entry.
    pub fn found(&self) {
        if let Some(reader) = &self.reader {
            reader.found();
        }
    }

    /// Lets a search go on to its next rank: the results of [`Directory::take`] were handled.
    pub fn seen(&self) {
        if let Some(reader) = &self.reader {
            reader.seen();
        }
    }

    /// Whether all entries are read.
    pub fn is_whole(&self) -> bool {
        self.shared.count.load(Ordering::Relaxed) == self.shared.known.len()
    }

    /// Whether there are results for [`Directory::take`].
    #[inline]
    pub fn any(&self) -> bool {
        self.shared.news.any()
    }

    /// Takes the results of look-ups since the last call.
    #[cold]
    pub fn take(&self) -> Vec<News> {
        self.shared.news.take()
    }

    /// Returns the descriptor for a sleeper to poll.
    pub fn arm(&self) -> Option<BorrowedFd<'_>> {
        self.shared.news.arm()
    }

    /// Ends the thread, after the look-up that is under way.
    pub fn close(&self) {
        if let Some(reader) = &self.reader {
            reader.close();
        }
    }
}

impl Known {
    fn of(info: RankInfo) -> Self {
        Self {
            info,
            selection: OnceLock::new(),
        }
    }
}

impl Shared {
    fn rank_info(&self, rank: u32) -> Option<&RankInfo> {
        let known = self.known.get(rank as usize)?.get()?;
        Some(&known.info)
    }

    fn learn(&self, info: RankInfo) {
        let place = self.known.get(info.rank as usize);
        // An entry that is there already is the same.
        if place.is_some_and(|place| place.set(Box::new(Known::of(info))).is_ok()) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn resolved(&self, found: Vec<Resolution>) {
        let mut resolutions = self.resolutions.lock().unwrap_or_else(PoisonError::into_inner);
        resolutions.extend(found);
    }
}
