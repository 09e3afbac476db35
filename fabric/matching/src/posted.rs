//! Entries waiting on the priority and the overflow list.
//!
//! One cache line an entry, in a slab; entries of one lane and one masked key form a chain in posting order,
//! and one table finds the heads of all chains of all lanes. Each entry has its posting number, and the
//! smallest number among the candidates of the lanes is the earliest posted.

use std::num::NonZeroU64;

use crate::chain::{self, Link, Links, NONE};
use crate::hash::Hasher;
use crate::lanes::{EXACT, LINEAR, Lanes};
use crate::masks::{Masked, Masks};
use crate::table::Table;
use crate::{Entry, EntryHandle, List, Match, MatchError, MatchKey, Pattern, Space};

/// What every match needs of an entry: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Node {
    /// Posting number; 0 when the slot is free.
    number: u64,
    /// Table, source and match bits, ignored bits cleared.
    key: Masked,
    token: u64,
    length: u64,
    /// The chain of its key, or (free) the next free slot.
    link: Link,
    lane: u8,
    flags: u8,
}

const _: () = assert!(size_of::<Node>() == 64);

/// What only entries need that stay, or that stand on a plain list.
#[derive(Clone, Copy, Debug)]
struct Wide {
    filled: u64,
    min_free: u64,
    masks: Masks,
}

const USE_ONCE: u8 = 1;
const NO_TRUNCATE: u8 = 2;
const MANAGED: u8 = 4;

const FREE_NODE: Node = Node {
    number: 0,
    key: Masked { origin: 0, bits: 0 },
    token: 0,
    length: 0,
    link: Link::LOOSE,
    lane: EXACT,
    flags: 0,
};
const NO_WIDE: Wide = Wide {
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
    fn is(&self, lane: u8, key: Masked) -> bool {
        self.key == key && self.lane == lane
    }

    /// Used once, cut when too long, placed by the sender: the ordinary receive.
    #[inline]
    fn is_plain(&self) -> bool {
        self.flags == USE_ONCE
    }
}

/// Both lists.
#[derive(Debug)]
pub(crate) struct PostedEntries {
    nodes: Vec<Node>,
    wide: Vec<Wide>,
    /// Heads of the chains of all lanes.
    heads: Table,
    /// Heads of the two plain lists.
    linear: [u32; 2],
    lanes: Lanes,
    /// First free slot.
    free: u32,
    len: u32,
    /// Entries that are not fully given on the priority list; 0 opens the short way.
    others: u32,
    /// Posting number of the latest entry.
    number: u64,
}

