//! Messages that arrived before a receive for them was posted, in arrival order.
//!
//! Every message is in the chain of its full key (an [`Index`]), in the order of all arrivals, in the
//! active [`View`]s, and in the counts of its source.

use std::num::NonZeroU64;

use crate::chain::{self, Link, NONE};
use crate::hash::Hasher;
use crate::lanes::EXACT;
use crate::masks::{Masked, Masks};
use crate::sources::{Sources, clamp};
use crate::views::{Index, View};
use crate::{Load, MatchError, MatchKey, Pattern, Unexpected, UnexpectedHandle};

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Arrival number; 0 when the slot is free.
    number: u64,
    key: MatchKey,
    length: u64,
    token: u64,
    /// The record of its source, or (free) the next free slot.
    source: u32,
}

const FREE_NODE: Node = Node {
    number: 0,
    key: MatchKey::new(0, 0, 0),
    length: 0,
    token: 0,
    source: NONE,
};

impl Node {
    /// True when the message has this key. Compared as words, see [`Masked::is`].
    #[inline]
    fn is(&self, key: &MatchKey) -> bool {
        Masked::exact(&self.key).is(Masked::exact(key))
    }
}

/// Views that can be active at once; searches with further masks walk the arrival order.
const VIEWS: usize = 4;

/// Messages that a wildcard search looks at before it builds a view.
const GLANCE: usize = 16;

/// Slots added at a time to an empty slab; later it doubles.
const MORE_SLOTS: usize = 64;

/// Sources that are counted without growing.
const SOURCES: usize = 64;

/// The kept messages.
#[derive(Debug)]
pub(crate) struct KeptMessages {
    nodes: Vec<Node>,
    exact: Index,
    /// Chain of all messages, earliest first, from `first`.
    order: Vec<Link>,
    first: u32,
    free: u32,
    len: u32,
    /// Active views come first.
    active_views: u32,
    views: [View; VIEWS],
    sources: Sources,
    bytes: u128,
    /// Arrival number of the next message: 1, 3, 5 and so on, so that none is ever 0.
    next_number: u64,
}

