//! Who the ranks of a job are, as far as this rank knows: all of them from the start, or each from when it is needed.
//!
//! ```text
//!   who owns the rails                  thread `doorbell-names`                     the launcher
//!     ask(7), search() ───────────────►   get "hello" of 7  ──────────────────────►
//!     housekeeping looks at ◄── news ──   it fits to rank 0's, addresses resolved  ◄
//! ```
//!
//! In a small job each rank reads the words of all others before it begins: whatever does not fit is told at once, by all.
//! In a larger one (`job.lazy_above`) it reads those of the ranks that it has something to say to, hears from, or waits for;
//! the launcher is asked by a thread of its own, which begins when the first is needed. Nobody waits for it but what waits
//! for that rank.
//!
//! What was read stays, and is not changed: whoever has it may look at it without a lock.

mod reader;

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use doorbell_fabric::select::Selection;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use self::reader::Reader;
pub use self::reader::Source;
use crate::acm::Resolution;
use crate::error::Error;
use crate::meet::Hello;

/// What is known of one rank.
#[derive(Debug)]
struct Known {
    hello: Hello,
    /// The rails to it, once they were chosen.
    selection: OnceLock<Selection>,
}

/// What became of asking for a rank: why it cannot be met, if so.
#[derive(Debug, PartialEq, Eq)]
pub struct News {
    /// The rank that was looked up.
    pub rank: u32,
    /// Why it cannot be met.
    pub trouble: Option<String>,
}

/// What the thread tells the owner of the rails.
#[derive(Debug)]
struct Letters {
    any: AtomicBool,
    news: Mutex<Vec<News>>,
    wake: OwnedFd,
}

#[derive(Debug)]
struct Shared {
    known: Box<[OnceLock<Box<Known>>]>,
    /// How many of them are.
    count: AtomicUsize,
    /// How the addresses of ranks on other hosts were resolved.
    resolutions: Mutex<Vec<Resolution>>,
    letters: Option<Letters>,
}

/// Who the ranks are, from all sides; copies are the same.
#[derive(Clone, Debug)]
pub struct Directory {
    shared: Arc<Shared>,
    reader: Option<Arc<Reader>>,
    /// Whether the ranks are on several hosts.
    apart: bool,
    /// How many of them are here, where only the launcher knows.
    here: Option<u32>,
}

impl Directory {
    /// Everybody is known.
    pub fn whole(table: Vec<Hello>) -> Self {
        let apart = table.iter().any(|hello| hello.host != table[0].host);
        let count = AtomicUsize::new(table.len());
        let known = table
            .into_iter()
            .map(|hello| OnceLock::from(Box::new(Known::of(hello))));
        let shared = Shared {
            known: known.collect(),
            count,
            resolutions: Mutex::default(),
            letters: None,
        };
        Self {
            shared: Arc::new(shared),
            reader: None,
            apart,
            here: None,
        }
    }

