//! Which peers are owed an acknowledgement, and when it goes out: at the end of this pass, or later, unless a
//! segment takes it along before.

use doorbell_fabric::message::PeerIndex;

use crate::clock::Clock;
use crate::peer::{Peer, about};
use crate::peer_queue::PeerQueue;
use crate::peers::Peers;

/// Acknowledgements that are due.
#[derive(Debug)]
pub(crate) struct AckSchedule {
    /// At the end of this pass.
    now: PeerQueue<{ about::ACK_NOW }>,
    /// The peers whose acknowledgement goes out after the delay.
    later: PeerQueue<{ about::ACK_LATER }>,
    /// How long an acknowledgement waits for a segment (ns).
    delay: u64,
    /// How long that of a long message does (ns): its sender may have to send no more, and takes the last of
    /// a burst for lost after [`BtlConfig::retrans_tail`](crate::BtlConfig::retrans_tail) at the least.
    soon: u64,
}

impl AckSchedule {
    /// No acknowledgements; those of later wait for `delay`, those of long messages for `soon` (ns).
    pub(crate) const fn new(delay: u64, soon: u64) -> Self {
        Self {
            now: PeerQueue::new(),
            later: PeerQueue::new(),
            delay,
            soon,
        }
    }

    /// Reserves room for this many peers.
    pub(crate) fn reserve(&mut self, peers: usize) {
        self.now.reserve(peers);
        self.later.reserve(peers);
    }

    /// Returns how long an acknowledgement waits for a segment (ns).
    #[inline]
    pub(crate) fn delay(&self) -> u64 {
        self.delay
    }

    /// Returns how many peers may be owed one at the end of this pass.
    #[inline]
    pub(crate) fn due(&self) -> usize {
        self.now.len()
    }

    /// An acknowledgement goes out at the end of this pass.
    #[inline]
    pub(crate) fn now(&mut self, index: PeerIndex, peer: &mut Peer) {
        peer.set(about::ACK);
        self.now.push(index, peer);
    }

    /// An acknowledgement goes out after the delay, that of a `long` message which is whole after the shorter
    /// one; returns when (ns), unless one is due by then already.
    #[inline]
    pub(crate) fn later(
        &mut self,
        index: PeerIndex,
        peer: &mut Peer,
        clock: &Clock,
        long: bool,
    ) -> Option<u64> {
        let at = clock.after(if long { self.soon } else { self.delay });
        if peer.is(about::ACK) {
            if !long || peer.recv.ack_at() <= at {
                return None;
            }
            peer.recv.ack_by(at);
            return Some(at);
        }
        peer.set(about::ACK);
        peer.recv.ack_by(at);
        self.later.push(index, peer);
        Some(at)
    }

    /// All acknowledgements go out at the end of this pass.
    pub(crate) fn all_now(&mut self, peers: &mut Peers) {
        while let Some(index) = self.later.pop_last(peers) {
            if peers[index].is(about::ACK) {
                self.now(index, &mut peers[index]);
            }
        }
    }

    /// Takes the next peer out to which an acknowledgement goes at the end of this pass, if it is still owed
    /// one.
    pub(crate) fn next(&mut self, peers: &mut Peers) -> Option<PeerIndex> {
        self.now.pop(peers)
    }
}
