//! Long messages over several paths at a time ([`doorbell_paths::first_there`]).

use doorbell_fabric::message::{Message, MsgId};
use doorbell_paths::{Flow, Share, each, first_there};

use crate::core::Core;
use crate::peer::Peer;
use crate::pml::Pml;
use crate::rank::Rank;

/// Fragments over one path, of all messages, for each of one message's pipeline.
pub(crate) const DEEPER: usize = 2;
/// Messages of this many bytes or more are striped: below, the paths' latencies cost more than their rates
/// bring.
pub(crate) const STRIPED_FROM: u64 = 128 << 10;

impl Peer {
    /// Bytes per second of a path: measured, or as its rail estimates.
    fn rate(&self, at: usize) -> u64 {
        let measured = self.measured_rate(at);
        measured.unwrap_or(self.paths[at].can.estimate.bandwidth).max(1)
    }

    /// Bytes per second of a path, once measured; not zero.
    pub(crate) fn measured_rate(&self, at: usize) -> Option<u64> {
        self.watch.as_ref()?.flows.get(at)?.rate()
    }

    /// The paths that a long message may take together, as a set; of one, when there is nothing to gain by
    /// more.
    pub(crate) fn stripes(&self) -> u64 {
        if self.watch.is_none() || self.paths.len() < 2 {
            return 0;
        }
        let usable = self.usable();
        let within = each(usable).find(|at| self.paths[*at].can.features.within_host);
        within.map_or(usable, |at| 1 << at)
    }

    /// The path that the next fragment of a message takes, of which `left` bytes are left; `None`: the ones
    /// that are worth it have enough under way.
    fn next_stripe(&self, set: u64, left: u64, depth: usize) -> Option<usize> {
        let flows = &self.watch.as_ref()?.flows;
        first_there(set, left, |at| Share {
            flying: flows[at].bytes(),
            rate: self.rate(at),
            part: self.paths[at].fragment() as u64,
            is_open: flows[at].count() < depth,
        })
    }
}

impl Core {
    /// A fragment of a striped message has left over path `at`.
    pub(crate) fn flows(&mut self, rank: Rank, at: usize, (number, bytes): (MsgId, usize)) {
        let now = self.now;
        let Some(watch) = &mut self.peers[rank].watch else {
            return;
        };
        watch.flows[at].left(now, number, bytes);
        if !self.flowing.contains(&rank) {
            self.flowing.push(rank);
        }
    }

    /// Whether a message of this length goes over several paths.
    pub(crate) fn is_striped(&self, rank: Rank, length: u64) -> bool {
        length >= STRIPED_FROM && self.peers[rank].stripes().count_ones() > 1
    }
}

impl<M: Message> Pml<M> {
    /// Looks at what has arrived of the fragments under way: a rate is good only when the time of that is.
    #[cold]
    pub(crate) fn look_at_flows(&mut self) {
        let mut index = 0;
        while let Some(&rank) = self.core.flowing.get(index) {
            let paths = self.core.peers[rank].paths.len();
            self.look_at_flow(rank, !0 >> (64 - paths.clamp(1, 64)));
            let watch = &self.core.peers[rank].watch;
            let is_flying = |flow: &Flow| flow.count() > 0;
            if watch
                .as_ref()
                .is_some_and(|watch| watch.flows.iter().any(is_flying))
            {
                index += 1;
            } else {
                self.core.flowing.swap_remove(index);
            }
        }
    }

    fn look_at_flow(&mut self, rank: Rank, set: u64) {
        let now = self.core.now;
        let peer = &mut self.core.peers[rank];
        let Some(watch) = &mut peer.watch else { return };
        let mut measured = false;
        for at in each(set) {
            let (path, flow) = (&peer.paths[at], &mut watch.flows[at]);
            if flow.count() > 0 {
                let rail = &mut self.rails[path.rail];
                measured |= flow.arrived(now, rail.handed_over(path.peer));
            }
        }
        if measured {
            self.core.refresh(rank);
        }
    }

    /// The path that the next fragment of a striped message takes.
    pub(crate) fn stripe(&mut self, rank: Rank, set: u64, left: u64) -> Option<usize> {
        self.look_at_flow(rank, set);
        let depth = self.core.config.pipeline * DEEPER;
        self.core.peers[rank].next_stripe(set, left, depth)
    }
}
