//! Reconnects to a peer whose process is alive: how a connection ends without a death, and how a new
//! handshake is made.
//!
//! ```text
//!   A (down, epoch 1)  ── hello 1, peer 0 ──►  B: epoch 1 is new: drops its old lanes (PeerDown), epoch 1
//!                      ◄── hello 1, peer 1 ──  B: sends a new lane for these two epochs
//!   A: maps it         ── hello 1, peer 1 ──►  B: maps it
//!                      ◄──── welcomes ─────►   an end with both lanes mapped and welcomed emits PeerUp
//! ```
//!
//! Each end counts its own epochs of the connection from zero, and a hello names both. A lane is accepted
//! only if both are current, so no lane of an older connection is. A hello with a new epoch of its sender is
//! a reconnect request, and is answered with a hello of our own. The lanes of an attempt are not polled
//! before the peer is up.
//!
//! An end that gives a connection up writes the close reason [`SEVERED`] in front of its lane and of its
//! control block before its sockets close; without a close reason the process has died. Messages left in such
//! a lane stay there: their sender has already reclaimed them. A lane that was severed before it was accepted
//! is not accepted at all.

use doorbell_fabric::error::RailError;
use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::map::clofork::CloforkFd;
use doorbell_fabric::message::{MsgId, PeerIndex};

use crate::connect::{ReceivedHello, is_out_of_files};
use crate::rail::{Peer, ShmRail};
use crate::rx::Rx;
use crate::tx::{Handshake, SEVERED, Tx};

/// Lanes for two epochs that are not in use yet.
#[derive(Default)]
pub(crate) struct Attempt {
    pub(crate) epochs: [u32; 2],
    pub(crate) tx: Option<Box<Tx>>,
    pub(crate) rx: Option<Box<Rx>>,
}

/// What to do with a received hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelloVerdict {
    /// Both epochs are current: accept its lane.
    Take,
    /// The peer has a new epoch and does not know ours: answer with a hello.
    Answer,
    /// It belongs to an older connection.
    Refuse,
}

impl Peer {
    /// Our lane to the peer, of the connection or of the current attempt.
    pub(crate) fn tx_mut(&mut self) -> Option<&mut Tx> {
        let attempted = self
            .attempt
            .as_mut()
            .and_then(|attempt| attempt.tx.as_deref_mut());
        self.tx.as_deref_mut().or(attempted)
    }

    /// The peer's lane to us, of the connection or of the current attempt.
    pub(crate) fn rx_mut(&mut self) -> Option<&mut Rx> {
        let attempted = self
            .attempt
            .as_mut()
            .and_then(|attempt| attempt.rx.as_deref_mut());
        self.rx.as_deref_mut().or(attempted)
    }

    /// Whether a lane of the current epochs is expected and has not arrived.
    fn expects_lane(&mut self) -> bool {
        let attempted = |attempt: &Attempt| attempt.epochs == self.epochs;
        let place = self.down.is_none() || self.attempt.as_deref().is_some_and(attempted);
        place && self.rx_mut().is_none()
    }

    /// Whether the peer can never reconnect.
    pub(crate) fn is_over(&self) -> bool {
        let for_good = |reason| {
            matches!(
                reason,
                DownReason::Closed | DownReason::Died | DownReason::Hostile
            )
        };
        self.over || self.down.is_some_and(for_good)
    }

    /// The watermark of the oldest lane with reclaimable messages, or else of the current one.
    pub(crate) fn watermark(&mut self) -> Result<MsgId, RailError> {
        while let Some(retired) = self.retired.first_mut() {
            self.passed = retired.consumed()?.0;
            if self.passed < retired.last() {
                return Ok(MsgId(self.passed));
            }
            // All of it was consumed after all.
            self.retired.remove(0);
        }
        if let Some(tx) = &mut self.tx {
            self.passed = tx.consumed()?.0;
        }
        Ok(MsgId(self.passed))
    }

    /// Classifies a hello by its epochs.
    pub(crate) fn classify_hello(&self, theirs: u32, peer_epoch: u32) -> HelloVerdict {
        let news = theirs > self.epochs[1];
        let known = peer_epoch == self.epochs[0];
        if theirs < self.epochs[1] || peer_epoch > self.epochs[0] {
            return HelloVerdict::Refuse;
        }
        match (news, known) {
            // If we are up, our own epoch ends with the old connection.
            (true, true) if self.down.is_some() => HelloVerdict::Take,
            (true, _) => HelloVerdict::Answer,
            (false, true) => HelloVerdict::Take,
            (false, false) => HelloVerdict::Refuse,
        }
    }
}

