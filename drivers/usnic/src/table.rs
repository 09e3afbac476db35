//! The resource table at the beginning of BAR 0: where the function's registers are. Nothing about places is
//! known beforehand.
//!
//! ```text
//!   │ magic 4 │ version 4 │ entry 12 │ entry 12 │ … │ type 0 │                    an ordinary vNIC
//!   │ magic 4 │ version 4 │ lif 2 │ slot 2 │ serial 16 │ entry 12 │ … │ type 0 │  the management vNIC
//! ```
//!
//! Sources: libfabric `usnic_direct/vnic_resource.h` and `vnic_dev.c`; DPDK and Linux's enic alike. Their
//! lists of types differ: an unknown type is skipped, and one that is absent has a count of 0.

use std::fmt;

use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::config::Commands;
use crate::regs::STRIDE;

const MAGIC: u32 = 0x766e_6963;
const MAGIC_MANAGEMENT: u32 = 0x544d_474d;
const HEADER: usize = 8;
const HEADER_MANAGEMENT: usize = 28;
/// Types of DPDK's list, the longest one: parsers require a BAR 0 to have room for as many entries.
const TYPES: usize = 52;
/// The shortest BAR 0.
pub const BAR_LEAST: usize = HEADER + TYPES * size_of::<RawEntry>();
/// Entries that are read at most: no known table has more, and one without an end is none.
const ENTRIES_MOST: usize = 256;
/// Bytes of BAR 0 that a table can have.
pub const TABLE_MOST: usize = HEADER_MANAGEMENT + (ENTRIES_MOST + 1) * size_of::<RawEntry>();

/// An entry as it lies there.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEntry {
    kind: u8,
    bar: u8,
    padding: [u8; 2],
    offset: U32,
    count: U32,
}
const _: () = assert!(size_of::<RawEntry>() == 12);

/// What a usNIC rail looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Work queues: to send.
    Wq = 1,
    /// The receive queues of the function.
    Rq = 2,
    /// The completion queues of the function.
    Cq = 3,
    /// The interrupts of the function.
    Interrupts = 10,
    /// The command block.
    Devcmd = 16,
    /// The second command block, with rings.
    Devcmd2 = 24,
}

const KINDS: [Kind; 6] = [
    Kind::Wq,
    Kind::Rq,
    Kind::Cq,
    Kind::Interrupts,
    Kind::Devcmd,
    Kind::Devcmd2,
];

impl Kind {
    fn of(number: u8) -> Option<Self> {
        KINDS.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Whether `count` counts blocks of 128 bytes, and not bytes.
    fn is_strided(self) -> bool {
        !matches!(self, Self::Devcmd | Self::Devcmd2)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Wq => "work queues",
            Self::Rq => "receive queues",
            Self::Cq => "completion queues",
            Self::Interrupts => "interrupts",
            Self::Devcmd => "a command block",
            Self::Devcmd2 => "a second command block",
        }
    }
}

/// Where something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The number of the BAR.
    pub bar: u8,
    /// Offset in it, in bytes.
    pub at: u64,
    /// How many there are; of a command block, its bytes.
    pub count: u32,
}

impl Place {
    /// Returns where the block `number` is; `None` where there are not as many.
    #[must_use]
    pub fn instance(&self, number: u32) -> Option<(u8, u64)> {
        (number < self.count).then(|| (self.bar, self.at + u64::from(number) * STRIDE))
    }
}

/// Why a table cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadTable {
    /// BAR 0 is shorter than any such table.
    Short(u64),
    /// The magic number and version of neither kind of vNIC.
    Magic(u32, u32),
    /// All ones: no device answers.
    Gone,
    /// The table has no end within its greatest length.
    Endless,
    /// Something lies beyond the end of its BAR.
    Beyond(Kind),
    /// What has to be there is not.
    Missing(Kind),
    /// Fewer than a rail needs: usNIC's rule is two queue pairs and two completion queues.
    Few(Kind, u32),
}

