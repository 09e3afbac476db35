//! Allocates bus addresses from the ranges that an IOMMU translates.
//!
//! Addresses are allocated from the lowest on, first fit, in whole pages. Never allocated: the first MiB, so
//! that a null address in a device maps to nothing; and on x86 the window of message signalled interrupts,
//! where a write is an interrupt and reaches no memory, even if a kernel does not list it as reserved.

use std::collections::BTreeMap;

/// Addresses from the first to the last, both included: the last one may be 2⁶⁴ − 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first address.
    pub first: u64,
    /// The last one.
    pub last: u64,
}

impl Range {
    /// Returns the range without `other`: none, one or two pieces.
    fn without(self, other: Self) -> impl Iterator<Item = Self> {
        let below = (other.first > self.first).then(|| Self {
            first: self.first,
            last: self.last.min(other.first.saturating_sub(1)),
        });
        let above = (other.last < self.last).then(|| Self {
            first: self.first.max(other.last.saturating_add(1)),
            last: self.last,
        });
        below.into_iter().chain(above)
    }
}

/// Nothing is mapped here.
const LOW: Range = Range {
    first: 0,
    last: (1 << 20) - 1,
};
/// Writes to these addresses are interrupts (Intel SDM, volume 3, on the APIC: "Message Address Register
/// Format").
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
const INTERRUPTS: Range = Range {
    first: 0xfee0_0000,
    last: 0xfeef_ffff,
};

/// The free bus addresses of one IOMMU domain.
#[derive(Debug)]
pub struct BusAddresses {
    /// Free ranges by start address; no two are adjacent, all start and end on pages.
    free: BTreeMap<u64, u64>,
    /// Allocated ranges by start address, with their last address.
    taken: BTreeMap<u64, u64>,
    page: u64,
}

impl BusAddresses {
    /// All of these ranges is free, in pages of `page` bytes (a power of two).
    pub fn new(ranges: &[Range], page: u64) -> Self {
        let mut parts: Vec<Range> = ranges
            .iter()
            .copied()
            .filter(|range| range.first <= range.last)
            .collect();
        for hole in holes() {
            parts = parts.into_iter().flat_map(|part| part.without(hole)).collect();
        }
        let mut parts: Vec<Range> = parts
            .into_iter()
            .filter_map(|part| whole_pages(part, page))
            .collect();
        parts.sort_unstable_by_key(|part| part.first);
        let mut this = Self {
            free: BTreeMap::new(),
            taken: BTreeMap::new(),
            page,
        };
        let mut last = None;
        for mut part in parts {
            // Ranges that overlap would be handed out twice.
            if let Some(last) = last.filter(|last| *last >= part.first) {
                if part.last <= last {
                    continue;
                }
                part.first = last + 1;
            }
            last = Some(part.last);
            this.give(part);
        }
        this
    }

    /// Hands out `length` addresses, rounded up to whole pages, from a multiple of `align` (a power of two)
    /// on.
    pub fn take(&mut self, length: u64, align: u64) -> Option<u64> {
        let length = length.max(1).checked_next_multiple_of(self.page)?;
        let align = align.max(self.page);
        let (range, first) = self.free.iter().find_map(|(&first, &last)| {
            let from = first.checked_next_multiple_of(align)?;
            let fits = from <= last && last - from >= length - 1;
            fits.then_some((Range { first, last }, from))
        })?;
        let taken = Range {
            first,
            last: first + (length - 1),
        };
        self.free.remove(&range.first);
        for rest in range.without(taken) {
            self.free.insert(rest.first, rest.last);
        }
        self.taken.insert(first, taken.last);
        Some(first)
    }

    /// Takes back what [`take`](Self::take) handed out at `first`; false where it handed out nothing there.
    pub fn release(&mut self, first: u64) -> bool {
        let Some(last) = self.taken.remove(&first) else {
            return false;
        };
        self.give(Range { first, last });
        true
    }

    /// Returns how many bytes are free.
    pub fn free(&self) -> u64 {
        let lengths = self
            .free
            .iter()
            .map(|(first, last)| (last - first).saturating_add(1));
        lengths.fold(0, u64::saturating_add)
    }

    /// Adds a range that is in none, joined with its neighbours.
    fn give(&mut self, mut range: Range) {
        let before = self.free.range(..range.first).next_back();
        if let Some((&first, &last)) = before
            && last.checked_add(1) == Some(range.first)
        {
            self.free.remove(&first);
            range.first = first;
        }
        let after = range.last.checked_add(1).and_then(|next| self.free.remove(&next));
        self.free.insert(range.first, after.unwrap_or(range.last));
    }
}

