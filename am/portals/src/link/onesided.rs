//! One-sided: memory for a peer's gets, and our gets; memory that a peer writes, and what we write so.
//!
//! A path that breaks takes with it what was exposed over it, and ends the gets that are under way over it
//! with an error: both are promises of its rail, so nothing is kept here. A reader of such memory then finds
//! no path, or a key that is not valid any more, and the layer above requests fragments instead.

use doorbell_fabric::memory::{RegionSlice, Room, SharedBytes};
use doorbell_fabric::message::{
    Access, Exposure, Landing, Message, OpId, PeerIndex, Refused, Remote, RemoteKey,
};
use doorbell_paths::{PathState, each};

use super::{Link, PeerId};

impl<M: Message> Link<M> {
    /// Exposes memory to one peer, over the way on which that is best; `None` where there is none. The way's
    /// number is the same at the peer, and goes to it with the [`Remote`].
    #[cfg(test)]
    pub(crate) fn expose(&mut self, peer: PeerId, what: Exposure, access: Access) -> Option<(u16, Remote)> {
        let mut found = None;
        self.expose_over(peer, what, access, 1, |way, remote| found = Some((way, remote)));
        found
    }

    /// Exposes memory over up to `most` paths, the best first, for a peer that reads a part over each. Within
    /// a host one is enough: what moves bytes there is the same processors.
    pub(crate) fn expose_over(
        &mut self,
        peer: PeerId,
        what: Exposure,
        access: Access,
        most: usize,
        mut each_one: impl FnMut(u16, Remote),
    ) {
        let Some(known) = self.core.peers.get(peer.index()).filter(|known| !known.lost) else {
            return;
        };
        let length = match &what {
            Exposure::Region(slice) => slice.len(),
            Exposure::Read(loan) => loan.len(),
            Exposure::Write(loan) => loan.len(),
        };
        let offers = |at: &usize| {
            let can = &self.rails[usize::from(known.paths[*at].rail)].can;
            let offers = match access {
                Access::Read => can.features.get,
                Access::Write => can.features.put,
                Access::ReadWrite => can.features.get && can.features.put,
            };
            offers && length as u64 <= can.limits.one_sided
        };
        let up = known.states.in_state(|state| state == PathState::Up);
        let offering = each(up).filter(offers).fold(0_u64, |set, at| set | 1 << at);
        let (mut left, mut count) = (offering, 0);
        // The best first: within the host, then by rate.
        while count < most
            && let Some(at) = each(left).max_by_key(|at| {
                let can = &self.rails[usize::from(known.paths[*at].rail)].can;
                (can.features.within_host, can.estimate.bandwidth)
            })
        {
            let path = &known.paths[at];
            let slot = &mut self.rails[usize::from(path.rail)];
            if let Ok(remote) = slot.rail.expose(what.clone(), access, Some(path.index)) {
                each_one(at as u16, remote);
                count += 1;
                if slot.can.features.within_host {
                    return;
                }
            }
            left &= !(1 << at);
        }
    }

    /// Revokes what was exposed. After the return no access to it succeeds. A key that is none any more is
    /// ignored.
    pub(crate) fn withdraw(&mut self, peer: PeerId, way: u16, key: RemoteKey) {
        if let Some((rail, _)) = self.way_of(peer, way) {
            self.rails[rail].rail.withdraw(key);
        }
    }

    /// Reads the peer's memory over one way. Ends in [`Upper::completed`](super::Upper::completed), with an
    /// error also when the way breaks; until then `into` is kept.
    ///
    /// # Errors
    /// [`Refused`] when nothing was started; [`Refused::PeerDown`] also for a way that is not used now.
    pub(crate) fn get(
        &mut self,
        peer: PeerId,
        way: u16,
        op: OpId,
        from: &Remote,
        into: Landing,
    ) -> Result<(), Refused> {
        let (rail, index) = self.way_of(peer, way).ok_or(Refused::PeerDown)?;
        let known = &self.core.peers[peer.index()];
        if known.lost || !known.is_used(usize::from(way)) {
            return Err(Refused::PeerDown);
        }
        self.rails[rail].rail.get(index, op, from, into)?;
        (self.gathers, self.core.busy) = (true, true);
        self.paces.expect(rail);
        Ok(())
    }

    /// Exposes memory of a region to one peer that writes it by itself, over a path within the host that is
    /// up.
    pub(crate) fn expose_now(&mut self, peer: PeerId, memory: &RegionSlice) -> Option<(u16, Remote)> {
        let known = self.core.peers.get(peer.index()).filter(|known| !known.lost)?;
        let rails = &mut self.rails;
        each(known.states.in_state(|state| state == PathState::Up)).find_map(|at| {
            let path = &known.paths[at];
            let slot = rails.get_mut(usize::from(path.rail))?;
            if !slot.can.features.within_host {
                return None;
            }
            let remote = slot.rail.expose_now(memory, path.index)?;
            Some((at as u16, remote))
        })
    }

    /// Whether a path of a peer can be used.
    pub(crate) fn is_usable(&self, peer: PeerId, way: u16) -> bool {
        let known = self.core.peers.get(peer.index());
        known.is_some_and(|known| !known.lost && known.is_used(usize::from(way)))
    }

    /// Writes bytes into memory that the peer has exposed so; returns whether they are there.
    #[inline]
    pub(crate) fn place(&mut self, peer: PeerId, way: u16, bytes: SharedBytes<'_>, to: &Remote) -> bool {
        if !self.is_usable(peer, way) {
            return false;
        }
        let Some((rail, index)) = self.way_of(peer, way) else {
            return false;
        };
        let slot = self.rails.get_mut(rail);
        slot.is_some_and(|slot| slot.rail.put_now(index, bytes, to))
    }

    /// Reads memory that the peer has exposed so; returns whether its bytes are there.
    #[inline]
    pub(crate) fn fetch(&mut self, peer: PeerId, way: u16, from: &Remote, into: Room<'_>) -> bool {
        if !self.is_usable(peer, way) {
            return false;
        }
        let Some((rail, index)) = self.way_of(peer, way) else {
            return false;
        };
        let slot = self.rails.get_mut(rail);
        slot.is_some_and(|slot| slot.rail.get_now(index, from, into))
    }

    /// Revokes it. Returns whether nothing is written there any more.
    pub(crate) fn end_placing(&mut self, peer: PeerId, way: u16, key: RemoteKey) -> bool {
        let way = self.way_of(peer, way);
        let slot = way.and_then(|(rail, _)| self.rails.get_mut(rail));
        slot.is_none_or(|slot| slot.rail.end_now(key))
    }

    fn way_of(&self, peer: PeerId, way: u16) -> Option<(usize, PeerIndex)> {
        let path = self.core.peers.get(peer.index())?.paths.get(usize::from(way))?;
        Some((usize::from(path.rail), path.index))
    }
}
