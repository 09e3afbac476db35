//! Re-parenting: a rank that had to attach further up the tree looks for a nearer ancestor again.
//!
//! ```text
//!   plan   0 ── 2 ── 4 ── 12         4 could not reach 2, and 12 could not reach 4:   0 ─┬─ 2 ── 12
//!                                                                                       └─ 4
//! ```
//!
//! In the situation on the right, 0 expects 12 below 4, which is nearer to it, but 4 does not know 12;
//! without repair this would never end. So a rank whose parent is not the planned one tries the ancestors
//! between the two, nearest first, and keeps its parent meanwhile. Lost ancestors are not tried; those that
//! are back are tried soon.

use super::codec::DETACH;
use super::{Key, Node};
use crate::bytes::Bytes;
use crate::event::Status;
use crate::name::Name;
use crate::wire::Lane;

/// Maximum number of times that the wait between two tries doubles.
const DOUBLED: u32 = 4;

impl Node {
    /// Returns the nearest ancestor that may replace the parent.
    fn nearer(&self) -> Option<u32> {
        let parent = self.routed.parent?;
        let Name { job, rank } = self.config.name;
        let may_be_had = |rank: &u32| {
            let peer = self.index.get(&Name::new(job, *rank)).map(|&ix| self.of(ix));
            peer.is_some_and(|peer| {
                let linked = peer.hop.as_ref().is_some_and(|hop| !hop.links.is_empty());
                !peer.lost && (peer.contact.is_some() || linked)
            })
        };
        let mut between = self
            .routed
            .tree
            .ancestors(rank)
            .take_while(|&rank| rank != parent);
        between.find(may_be_had)
    }

    /// Schedules the next try, if any. `fresh`: something has changed since the last one.
    pub(super) fn plan_home(&mut self, fresh: bool) {
        if fresh {
            self.life.homeward = 0;
        }
        if self.ended || self.nearer().is_none() {
            return self.timers.clear(Key::Home);
        }
        let wait = self.config.retry_max * (1 << self.life.homeward.min(DOUBLED));
        self.timers.set(Key::Home, self.now + wait);
    }

    /// Makes a try.
    pub(super) fn home_due(&mut self) {
        if self.life.is_seeking() {
            return;
        }
        if let Some(rank) = self.nearer() {
            self.life.homeward += 1;
            self.attach_to(rank);
        }
    }

    /// Keeps the parent when a nearer ancestor cannot be reached. Returns whether this was only such a try.
    pub(super) fn stays(&mut self, rank: u32) -> bool {
        if self.routed.parent.is_none_or(|parent| parent == rank) {
            return false;
        }
        if self.life.is_about(rank, None) {
            self.life.seek_no_more();
            self.timers.clear(Key::Seek);
            let ix = self.rank(rank);
            self.set_neighbour(ix, false);
            self.fail(ix, Lane::Control, Status::Unreachable);
            self.plan_home(false);
        }
        true
    }

    /// Informs the previous parent that we have a nearer one.
    pub(super) fn leave_parent(&mut self, before: u32) {
        let ix = self.rank(before);
        let deadline = self.now + self.config.grace;
        self.queue(ix, Lane::Control, DETACH, Bytes::default(), deadline);
        self.set_neighbour(ix, false);
    }
}