impl KeptMessages {
    pub(crate) fn with_capacity(messages: usize) -> Self {
        let mut kept = Self {
            nodes: Vec::new(),
            exact: Index::with_capacity(messages),
            order: Vec::new(),
            first: NONE,
            free: NONE,
            len: 0,
            active_views: 0,
            views: std::array::from_fn(|_| View::unused()),
            sources: Sources::with_capacity(SOURCES.min(messages)),
            bytes: 0,
            next_number: 1,
        };
        kept.add_slots(messages);
        kept
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn load(&self) -> Load {
        Load {
            messages: self.len as usize,
            bytes: clamp(self.bytes),
        }
    }

    pub(crate) fn load_of(&self, hasher: &Hasher, source: u32) -> Load {
        self.sources.load(hasher, source)
    }

    /// Keeps a message behind all earlier ones.
    #[inline]
    pub(crate) fn keep(
        &mut self,
        hasher: &Hasher,
        key: MatchKey,
        length: u64,
        token: u64,
    ) -> UnexpectedHandle {
        if self.free == NONE {
            self.grow();
        }
        let slot = self.free;
        self.free = self.nodes[slot as usize].source;
        let number = self.next_number;
        self.next_number += 2;
        self.len += 1;
        self.bytes += u128::from(length);
        let source = self.sources.add(hasher, key.source, length);
        self.nodes[slot as usize] = Node {
            number,
            key,
            length,
            token,
            source,
        };
        self.first = chain::push(&mut self.order, self.first, slot);
        let hash = hash(hasher, &key);
        let place = self.find_chain(hash, key);
        self.exact.push(place, hash, slot);
        if self.active_views > 0 {
            self.show(hasher, slot);
        }
        handle(number, slot)
    }

    /// Takes the earliest message with this key out.
    #[inline(never)]
    pub(crate) fn claim_exact(&mut self, hasher: &Hasher, key: MatchKey) -> Option<Unexpected> {
        let at = self.find_chain(hash(hasher, &key), key).ok()?;
        let slot = self.exact.heads.slot(at);
        self.exact.remove(at, slot);
        Some(self.forget(hasher, slot))
    }

    /// The place of a key's chain among the heads, or the free place where it would go.
    #[inline]
    fn find_chain(&self, hash: u32, key: MatchKey) -> Result<usize, usize> {
        let nodes = &self.nodes[..];
        // Captured by value, so that the key can stay in registers.
        self.exact
            .heads
            .find(hash, move |slot| nodes[slot as usize].is(&key))
    }

    /// The slot of the earliest message that matches and that `fits` by its length and token.
    #[inline]
    pub(crate) fn find(
        &mut self,
        hasher: &Hasher,
        pattern: &Pattern,
        fits: impl Fn(u64, u64) -> bool,
    ) -> Option<u32> {
        if pattern.is_exact() {
            let key = MatchKey::new(pattern.table, pattern.source, pattern.bits);
            let at = self.find_chain(hash(hasher, &key), key).ok()?;
            let head = self.exact.heads.slot(at);
            return self.fitting(&self.exact.links, head, fits);
        }
        self.find_masked(hasher, pattern, fits)
    }

    /// Finds the first kept message that fits, for a pattern that leaves something open.
    #[inline(never)]
    fn find_masked(
        &mut self,
        hasher: &Hasher,
        pattern: &Pattern,
        fits: impl Fn(u64, u64) -> bool,
    ) -> Option<u32> {
        let matches = |slot: &u32| {
            let node = &self.nodes[*slot as usize];
            pattern.matches(&node.key) && fits(node.length, node.token)
        };
        let masks = Masks::of(pattern);
        let mut view = self.active().iter().position(|view| view.masks == masks);
        if view.is_none() {
            if let Some(found) = chain::walk(&self.order, self.first).take(GLANCE).find(matches) {
                return Some(found);
            }
            if self.len as usize <= GLANCE {
                return None;
            }
            if self.active_views as usize == VIEWS {
                return chain::walk(&self.order, self.first).find(matches);
            }
            view = Some(self.begin_view(hasher, masks));
        }
        let (view, wanted) = (&self.views[view?], Masked::of(pattern));
        let at = find_in(view, &self.nodes, wanted.hash(hasher, EXACT), wanted).ok()?;
        self.fitting(&view.index.links, view.index.heads.slot(at), fits)
    }

    /// The active views.
    fn active(&self) -> &[View] {
        &self.views[..self.active_views as usize]
    }

    /// The first message of a chain whose length fits.
    #[inline]
    fn fitting(&self, links: &Vec<Link>, head: u32, fits: impl Fn(u64, u64) -> bool) -> Option<u32> {
        let mut slot = head;
        while slot != NONE && !self.fits(slot, &fits) {
            slot = chain::after(links, head, slot);
        }
        (slot != NONE).then_some(slot)
    }

    #[inline(always)]
    fn fits(&self, slot: u32, fits: &impl Fn(u64, u64) -> bool) -> bool {
        let node = &self.nodes[slot as usize];
        fits(node.length, node.token)
    }

    /// Builds one more view and returns its number; one must be free.
    #[cold]
    fn begin_view(&mut self, hasher: &Hasher, masks: Masks) -> usize {
        let number = self.active_views as usize;
        let view = &mut self.views[number];
        view.begin(masks, self.nodes.len());
        for slot in chain::walk(&self.order, self.first) {
            show_in(view, &self.nodes, hasher, slot);
        }
        self.active_views += 1;
        number
    }

    /// Puts a new message into the active views.
    #[inline(never)]
    fn show(&mut self, hasher: &Hasher, slot: u32) {
        for view in &mut self.views[..self.active_views as usize] {
            show_in(view, &self.nodes, hasher, slot);
        }
    }

    /// Takes a message out of the active views; they end with the last message.
    #[inline(never)]
    fn hide(&mut self, hasher: &Hasher, slot: u32) {
        let key = self.nodes[slot as usize].key;
        for view in &mut self.views[..self.active_views as usize] {
            let masks = view.masks;
            let key = masks.apply(&key);
            if let Ok(at) = find_in(view, &self.nodes, key.hash(hasher, EXACT), key) {
                view.index.remove(at, slot);
            }
        }
        if self.len == 0 {
            self.active_views = 0;
        }
    }

    /// Returns the content of a slot that [`KeptMessages::find`] returned.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Unexpected {
        let node = &self.nodes[slot as usize];
        Unexpected {
            handle: handle(node.number, slot),
            key: node.key,
            length: node.length,
            token: node.token,
        }
    }

    /// The slot that a handle names.
    pub(crate) fn slot(&self, handle: UnexpectedHandle) -> Result<u32, MatchError> {
        match self.nodes.get(handle.slot as usize) {
            Some(node) if node.number == handle.number.get() => Ok(handle.slot),
            _ => Err(MatchError::StaleUnexpected(handle)),
        }
    }

