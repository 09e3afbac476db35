//! Long messages over several paths at a time ([`doorbell_paths::first_there`]).

use doorbell_fabric::message::{Message, MsgId};

use crate::core::Core;
use crate::pml::Pml;
use crate::rank::Rank;

/// Fragments over one path, of all messages, for each of one message's pipeline.
pub(crate) const DEEPER: usize = 2;
/// Messages of this many bytes or more are striped: below, the paths' latencies cost more than their rates
/// bring.
pub(crate) const STRIPED_FROM: u64 = 128 << 10;

/// Peers to which fragments of striped messages are under way.
#[derive(Debug, Default)]
pub(crate) struct Flowing(Vec<Rank>);

impl Flowing {
    /// Whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a peer out.
    pub(crate) fn remove(&mut self, rank: Rank) {
        self.0.retain(|flowing| *flowing != rank);
    }

    fn add(&mut self, rank: Rank) {
        if !self.0.contains(&rank) {
            self.0.push(rank);
        }
    }
}

impl Core {
    /// A fragment of a striped message has left over path `at`.
    pub(crate) fn flows(&mut self, rank: Rank, at: usize, (number, bytes): (MsgId, usize)) {
        if self.peers[rank]
            .paths
            .fragment_left(self.clock.now(), at, number, bytes)
        {
            self.flowing.add(rank);
        }
    }

    /// Whether a message of this length goes over several paths.
    pub(crate) fn is_striped(&self, rank: Rank, length: u64) -> bool {
        length >= STRIPED_FROM && self.peers[rank].paths.stripes().count_ones() > 1
    }
}

impl<M: Message> Pml<M> {
    /// Looks at what has arrived of the fragments under way: a rate is good only when the time of that is.
    #[cold]
    pub(crate) fn look_at_flows(&mut self) {
        let mut at = 0;
        while let Some(&rank) = self.core.flowing.0.get(at) {
            let paths = self.core.peers[rank].paths.len();
            self.look_at_flow(rank, !0 >> (64 - paths.clamp(1, 64)));
            if self.core.peers[rank].paths.has_fragments() {
                at += 1;
            } else {
                self.core.flowing.0.swap_remove(at);
            }
        }
    }

    fn look_at_flow(&mut self, rank: Rank, set: u64) {
        let (core, rails) = (&mut self.core, &mut self.rails);
        let measured = core.peers[rank]
            .paths
            .fragments_arrived(core.clock.now(), set, |path| {
                let (rail, peer) = path.route();
                rails[rail].handed_over(peer)
            });
        if measured {
            core.refresh(rank);
        }
    }

    /// The path that the next fragment of a striped message takes.
    pub(crate) fn stripe(&mut self, rank: Rank, set: u64, left: u64) -> Option<usize> {
        self.look_at_flow(rank, set);
        let depth = self.core.config.pipeline * DEEPER;
        self.core.peers[rank].paths.next_stripe(set, left, depth)
    }
}
