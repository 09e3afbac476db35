//! Reconnection: how two ends that lost each other begin a new connection, with nothing of the old one. A
//! *life* is an epoch of the link, counted at each end.
//!
//! ```text
//!   A (down, life 1) ── CALL 1, yours 0, ask ──►  B: 1 is new: its old connection is over (PeerDown); life 1
//!                    ◄── CALL 1, yours 1, ask ──  B: takes frames of the connection 1/1 from here on
//!   A: confirmed     ── CALL 1, yours 1 ───────►  B: confirmed
//!                    ◄─ PING, PONG of two sizes ─► on connection 1/1; with both back: PeerUp
//! ```
//!
//! Each end counts its own lives of the link, from zero; a life that was used ends with the connection. Ids,
//! first numbers and MAC keys of a connection derive from both lives, so a frame of an older one has an id
//! that is not known any more. Calls travel on the ids of the first lives, which never change. With `PeerUp`
//! goes the sum of both lives: to be up, a connection has to have been begun at both ends, with the same two,
//! and neither ever shrinks.
//!
//! * **Lives only grow**, and a call carries its sender's. One below the latest received is old, and dropped.
//!   One equal to it changes nothing: it is answered, if it requests an answer. One above it means that the
//!   sender has given the old connection up, whatever its state here.
//! * **Answers**: a call requests one while its sender does not know whether its own life was received;
//!   answers request none for what their sender knows. So crossing calls end after one answer each. Only
//!   [`Message::revive`](doorbell_fabric::message::Message::revive) repeats a call, for less than 100 ms.
//! * **Down until proved.** A connection is used when the check of both sizes has come back over it, or when
//!   a segment of the peer arrives, whose own check has passed then. A check that fails uses the life up.
//!
//! Calls have the CRC or MAC of all frames. Without MACs, an attacker who can write on the path can forge one
//! and so end a connection, as it could by dropping every frame; one who can only replay cannot: the lives in
//! it are old.

use std::collections::{HashMap, VecDeque};

use doorbell_fabric::datagram::{Channel, Transmit};
use doorbell_fabric::event::{DownReason, EventKind, Life, Scope};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::PeerIndex;
use zerocopy::IntoBytes;

use crate::connectivity::{Diagnosis, Why};
use crate::core::Core;
use crate::counters::Drop;
use crate::key::FrameMac;
use crate::peer::{Connection, about};
use crate::peers::Peers;
use crate::record::Event;
use crate::wire::{Basic, Call, Kind, VERSION};

/// Calls of one revival: 0, 5, 15, 35 and 75 ms after it.
const CALLS: u8 = 5;
/// Time between the first call and the second (ns); it doubles after each.
const FIRST: u64 = 5_000_000;

/// The lives of the link to a peer that was down.
#[derive(Debug)]
struct Lives {
    /// Ours, and the latest of the peer that was received.
    ours: u32,
    theirs: u32,
    /// Ids of the first lives. That of the peer's frames is known from its first call.
    out: u64,
    from: u64,
    /// Frame MACs of the first lives, when there are others now.
    macs: Option<Box<[FrameMac; 2]>>,
    /// The lives of the last connection after the first, and the id of the peer's frames.
    begun: Option<(u32, u32, u64)>,
    /// The peer has received our life.
    confirmed: bool,
    /// Nothing comes after this: the peer's process has ended, or the numbers have.
    over: bool,
    /// Calls left of this revival, the time of the next (ns) and the time to the one after it.
    left: u8,
    at: u64,
    wait: u64,
    /// Whether the peer is in the list of calls to be sent, and whether the call requests an answer.
    queued: Option<bool>,
}

impl Lives {
    fn new(out: u64) -> Self {
        Self {
            ours: 0,
            theirs: 0,
            out,
            from: 0,
            macs: None,
            begun: None,
            confirmed: false,
            over: false,
            left: 0,
            at: 0,
            wait: 0,
            queued: None,
        }
    }

    /// Our life is used up.
    fn end(&mut self) {
        (self.confirmed, self.left) = (false, 0);
        match self.ours.checked_add(1) {
            Some(next) => self.ours = next,
            None => self.over = true,
        }
    }

