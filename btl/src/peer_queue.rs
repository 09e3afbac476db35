//! Queues of peers for which something is to be done. Each peer is in each queue at most once, which a flag
//! of the peer records.

use std::collections::VecDeque;

use doorbell_fabric::message::PeerIndex;

use crate::peer::Peer;
use crate::peers::Peers;

/// Peers, each of which has `FLAG` (of [`about`](crate::peer::about)) while it is in the queue.
#[derive(Debug, Default)]
pub(crate) struct PeerQueue<const FLAG: u32>(VecDeque<PeerIndex>);

impl<const FLAG: u32> PeerQueue<FLAG> {
    /// An empty queue.
    pub(crate) const fn new() -> Self {
        Self(VecDeque::new())
    }

    /// Reserves room for this many peers: with room for all, nothing is allocated later.
    pub(crate) fn reserve(&mut self, peers: usize) {
        self.0.reserve(peers.saturating_sub(self.0.len()));
    }

    /// Returns how many peers are in the queue.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no peer is in the queue.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts a peer at the end, unless it is in the queue already.
    #[inline]
    pub(crate) fn push(&mut self, index: PeerIndex, peer: &mut Peer) {
        if !peer.is(FLAG) {
            peer.set(FLAG);
            self.0.push_back(index);
        }
    }

    /// Takes the first peer out.
    #[inline]
    pub(crate) fn pop(&mut self, peers: &mut Peers) -> Option<PeerIndex> {
        let index = self.0.pop_front()?;
        peers[index].clear(FLAG);
        Some(index)
    }

    /// Takes the last peer out.
    pub(crate) fn pop_last(&mut self, peers: &mut Peers) -> Option<PeerIndex> {
        let index = self.0.pop_back()?;
        peers[index].clear(FLAG);
        Some(index)
    }
}
