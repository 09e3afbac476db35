//! Rails around the simulator's that do what a hostile or unlucky peer's rail would.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::RailEvent;
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Caller, Exposure, FenceScope, Incarnation, Landing, Message, MsgId,
    OpId, PeerIndex, Refused, Remote, RemoteKey,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_sim::SimRail;

/// Names its exposed memory by keys that do not exist.
pub(crate) struct Forger(pub(crate) SimRail);

/// Withdraws what it exposed as soon as the announcement has left.
pub(crate) struct Withdrawer(pub(crate) SimRail);

/// Flips a bit of the last byte of every whole message.
pub(crate) struct Spoiler(pub(crate) SimRail);

/// Reports other capabilities, and counts its polls.
pub(crate) struct Tuned {
    pub(crate) rail: SimRail,
    pub(crate) can: Capabilities,
    pub(crate) cost: PollCost,
    pub(crate) polls: u32,
}

impl Tuned {
    pub(crate) fn new(rail: SimRail) -> Self {
        Self {
            can: *rail.capabilities(),
            cost: rail.poll_cost(),
            rail,
            polls: 0,
        }
    }
}

/// What they do to an exposure and to its withdrawal, and which capabilities they report.
trait Twist {
    fn inner(&self) -> &SimRail;
    fn inner_mut(&mut self) -> &mut SimRail;
    fn exposed(&mut self, remote: Remote) -> Remote {
        remote
    }
    fn true_key(key: RemoteKey) -> RemoteKey {
        key
    }
    fn can(&self) -> &Capabilities {
        self.inner().capabilities()
    }
    fn cost(&self) -> PollCost {
        self.inner().poll_cost()
    }
    fn polled(&mut self) {}
    fn pass_on(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        self.inner_mut().send(peer, head, body)
    }
}

impl Twist for Tuned {
    fn inner(&self) -> &SimRail {
        &self.rail
    }
    fn inner_mut(&mut self) -> &mut SimRail {
        &mut self.rail
    }
    fn can(&self) -> &Capabilities {
        &self.can
    }
    fn cost(&self) -> PollCost {
        self.cost
    }
    fn polled(&mut self) {
        self.polls += 1;
    }
}

impl Twist for Forger {
    fn inner(&self) -> &SimRail {
        &self.0
    }
    fn inner_mut(&mut self) -> &mut SimRail {
        &mut self.0
    }
    fn exposed(&mut self, remote: Remote) -> Remote {
        Remote {
            key: (remote.key.get() ^ 1).into(),
            ..remote
        }
    }
    fn true_key(key: RemoteKey) -> RemoteKey {
        RemoteKey(key.0 ^ 1)
    }
}

impl Twist for Withdrawer {
    fn inner(&self) -> &SimRail {
        &self.0
    }
    fn inner_mut(&mut self) -> &mut SimRail {
        &mut self.0
    }
    fn exposed(&mut self, remote: Remote) -> Remote {
        self.0.withdraw(RemoteKey(remote.key.get()));
        remote
    }
}

impl Twist for Spoiler {
    fn inner(&self) -> &SimRail {
        &self.0
    }
    fn inner_mut(&mut self) -> &mut SimRail {
        &mut self.0
    }
    fn pass_on(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        const WHOLE: [u8; 2] = [1, 18];
        let mut bytes = match body {
            Body::Parts(_) => Vec::new(),
            body => body.to_vec(),
        };
        if let (true, Some(last)) = (WHOLE.contains(&head[0]), bytes.last_mut()) {
            *last ^= 0x10;
            return self.0.send(peer, head, Body::Bytes(&bytes));
        }
        self.0.send(peer, head, body)
    }
}

macro_rules! twisted {
    ($rail:ty) => {
        impl Rail for $rail {
            fn name(&self) -> &RailName {
                self.inner().name()
            }
            fn capabilities(&self) -> &Capabilities {
                self.can()
            }
            fn address(&self) -> RailAddress {
                self.inner().address()
            }
            fn progress(&mut self, now: Time) -> Work {
                self.inner_mut().progress(now)
            }
            fn next_deadline(&self) -> Option<Time> {
                self.inner().next_deadline()
            }
            fn arm(&mut self) -> Result<Armed<'_>, RailError> {
                self.inner_mut().arm()
            }
            fn disarm(&mut self) {
                self.inner_mut().disarm()
            }
            fn poll_cost(&self) -> PollCost {
                self.cost()
            }
            fn event(&mut self) -> Option<RailEvent> {
                self.inner_mut().event()
            }
            fn close(&mut self, now: Time, by: Time) -> bool {
                self.inner_mut().close(now, by)
            }
        }

        impl Message for $rail {
            fn open(&mut self, address: &RailAddress, life: Incarnation) -> Result<PeerIndex, RailError> {
                self.inner_mut().open(address, life)
            }
            fn stranger(&mut self) -> Option<Caller> {
                self.inner_mut().stranger()
            }
            fn caller(&self, address: &RailAddress, life: Incarnation) -> Option<Caller> {
                self.inner().caller(address, life)
            }
            fn await_next(&mut self, peer: PeerIndex) {
                self.inner_mut().await_next(peer)
            }
            fn send(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
                self.pass_on(peer, head, body)
            }
            fn flush(&mut self) {
                self.inner_mut().flush()
            }
            fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
                self.polled();
                self.inner_mut().poll(budget, sink)
            }
            fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
                self.inner_mut().handed_over(peer)
            }
            fn reclaim(&mut self, peer: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
                self.inner_mut().reclaim(peer, each)
            }
            fn abandon(&mut self, peer: PeerIndex) {
                self.inner_mut().abandon(peer)
            }
            fn forget(&mut self, peer: PeerIndex) {
                self.inner_mut().forget(peer)
            }
            fn revive(&mut self, peer: PeerIndex) {
                self.inner_mut().revive(peer)
            }
            fn expose(
                &mut self,
                memory: Exposure,
                access: Access,
                to: Option<PeerIndex>,
            ) -> Result<Remote, Refused> {
                let remote = self.inner_mut().expose(memory, access, to)?;
                Ok(self.exposed(remote))
            }
            fn withdraw(&mut self, key: RemoteKey) {
                self.inner_mut().withdraw(Self::true_key(key))
            }
            fn get(
                &mut self,
                peer: PeerIndex,
                op: OpId,
                from: &Remote,
                into: Landing,
            ) -> Result<(), Refused> {
                self.inner_mut().get(peer, op, from, into)
            }
            fn put(&mut self, peer: PeerIndex, op: OpId, from: Body<'_>, to: &Remote) -> Result<(), Refused> {
                self.inner_mut().put(peer, op, from, to)
            }
            fn atomic(
                &mut self,
                peer: PeerIndex,
                op: OpId,
                at: &Remote,
                what: AtomicOp,
            ) -> Result<(), Refused> {
                self.inner_mut().atomic(peer, op, at, what)
            }
            fn fence(&mut self, scope: FenceScope, op: OpId) -> Result<(), Refused> {
                self.inner_mut().fence(scope, op)
            }
        }
    };
}

twisted!(Forger);
twisted!(Withdrawer);
twisted!(Tuned);
twisted!(Spoiler);
