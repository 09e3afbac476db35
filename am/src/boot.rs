//! The start-up exchange between the processes of a job (gasnet.md section 11).
//!
//! ```text
//!   objects made ─► the launcher's barrier ─► exchange of segments through the conduit ─► the conduit's own
//!   barrier ─► ready
//! ```
//!
//! No rank may put anything to a peer before its objects are there: that takes a barrier from outside,
//! [`External`], which the caller supplies, as it supplies the rank map. Segments are exchanged by doubling:
//! in step k each rank puts the first 2^k entries of its table, which begins with its own, to the rank 2^k
//! below it: ten thousand ranks take fourteen messages each.

use std::time::Duration;

use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::time::Time;

use crate::credit::Shares;
use crate::error::BootError;
use crate::exit::{above, distance};
use crate::settings::Settings;

/// Bytes of one rank in the table, in little endian: the address of its segment, its length, and what all
/// have to have alike.
pub(crate) const ENTRY_BYTES: usize = 24;
/// The bytes of the segment in an entry.
const SEGMENT_BYTES: usize = 16;

/// A barrier of all processes that does not need the conduit: the launcher's.
pub trait External {
    /// Enters the barrier at the first call, and returns whether all have entered. Called again until they
    /// have.
    ///
    /// # Errors
    /// [`ExternalError`]: it can no longer complete.
    fn barrier(&mut self) -> Result<bool, ExternalError>;
}

impl<F: FnMut() -> Result<bool, ExternalError>> External for F {
    fn barrier(&mut self) -> Result<bool, ExternalError> {
        self()
    }
}

/// Why the launcher's barrier cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalError {
    /// The rank at fault, where known.
    pub rank: Option<u32>,
    /// The reason as a text.
    pub reason: String,
}

/// A peer's segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteSegment {
    /// The address in that process.
    pub base: u64,
    /// The size of the segment, in bytes.
    pub size: u64,
}

impl RemoteSegment {
    /// The offset of an address of that process, if `length` bytes from there are inside.
    #[must_use]
    pub const fn offset_of(&self, address: u64, length: u64) -> Option<u64> {
        let Some(offset) = address.checked_sub(self.base) else {
            return None;
        };
        match offset.checked_add(length) {
            Some(end) if end <= self.size => Some(offset),
            _ => None,
        }
    }

    fn of(bytes: [u8; SEGMENT_BYTES]) -> Self {
        let whole = u128::from_le_bytes(bytes);
        Self {
            base: whole as u64,
            size: (whole >> 64) as u64,
        }
    }

    const fn bytes(self) -> [u8; SEGMENT_BYTES] {
        (self.base as u128 | (self.size as u128) << 64).to_le_bytes()
    }
}

/// What all ranks have to have alike, or their messages and credits do not fit together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Alike(u64);

/// The number of this protocol of active messages: 1 has headers of Longs whose payload was placed before.
const PROTOCOL: u64 = 1;

impl Alike {
    /// The value for these settings, and the credits at the start that follow from them.
    pub(crate) const fn new(settings: &Settings, shares: &Shares) -> Self {
        let flags = settings.flow_control as u64 | (settings.dynamic_credits as u64) << 1;
        let flags = flags | PROTOCOL << 2;
        let credits = shares.per_node as u64 | ((shares.one_more & 0xffff) as u64) << 16;
        Self(settings.chunk.bytes() as u64 | flags << 16 | credits << 32)
    }

    /// Finds a difference from another rank: the setting, our value, and theirs.
    fn differs(self, other: Self) -> Option<(&'static str, u64, u64)> {
        let part = |shift: u32, mask: u64| (self.0 >> shift & mask, other.0 >> shift & mask);
        let parts = [
            ("GASNET_PORTAL_CHUNK_SIZE", part(0, 0xffff)),
            ("GASNET_PORTAL_FLOW_CONTROL", part(16, 1)),
            ("GASNET_PORTAL_DYNAMIC_CREDITS", part(17, 1)),
            (
                "the release of doorbell (the protocol of active messages)",
                part(18, 0x3fff),
            ),
            (
                "what GASNET_PORTAL_CRED_PER_NODE, GASNET_PORTAL_BANKED_CREDITS and GASNET_PORTAL_AMRECV_SPACE give each rank",
                part(32, u64::from(u32::MAX)),
            ),
        ];
        let found = parts.into_iter().find(|(_, (ours, theirs))| ours != theirs);
        found.map(|(what, (ours, theirs))| (what, ours, theirs))
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    External,
    Exchange { step: u32 },
    Barrier,
    Ready,
}

/// The exchange of one rank.
#[derive(Debug)]
pub(crate) struct Boot {
    pub(crate) phase: Phase,
    pub(crate) began: Option<Time>,
    pub(crate) patience: Duration,
    me: u32,
    nodes: u32,
    /// Steps whose entries have arrived.
    arrived: u32,
}

/// What is sent in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) to: u32,
    pub(crate) step: u32,
    /// Bytes from the start of the table.
    pub(crate) length: u64,
    /// The offset of the entries at the other rank.
    pub(crate) offset: u64,
}

