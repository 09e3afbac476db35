//! BAR0: the resource table at its begin, and where everything that it names is.
//!
//! ```text
//!   0        4096                                                   a power of two
//!   │ header │ queues, devcmd2    │ interrupts │ devcmd │ window │
//!   └────────┴────────────────────┴────────────┴────────┴────────┘  groups and contents shuffled by the seed
//! ```
//!
//! Groups begin on pages, because a page is memory or messages as a whole (`Trap`). Real offsets are the
//! firmware's choice.

use std::ops::Range;

use crate::options::{Counts, LayoutOptions, Options, Trap};
use crate::random::Random;
use crate::registers::{STRIDE, resource};

const PAGE: usize = 4096;
/// The MSI-X table's BAR. \[M\] another one than the registers'.
pub(crate) const MSIX_BAR: u8 = 2;
/// A BAR that no function has.
const ABSENT_BAR: u8 = 5;
/// Bytes of the legacy pending bits.
const PBA_LEGACY: usize = 8;

/// An entry of the resource table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: u8,
    pub(crate) bar: u8,
    pub(crate) at: usize,
    /// Instances, or bytes.
    pub(crate) count: usize,
    /// Bytes that it takes.
    bytes: usize,
}

impl Entry {
    fn strided(kind: u8, count: usize) -> Self {
        Self {
            kind,
            bar: 0,
            at: 0,
            count,
            bytes: count * STRIDE,
        }
    }

    fn long(kind: u8, bytes: usize) -> Self {
        Self {
            kind,
            bar: 0,
            at: 0,
            count: bytes,
            bytes,
        }
    }
}

/// Where things are.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    entries: Vec<Entry>,
    /// Length of BAR0.
    pub(crate) length: usize,
    management: bool,
}

/// What is laid out together.
const GROUPS: usize = 4;

fn group(kind: u8) -> usize {
    match kind {
        resource::DEVCMD => 0,
        resource::INTR_CTRL | resource::GRPMBR_INTR | resource::INTR_PBA_LEGACY => 1,
        resource::MEM => 2,
        _ => 3,
    }
}

impl Layout {
    /// Lays out a function; each has its own place in the order of shuffles.
    pub(crate) fn new(options: &LayoutOptions, counts: Counts, function: usize) -> Self {
        let mut random = options
            .seed
            .map(|seed| Random::new(seed ^ (function as u64) << 48));
        let mut entries = Self::wanted(options, counts);
        if let Some(random) = &mut random {
            random.shuffle(&mut entries);
        }
        let mut groups: Vec<usize> = (0..GROUPS).collect();
        if let Some(random) = &mut random {
            random.shuffle(&mut groups);
        }
        let mut end = PAGE;
        for wanted in groups {
            for entry in entries.iter_mut().filter(|entry| group(entry.kind) == wanted) {
                if let Some(random) = &mut random {
                    end += STRIDE * random.below(8) as usize;
                }
                entry.at = end;
                end = (end + entry.bytes).next_multiple_of(STRIDE);
            }
            end = end.next_multiple_of(PAGE);
        }
        let length = end.max(options.bar).next_power_of_two();
        entries.extend(Self::strange(options, counts));
        if let Some(random) = &mut random {
            random.shuffle(&mut entries);
        }
        Self {
            entries,
            length,
            management: options.management,
        }
    }

    fn wanted(options: &LayoutOptions, counts: Counts) -> Vec<Entry> {
        let mut entries = vec![
            Entry::strided(resource::WQ, counts.wq),
            Entry::strided(resource::RQ, counts.rq),
            Entry::strided(resource::CQ, counts.cq),
            Entry::strided(resource::INTR_CTRL, counts.intr),
            Entry::long(resource::DEVCMD, STRIDE),
        ];
        if options.devcmd2 {
            entries.push(Entry::long(resource::DEVCMD2, STRIDE));
        }
        if options.mem > 0 {
            entries.push(Entry::long(resource::MEM, options.mem));
        }
        if options.group_interrupts {
            entries.push(Entry::strided(resource::GRPMBR_INTR, counts.intr));
        }
        if options.pba_legacy {
            entries.push(Entry::long(resource::INTR_PBA_LEGACY, PBA_LEGACY));
        }
        entries
    }

    /// Returns what a driver has to skip.
    fn strange(options: &LayoutOptions, counts: Counts) -> Vec<Entry> {
        if !options.strange {
            return Vec::new();
        }
        let entry = |kind, bar, at, count| Entry {
            kind,
            bar,
            at,
            count,
            bytes: 0,
        };
        vec![
            entry(resource::UNKNOWN, 0, 0x40, 3),
            entry(resource::MEM, ABSENT_BAR, 0, PAGE),
            entry(resource::INTR_TABLE, MSIX_BAR, 0, counts.intr + 1),
            entry(resource::INTR_PBA, MSIX_BAR, PAGE / 2, 1),
        ]
    }

    /// The header and the table, as they are at the beginning of BAR0 (2.1, 2.2).
    pub(crate) fn table(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.management {
            bytes.extend(0x544d_474d_u32.to_le_bytes());
            bytes.extend(0u32.to_le_bytes());
            // Its loopback interface, its slot, its serial number.
            bytes.extend(7u16.to_le_bytes());
            bytes.extend(1u16.to_le_bytes());
            bytes.extend(b"MODEL0000000000\0");
        } else {
            bytes.extend(0x766e_6963_u32.to_le_bytes());
            bytes.extend(0u32.to_le_bytes());
        }
        for entry in &self.entries {
            bytes.extend([entry.kind, entry.bar, 0, 0]);
            bytes.extend((entry.at as u32).to_le_bytes());
            bytes.extend((entry.count as u32).to_le_bytes());
        }
        bytes.extend([0; 12]);
        bytes
    }

