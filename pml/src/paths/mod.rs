//! The paths of a peer: which of them carries what.
//!
//! | file | job |
//! |---|---|
//! | `path` | a peer over one rail |
//! | `set` | the paths of a peer, and what is measured of them |
//! | `mod` | which path small messages take |
//! | `stripe` | long messages over several paths at a time, by what each carries |
//! | `layer` | what [`doorbell_paths`] needs of the PML when a path breaks, returns, or is probed |
//!
//! A peer with one path that never failed has nothing of this (what is watched of it is allocated when there
//! is a second one, or trouble), and a message sees nothing of it but the rail that [`Hot`](crate::hot::Hot)
//! names.

mod layer;
mod path;
mod set;
pub(crate) mod stripe;

use crate::core::Core;
use crate::hot::about;
use crate::rank::Rank;

pub(crate) use path::Path;
pub(crate) use set::Paths;

/// Bytes charged before small messages go on to the next of several equal paths. Longer ones never take the
/// fast path then: it has to be long enough for that to cost nothing.
const TURN: u64 = 16 << 10;

impl Core {
    /// Watches a peer from now on.
    pub(crate) fn watch(&mut self, rank: Rank) {
        if let Some((states, timers)) = self.paths_of(rank) {
            timers.watch(rank.0, states);
        }
    }

    /// Whether something that was accepted waits for a path that may come back.
    pub(crate) fn waits_for_a_path(&self) -> bool {
        let waits = |rank: Rank| {
            let peer = &self.peers[rank];
            peer.paths.alone().is_some() && (!peer.backlog.is_empty() || peer.paths.has_news())
        };
        self.timers.watched().map(Rank).any(waits)
    }

    /// Decides again which path small messages take, and whether the fast path may be taken.
    pub(crate) fn refresh(&mut self, rank: Rank) {
        let hot = &mut self.hot[rank];
        hot.close_fast_path();
        if hot.is(about::LOST) {
            return;
        }
        let paths = &mut self.peers[rank].paths;
        if paths.is_watched() {
            paths.compare(self.config.spread);
        } else {
            let Some(at) = paths.first_up() else { return };
            paths.take(at);
        }
        self.use_current(rank);
    }

    /// Small messages go over the current path from now on, if it can be used.
    fn use_current(&mut self, rank: Rank) {
        let (hot, paths) = (&mut self.hot[rank], &mut self.peers[rank].paths);
        let Some(path) = paths.current_up() else { return };
        hot.set_route(path.route());
        let turn = if self.config.spread { 1 } else { TURN };
        paths.begin_turn(hot.charged(), turn);
        hot.set_turn_end(paths.turn_end());
        // A message of the PML's own that a dead rail gave back does not have to leave first: the order is
        // restored by the receiver.
        self.reopen(rank);
    }

    /// Nothing waits any more: the fast path may be taken again, over the path that small messages take now.
    pub(crate) fn reopen(&mut self, rank: Rank) {
        let peer = &self.peers[rank];
        if let Some(path) = peer.paths.current_up()
            && !peer.backlog.has_sends()
            && !self.config.checksum
        {
            self.hot[rank].open_fast_path(path.eager_for_sure());
        }
    }

    /// The path that the next message to a peer takes.
    pub(crate) fn next_path(&mut self, rank: Rank) -> Option<usize> {
        let paths = &mut self.peers[rank].paths;
        if paths.turn_is_over(self.hot[rank].charged()) {
            paths.take_next();
            self.use_current(rank);
        }
        let paths = &self.peers[rank].paths;
        paths.current_up().map(|_| paths.current())
    }
}
