//! How much is kept of each source: looked up by hash, one record for each source that has something kept.

use crate::Load;
use crate::chain::NONE;
use crate::hash::Hasher;
use crate::table::Table;

#[derive(Clone, Copy, Debug)]
struct Record {
    /// Exact sum: lengths come off the wire, and hostile ones must not wrap it.
    bytes: u128,
    source: u32,
    messages: u32,
    next_free: u32,
}

/// The records.
#[derive(Debug)]
pub(crate) struct Sources {
    records: Vec<Record>,
    by_source: Table,
    free: u32,
}

impl Sources {
    pub(crate) fn with_capacity(sources: usize) -> Self {
        Self {
            records: Vec::with_capacity(sources),
            by_source: Table::with_capacity(sources),
            free: NONE,
        }
    }

    /// Counts one more message and returns the number of its source's record.
    #[inline]
    pub(crate) fn add(&mut self, hasher: &Hasher, source: u32, length: u64) -> u32 {
        let hash = hasher.source(source);
        let record = match self
            .by_source
            .find(hash, |record| self.records[record as usize].source == source)
        {
            Ok(at) => self.by_source.slot(at),
            Err(free) => {
                let record = self.open(source);
                self.by_source.insert(free, hash, record);
                record
            }
        };
        let counts = &mut self.records[record as usize];
        counts.messages += 1;
        counts.bytes += u128::from(length);
        record
    }

    /// Counts one message less; the last one closes the record.
    #[inline]
    pub(crate) fn sub(&mut self, hasher: &Hasher, record: u32, length: u64) {
        let counts = &mut self.records[record as usize];
        counts.messages -= 1;
        counts.bytes -= u128::from(length);
        if counts.messages == 0 {
            let hash = hasher.source(counts.source);
            counts.next_free = self.free;
            self.free = record;
            if let Ok(at) = self.by_source.find(hash, |other| other == record) {
                self.by_source.remove(at);
            }
        }
    }

    pub(crate) fn load(&self, hasher: &Hasher, source: u32) -> Load {
        let is = |record: u32| self.records[record as usize].source == source;
        match self.by_source.find(hasher.source(source), is) {
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

    fn open(&mut self, source: u32) -> u32 {
        let fresh = Record {
            bytes: 0,
            source,
            messages: 0,
            next_free: NONE,
        };
        if self.free == NONE {
            self.records.push(fresh);
            return self.records.len() as u32 - 1;
        }
        let record = self.free;
        self.free = self.records[record as usize].next_free;
        self.records[record as usize] = fresh;
        record
    }
}

/// A sum of lengths as the 64 bits that are reported.
pub(crate) fn clamp(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
