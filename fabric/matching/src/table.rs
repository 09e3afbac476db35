//! An open-addressed table from hashes to slot numbers: eight bytes a bucket, eight buckets a cache line.
//!
//! It stores no keys: the caller decides whether a slot is the one meant. Linear probing at most half full;
//! removal moves the followers back, so there are no tombstones and nothing to rebuild in steady state.
//!
//! The owner of the slots keeps it at most half full: it reserves room whenever it adds slots, and each slot
//! is in the table at most once. So nothing is counted or checked on the way.

use crate::chain::NONE;

/// One bucket: the hash in the high half, the slot in the low half, `NONE` there when free. One word, so that
/// it is always stored and loaded whole: a load of two fresh half-word stores would stall.
#[derive(Clone, Copy, Debug)]
struct Bucket(u64);

const FREE: Bucket = Bucket::new(0, NONE);

impl Bucket {
    #[inline]
    const fn new(hash: u32, slot: u32) -> Self {
        Self((hash as u64) << 32 | slot as u64)
    }

    #[inline]
    const fn hash(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    const fn slot(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    const fn is_free(self) -> bool {
        self.slot() == NONE
    }
}

/// Fewest buckets of a table: two cache lines.
const SMALLEST: usize = 16;

/// Slots by hash.
#[derive(Debug)]
pub(crate) struct Table {
    /// A power of two, at least [`SMALLEST`]. A hash's first bucket is given by its low bits.
    buckets: Box<[Bucket]>,
}

impl Table {
    /// A table for this many different keys.
    pub(crate) fn with_capacity(keys: usize) -> Self {
        let buckets = (keys * 2).next_power_of_two().max(SMALLEST);
        Self {
            buckets: vec![FREE; buckets].into_boxed_slice(),
        }
    }

    /// Makes room for this many different keys.
    pub(crate) fn reserve(&mut self, keys: usize) {
        if keys * 2 <= self.buckets.len() {
            return;
        }
        let mut grown = Self::with_capacity(keys);
        for bucket in self.buckets.iter().filter(|bucket| !bucket.is_free()) {
            if let Err(free) = grown.find(bucket.hash(), |_| false) {
                grown.buckets[free] = *bucket;
            }
        }
        *self = grown;
    }

    /// Returns where the slot is that has this hash and that the caller recognises, or, as `Err`, the free
    /// place where it would go.
    #[inline]
    pub(crate) fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Result<usize, usize> {
        let at = hash as usize & (self.buckets.len() - 1);
        let bucket = self.buckets[at];
        if bucket.is_free() {
            return Err(at);
        }
        if bucket.hash() == hash && is(bucket.slot()) {
            return Ok(at);
        }
        self.find_behind(at, hash, is)
    }

    /// The rest of a search whose first bucket holds another key.
    #[inline(never)]
    fn find_behind(&self, first: usize, hash: u32, is: impl Fn(u32) -> bool) -> Result<usize, usize> {
        let mut at = first;
        loop {
            at = (at + 1) & (self.buckets.len() - 1);
            let bucket = self.buckets[at];
            if bucket.is_free() {
                return Err(at);
            }
            if bucket.hash() == hash && is(bucket.slot()) {
                return Ok(at);
            }
        }
    }

    /// The slot at a place that [`Table::find`] gave.
    #[inline]
    pub(crate) fn slot(&self, at: usize) -> u32 {
        self.buckets[at].slot()
    }

    /// Puts another slot of the same key at a place that [`Table::find`] gave.
    #[inline]
    pub(crate) fn replace(&mut self, at: usize, slot: u32) {
        self.buckets[at] = Bucket::new(self.buckets[at].hash(), slot);
    }

    /// Puts a slot into the free place that [`Table::find`] gave for its hash.
    #[inline]
    pub(crate) fn insert(&mut self, free: usize, hash: u32, slot: u32) {
        self.buckets[free] = Bucket::new(hash, slot);
    }

    /// Frees a place that [`Table::find`] gave.
    #[inline]
    pub(crate) fn remove(&mut self, at: usize) {
        let mask = self.buckets.len() - 1;
        let hole = if self.buckets[(at + 1) & mask].is_free() {
            at
        } else {
            self.move_back(at)
        };
        self.buckets[hole] = FREE;
    }

    /// Moves the followers of a place back where that brings them nearer to their first bucket, and returns
    /// the place that is free then.
    #[inline(never)]
    fn move_back(&mut self, mut hole: usize) -> usize {
        let mask = self.buckets.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let bucket = self.buckets[at];
            if bucket.is_free() {
                return hole;
            }
            let home = bucket.hash() as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.buckets[hole] = bucket;
                hole = at;
            }
        }
    }

    /// True when nothing is in it; looks at every bucket.
    pub(crate) fn is_empty(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.is_free())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(table: &mut Table, hash: u32, slot: u32) {
        let free = table.find(hash, |found| found == slot).unwrap_err();
        table.insert(free, hash, slot);
    }

    fn lookup(table: &Table, hash: u32, slot: u32) -> Option<usize> {
        table.find(hash, |found| found == slot).ok()
    }

    /// Hashes whose first buckets are the last two of the smallest table, so that probing wraps.
    fn crowded(slot: u32) -> u32 {
        (slot << 4) | (14 + slot % 2)
    }

    #[test]
    fn removal_keeps_every_other_slot_findable_across_the_end() {
        for gone in 0..8 {
            let mut table = Table::with_capacity(8);
            for slot in 0..8 {
                add(&mut table, crowded(slot), slot);
            }
            let at = lookup(&table, crowded(gone), gone).unwrap();
            table.remove(at);
            for slot in 0..8 {
                let found = lookup(&table, crowded(slot), slot).map(|at| table.slot(at));
                assert_eq!(found, (slot != gone).then_some(slot), "after removing {gone}");
            }
        }
    }

    #[test]
    fn growing_loses_nothing_and_leaves_at_least_half_free() {
        let mut table = Table::with_capacity(0);
        for slot in 0..1000u32 {
            table.reserve(slot as usize + 1);
            add(&mut table, slot.wrapping_mul(0x9e37_79b9), slot);
            let used = table.buckets.iter().filter(|bucket| !bucket.is_free()).count();
            assert!(used * 2 <= table.buckets.len());
        }
        for slot in 0..1000u32 {
            let at = lookup(&table, slot.wrapping_mul(0x9e37_79b9), slot).unwrap();
            assert_eq!(table.slot(at), slot);
            table.remove(at);
        }
        assert!(table.is_empty());
    }
}