impl PostedEntries {
    pub(crate) fn with_capacity(entries: usize) -> Self {
        let mut posted = Self {
            nodes: Vec::new(),
            wide: Vec::new(),
            heads: Table::with_capacity(entries),
            linear: [NONE; 2],
            lanes: Lanes::new(),
            free: NONE,
            len: 0,
            others: 0,
            number: 0,
        };
        posted.add_slots(entries);
        posted
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Links an entry behind all earlier ones of its list.
    #[inline]
    pub(crate) fn link(&mut self, hasher: &Hasher, entry: &Entry) -> EntryHandle {
        if self.free == NONE {
            self.grow();
        }
        let slot = self.free;
        let key = Masked::of(&entry.pattern);
        let short = entry.list == List::Priority && entry.pattern.is_exact();
        let lane = if short { EXACT } else { self.admit(entry) };
        let flags = flags(entry);
        if flags != USE_ONCE || lane >= LINEAR {
            self.widen(slot, entry);
        }
        self.number += 1;
        self.len += 1;
        let node = &mut self.nodes[slot as usize];
        self.free = node.link.next;
        let link = Link {
            next: slot,
            prev: slot,
        };
        *node = Node {
            number: self.number,
            key,
            token: entry.token,
            length: entry.length,
            link,
            lane,
            flags,
        };
        if lane < LINEAR {
            let hash = key.hash(hasher, lane);
            match self
                .heads
                .find(hash, |other| self.nodes[other as usize].is(lane, key))
            {
                Err(free) => self.heads.insert(free, hash, slot),
                Ok(at) => _ = chain::push(&mut self.nodes, self.heads.slot(at), slot),
            }
        } else {
            let head = &mut self.linear[usize::from(lane - LINEAR)];
            *head = chain::push(&mut self.nodes, *head, slot);
        }
        handle(self.number, slot)
    }

    /// The entry that takes an arrival, with the message placed in it.
    #[inline]
    pub(crate) fn arrive(
        &mut self,
        hasher: &Hasher,
        key: &MatchKey,
        remote_offset: u64,
        length: u64,
    ) -> Option<Match> {
        if self.others == 0 {
            let key = Masked::exact(key);
            let is = |slot: u32| self.nodes[slot as usize].is(EXACT, key);
            let at = self.heads.find(key.hash(hasher, EXACT), is).ok()?;
            let slot = self.heads.slot(at);
            let node = self.nodes[slot as usize];
            if node.is_plain() {
                self.pop(at, slot, node.link);
                return Some(Match {
                    token: node.token,
                    handle: handle(node.number, slot),
                    offset: remote_offset,
                    length: length.min(node.length.saturating_sub(remote_offset)),
                    unlinked: true,
                    list: List::Priority,
                });
            }
        }
        self.arrive_among_all(hasher, key, remote_offset, length)
    }

    /// The long way: wildcards, entries that stay, entries that refuse what does not fit, the overflow list.
    #[inline(never)]
    fn arrive_among_all(
        &mut self,
        hasher: &Hasher,
        key: &MatchKey,
        remote_offset: u64,
        length: u64,
    ) -> Option<Match> {
        for list in [List::Priority, List::Overflow] {
            let Some(slot) = self.earliest(hasher, list, key, remote_offset, length) else {
                continue;
            };
            let mut entry = self.entry(slot);
            let placement = entry.take(remote_offset, length)?;
            let handle = handle(self.nodes[slot as usize].number, slot);
            if placement.unlinked {
                self.unlink(hasher, slot);
            } else if matches!(entry.space, Space::Managed { .. }) {
                self.wide[slot as usize].filled = entry.filled;
            }
            return Some(Match {
                token: entry.token,
                handle,
                offset: placement.offset,
                length: placement.length,
                unlinked: placement.unlinked,
                list,
            });
        }
        None
    }

    /// The earliest posted entry of one list that takes the message.
    fn earliest(
        &self,
        hasher: &Hasher,
        list: List,
        key: &MatchKey,
        remote_offset: u64,
        length: u64,
    ) -> Option<u32> {
        let fits = |slot: u32| {
            let node = &self.nodes[slot as usize];
            node.flags & NO_TRUNCATE == 0 || self.entry(slot).place(remote_offset, length).is_some()
        };
        let (mut best, mut number) = (None, u64::MAX);
        for lane in self.lanes.live(list) {
            let key = self.lanes.masks(lane).apply(key);
            let hash = key.hash(hasher, lane);
            let is = |slot: u32| self.nodes[slot as usize].is(lane, key);
            let Ok(at) = self.heads.find(hash, is) else {
                continue;
            };
            let earlier = |slot: &u32| self.nodes[*slot as usize].number < number;
            let chain = chain::walk(&self.nodes, self.heads.slot(at));
            if let Some(slot) = chain.take_while(earlier).find(|&slot| fits(slot)) {
                (best, number) = (Some(slot), self.nodes[slot as usize].number);
            }
        }
        let plain = chain::walk(&self.nodes, self.linear[list as usize]);
        plain
            .take_while(|&slot| self.nodes[slot as usize].number < number)
            .find(|&slot| self.pattern(slot).matches(key) && fits(slot))
            .or(best)
    }

    /// Unlinks an entry by its handle and returns its token.
    pub(crate) fn cancel(&mut self, hasher: &Hasher, handle: EntryHandle) -> Result<u64, MatchError> {
        match self.nodes.get(handle.slot as usize) {
            Some(node) if node.number == handle.number.get() => {
                let token = node.token;
                self.unlink(hasher, handle.slot);
                Ok(token)
            }
            _ => Err(MatchError::StaleEntry(handle)),
        }
    }

    /// Unlinks all entries that name exactly this source.
    pub(crate) fn cancel_source(&mut self, hasher: &Hasher, source: u32, mut gone: impl FnMut(u64)) -> usize {
        let before = self.len();
        for slot in 0..self.nodes.len() as u32 {
            let pattern = self.pattern(slot);
            let node = &self.nodes[slot as usize];
            if node.number != 0 && pattern.source_ignore == 0 && pattern.source == source {
                let token = node.token;
                self.unlink(hasher, slot);
                gone(token);
            }
        }
        before - self.len()
    }

    /// All linked entries, in slot order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (EntryHandle, Entry)> + '_ {
        let slots = 0..self.nodes.len() as u32;
        slots.filter_map(|slot| {
            let number = NonZeroU64::new(self.nodes[slot as usize].number)?;
            Some((EntryHandle { number, slot }, self.entry(slot)))
        })
    }

