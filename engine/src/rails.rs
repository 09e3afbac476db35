//! Rails of every built-in kind behind one type, by static match; opening them by name, and choosing them per peer.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::discover::{Candidate, Discovery, Driver};
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::RailEvent;
use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Exposure, FenceScope, Incarnation, Landing, Look, Message, MsgId, OpId,
    PeerIndex, Refused, Remote, RemoteKey, Watch,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_shm::{ShmConfig, ShmRail, Tally};
use doorbell_sim::SimRail;

use crate::bootstrap::RailEntry;
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
            // Discovery has judged every name before this is called.
            _ => Err(Error::Rail(RailError::Unusable {
                rail: name.to_string(),
                reason: "this build cannot open it by name".to_owned(),
                remedy: "name another rail, or none to have them chosen".to_owned(),
            })),
        }
    }

    /// What selection judges, for a rail that is open already.
    pub(crate) fn candidate(&self) -> Candidate {
        Candidate::usable(self.name().clone(), *self.capabilities())
    }

    /// What it counts, when it does.
    pub(crate) fn tally(&self) -> Option<Tally> {
        match self {
            Self::Shm(rail) => Some(rail.tally()),
            // The network counts for all its rails together.
            Self::Sim(_) => None,
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
            wire: self.name().kind().to_owned(),
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

/// The drivers of this build, for discovery.
struct ShmDriver(ShmConfig);
struct SimDriver;

impl Driver for ShmDriver {
    fn kind(&self) -> &'static str {
        "shm"
    }

    fn probe(&self) -> Result<Vec<Candidate>, RailError> {
        let name: RailName = "shm".parse()?;
        // Opening it is how to know: a socket and a page of memory, gone again at the end of this call.
        let rail = ShmRail::open(&name, &self.0)?;
        let pull = if rail.capabilities().features.get {
            "yes"
        } else {
            "no"
        };
        Ok(vec![
            Candidate::usable(name, *rail.capabilities()).fact("reads-from-peers", pull),
        ])
    }
}

impl Driver for SimDriver {
    fn kind(&self) -> &'static str {
        "sim"
    }

    fn probe(&self) -> Result<Vec<Candidate>, RailError> {
        Ok(Vec::new())
    }

    fn named(&self, name: &RailName) -> Option<Candidate> {
        let reason = "a simulated network lives in one process";
        Some(Candidate::rejected(
            name.clone(),
            reason,
            "make its worlds with `doorbell::simulated`",
        ))
    }
}

/// Every kind of rail with its verdict, and the reason of each that cannot be used.
///
/// ```
/// let found = doorbell::discover(&doorbell::Config::default());
/// assert!(found.kinds.iter().any(|report| report.kind == "shm"));
/// ```
pub fn discover(config: &Config) -> Discovery {
    let shm = ShmDriver(shm_config(config));
    doorbell_fabric::discover::discover(&[&shm, &SimDriver], &config.rails.list.get().0)
}

/// Opens the rails that the configuration names (each, or it is an error), or every one that may be chosen unnamed.
/// The second part is what selection judges: all candidates, also those that could not be opened.
pub(crate) fn open_all(config: &Config) -> Result<(Vec<AnyRail>, Vec<Candidate>), Error> {
    let found = discover(config);
    let named = &config.rails.list.get().0;
    for name in named {
        found.named(name)?;
    }
    let mut rails = Vec::new();
    let mut candidates: Vec<Candidate> = found.candidates().cloned().collect();
    for candidate in &mut candidates {
        let wanted = if named.is_empty() {
            candidate.automatic
        } else {
            named.contains(&candidate.rail)
        };
        if !wanted || !candidate.is_usable() {
            continue;
        }
        match AnyRail::open(&candidate.rail, config) {
            Ok(rail) => rails.push(rail),
            Err(error) if !named.is_empty() => return Err(error),
            // One sick rail hides no other: it is a candidate that lost.
            Err(error) => {
                *candidate = Candidate::rejected(candidate.rail.clone(), error.to_string(), error.remedy())
            }
        }
    }
    Ok((rails, candidates))
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

    #[inline(always)]
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

    #[inline(always)]
    fn look(&mut self, peer: PeerIndex, head: [u64; 2], room: MutLoan, watch: Watch) -> Look {
        each!(self, rail => rail.look(peer, head, room, watch))
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

    fn get(&mut self, peer: PeerIndex, op: OpId, from: &Remote, into: Landing) -> Result<(), Refused> {
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