impl Boot {
    /// Writes this rank's own entry.
    pub(crate) fn new(me: u32, nodes: u32, table: &RegionSlice, mine: RemoteSegment, alike: Alike) -> Self {
        table.write(0, &mine.bytes());
        table.write(SEGMENT_BYTES, &alike.0.to_le_bytes());
        Self {
            phase: Phase::External,
            began: None,
            patience: Duration::MAX,
            me,
            nodes,
            arrived: 0,
        }
    }

    /// The piece of a step; `None` past the last one.
    pub(crate) fn piece(&self, step: u32) -> Option<Piece> {
        let distance = distance(step, self.nodes)?;
        Some(Piece {
            to: above(self.me, self.nodes - distance, self.nodes),
            step,
            length: u64::from(self.entries(distance)) * ENTRY_BYTES as u64,
            offset: u64::from(distance) * ENTRY_BYTES as u64,
        })
    }

    /// A piece has landed; whether it can be one.
    #[must_use]
    pub(crate) fn landed(&mut self, from: u32, step: u64, offset: u64, length: u64) -> bool {
        let Ok(step) = u32::try_from(step) else {
            return false;
        };
        let Some(distance) = distance(step, self.nodes) else {
            return false;
        };
        let bytes = |entries: u32| u64::from(entries) * ENTRY_BYTES as u64;
        if self.waits_for(step) != Some(from)
            || offset != bytes(distance)
            || length != bytes(self.entries(distance))
            || self.has(step)
        {
            return false;
        }
        self.arrived |= 1 << step;
        true
    }

    /// Whether the entries of a step have arrived.
    pub(crate) const fn has(&self, step: u32) -> bool {
        self.arrived & 1 << step != 0
    }

    /// The ranks whose entries a step brings.
    pub(crate) fn waits_for(&self, step: u32) -> Option<u32> {
        Some(above(self.me, distance(step, self.nodes)?, self.nodes))
    }

    /// The segments by rank, once all have arrived.
    pub(crate) fn segments(&self, table: &RegionSlice) -> Box<[RemoteSegment]> {
        let of = |rank: u32| {
            let place = above(rank, self.nodes - self.me, self.nodes);
            let bytes = table.as_shared().read(place as usize * ENTRY_BYTES);
            bytes.map(RemoteSegment::of).unwrap_or_default()
        };
        (0..self.nodes).map(of).collect()
    }

    /// Checks the entries that have arrived, in rank order, for a difference.
    ///
    /// # Errors
    /// [`BootError::Disagree`].
    pub(crate) fn agree(&self, table: &RegionSlice) -> Result<(), BootError> {
        let come = self.entries_come();
        let of = |place: u32| {
            let at = place as usize * ENTRY_BYTES + SEGMENT_BYTES;
            Alike(table.as_shared().read(at).map_or(0, u64::from_le_bytes))
        };
        for place in 1..come {
            if let Some((what, ours, theirs)) = of(0).differs(of(place)) {
                return Err(BootError::Disagree {
                    rank: above(self.me, place, self.nodes),
                    what,
                    ours,
                    theirs,
                });
            }
        }
        Ok(())
    }

    /// Returns how many entries of the table are there: step k brings those from 2^k on.
    fn entries_come(&self) -> u32 {
        let distances = (0..).map_while(|step| Some((step, distance(step, self.nodes)?)));
        let come = distances.take_while(|(step, _)| self.has(*step));
        come.fold(1, |all, (_, distance)| all + self.entries(distance))
    }

