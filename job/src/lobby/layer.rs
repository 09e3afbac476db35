//! What a member needs of the layer above its rails.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::rail::Rail as _;
use doorbell_fabric::time::Time;
use doorbell_pml::RailId;

use super::card::{Card, Name};
use super::desk::{Desk, News};
use crate::connect::{PeerPath, RailOwner};
use crate::error::Error;
use crate::meet::{Key, RailEntry, RankInfo};
use crate::rails::{AnyRail, Manage as _};

/// The layer above the rails of a member: a Portals node, or a PML.
pub trait MemberLayer {
    /// What the layer calls a peer.
    type Peer: Copy;

    /// How long after a process's end its rails may deliver what it sent before, and notice the end
    /// themselves.
    const GRACE: Duration;

    /// Returns the rails with their numbers.
    fn each_rail(&self) -> impl Iterator<Item = (RailId, &AnyRail)>;

    /// Adds a rail, before any peer is opened.
    ///
    /// # Errors
    /// When the rail does not suit the layer.
    fn add_rail(&mut self, rail: AnyRail) -> Result<(), Error>;

    /// Returns a rail by its number.
    fn rail_mut(&mut self, rail: RailId) -> Option<&mut AnyRail>;

    /// Opens a peer over a rail; see [`RailOwner::open`].
    ///
    /// # Errors
    /// When the rail cannot reach that address.
    fn open(&mut self, peer: Self::Peer, rail: RailId, to: &RailEntry) -> Result<(), Error>;

    /// Returns the peer of a card that is to be opened now; `None` when it is open, or cannot be.
    #[doc(hidden)]
    fn admit(&mut self, card: &Card, now: Time) -> Option<Self::Peer>;

    /// Records over which paths a peer was opened, or why it cannot be.
    #[doc(hidden)]
    fn opened(&mut self, desk: &Desk, peer: Self::Peer, paths: Result<Vec<PeerPath>, Error>);

    /// Handles a call that has failed.
    #[doc(hidden)]
    fn not_reached(&mut self, peer: &PeerName, reason: String);

    /// Handles the end of a peer that was noticed at the desk.
    #[doc(hidden)]
    fn ended(&mut self, peer: &PeerName, now: Time, reason: DownReason);

    /// Takes the news of processes of other hosts.
    #[doc(hidden)]
    fn news(&mut self) -> PeerNews {
        PeerNews(Vec::new())
    }

    /// Does what is due before the news of the desk are handled; returns the work done.
    fn tend(&mut self, desk: &Desk, now: Time) -> usize;

    /// Delivers some arrivals; reads no clock.
    fn poll(&mut self) -> usize;

    /// Runs what depends on the clock; returns the work done.
    fn progress(&mut self, desk: &Desk, now: Time) -> usize;

    /// Returns when [`MemberLayer::progress`] has something to do next.
    fn next_deadline(&self) -> Option<Time>;

    /// Prepares the rails for a sleep, and passes their descriptors to `each`; returns whether there is work
    /// already.
    fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool;

    /// Ends what [`MemberLayer::arm`] has prepared.
    fn disarm(&mut self);

    /// Rings one doorbell for everything that was started.
    fn flush(&mut self);

    /// Sends what was accepted; to be called with a fresh `now` until it returns `true`, at `by` at the
    /// latest.
    fn close(&mut self, now: Time, by: Time) -> bool;

    /// Ends what must not be left to the system when the rails are.
    fn forget(&mut self) {}
}

/// The name of a peer's desk.
#[derive(Clone, Copy, Debug)]
pub struct PeerName(pub(super) Name);

/// News of processes of other hosts.
#[derive(Debug)]
pub struct PeerNews(pub(super) Vec<News>);

/// A layer for opening one peer, or for adding rails.
pub(super) struct Toward<'a, L: MemberLayer> {
    pub(super) layer: &'a mut L,
    pub(super) peer: Option<L::Peer>,
}

impl<L: MemberLayer> Toward<'_, L> {
    /// Gives the rails the key of the connections with a process that is about to be opened.
    pub(super) fn set_key(&mut self, info: &RankInfo, key: &Key) {
        let rails: Vec<RailId> = self.layer.each_rail().map(|(id, _)| id).collect();
        for id in rails {
            let Some(rail) = self.layer.rail_mut(id) else {
                continue;
            };
            let wire = rail.name().wire().to_owned();
            for entry in info.rails.iter().filter(|entry| entry.wire == wire) {
                rail.set_peer_key(&entry.address, entry.life(), key);
            }
        }
    }
}

impl<L: MemberLayer> RailOwner for Toward<'_, L> {
    fn each_rail(&self) -> impl Iterator<Item = (RailId, &AnyRail)> {
        self.layer.each_rail()
    }

    fn add_rail(&mut self, rail: AnyRail) -> Result<(), Error> {
        self.layer.add_rail(rail)
    }

    fn rail_mut(&mut self, rail: RailId) -> Option<&mut AnyRail> {
        self.layer.rail_mut(rail)
    }

    fn open(&mut self, _: u32, rail: RailId, to: &RailEntry) -> Result<(), Error> {
        match self.peer {
            Some(peer) => self.layer.open(peer, rail, to),
            None => Ok(()),
        }
    }
}
