//! A rail of either contract: messages of the simulator, or its frames with a BTL over them.

use doorbell_btl::Btl;
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::RailEvent;
use doorbell_fabric::memory::Room;
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Caller, Exposure, FenceScope, Incarnation, Landing, Look, Message,
    MsgId, OpId, PeerIndex, RailReport, Refused, Remote, RemoteKey, Watch,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_sim::{SimDatagram, SimRail};

/// A rail of a simulated network.
#[derive(Debug)]
pub(crate) enum AnyRail {
    /// One that carries messages.
    Messages(SimRail),
    /// One that carries frames, made reliable.
    Frames(Box<Btl<SimDatagram>>),
}

macro_rules! each {
    ($self:expr, $rail:ident => $do:expr) => {
        match $self {
            AnyRail::Messages($rail) => $do,
            AnyRail::Frames($rail) => $do,
        }
    };
}

impl AnyRail {
    pub(crate) fn incarnation(&self) -> Incarnation {
        each!(self, rail => rail.incarnation())
    }

    /// What is taken of it and should not be, when all is done.
    pub(crate) fn leftovers(&self, peers: usize) -> Option<String> {
        match self {
            Self::Messages(rail) => match rail.exposed() {
                0 => None,
                exposed => Some(format!("{exposed} exposed pieces of memory")),
            },
            Self::Frames(rail) => {
                // A room for each peer that is looked after.
                let used = rail.in_use();
                let rooms = used.rooms.saturating_sub(peers);
                let used = doorbell_btl::InUse { rooms, ..used };
                (used != doorbell_btl::InUse::default()).then(|| format!("{used:?}"))
            }
        }
    }
}

impl Rail for AnyRail {
    fn name(&self) -> &RailName {
        each!(self, rail => rail.name())
    }
    fn capabilities(&self) -> &Capabilities {
        each!(self, rail => rail.capabilities())
    }
    fn address(&self) -> RailAddress {
        each!(self, rail => rail.address())
    }
    fn progress(&mut self, now: Time) -> Work {
        each!(self, rail => rail.progress(now))
    }
    fn next_deadline(&self) -> Option<Time> {
        each!(self, rail => rail.next_deadline())
    }
    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        each!(self, rail => rail.arm())
    }
    fn disarm(&mut self) {
        each!(self, rail => rail.disarm());
    }
    fn poll_cost(&self) -> PollCost {
        each!(self, rail => rail.poll_cost())
    }
    fn event(&mut self) -> Option<RailEvent> {
        each!(self, rail => rail.event())
    }
    fn close(&mut self, now: Time, by: Time) -> bool {
        each!(self, rail => rail.close(now, by))
    }
}

impl Message for AnyRail {
    fn open(&mut self, address: &RailAddress, incarnation: Incarnation) -> Result<PeerIndex, RailError> {
        each!(self, rail => rail.open(address, incarnation))
    }
    fn stranger(&mut self) -> Option<Caller> {
        each!(self, rail => rail.stranger())
    }
    fn caller(&self, address: &RailAddress, incarnation: Incarnation) -> Option<Caller> {
        each!(self, rail => rail.caller(address, incarnation))
    }
    fn send(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        each!(self, rail => rail.send(peer, head, body))
    }
    fn flush(&mut self) {
        each!(self, rail => rail.flush());
    }
    fn flush_soon(&mut self, peer: PeerIndex) -> bool {
        each!(self, rail => rail.flush_soon(peer))
    }
    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        each!(self, rail => rail.poll(budget, sink))
    }
    fn look(&mut self, peer: PeerIndex, head: [u64; 2], room: Room<'_>, watch: Watch) -> Look {
        each!(self, rail => rail.look(peer, head, room, watch))
    }
    fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
        each!(self, rail => rail.handed_over(peer))
    }
    fn reclaim(&mut self, peer: PeerIndex, f: &mut dyn FnMut(MsgId, &[u8])) {
        each!(self, rail => rail.reclaim(peer, f));
    }
    fn abandon(&mut self, peer: PeerIndex) {
        each!(self, rail => rail.abandon(peer));
    }
    fn forget(&mut self, peer: PeerIndex) {
        each!(self, rail => rail.forget(peer));
    }
    fn revive(&mut self, peer: PeerIndex) {
        each!(self, rail => rail.revive(peer));
    }
    fn proved_alive(&mut self, peer: PeerIndex) {
        each!(self, rail => rail.proved_alive(peer));
    }
    fn report(&self, peer: PeerIndex) -> RailReport {
        each!(self, rail => rail.report(peer))
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
