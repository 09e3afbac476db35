//! Reads counter files of other processes: everything is copied first, then validated, then used.
//!
//! The file is read with `pread`, not mapped, so that a truncated file is an error and not a SIGBUS. The
//! kernel copies aligned 64-bit words whole, so no value is torn; two values may be from different moments.

use std::collections::{BTreeMap, HashSet, btree_map};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use zerocopy::FromBytes;

use super::layout::{self, BUCKETS, ENTRIES_MAX, Header, Kind, LENGTH_MAX, MAGIC, MOST, Row, SUM, VERSION};
use super::{LABEL, SUFFIX, WORD};
use crate::error::RailError;

/// A counter file of another process (or our own), open for reading.
#[derive(Debug)]
pub struct Reader {
    file: File,
    path: PathBuf,
    rank: u32,
    process: u32,
    length: usize,
    entries: Vec<Entry>,
}

/// A row of a file's table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The name of the row.
    pub name: String,
    /// What it counts, like `messages`, `bytes` or `ns`; may be empty.
    pub unit: String,
    /// The kind of the row.
    pub kind: Kind,
    #[serde(skip)]
    bytes: Range<usize>,
}

/// All values of a file at about one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// The rank that wrote the values.
    pub rank: u32,
    /// The process that wrote the file.
    pub process: u32,
    /// The values, in the order of the table.
    pub readings: Vec<Reading>,
}

/// A row and its value.
#[derive(Clone, Debug, Serialize)]
pub struct Reading {
    /// What is counted.
    #[serde(flatten)]
    pub entry: Entry,
    /// The value that was read.
    pub value: Value,
}

/// The value of one row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// The value of a counter.
    Counter(u64),
    /// The value of a gauge.
    Gauge(u64),
    /// The buckets of a histogram.
    Histogram(Buckets),
    /// The bytes of a text.
    Text(String),
}

/// A histogram: bucket 0 counts zeroes, bucket `b` the values from 2ᵇ⁻¹ to 2ᵇ - 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Buckets {
    /// How many values fell into each bucket; always [`BUCKETS`] of them.
    pub counts: Vec<u64>,
    /// The sum of all values, wrapping.
    pub sum: u64,
    /// The largest value.
    pub most: u64,
}

impl Reader {
    /// Opens a file by its path.
    ///
    /// # Errors
    /// When it cannot be opened, or is not a counter file of a layout that this program supports.
    pub fn open(path: &Path) -> Result<Self, RailError> {
        let failed = |source| RailError::file("open a counter file", path, source);
        // Whatever the path turns out to be, opening it neither waits nor takes over a terminal.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)
            .map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(bad(path, "is not a file"));
        }
        let available = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        let mut bytes = [0; size_of::<Header>()];
        read(&file, path, &mut bytes, 0)?;
        let header = Header::read_from_bytes(&bytes).map_err(|_| bad(path, "is too short"))?;
        let length = check_header(path, &header, available)?;
        let entries = read_table(&file, path, &header, length)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            rank: header.rank.get(),
            process: running(path).unwrap_or(header.process.get()),
            length,
            entries,
        })
    }

    /// The rank that the file claims to be of.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The process that the file is of: as this one numbers it where it was found among the descriptors of a
    /// process; as the file claims otherwise, which is as its own pid namespace numbers it.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Returns what the file holds.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Reads all values.
    ///
    /// # Errors
    /// When the file cannot be read any more.
    pub fn read(&self) -> Result<Snapshot, RailError> {
        let mut bytes = vec![0; self.length];
        read(&self.file, &self.path, &mut bytes, 0)?;
        let readings = self.entries.iter().filter_map(|entry| {
            let words: Vec<u64> = bytes
                .get(entry.bytes.clone())?
                .chunks_exact(WORD)
                .map(word)
                .collect();
            Some(Reading {
                value: Value::of(entry.kind, &words)?,
                entry: entry.clone(),
            })
        });
        Ok(Snapshot {
            rank: self.rank,
            process: self.process,
            readings: readings.collect(),
        })
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::read_from_bytes(bytes).unwrap_or(0)
}

fn bad(path: &Path, reason: &'static str) -> RailError {
    RailError::bad_file(path, reason)
}

fn read(file: &File, path: &Path, to: &mut [u8], at: u64) -> Result<(), RailError> {
    file.read_exact_at(to, at).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => bad(path, "is shorter than its header requires"),
        _ => RailError::file("read a counter file", path, error),
    })
}

/// Checks the header against the file's real length; returns the length to read.
fn check_header(path: &Path, header: &Header, available: usize) -> Result<usize, RailError> {
    if header.magic != MAGIC {
        return Err(bad(path, "is not a counter file, or is still being made"));
    }
    if header.version.get() != VERSION || header.row.get() as usize != size_of::<Row>() {
        return Err(bad(path, "has a layout that this program does not know"));
    }
    let length = usize::try_from(header.length.get()).unwrap_or(usize::MAX);
    if length > available || length > LENGTH_MAX {
        return Err(bad(
            path,
            "is shorter than its header requires, or too long to be one",
        ));
    }
    if header.rows.get() as usize > ENTRIES_MAX {
        return Err(bad(path, "has a table that is too long"));
    }
    Ok(length)
}

