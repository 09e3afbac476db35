//! A rail that breaks at configured points (`fault.inject`): a test aid. It is a kind of rail of its own, so
//! that all others carry nothing of it, not even a branch.

use std::collections::VecDeque;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::RailEvent;
use doorbell_fabric::memory::{RegionSlice, Room, SharedBytes, View};
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Caller, Exposure, FenceScope, Incarnation, Landing, Look, Message,
    MsgId, OpId, PeerIndex, RailReport, Refused, Remote, RemoteKey, Watch,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;

use super::{AnyRail, Manage as _};
use crate::config::{Fault, When};

/// Polls of a transfer before it is broken: part of it has been transferred then, but not all of a long one.
const MIDDLE: u32 = 2;

/// A rail, with the faults that are yet to be injected.
pub struct FaultRail {
    pub(super) rail: Box<AnyRail>,
    faults: VecDeque<When>,
    /// Whether a fault was injected.
    pub(super) broken: bool,
    /// Messages since the last fault.
    messages: u64,
    /// Polls since a one-sided transfer began; `None` before the first one.
    polls: Option<u32>,
}

impl FaultRail {
    /// Wraps a rail that a fault names; returns any other as it is.
    pub(super) fn wrap(rail: AnyRail, faults: &[Fault]) -> AnyRail {
        let ours = faults.iter().filter(|fault| fault.rail == *rail.name());
        let faults: VecDeque<When> = ours.map(|fault| fault.when).collect();
        if faults.is_empty() {
            return rail;
        }
        AnyRail::Faulty(Self {
            rail: Box::new(rail),
            faults,
            broken: false,
            messages: 0,
            polls: None,
        })
    }

    /// Breaks the paths to all peers, when a fault is due. Runs between calls, as real failures do.
    fn inject_due(&mut self) {
        let due = match self.faults.front() {
            Some(When::Messages(count)) => self.messages >= *count,
            Some(When::Rendezvous) => self.polls.is_some_and(|polls| polls >= MIDDLE),
            None => false,
        };
        if due {
            self.faults.pop_front();
            (self.messages, self.polls) = (0, None);
            self.broken = true;
            self.rail.inject_failure(None);
        }
    }

    /// Counts polls from here on, if a one-sided transfer has begun.
    fn has_begun(&mut self, done: Result<(), Refused>) -> Result<(), Refused> {
        if done.is_ok() {
            self.polls.get_or_insert(0);
        }
        done
    }
}

impl Rail for FaultRail {
    fn name(&self) -> &RailName {
        self.rail.name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.rail.capabilities()
    }

    fn address(&self) -> RailAddress {
        self.rail.address()
    }

    fn progress(&mut self, now: Time) -> Work {
        self.inject_due();
        self.rail.progress(now)
    }

    fn next_deadline(&self) -> Option<Time> {
        self.rail.next_deadline()
    }

    fn wants_time(&self) -> bool {
        self.rail.wants_time()
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        self.rail.arm()
    }

    fn disarm(&mut self) {
        self.rail.disarm();
    }

    fn poll_cost(&self) -> PollCost {
        self.rail.poll_cost()
    }

    fn event(&mut self) -> Option<RailEvent> {
        self.rail.event()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        Rail::close(&mut *self.rail, now, by)
    }
}

impl Message for FaultRail {
    fn open(&mut self, address: &RailAddress, incarnation: Incarnation) -> Result<PeerIndex, RailError> {
        self.rail.open(address, incarnation)
    }

    fn stranger(&mut self) -> Option<Caller> {
        self.rail.stranger()
    }

    fn caller(&self, address: &RailAddress, incarnation: Incarnation) -> Option<Caller> {
        self.rail.caller(address, incarnation)
    }

    fn await_next(&mut self, peer: PeerIndex) {
        self.rail.await_next(peer);
    }

    fn send(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        let sent = self.rail.send(peer, head, body);
        self.messages += u64::from(sent.is_ok());
        sent
    }

    fn flush(&mut self) {
        self.rail.flush();
    }

    fn flush_soon(&mut self, peer: PeerIndex) -> bool {
        self.rail.flush_soon(peer)
    }

    fn flush_for(&mut self, peer: PeerIndex) -> bool {
        self.rail.flush_for(peer)
    }