impl fmt::Display for BadTable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short(length) => write!(
                out,
                "BAR 0 has {length} bytes, and a resource table needs {BAR_LEAST}"
            ),
            Self::Magic(magic, version) => write!(
                out,
                "BAR 0 begins with {magic:#010x} {version:#x}, which is no header of a resource table"
            ),
            Self::Gone => out.write_str("the device reads as ones: it was unplugged, or is powered down"),
            Self::Endless => write!(out, "the resource table has no end within {ENTRIES_MOST} entries"),
            Self::Beyond(kind) => write!(
                out,
                "the resource table puts {} beyond the end of their BAR",
                kind.name()
            ),
            Self::Missing(kind) => write!(
                out,
                "the resource table has no {}",
                kind.name().trim_start_matches("a ")
            ),
            Self::Few(kind, count) => write!(
                out,
                "the function has {count} {}, and a rail needs 2",
                kind.name()
            ),
        }
    }
}

impl BadTable {
    /// Returns what to do.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        match self {
            Self::Short(_) | Self::Magic(..) => {
                "name a function of a VIC (1137:00cf, 1137:0043, 1137:0071), as `doorbell doctor` lists them"
            }
            Self::Gone => "plug it in again, or name another rail",
            Self::Endless | Self::Beyond(_) => {
                "reset the adapter; a firmware that goes on reporting this is broken"
            }
            Self::Missing(Kind::Devcmd | Kind::Devcmd2) => {
                "unset usnic.commands where it is set (`unset DOORBELL_USNIC_COMMANDS`); else update the adapter's firmware"
            }
            Self::Missing(_) | Self::Few(..) => {
                "give the function two queue pairs and two completion queues in its usNIC policy (CIMC or UCSM), and reboot the host"
            }
        }
    }
}

/// The contents of the table, as far as they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table {
    places: [Place; KINDS.len()],
    /// The header is that of the management vNIC.
    pub is_management: bool,
    /// Entries that are passed over: of types that are not looked for, or in BARs that are not there.
    pub passed: u32,
}

impl Table {
    /// Reads the beginning of BAR 0. `bars`: how many bytes each BAR has, 0 where it is not there.
    ///
    /// # Errors
    /// [`BadTable`], where nothing of it may be believed.
    pub fn read(bytes: &[u8], bars: &[u64; 6]) -> Result<Self, BadTable> {
        let word = |at: usize| -> u32 {
            bytes
                .get(at..at + 4)
                .and_then(|word| word.try_into().ok())
                .map_or(0, u32::from_le_bytes)
        };
        if bars[0] < BAR_LEAST as u64 || bytes.len() < BAR_LEAST {
            return Err(BadTable::Short(bars[0].min(bytes.len() as u64)));
        }
        let (mut table, first) = match (word(0), word(4)) {
            (MAGIC, 0) => (Self::default(), HEADER),
            (MAGIC_MANAGEMENT, 0) => (
                Self {
                    is_management: true,
                    ..Self::default()
                },
                HEADER_MANAGEMENT,
            ),
            (u32::MAX, u32::MAX) => return Err(BadTable::Gone),
            (magic, version) => return Err(BadTable::Magic(magic, version)),
        };
        let mut rest = &bytes[first..];
        for _ in 0..=ENTRIES_MOST {
            let Ok((entry, behind)) = RawEntry::read_from_prefix(rest) else {
                break;
            };
            if entry.kind == 0 {
                return Ok(table);
            }
            table.take(&entry, bars)?;
            rest = behind;
        }
        Err(BadTable::Endless)
    }

    fn take(&mut self, entry: &RawEntry, bars: &[u64; 6]) -> Result<(), BadTable> {
        let length = bars.get(usize::from(entry.bar)).copied().unwrap_or(0);
        let Some(kind) = Kind::of(entry.kind).filter(|_| length > 0) else {
            self.passed += 1;
            return Ok(());
        };
        let (at, count) = (u64::from(entry.offset.get()), entry.count.get());
        let unit = if kind.is_strided() { STRIDE } else { 1 };
        // Neither can wrap: 32 bits each.
        if at + u64::from(count) * unit > length || !at.is_multiple_of(8) {
            return Err(BadTable::Beyond(kind));
        }
        // Of two entries of a type the later one counts [I]: so do the drivers' parsers.
        self.places[kind.slot()] = Place {
            bar: entry.bar,
            at,
            count,
        };
        Ok(())
    }

    /// Returns where resources of this kind are; a count of 0 where there are none.
    #[must_use]
    pub fn of(&self, kind: Kind) -> Place {
        self.places[kind.slot()]
    }

