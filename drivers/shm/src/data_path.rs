//! The `Message` contract: the hot loop, two-sided operations, then one-sided ones.

use std::thread;
use std::time::Instant;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::memory::{RegionSlice, Room, SharedBytes, View};
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Between, Body, Caller, Exposure, FenceScope, Inbound, Incarnation, Landing,
    Look, Message, MsgId, OpId, PeerIndex, RailReport, Refused, Remote, RemoteKey, Watch,
};
use doorbell_fabric::rail::Rail;
use doorbell_ring::lane;

use crate::lease::holder;
use crate::pending_peers;
use crate::pull::{CoopContext, PullContext};
use crate::rail::{Peer, ShmRail};
use crate::rx::Rx;
use crate::tx::{Short, Tx, head_words};
use crate::wakeup::{COLD, HOT};
use crate::wire::Id;

/// The number of lanes above which polls do not visit every idle one.
const HOT_MAX: usize = 8;
/// Empty polls before consumed indices are published to senders that did not need them yet.
const PUBLISH_AFTER: u32 = 64;
/// Empty polls between two checks for lanes that can become cold.
const COOL_EVERY: u32 = 1024;
/// Such checks without a message before a lane becomes cold.
const COOL_AFTER: u32 = 2;
/// Bytes of a head that `look` compares.
const HEAD_WORDS: usize = 16;
/// Longest head, in bytes.
const HEAD: usize = 128;
/// Most parts of a gathered body.
const PARTS: usize = 64;

impl Message for ShmRail {
    fn open(&mut self, address: &RailAddress, incarnation: Incarnation) -> Result<PeerIndex, RailError> {
        let rail = self.name().to_string();
        let bad = |reason| RailError::BadAddress {
            rail: rail.clone(),
            address: address.to_string(),
            reason,
        };
        let bytes = address
            .native_of("shm")
            .ok_or_else(|| bad("it belongs to another kind of rail"))?;
        let id: Id = bytes.try_into().map_err(|_| bad("it has the wrong length"))?;
        if let Some(known) = self.known(id, incarnation) {
            return Ok(PeerIndex(known));
        }
        let Some(index) = self.add_peer(id, incarnation) else {
            return Err(bad("there are as many peers as the setting shm.peers allows"));
        };
        self.hot.reserve(self.peers.len());
        self.cold.reserve(self.peers.len());
        self.expect_handshake();
        self.connect_pending(index);
        Ok(PeerIndex(index))
    }

    /// Returns senders with an unclaimed lane, until they exit or abandon it.
    #[inline]
    fn stranger(&mut self) -> Option<Caller> {
        self.pending_peers.next()
    }

    fn caller(&self, address: &RailAddress, incarnation: Incarnation) -> Option<Caller> {
        let id: Id = address.native_of("shm")?.try_into().ok()?;
        Some(pending_peers::caller_id(id, incarnation))
    }

    #[inline(always)]
    fn send(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        if let Some(known) = self.peers.get_mut(peer.index())
            && let Some(tx) = &mut known.tx
            && let Some(message) = Short::of(head, &body)
            && let Some(sent) = tx.send_short(message)
        {
            return Ok(sent);
        }
        // In registers: a copy of the whole body would be read wider than it was written, and so wait for the
        // lane's line.
        match body {
            Body::Bytes(bytes) => self.send_bytes(peer, head, SharedBytes::of(bytes)),
            Body::Loan(loan) => self.send_bytes(peer, head, loan.as_shared()),
            Body::Shared(bytes) => self.send_bytes(peer, head, bytes),
            // A copy, so that the body itself need not be in memory on the fast path.
            other => self.send_other(peer, head, &{ other }),
        }
    }

    #[inline]
    fn flush(&mut self) {}

