//! `SimRail`: the `Message` contract over a simulated network.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::RailEvent;
use doorbell_fabric::memory::{RegionSlice, Room, SharedBytes, View};
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Caller, Exposure, FenceScope, Inbound, Incarnation, Landing, Message,
    MsgId, OpId, PeerIndex, Refused, Remote, RemoteKey,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;

use crate::handle::Handle;
use crate::net::{Plane, SimNet};
use crate::onesided::Completion;
use crate::state::{Ended, Net};
use crate::stranger;

/// A rank's message rail on one plane of a [`SimNet`].
///
/// Dropping it without [`Rail::close`] looks like a crash to its peers. Beyond the contract's text:
///
/// * a message is on the link at the next `flush` or `poll`, not before: a forgotten doorbell shows;
/// * messages of a peer that was not opened here wait until it is, for ever, so that peer numbers are those
///   of `open`;
/// * after a failure that `PeerUp` or `LinkUp` ends, ids go on, but what was accepted before is not sent
///   again: `reclaim` it. Until then the watermark stays below it; ids that were given back count as no gap;
/// * an exposure's key comes from the network's seed: repeatable, and no secret.
#[derive(Debug)]
pub struct SimRail {
    handle: Handle,
}

/// What a poll found next.
enum Next {
    Message {
        key: u32,
        peer: PeerIndex,
        bytes: std::sync::Arc<Vec<u8>>,
        region: Option<RegionSlice>,
    },
    Completion(Completion),
}

impl SimRail {
    pub(crate) fn new(net: SimNet, nic: u32) -> Self {
        let capabilities = net.config().capabilities;
        Self {
            handle: Handle::new(net, nic, capabilities),
        }
    }

    /// The life of the rank that attached this rail: peers pass it to `open`.
    pub fn incarnation(&self) -> Incarnation {
        self.handle.incarnation()
    }

    /// The rank that attached it.
    pub fn rank(&self) -> u32 {
        self.handle.rank()
    }

    /// The plane that it is attached to.
    pub fn plane(&self) -> Plane {
        self.handle.plane()
    }

    /// Pieces of memory that are exposed through it now.
    pub fn exposed(&self) -> usize {
        self.handle.net.lock().nics[self.handle.nic as usize]
            .exposed
            .len()
    }

    /// The network that it belongs to.
    pub fn net(&self) -> &SimNet {
        &self.handle.net
    }
}

impl Rail for SimRail {
    fn name(&self) -> &RailName {
        &self.handle.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.handle.capabilities
    }

    fn address(&self) -> RailAddress {
        self.handle.address()
    }

    /// Advances the network's clock to `now`, if that is later: the network's time is the latest that any of
    /// its users has.
    fn progress(&mut self, now: Time) -> Work {
        self.handle.progress(now)
    }

    fn next_deadline(&self) -> Option<Time> {
        self.handle.next_deadline()
    }

    /// Always [`Armed::Ready`]: on a virtual clock there is nothing to sleep on; advance the clock instead.
    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        Ok(Armed::Ready)
    }

    fn disarm(&mut self) {}

    fn poll_cost(&self) -> PollCost {
        PollCost::Memory
    }

    fn event(&mut self) -> Option<RailEvent> {
        self.handle.event()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        let nic = self.handle.nic;
        let mut net = self.handle.net.lock();
        net.run_until(now);
        if net.nics[nic as usize].ended.is_some() {
            return true;
        }
        net.flush(nic);
        let done = |net: &Net| {
            let mut conns = net.nics[nic as usize].conns.iter();
            conns.all(|conn| conn.down || conn.retained.is_empty())
        };
        if now < by && !done(&net) {
            return false;
        }
        net.end_nic(nic, Ended::Closed);
        net.look();
        true
    }
}

impl Message for SimRail {
    fn open(&mut self, address: &RailAddress, incarnation: Incarnation) -> Result<PeerIndex, RailError> {
        let rank = self.handle.rank_at(address)?;
        let peer = self.handle.find(rank, Some(incarnation))?;
        Ok(PeerIndex(self.handle.net.lock().connect(self.handle.nic, peer)))
    }

    /// Returns senders of waiting messages and of reconnect requests; again, when they repeat it 20 ms later.
    fn stranger(&mut self) -> Option<Caller> {
        let mut net = self.handle.net.lock();
        net.run_due();
        net.stranger(self.handle.nic)
    }

    fn caller(&self, address: &RailAddress, incarnation: Incarnation) -> Option<Caller> {
        let rank = self.handle.rank_at(address).ok()?;
        Some(stranger::name(self.handle.plane().0, rank, incarnation))
    }

    fn send(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        self.handle.net.lock().send(self.handle.nic, peer, head, body)
    }

