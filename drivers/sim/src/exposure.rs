//! Memory under keys: what peers may reach, from `expose` to `withdraw`; and what a process has executed in
//! it.

use std::collections::{BTreeMap, VecDeque};

use doorbell_fabric::memory::{RegionSlice, Room, SharedBytes, View};
use doorbell_fabric::message::{Access, Exposure, OpError, PeerIndex, Refused, Remote, RemoteKey};

use crate::onesided::{Phase, What};
use crate::state::Net;
use crate::trace::Happened;

/// Memory under a key.
#[derive(Clone, Debug)]
pub(crate) struct Exposed {
    memory: Exposure,
    access: Access,
    address: u64,
    length: u64,
    /// The one NIC that may use it.
    to: Option<u32>,
}

/// What a process has executed for others: the last [`Executed::KEPT`], by initiator's incarnation and
/// operation.
#[derive(Debug, Default)]
pub(crate) struct Executed {
    pub(crate) outcomes: BTreeMap<(u64, u64), u64>,
    pub(crate) order: VecDeque<(u64, u64)>,
}

impl Executed {
    const KEPT: usize = 4096;

    pub(crate) fn add(&mut self, identity: (u64, u64), outcome: u64) {
        if self.order.len() == Self::KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.outcomes.remove(&oldest);
        }
        self.outcomes.insert(identity, outcome);
        self.order.push_back(identity);
    }
}

impl Exposed {
    pub(crate) fn allows(&self, from: u32, address: u64, length: u64, wanted: Access) -> bool {
        let inside = address >= self.address
            && address
                .checked_add(length)
                .is_some_and(|end| end <= self.address.saturating_add(self.length));
        inside && self.access.allows(wanted) && self.to.is_none_or(|to| to == from)
    }

    /// A range that was found allowed, where it lies, if it is a region's.
    fn view(&self, address: u64, length: u64) -> Option<View> {
        let Exposure::Region(slice) = &self.memory else {
            return None;
        };
        let at = usize::try_from(address - self.address).ok()?;
        slice.slice(at, usize::try_from(length).ok()?).map(View::from)
    }

    /// The bytes of a range that was found allowed.
    pub(crate) fn bytes(&self, address: u64, length: u64) -> SharedBytes<'_> {
        let all = match &self.memory {
            Exposure::Region(slice) => slice.as_shared(),
            Exposure::Read(loan) => loan.as_shared(),
            Exposure::Write(loan) => loan.as_shared(),
        };
        all.skip((address - self.address) as usize).take(length as usize)
    }

    /// Writes to a range that was found allowed.
    pub(crate) fn write(&self, address: u64, bytes: SharedBytes<'_>) {
        let at = (address - self.address) as usize;
        match &self.memory {
            Exposure::Region(slice) => slice.write_shared(at, bytes),
            Exposure::Read(_) => 0,
            Exposure::Write(loan) => loan.write_shared(at, bytes),
        };
    }
}

impl Net {
    pub(crate) fn expose(
        &mut self,
        nic: u32,
        memory: Exposure,
        access: Access,
        to: Option<PeerIndex>,
    ) -> Result<Remote, Refused> {
        let features = self.config.capabilities.features;
        let offered = match access {
            Access::Read => features.get,
            Access::Write => features.put,
            Access::ReadWrite => features.get || features.put || features.atomics,
        };
        let state = &self.nics[nic as usize];
        if !offered {
            return Err(Refused::Unsupported);
        }
        if state.ended.is_some() {
            return Err(Refused::PeerDown);
        }
        let length = match &memory {
            Exposure::Region(slice) => slice.len(),
            Exposure::Read(loan) if access == Access::Read => loan.len(),
            Exposure::Read(_) => return Err(Refused::BadMemory),
            Exposure::Write(loan) => loan.len(),
        } as u64;
        let to = match to {
            Some(peer) => Some(state.conns.get(peer.index()).ok_or(Refused::PeerDown)?.nic),
            None => None,
        };
        if state.exposed.len() >= self.config.keys {
            self.stats(nic).refused_full += 1;
            return Err(Refused::Full);
        }
        let key = self.random.next_u64();
        let state = &mut self.nics[nic as usize];
        let address = state.next_address;
        // Addresses are made up, page-aligned and never used twice: real ones would differ from run to run.
        state.next_address += (length + 1).next_multiple_of(4096);
        let exposed = Exposed {
            memory,
            access,
            address,
            length,
            to,
        };
        state.exposed.insert(key, exposed);
        self.note(Happened::Exposed, nic, nic, key, length as usize);
        Ok(Remote {
            key: key.into(),
            address: address.into(),
            length: length.into(),
        })
    }