    #[inline]
    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        let mut done = 0;
        if !self.pulls.is_idle() {
            done += self.pull(budget, sink);
        }
        let lanes = self.hot.len();
        if self.first >= lanes {
            self.first = 0;
        }
        for i in 0..lanes {
            if done >= budget {
                break;
            }
            let at = if self.first + i < lanes {
                self.first + i
            } else {
                self.first + i - lanes
            };
            let Some(&index) = self.hot.get(at) else { break };
            let Some(peer) = self.peers.get_mut(index as usize) else {
                continue;
            };
            let Some(rx) = peer.rx.as_deref_mut() else {
                continue;
            };
            match drain(rx, peer.tx.as_deref_mut(), PeerIndex(index), budget - done, sink) {
                Ok(taken) => done += taken,
                Err(()) => {
                    self.disconnect(index, DownReason::Hostile);
                    break;
                }
            }
        }
        // Last, and beyond the budget: received messages wait no longer than one share takes.
        if !self.leases.borrowers().is_empty() && self.copies_together {
            done += self.copy_share();
        }
        if done == 0 {
            self.idle_poll();
        } else {
            self.idle = 0;
            // The next poll starts with another lane, so that a busy one cannot use up the budget for ever.
            self.first += 1;
        }
        done
    }

    #[inline(always)]
    fn look(&mut self, peer: PeerIndex, head: [u64; 2], room: Room<'_>, watch: Watch) -> Look {
        let Some(known) = self.peers.get_mut(peer.index()) else {
            return Look::Other;
        };
        let Some(rx) = &mut known.rx else {
            return Look::Other;
        };
        let most = room.len().saturating_add(HEAD_WORDS);
        let mut looks = watch.looks;
        if let Some(tx) = &mut known.tx
            && tx.is_cold()
        {
            looks = warm_while_nothing_came(tx, rx, looks);
        }
        let pauses = match watch.between {
            Between::Pauses(pauses) => pauses,
            Between::Yield => {
                yield_while_nothing_came(rx, looks);
                looks = 1;
                0
            }
        };
        let len = match rx.lane.expect(head, most, looks, pauses) {
            lane::Look::Short { len, last } => {
                if watch.answer
                    && let Some(tx) = &known.tx
                {
                    tx.expect_to_send(0);
                }
                let len = len - HEAD_WORDS;
                room.write_short(last, len);
                len
            }
            lane::Look::Long { len, last, rest } => {
                if watch.answer
                    && let Some(tx) = &mut known.tx
                {
                    tx.expect_to_send(len - lane::FIRST_BYTES);
                    tx.space_runs(false);
                }
                room.write_array(last.to_ne_bytes());
                let rest = SharedBytes::from(rest);
                let copy = || room.write_shared(lane::FIRST_BYTES - HEAD_WORDS, rest);
                copied(known.tx.as_deref_mut(), rest.len(), copy);
                len - HEAD_WORDS
            }
            lane::Look::Nothing => return Look::Nothing,
            lane::Look::Other => return Look::Other,
        };
        rx.lane.release();
        Look::Taken(len)
    }

    /// Spins only with one hot lane: among several, each look would cost what a poll does.
    #[inline(always)]
    fn linger(&mut self, looks: u32) -> bool {
        let &[index] = &self.hot[..] else {
            return true;
        };
        let busy = !self.pulls.is_idle() || self.copies_together && !self.leases.borrowers().is_empty();
        let Some(Peer { rx: Some(rx), tx, .. }) = self.peers.get_mut(index as usize).filter(|_| !busy) else {
            return true;
        };
        let looks = match tx {
            Some(tx) if tx.is_cold() => warm_while_nothing_came(tx, rx, looks),
            _ => looks,
        };
        let seen = rx.lane.linger(looks);
        if !seen {
            // Counts as that many empty polls: the next one does what is due after them.
            self.idle |= PUBLISH_AFTER - 1;
        }
        seen
    }

    fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
        let Some(known) = self.peers.get_mut(peer.index()) else {
            return MsgId(0);
        };
        match known.watermark() {
            Ok(watermark) => watermark,
            Err(_) => {
                let passed = MsgId(known.passed);
                self.disconnect(peer.0, DownReason::Hostile);
                passed
            }
        }
    }

    fn reclaim(&mut self, peer: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
        let Some(known) = self.peers.get_mut(peer.index()) else {
            return;
        };
        // A hostile watermark was reported before.
        let _ = known.watermark();
        for mut tx in std::mem::take(&mut known.retired) {
            // The other end may still be consuming: what the scan for unconsumed messages found consumed
            // counts.
            let taken = tx.reclaim(each).unwrap_or(0);
            known.passed = known.passed.max(taken);
        }
    }

    fn abandon(&mut self, peer: PeerIndex) {
        self.give_up(peer.0);
    }

    fn forget(&mut self, peer: PeerIndex) {
        self.forget_peer(peer);
    }

    fn revive(&mut self, peer: PeerIndex) {
        self.call(peer.0);
    }

    fn report(&self, peer: PeerIndex) -> RailReport {
        let tx = self.peers.get(peer.index()).and_then(|known| known.tx.as_ref());
        RailReport {
            at_once: tx
                .filter(|_| self.capabilities.features.get)
                .and_then(|tx| tx.pace.measured()),
            ..RailReport::default()
        }
    }

    /// As the copies into the lane have gone lately; a peer that cannot read us is sent what is eager.
    fn prefers_get(&mut self, peer: PeerIndex, length: usize) -> bool {
        let eager = self.capabilities.limits.eager;
        let Some(known) = self.peers.get_mut(peer.index()) else {
            return length > eager;
        };
        match &mut known.tx {
            Some(tx) if known.can_read_us == Some(true) && self.capabilities.features.get => {
                length > self.geometry.longest() || tx.pace.prefers_read(length)
            }
            _ => length > eager,
        }
    }

    fn expose(&mut self, memory: Exposure, access: Access, to: Option<PeerIndex>) -> Result<Remote, Refused> {
        let (place, keep) = match memory {
            Exposure::Region(slice) => ((slice.address(), slice.len()), Some(slice)),
            Exposure::Read(loan) => ((loan.address(), loan.len()), None),
            Exposure::Write(_) => return Err(Refused::Unsupported),
        };
        if access != Access::Read || !self.capabilities.features.get {
            return Err(Refused::Unsupported);
        }
        let to = match to {
            None => None,
            Some(peer) => {
                let known = self.peers.get(peer.index()).ok_or(Refused::PeerDown)?;
                if known.down.is_some() {
                    return Err(Refused::PeerDown);
                }
                if known.can_read_us == Some(false) {
                    return Err(Refused::Unsupported);
                }
                Some((peer, holder(&known.id)))
            }
        };
        let key = self.leases.grant(to, place, keep).ok_or(Refused::Full)?;
        Ok(Remote {
            key: key.0.into(),
            address: (place.0 as u64).into(),
            length: (place.1 as u64).into(),
        })
    }

    fn withdraw(&mut self, key: RemoteKey) {
        if let Some((peer, length, time)) = self.leases.lent_for(key)
            && let Some(tx) = self
                .peers
                .get_mut(peer.index())
                .and_then(|known| known.tx.as_mut())
        {
            tx.pace.was_read(length, time);
        }
        self.leases.revoke(key);
    }

    /// Starts a read. Without a connection to the peer a handshake is started, and the read waits for it.
    fn get(&mut self, peer: PeerIndex, op: OpId, from: &Remote, into: Landing) -> Result<(), Refused> {
        let known = self.peers.get(peer.index()).ok_or(Refused::PeerDown)?;
        if known.down.is_some() {
            return Err(Refused::PeerDown);
        }
        if !self.capabilities.features.get {
            return Err(Refused::Unsupported);
        }
        if from.length.get() != into.len() as u64 || from.length.get() > self.capabilities.limits.one_sided {
            return Err(Refused::BadMemory);
        }
        if !self.pulls.has_room() {
            return Err(Refused::Full);
        }
        if known.memory.is_none() && known.tx.is_none() {
            self.make_lane(peer.0)?;
        }
        self.pulls.start(op, peer, *from, into);
        Ok(())
    }

    fn view(&mut self, peer: PeerIndex, from: &Remote) -> Option<View> {
        let known = self.peers.get_mut(peer.index())?;
        match known.down {
            None => known.memory.as_mut()?.view(from, self.holder),
            Some(_) => None,
        }
    }

    fn expose_now(&mut self, memory: &RegionSlice, to: PeerIndex) -> Option<Remote> {
        self.give_room(memory, to)
    }

    #[inline]
    fn put_now(&mut self, peer: PeerIndex, bytes: SharedBytes<'_>, to: &Remote) -> bool {
        let Some(known) = self.peers.get_mut(peer.index()) else {
            return false;
        };
        match &mut known.memory {
            Some(memory) if known.down.is_none() && bytes.len() as u64 == to.length.get() => {
                memory.place(bytes, to, self.holder, &self.leases)
            }
            _ => false,
        }
    }

    #[inline]
    fn get_now(&mut self, peer: PeerIndex, from: &Remote, into: Room<'_>) -> bool {
        let Some(known) = self.peers.get_mut(peer.index()) else {
            return false;
        };
        match &mut known.memory {
            Some(memory) if known.down.is_none() && into.len() as u64 == from.length.get() => {
                memory.fetch(from, self.holder, into)
            }
            _ => false,
        }
    }

    fn end_now(&mut self, key: RemoteKey) -> bool {
        self.take_room_back(key)
    }

    fn put(&mut self, _: PeerIndex, _: OpId, _: Body<'_>, _: &Remote) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }

    fn atomic(&mut self, _: PeerIndex, _: OpId, _: &Remote, _: AtomicOp) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }

    /// Reads end inside our own calls, so a fence is complete when those before it have ended.
    fn fence(&mut self, scope: FenceScope, op: OpId) -> Result<(), Refused> {
        let peer = match scope {
            FenceScope::Peer(peer) => Some(peer),
            FenceScope::Rail => None,
        };
        if !self.pulls.has_room() {
            return Err(Refused::Full);
        }
        self.pulls.fence(op, peer);
        Ok(())
    }
}

