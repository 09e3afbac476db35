//! Whom credits are taken back from: a circle of the peers that have more than the least, and where the search in it stands
//! (gasnet.md section 10).
//!
//! A search begins when a grant that the limits allowed found the bank empty. It goes once around at most, from where the last
//! one ended, and ends early when as many revocations are under way as may be.

use super::peer::{NOBODY, Peer, Peers, REVOKING};
use super::state::CreditState;

/// A CREDIT_REVOKE that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the peer counts as asked, and is not asked again before it answers"]
pub struct Revoke {
    /// To whom.
    pub to: u32,
    /// Whether our epoch ended.
    pub epoch: bool,
}

impl<P: Peers> CreditState<P> {
    /// The next peer that credits are to be taken back from. Ask when a system message can be sent, until `None`: the peer
    /// counts as asked from then on. One call looks at a bounded piece of the list; a search that is not over goes on with the
    /// next call, so ask in every poll, which costs one comparison while nothing is searched.
    #[inline]
    pub fn next_revoke(&mut self) -> Option<Revoke> {
        if self.search == 0 {
            return None;
        }
        self.look()
    }

    /// Whether there is a search under way.
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
            if self.search == 0 || self.head == NOBODY {
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

    /// Puts a peer at the end of the circle: the search comes to it last.
    pub(super) fn list(&mut self, rank: u32) {
        let head = self.head;
        let last = match self.peers.get(head) {
            Some(first) if head != NOBODY => first.previous,
            _ => NOBODY,
        };
        let (next, previous) = if last == NOBODY {
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
        if last == NOBODY {
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
        (peer.next, peer.previous) = (NOBODY, NOBODY);
        self.listed -= 1;
        if next == rank {
            self.head = NOBODY;
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

/// Nobody is asked twice at a time, nobody who has no more than the least, who had nothing to give lately, or who wanted more
/// itself.
const fn is_victim(peer: &Peer, least: u16) -> bool {
    peer.flags & REVOKING == 0 && peer.loan > least && peer.refused == 0 && peer.requested == 0
}