    /// Shows a region that a peer has exposed, where it lies: a simulated process shares all memory.
    pub(crate) fn view(&self, nic: u32, peer: PeerIndex, from: &Remote) -> Option<View> {
        self.check_peer(nic, peer).ok()?;
        let to = self.conn(nic, peer.0).nic;
        let exposed = self.nics[to as usize].exposed.get(&from.key.get())?;
        let (address, length) = (from.address.get(), from.length.get());
        let allowed = exposed.allows(nic, address, length, Access::Read);
        allowed.then(|| exposed.view(address, length)).flatten()
    }

    /// Exposes a region to be written by a peer in its own calls, where the simulated rail is within a host.
    pub(crate) fn expose_now(&mut self, nic: u32, memory: &RegionSlice, to: PeerIndex) -> Option<Remote> {
        if !self.config.capabilities.features.within_host {
            return None;
        }
        let memory = Exposure::Region(memory.clone());
        self.expose(nic, memory, Access::Write, Some(to)).ok()
    }

    /// Writes memory that a peer has exposed, at once: a simulated process shares all memory.
    pub(crate) fn place(&self, nic: u32, peer: PeerIndex, bytes: SharedBytes<'_>, to: &Remote) -> bool {
        if bytes.len() as u64 != to.length.get() {
            return false;
        }
        let Some(exposed) = self.exposed_now(nic, peer, to) else {
            return false;
        };
        exposed.write(to.address.get(), bytes);
        true
    }

    /// Reads it, at once.
    pub(crate) fn fetch(&self, nic: u32, peer: PeerIndex, from: &Remote, into: Room<'_>) -> bool {
        let Some(exposed) = self.exposed_now(nic, peer, from) else {
            return false;
        };
        let bytes = exposed.bytes(from.address.get(), from.length.get());
        into.len() == bytes.len() && into.write_shared(0, bytes) == bytes.len()
    }

    fn exposed_now(&self, nic: u32, peer: PeerIndex, memory: &Remote) -> Option<&Exposed> {
        self.check_peer(nic, peer).ok()?;
        let owner = self.conn(nic, peer.0).nic;
        let exposed = self.nics[owner as usize].exposed.get(&memory.key.get())?;
        let (address, length) = (memory.address.get(), memory.length.get());
        exposed
            .allows(nic, address, length, Access::Write)
            .then_some(exposed)
    }

    pub(crate) fn withdraw(&mut self, nic: u32, key: RemoteKey) {
        let Some(exposed) = self.nics[nic as usize].exposed.remove(&key.0) else {
            return;
        };
        self.note(Happened::Withdrawn, nic, nic, key.0, 0);
        let under_way: Vec<u32> = self
            .ops
            .iter()
            .filter(|(_, op)| (op.to, op.key) == (nic, key.0) && op.phase == Phase::Executing)
            .filter(|(_, op)| op.outcome.is_none())
            .map(|(place, _)| place)
            .collect();
        for place in under_way {
            self.stats(nic).operations_withdrawn += 1;
            self.move_half(place, &exposed);
            self.ops[place].outcome = Some(Err(OpError::Withdrawn));
        }
    }

    /// Revokes every key that was made for the peer of `conn` alone.
    pub(crate) fn withdraw_from(&mut self, nic: u32, conn: u32) {
        let peer = Some(self.conn(nic, conn).nic);
        let exposed = self.nics[nic as usize].exposed.iter();
        let mut keys: Vec<u64> = exposed
            .filter(|(_, exposed)| exposed.to == peer)
            .map(|(key, _)| *key)
            .collect();
        keys.sort_unstable();
        keys.into_iter()
            .for_each(|key| self.withdraw(nic, RemoteKey(key)));
    }

    /// Does the first half of an operation that is stopped in the middle.
    fn move_half(&mut self, place: u32, exposed: &Exposed) {
        let op = &mut self.ops[place];
        let half = op.length / 2;
        match op.what {
            What::Get => op.read(exposed, half),
            What::Put => op.write(exposed, half),
            What::Atomic(_) => {}
        }
    }
}