/// Copies what a message has beyond its cell; how long that takes is measured at times.
#[inline(always)]
fn copied<R>(tx: Option<&mut Tx>, length: usize, copy: impl FnOnce() -> R) -> R {
    if let Some(tx) = tx
        && tx.pace.is_taking_due(length)
    {
        let started = Instant::now();
        let done = copy();
        tx.pace.was_taken(length, started.elapsed());
        return done;
    }
    copy()
}

/// Prefetches the place of the next message to send, as long as none has come; returns how many of the looks
/// are left, at least one.
#[inline(never)]
fn warm_while_nothing_came(tx: &mut Tx, rx: &Rx, mut looks: u32) -> u32 {
    while looks > 1 && tx.is_cold() && !rx.lane.is_ready() {
        tx.warm();
        looks -= 1;
    }
    looks
}

/// Gives the core away after each look of `looks`, but the last, that finds nothing.
#[inline(never)]
fn yield_while_nothing_came(rx: &Rx, looks: u32) {
    for _ in 1..looks {
        if rx.lane.is_ready() {
            break;
        }
        thread::yield_now();
    }
}

/// Delivers up to `budget` messages of a lane. An error means that the lane's owner broke the protocol.
#[inline]
fn drain<S: Arrivals>(
    rx: &mut Rx,
    mut tx: Option<&mut Tx>,
    peer: PeerIndex,
    budget: usize,
    sink: &mut S,
) -> Result<usize, ()> {
    let mut taken = 0;
    while taken < budget {
        let arrival = match rx.lane.peek() {
            Ok(Some(arrival)) => arrival,
            Ok(None) => break,
            Err(_) => return Err(()),
        };
        // A peer that has sent something since it last consumed will probably be answered. A stream of
        // messages gets no more prefetched lines: the peer has a use for them.
        if taken == 0
            && let Some(tx) = tx.as_deref_mut()
            && tx.committed() != rx.answered
        {
            rx.answered = tx.committed();
            // The cells of a run would come twice: a peer that waits for the answer looks at them until it is
            // written, and that takes as long as its message is handled.
            if !arrival.is_run() {
                tx.expect_to_send(arrival.rest().len());
            }
            tx.space_runs(true);
        }
        let (first, rest) = (
            SharedBytes::of(arrival.first()),
            SharedBytes::from(arrival.rest()),
        );
        copied(tx.as_deref_mut(), rest.len(), || {
            sink.message(peer, Inbound::split(first, rest));
        });
        rx.lane.release();
        taken += 1;
    }
    if taken != 0 {
        rx.idle = 0;
    }
    Ok(taken)
}

