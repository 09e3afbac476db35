//! The implementation of [`Message`], the contract of rails that carry messages, and the poll of both
//! channels.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::error::RailError;
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Caller, Exposure, FenceScope, Incarnation, Landing, Message, MsgId,
    OpId, PeerIndex, RailReport, Refused, Remote, RemoteKey,
};

use crate::btl::Btl;
use crate::core::Core;
use crate::peer::about;
use crate::teardown::Phase;

/// Passes that show as much as they may, after which time-outs are judged all the same.
const CROWDED: u32 = 16;

/// The order in which the next pass polls the channels.
#[derive(Debug, Default)]
pub(crate) struct PollOrder {
    /// The last pass took the short way.
    short: bool,
    /// The data channel comes first.
    data_first: bool,
    /// Passes in a row that showed all they might.
    crowded: u32,
}

impl<D: Datagram> Message for Btl<D> {
    fn open(&mut self, address: &RailAddress, incarnation: Incarnation) -> Result<PeerIndex, RailError> {
        self.open_peer(address, incarnation)
    }

    /// Returns the ids of incoming connections that are not open here. A peer opened later loses nothing: it
    /// keeps probing until [`BtlConfig::give_up`](crate::BtlConfig::give_up).
    #[inline]
    fn stranger(&mut self) -> Option<Caller> {
        self.next_stranger()
    }

    /// `None` without a job key.
    fn caller(&self, address: &RailAddress, incarnation: Incarnation) -> Option<Caller> {
        self.name_of(address, incarnation)
    }

    fn await_next(&mut self, peer: PeerIndex) {
        self.core.awaited = Some(peer);
    }

    #[inline]
    fn send(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        let (tx, _) = self.driver.split();
        self.core.accept(tx, peer, head, body)
    }

    #[inline]
    fn flush(&mut self) {
        let (tx, _) = self.driver.split();
        if self.core.ready.is_empty() && !self.core.probing.has_due() {
            self.core.outbox.ring(tx);
        } else {
            self.core.service(tx);
        }
    }

    #[inline]
    fn flush_for(&mut self, peer: PeerIndex) -> bool {
        let (tx, _) = self.driver.split();
        self.core.ring_for(tx, peer)
    }

    /// Makes what waits leave with the next flush or poll, or when the rail is armed.
    #[inline]
    fn flush_soon(&mut self, peer: PeerIndex) -> bool {
        if self.core.gathers(peer) {
            return false;
        }
        self.flush_for(peer)
    }

    fn holds_back(&mut self, peer: Option<PeerIndex>) -> bool {
        let (tx, _) = self.driver.split();
        self.core.holds_back(peer) || tx.is_backed_up()
    }

    #[inline]
    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        if self.core.phase == Phase::Closed {
            return 0;
        }
        let (tx, rx) = self.driver.split();
        self.core.pass(tx, rx, budget, sink)
    }

    #[inline]
    fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
        let state = self.core.peers.get(peer);
        let watermark = state.map_or(0, |state| state.send.watermark());
        MsgId(self.core.unclaimed.below(peer, watermark))
    }

    #[inline]
    fn accepted(&self, peer: PeerIndex) -> MsgId {
        let state = self.core.peers.get(peer);
        MsgId(state.map_or(0, |state| state.send.accepted()))
    }

    /// Also works for live peers, to which messages in flight may still arrive.
    fn reclaim(&mut self, peer: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
        self.core.give_back(peer, each);
    }

    fn abandon(&mut self, peer: PeerIndex) {
        if self.core.peers.get(peer).is_some() {
            self.core.abandon(peer);
        }
    }

    /// Closes the connection with a BYE, whose acknowledgement the index waits for, a second at most. What
    /// was accepted before leaves before it. The peer finds the connection closed; frames of it that come
    /// later are a stranger's.
    ///
    /// This holds for peers with a key of their own ([`Btl::set_key_of`]), and a later [`Message::open`]
    /// needs a fresh one: two connections of one key between the same two lives cannot be distinguished.
    /// Others are those of a job, and given up, with their indices taken.
    fn forget(&mut self, peer: PeerIndex) {
        self.forget_peer(peer);
    }

    fn revive(&mut self, peer: PeerIndex) {
        if self.core.peers.get(peer).is_some() && self.core.phase != Phase::Closed {
            let (tx, _) = self.driver.split();
            self.core.revive(peer);
            self.core.service(tx);
        }
    }

    fn proved_alive(&mut self, peer: PeerIndex) {
        if self.core.peers.get(peer).is_some() {
            self.core.on_proof(peer);
        }
    }

    fn report(&self, peer: PeerIndex) -> RailReport {
        self.core.report(peer)
    }

    fn expose(&mut self, memory: Exposure, access: Access, to: Option<PeerIndex>) -> Result<Remote, Refused> {
        let down = |peer: PeerIndex| {
            let state = self.core.peers.get(peer);
            state.is_none_or(|state| state.is(about::GONE))
        };
        if self.core.phase.is_closing() || to.is_some_and(down) {
            return Err(Refused::PeerDown);
        }
        self.core.exposures.expose(memory, access, to)
    }

    fn withdraw(&mut self, key: RemoteKey) {
        self.core.exposures.withdraw(key);
    }

    fn get(&mut self, peer: PeerIndex, op: OpId, from: &Remote, into: Landing) -> Result<(), Refused> {
        self.core.get(peer, op, from, into)
    }

    fn put(&mut self, peer: PeerIndex, op: OpId, from: Body<'_>, to: &Remote) -> Result<(), Refused> {
        self.core.put(peer, op, from, to)
    }

    fn atomic(&mut self, peer: PeerIndex, op: OpId, at: &Remote, what: AtomicOp) -> Result<(), Refused> {
        self.core.atomic(peer, op, at, what)
    }

    fn fence(&mut self, scope: FenceScope, op: OpId) -> Result<(), Refused> {
        self.core.fence(scope, op)
    }
}

