//! One posted entry in memory: a cache line for what every match needs, the rest apart.

use crate::chain::{Link, Links};
use crate::lanes::EXACT;
use crate::masks::{Masked, Masks};
use crate::{Entry, Space};

/// What every match needs of an entry: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Node {
    /// Posting number; 0 when the slot is free.
    pub(crate) number: u64,
    /// Table, source and match bits, ignored bits cleared.
    pub(crate) key: Masked,
    pub(crate) token: u64,
    pub(crate) length: u64,
    /// The chain of its key, or (free) the next free slot.
    pub(crate) link: Link,
    pub(crate) lane: u8,
    pub(crate) flags: u8,
}

const _: () = assert!(size_of::<Node>() == 64);

/// What only persistent entries need, or those on a plain list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wide {
    pub(crate) filled: u64,
    pub(crate) min_free: u64,
    pub(crate) masks: Masks,
}

pub(crate) const USE_ONCE: u8 = 1;
pub(crate) const NO_TRUNCATE: u8 = 2;
pub(crate) const MANAGED: u8 = 4;

pub(crate) const FREE_NODE: Node = Node {
    number: 0,
    key: Masked { origin: 0, bits: 0 },
    token: 0,
    length: 0,
    link: Link::LOOSE,
    lane: EXACT,
    flags: 0,
};
pub(crate) const NO_WIDE: Wide = Wide {
    filled: 0,
    min_free: 0,
    masks: Masks::EXACT,
};

impl Links for Vec<Node> {
    #[inline]
    fn link(&self, slot: u32) -> &Link {
        &self[slot as usize].link
    }

    #[inline]
    fn link_mut(&mut self, slot: u32) -> &mut Link {
        &mut self[slot as usize].link
    }
}

impl Node {
    #[inline]
    pub(crate) fn is(&self, lane: u8, key: Masked) -> bool {
        self.key.is(key) && self.lane == lane
    }

    /// Used once, cut when too long, placed by the sender: the ordinary receive.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.flags == USE_ONCE
    }
}

/// The flags of an entry.
#[inline]
pub(crate) fn flags(entry: &Entry) -> u8 {
    let once = if entry.use_once { USE_ONCE } else { 0 };
    let whole = if entry.no_truncate { NO_TRUNCATE } else { 0 };
    let managed = if matches!(entry.space, Space::Managed { .. }) {
        MANAGED
    } else {
        0
    };
    once | whole | managed
}