impl ShmRail {
    /// Sends a message of contiguous bytes that does not fit one cell, is the first one, or meets a lane that
    /// looks full.
    #[inline(never)]
    fn send_bytes(&mut self, peer: PeerIndex, head: &[u8], body: SharedBytes<'_>) -> Result<MsgId, Refused> {
        if let Some(known) = self.peers.get_mut(peer.index())
            && let Some(tx) = &mut known.tx
            && head.len() + body.len() > lane::FIRST_BYTES
        {
            let sent = if let Some(head) = head_words::<2>(head) {
                tx.send_bytes(head, body)
            } else if let Some(head) = head_words::<3>(head) {
                tx.send_bytes(head, body)
            } else {
                head_words::<4>(head).and_then(|head| tx.send_run(head, body))
            };
            if let Some(sent) = sent {
                return Ok(sent);
            }
        }
        self.send_other(peer, head, &Body::Shared(body))
    }

    /// Sends a message that does not fit one cell, has an uncommon head or body, is the first one, or meets a
    /// lane that looks full.
    #[inline(never)]
    fn send_other(&mut self, peer: PeerIndex, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        if head.len() > HEAD || matches!(body, Body::Parts(parts) if parts.len() > PARTS) {
            return Err(Refused::TooLong);
        }
        let known = self.peers.get(peer.index()).ok_or(Refused::PeerDown)?;
        if known.tx.is_none() {
            self.make_lane(peer.0)?;
        }
        let Some(tx) = self
            .peers
            .get_mut(peer.index())
            .and_then(|known| known.tx.as_mut())
        else {
            return Err(Refused::PeerDown);
        };
        let length = head.len() + body.len();
        let started = tx.pace.is_due(length).then(Instant::now);
        let sent = tx.send(head, body);
        if let (Some(started), Ok(_)) = (started, &sent) {
            tx.pace.took(length, started.elapsed());
        }
        if sent == Err(Refused::PeerDown) {
            let fault = tx.fault();
            self.disconnect(peer.0, fault);
        }
        sent
    }

