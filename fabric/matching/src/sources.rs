//! How much is kept of each source: looked up by hash, one record for each source that ever had something
//! kept. Sources are the peers of a job, so the records stay.

use crate::Load;
use crate::hash::Hasher;
use crate::table::Table;

#[derive(Clone, Copy, Debug)]
struct Record {
    /// Exact sum: lengths come off the wire, and hostile ones must not wrap it.
    bytes: u128,
    source: u32,
    messages: u32,
}

/// The records of all sources.
#[derive(Debug)]
pub(crate) struct Sources {
    records: Vec<Record>,
    by_source: Table,
}

impl Sources {
    pub(crate) fn with_capacity(sources: usize) -> Self {
        Self {
            records: Vec::with_capacity(sources),
            by_source: Table::with_capacity(sources),
        }
    }

    /// Counts one more message and returns the number of its source's record.
    #[inline]
    pub(crate) fn add(&mut self, hasher: &Hasher, source: u32, length: u64) -> u32 {
        let hash = hasher.source(source);
        let record = match self.find(hash, source) {
            Ok(at) => self.by_source.slot(at),
            Err(_) => self.open(hash, source),
        };
        let counts = &mut self.records[record as usize];
        counts.messages += 1;
        counts.bytes += u128::from(length);
        record
    }

    /// Counts one message less.
    #[inline]
    pub(crate) fn sub(&mut self, record: u32, length: u64) {
        let counts = &mut self.records[record as usize];
        counts.messages -= 1;
        counts.bytes -= u128::from(length);
    }

    /// Returns what is kept of one source.
    pub(crate) fn load(&self, hasher: &Hasher, source: u32) -> Load {
        match self.find(hasher.source(source), source) {
            Ok(at) => {
                let record = &self.records[self.by_source.slot(at) as usize];
                Load {
                    messages: record.messages as usize,
                    bytes: clamp(record.bytes),
                }
            }
            Err(_) => Load::default(),
        }
    }

    #[inline]
    fn find(&self, hash: u32, source: u32) -> Result<usize, usize> {
        let records = &self.records[..];
        self.by_source
            .find(hash, move |record| records[record as usize].source == source)
    }

    #[cold]
    #[inline(never)]
    fn open(&mut self, hash: u32, source: u32) -> u32 {
        let record = self.records.len() as u32;
        self.by_source.reserve(self.records.len() + 1);
        if let Err(free) = self.find(hash, source) {
            self.by_source.insert(free, hash, record);
        }
        self.records.push(Record {
            bytes: 0,
            source,
            messages: 0,
        });
        record
    }
}

/// A sum of lengths as the 64 bits that are reported.
pub(crate) fn clamp(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