    const fn entries(&self, distance: u32) -> u32 {
        let left = self.nodes - distance;
        if left < distance { left } else { distance }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::error::RailError;
    use doorbell_fabric::memory::Region;

    #[test]
    fn after_all_steps_every_rank_knows_every_rank() -> Result<(), RailError> {
        for nodes in 1..=33u32 {
            let mine = |rank: u32| RemoteSegment {
                base: u64::from(rank) << 32 | 7,
                size: u64::from(rank) + 1,
            };
            let mut tables = Vec::new();
            let mut boots = Vec::new();
            for rank in 0..nodes {
                let table = Region::new(nodes as usize * ENTRY_BYTES)?.whole();
                boots.push(Boot::new(rank, nodes, &table, mine(rank), Alike(7)));
                tables.push(table);
            }
            for step in 0..32 {
                for from in 0..nodes {
                    let Some(piece) = boots[from as usize].piece(step) else {
                        continue;
                    };
                    let bytes = tables[from as usize].as_shared().take(piece.length as usize);
                    tables[piece.to as usize].write_shared(piece.offset as usize, bytes);
                    let to = &mut boots[piece.to as usize];
                    assert!(to.landed(from, step.into(), piece.offset, piece.length));
                    assert!(!to.landed(from, step.into(), piece.offset, piece.length), "once");
                }
            }
            for rank in 0..nodes {
                let segments = boots[rank as usize].segments(&tables[rank as usize]);
                let expected: Vec<RemoteSegment> = (0..nodes).map(mine).collect();
                assert_eq!(*segments, *expected, "rank {rank} of {nodes}");
                assert_eq!(boots[rank as usize].agree(&tables[rank as usize]), Ok(()));
            }
        }
        Ok(())
    }

    #[test]
    fn a_rank_with_other_settings_is_named_with_them() -> Result<(), RailError> {
        let table = Region::new(3 * ENTRY_BYTES)?.whole();
        let mut boot = Boot::new(2, 3, &table, RemoteSegment::default(), Alike(0x7_0001_0800));
        assert_eq!(boot.agree(&table), Ok(()), "no message has come");
        let entry = ENTRY_BYTES as u64;
        assert!(boot.landed(0, 0, entry, entry) && boot.landed(1, 1, 2 * entry, entry));
        let other = |place: usize, alike: u64| {
            table.write(place * ENTRY_BYTES + SEGMENT_BYTES, &alike.to_le_bytes());
        };
        other(1, 0x7_0001_0800);
        for (theirs, what, values) in [
            (0x7_0001_0400, "CHUNK_SIZE", "1024 at rank 1 and 2048 here"),
            (0x7_0000_0800, "FLOW_CONTROL", "0 at rank 1 and 1 here"),
            (0x7_0003_0800, "DYNAMIC_CREDITS", "1 at rank 1 and 0 here"),
            (0x9_0001_0800, "CRED_PER_NODE", "9 at rank 1 and 7 here"),
        ] {
            other(2, theirs);
            let said = boot.agree(&table).map_err(|error| error.to_string());
            let said = said.expect_err("they differ");
            assert!(said.contains(what) && said.contains(values), "{said}");
        }
        other(2, 0x7_0001_0800);
        assert_eq!(boot.agree(&table), Ok(()));
        Ok(())
    }

    #[test]
    fn pieces_that_cannot_be_are_refused() -> Result<(), RailError> {
        let table = Region::new(5 * ENTRY_BYTES)?.whole();
        let mut boot = Boot::new(0, 5, &table, RemoteSegment::default(), Alike(7));
        for (from, step, offset, length) in [
            (2, 0, 24, 24),
            (1, 0, 48, 24),
            (1, 0, 24, 48),
            (1, 3, 24, 24),
            (1, 1 << 40, 24, 24),
        ] {
            assert!(
                !boot.landed(from, step, offset, length),
                "{from} {step} {offset} {length}"
            );
        }
        assert!(boot.landed(1, 0, 24, 24));
        assert!(boot.landed(4, 2, 96, 24), "the last step brings what is left");
        Ok(())
    }

    #[test]
    fn addresses_become_offsets() {
        let segment = RemoteSegment { base: 1000, size: 10 };
        assert_eq!(segment.offset_of(1004, 6), Some(4));
        assert_eq!(segment.offset_of(1004, 7), None);
        assert_eq!(segment.offset_of(999, 1), None);
        assert_eq!(segment.offset_of(1004, u64::MAX), None);
    }
}