    fn has_begun(&self) -> bool {
        self.begun
            .is_some_and(|(ours, theirs, _)| (ours, theirs) == (self.ours, self.theirs))
    }
}

/// The lives of the links to peers that were down, and the calls that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Reconnects {
    lives: HashMap<PeerIndex, Lives>,
    calls: VecDeque<PeerIndex>,
}

impl Reconnects {
    /// Returns how many calls wait to be sent.
    #[inline]
    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Drops the lives of a peer's link. A call to it that waits is not sent.
    pub(crate) fn forget(&mut self, peer: PeerIndex) {
        self.lives.remove(&peer);
        self.calls.retain(|called| *called != peer);
    }

    /// The lives of a peer's link, if it was down.
    fn get(&self, peer: PeerIndex) -> Option<&Lives> {
        self.lives.get(&peer)
    }

    /// The lives of a peer's link, to change, if it was down.
    fn get_mut(&mut self, peer: PeerIndex) -> Option<&mut Lives> {
        self.lives.get_mut(&peer)
    }

    /// Queues a call, which goes out in this pass; one call serves all reasons for it.
    fn call(&mut self, peer: PeerIndex, ask: bool) {
        let Some(lives) = self.lives.get_mut(&peer) else {
            return;
        };
        if lives.queued.is_none() {
            self.calls.push_back(peer);
        }
        lives.queued = Some(ask || lives.queued == Some(true));
    }

    /// The next peer to be called, whether the call requests an answer, and the lives that it carries.
    fn next_call(&mut self) -> Option<(PeerIndex, bool, &Lives)> {
        while let Some(peer) = self.calls.pop_front() {
            let queued = self.get_mut(peer).and_then(|lives| lives.queued.take());
            if let Some(ask) = queued {
                return self.get(peer).map(|lives| (peer, ask, lives));
            }
        }
        None
    }
}

impl Core {
    /// A connection has ended; the next one will be of another life.
    pub(crate) fn end_life(&mut self, peer: PeerIndex) {
        let out = self.peers[peer].connection();
        let epochs = self.reconnects.lives.entry(peer);
        epochs.or_insert_with(|| Lives::new(out)).end();
    }

    /// The number of the connection that was begun last, the same at both ends: of first contact, or of both
    /// their lives.
    pub(crate) fn life(&self, peer: PeerIndex) -> Life {
        let begun = self.reconnects.get(peer).and_then(|lives| lives.begun);
        begun.map_or(Life::FIRST, |(ours, theirs, _)| Life::of(ours, theirs))
    }

    /// No life follows: the peer's process was replaced by another one.
    pub(crate) fn end_for_good(&mut self, peer: PeerIndex) {
        if let Some(lives) = self.reconnects.get_mut(peer) {
            (lives.over, lives.left) = (true, 0);
        }
    }

    /// Calls a peer that is down.
    #[cold]
    pub(crate) fn revive(&mut self, index: PeerIndex) {
        let peer = &self.peers[index];
        let down = peer.is(about::DOWN) && !peer.is(about::CLOSED | about::LEAVING);
        let epochs = self.reconnects.get_mut(index);
        let Some(epochs) = epochs.filter(|epochs| down && !epochs.over) else {
            return;
        };
        if self.phase.is_closing() {
            return;
        }
        let at = self.clock.after(FIRST);
        (epochs.left, epochs.at, epochs.wait) = (CALLS - 1, at, 2 * FIRST);
        self.reconnects.call(index, true);
        self.arm(index, at);
    }

    /// Gives up what goes on to revive a peer.
    pub(crate) fn stop_reviving(&mut self, peer: PeerIndex) {
        self.end_attempt(peer);
        if let Some(lives) = self.reconnects.get_mut(peer) {
            lives.left = 0;
        }
    }