fn holes() -> impl Iterator<Item = Range> {
    [
        LOW,
        #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
        INTERRUPTS,
    ]
    .into_iter()
}

/// Returns the whole pages of a range.
fn whole_pages(range: Range, page: u64) -> Option<Range> {
    let first = range.first.checked_next_multiple_of(page)?;
    // One beyond the last, of which 2⁶⁴ is none.
    let last = match range.last.checked_add(1) {
        None => u64::MAX,
        Some(end) => (end / page * page).checked_sub(1)?,
    };
    (first <= last).then_some(Range { first, last })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    fn range(first: u64, last: u64) -> Range {
        Range { first, last }
    }

    #[test]
    fn the_first_mebibyte_and_the_interrupts_are_never_handed_out() {
        let mut space = BusAddresses::new(&[range(0, u64::MAX)], PAGE);
        assert_eq!(space.take(PAGE, PAGE), Some(1 << 20));
        #[cfg(target_arch = "x86_64")]
        {
            let up_to_there = 0xfee0_0000 - ((1 << 20) + PAGE);
            assert_eq!(space.take(up_to_there, PAGE), Some((1 << 20) + PAGE));
            assert_eq!(space.take(PAGE, PAGE), Some(0xfef0_0000));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_what_comes_back_is_whole_again() {
        let mut space = BusAddresses::new(&[range(1 << 20, (1 << 20) + 4 * PAGE - 1)], PAGE);
        let all = space.free();
        assert_eq!(all, 4 * PAGE);
        assert_eq!(space.take(4 * PAGE + 1, PAGE), None);
        assert_eq!(space.take(u64::MAX, PAGE), None);
        let places: Vec<_> = (0..4).map(|_| space.take(1, PAGE).unwrap()).collect();
        assert_eq!(space.take(1, PAGE), None);
        for place in [places[2], places[0], places[3], places[1]] {
            assert!(space.release(place) && !space.release(place));
        }
        assert_eq!(space.take(4 * PAGE, PAGE), Some(1 << 20), "one piece again");
    }

    #[test]
    fn odd_ranges_are_cut_to_pages_and_overlaps_count_once() {
        let odd = [range((1 << 20) + 1, (1 << 20) + 3 * PAGE), range(9, 3)];
        assert_eq!(BusAddresses::new(&odd, PAGE).free(), 2 * PAGE);
        let twice = [
            range(1 << 21, (1 << 21) + 3 * PAGE - 1),
            range((1 << 21) + PAGE, (1 << 21) + 2 * PAGE - 1),
        ];
        assert_eq!(BusAddresses::new(&twice, PAGE).free(), 3 * PAGE);
        let top = [range(u64::MAX - PAGE + 1, u64::MAX)];
        let mut space = BusAddresses::new(&top, PAGE);
        assert_eq!(space.take(PAGE, PAGE), Some(u64::MAX - PAGE + 1));
    }

    proptest! {
        #[test]
        fn nothing_is_handed_out_twice_or_outside(
            ranges in prop::collection::vec((0u64..1 << 34, 0u64..1 << 22), 1..6),
            steps in prop::collection::vec((0u64..1 << 18, 12u32..22, any::<bool>()), 1..200),
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(first, length)| range(first, first + length)).collect();
            let mut space = BusAddresses::new(&ranges, PAGE);
            let all = space.free();
            let mut held: Vec<Range> = Vec::new();
            for (length, align, back) in steps {
                if back && !held.is_empty() {
                    let one = held.swap_remove(length as usize % held.len());
                    prop_assert!(space.release(one.first));
                    continue;
                }
                let Some(first) = space.take(length, 1 << align) else { continue };
                let one = range(first, first + length.max(1).next_multiple_of(PAGE) - 1);
                prop_assert!(first.is_multiple_of(1 << align));
                prop_assert!(ranges.iter().any(|range| range.first <= one.last && one.first <= range.last));
                for hole in holes().chain(held.iter().copied()) {
                    prop_assert!(one.last < hole.first || hole.last < one.first, "{one:x?} {hole:x?}");
                }
                let within = (one.first..=one.last).step_by(PAGE as usize);
                for page in within {
                    prop_assert!(ranges.iter().any(|range| range.first <= page && page <= range.last));
                }
                held.push(one);
            }
            for one in held {
                prop_assert!(space.release(one.first));
            }
            prop_assert_eq!(space.free(), all);
        }
    }
}
