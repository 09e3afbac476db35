//! Counters and histograms in a mapped file per rank, to be read from outside without touching the data path.
//!
//! ```text
//!   Plan ── names ──► CounterFile ──► Counter, Gauge, Histogram   one writer thread each: a load and a store
//!                          │                                      of one word, no locked instruction
//!                     memfd (or file)
//!                          │
//!                        Reader ────► Snapshot                    another process; copies, checks everything
//! ```
//!
//! By default the file is a memfd that lives and dies with its process ([`Place::Memory`]); [`find`] finds
//! those of all processes of the same user through `/proc`. A real file is made only where the user names a
//! directory.
//!
//! ```
//! use doorbell_fabric::counters::{CounterFile, Place, Plan, Reader, Value};
//!
//! let plan = Plan::new().counter("pml.sent", "messages").line().histogram("pml.wait", "ns");
//! let file = CounterFile::create(&Place::Memory, 0, &plan)?;
//! let (sent, wait) = (file.counter("pml.sent")?, file.histogram("pml.wait")?);
//! sent.add(3);
//! wait.record(1000);
//!
//! let snapshot = Reader::open(file.path())?.read()?;
//! assert_eq!(snapshot.value("pml.sent"), Some(&Value::Counter(3)));
//! # Ok::<(), doorbell_fabric::error::RailError>(())
//! ```

mod layout;
mod reader;
#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use zerocopy::IntoBytes;

use crate::error::RailError;
use crate::map::{Object, Protection, WORDS_PER_LINE, Word, Words};

pub use layout::{
    BUCKETS, ENTRIES_MAX, HISTOGRAM_WORDS, Kind, LENGTH_MAX, MAGIC, MOST, NAME_MAX, SUM, TEXT_WORDS,
    UNIT_MAX, VERSION,
};
pub use reader::{Buckets, Entry, Reader, Reading, Snapshot, Value, find};

/// The name of the memfd, which [`find`] looks for.
pub const LABEL: &str = "doorbell-counters";

/// The rank in the file of a process that belongs to no job: a client of libfabric, for instance.
pub const NO_RANK: u32 = u32::MAX;

/// The ending of the names of real files.
pub const SUFFIX: &str = ".counters";

/// Where a counter file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The file is in memory, reachable as a descriptor of its process: nothing to clean up.
    Memory,
    /// A file of mode 0600 in this directory, removed on an orderly exit. The directory is created if it is
    /// missing; it must belong to the user and be writable by no one else.
    Directory(PathBuf),
}

/// What a file is to hold: names, units, kinds, and which values lie on one cache line.
///
/// Values lie side by side in the order in which they are named. All values on one line should be written by
/// one thread: [`Plan::line`] starts a new one.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    entries: Vec<Planned>,
    words: usize,
}

#[derive(Clone, Debug)]
struct Planned {
    name: String,
    unit: String,
    kind: Kind,
    word: usize,
}

impl Plan {
    /// An empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// A value that only grows.
    #[must_use]
    pub fn counter(self, name: &str, unit: &str) -> Self {
        self.with(name, unit, Kind::Counter)
    }

    /// A value that goes up and down.
    #[must_use]
    pub fn gauge(self, name: &str, unit: &str) -> Self {
        self.with(name, unit, Kind::Gauge)
    }

    /// Adds a histogram, by the number of significant bits of the values. It takes cache lines of its own.
    #[must_use]
    pub fn histogram(self, name: &str, unit: &str) -> Self {
        self.line().with(name, unit, Kind::Histogram)
    }

    /// A text that seldom changes, truncated to [`TEXT_WORDS`] words.
    #[must_use]
    pub fn text(self, name: &str) -> Self {
        self.with(name, "", Kind::Text)
    }

    /// Starts a new cache line: what follows is written by another thread.
    #[must_use]
    pub fn line(mut self) -> Self {
        self.words = self.words.next_multiple_of(WORDS_PER_LINE);
        self
    }

    fn with(mut self, name: &str, unit: &str, kind: Kind) -> Self {
        self.entries.push(Planned {
            name: name.to_owned(),
            unit: unit.to_owned(),
            kind,
            word: self.words,
        });
        self.words += kind.words();
        self
    }

