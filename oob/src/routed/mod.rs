//! The tree of a job, and the routes in it.
//!
//! Rank 0 is the root; level k has radix^k ranks, and the children of a rank are those at distances of
//! multiples of radix^k. Every process computes the whole tree from the number of ranks; only which rank has
//! *attached* where has to be learned:
//!
//! ```text
//!   plan:   0 ─┬─ 1 ─┬─ 3        1 dies:   0 ─┬─ (1)        3 and 5 attach to their nearest
//!              │     └─ 5                     ├─ 3          living ancestor
//!              └─ 2 ─┬─ 4                     ├─ 5
//!                    └─ 6                     └─ 2 ─┬─ 4
//!                                                   └─ 6
//! ```
//!
//! A rank attaches to one of its planned ancestors only. So a frame goes up until it reaches a planned
//! ancestor of its destination with an attached child on the path there, and from then on only down: whatever
//! the ranks assume about each other, no frame loops.
//!
//! reference: oob, section 6 (the formula of the radix tree; repair from section 9).

mod tree;

pub use self::tree::Tree;

use std::collections::BTreeSet;

/// The next hop of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Down to this attached child.
    Down(u32),
    /// Up to the parent.
    Up(u32),
    /// Nowhere: no rank on the path has attached.
    Nowhere,
}

/// The tree, as seen from one rank.
#[derive(Debug)]
pub(crate) struct Routed {
    pub(crate) tree: Tree,
    me: u32,
    pub(crate) parent: Option<u32>,
    pub(crate) children: BTreeSet<u32>,
}

impl Routed {
    pub(crate) fn new(tree: Tree, me: u32) -> Self {
        Self {
            tree,
            me,
            parent: None,
            children: BTreeSet::new(),
        }
    }

    /// Returns the next hop of a frame for `rank`. Frames from the parent do not go back there.
    pub(crate) fn next(&self, rank: u32, from_parent: bool) -> Next {
        let mut at = rank;
        while at != self.me {
            if self.children.contains(&at) {
                return Next::Down(at);
            }
            match self.tree.parent(at) {
                Some(parent) => at = parent,
                None => break,
            }
        }
        match self.parent {
            Some(parent) if !from_parent => Next::Up(parent),
            _ => Next::Nowhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn down_to_the_deepest_that_has_attached_and_otherwise_up() {
        // The tree: 0; 1 2; 3 5 under 1, 4 6 under 2; 7 11 under 3.
        let mut routed = Routed::new(Tree::new(15, 2), 1);
        routed.parent = Some(0);
        assert_eq!(
            routed.next(3, false),
            Next::Up(0),
            "3 may have attached elsewhere"
        );
        assert_eq!(routed.next(3, true), Next::Nowhere);
        routed.children.insert(3);
        assert_eq!(
            (routed.next(3, true), routed.next(7, true)),
            (Next::Down(3), Next::Down(3))
        );
        routed.children.insert(7);
        assert_eq!(
            (routed.next(7, true), routed.next(11, true)),
            (Next::Down(7), Next::Down(3))
        );
        assert_eq!(
            (routed.next(4, false), routed.next(0, false)),
            (Next::Up(0), Next::Up(0))
        );
        routed.parent = None;
        assert_eq!(routed.next(4, false), Next::Nowhere);
    }
}