    fn holds_back(&mut self, peer: Option<PeerIndex>) -> bool {
        self.rail.holds_back(peer)
    }

    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        self.inject_due();
        self.polls = self.polls.map(|polls| polls.saturating_add(1));
        let work = self.rail.poll(budget, sink);
        self.messages += work as u64;
        work
    }

    fn look(&mut self, peer: PeerIndex, head: [u64; 2], room: Room<'_>, watch: Watch) -> Look {
        let found = self.rail.look(peer, head, room, watch);
        self.messages += u64::from(matches!(found, Look::Taken(_)));
        found
    }

    fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
        self.rail.handed_over(peer)
    }

    fn accepted(&self, peer: PeerIndex) -> MsgId {
        self.rail.accepted(peer)
    }

    fn reclaim(&mut self, peer: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
        self.rail.reclaim(peer, each);
    }

    fn abandon(&mut self, peer: PeerIndex) {
        self.rail.abandon(peer);
    }

    fn forget(&mut self, peer: PeerIndex) {
        self.rail.forget(peer);
    }

    fn revive(&mut self, peer: PeerIndex) {
        self.rail.revive(peer);
    }

    fn proved_alive(&mut self, peer: PeerIndex) {
        self.rail.proved_alive(peer);
    }

    fn report(&self, peer: PeerIndex) -> RailReport {
        self.rail.report(peer)
    }

    fn prefers_get(&mut self, peer: PeerIndex, length: usize) -> bool {
        self.rail.prefers_get(peer, length)
    }

    fn expose(&mut self, memory: Exposure, access: Access, to: Option<PeerIndex>) -> Result<Remote, Refused> {
        self.rail.expose(memory, access, to)
    }

    fn withdraw(&mut self, key: RemoteKey) {
        self.rail.withdraw(key);
    }

    fn get(&mut self, peer: PeerIndex, op: OpId, from: &Remote, into: Landing) -> Result<(), Refused> {
        let done = self.rail.get(peer, op, from, into);
        self.has_begun(done)
    }

    fn view(&mut self, peer: PeerIndex, from: &Remote) -> Option<View> {
        self.rail.view(peer, from)
    }

    fn expose_now(&mut self, memory: &RegionSlice, to: PeerIndex) -> Option<Remote> {
        self.rail.expose_now(memory, to)
    }

    fn put_now(&mut self, peer: PeerIndex, bytes: SharedBytes<'_>, to: &Remote) -> bool {
        self.rail.put_now(peer, bytes, to)
    }

    fn get_now(&mut self, peer: PeerIndex, from: &Remote, into: Room<'_>) -> bool {
        self.rail.get_now(peer, from, into)
    }

    fn end_now(&mut self, key: RemoteKey) -> bool {
        self.rail.end_now(key)
    }

    fn put(&mut self, peer: PeerIndex, op: OpId, from: Body<'_>, to: &Remote) -> Result<(), Refused> {
        let done = self.rail.put(peer, op, from, to);
        self.has_begun(done)
    }

    fn atomic(&mut self, peer: PeerIndex, op: OpId, at: &Remote, what: AtomicOp) -> Result<(), Refused> {
        self.rail.atomic(peer, op, at, what)
    }

    fn fence(&mut self, scope: FenceScope, op: OpId) -> Result<(), Refused> {
        self.rail.fence(scope, op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use doorbell_sim::{SimConfig, SimNet};

    /// A rail with faults passes hellos on until it breaks, and loses them then, in both directions.
    #[test]
    fn a_broken_rail_loses_hellos() {
        let net = SimNet::new(1, SimConfig::default());
        let rail = || AnyRail::simulated_datagrams(net.attach_datagram(), &Config::default()).unwrap();
        let mut other = rail();
        let mut faulty = AnyRail::Faulty(FaultRail {
            rail: Box::new(rail()),
            faults: VecDeque::new(),
            broken: false,
            messages: 0,
            polls: None,
        });
        let mut pass = |faulty: &mut AnyRail, number: u8| {
            let (there, back) = (other.address(), faulty.address());
            faulty.open_door(1);
            other.open_door(1);
            faulty.send_hello(&there, 1, &[number]).unwrap();
            other.send_hello(&back, 1, &[number]).unwrap();
            net.advance_to(net.now() + std::time::Duration::from_millis(1));
            let mut bytes = Vec::new();
            [&mut *faulty, &mut other].map(|rail| {
                rail.progress(net.now());
                while rail.poll(64, &mut Discard) > 0 {}
                rail.next_hello(&mut bytes).then(|| bytes.clone())
            })
        };
        assert_eq!(pass(&mut faulty, 7), [Some(vec![7]), Some(vec![7])]);
        assert!(faulty.hello_room() >= 200);
        assert_eq!(faulty.door(), None, "a simulated network has no sockets");
        if let AnyRail::Faulty(rail) = &mut faulty {
            rail.broken = true;
        }
        assert_eq!(pass(&mut faulty, 8), [None, None]);
    }

    struct Discard;

    impl Arrivals for Discard {
        fn message(&mut self, _: PeerIndex, _: doorbell_fabric::message::Inbound<'_>) {}
        fn completed(&mut self, _: OpId, _: Result<u64, doorbell_fabric::message::OpError>) {}
    }
}
