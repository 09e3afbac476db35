//! The rails of a PML: each with what the PML keeps about it, when each is polled, and their doorbells.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::event::Scope;
use doorbell_fabric::message::{Message, PeerIndex};
use doorbell_fabric::pace::Paces;
use doorbell_fabric::rail::Work;

use crate::rank::Rank;

/// A rail of this PML: its number in the order of `add_rail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RailId(pub u16);

impl RailId {
    /// The rail number that means none.
    pub(crate) const NONE: Self = Self(u16::MAX);

    #[inline]
    fn at(self) -> usize {
        usize::from(self.0)
    }
}

/// The rank that means none, for a peer of a rail that belongs to no rank.
pub(crate) const NO_RANK: Rank = Rank(u32::MAX);

/// A rail, and what the PML keeps with it.
#[derive(Debug)]
struct RailSlot<M> {
    rail: M,
    /// Its capabilities, which all paths over it share.
    can: Arc<Capabilities>,
    /// The rank of each of its peers.
    ranks: Vec<Rank>,
    /// It has reported that its link is down, or its device gone.
    is_down: bool,
}

/// The rails of a PML.
#[derive(Debug)]
pub(crate) struct Rails<M> {
    slots: Vec<RailSlot<M>>,
    /// When each of them is polled.
    paces: Paces,
    /// Rails hold messages whose doorbell waits for the next ones.
    gathers: bool,
}

impl<M: Message> Rails<M> {
    /// Makes a set without rails.
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            paces: Paces::default(),
            gathers: false,
        }
    }

    /// Adds a rail; `None` when there are as many as there may be.
    pub(crate) fn add(&mut self, rail: M) -> Option<RailId> {
        if !self.paces.add(rail.poll_cost()) {
            return None;
        }
        self.slots.push(RailSlot {
            can: Arc::new(*rail.capabilities()),
            rail,
            ranks: Vec::new(),
            is_down: false,
        });
        Some(RailId((self.slots.len() - 1) as u16))
    }

    /// Returns their number.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The rail of a number that may name none.
    #[inline]
    pub(crate) fn get(&self, rail: RailId) -> Option<&M> {
        self.slots.get(rail.at()).map(|slot| &slot.rail)
    }

    /// The rail of a number that may name none, to be used.
    #[inline]
    pub(crate) fn get_mut(&mut self, rail: RailId) -> Option<&mut M> {
        self.slots.get_mut(rail.at()).map(|slot| &mut slot.rail)
    }

    /// The numbers of all rails.
    pub(crate) fn ids(&self) -> impl Iterator<Item = RailId> + use<M> {
        (0..self.slots.len() as u16).map(RailId)
    }

    /// All rails, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &M> {
        self.slots.iter().map(|slot| &slot.rail)
    }

    /// All rails, to be used.
    #[inline]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut M> {
        self.slots.iter_mut().map(|slot| &mut slot.rail)
    }

    /// The capabilities of a rail.
    pub(crate) fn capabilities(&self, rail: RailId) -> &Arc<Capabilities> {
        &self.slots[rail.at()].can
    }

    /// Whether a rail has reported that its link is down, or its device gone.
    pub(crate) fn is_down(&self, rail: RailId) -> bool {
        self.slots[rail.at()].is_down
    }

    /// Notes what a rail has reported about its link.
    pub(crate) fn set_down(&mut self, rail: RailId, is_down: bool) {
        self.slots[rail.at()].is_down = is_down;
    }

    /// Notes the rank of a peer of a rail.
    pub(crate) fn assign(&mut self, rail: RailId, peer: PeerIndex, rank: Rank) {
        let ranks = &mut self.slots[rail.at()].ranks;
        if ranks.len() <= peer.index() {
            ranks.resize(peer.index() + 1, NO_RANK);
        }
        ranks[peer.index()] = rank;
    }

    /// Forgets a peer of a rail, as the rail does from now on: its number there means none.
    pub(crate) fn forget(&mut self, rail: RailId, peer: PeerIndex) {
        let slot = &mut self.slots[rail.at()];
        if let Some(rank) = slot.ranks.get_mut(peer.index()) {
            *rank = NO_RANK;
        }
        slot.rail.forget(peer);
    }

    /// The ranks that an event of a rail is about.
    pub(crate) fn ranks_of(&self, rail: RailId, scope: Scope) -> Vec<Rank> {
        let ranks = &self.slots[rail.at()].ranks;
        let all = match scope {
            Scope::Peer(peer) => ranks.get(peer.index()).map(std::slice::from_ref),
            Scope::Rail => Some(&ranks[..]),
        };
        let known = all.unwrap_or_default().iter().copied();
        known.filter(|rank| *rank != NO_RANK).collect()
    }

    /// The next pass polls every rail.
    #[inline]
    pub(crate) fn expect_all(&mut self) {
        self.paces.expect_all();
    }

    /// The next pass polls a rail, on which an answer is expected.
    pub(crate) fn expect(&mut self, rail: RailId) {
        self.paces.expect(rail.at());
    }

    /// Polls the rails whose turn it is, each by `poll`, which is given its number and the ranks of its
    /// peers, and returns what it found.
    #[inline(always)]
    pub(crate) fn poll_each(&mut self, mut poll: impl FnMut(RailId, &mut M, &[Rank]) -> Work) -> Work {
        let mut work = 0;
        for at in self.paces.begin() {
            let slot = &mut self.slots[at];
            let found = poll(RailId(at as u16), &mut slot.rail, &slot.ranks);
            self.paces.polled(at, found);
            work += found;
        }
        work
    }

    /// Notes whether a message that a rail took waits for the next ones before its doorbell rings.
    #[inline]
    pub(crate) fn note_gathered(&mut self, waits: bool) {
        self.gathers |= waits;
    }

    /// Rings the doorbells of all rails.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.gathers = false;
        for slot in &mut self.slots {
            slot.rail.flush();
        }
    }

    /// Rings the doorbells of all rails where any message waits for that.
    #[inline]
    pub(crate) fn flush_gathered(&mut self) {
        if self.gathers {
            self.flush();
        }
    }
}

impl<M> Index<RailId> for Rails<M> {
    type Output = M;

    #[inline]
    fn index(&self, rail: RailId) -> &M {
        &self.slots[rail.at()].rail
    }
}

impl<M> IndexMut<RailId> for Rails<M> {
    #[inline]
    fn index_mut(&mut self, rail: RailId) -> &mut M {
        &mut self.slots[rail.at()].rail
    }
}

impl Default for RailId {
    fn default() -> Self {
        Self::NONE
    }
}
