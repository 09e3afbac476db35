//! The search for victims of revocations: a circular list of the peers above the minimum, and the position in
//! it (gasnet.md section 10).
//!
//! A search starts when a grant that the limits allowed found the bank empty. It goes around once at most,
//! from where the last one ended, and ends early when the most revocations are in flight.

use super::peer::{NO_PEER, Peer, Peers, REVOKING};
use super::state::CreditState;

/// A CREDIT_REVOKE that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the peer counts as revoked from, and gets no other revocation before it answers"]
pub struct Revoke {
    /// The rank that it goes to.
    pub to: u32,
    /// Whether our epoch ended.
    pub epoch: bool,
}

impl<P: Peers> CreditState<P> {
    /// Returns the next peer to revoke credits from, for which a revocation is in progress from then on. Call
    /// it when a system message can be sent, until `None`. One call visits a bounded part of the list, and
    /// the next call continues; call it in every poll, which costs one comparison while no search is in
    /// progress.
    #[inline]
    pub fn next_revoke(&mut self) -> Option<Revoke> {
        if self.search == 0 {
            return None;
        }
        self.look()
    }

    /// Whether a search is in progress.
    #[inline]
    pub const fn is_searching(&self) -> bool {
        self.search > 0
    }

    #[cold]
    fn look(&mut self) -> Option<Revoke> {
        if self.revoking >= u32::from(self.limits.fan_out) {
            self.search = 0;
            return None;
        }
        let least = self.least;
        for _ in 0..self.limits.steps {
            if self.search == 0 || self.head == NO_PEER {
                self.search = 0;
                return None;
            }
            self.search -= 1;
            let rank = self.head;
            let Some(peer) = self.settled(rank) else {
                self.search = 0;
                return None;
            };
            let next = peer.next;
            let victim = is_victim(peer, least);
            let mut epoch = false;
            if victim {
                peer.flags |= REVOKING;
                epoch = peer.tell();
            }
            self.head = next;
            if victim {
                self.revoking += 1;
                self.counters.revocations += 1;
                return Some(Revoke { to: rank, epoch });
            }
        }
        None
    }

    /// Once around, from where the last search ended; one at a time.
    pub(super) fn search_for_victims(&mut self) {
        if self.search == 0 && self.revoking < u32::from(self.limits.fan_out) {
            self.search = self.listed;
        }
    }

    /// Appends a peer to the circle, where the search reaches it last.
    pub(super) fn list(&mut self, rank: u32) {
        let head = self.head;
        let last = match self.peers.get(head) {
            Some(first) if head != NO_PEER => first.previous,
            _ => NO_PEER,
        };
        let (next, previous) = if last == NO_PEER {
            (rank, rank)
        } else {
            (head, last)
        };
        let Some(peer) = self.peers.get_mut(rank) else {
            return;
        };
        if peer.is_listed() {
            return;
        }
        (peer.next, peer.previous) = (next, previous);
        if last == NO_PEER {
            self.head = rank;
        } else {
            self.link(last, head, rank);
        }
        self.listed += 1;
    }

    /// Takes a peer off the circle.
    pub(super) fn unlist(&mut self, rank: u32) {
        let Some(peer) = self.peers.get_mut(rank) else {
            return;
        };
        if !peer.is_listed() {
            return;
        }
        let (next, previous) = (peer.next, peer.previous);
        (peer.next, peer.previous) = (NO_PEER, NO_PEER);
        self.listed -= 1;
        if next == rank {
            self.head = NO_PEER;
            return;
        }
        if let Some(peer) = self.peers.get_mut(previous) {
            peer.next = next;
        }
        if let Some(peer) = self.peers.get_mut(next) {
            peer.previous = previous;
        }
        if self.head == rank {
            self.head = next;
        }
    }

    fn link(&mut self, previous: u32, next: u32, rank: u32) {
        if let Some(peer) = self.peers.get_mut(previous) {
            peer.next = rank;
        }
        if let Some(peer) = self.peers.get_mut(next) {
            peer.previous = rank;
        }
    }
}

/// Skips peers with a revocation in flight, at the minimum, that had nothing to return recently, or that
/// lacked credits themselves.
const fn is_victim(peer: &Peer, least: u16) -> bool {
    peer.flags & REVOKING == 0 && peer.loan > least && peer.refused == 0 && peer.requested == 0
}