    /// The table's rows, with values from `start` (bytes) on.
    fn rows(&self, start: usize) -> Result<Vec<layout::Row>, RailError> {
        let bad = |name: &str, reason| RailError::misuse("counter", name, reason);
        if self.entries.len() > ENTRIES_MAX {
            return Err(bad("the plan", "has more than 4096 entries"));
        }
        let row = |(at, planned): (usize, &Planned)| {
            if planned.name.is_empty() || self.entries[..at].iter().any(|other| other.name == planned.name) {
                return Err(bad(&planned.name, "is a duplicate, or empty"));
            }
            let text = "is longer than 96 bytes (its unit: 16) or has characters other than letters, digits and .-_:/";
            Ok(layout::Row {
                name: layout::padded(&planned.name).ok_or_else(|| bad(&planned.name, text))?,
                unit: layout::padded(&planned.unit).ok_or_else(|| bad(&planned.name, text))?,
                kind: planned.kind.number().into(),
                words: (planned.kind.words() as u32).into(),
                offset: ((start + planned.word * WORD) as u64).into(),
            })
        };
        self.entries.iter().enumerate().map(row).collect()
    }
}

/// Bytes of a word.
const WORD: usize = size_of::<AtomicU64>();

/// A rank's counter file, open for writing.
#[derive(Debug)]
pub struct CounterFile {
    /// Keeps the descriptor open, through which others find the file.
    _object: Object,
    words: Words,
    plan: Plan,
    /// The first word of the values.
    values: usize,
    path: PathBuf,
    file: Option<PathBuf>,
}

impl CounterFile {
    /// Makes the file of rank `rank` at `place`, every value zero.
    ///
    /// # Errors
    /// When the plan's names clash, the directory is not the user's own, or memory runs out.
    pub fn create(place: &Place, rank: u32, plan: &Plan) -> Result<Self, RailError> {
        let table = size_of::<layout::Header>();
        let values = table + plan.entries.len() * size_of::<layout::Row>();
        let length = values + plan.words * WORD;
        let rows = plan.rows(values)?;
        let (object, file) = match place {
            Place::Memory => (Object::new(LABEL, length)?, None),
            Place::Directory(directory) => {
                let path = own(directory)?.join(format!("rank{rank}.{}{SUFFIX}", std::process::id()));
                // A file with our own process id is left over from an earlier process.
                let _ = std::fs::remove_file(&path);
                (Object::create_file(&path, length)?, Some(path))
            }
        };
        let words = Words::of(Arc::new(object.map(Protection::ReadWrite)?))?;
        let number = object.as_fd().as_raw_fd();
        let ours = || PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id()));
        let header = layout::Header {
            magic: MAGIC,
            version: VERSION.into(),
            row: (size_of::<layout::Row>() as u32).into(),
            rows: (rows.len() as u32).into(),
            rank: rank.into(),
            process: std::process::id().into(),
            reserved: 0.into(),
            table: (table as u64).into(),
            length: (length as u64).into(),
            spare: [0.into(); 2],
        };
        publish(&words, header.as_bytes(), rows.as_bytes());
        Ok(Self {
            _object: object,
            words,
            plan: plan.clone(),
            values: values / WORD,
            path: file.clone().unwrap_or_else(ours),
            file,
        })
    }

    /// The path by which [`Reader::open`] reads it, in this process and in others of the same user.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the counter `name`. Handles may be cloned, but only one thread may write: two would lose
    /// counts.
    ///
    /// # Errors
    /// When the plan has no counter of that name.
    pub fn counter(&self, name: &str) -> Result<Counter, RailError> {
        Ok(Counter(self.word(name, Kind::Counter)?))
    }

    /// The gauge `name`; one thread writes.
    ///
    /// # Errors
    /// When the plan has no gauge of that name.
    pub fn gauge(&self, name: &str) -> Result<Gauge, RailError> {
        Ok(Gauge(self.word(name, Kind::Gauge)?))
    }

    /// The histogram `name`; one thread writes.
    ///
    /// # Errors
    /// When the plan has no histogram of that name.
    pub fn histogram(&self, name: &str) -> Result<Histogram, RailError> {
        let at = self.find(name, Kind::Histogram)?;
        let words = self.words.part(at, HISTOGRAM_WORDS);
        words.map(Histogram).ok_or_else(|| Self::absent(name))
    }

    /// The text `name`; one thread writes.
    ///
    /// # Errors
    /// When the plan has no text of that name.
    pub fn text(&self, name: &str) -> Result<Text, RailError> {
        let at = self.find(name, Kind::Text)?;
        let words = self.words.part(at, TEXT_WORDS);
        words.map(Text).ok_or_else(|| Self::absent(name))
    }

    fn word(&self, name: &str, kind: Kind) -> Result<Word, RailError> {
        let at = self.find(name, kind)?;
        self.words.word(at).ok_or_else(|| Self::absent(name))
    }

    fn find(&self, name: &str, kind: Kind) -> Result<usize, RailError> {
        let found = self
            .plan
            .entries
            .iter()
            .find(|entry| entry.name == name && entry.kind == kind);
        found
            .map(|entry| self.values + entry.word)
            .ok_or_else(|| Self::absent(name))
    }

    fn absent(name: &str) -> RailError {
        RailError::misuse("counter", name, "is not in the plan, or has another kind in it")
    }
}

