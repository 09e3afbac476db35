//! A path: a peer over one rail, and what is in flight over it. Its state is kept by [`doorbell_paths`].

use doorbell_fabric::message::PeerIndex;

use super::in_flight::Flight;

/// A path to a peer.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) rail: u16,
    pub(super) index: PeerIndex,
    pub(super) flight: Flight,
}

impl Path {
    pub(super) fn new(rail: u16, index: PeerIndex) -> Self {
        Self {
            rail,
            index,
            flight: Flight::default(),
        }
    }
}
