//! Peers that join and leave, for an owner without a job: a peer is a number of its own, which travels
//! nowhere.

use doorbell_fabric::message::Message;

use crate::core::Core;
use crate::error::PmlError;
use crate::hot::Hot;
use crate::peer::Peer;
use crate::pml::Pml;
use crate::rank::Rank;

/// The numbers of peers that were forgotten.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// Those that nothing refers to.
    free: Vec<Rank>,
}

impl<M: Message> Pml<M> {
    /// Adds a peer to which no rail leads yet: with [`PmlConfig::lazy`](crate::PmlConfig::lazy), what is sent
    /// to it waits, and [`Pml::wanted`] reports it. Returns its number, which is local to this PML.
    ///
    /// # Errors
    /// [`PmlError::TooManyPeers`] when there are as many as
    /// [`PmlConfig::peers_most`](crate::PmlConfig::peers_most) allows.
    pub fn add_peer(&mut self) -> Result<Rank, PmlError> {
        if let Some(rank) = self.core.numbers.free.pop() {
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

    /// Returns the number of ranks that there are or were at a time: all numbers are below it.
    #[must_use]
    pub fn peers(&self) -> u32 {
        self.core.hot.len()
    }
}

impl Core {
    /// A number is given to a new peer.
    fn begin_peer(&mut self, rank: Rank) {
        self.hot[rank] = Hot::new(&self.config, false);
        self.peers[rank] = Peer::default();
        self.immediate.forget(rank);
    }
}