impl Drop for CounterFile {
    fn drop(&mut self) {
        if let Some(path) = &self.file {
            // Another process may have removed it already; nothing else can be done about a failure.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Writes table and header, the magic word last.
fn publish(words: &Words, header: &[u8], table: &[u8]) {
    let bytes = header.iter().chain(table).copied();
    let bytes: Vec<u8> = bytes.collect();
    for (at, chunk) in bytes.chunks_exact(WORD).enumerate().rev() {
        // Header and rows are whole words, and the file was made to hold them.
        if let (Some(word), Ok(chunk)) = (words.get(at), chunk.try_into()) {
            word.store(u64::from_ne_bytes(chunk), Release);
        }
    }
}

/// `directory` when it is the user's own, made when it is missing.
fn own(directory: &Path) -> Result<&Path, RailError> {
    let failed = |source: io::Error| RailError::file("use a directory for counters", directory, source);
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let metadata = std::fs::symlink_metadata(directory).map_err(failed)?;
    if private(&metadata) {
        return Ok(directory);
    }
    Err(failed(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it is not a directory that belongs to you alone (mode 0700)",
    )))
}

fn private(directory: &Metadata) -> bool {
    let user = rustix::process::geteuid().as_raw();
    directory.is_dir() && directory.uid() == user && directory.mode() & 0o022 == 0
}

/// A value that only grows. One thread writes it.
#[derive(Clone, Debug)]
pub struct Counter(Word);

impl Counter {
    /// Adds `n`, wrapping: a load and a store, not a locked instruction.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Overwrites it with a total that is counted elsewhere.
    #[inline]
    pub fn set(&self, total: u64) {
        self.0.store(total, Relaxed);
    }

    /// Returns the value of the counter.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A value that goes up and down. One thread writes it.
#[derive(Clone, Debug)]
pub struct Gauge(Word);

impl Gauge {
    /// Sets the value of the gauge.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Returns the value of the gauge.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// How values are distributed. One thread writes it.
#[derive(Clone, Debug)]
pub struct Histogram(Words);

impl Histogram {
    /// Counts one value. Three words on at most three cache lines.
    #[inline]
    pub fn record(&self, value: u64) {
        let bits = (u64::BITS - value.leading_zeros()) as usize;
        self.add(bits, 1);
        self.add(SUM, value);
        if let Some(most) = self.0.get(MOST)
            && most.load(Relaxed) < value
        {
            most.store(value, Relaxed);
        }
    }

    #[inline]
    fn add(&self, word: usize, n: u64) {
        // The view has `HISTOGRAM_WORDS` words, more than any index used here.
        if let Some(word) = self.0.get(word) {
            word.store(word.load(Relaxed).wrapping_add(n), Relaxed);
        }
    }
}

/// A text that seldom changes. One thread writes it; a concurrent reader may see parts of both versions.
#[derive(Clone, Debug)]
pub struct Text(Words);

impl Text {
    /// Overwrites it with as much of `text` as fits.
    pub fn set(&self, text: &str) {
        let room = TEXT_WORDS * WORD;
        let ends = (0..=room.min(text.len())).rev();
        let end = ends
            .into_iter()
            .find(|end| text.is_char_boundary(*end))
            .unwrap_or(0);
        let mut bytes = text.as_bytes()[..end].to_vec();
        bytes.resize(room, 0);
        for (at, chunk) in bytes.as_chunks().0.iter().enumerate() {
            // The view has `TEXT_WORDS` words.
            if let Some(word) = self.0.get(at) {
                word.store(u64::from_ne_bytes(*chunk), Relaxed);
            }
        }
    }
}
