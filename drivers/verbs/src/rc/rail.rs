//! The rail: connections, what makes them, and the contracts.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Features, Limits};
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::{DownReason, Life, RailEvent};
use doorbell_fabric::memory::Room;
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Caller, Exposure, FenceScope, Incarnation, Landing, Look, Message,
    MsgId, OpId, PeerIndex, RailReport, Refused, Remote, RemoteKey, Watch,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;

use super::core::{Core, RcStats, Stage};
use super::hello::{Hello, Route};
use crate::error::VerbsError;
use crate::ud::ESTIMATE;

/// Longest head of a message.
const HEAD: usize = 256;
/// Most pieces of a body.
const PARTS: usize = 16;

/// What the other end of a connection has done, as its contact brings it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    /// It calls, or has called: our end is needed.
    Calls(u32),
    /// What it has sent of its end; ours is connected to it, and receives from then on.
    Says(u32, Hello, Route, Life),
    /// Its end receives from now on.
    Ready(u32),
    /// Its end is over.
    Gone(u32, DownReason),
}

/// Finds other ends, and brings them what ours has to send.
pub(crate) trait Contact {
    /// The published address.
    fn address(&self) -> RailAddress;

    /// Which peer is meant, by its index if it is known; the next one is added under `next`.
    ///
    /// # Errors
    /// Why the address cannot be reached.
    fn open(&mut self, address: &RailAddress, life: Incarnation, next: u32) -> Result<u32, RailError>;

    /// The name under which a peer at an address calls.
    fn caller(&self, address: &RailAddress, life: Incarnation) -> Option<Caller>;

    /// The next caller that is not open.
    fn stranger(&mut self) -> Option<Caller>;

    /// Wants a connection: has [`Told::Calls`] be answered, or calls.
    fn call(&mut self, peer: u32);

    /// Sends the other end what ours is.
    fn say(&mut self, peer: u32, ours: &Hello);

    /// Our end receives.
    fn receives(&mut self, peer: u32);

    /// Our end is over, for a reason.
    fn gone(&mut self, peer: u32, reason: DownReason);

    /// The next word of the other ends.
    fn next(&mut self, now: Time, is_busy: &dyn Fn(u32) -> bool) -> Option<Told>;

    /// The next time at which there is something to do.
    fn next_deadline(&self) -> Option<Time>;
}

/// A rail of reliable connections.
pub(crate) struct RcRail<C> {
    name: RailName,
    capabilities: Capabilities,
    pub(crate) core: Core,
    pub(crate) contact: C,
    is_closed: bool,
}

impl<C: Contact> RcRail<C> {
    pub(crate) fn new(name: RailName, core: Core, contact: C) -> Self {
        let message = core.sizes.message();
        let capabilities = Capabilities {
            features: Features {
                gather: true,
                reclaim: true,
                checksum: true,
                ..Features::default()
            },
            limits: Limits {
                head: HEAD,
                message,
                inline: core.sizes.inline - super::head::HEAD - super::head::LENGTH,
                eager: message,
                fragment: message,
                get_from: usize::MAX,
                parts: PARTS,
                one_sided: 0,
            },
            estimate: ESTIMATE,
        };
        Self {
            name,
            capabilities,
            core,
            contact,
            is_closed: false,
        }
    }

    /// The totals so far.
    pub(crate) fn stats(&self) -> RcStats {
        self.core.stats
    }

    /// Brings core and contact together: which peers are wanted, what others sent, which are over.
    fn meet(&mut self, now: Time) {
        while let Some((peer, reason)) = self.core.ended.pop_front() {
            self.contact.gone(peer, reason);
        }
        while let Some(peer) = self.core.wanted.pop_front() {
            self.contact.call(peer);
        }
        loop {
            let core = &self.core;
            let Some(told) = self.contact.next(now, &|peer| core.is_ending(peer)) else {
                return;
            };
            self.told(told);
        }
    }

    fn told(&mut self, told: Told) {
        match told {
            Told::Calls(peer) => match self.core.prepare(peer) {
                Ok(ours) => self.contact.say(peer, &ours),
                Err(error) => self.short(peer, &error),
            },
            Told::Says(peer, theirs, route, life) => match self.core.connect(peer, &theirs, &route, life) {
                Ok(()) => self.contact.receives(peer),
                Err(reason) => self.lose(peer, reason),
            },
            Told::Ready(peer) => self.core.ready(peer),
            Told::Gone(peer, reason) => self.core.end(peer, reason),
        }
    }

    /// There is no memory or no queue pair for a connection.
    fn short(&mut self, peer: u32, _: &VerbsError) {
        self.lose(peer, DownReason::Resources);
    }

    fn lose(&mut self, peer: u32, reason: DownReason) {
        let was_down = self.core.peers[peer as usize].stage == Stage::Down;
        self.core.drop_peer(peer);
        self.contact.gone(peer, reason);
        if !was_down {
            let kind = doorbell_fabric::event::EventKind::PeerDown(reason);
            self.core.report(peer, kind, Life::FIRST);
        }
    }

    fn known(&self, peer: PeerIndex) -> bool {
        peer.index() < self.core.peers.len()
    }
}

