//! Counters of a rail, summed over its peers from indices that the lanes keep anyway: counting costs a
//! message nothing.

use crate::rail::{Peer, ShmRail};

/// Counters of a rail since it was opened; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmStats {
    /// Messages sent to peers.
    pub sent: u64,
    /// Messages received from peers.
    pub received: u64,
    /// One-sided reads started.
    pub pulls: u64,
    /// Shares of peers' reads copied by this end (cooperative copy).
    pub helped: u64,
    /// Connections refused: other users, other versions, invalid messages.
    pub refused: u64,
}

impl ShmStats {
    /// Adds the messages of the peer's lanes.
    pub(crate) fn add(&mut self, peer: &Peer) {
        self.sent += peer.tx.as_ref().map_or(0, |tx| tx.sent());
        self.received += peer.rx.as_ref().map_or(0, |rx| rx.lane.consumed());
    }
}

impl ShmRail {
    /// Returns the counters. It visits every peer, so it is not for the hot path.
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