    /// Does what is due for a peer that is down.
    #[cold]
    pub(crate) fn look_at_down(&mut self, peer: PeerIndex) {
        let mut next = u64::MAX;
        let mut due = false;
        let epochs = self.reconnects.get_mut(peer);
        if let Some(epochs) = epochs.filter(|epochs| epochs.left > 0) {
            due = epochs.at <= self.clock.now();
            if due {
                epochs.left -= 1;
                epochs.at = self.clock.after(epochs.wait);
                epochs.wait *= 2;
            }
            if epochs.left > 0 {
                next = epochs.at;
            }
        }
        if due {
            self.reconnects.call(peer, true);
        }
        if self.peers[peer].is(about::PROBING) {
            next = next.min(self.next_probe(peer));
        }
        if next < u64::MAX {
            self.arm(peer, next);
        }
    }

    /// Sends the calls that wait.
    #[cold]
    pub(crate) fn send_calls<T: Transmit>(&mut self, tx: &mut T) {
        while self.reconnects.calls() > 0 && self.outbox.has_credit(tx, Channel::Priority) {
            let Some((peer, ask, lives)) = self.reconnects.next_call() else {
                return;
            };
            let (ours, theirs) = (lives.ours, lives.theirs);
            let call = Call {
                ours: ours.into(),
                yours: theirs.into(),
                ask: ask.into(),
                zero: [0; 3],
            };
            let header = Basic {
                connection: lives.out.into(),
                sequence: 0.into(),
                ack: 0.into(),
                length: (size_of::<Call>() as u16).into(),
                kind: Kind::Call as u8,
                flags: VERSION << 4,
                check: 0.into(),
            };
            let macs = call_macs(&self.reconnects, &self.peers, peer);
            self.framing
                .payload(size_of::<Call>())
                .copy_from_slice(call.as_bytes());
            let frame = self.framing.finish(&header, macs);
            let to = self.peers[peer].driver();
            self.outbox.post(tx, Channel::Priority, to, frame);
            self.counters.calls_sent += 1;
            self.record(peer, Event::Called { ours, theirs });
        }
    }

    /// The MACs of calls: those of the first lives, ours and theirs.
    pub(crate) fn call_macs(&self, peer: PeerIndex) -> Option<&[FrameMac; 2]> {
        call_macs(&self.reconnects, &self.peers, peer)
    }

    /// Handles a call of the peer.
    ///
    /// # Errors
    /// [`Drop`]: it is of a former life, it is malformed, or the peer cannot come back.
    #[cold]
    pub(crate) fn on_call(
        &mut self,
        peer: PeerIndex,
        connection: u64,
        payload: &SharedBytes<'_>,
    ) -> Result<(), Drop> {
        let call: Call = zerocopy::transmute!(payload.read::<12>(0).ok_or(Drop::Malformed)?);
        let (life, yours) = (call.ours.get(), call.yours.get());
        let epochs = self.reconnects.get(peer);
        let (ours, theirs) = epochs.map_or((0, 0), |epochs| (epochs.ours, epochs.theirs));
        let on_first = epochs.is_none_or(|epochs| epochs.begun.is_none() || epochs.from == connection);
        if life == 0 || yours > ours || call.ask > 1 || !on_first {
            return Err(Drop::Malformed);
        }
        let over = epochs.is_some_and(|epochs| epochs.over);
        if self.phase.is_closing() || self.peers[peer].is(about::CLOSED) || over {
            return Err(Drop::Down);
        }
        if life < theirs {
            return Err(Drop::Unknown);
        }
        self.counters.calls_received += 1;
        if life > theirs {
            self.record(peer, Event::CalledBy { life, yours });
            // Half open: the connection is over at the other end, whatever we think of it.
            self.fail_peer(peer, DownReason::Abandoned);
        } else if !self.peers[peer].is(about::DOWN) {
            // It came late, or our answer was lost.
            if call.ask == 1 {
                self.reconnects.call(peer, false);
            }
            return Ok(());
        }
        self.heard_while_down(peer);
        let Some(epochs) = self.reconnects.get_mut(peer) else {
            return Err(Drop::Down);
        };
        (epochs.theirs, epochs.from) = (life, connection);
        let (confirmed, begun) = (yours == epochs.ours, epochs.has_begun());
        if !begun {
            self.begin_life(peer);
        }
        if confirmed {
            self.confirm(peer);
        }
        if call.ask == 1 || !confirmed {
            self.reconnects.call(peer, !confirmed);
        }
        Ok(())
    }