/// Reads the table and checks every row.
fn read_table(file: &File, path: &Path, header: &Header, length: usize) -> Result<Vec<Entry>, RailError> {
    let table = usize::try_from(header.table.get()).unwrap_or(usize::MAX);
    let size = header.rows.get() as usize * size_of::<Row>();
    let values = table.checked_add(size).filter(|end| *end <= length);
    let Some(values) = values.filter(|_| table >= size_of::<Header>()) else {
        return Err(bad(path, "has its table outside"));
    };
    let mut bytes = vec![0; size];
    read(file, path, &mut bytes, table as u64)?;
    let mut names = HashSet::new();
    let entry = |bytes: &[u8]| {
        let entry = Row::read_from_bytes(bytes)
            .ok()
            .and_then(|row| check_row(&row, values, length));
        let entry = entry.ok_or_else(|| bad(path, "has a row that makes no sense"))?;
        if !names.insert(entry.name.clone()) {
            return Err(bad(path, "has two rows of one name"));
        }
        Ok(entry)
    };
    bytes.chunks_exact(size_of::<Row>()).map(entry).collect()
}

/// A row whose name can be shown and whose words lie inside the values.
fn check_row(row: &Row, values: usize, length: usize) -> Option<Entry> {
    let kind = Kind::from_number(row.kind.get())?;
    let start = usize::try_from(row.offset.get()).ok()?;
    let end = start.checked_add(kind.words() * WORD)?;
    let fine = row.words.get() as usize == kind.words() && start.is_multiple_of(WORD);
    let name = layout::unpadded(&row.name)?;
    if !fine || start < values || end > length || name.is_empty() {
        return None;
    }
    Some(Entry {
        name: name.to_owned(),
        unit: layout::unpadded(&row.unit)?.to_owned(),
        kind,
        bytes: start..end,
    })
}

impl Snapshot {
    /// The value of `name`.
    pub fn value(&self, name: &str) -> Option<&Value> {
        let reading = self.readings.iter().find(|reading| reading.entry.name == name);
        reading.map(|reading| &reading.value)
    }
}

impl Value {
    fn of(kind: Kind, words: &[u64]) -> Option<Self> {
        Some(match kind {
            Kind::Counter => Value::Counter(*words.first()?),
            Kind::Gauge => Value::Gauge(*words.first()?),
            Kind::Histogram => Value::Histogram(Buckets {
                counts: words.get(..BUCKETS)?.to_vec(),
                sum: *words.get(SUM)?,
                most: *words.get(MOST)?,
            }),
            Kind::Text => Value::Text(layout::text(words)),
        })
    }
}

impl Buckets {
    /// Returns how many values were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// The mean of all values; `None` without any.
    pub fn mean(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum as f64 / count as f64)
    }

    /// An upper bound of the value at `quantile` (0 to 1): the end of the bucket in which it lies, at most
    /// the largest value. `None` without any.
    pub fn at_most(&self, quantile: f64) -> Option<u64> {
        let count = self.count();
        let wanted = ((count as f64 * quantile.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0u64;
        let bits = self.counts.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= wanted
        })?;
        Some(
            u64::MAX
                .checked_shr(u64::BITS - bits as u32)
                .unwrap_or(0)
                .min(self.most),
        )
    }
}

/// Returns the paths of the counter files of all running processes of this user, and of the files in
/// `directory`.
///
/// Files that cannot be read (of a process that just ended, or of another user) are skipped.
pub fn find(directory: Option<&Path>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = listed(Path::new("/proc"))
        .flat_map(|process| in_process(&process))
        .collect();
    if let Some(directory) = directory {
        let ours = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(SUFFIX));
        found.extend(listed(directory).filter(ours));
    }
    found.sort();
    without_copies(found)
}

/// The process whose descriptor a path refers to (`/proc/PROCESS/fd/NUMBER`).
fn running(path: &Path) -> Option<u32> {
    let folder = path.strip_prefix("/proc").ok()?;
    folder.iter().next()?.to_str()?.parse().ok()
}

/// A child of `fork` has its parent's descriptors: of several processes with one file, only the one that
/// created it counts. The file has its pid in the innermost pid namespace.
fn without_copies(found: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut makers: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    for path in found {
        let Ok(file) = std::fs::metadata(&path) else {
            continue;
        };
        let is_maker = || Some(innermost(running(&path)?)? == claimed(&path)?);
        match makers.entry((file.dev(), file.ino())) {
            btree_map::Entry::Vacant(free) => _ = free.insert(path),
            btree_map::Entry::Occupied(mut other) => {
                if is_maker() == Some(true) {
                    other.insert(path);
                }
            }
        }
    }
    let mut all: Vec<PathBuf> = makers.into_values().collect();
    all.sort();
    all
}

/// The number of a process in its own pid namespace (proc(5), NSpid).
fn innermost(process: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

/// The pid in a counter file.
fn claimed(path: &Path) -> Option<u32> {
    let file = File::open(path).ok()?;
    let mut bytes = [0; size_of::<Header>()];
    read(&file, path, &mut bytes, 0).ok()?;
    Some(Header::read_from_bytes(&bytes).ok()?.process.get())
}

/// The paths of the counter files among the descriptors of one process: one per rank that lives in it.
fn in_process(process: &Path) -> Vec<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let name = process.file_name().and_then(|name| name.to_str());
    let ours = |name: &str| {
        name.parse::<u32>().is_ok() && std::fs::metadata(process).is_ok_and(|metadata| metadata.uid() == user)
    };
    if !name.is_some_and(ours) {
        return Vec::new();
    }
    let wanted = format!("/memfd:{LABEL} (deleted)");
    let is_it = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == wanted.as_str());
    listed(&process.join("fd")).filter(is_it).collect()
}

fn listed(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| entry.ok().map(|entry| entry.path()))
}