    /// Takes a message out.
    #[inline]
    pub(crate) fn remove(&mut self, hasher: &Hasher, slot: u32) -> Unexpected {
        let key = self.nodes[slot as usize].key;
        if let Ok(at) = self.find_chain(hash(hasher, &key), key) {
            self.exact.remove(at, slot);
        }
        self.forget(hasher, slot)
    }

    /// Takes a message, which is out of the chain of its key, out of everything else.
    #[inline]
    fn forget(&mut self, hasher: &Hasher, slot: u32) -> Unexpected {
        let gone = self.get(slot);
        self.len -= 1;
        self.bytes -= u128::from(gone.length);
        self.sources.sub(self.nodes[slot as usize].source, gone.length);
        self.first = chain::remove(&mut self.order, self.first, slot);
        if self.active_views > 0 {
            self.hide(hasher, slot);
        }
        let node = &mut self.nodes[slot as usize];
        node.number = 0;
        node.source = self.free;
        self.free = slot;
        gone
    }

    /// Takes all messages of one source out, earliest first.
    pub(crate) fn drain(&mut self, hasher: &Hasher, source: u32, mut gone: impl FnMut(Unexpected)) -> usize {
        let of_source = self.load_of(hasher, source).messages;
        let (mut left, mut slot) = (of_source, self.first);
        while left > 0 && slot != NONE {
            let next = chain::after(&self.order, self.first, slot);
            if self.nodes[slot as usize].key.source == source {
                gone(self.remove(hasher, slot));
                left -= 1;
            }
            slot = next;
        }
        of_source
    }

    /// All messages, earliest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Unexpected> + '_ {
        chain::walk(&self.order, self.first).map(|slot| self.get(slot))
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.add_slots(self.nodes.len().max(MORE_SLOTS));
    }

    /// Adds free slots, the lowest to be used first. The count stays below `NONE`: that many messages would
    /// take more than 200 GiB.
    fn add_slots(&mut self, more: usize) {
        let (first, slots) = (self.nodes.len(), self.nodes.len() + more);
        self.nodes.resize(slots, FREE_NODE);
        self.order.resize(slots, Link::LOOSE);
        self.exact.resize(slots);
        for view in &mut self.views[..self.active_views as usize] {
            view.index.resize(slots);
        }
        for slot in (first..slots).rev() {
            self.nodes[slot].source = self.free;
            self.free = slot as u32;
        }
    }
}

/// Puts a message into one view.
fn show_in(view: &mut View, nodes: &[Node], hasher: &Hasher, slot: u32) {
    let key = view.masks.apply(&nodes[slot as usize].key);
    let hash = key.hash(hasher, EXACT);
    let place = find_in(view, nodes, hash, key);
    view.index.push(place, hash, slot);
}

/// The place of a masked key's chain among the heads of a view, or the free place where it would go.
fn find_in(view: &View, nodes: &[Node], hash: u32, key: Masked) -> Result<usize, usize> {
    view.index
        .heads
        .find(hash, |slot| view.masks.apply(&nodes[slot as usize].key).is(key))
}

#[inline]
fn hash(hasher: &Hasher, key: &MatchKey) -> u32 {
    Masked::exact(key).hash(hasher, EXACT)
}

/// The handle of a kept message; arrival numbers are odd.
#[inline]
fn handle(number: u64, slot: u32) -> UnexpectedHandle {
    UnexpectedHandle {
        number: NonZeroU64::MIN | number,
        slot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_built_for_deep_queues_only_and_end_with_the_last_message() {
        let hasher = Hasher::new(1);
        let mut kept = KeptMessages::with_capacity(0);
        for round in 0..3 {
            for number in 0..GLANCE as u64 {
                kept.keep(&hasher, MatchKey::new(1, 2, number), 0, number);
            }
            let unmatched = |ignore| Pattern::any_source(1, 1 << 40).ignoring(ignore);
            assert_eq!(kept.find(&hasher, &unmatched(round), |_, _| true), None);
            assert_eq!(kept.active_views, 0, "a glance sees them all");
            kept.keep(&hasher, MatchKey::new(1, 2, 99), 0, 99);
            for ignore in 0..2 * VIEWS as u64 {
                assert_eq!(kept.find(&hasher, &unmatched(round + ignore), |_, _| true), None);
            }
            assert_eq!(kept.active_views as usize, VIEWS);
            assert_eq!(kept.drain(&hasher, 2, |_| ()), GLANCE + 1);
            assert_eq!(kept.active_views, 0, "nothing is kept any more");
        }
    }
}