    /// Whether there is enough for a rail: two of each queue, and interrupts.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(&self) -> Result<(), BadTable> {
        for kind in [Kind::Wq, Kind::Rq, Kind::Cq] {
            match self.of(kind).count {
                0 => return Err(BadTable::Missing(kind)),
                1 => return Err(BadTable::Few(kind, 1)),
                _ => {}
            }
        }
        if self.of(Kind::Interrupts).count == 0 {
            return Err(BadTable::Missing(Kind::Interrupts));
        }
        Ok(())
    }

    /// Returns where commands go: the block, or the ring where that is wanted or alone there. It is all that
    /// a physical function needs here.
    ///
    /// # Errors
    /// [`BadTable::Missing`].
    pub fn commands(&self, wanted: Commands) -> Result<Kind, BadTable> {
        let has = |kind: Kind| u64::from(self.of(kind).count) >= STRIDE;
        let kind = match wanted {
            Commands::Devcmd => Kind::Devcmd,
            Commands::Devcmd2 => Kind::Devcmd2,
            Commands::Auto if !has(Kind::Devcmd) && has(Kind::Devcmd2) => Kind::Devcmd2,
            Commands::Auto => Kind::Devcmd,
        };
        if has(kind) {
            Ok(kind)
        } else {
            Err(BadTable::Missing(kind))
        }
    }
}