impl ShmRail {
    /// Handles a hello of a known peer.
    pub(crate) fn receive_hello_from(&mut self, index: u32, greeting: ReceivedHello, socket: CloforkFd) {
        let (theirs, peer_epoch) = (greeting.hello.epoch.get(), greeting.hello.peer_epoch.get());
        let peer = &self.peers[index as usize];
        let call = peer.classify_hello(theirs, peer_epoch);
        // A lane that was given up again does not count.
        if call == HelloVerdict::Refuse || peer.is_over() || self.closed || greeting.is_severed() {
            self.refused += 1;
            return;
        }
        self.peers[index as usize].terms[1] = greeting.hello.term.get();
        let peer = &self.peers[index as usize];
        if theirs > peer.epochs[1] {
            if peer.down.is_none() {
                // Half-open: the peer has given up the old connection.
                self.end(index, DownReason::Abandoned);
            }
            self.peers[index as usize].epochs[1] = theirs;
        }
        if self.peers[index as usize].down.is_some() {
            self.attempt(index);
        }
        // If our own lane could not be created just now, theirs is refused, and the peer tries again.
        if call == HelloVerdict::Take && self.peers[index as usize].expects_lane() {
            let taken = match self.with_kept(|_| Rx::control()) {
                Ok(control) => self.take_lane(index, greeting, control, socket),
                Err(error) if is_out_of_files(&error) && !self.waits_too_long(index) => {
                    self.pause();
                    self.deferred.push((greeting, socket));
                    return;
                }
                Err(error) => Err(error),
            };
            match taken {
                Ok(()) => {
                    self.is_met(index);
                    self.has_taken(index);
                    self.begin_one_socket(index);
                }
                Err(RailError::Hostile { .. }) => self.disconnect(index, DownReason::Hostile),
                Err(_) => self.disconnect(index, DownReason::Resources),
            }
        } else if call == HelloVerdict::Take {
            self.refused += 1;
        }
    }

    /// Handles an accepted lane: at the first handshake the peer is up, at a reconnect once our lane was
    /// welcomed too.
    fn has_taken(&mut self, index: u32) {
        if self.peers[index as usize].down.is_some() {
            return self.come_up(index);
        }
        self.hot.push(index);
        self.emit(index, EventKind::PeerUp);
    }

    /// Makes sure that our lane of the current epochs is on its way.
    fn attempt(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        let epochs = peer.epochs;
        if peer
            .attempt
            .as_ref()
            .is_some_and(|attempt| attempt.epochs == epochs)
        {
            return;
        }
        // Lanes of older epochs have served as a reconnect request only.
        peer.sever_attempt();
        let Ok(tx) = Tx::new(self.geometry, peer.base) else {
            // The peer stays down until the next attempt.
            return;
        };
        peer.attempt = Some(Box::new(Attempt {
            epochs,
            tx: Some(Box::new(tx)),
            rx: None,
        }));
        self.expect_handshake();
        // A permanent failure has already ended the attempt.
        let _ = self.dial(index);
    }

    /// Marks the peer as up if both lanes of the attempt are established.
    pub(crate) fn come_up(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        let stands = |attempt: &Attempt| {
            let welcomed = |tx: &Tx| matches!(tx.handshake, Handshake::Up(_));
            attempt.rx.is_some() && attempt.tx.as_deref().is_some_and(welcomed)
        };
        if !peer.attempt.as_deref().is_some_and(stands) {
            return;
        }
        let Some(attempt) = peer.attempt.take() else {
            return;
        };
        (peer.tx, peer.rx, peer.down) = (attempt.tx, attempt.rx, None);
        self.hot.push(index);
        self.emit(index, EventKind::PeerUp);
    }

    /// Ends a failed attempt and uses up our epoch.
    pub(crate) fn end_attempt(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        if peer.attempt.is_some() {
            peer.sever_attempt();
            peer.next_epoch();
        }
    }

    /// Requests a reconnect to a peer that is down.
    pub(crate) fn call(&mut self, index: u32) {
        let Some(peer) = self.peers.get(index as usize) else {
            return;
        };
        // A hello that is pending at the peer is not sent again.
        if peer.down.is_some() && !peer.is_over() && peer.attempt.is_none() && !self.closed {
            self.attempt(index);
        }
    }

    /// Breaks the connections to one peer or to all, as [`Silent`](DownReason::Silent), and emits the events.
    /// For tests and fault injection; the owner may revive the peers at any time.
    pub fn sever(&mut self, peer: Option<PeerIndex>) {
        let all = 0..self.peers.len() as u32;
        match peer {
            Some(peer) => self.end(peer.0, DownReason::Silent),
            None => all.for_each(|index| self.end(index, DownReason::Silent)),
        }
    }

    /// Gives a peer up at its owner's request, so pending events about the peer are dropped.
    pub(crate) fn give_up(&mut self, index: u32) {
        let Some(peer) = self.peers.get(index as usize) else {
            return;
        };
        if peer.down.is_some() {
            return self.end_attempt(index);
        }
        let scope = doorbell_fabric::event::Scope::Peer(PeerIndex(index));
        self.events.retain(|event| event.scope != scope);
        self.retire_lanes(index, DownReason::Abandoned);
    }
}

impl Peer {
    /// Drops the lanes of an attempt and announces that to the peer.
    fn sever_attempt(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            attempt.tx.iter().for_each(|tx| tx.announce_close(SEVERED));
            attempt.rx.iter().for_each(|rx| rx.announce_close(SEVERED));
            self.memory = None;
        }
    }

    /// Advances the epoch of our end.
    pub(crate) fn next_epoch(&mut self) {
        match self.epochs[0].checked_add(1) {
            Some(next) => self.epochs[0] = next,
            None => self.over = true,
        }
    }
}
