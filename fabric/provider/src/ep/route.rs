//! The way from addresses of a client to peers, and back.

use doorbell_pml::Rank;
use libfabric_sys::{FI_ADDR_NOTAVAIL, FI_EINVAL, fi_addr_t};

use super::send::Route;
use super::state::EndpointNumber;
use crate::av::VectorIndex;
use crate::domain::State;
use crate::errno::{Errno, Result};

impl State {
    /// Does what depends on the clock. Address vectors have the new numbers of peers that came back.
    #[cold]
    pub(crate) fn keep_member(&mut self) {
        self.meeting = self.member.keep();
        while let Some((rank, peer)) = self.member.appeared() {
            self.vectors.learn(&mut self.member, &peer, rank);
        }
        while let Some(lost) = self.member.lost_sends() {
            self.lost(&lost);
        }
    }

    /// Where messages of an endpoint to an address go.
    ///
    /// # Errors
    /// `FI_EINVAL` for what is not in the endpoint's address vector.
    #[inline(always)]
    pub(super) fn route(&mut self, from: EndpointNumber, to: fi_addr_t) -> Result<Route> {
        let vector = self.endpoints.find(from)?.vector;
        self.route_in(vector, to)
    }

    /// Where messages of an endpoint with this address vector go.
    ///
    /// # Errors
    /// Those of [`State::route`].
    #[inline(always)]
    pub(crate) fn route_in(&mut self, vector: Option<VectorIndex>, to: fi_addr_t) -> Result<Route> {
        let vector = vector.ok_or(Errno(FI_EINVAL))?;
        let (rank, endpoint) = self.vectors.route(&mut self.member, vector, to)?;
        Ok(Route { rank, endpoint })
    }

    /// The address that an endpoint's address vector has of a sender; `FI_ADDR_NOTAVAIL` where it has none.
    #[inline]
    pub(crate) fn address_of(&mut self, endpoint: u8, rank: Rank, of_sender: u8) -> fi_addr_t {
        match self.endpoints.get(endpoint).and_then(|endpoint| endpoint.vector) {
            Some(vector) => self.vectors.find(&mut self.member, vector, rank, of_sender),
            None => FI_ADDR_NOTAVAIL,
        }
    }
}
