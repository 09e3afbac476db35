//! Rails of every built-in kind behind one type, by static match; opening them by name, and choosing them per peer.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::RailEvent;
use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Exposure, FenceScope, Incarnation, Message, MsgId, OpId, PeerIndex,
    Refused, Remote, RemoteKey,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_shm::{ShmConfig, ShmRail};
use doorbell_sim::SimRail;
use serde::Serialize;

use crate::bootstrap::{Hello, RailEntry};
use crate::config::Config;
use crate::error::Error;

/// A rail of any kind that this build contains. Every call is one predictable branch, never a dynamic call.
// The sizes differ, but there are few of them and they are moved once.
#[allow(clippy::large_enum_variant)]
pub(crate) enum AnyRail {
    /// Shared memory of one host.
    Shm(ShmRail),
    /// A simulated network.
    Sim(SimRail),
}

macro_rules! each {
    ($self:expr, $rail:ident => $do:expr) => {
        match $self {
            AnyRail::Shm($rail) => $do,
            AnyRail::Sim($rail) => $do,
        }
    };
}

impl AnyRail {
    /// Opens a rail by its name; it is used or refused, never replaced.
    pub(crate) fn open(name: &RailName, config: &Config) -> Result<Self, Error> {
        match name.kind() {
            "shm" => Ok(Self::Shm(ShmRail::open(name, &shm_config(config))?)),
            "sim" => Err(unusable(
                name,
                "a simulated network lives in one process",
                "make its worlds with `doorbell::simulated`",
            )),
            _ => Err(unusable(
                name,
                "this build has no driver for it",
                "name another rail, or none to have them chosen",
            )),
        }
    }

    fn incarnation(&self) -> Incarnation {
        each!(self, rail => rail.incarnation())
    }

    /// What is published about it.
    pub(crate) fn entry(&self) -> RailEntry {
        let capabilities = self.capabilities();
        let features = [
            ("get", capabilities.features.get),
            ("put", capabilities.features.put),
            ("atomics", capabilities.features.atomics),
        ];
        RailEntry {
            name: self.name().to_string(),
            address: self.address(),
            incarnation: self.incarnation().0,
            features: features
                .iter()
                .filter(|(_, has)| *has)
                .map(|(name, _)| (*name).to_owned())
                .collect(),
            eager: capabilities.limits.eager as u64,
        }
    }
}

fn unusable(name: &RailName, reason: &str, remedy: &str) -> Error {
    Error::Rail(RailError::Unusable {
        rail: name.to_string(),
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    })
}

fn shm_config(config: &Config) -> ShmConfig {
    let default = ShmConfig::default();
    ShmConfig {
        cma: *config.shm.cma.get(),
        cells: config
            .shm
            .cells
            .get()
            .map_or(default.cells, |cells| cells as usize),
        data: config.shm.data.get().map_or(default.data, |data| data.0),
        ..default
    }
}

/// Opens the rails that the configuration names, or those that every host has.
pub(crate) fn open_all(config: &Config) -> Result<Vec<AnyRail>, Error> {
    let named = &config.rails.list.get().0;
    if named.is_empty() {
        let shm: RailName = "shm".parse().map_err(Error::Rail)?;
        return Ok(vec![AnyRail::open(&shm, config)?]);
    }
    named.iter().map(|name| AnyRail::open(name, config)).collect()
}

/// One rail that could have carried messages to a peer, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// The rail's name here.
    pub rail: String,
    /// Its place among the chosen ones, from 0; `None`: not chosen.
    pub place: Option<usize>,
    /// Why it was chosen, or the one reason why not.
    pub reason: String,
}

/// Which rails lead to a peer, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Selection {
    /// The peer's rank.
    pub peer: u32,
    /// Every rail of ours, in the order in which they were looked at.
    pub candidates: Vec<Candidate>,
}

impl Selection {
    /// The names of the chosen rails, the preferred one first.
    pub fn chosen(&self) -> Vec<&str> {
        self.candidates
            .iter()
            .filter(|one| one.place.is_some())
            .map(|one| one.rail.as_str())
            .collect()
    }

