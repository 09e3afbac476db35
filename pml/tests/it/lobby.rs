//! Members without a job on the simulator's virtual clock: each numbers its peers by itself, and meets them
//! when one of the two needs the other.

use std::collections::BTreeMap;
use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::message::{Incarnation, Message as _};
use doorbell_fabric::rail::Rail as _;
use doorbell_pml::{Pml, PmlConfig, PmlError, Rank, RequestId, Source, Status};
use doorbell_sim::{Plane, SimConfig, SimNet, SimRail};

use crate::world::Memory;

/// One member, and the numbers that it has given to others.
pub(crate) struct Member {
    pub(crate) pml: Pml<SimRail>,
    addresses: Vec<(RailAddress, Incarnation)>,
    /// The member that each number is of.
    known: Vec<(Rank, usize)>,
    /// The member that each number was of last, and how many were made before.
    names: BTreeMap<Rank, (usize, u64)>,
    made: u64,
    /// Members that call, and are known here as what they were before.
    callers: Vec<usize>,
}

impl Member {
    /// The number of a member, which is made at the first call.
    pub(crate) fn rank_of(&mut self, other: usize) -> Rank {
        if let Some((rank, _)) = self.known.iter().find(|(_, member)| *member == other) {
            return *rank;
        }
        let rank = self.pml.add_peer().unwrap();
        self.known.push((rank, other));
        self.names.insert(rank, (other, self.made));
        self.made += 1;
        rank
    }

    /// The member of a number, and which of its lives here; also of one that was forgotten.
    pub(crate) fn name(&self, rank: Rank) -> (usize, u64) {
        self.names[&rank]
    }

    /// The member of a number.
    pub(crate) fn member_of(&self, rank: Rank) -> Option<usize> {
        let known = self.known.iter().find(|(known, _)| *known == rank);
        known.map(|(_, member)| *member)
    }

    /// Whether a member has a number.
    pub(crate) fn knows(&self, other: usize) -> bool {
        self.known.iter().any(|(_, member)| *member == other)
    }

    /// Forgets a member.
    pub(crate) fn forget(&mut self, other: usize) {
        if let Some(at) = self.known.iter().position(|(_, member)| *member == other) {
            let (rank, _) = self.known.swap_remove(at);
            self.pml.forget(rank);
        }
    }

    pub(crate) fn recv(&mut self, from: Source, tag: u64, into: &Memory) -> RequestId {
        self.pml.recv_loan(from, 0, tag, 0, into.room()).unwrap()
    }
}

/// All members, and where they are.
pub(crate) struct Lobby {
    pub(crate) net: SimNet,
    pub(crate) members: Vec<Member>,
    pub(crate) planes: Vec<Plane>,
    configure: Box<dyn Fn(&mut PmlConfig)>,
}

impl Lobby {
    pub(crate) fn new(
        members: usize,
        planes: usize,
        seed: u64,
        sim: SimConfig,
        configure: impl Fn(&mut PmlConfig) + 'static,
    ) -> Self {
        let net = SimNet::new(seed, sim);
        let planes = (0..planes)
            .map(|at| match at {
                0 => Plane::FIRST,
                _ => net.add_plane(&format!("p{at}")),
            })
            .collect();
        let mut lobby = Self {
            net,
            members: Vec::new(),
            planes,
            configure: Box::new(configure),
        };
        for at in 0..members {
            let member = lobby.enter(at);
            lobby.members.push(member);
        }
        lobby
    }

    fn enter(&self, at: usize) -> Member {
        let mut config = PmlConfig::new(Rank(0), 1, self.net.seed() ^ at as u64);
        config.lazy = true;
        config.peers_most = 64;
        (self.configure)(&mut config);
        let mut pml = Pml::new(config).unwrap();
        let mut addresses = Vec::new();
        for plane in &self.planes {
            let rail = self.net.attach_rank(at as u32, *plane);
            addresses.push((rail.address(), rail.incarnation()));
            pml.add_rail(rail).unwrap();
        }
        Member {
            pml,
            addresses,
            known: Vec::new(),
            names: BTreeMap::new(),
            made: 0,
            callers: Vec::new(),
        }
    }

