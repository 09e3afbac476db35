//! Kept messages as wildcard searches see them: by masked key, one view for each pair of masks.
//!
//! A view is built at the first search that needs it and kept up to date until nothing is kept any more, so
//! a message enters each view at most once in its life. Programs that never search with wildcards into deep
//! queues never pay for one.

use crate::chain::{self, Link, NONE};
use crate::masks::Masks;
use crate::table::Table;

/// Chains of kept messages with equal masked keys, in arrival order.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) heads: Table,
    pub(crate) links: Vec<Link>,
}

impl Index {
    pub(crate) fn with_capacity(messages: usize) -> Self {
        Self {
            heads: Table::with_capacity(messages),
            links: vec![Link::LOOSE; messages],
        }
    }

    /// Appends a message to the chain of its key, which stands, or would stand, at `place` among the heads.
    #[inline]
    pub(crate) fn push(&mut self, place: Result<usize, usize>, hash: u32, slot: u32) {
        match place {
            Ok(at) => _ = chain::push(&mut self.links, self.heads.slot(at), slot),
            Err(free) => {
                chain::push(&mut self.links, NONE, slot);
                self.heads.insert(free, hash, slot);
            }
        }
    }

    /// Takes a message out of the chain whose head is at `at`.
    #[inline]
    pub(crate) fn remove(&mut self, at: usize, slot: u32) {
        match chain::remove(&mut self.links, self.heads.slot(at), slot) {
            NONE => self.heads.remove(at),
            head => self.heads.replace(at, head),
        }
    }

    /// Makes room for slots below `slots`.
    pub(crate) fn resize(&mut self, slots: usize) {
        self.links.resize(slots, Link::LOOSE);
        self.heads.reserve(slots);
    }
}

/// One pair of masks and its index.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) masks: Masks,
    pub(crate) index: Index,
}

impl View {
    pub(crate) fn unused() -> Self {
        Self {
            masks: Masks::EXACT,
            index: Index::with_capacity(0),
        }
    }

    /// Takes other masks, with room for slots below `slots`; nothing is in it yet.
    pub(crate) fn begin(&mut self, masks: Masks, slots: usize) {
        debug_assert!(
            self.index.heads.is_empty(),
            "a view ends only when nothing is kept"
        );
        self.masks = masks;
        self.index.resize(slots);
    }
}