    /// Returns where the entries begin.
    pub(crate) fn entries_at(&self) -> usize {
        if self.management { 28 } else { 8 }
    }

    pub(crate) fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// The types of its entries.
    pub(crate) fn kinds(&self) -> Vec<u8> {
        self.entries.iter().map(|entry| entry.kind).collect()
    }

    /// Offset in BAR0 of an instance; `None` where the function has no such.
    pub(crate) fn find(&self, kind: u8, index: usize) -> Option<usize> {
        let entry = self.entry(kind)?;
        (index * STRIDE < entry.bytes).then_some(entry.at + index * STRIDE)
    }

    fn entry(&self, kind: u8) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| entry.kind == kind && entry.bar == 0 && entry.bytes > 0)
    }

    /// Returns what an offset of BAR0 belongs to: type, instance, and the offset in its block.
    pub(crate) fn what(&self, at: usize) -> Option<(u8, usize, usize)> {
        let inside = |entry: &&Entry| (entry.at..entry.at + entry.bytes).contains(&at);
        let entry = self
            .entries
            .iter()
            .filter(|entry| entry.bar == 0 && entry.bytes > 0)
            .find(inside)?;
        let within = at - entry.at;
        Some(match entry.kind {
            resource::MEM | resource::INTR_PBA_LEGACY => (entry.kind, 0, within),
            _ => (entry.kind, within / STRIDE, within % STRIDE),
        })
    }

    /// The parts of BAR0 that are memory.
    pub(crate) fn areas(&self, trap: Trap) -> Vec<Range<usize>> {
        let trapped: &[usize] = match trap {
            Trap::None => &[],
            Trap::Devcmd => &[0],
            Trap::Control => &[0, 1],
            Trap::All => return Vec::new(),
        };
        let mut holes: Vec<Range<usize>> = trapped.iter().filter_map(|wanted| self.pages(*wanted)).collect();
        holes.sort_unstable_by_key(|hole| hole.start);
        let (mut areas, mut from) = (Vec::new(), 0);
        for hole in holes {
            if hole.start > from {
                areas.push(from..hole.start);
            }
            from = hole.end;
        }
        if from < self.length {
            areas.push(from..self.length);
        }
        areas
    }

    /// The pages of a group.
    fn pages(&self, wanted: usize) -> Option<Range<usize>> {
        let own = || {
            self.entries
                .iter()
                .filter(|entry| entry.bytes > 0 && group(entry.kind) == wanted)
        };
        let first = own().map(|entry| entry.at).min()?;
        let end = own().map(|entry| entry.at + entry.bytes).max()?;
        Some(first / PAGE * PAGE..end.next_multiple_of(PAGE))
    }
}

/// The layout of a function by these options.
pub(crate) fn of(options: &Options, function: usize) -> Layout {
    Layout::new(&options.layout, options.counts, function)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn full(seed: Option<u64>) -> LayoutOptions {
        LayoutOptions {
            seed,
            devcmd2: true,
            mem: 10_000,
            group_interrupts: true,
            ..LayoutOptions::default()
        }
    }

    proptest! {
        #[test]
        fn nothing_overlaps_and_messages_are_alone_in_their_pages(seed in any::<Option<u64>>(), function in 0usize..65) {
            let layout = Layout::new(&full(seed), Counts::default(), function);
            prop_assert!(layout.length.is_power_of_two() && layout.length >= 64 << 10);
            let mut real: Vec<_> = layout.entries.iter().filter(|entry| entry.bytes > 0).collect();
            real.sort_by_key(|entry| entry.at);
            for pair in real.windows(2) {
                prop_assert!(pair[0].at + pair[0].bytes <= pair[1].at);
            }
            prop_assert!(real[0].at >= PAGE && real.last().unwrap().at + real.last().unwrap().bytes <= layout.length);
            for trap in [Trap::None, Trap::Devcmd, Trap::Control, Trap::All] {
                let is_memory = |at: usize| layout.areas(trap).iter().any(|area| area.contains(&at));
                for entry in &real {
                    let wanted = match group(entry.kind) {
                        0 => trap == Trap::None,
                        1 => matches!(trap, Trap::None | Trap::Devcmd),
                        _ => trap != Trap::All,
                    };
                    prop_assert_eq!(is_memory(entry.at), wanted);
                    prop_assert_eq!(is_memory(entry.at + entry.bytes - 1), wanted);
                }
            }
            let at = layout.find(resource::WQ, 3).unwrap();
            prop_assert_eq!(layout.what(at + 0x10), Some((resource::WQ, 3, 0x10)));
            prop_assert_eq!(layout.find(resource::WQ, 6), None);
        }
    }

    #[test]
    fn the_table_is_as_the_reference_has_it() {
        let plain = LayoutOptions {
            strange: false,
            pba_legacy: false,
            ..LayoutOptions::default()
        };
        let table = Layout::new(&plain, Counts::default(), 0).table();
        assert_eq!(table[..8], [0x63, 0x69, 0x6e, 0x76, 0, 0, 0, 0]);
        assert_eq!(table.len(), 8 + 6 * 12, "five entries and the end");
        assert_eq!(
            table[8..20],
            [1, 0, 0, 0, 0, 0x30, 0, 0, 6, 0, 0, 0],
            "send queues, behind devcmd and interrupts"
        );
        let management = LayoutOptions {
            management: true,
            ..plain
        };
        let table = Layout::new(&management, Counts::default(), 0).table();
        assert_eq!((&table[..4], table.len()), (&b"MGMT"[..], 28 + 6 * 12));
        let shuffled = |seed| Layout::new(&full(Some(seed)), Counts::default(), 1).table();
        assert_ne!(shuffled(1), shuffled(2));
        assert_eq!(shuffled(1), shuffled(1));
    }
}