    /// A new connection, of both present lives: frames of it are taken from here on, none of the one before.
    fn begin_life(&mut self, index: PeerIndex) {
        let epochs = self.reconnects.get_mut(index);
        let key = self.peer_keys.of(index).or(self.key.as_ref());
        let Some((epochs, key)) = epochs.zip(key) else {
            return;
        };
        let names = [epochs.out, epochs.from];
        let back = [epochs.from, epochs.out];
        let (ours, theirs) = (epochs.ours, epochs.theirs);
        let from = key.life(back, [theirs, ours]);
        let id = from.connection;
        let connection = Connection {
            out: key.life(names, [ours, theirs]),
            from,
            macs: self.config.frame_mac.then(|| {
                Box::new([
                    key.life_mac(names, [ours, theirs]),
                    key.life_mac(back, [theirs, ours]),
                ])
            }),
            initial_window: self.config.initial_window,
            first: self.config.first_sequence,
        };
        epochs.confirmed = false;
        let before = epochs.begun.replace((ours, theirs, id));
        let before = before.map(|(_, _, before)| before);
        self.peers.reconnect(index, epochs.from, before, id);
        self.probing.forget(index);
        let peer = &mut self.peers[index];
        peer.recv.clear(&mut self.bitmaps);
        let macs = peer.reconnect(connection, self.clock.attended());
        if epochs.macs.is_none() {
            epochs.macs = macs;
        }
        self.record(index, Event::LifeBegun { ours, theirs });
    }

    /// The peer has received our life: the path is checked.
    fn confirm(&mut self, peer: PeerIndex) {
        let epochs = self.reconnects.get_mut(peer);
        if let Some(epochs) = epochs.filter(|epochs| !epochs.confirmed) {
            epochs.confirmed = true;
            self.start_check(peer, Why::Back);
        }
    }

    /// A frame of the new connection, before it is up. Whether the connection is up now.
    ///
    /// # Errors
    /// [`Drop::Down`], for frames that prove nothing.
    #[cold]
    pub(crate) fn on_frame_while_coming(
        &mut self,
        peer: PeerIndex,
        kind: Kind,
        payload: &SharedBytes<'_>,
    ) -> Result<bool, Drop> {
        self.peers[peer].liveness.hear(self.clock.attended());
        self.heard_while_down(peer);
        self.confirm(peer);
        if kind.is_segment() {
            // The peer's own check has passed, so both sizes pass in both directions.
            self.conclude(peer, Diagnosis::Works);
            self.come_up(peer);
            return Ok(true);
        }
        if matches!(kind, Kind::Ping | Kind::Pong) {
            self.on_probe(peer, kind, payload);
            return Ok(false);
        }
        Err(Drop::Down)
    }

    /// The new connection carries messages.
    #[cold]
    pub(crate) fn come_up(&mut self, index: PeerIndex) {
        let attended = self.clock.attended();
        let peer = &mut self.peers[index];
        peer.clear(about::DOWN | about::COMING | about::PROBING);
        peer.set(about::UP | about::GREETED);
        peer.liveness.hear(attended);
        peer.liveness.wait(attended);
        if let Some(lives) = self.reconnects.get_mut(index) {
            lives.left = 0;
        }
        self.counters.revivals += 1;
        self.tell(Scope::Peer(index), EventKind::PeerUp);
        self.replace(index);
        self.arm_keep_alive(index);
    }

    /// The new connection did not come up.
    #[cold]
    pub(crate) fn end_attempt(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[index];
        if !peer.is(about::COMING) {
            return;
        }
        let epochs = self.reconnects.get_mut(index);
        if let Some(epochs) = epochs.filter(|epochs| epochs.confirmed) {
            epochs.end();
            peer.clear(about::COMING | about::PROBING | about::UP);
        }
    }
}

/// The MACs of calls: those of the first lives, ours and theirs.
fn call_macs<'a>(reconnects: &'a Reconnects, peers: &'a Peers, peer: PeerIndex) -> Option<&'a [FrameMac; 2]> {
    let kept = reconnects.get(peer).and_then(|lives| lives.macs.as_deref());
    kept.or(peers[peer].macs())
}
