//! What is known of the way to a peer, for explanations.

use std::time::Duration;

use doorbell_fabric::message::{PeerIndex, WayReport};

use crate::core::Core;
use crate::peer::about;
use crate::pool::Id;

/// What is taken of everything that peers share: nothing of it, but the rooms of peers that are looked after, when all is
/// done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// Segments that wait, are under way, or are kept for `reclaim`.
    pub segments: usize,
    /// Messages under reassembly.
    pub reassemblies: usize,
    /// One-sided transfers of ours and answers to peers, and puts of peers, that have begun.
    pub transfers: usize,
    /// Operations of ours that have not ended.
    pub operations: usize,
    /// Pieces of memory that are exposed.
    pub exposures: usize,
    /// Rooms of the hotel, one for each peer that is to be looked at.
    pub rooms: usize,
}

/// What a peer's former connections leave for the report: when something of it arrived last (attended ns), and when it
/// acknowledged something new (ns).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Past {
    heard: Option<u64>,
    acked: Option<u64>,
}

impl Core {
    /// A connection ends, and what was heard over it stays known.
    #[cold]
    pub(crate) fn remember(&mut self, peer: PeerIndex) {
        let state = &self.peers[peer];
        let heard = state.is(about::GREETED).then_some(state.heard);
        let acked = (state.progressed > 0).then_some(state.progressed);
        let past = self.past.entry(peer).or_default();
        *past = Past {
            heard: past.heard.max(heard),
            acked: past.acked.max(acked),
        };
    }

    /// Something of a peer that is down has arrived.
    #[cold]
    pub(crate) fn heard_while_down(&mut self, peer: PeerIndex) {
        self.past.entry(peer).or_default().heard = Some(self.attended);
    }

    /// What is taken.
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

    /// Silence is counted as everywhere: the owner's own absence is none of the peer's.
    #[cold]
    pub(crate) fn report(&self, peer: PeerIndex) -> WayReport {
        let Some(state) = self.peers.get(peer) else {
            return WayReport::default();
        };
        let attended = |since: u64| Duration::from_nanos(self.attended.saturating_sub(since));
        let waits = state.una != Id::NONE;
        let past = self.past.get(&peer).copied().unwrap_or_default();
        let heard = state.is(about::GREETED).then_some(state.heard);
        let acked = (state.progressed > 0).then_some(state.progressed);
        WayReport {
            link: self.link,
            heard_ago: heard.max(past.heard).map(attended),
            acked_ago: acked
                .max(past.acked)
                .map(|at| Duration::from_nanos(self.now.saturating_sub(at))),
            waiting: waits.then(|| attended(state.waiting)),
            oldest: waits.then(|| self.segments[state.una].seq.0),
            unacknowledged: state.unsent_seq.after(state.una_seq).max(0) as u64,
            retries: state.rtt.timeouts(),
            round_trip_ns: state.rtt.smooth(),
            impossible: (!self.config.frame_mac).then(|| self.counters.impossible()),
        }
    }
}
