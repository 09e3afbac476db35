//! The peers of a member, by number and by identity.

use std::collections::HashMap;

use doorbell_pml::Rank;

use super::address::PeerId;
use super::hello::Doors;
use crate::connect::PeerPath;

/// What the member knows about one peer.
#[derive(Debug)]
struct Peer {
    id: PeerId,
    /// Where it can be reached from other hosts.
    doors: Doors,
    /// The peer's number of the acquaintance, once it has sent its card.
    bond: Option<u64>,
    /// Whether its end was reported to the owner.
    is_lost: bool,
    /// Whether the owner has looked up its number.
    is_owned: bool,
    /// Whether the owner had looked it up, and needs it no more.
    is_given_up: bool,
    /// The paths to it, once it is open.
    paths: Box<[PeerPath]>,
}

/// The peers of a member. A number is a peer's until it is removed; an identity has one number at a time, and
/// another one if the peer begins another acquaintance.
#[derive(Debug, Default)]
pub(super) struct Book {
    numbers: HashMap<PeerId, Rank>,
    peers: Vec<Option<Peer>>,
    /// How often the paths to a peer were set, or removed with it.
    changes: u64,
}

impl Book {
    /// Returns the number of a peer.
    pub(super) fn find(&self, id: &PeerId) -> Option<Rank> {
        self.numbers.get(id).copied()
    }

    fn get(&self, rank: Rank) -> Option<&Peer> {
        self.peers.get(rank.0 as usize)?.as_ref()
    }

    fn get_mut(&mut self, rank: Rank) -> Option<&mut Peer> {
        self.peers.get_mut(rank.0 as usize)?.as_mut()
    }

    /// Returns the identity of a number.
    pub(super) fn id(&self, rank: Rank) -> Option<&PeerId> {
        Some(&self.get(rank)?.id)
    }

    /// Whether a number is the one of its identity now.
    pub(super) fn is_current(&self, rank: Rank) -> bool {
        let current = self.id(rank).and_then(|id| self.find(id));
        current == Some(rank)
    }

    /// Adds a peer, whose identity has this number from now on.
    pub(super) fn add(&mut self, rank: Rank, id: PeerId) {
        let at = rank.0 as usize;
        if self.peers.len() <= at {
            self.peers.resize_with(at + 1, || None);
        }
        self.peers[at] = Some(Peer {
            id,
            doors: Doors::default(),
            bond: None,
            is_lost: false,
            is_owned: false,
            is_given_up: false,
            paths: Box::default(),
        });
        self.numbers.insert(id, rank);
    }

    /// Removes a number, and its identity if that has no other one; returns the identity.
    pub(super) fn remove(&mut self, rank: Rank) -> Option<PeerId> {
        let is_current = self.is_current(rank);
        let id = self.peers.get_mut(rank.0 as usize)?.take()?.id;
        self.changes += 1;
        if is_current {
            self.numbers.remove(&id);
        }
        while self.peers.last().is_some_and(Option::is_none) {
            self.peers.pop();
        }
        Some(id)
    }

    /// Returns where a peer can be reached from other hosts.
    pub(super) fn doors(&self, rank: Rank) -> Doors {
        self.get(rank).map_or_else(Doors::default, |peer| peer.doors)
    }

    /// Sets where a peer can be reached from other hosts.
    pub(super) fn set_doors(&mut self, rank: Rank, doors: Doors) {
        if let Some(peer) = self.get_mut(rank) {
            peer.doors = doors;
        }
    }

    /// Returns the number that a peer gave the acquaintance.
    pub(super) fn bond(&self, rank: Rank) -> Option<u64> {
        self.get(rank)?.bond
    }

    /// Sets the number that a peer gave the acquaintance.
    pub(super) fn set_bond(&mut self, rank: Rank, bond: u64) {
        if let Some(peer) = self.get_mut(rank) {
            peer.bond = Some(bond);
        }
    }

    /// Whether the owner has looked up a peer's number.
    pub(super) fn is_owned(&self, rank: Rank) -> bool {
        self.get(rank).is_some_and(|peer| peer.is_owned)
    }

    /// The owner has looked up a peer's number.
    pub(super) fn own(&mut self, rank: Rank) {
        if let Some(peer) = self.get_mut(rank) {
            peer.is_owned = true;
            peer.is_given_up = false;
        }
    }