    /// Reads one piece of the oldest pull, and reports those that have ended.
    fn pull<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        let mut done = 0;
        if let Some(peer) = self.pulls.next_peer() {
            let known = self.peers.get_mut(peer.index());
            let theirs = known.as_ref().map_or(0, |peer| holder(&peer.id));
            let (memory, socket) = known.map_or((None, None), Peer::memory_and_socket);
            let context = PullContext {
                memory,
                socket,
                coop: CoopContext {
                    names: (self.holder, theirs),
                    state: self.leases.coop_state(),
                    help: self.copies_together,
                },
            };
            // A piece counts as work, whether it was the last one or not.
            done += usize::from(self.pulls.step(context));
        }
        while done < budget.max(1) {
            let Some((op, outcome)) = self.pulls.ended() else {
                break;
            };
            sink.completed(op, outcome);
            done += 1;
        }
        done
    }

    /// Does background work after an empty poll.
    #[inline]
    fn idle_poll(&mut self) {
        self.idle = self.idle.wrapping_add(1);
        if let &[index] = &self.hot[..]
            && let Some(tx) = self
                .peers
                .get_mut(index as usize)
                .and_then(|peer| peer.tx.as_mut())
            && tx.is_cold()
        {
            tx.warm();
        }
        if !self.cold.is_empty() {
            self.poll_cold_lanes();
        }
        if self.idle.is_multiple_of(PUBLISH_AFTER) {
            self.publish_consumed();
        }
    }

    /// Makes lanes hot whose ready bit is set, and polls one cold lane without a bit: see `wakeup`.
    fn poll_cold_lanes(&mut self) {
        if self.ready.any() {
            let Self {
                ready,
                cold,
                hot,
                peers,
                ..
            } = self;
            ready.take(|bit| make_hot(bit, cold, hot, peers));
        }
        if self.cold.is_empty() {
            return;
        }
        self.sweep = (self.sweep + 1) % self.cold.len();
        let index = self.cold[self.sweep];
        if self.peers[index as usize]
            .rx
            .as_ref()
            .is_some_and(|rx| rx.lane.is_ready())
        {
            make_hot(index, &mut self.cold, &mut self.hot, &mut self.peers);
        }
    }

    /// Publishes consumed indices, and makes lanes cold that were silent for long if there are many.
    #[cold]
    fn publish_consumed(&mut self) {
        for &index in &self.hot {
            if let Some(rx) = &mut self.peers[index as usize].rx {
                rx.lane.publish();
            }
        }
        if self.hot.len() > HOT_MAX && self.idle.is_multiple_of(COOL_EVERY) {
            let Self { hot, cold, peers, .. } = self;
            hot.retain(|&index| {
                let Some(rx) = &mut peers[index as usize].rx else {
                    return true;
                };
                rx.idle += 1;
                if rx.idle < COOL_AFTER || rx.lane.is_ready() {
                    return true;
                }
                rx.set_attention(COLD);
                cold.push(index);
                false
            });
        }
    }
}

/// Moves a lane from the cold list to the hot one. A bit without a cold lane is ignored.
fn make_hot(index: u32, cold: &mut Vec<u32>, hot: &mut Vec<u32>, peers: &mut [Peer]) {
    let Some(at) = cold.iter().position(|&cold| cold == index) else {
        return;
    };
    cold.swap_remove(at);
    hot.push(index);
    if let Some(rx) = &mut peers[index as usize].rx {
        rx.idle = 0;
        rx.set_attention(HOT);
    }
}
