//! Completions that were not read yet, each in its queue's format.

use std::mem::MaybeUninit;

use libfabric_sys::fi_addr_t;

use super::entry::{Entry, Format};
use super::outlet::Outlet;

/// A ring of entries. It grows when its owner wants it, or when one more has to be kept.
#[derive(Debug)]
pub(crate) struct Ring {
    format: Format,
    /// The entries, one behind the other.
    entries: Box<[MaybeUninit<u64>]>,
    /// The sender of each.
    senders: Box<[fi_addr_t]>,
    /// Places, less one; a power of two less one.
    mask: usize,
    /// Entries taken and put since the start.
    taken: usize,
    put: usize,
}

impl Ring {
    /// Makes a ring with room for at least `places` entries.
    pub(crate) fn new(format: Format, places: usize) -> Self {
        let places = places.next_power_of_two().max(16);
        Self {
            format,
            entries: Box::new_uninit_slice(places * format.size() / 8),
            senders: vec![0; places].into_boxed_slice(),
            mask: places - 1,
            taken: 0,
            put: 0,
        }
    }

    /// The format of the entries.
    #[inline(always)]
    pub(crate) fn format(&self) -> Format {
        self.format
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
    #[inline]
    pub(crate) fn places(&self) -> usize {
        self.mask + 1
    }

    /// Sees to it that there are at least this many places.
    #[inline]
    pub(crate) fn reserve(&mut self, places: usize) {
        if places > self.places() {
            self.grow(places);
        }
    }

    #[cold]
    fn grow(&mut self, places: usize) {
        let mut larger = Self::new(self.format, places);
        let words = self.format.size() / 8;
        for at in 0..self.len() {
            let from = self.taken.wrapping_add(at) & self.mask;
            larger.entries[at * words..][..words].copy_from_slice(&self.entries[from * words..][..words]);
            larger.senders[at] = self.senders[from];
        }
        larger.put = self.len();
        *self = larger;
    }

    /// Adds an entry.
    #[inline]
    pub(crate) fn push(&mut self, entry: &Entry, sender: fi_addr_t) {
        self.reserve(self.len() + 1);
        let at = self.put & self.mask;
        let words = self.format.size() / 8;
        let place = &mut self.entries[at * words..][..words];
        // SAFETY: the place has as many words as the format has.
        unsafe { self.format.write(place.as_mut_ptr().cast(), entry) };
        self.senders[at] = sender;
        self.put = self.put.wrapping_add(1);
    }

    /// Moves entries to a caller, oldest first, as many as fit.
    #[inline(always)]
    pub(crate) fn take(&mut self, outlet: &mut Outlet) {
        match (self.len(), outlet.room()) {
            (0, _) | (_, 0) => {}
            (1, _) | (_, 1) => self.take_one(outlet),
            _ => self.take_many(outlet),
        }
    }

    /// Moves the oldest entry. There is one, and the caller has room.
    #[inline(always)]
    fn take_one(&mut self, outlet: &mut Outlet) {
        let at = self.taken & self.mask;
        let words = self.format.size() / 8;
        let entry = &self.entries[at * words..][..words];
        // SAFETY: a whole entry of this format, which was written when it was added.
        unsafe { outlet.put_copy(self.format, entry.as_ptr().cast(), self.senders[at]) };
        self.taken = self.taken.wrapping_add(1);
    }

    #[inline(never)]
    fn take_many(&mut self, outlet: &mut Outlet) {
        while !self.is_empty() && outlet.room() > 0 {
            let at = self.taken & self.mask;
            // As far as the end of the memory.
            let count = self.len().min(self.places() - at).min(outlet.room());
            let words = self.format.size() / 8;
            let entries = &self.entries[at * words..][..count * words];
            outlet.copy(self.format, entries.as_ptr().cast(), &self.senders[at..][..count]);
            self.taken = self.taken.wrapping_add(count);
        }
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

    fn read(ring: &mut Ring, most: usize) -> Vec<(u64, u64, fi_addr_t)> {
        let words = ring.format().size() / 8;
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
        ring.take(&mut outlet);
        let count = outlet.written();
        (0..count)
            .map(|at| (memory[at * words], memory[(at + 1) * words - 1], senders[at]))
            .collect()
    }

    #[test]
    fn entries_come_out_in_order_over_the_end_of_the_memory_and_through_growth() {
        let mut ring = Ring::new(Format::Tagged, 16);
        let (mut next_in, mut next_out) = (0, 0);
        for turn in 0..200 {
            for _ in 0..1 + turn % 13 {
                ring.push(&entry(next_in), next_in + 7);
                next_in += 1;
            }
            for (context, tag, sender) in read(&mut ring, 1 + turn as usize % 11) {
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
            let mut ring = Ring::new(format, 1);
            (1..=16).for_each(|number| ring.push(&entry(number), 0));
            assert_eq!(ring.places(), 16, "it has not grown");
            let contexts: Vec<u64> = read(&mut ring, 99)
                .into_iter()
                .map(|(context, ..)| context)
                .collect();
            assert_eq!(contexts, (1..=16).collect::<Vec<_>>());
            assert!(ring.is_empty());
        }
    }
}