    fn flush(&mut self) {
        self.handle.net.lock().flush(self.handle.nic);
    }

    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        let nic = self.handle.nic;
        let mut net = self.handle.net.lock();
        net.run_due();
        if net.paused.contains(&net.nics[nic as usize].rank) {
            return 0;
        }
        net.flush(nic);
        for shown in 0..budget {
            let Some(next) = net.next_for(nic) else {
                return shown;
            };
            // The sink runs without the lock: it may use other rails of this network.
            drop(net);
            match next {
                Next::Completion(completion) => {
                    completion.into.write(0, &completion.data);
                    sink.completed(completion.id, completion.outcome);
                    net = self.handle.net.lock();
                    net.recycle(completion.data);
                }
                Next::Message {
                    key,
                    peer,
                    bytes,
                    region,
                } => {
                    let rest = region.as_ref().map_or(SharedBytes::EMPTY, RegionSlice::as_shared);
                    sink.message(peer, Inbound::split(SharedBytes::of(&bytes), rest));
                    drop(bytes);
                    net = self.handle.net.lock();
                    net.delivered(key);
                }
            }
        }
        budget
    }

    fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
        let mut net = self.handle.net.lock();
        net.run_due();
        let conn = net.nics[self.handle.nic as usize].conns.get(peer.index());
        MsgId(conn.map_or(0, |conn| conn.watermark))
    }

    fn accepted(&self, peer: PeerIndex) -> MsgId {
        let net = self.handle.net.lock();
        let conn = net.nics[self.handle.nic as usize].conns.get(peer.index());
        MsgId(conn.map_or(0, |conn| conn.last))
    }

    fn reclaim(&mut self, peer: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
        let nic = self.handle.nic;
        let conn = |net: &Net| {
            net.nics[nic as usize]
                .conns
                .get(peer.index())
                .map(|conn| conn.last)
        };
        let Some(last) = conn(&self.handle.net.lock()) else {
            return;
        };
        loop {
            let given = self.handle.net.lock().take_back(nic, peer.0, last);
            let Some((id, bytes, region)) = given else {
                return;
            };
            match region {
                None => each(MsgId(id), &bytes),
                Some(slice) => each(MsgId(id), &[&bytes[..], &slice.as_shared().to_vec()].concat()),
            }
            self.handle.net.lock().recycle(bytes);
        }
    }

    fn abandon(&mut self, peer: PeerIndex) {
        let mut net = self.handle.net.lock();
        if peer.index() < net.nics[self.handle.nic as usize].conns.len() {
            net.abandon(self.handle.nic, peer.0);
        }
    }

    fn forget(&mut self, peer: PeerIndex) {
        let mut net = self.handle.net.lock();
        if peer.index() < net.nics[self.handle.nic as usize].conns.len() {
            net.forget_peer(self.handle.nic, peer.0);
        }
    }

    fn revive(&mut self, peer: PeerIndex) {
        let mut net = self.handle.net.lock();
        if peer.index() < net.nics[self.handle.nic as usize].conns.len() {
            net.revive(self.handle.nic, peer.0);
        }
    }

    fn expose(&mut self, memory: Exposure, access: Access, to: Option<PeerIndex>) -> Result<Remote, Refused> {
        self.handle.net.lock().expose(self.handle.nic, memory, access, to)
    }

    fn withdraw(&mut self, key: RemoteKey) {
        self.handle.net.lock().withdraw(self.handle.nic, key);
    }

    fn get(&mut self, peer: PeerIndex, op: OpId, from: &Remote, into: Landing) -> Result<(), Refused> {
        self.handle.net.lock().get(self.handle.nic, peer, op, from, into)
    }

    fn view(&mut self, peer: PeerIndex, from: &Remote) -> Option<View> {
        self.handle.net.lock().view(self.handle.nic, peer, from)
    }

    fn expose_now(&mut self, memory: &RegionSlice, to: PeerIndex) -> Option<Remote> {
        let mut net = self.handle.net.lock();
        net.expose_now(self.handle.nic, memory, to)
    }

    fn put_now(&mut self, peer: PeerIndex, bytes: SharedBytes<'_>, to: &Remote) -> bool {
        self.handle.net.lock().place(self.handle.nic, peer, bytes, to)
    }

    fn get_now(&mut self, peer: PeerIndex, from: &Remote, into: Room<'_>) -> bool {
        self.handle.net.lock().fetch(self.handle.nic, peer, from, into)
    }

    fn end_now(&mut self, key: RemoteKey) -> bool {
        self.withdraw(key);
        true
    }

    fn put(&mut self, peer: PeerIndex, op: OpId, from: Body<'_>, to: &Remote) -> Result<(), Refused> {
        self.handle.net.lock().put(self.handle.nic, peer, op, from, to)
    }

    fn atomic(&mut self, peer: PeerIndex, op: OpId, at: &Remote, what: AtomicOp) -> Result<(), Refused> {
        self.handle.net.lock().atomic(self.handle.nic, peer, op, at, what)
    }

    fn fence(&mut self, scope: FenceScope, op: OpId) -> Result<(), Refused> {
        self.handle.net.lock().fence(self.handle.nic, scope, op)
    }
}

impl Net {
    /// The next thing to show to the owner of `nic`: completions first.
    fn next_for(&mut self, nic: u32) -> Option<Next> {
        let state = &mut self.nics[nic as usize];
        if let Some(completion) = state.completions.pop_front() {
            state.open_ops -= 1;
            return Some(Next::Completion(completion));
        }
        let key = state.inbox.pop_front()?;
        let msg = &self.messages[key];
        let peer = *state.peers.get(&msg.from)?;
        Some(Next::Message {
            key,
            peer: PeerIndex(peer),
            bytes: msg.bytes.clone(),
            region: msg.region.clone(),
        })
    }
}