    /// The owner needs a peer's number no more. Returns whether there is such a peer.
    pub(super) fn disown(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.get_mut(rank) else {
            return false;
        };
        peer.is_given_up |= std::mem::take(&mut peer.is_owned);
        true
    }

    /// Whether the owner had looked up a peer's number, and needs it no more.
    pub(super) fn is_given_up(&self, rank: Rank) -> bool {
        self.get(rank).is_some_and(|peer| peer.is_given_up)
    }

    /// The identity of a number may get another one from now on.
    pub(super) fn let_go(&mut self, rank: Rank) {
        if self.is_current(rank)
            && let Some(id) = self.id(rank).copied()
        {
            self.numbers.remove(&id);
        }
    }

    /// Whether a peer's end was reported.
    pub(super) fn is_lost(&self, rank: Rank) -> bool {
        self.get(rank).is_some_and(|peer| peer.is_lost)
    }

    /// A peer's end is reported. Returns whether it was not before.
    pub(super) fn lose(&mut self, rank: Rank) -> bool {
        self.get_mut(rank)
            .is_some_and(|peer| !std::mem::replace(&mut peer.is_lost, true))
    }

    /// Returns the paths to a peer.
    pub(super) fn paths(&self, rank: Rank) -> &[PeerPath] {
        self.get(rank).map_or(&[], |peer| &peer.paths)
    }

    /// Sets the paths to a peer.
    pub(super) fn set_paths(&mut self, rank: Rank, paths: Vec<PeerPath>) {
        if let Some(peer) = self.get_mut(rank) {
            peer.paths = paths.into();
            self.changes += 1;
        }
    }

    /// How often the paths to a peer were set, or removed with it.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the peers that were met, with the paths to each.
    pub(super) fn met(&self) -> impl Iterator<Item = (Rank, &PeerId, &[PeerPath])> {
        let numbered = (0..).map(Rank).zip(&self.peers);
        numbered
            .filter_map(|(rank, peer)| Some((rank, peer.as_ref()?)))
            .filter(|(_, peer)| !peer.paths.is_empty())
            .map(|(rank, peer)| (rank, &peer.id, &*peer.paths))
    }

    /// Returns the numbers of all peers whose end was not reported.
    pub(super) fn alive(&self) -> impl Iterator<Item = Rank> {
        let numbered = (0..).map(Rank).zip(&self.peers);
        numbered.filter_map(|(rank, peer)| peer.as_ref().filter(|peer| !peer.is_lost).map(|_| rank))
    }

    /// Returns the number of peers.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> PeerId {
        PeerId::new(1, &[number; 24])
    }

    #[test]
    fn an_identity_has_one_number_at_a_time() {
        let mut book = Book::default();
        book.add(Rank(1), id(1));
        book.add(Rank(2), id(2));
        book.set_bond(Rank(1), 9);
        assert_eq!((book.find(&id(1)), book.bond(Rank(1))), (Some(Rank(1)), Some(9)));
        assert!(book.lose(Rank(1)) && !book.lose(Rank(1)) && book.is_lost(Rank(1)));
        // The peer begins another acquaintance under another number.
        book.add(Rank(3), id(1));
        assert!(!book.is_current(Rank(1)) && book.is_current(Rank(3)));
        assert_eq!(book.alive().collect::<Vec<_>>(), [Rank(2), Rank(3)]);
        assert_eq!(
            (book.remove(Rank(1)), book.find(&id(1))),
            (Some(id(1)), Some(Rank(3)))
        );
        assert_eq!(book.remove(Rank(1)), None);
        assert_eq!((book.remove(Rank(3)), book.find(&id(1))), (Some(id(1)), None));
        assert_eq!(book.remove(Rank(2)), Some(id(2)));
        assert_eq!((book.len(), book.peers.len()), (0, 0));
    }

    #[test]
    fn a_peer_that_is_not_met_takes_little() {
        // The table of identities has at most two places for each, and a byte beside each.
        let places = 2 * (size_of::<(PeerId, Rank)>() + 1);
        assert!(size_of::<Option<Peer>>() + places <= 170, "{places}");
    }
}
