//! Reports about the path to a peer, and about what is in use.

use std::collections::HashMap;
use std::time::Duration;

use doorbell_fabric::message::{PeerIndex, RailReport};

use crate::core::Core;
use crate::peer::{Peer, about};

/// What is taken of everything that peers share: nothing of it, but the rooms of peers that are looked after,
/// when all is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// Segments that wait, are under way, or are kept for `reclaim`.
    pub segments: usize,
    /// Messages under reassembly.
    pub reassemblies: usize,
    /// Our one-sided transfers, answers to peers, and puts of peers that have begun.
    pub transfers: usize,
    /// Our operations that have not ended.
    pub operations: usize,
    /// Pieces of memory that are exposed.
    pub exposures: usize,
    /// Rooms of the hotel, one for each peer that is to be looked at.
    pub rooms: usize,
}

/// What a peer's former connections leave for the report: when something of it arrived last (attended ns),
/// and when it acknowledged something new (ns).
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    heard: Option<u64>,
    acked: Option<u64>,
}

/// What is kept of connections that have ended, and of the link, for explanations.
#[derive(Debug, Default)]
pub(crate) struct History {
    past: HashMap<PeerIndex, Past>,
    /// Whether the driver's link is up, once it has reported that.
    link: Option<bool>,
}

impl History {
    /// Notes whether the driver's link is up.
    pub(crate) fn set_link(&mut self, up: bool) {
        self.link = Some(up);
    }

    /// Drops what is kept of a peer.
    pub(crate) fn forget(&mut self, peer: PeerIndex) {
        self.past.remove(&peer);
    }

    /// Whether a connection to this peer has ended, or something of it arrived while it was down.
    pub(crate) fn has(&self, peer: PeerIndex) -> bool {
        self.past.contains_key(&peer)
    }
}

/// Returns when something of a peer arrived last (attended ns), and when it acknowledged something new (ns),
/// on its present connection.
fn present(peer: &Peer) -> Past {
    let acked = peer.liveness.acked();
    Past {
        heard: peer.is(about::GREETED).then_some(peer.liveness.heard()),
        acked: (acked > 0).then_some(acked),
    }
}

impl Core {
    /// Keeps, at the end of a connection, when frames arrived over it.
    #[cold]
    pub(crate) fn remember(&mut self, index: PeerIndex) {
        let now = present(&self.peers[index]);
        let past = self.history.past.entry(index).or_default();
        *past = Past {
            heard: past.heard.max(now.heard),
            acked: past.acked.max(now.acked),
        };
    }

    /// Something of a peer that is down has arrived.
    #[cold]
    pub(crate) fn heard_while_down(&mut self, index: PeerIndex) {
        let heard = Some(self.clock.attended());
        self.history.past.entry(index).or_default().heard = heard;
    }

    /// Returns what is taken of everything that peers share.
    #[cold]
    pub(crate) fn in_use(&self) -> InUse {
        InUse {
            segments: self.segments.active(),
            reassemblies: self.reassemblies.active(),
            transfers: self.streams.active() + self.inflows.active(),
            operations: self.operations.active(),
            exposures: self.exposures.len(),
            rooms: self.timers.len(),
        }
    }

    /// Reports what is known of the path to a peer. Silence is counted as everywhere: the owner's own absence
    /// is none of the peer's.
    #[cold]
    pub(crate) fn report(&self, index: PeerIndex) -> RailReport {
        let Some(peer) = self.peers.get(index) else {
            return RailReport::default();
        };
        let clock = &self.clock;
        let attended = |since: u64| Duration::from_nanos(clock.attended().saturating_sub(since));
        let oldest = peer.send.oldest(&self.segments);
        let past = self.history.past.get(&index).copied().unwrap_or_default();
        let now = present(peer);
        RailReport {
            link: self.history.link,
            heard_ago: now.heard.max(past.heard).map(attended),
            acked_ago: now
                .acked
                .max(past.acked)
                .map(|at| Duration::from_nanos(clock.now().saturating_sub(at))),
            waiting: oldest.map(|_| attended(peer.liveness.waiting())),
            oldest: oldest.map(|segment| segment.seq().0),
            unacknowledged: peer.send.unacknowledged(),
            retries: peer.rtt.timeouts(),
            round_trip_ns: peer.rtt.smooth(),
            impossible: (!self.config.frame_mac).then(|| self.counters.impossible()),
            at_once: None,
        }
    }
}