impl Core {
    /// One pass. The short way first: a message that is the first thing on the priority channel is shown at
    /// once, and all bookkeeping waits for the next pass, which is a long one (reference: vic, section 6.5).
    #[inline]
    fn pass<T: Transmit, R: Receive, S: Arrivals>(
        &mut self,
        tx: &mut T,
        rx: &mut R,
        budget: usize,
        sink: &mut S,
    ) -> usize {
        self.clock.count_poll();
        self.row.end();
        let mut shown = self.complete(budget, sink);
        let mut priority = true;
        if !self.polls.short && shown < budget {
            priority = rx.poll(Channel::Priority, 1) > 0;
            if let Some(frame) = rx.frame(Channel::Priority, 0).filter(|_| priority)
                && self.on_frame(frame.bytes, sink)
            {
                self.polls.short = true;
                self.outbox.ring(tx);
                return shown + 1;
            }
        }
        self.polls.short = false;
        let (first, second) = if self.polls.data_first {
            (Channel::Data, Channel::Priority)
        } else {
            (Channel::Priority, Channel::Data)
        };
        for channel in [first, second] {
            if priority || channel == Channel::Data {
                shown += self.receive(rx, channel, budget - shown, sink);
            }
        }
        // If one channel uses the whole budget, the other one is next.
        let full = shown >= budget;
        self.polls.data_first = full && !self.polls.data_first;
        self.polls.crowded = if full {
            self.polls.crowded + u32::from(budget > 0)
        } else {
            0
        };
        if self.timers.timeouts() > 0 && (!full || self.polls.crowded >= CROWDED) {
            // Everything that has arrived was looked at, or there is no end of it.
            self.judge_timeouts();
        }
        if self.has_to_send() {
            // A gap is to be acknowledged at once, so that only a pass that sends may have one.
            if self.bitmaps.has_new_gap() {
                shown += self.look_for_missing(rx, budget - shown, sink);
            }
            self.send_all(tx);
        }
        self.outbox.ring(tx);
        shown + self.complete(budget - shown, sink)
    }

    /// Shows ends of operations.
    #[inline]
    fn complete<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        if !self.operations.has_completions() {
            return 0;
        }
        self.show_completions(budget, sink)
    }

    #[inline(never)]
    fn show_completions<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        let mut shown = 0;
        while shown < budget
            && let Some((op, outcome)) = self.operations.next_completion()
        {
            sink.completed(op, outcome);
            shown += 1;
        }
        shown
    }

    /// Whether something waits for the next pass.
    pub(crate) fn has_work(&self) -> bool {
        !self.ready.is_empty()
            || self.segments.lost() > 0
            || self.acks.due() > 0
            || self.timers.timeouts() > 0
            || self.probing.has_due()
            || self.reconnects.calls() > 0
            || self.operations.has_completions()
            || self.journal.has_events()
    }
}