    /// Each rail that was not chosen with its reason, for an error.
    pub(crate) fn reasons(&self) -> String {
        let lost = self.candidates.iter().filter(|one| one.place.is_none());
        let lost: Vec<String> = lost.map(|one| format!("{}: {}", one.rail, one.reason)).collect();
        if lost.is_empty() {
            "there is no rail at all".to_owned()
        } else {
            lost.join("; ")
        }
    }
}

/// The peer's end of one of our rails: the one of the same name, else the first of the same kind.
///
/// # Errors
/// The reason why there is none.
pub(crate) fn other_end<'p>(name: &RailName, own: &Hello, peer: &'p Hello) -> Result<&'p RailEntry, String> {
    if name.kind() == "shm" && own.host != peer.host {
        return Err("the peer is on another host".to_owned());
    }
    let same_kind = || {
        peer.rails
            .iter()
            .filter(|entry| entry.address.kind == name.kind())
    };
    same_kind()
        .find(|entry| entry.name == name.as_str())
        .or_else(|| same_kind().next())
        .ok_or_else(|| format!("the peer has no rail of kind `{}`", name.kind()))
}

impl Rail for AnyRail {
    fn name(&self) -> &RailName {
        each!(self, rail => rail.name())
    }

    #[inline]
    fn capabilities(&self) -> &Capabilities {
        each!(self, rail => rail.capabilities())
    }

    fn address(&self) -> RailAddress {
        each!(self, rail => rail.address())
    }

    #[inline]
    fn progress(&mut self, now: Time) -> Work {
        each!(self, rail => rail.progress(now))
    }

    #[inline]
    fn next_deadline(&self) -> Option<Time> {
        each!(self, rail => rail.next_deadline())
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        each!(self, rail => rail.arm())
    }

    fn disarm(&mut self) {
        each!(self, rail => rail.disarm());
    }

    #[inline]
    fn poll_cost(&self) -> PollCost {
        each!(self, rail => rail.poll_cost())
    }

    #[inline]
    fn event(&mut self) -> Option<RailEvent> {
        each!(self, rail => rail.event())
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        each!(self, rail => Rail::close(rail, now, by))
    }
}

impl Message for AnyRail {
    fn open(&mut self, address: &RailAddress, incarnation: Incarnation) -> Result<PeerIndex, RailError> {
        each!(self, rail => Message::open(rail, address, incarnation))
    }

    #[inline]
    fn send(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        each!(self, rail => rail.send(peer, head, body))
    }

    #[inline]
    fn flush(&mut self) {
        each!(self, rail => rail.flush());
    }

    #[inline]
    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        each!(self, rail => rail.poll(budget, sink))
    }

    #[inline]
    fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
        each!(self, rail => rail.handed_over(peer))
    }

    fn reclaim(&mut self, peer: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
        each!(self, rail => rail.reclaim(peer, each));
    }

    fn expose(&mut self, memory: Exposure, access: Access, to: Option<PeerIndex>) -> Result<Remote, Refused> {
        each!(self, rail => rail.expose(memory, access, to))
    }

    fn withdraw(&mut self, key: RemoteKey) {
        each!(self, rail => rail.withdraw(key));
    }

    fn get(&mut self, peer: PeerIndex, op: OpId, from: &Remote, into: MutLoan) -> Result<(), Refused> {
        each!(self, rail => rail.get(peer, op, from, into))
    }

    fn put(&mut self, peer: PeerIndex, op: OpId, from: Body<'_>, to: &Remote) -> Result<(), Refused> {
        each!(self, rail => rail.put(peer, op, from, to))
    }

    fn atomic(&mut self, peer: PeerIndex, op: OpId, at: &Remote, what: AtomicOp) -> Result<(), Refused> {
        each!(self, rail => rail.atomic(peer, op, at, what))
    }

    fn fence(&mut self, scope: FenceScope, op: OpId) -> Result<(), Refused> {
        each!(self, rail => rail.fence(scope, op))
    }
}
