//! Peers that join and leave, for an owner without a job. A peer's number is local: nothing of it travels,
//! and another peer gets it when the first one was forgotten and nothing refers to it any more.
//!
//! ```text
//!   add_peer ─► (unmet) ─► connect ─► … ─► forget ─► forgotten: lost to all calls
//!      ▲                                                 │ no request, operation or delivery of it is left
//!      └────────────────────── free ◄────────────────────┘
//! ```

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::Message;

use crate::core::Core;
use crate::error::{LostReason, PmlError};
use crate::hot::{Hot, about};
use crate::peer::Peer;
use crate::pml::Pml;
use crate::rank::Rank;
use crate::request::State;
use crate::unexpected::UnexpectedIndex;

/// The numbers of peers that were forgotten.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// Those that something may refer to.
    forgotten: Vec<Rank>,
    /// Those that nothing refers to.
    free: Vec<Rank>,
}

impl Numbers {
    /// Whether this is the number of a forgotten peer, and of no other one since.
    fn holds(&self, rank: Rank) -> bool {
        self.forgotten.contains(&rank) || self.free.contains(&rank)
    }

    /// The numbers are free that none of these, which are still referred to, is.
    fn release(&mut self, mut referred: Vec<Rank>) {
        referred.sort_unstable();
        let free = &mut self.free;
        self.forgotten.retain(|rank| {
            let stays = referred.binary_search(rank).is_ok();
            if !stays {
                free.push(*rank);
            }
            stays
        });
    }
}

impl<M: Message> Pml<M> {
    /// Adds a peer to which no rail leads yet: with [`PmlConfig::lazy`](crate::PmlConfig::lazy), what is sent
    /// to it waits, and [`Pml::wanted`] reports it. Returns its number, which is local to this PML: that of a
    /// peer that was forgotten, where there is one to which nothing refers, or the next one.
    ///
    /// # Errors
    /// [`PmlError::TooManyPeers`] when there are as many as
    /// [`PmlConfig::peers_most`](crate::PmlConfig::peers_most) allows, forgotten ones included to which an
    /// untested request, an untaken delivery or an operation that has not ended refers.
    pub fn add_peer(&mut self) -> Result<Rank, PmlError> {
        if let Some(rank) = self.core.free_number() {
            self.core.begin_peer(rank);
            return Ok(rank);
        }
        let config = &self.core.config;
        let (count, most) = (self.core.hot.len(), config.peers_most.max(config.size));
        if count >= most {
            return Err(PmlError::TooManyPeers { most });
        }
        self.core.hot.push(Hot::new(config, false));
        self.core.peers.push(Peer::default());
        self.core.work.grow(count + 1);
        Ok(Rank(count))
    }

    /// Forgets a peer, which may have left, or is not wanted any more. What still needs it ends as
    /// [`PmlError::PeerLost`]: with [`LostReason::Unmet`] where no rail was ever opened to it, and otherwise,
    /// unless it was lost before, as closed, which is what the peer finds as well. Messages to it that were
    /// accepted and have not left are dropped, and so are those of it that no receive has matched; the name
    /// of one that is claimed is stale from then on. Each rail to the peer forgets it ([`Message::forget`]).
    ///
    /// Its number is that of a lost peer until [`Pml::add_peer`] returns it again, which it does not before
    /// each of its requests was tested, each of its deliveries taken, and each of its operations has ended.
    /// Without effect for our own rank, and for a number that is no peer's.
    #[cold]
    pub fn forget(&mut self, rank: Rank) {
        let core = &mut self.core;
        let Some(hot) = core.hot.get(rank) else { return };
        let (is_self, lost, unmet) = (hot.is(about::SELF), hot.is(about::LOST), hot.is(about::UNMET));
        if is_self || core.numbers.holds(rank) {
            return;
        }
        if !lost {
            let closed = LostReason::Peer(DownReason::Closed);
            core.end_peer(rank, if unmet { LostReason::Unmet } else { closed });
        }
        core.drop_kept(rank);
        // Before they give the peer up: that would leave it hope.
        for path in self.core.peers[rank].paths.iter() {
            let (rail, peer) = path.route();
            self.rails.forget(rail, peer);
        }
        self.apply_withdrawals();
        self.core.leave(rank);
    }

    /// Returns how many numbers were given out: all ranks are below it.
    #[must_use]
    pub fn peers(&self) -> u32 {
        self.core.hot.len()
    }
}

impl Core {
    /// Refuses a peer that was forgotten.
    pub(crate) fn check_membership(&self, rank: Rank) -> Result<(), PmlError> {
        match self.peers[rank].lost() {
            Some(reason) if self.numbers.holds(rank) => Err(PmlError::PeerLost { rank, reason }),
            _ => Ok(()),
        }
    }

    /// Drops the messages of a peer that no receive has matched.
    fn drop_kept(&mut self, rank: Rank) {
        for source in self.senders_of(rank) {
            self.matcher.drain_source(source, |_| ());
        }
        // With those that were claimed.
        let records: Vec<UnexpectedIndex> = self.unexpected.of(rank).collect();
        for index in records {
            let (_, buffer) = self.unexpected.take(index);
            self.pool.give(buffer);
        }
        self.deliveries.forget(rank);
    }

    /// Nothing but its number is left of a peer, and why it is lost.
    fn leave(&mut self, rank: Rank) {
        self.work.remove(rank, &mut self.hot[rank]);
        self.timers.forget(rank.0);
        self.flowing.remove(rank);
        self.immediate.forget(rank);
        self.rma.forget(rank);
        let reason = self.peers[rank].lost();
        self.peers[rank] = Peer::default();
        if let Some(reason) = reason {
            self.peers[rank].lose(reason);
        }
        self.numbers.forgotten.push(rank);
    }

    /// Takes a number that nothing refers to.
    fn free_number(&mut self) -> Option<Rank> {
        if self.numbers.free.is_empty() && !self.numbers.forgotten.is_empty() {
            let referred = self.referred();
            self.numbers.release(referred);
        }
        self.numbers.free.pop()
    }

    /// The ranks that requests and deliveries refer to.
    fn referred(&self) -> Vec<Rank> {
        // A receive that waits names no rank: those of a lost one have ended.
        let named = self
            .requests
            .each_live()
            .filter(|slot| slot.state() != State::Posted);
        let of_requests = named.map(|slot| slot.peer());
        of_requests.chain(self.deliveries.senders()).collect()
    }

    /// A number is given to a new peer.
    fn begin_peer(&mut self, rank: Rank) {
        self.hot[rank] = Hot::new(&self.config, false);
        self.peers[rank] = Peer::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_free_when_nothing_refers_to_it() {
        let ranks = |these: &[u32]| these.iter().copied().map(Rank).collect::<Vec<_>>();
        let mut numbers = Numbers {
            forgotten: ranks(&[3, 1, 7]),
            free: Vec::new(),
        };
        numbers.release(ranks(&[9, 7, 2, 3, 7]));
        assert_eq!(
            (&numbers.forgotten, &numbers.free),
            (&ranks(&[3, 7]), &ranks(&[1]))
        );
        assert!(numbers.holds(Rank(1)) && numbers.holds(Rank(7)) && !numbers.holds(Rank(2)));
        numbers.release(Vec::new());
        assert_eq!(numbers.free, ranks(&[1, 3, 7]));
    }
}