    /// Takes the head of a chain out; `at` is its place among the heads.
    #[inline]
    fn pop(&mut self, at: usize, slot: u32, link: Link) {
        if link.next == slot {
            self.heads.remove(at);
        } else {
            let head = chain::remove(&mut self.nodes, slot, slot);
            self.heads.replace(at, head);
        }
        self.release(slot);
    }

    /// Takes any entry out.
    fn unlink(&mut self, hasher: &Hasher, slot: u32) {
        let Node { lane, key, .. } = self.nodes[slot as usize];
        if lane < LINEAR {
            let hash = key.hash(hasher, lane);
            let is = |other: u32| self.nodes[other as usize].is(lane, key);
            if let Ok(at) = self.heads.find(hash, is) {
                match chain::remove(&mut self.nodes, self.heads.slot(at), slot) {
                    NONE => self.heads.remove(at),
                    head => self.heads.replace(at, head),
                }
            }
        } else {
            let head = &mut self.linear[usize::from(lane - LINEAR)];
            *head = chain::remove(&mut self.nodes, *head, slot);
        }
        if lane != EXACT {
            self.others -= 1;
            if lane < LINEAR {
                self.lanes.leave(lane);
            }
        }
        self.release(slot);
    }

    #[inline]
    fn release(&mut self, slot: u32) {
        let node = &mut self.nodes[slot as usize];
        node.number = 0;
        node.link.next = self.free;
        self.free = slot;
        self.len -= 1;
    }

    /// A lane for an entry that is not fully given on the priority list.
    #[inline(never)]
    fn admit(&mut self, entry: &Entry) -> u8 {
        self.others += 1;
        self.lanes.admit(entry.list, Masks::of(&entry.pattern))
    }

    #[inline(never)]
    fn widen(&mut self, slot: u32, entry: &Entry) {
        let min_free = match entry.space {
            Space::Managed { min_free } => min_free,
            Space::Remote => 0,
        };
        let masks = Masks::of(&entry.pattern);
        self.wide[slot as usize] = Wide {
            filled: entry.filled,
            min_free,
            masks,
        };
    }

    /// The pattern of a slot's entry, ignored bits cleared.
    fn pattern(&self, slot: u32) -> Pattern {
        let node = &self.nodes[slot as usize];
        let Masks {
            source_ignore,
            ignore,
        } = match node.lane {
            EXACT => Masks::EXACT,
            lane if lane < LINEAR => self.lanes.masks(lane),
            _ => self.wide[slot as usize].masks,
        };
        let (table, source) = ((node.key.origin >> 32) as u32, node.key.origin as u32);
        Pattern {
            table,
            source,
            source_ignore,
            bits: node.key.bits,
            ignore,
        }
    }

    /// The entry of a slot as it stands now.
    fn entry(&self, slot: u32) -> Entry {
        let node = &self.nodes[slot as usize];
        let plain = node.is_plain();
        let wide = if plain {
            &NO_WIDE
        } else {
            &self.wide[slot as usize]
        };
        let overflow = Lanes::is_overflow(node.lane);
        Entry {
            pattern: self.pattern(slot),
            length: node.length,
            token: node.token,
            list: if overflow { List::Overflow } else { List::Priority },
            use_once: node.flags & USE_ONCE != 0,
            no_truncate: node.flags & NO_TRUNCATE != 0,
            space: match node.flags & MANAGED {
                0 => Space::Remote,
                _ => Space::Managed {
                    min_free: wide.min_free,
                },
            },
            filled: wide.filled,
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.add_slots(self.nodes.len().max(MORE_SLOTS));
    }

    /// Adds free slots, the lowest to be used first. The count stays below `NONE`: that many entries would
    /// take 256 GiB.
    fn add_slots(&mut self, more: usize) {
        let first = self.nodes.len();
        self.nodes.resize(first + more, FREE_NODE);
        self.wide.resize(first + more, NO_WIDE);
        for slot in (first..first + more).rev() {
            self.nodes[slot].link.next = self.free;
            self.free = slot as u32;
        }
    }
}

#[inline]
fn flags(entry: &Entry) -> u8 {
    let once = if entry.use_once { USE_ONCE } else { 0 };
    let whole = if entry.no_truncate { NO_TRUNCATE } else { 0 };
    let managed = if matches!(entry.space, Space::Managed { .. }) {
        MANAGED
    } else {
        0
    };
    once | whole | managed
}

/// The handle of a linked entry; posting numbers begin at 1.
#[inline]
fn handle(number: u64, slot: u32) -> EntryHandle {
    EntryHandle {
        number: NonZeroU64::new(number).unwrap_or(NonZeroU64::MAX),
        slot,
    }
}

/// Slots added at a time to an empty slab; later it doubles.
const MORE_SLOTS: usize = 64;
