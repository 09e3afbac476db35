//! Completions that were not read yet.

use std::mem::MaybeUninit;

use libfabric_sys::fi_addr_t;

use super::entry::{Entry, Format};
use super::outlet::Outlet;

/// An entry with all that is known of it, and the sender of its message.
type Kept = (Entry, fi_addr_t);

/// A ring of entries. It grows when its owner wants it, or when one more has to be kept.
#[derive(Debug)]
pub(crate) struct Ring {
    /// A power of two of places.
    kept: Box<[MaybeUninit<Kept>]>,
    /// Entries taken and put since the start.
    taken: usize,
    put: usize,
}

// SAFETY: the pointers are the client's, and are only ever given back to it.
unsafe impl Send for Ring {}

impl Ring {
    /// Makes a ring with room for at least `places` entries. Its memory is not touched.
    pub(crate) fn new(places: usize) -> Self {
        Self {
            kept: Box::new_uninit_slice(places.next_power_of_two().max(16)),
            taken: 0,
            put: 0,
        }
    }

    /// Entries that were not taken yet.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.put.wrapping_sub(self.taken)
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.put == self.taken
    }

    /// The number of places.
    #[inline(always)]
    pub(crate) fn places(&self) -> usize {
        self.kept.len()
    }

    /// Sees to it that there are at least this many places.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, places: usize) {
        if places > self.places() {
            self.grow(places);
        }
    }

    #[cold]
    fn grow(&mut self, places: usize) {
        // Entries keep their numbers.
        let mut larger = Self {
            taken: self.taken,
            put: self.taken,
            ..Self::new(places)
        };
        while !self.is_empty() {
            // SAFETY: there is one.
            let (entry, sender) = unsafe { self.oldest() };
            larger.push(entry, *sender);
            self.taken = self.taken.wrapping_add(1);
        }
        *self = larger;
    }

    /// The places, less one.
    #[inline(always)]
    fn mask(&self) -> usize {
        self.places() - 1
    }

    /// Adds an entry.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: &Entry, sender: fi_addr_t) {
        self.reserve(self.len() + 1);
        let at = self.put & self.mask();
        self.kept[at].write((*entry, sender));
        self.put = self.put.wrapping_add(1);
    }

    /// The number of the next entry that is put.
    pub(crate) fn next(&self) -> usize {
        self.put
    }

    /// How many entries there are before the one of this number, which is the next one's or an older one's.
    pub(crate) fn before(&self, number: usize) -> usize {
        let ahead = number.wrapping_sub(self.taken);
        if ahead <= self.len() { ahead } else { 0 }
    }

    /// Moves entries to a caller, oldest first, as many as fit.
    #[inline(always)]
    pub(crate) fn take(&mut self, format: Format, outlet: &mut Outlet) {
        self.take_most(self.len(), format, outlet);
    }

    /// Moves some entries to a caller, oldest first, as many as fit.
    #[inline(always)]
    pub(crate) fn take_most(&mut self, most: usize, format: Format, outlet: &mut Outlet) {
        for _ in 0..most.min(outlet.room()) {
            // SAFETY: no more are taken than there are.
            let (entry, sender) = unsafe { self.oldest() };
            outlet.put(format, entry, *sender);
            self.taken = self.taken.wrapping_add(1);
        }
    }

    /// The oldest entry.
    ///
    /// # Safety
    /// There is one.
    #[inline(always)]
    unsafe fn oldest(&self) -> &Kept {
        // SAFETY: written when it was put, and not taken yet, by the contract of this function.
        unsafe { self.kept[self.taken & self.mask()].assume_init_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outlet::QueueIndex;
    use super::*;

    fn entry(number: u64) -> Entry {
        Entry {
            op_context: std::ptr::without_provenance_mut(number as usize),
            flags: number,
            len: 0,
            buf: std::ptr::null_mut(),
            data: 0,
            tag: !number,
        }
    }

    fn read(ring: &mut Ring, format: Format, most: usize) -> Vec<(u64, u64, fi_addr_t)> {
        let words = format.size() / 8;
        let mut memory = vec![0_u64; words * most];
        let mut senders = vec![0; most];
        // SAFETY: both have room for `most`.
        let mut outlet = unsafe {
            Outlet::new(
                QueueIndex(0),
                memory.as_mut_ptr().cast(),
                most,
                senders.as_mut_ptr(),
            )
        };
        ring.take(format, &mut outlet);
        let count = outlet.written();
        (0..count)
            .map(|at| (memory[at * words], memory[(at + 1) * words - 1], senders[at]))
            .collect()
    }

    #[test]
    fn entries_come_out_in_order_over_the_end_of_the_memory_and_through_growth() {
        let mut ring = Ring::new(16);
        let (mut next_in, mut next_out) = (0, 0);
        for turn in 0..200 {
            for _ in 0..1 + turn % 13 {
                ring.push(&entry(next_in), next_in + 7);
                next_in += 1;
            }
            for (context, tag, sender) in read(&mut ring, Format::Tagged, 1 + turn as usize % 11) {
                assert_eq!((context, tag, sender), (next_out, !next_out, next_out + 7));
                next_out += 1;
            }
        }
        assert!(ring.places() > 16, "it has grown");
        assert_eq!(ring.len() as u64, next_in - next_out);
    }

    #[test]
    fn short_formats_take_their_words_alone() {
        for format in [Format::Context, Format::Message, Format::Data] {
            let mut ring = Ring::new(1);
            (1..=16).for_each(|number| ring.push(&entry(number), 0));
            assert_eq!(ring.places(), 16, "it has not grown");
            let contexts: Vec<u64> = read(&mut ring, format, 99)
                .into_iter()
                .map(|(context, ..)| context)
                .collect();
            assert_eq!(contexts, (1..=16).collect::<Vec<_>>());
            assert!(ring.is_empty());
        }
    }
}
