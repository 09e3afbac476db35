//! An open-addressed table from hashes to slot numbers: eight bytes a bucket, eight buckets a cache line.
//!
//! It stores no keys: the caller says whether a slot is the one meant. Linear probing at most half full;
//! removal moves the followers back, so there are no tombstones and nothing to rebuild in steady state.

use crate::chain::NONE;

/// One bucket; `slot == NONE` when free.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    hash: u32,
    slot: u32,
}

const FREE: Bucket = Bucket { hash: 0, slot: NONE };

/// Fewest buckets of a table: two cache lines.
const SMALLEST: usize = 16;

/// Slots by hash.
#[derive(Debug)]
pub(crate) struct Table {
    /// A power of two, at least [`SMALLEST`].
    buckets: Box<[Bucket]>,
    /// A hash's first bucket is given by its high bits.
    shift: u32,
    used: u32,
}

impl Table {
    /// A table that holds `keys` different keys without growing.
    pub(crate) fn with_capacity(keys: usize) -> Self {
        let buckets = (keys * 2).next_power_of_two().max(SMALLEST);
        Self {
            buckets: vec![FREE; buckets].into_boxed_slice(),
            shift: u32::BITS - buckets.trailing_zeros(),
            used: 0,
        }
    }

    /// Where the slot is that has this hash and that the caller recognises, or, as `Err`, the free place where
    /// it would go.
    #[inline]
    pub(crate) fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Result<usize, usize> {
        let mask = self.buckets.len() - 1;
        let mut at = (hash >> self.shift) as usize;
        loop {
            let bucket = self.buckets[at];
            if bucket.slot == NONE {
                return Err(at);
            }
            if bucket.hash == hash && is(bucket.slot) {
                return Ok(at);
            }
            at = (at + 1) & mask;
        }
    }

    /// The slot at a place that [`Table::find`] gave.
    #[inline]
    pub(crate) fn slot(&self, at: usize) -> u32 {
        self.buckets[at].slot
    }

    /// Puts another slot of the same key at a place that [`Table::find`] gave.
    #[inline]
    pub(crate) fn replace(&mut self, at: usize, slot: u32) {
        self.buckets[at].slot = slot;
    }

    /// Puts a slot into the free place that [`Table::find`] gave for its hash.
    #[inline]
    pub(crate) fn insert(&mut self, free: usize, hash: u32, slot: u32) {
        self.buckets[free] = Bucket { hash, slot };
        self.used += 1;
        if self.used as usize * 2 > self.buckets.len() {
            self.grow(self.used as usize * 2);
        }
    }

    /// Frees a place that [`Table::find`] gave.
    #[inline]
    pub(crate) fn remove(&mut self, at: usize) {
        let mask = self.buckets.len() - 1;
        let mut hole = at;
        let mut at = at;
        loop {
            at = (at + 1) & mask;
            let bucket = self.buckets[at];
            if bucket.slot == NONE {
                break;
            }
            // A follower moves back unless that would put it before its first bucket.
            let home = (bucket.hash >> self.shift) as usize;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.buckets[hole] = bucket;
                hole = at;
            }
        }
        self.buckets[hole] = FREE;
        self.used -= 1;
    }

    /// Makes room for `keys` different keys.
    pub(crate) fn reserve(&mut self, keys: usize) {
        if keys * 2 > self.buckets.len() {
            self.grow(keys);
        }
    }

    /// True when nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, keys: usize) {
        let mut grown = Self::with_capacity(keys);
        for bucket in self.buckets.iter().filter(|bucket| bucket.slot != NONE) {
            if let Err(free) = grown.find(bucket.hash, |_| false) {
                grown.buckets[free] = *bucket;
            }
        }
        grown.used = self.used;
        *self = grown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(table: &mut Table, hash: u32, slot: u32) {
        let free = table.find(hash, |found| found == slot).unwrap_err();
        table.insert(free, hash, slot);
    }

    /// Hashes whose first buckets are the last two of the smallest table, so that probing wraps.
    fn crowded(slot: u32) -> u32 {
        0xe000_0000 | (slot % 2) << 28 | slot
    }

    #[test]
    fn removal_keeps_every_other_slot_findable_across_the_end() {
        for gone in 0..8 {
            let mut table = Table::with_capacity(8);
            for slot in 0..8 {
                add(&mut table, crowded(slot), slot);
            }
            let at = table.find(crowded(gone), |slot| slot == gone).unwrap();
            table.remove(at);
            for slot in 0..8 {
                let found = table
                    .find(crowded(slot), |found| found == slot)
                    .ok()
                    .map(|at| table.slot(at));
                assert_eq!(found, (slot != gone).then_some(slot), "after removing {gone}");
            }
        }
    }

    #[test]
    fn it_grows_before_it_is_more_than_half_full_and_loses_nothing() {
        let mut table = Table::with_capacity(0);
        for slot in 0..1000u32 {
            add(&mut table, slot.wrapping_mul(0x9e37_79b9), slot);
            assert!(table.used as usize * 2 <= table.buckets.len());
        }
        for slot in 0..1000u32 {
            let at = table
                .find(slot.wrapping_mul(0x9e37_79b9), |found| found == slot)
                .unwrap();
            assert_eq!(table.slot(at), slot);
            table.remove(at);
        }
        assert!(table.is_empty());
    }

    #[test]
    fn the_capacity_asked_for_is_held_without_growing() {
        for keys in [0, 1, 7, 8, 9, 1000, 1024] {
            let mut table = Table::with_capacity(keys);
            let buckets = table.buckets.len();
            for slot in 0..keys as u32 {
                add(&mut table, slot.wrapping_mul(0x9e37_79b9), slot);
            }
            assert_eq!(table.buckets.len(), buckets, "{keys} keys");
        }
    }
}