    /// Known are this rank and rank 0; the others are asked for from `source`.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn lazy(own: Hello, zero: Hello, source: Source) -> Result<Self, Error> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            let step = "make an eventfd for what is asked about other ranks";
            Error::io(
                step,
                "this process",
                error.into(),
                "raise the limit of open files (ulimit -n)",
            )
        })?;
        let here = source.here();
        let apart = own.host != zero.host || here.is_none_or(|here| here < own.size);
        let known: Box<[OnceLock<_>]> = (0..own.size).map(|_| OnceLock::new()).collect();
        let shared = Arc::new(Shared {
            known,
            count: AtomicUsize::new(0),
            resolutions: Mutex::default(),
            letters: Some(Letters {
                any: AtomicBool::new(false),
                news: Mutex::default(),
                wake,
            }),
        });
        let reader = Reader::new(source, own.clone(), zero.clone(), Arc::downgrade(&shared));
        let directory = Self {
            shared,
            reader: Some(Arc::new(reader)),
            apart,
            here,
        };
        directory.shared.learn(own);
        directory.shared.learn(zero);
        Ok(directory)
    }

    /// How many ranks the job has.
    pub fn size(&self) -> u32 {
        self.shared.known.len() as u32
    }

    /// Whether ranks are asked for when they are needed.
    pub fn is_lazy(&self) -> bool {
        self.reader.is_some()
    }

    /// Whether the ranks are on several hosts, or may be.
    pub fn is_apart(&self) -> bool {
        self.apart
    }

    /// How many ranks this host has, where not all of them are known; `None` where the launcher does not say.
    pub fn here(&self) -> Option<u32> {
        self.here
    }

    /// What a rank has published, if it was asked for.
    pub fn hello(&self, rank: u32) -> Option<&Hello> {
        self.shared.hello(rank)
    }

    /// Those that are known.
    pub fn hellos(&self) -> impl Iterator<Item = &Hello> + Clone {
        let known = self.shared.known.iter();
        known.filter_map(|known| known.get().map(|known| &known.hello))
    }

    /// The rails to a rank, once they were chosen.
    pub fn selection(&self, rank: u32) -> Option<&Selection> {
        let known = self.shared.known.get(rank as usize)?.get()?;
        known.selection.get()
    }

    /// These rails lead to a rank.
    pub fn choose(&self, rank: u32, selection: Selection) {
        let known = self.shared.known.get(rank as usize).and_then(OnceLock::get);
        if let Some(known) = known {
            // They are chosen once.
            let _ = known.selection.set(selection);
        }
    }

    /// How the addresses of ranks on other hosts were resolved so far.
    pub fn resolutions(&self) -> Vec<Resolution> {
        let resolutions = self.shared.resolutions.lock();
        resolutions.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds how addresses were resolved.
    pub fn resolved(&self, found: Vec<Resolution>) {
        self.shared.resolved(found);
    }

    /// A rank is needed: [`Directory::take`] tells when it is known.
    ///
    /// # Errors
    /// Why nobody can be asked.
    pub fn ask(&self, rank: u32) -> Result<(), String> {
        self.reader.as_ref().map_or(Ok(()), |reader| reader.ask(rank))
    }

    /// Somebody calls who is not known: those are asked for that were not, one after the other and the nearest ranks first,
    /// until [`Directory::found`].
    ///
    /// # Errors
    /// Why nobody can be asked.
    pub fn search(&self, from: u32) -> Result<(), String> {
        let size = self.size();
        let around = (1..=size / 2).flat_map(|step| [(from + step) % size, (from + size - step) % size]);
        self.reader
            .as_ref()
            .map_or(Ok(()), |reader| reader.search(around))
    }

    /// Nobody calls any more who is not known.
    pub fn found(&self) {
        if let Some(reader) = &self.reader {
            reader.found();
        }
    }

    /// It was looked at what [`Directory::take`] gave.
    pub fn seen(&self) {
        if let Some(reader) = &self.reader {
            reader.seen();
        }
    }

    /// Whether all are known.
    pub fn is_whole(&self) -> bool {
        self.shared.count.load(Ordering::Relaxed) == self.shared.known.len()
    }

    /// Whether there is news.
    #[inline]
    pub fn any(&self) -> bool {
        let letters = self.shared.letters.as_ref();
        letters.is_some_and(|letters| letters.any.load(Ordering::Relaxed))
    }

    /// What became of what was asked, since the last time.
    #[cold]
    pub fn take(&self) -> Vec<News> {
        let Some(letters) = &self.shared.letters else {
            return Vec::new();
        };
        letters.any.store(false, Ordering::Release);
        let _ = rustix::io::read(&letters.wake, &mut [0; 8]);
        mem::take(&mut letters.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What a sleeper watches.
    pub fn arm(&self) -> Option<BorrowedFd<'_>> {
        self.shared.letters.as_ref().map(|letters| letters.wake.as_fd())
    }

    /// Nothing more is asked: the thread ends after the question that it is at.
    pub fn close(&self) {
        if let Some(reader) = &self.reader {
            reader.close();
        }
    }
}

impl Known {
    fn of(hello: Hello) -> Self {
        Self {
            hello,
            selection: OnceLock::new(),
        }
    }
}

impl Shared {
    fn hello(&self, rank: u32) -> Option<&Hello> {
        let known = self.known.get(rank as usize)?.get()?;
        Some(&known.hello)
    }

    fn learn(&self, hello: Hello) {
        let place = self.known.get(hello.rank as usize);
        // What was learned before is the same.
        if place.is_some_and(|place| place.set(Box::new(Known::of(hello))).is_ok()) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn resolved(&self, found: Vec<Resolution>) {
        let mut resolutions = self.resolutions.lock().unwrap_or_else(PoisonError::into_inner);
        resolutions.extend(found);
    }

    fn tell(&self, news: News) {
        let Some(letters) = &self.letters else { return };
        letters
            .news
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(news);
        letters.any.store(true, Ordering::Release);
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&letters.wake, &1_u64.to_ne_bytes());
    }
}
