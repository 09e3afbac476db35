//! What a message rail and a datagram queue pair have in common: a NIC of a network, its name and its
//! address.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::RailEvent;
use doorbell_fabric::message::Incarnation;
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::Work;
use doorbell_fabric::time::Time;

use crate::net::{Plane, SimNet};
use crate::state::{Ended, Kind};

/// A NIC, as its owner holds it. Dropping it without a goodbye is what a crash looks like to its peers.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) net: SimNet,
    pub(crate) nic: u32,
    pub(crate) name: RailName,
    pub(crate) capabilities: Capabilities,
    kind: Kind,
    plane: u32,
    rank: u32,
    seed: u64,
    incarnation: Incarnation,
}

impl Handle {
    pub(crate) fn new(net: SimNet, nic: u32, capabilities: Capabilities) -> Self {
        let state = net.lock();
        let (seed, at) = (state.seed, &state.nics[nic as usize]);
        let plane = &state.planes[at.plane as usize].name;
        let separator = if plane.is_empty() { "" } else { ":" };
        let text = format!("sim:{seed}{separator}{plane}");
        let name = text.parse().expect("`sim` is one of the known kinds");
        let (kind, plane, rank) = (at.kind, at.plane, at.rank);
        let incarnation = state.lives[at.life as usize].incarnation;
        drop(state);
        Self {
            net,
            nic,
            name,
            capabilities,
            kind,
            plane,
            rank,
            seed,
            incarnation,
        }
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    pub(crate) fn plane(&self) -> Plane {
        Plane(self.plane)
    }

    /// Kind of NIC, plane, rank, and the network's seed: the same for every life of a rank.
    pub(crate) fn address(&self) -> RailAddress {
        let mut bytes = vec![self.kind as u8];
        bytes.extend(self.plane.to_le_bytes());
        bytes.extend(self.rank.to_le_bytes());
        bytes.extend(self.seed.to_le_bytes());
        RailAddress::native("sim", bytes)
    }

    /// The rank that an address names, when it is one of this network, plane and kind of NIC.
    pub(crate) fn rank_at(&self, address: &RailAddress) -> Result<u32, RailError> {
        let bad = |reason| RailError::BadAddress {
            rail: self.name.to_string(),
            address: address.to_string(),
            reason,
        };
        let bytes = address
            .native_of("sim")
            .ok_or_else(|| bad("it belongs to another kind of rail"))?;
        let bytes: &[u8; 17] = bytes.try_into().map_err(|_| bad("its length is wrong"))?;
        let rank = [bytes[5], bytes[6], bytes[7], bytes[8]];
        let ours = self.address();
        let ours = ours.native_of("sim").unwrap_or_default();
        if bytes[9..] != ours[9..] {
            return Err(bad("it belongs to another simulated network"));
        }
        if bytes[..5] != ours[..5] {
            return Err(bad("it belongs to another plane, or to the other kind of NIC"));
        }
        Ok(u32::from_le_bytes(rank))
    }

    /// The NIC of a rank; of one incarnation only, when `incarnation` is given.
    pub(crate) fn find(&self, rank: u32, incarnation: Option<Incarnation>) -> Result<u32, RailError> {
        let unreachable = |reason: &str, remedy| RailError::Unreachable {
            rail: self.name.to_string(),
            peer: format!("rank {rank}"),
            reason: reason.to_owned(),
            remedy,
        };
        let net = self.net.lock();
        let Some(nic) = net.find(self.kind, self.plane, rank, incarnation) else {
            let reason = "no such incarnation of this rank is attached to this plane";
            return Err(unreachable(
                reason,
                "attach the rank first, and pass its current incarnation",
            ));
        };
        match net.nics[nic as usize].ended {
            None => Ok(nic),
            Some(Ended::Gone) => Err(unreachable("its NIC is gone", "use another rail")),
            Some(_) => Err(unreachable("it has ended", "open its next incarnation")),
        }
    }

    /// Moves the network's clock to `now` when that is later; the work is the number of trace events this
    /// made.
    pub(crate) fn progress(&mut self, now: Time) -> Work {
        let mut net = self.net.lock();
        let before = net.trace.count();
        net.run_until(now);
        (net.trace.count() - before) as Work
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.net.next_event()
    }

    pub(crate) fn event(&mut self) -> Option<RailEvent> {
        let mut net = self.net.lock();
        net.run_due();
        net.nics[self.nic as usize].events.pop_front()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut net = self.net.lock();
        net.end_nic(self.nic, Ended::Died);
        net.discard(self.nic);
        net.look();
    }
}