impl<C: Contact> Rail for RcRail<C> {
    fn name(&self) -> &RailName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn address(&self) -> RailAddress {
        self.contact.address()
    }

    fn progress(&mut self, now: Time) -> Work {
        let before = self.core.events.len();
        self.core.progress(now);
        self.meet(now);
        self.core.events.len() - before
    }

    fn next_deadline(&self) -> Option<Time> {
        let own = self.core.now + self.core.sizes.keep_alive / 8;
        Some(self.contact.next_deadline().map_or(own, |other| own.min(other)))
    }

    /// The owner goes on polling: the descriptor comes with the rail's events.
    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        Ok(Armed::Ready)
    }

    fn disarm(&mut self) {}

    fn poll_cost(&self) -> PollCost {
        PollCost::Memory
    }

    fn event(&mut self) -> Option<RailEvent> {
        self.core.events.pop_front()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        if self.is_closed {
            return true;
        }
        self.core.progress(now.max(self.core.now));
        self.meet(self.core.now);
        if now < by && !self.core.is_settled() {
            return false;
        }
        self.is_closed = true;
        for peer in 0..self.core.peers.len() as u32 {
            if self.core.peers[peer as usize].stage != Stage::Down {
                self.core.drop_peer(peer);
                self.contact.gone(peer, DownReason::Closed);
            }
        }
        true
    }
}

impl<C: Contact> Message for RcRail<C> {
    fn open(&mut self, address: &RailAddress, incarnation: Incarnation) -> Result<PeerIndex, RailError> {
        let next = self.core.peers.len() as u32;
        let index = self.contact.open(address, incarnation, next)?;
        if index == next && self.core.add().is_none() {
            return Err(RailError::BadAddress {
                rail: self.name.to_string(),
                address: address.to_string(),
                reason: "there are as many peers as the rail has memory for",
            });
        }
        Ok(PeerIndex(index))
    }

    fn stranger(&mut self) -> Option<Caller> {
        self.contact.stranger()
    }

    fn caller(&self, address: &RailAddress, incarnation: Incarnation) -> Option<Caller> {
        self.contact.caller(address, incarnation)
    }

    #[inline]
    fn send(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        let too_many = matches!(body, Body::Parts(parts) if parts.len() > PARTS);
        if head.len() > HEAD || too_many || head.len() + body.len() > self.capabilities.limits.message {
            return Err(Refused::TooLong);
        }
        self.core.accept(peer.0, head, &body)
    }

    #[inline]
    fn flush(&mut self) {
        self.core.flush();
    }

    fn holds_back(&mut self, peer: Option<PeerIndex>) -> bool {
        self.core.flush();
        let waits = |peer: &super::core::Peer| peer.outbox.as_ref().is_some_and(|outbox| outbox.waits());
        match peer {
            Some(peer) => self.core.peers.get(peer.index()).is_some_and(waits),
            None => self.core.peers.iter().any(waits),
        }
    }

    fn accepted(&self, peer: PeerIndex) -> MsgId {
        self.core.last_accepted(peer.0)
    }

    #[inline]
    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        let ended = if budget > 0 {
            self.core.fences.pop_front()
        } else {
            None
        };
        let shown = usize::from(ended.is_some());
        if let Some(op) = ended {
            sink.completed(op, Ok(0));
        }
        shown + self.core.poll(budget - shown, sink)
    }

    #[inline]
    fn look(&mut self, peer: PeerIndex, head: [u64; 2], room: Room<'_>, watch: Watch) -> Look {
        self.core.look(peer, head, room, watch)
    }

    #[inline]
    fn linger(&mut self, looks: u32) -> bool {
        self.core.linger(looks)
    }

    fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
        self.core.watermark(peer.0)
    }

    fn reclaim(&mut self, peer: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
        self.core.reclaim(peer.0, each);
    }

    fn abandon(&mut self, peer: PeerIndex) {
        if self.known(peer) && self.core.peers[peer.index()].stage != Stage::Down {
            self.core.drop_peer(peer.0);
            self.contact.gone(peer.0, DownReason::Abandoned);
        }
    }

    fn revive(&mut self, peer: PeerIndex) {
        if self.known(peer) && self.core.peers[peer.index()].stage == Stage::Down && !self.is_closed {
            self.contact.call(peer.0);
        }
    }

    fn report(&self, _: PeerIndex) -> RailReport {
        RailReport::default()
    }

    fn expose(&mut self, _: Exposure, _: Access, _: Option<PeerIndex>) -> Result<Remote, Refused> {
        Err(Refused::Unsupported)
    }

    fn withdraw(&mut self, _: RemoteKey) {}

    fn get(&mut self, _: PeerIndex, _: OpId, _: &Remote, _: Landing) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }

    fn put(&mut self, _: PeerIndex, _: OpId, _: Body<'_>, _: &Remote) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }

    fn atomic(&mut self, _: PeerIndex, _: OpId, _: &Remote, _: AtomicOp) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }

    /// There are no one-sided operations, so a fence has nothing to wait for.
    fn fence(&mut self, _: FenceScope, op: OpId) -> Result<(), Refused> {
        self.core.fence(op)
    }
}