impl Kind {
    fn slot(self) -> usize {
        KINDS.iter().position(|kind| *kind == self).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAR: u64 = 0x1_0000;
    const BARS: [u64; 6] = [BAR, 0, 0x1000, 0, 0, 0];
    const WHOLE: [(u8, u8, u32, u32); 5] = [
        (1, 0, 0x1000, 6),
        (2, 0, 0x2000, 6),
        (3, 2, 0x0, 6),
        (10, 0, 0x4000, 6),
        (16, 0, 0x5000, 128),
    ];

    fn table(header: &[u8], entries: &[(u8, u8, u32, u32)]) -> Vec<u8> {
        let mut bytes = header.to_vec();
        for (kind, bar, at, count) in entries {
            bytes.extend([*kind, *bar, 0xee, 0xee]);
            bytes.extend(at.to_le_bytes());
            bytes.extend(count.to_le_bytes());
        }
        bytes.resize(TABLE_MOST.max(bytes.len()), 0);
        bytes
    }

    fn plain() -> Vec<u8> {
        [MAGIC.to_le_bytes(), [0; 4]].concat()
    }

    fn management() -> Vec<u8> {
        let mut header = [MAGIC_MANAGEMENT.to_le_bytes(), [0; 4]].concat();
        header.extend([0x5a; 20]);
        header
    }

    #[test]
    fn resources_are_found_in_any_order_behind_both_headers() {
        let mut entries = WHOLE.to_vec();
        // Unknown types, and BARs that are absent or cannot be.
        entries.extend([
            (200, 0, 1, 1),
            (2, 1, 0, 9),
            (3, 7, 0, 9),
            (35, 0, u32::MAX, u32::MAX),
        ]);
        for header in [plain(), management()] {
            for turn in 0..entries.len() {
                entries.rotate_left(1);
                let found = Table::read(&table(&header, &entries), &BARS).unwrap();
                assert_eq!(found.is_management, header.len() == 28);
                assert_eq!(found.passed, 4, "turn {turn}");
                found.check().unwrap();
                assert_eq!(found.of(Kind::Rq).instance(5), Some((0, 0x2280)));
                assert_eq!(found.of(Kind::Rq).instance(6), None);
                assert_eq!(found.of(Kind::Cq).instance(1), Some((2, 0x80)));
                assert_eq!(found.of(Kind::Devcmd2), Place::default(), "absent: a count of 0");
            }
        }
    }

    #[test]
    fn a_type_that_is_listed_twice_is_where_the_later_entry_has_it() {
        let mut entries = WHOLE.to_vec();
        entries.push((1, 0, 0x8000, 2));
        let found = Table::read(&table(&plain(), &entries), &BARS).unwrap();
        assert_eq!(found.of(Kind::Wq).instance(1), Some((0, 0x8080)));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name() {
        let read = |bytes: &[u8]| Table::read(bytes, &BARS).unwrap_err();
        let whole = table(&plain(), &WHOLE);
        assert_eq!(
            Table::read(&whole, &[631, 0, 0, 0, 0, 0]),
            Err(BadTable::Short(631))
        );
        assert_eq!(read(&whole[..600]), BadTable::Short(600));
        assert_eq!(read(&vec![0xff; 4096]), BadTable::Gone);
        assert_eq!(read(&vec![0; 4096]), BadTable::Magic(0, 0));
        let mut other = whole.clone();
        other[4] = 1;
        assert_eq!(read(&other), BadTable::Magic(MAGIC, 1));
        assert_eq!(read(&table(&plain(), &[(200, 0, 0, 0); 300])), BadTable::Endless);
        for (kind, entry) in [
            (Kind::Wq, (1, 0, 0x1_0000, 1)),
            (Kind::Rq, (2, 0, 0xff80, 2)),
            (Kind::Cq, (3, 2, 0, 33)),
            (Kind::Wq, (1, 0, u32::MAX, u32::MAX)),
            (Kind::Devcmd, (16, 0, 0xffc0, 128)),
            (Kind::Rq, (2, 0, 0x1001, 1)),
        ] {
            let said = read(&table(&plain(), &[entry]));
            assert_eq!(said, BadTable::Beyond(kind), "{entry:?}");
            assert!(!said.to_string().is_empty() && !said.fix().is_empty());
        }
        for left_out in 0..WHOLE.len() {
            let mut entries = WHOLE.to_vec();
            let (number, ..) = entries.remove(left_out);
            let found = Table::read(&table(&plain(), &entries), &BARS).unwrap();
            let missing = Err(BadTable::Missing(Kind::of(number).unwrap()));
            assert_eq!(
                found.check().and(found.commands(Commands::Auto).map(drop)),
                missing
            );
        }
        let mut few = WHOLE;
        few[2].3 = 1;
        let found = Table::read(&table(&plain(), &few), &BARS).unwrap();
        assert_eq!(found.check(), Err(BadTable::Few(Kind::Cq, 1)));
    }

    #[test]
    fn commands_go_where_is_wanted_and_by_the_block_where_both_are_there() {
        use Commands::{Auto, Devcmd, Devcmd2};
        let ring = (24, 0, 0x6000, 128);
        let both = [WHOLE.as_slice(), &[ring]].concat();
        let alone = [&WHOLE[..4], &[ring]].concat();
        for (entries, wanted, expected) in [
            (&WHOLE[..], Auto, Ok(Kind::Devcmd)),
            (&WHOLE[..], Devcmd2, Err(BadTable::Missing(Kind::Devcmd2))),
            (&both, Auto, Ok(Kind::Devcmd)),
            (&both, Devcmd2, Ok(Kind::Devcmd2)),
            (&alone, Auto, Ok(Kind::Devcmd2)),
            (&alone, Devcmd, Err(BadTable::Missing(Kind::Devcmd))),
            (&WHOLE[..4], Auto, Err(BadTable::Missing(Kind::Devcmd))),
        ] {
            let found = Table::read(&table(&plain(), entries), &BARS).unwrap();
            assert_eq!(found.commands(wanted), expected, "{wanted:?}");
            assert!(
                found
                    .commands(wanted)
                    .map_or_else(|bad| bad.fix().contains("usnic.commands"), |_| true)
            );
        }
    }

    /// Bytes of no meaning, and tables with a few bytes changed: never a panic, and never a place that is not
    /// inside.
    #[test]
    fn hostile_tables_give_places_inside_or_none() {
        let mut random = doorbell_testing::Random::new(1);
        let mut next = || random.next_u64();
        let mut read = 0;
        for round in 0..20_000 {
            let mut bytes = table(&if round % 2 == 0 { plain() } else { management() }, &WHOLE);
            for _ in 0..1 + next() % 6 {
                let at = (next() % 100) as usize;
                bytes[at] = next() as u8;
            }
            let Ok(found) = Table::read(&bytes, &BARS) else {
                continue;
            };
            read += 1;
            for kind in KINDS {
                let place = found.of(kind);
                let unit = if kind.is_strided() { STRIDE } else { 1 };
                let end = place.at + u64::from(place.count) * unit;
                assert!(
                    place.count == 0 || end <= BARS[usize::from(place.bar)],
                    "{place:?}"
                );
            }
        }
        assert!(read > 1_000, "most bytes are not those of the header: {read}");
    }
}
