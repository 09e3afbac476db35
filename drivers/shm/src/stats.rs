//! What a rail has done, summed over its peers from what its lanes know anyway: counting costs a message nothing.

use crate::rail::{Peer, ShmRail};

/// Totals of a rail since it was opened; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmStats {
    /// Messages put into lanes.
    pub sent: u64,
    /// Messages taken out of lanes.
    pub received: u64,
    /// One-sided reads started.
    pub pulls: u64,
    /// Shares of peers' reads that were copied for them.
    pub helped: u64,
    /// Connections refused: other users, other versions, nonsense.
    pub refused: u64,
}

impl ShmStats {
    /// Adds what went through the lanes of `peer`.
    pub(crate) fn add(&mut self, peer: &Peer) {
        self.sent += peer.tx.as_ref().map_or(0, |tx| tx.sent());
        self.received += peer.rx.as_ref().map_or(0, |rx| rx.lane.consumed());
    }
}

impl ShmRail {
    /// The totals so far. It looks at every peer: for now and then.
    #[must_use]
    pub fn stats(&self) -> ShmStats {
        let mut stats = ShmStats {
            pulls: self.pulls.started(),
            helped: self.coop_owner.shares,
            refused: self.refused,
            ..self.past
        };
        self.peers.iter().for_each(|peer| stats.add(peer));
        stats
    }
}