    /// The process of a member ends, and another one takes its place.
    pub(crate) fn restart(&mut self, at: usize) {
        self.net.restart(at as u32);
        self.members[at] = self.enter(at);
    }

    /// Connects a member to another one, over all planes.
    pub(crate) fn connect(&mut self, at: usize, other: usize) {
        let addresses = self.members[other].addresses.clone();
        let member = &mut self.members[at];
        let rank = member.rank_of(other);
        let rails: Vec<_> = member.pml.rails().map(|(rail, _)| rail).collect();
        for (rail, (address, life)) in rails.into_iter().zip(addresses) {
            member.pml.connect(rank, rail, &address, life).unwrap();
        }
    }

    /// What the owner of a member does: peers that are wanted, and those that call, are connected; those
    /// that are lost are forgotten.
    pub(crate) fn attend(&mut self, at: usize) {
        while let Some(rank) = self.members[at].pml.wanted() {
            if let Some(other) = self.members[at].member_of(rank) {
                self.connect(at, other);
            }
        }
        let lost = |member: &Member| {
            let mut known = member.known.iter();
            known.find_map(|(rank, other)| member.pml.lost(*rank).map(|_| *other))
        };
        while let Some(other) = lost(&self.members[at]) {
            self.members[at].forget(other);
        }
        let mut callers = std::mem::take(&mut self.members[at].callers);
        callers.extend(self.new_callers(at));
        callers.retain(|caller| {
            let member = &mut self.members[at];
            let waits = member.knows(*caller) && {
                let rank = member.rank_of(*caller);
                !member.pml.is_unmet(rank)
            };
            if !waits {
                self.connect(at, *caller);
            }
            waits
        });
        self.members[at].callers = callers;
    }

    /// Members that call this one and are not open there.
    fn new_callers(&mut self, at: usize) -> Vec<usize> {
        let mut found = Vec::new();
        for plane in 0..self.planes.len() {
            let rail = doorbell_pml::RailId(plane as u16);
            while let Some(caller) = self.members[at].pml.rail_mut(rail).and_then(SimRail::stranger) {
                let rail = self.members[at].pml.rail(rail).unwrap();
                let is_caller = |other: &usize| {
                    let (address, life) = &self.members[*other].addresses[plane];
                    rail.caller(address, *life) == Some(caller)
                };
                found.extend((0..self.members.len()).find(is_caller));
            }
        }
        found.retain(|other| *other != at);
        found
    }

    /// One microsecond: every member progresses once, and is attended to.
    pub(crate) fn pass(&mut self) {
        let now = self.net.now() + Duration::from_micros(1);
        self.net.advance_to(now);
        for at in 0..self.members.len() {
            self.members[at].pml.progress(now);
            self.attend(at);
        }
    }

    pub(crate) fn passes(&mut self, count: usize) {
        (0..count).for_each(|_| self.pass());
    }

    /// Waits for a request of a member, and ends it.
    pub(crate) fn wait(&mut self, at: usize, id: RequestId) -> Result<Status, PmlError> {
        for _ in 0..100_000 {
            if let Some(ended) = self.members[at].pml.test(id) {
                return ended;
            }
            self.pass();
        }
        panic!("never ended: {}", self.members[at].pml.explain(id).unwrap());
    }

    /// Sends eight bytes of `salt` from one member to another, which are taken at once.
    pub(crate) fn inject(&mut self, from: usize, to: usize, tag: u64, salt: u64) -> Result<(), PmlError> {
        let member = &mut self.members[from];
        let rank = member.rank_of(to);
        member.pml.inject(rank, 0, tag, &salt.to_le_bytes())
    }
}
