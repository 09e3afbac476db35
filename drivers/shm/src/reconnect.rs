//! Beginning anew with a peer whose process lives: how a way ends without a death, and how first contact is made again.
//!
//! ```text
//!   A (down, life 1) ── hello 1, yours 0 ──►  B: 1 is news: its old lanes are over (PeerDown), its life is 1
//!                    ◄── hello 1, yours 1 ──  B: its new lane, for these two lives
//!   A: takes it      ── hello 1, yours 1 ──►  B: takes it
//!                    ◄──── welcome both ways ─►  whose lane was welcomed, and who has taken the other, tells PeerUp
//! ```
//!
//! Each end counts its own lives of the way, from zero, and a hello names both. A lane is taken only when both are those
//! of the moment, so none of an older connection ever is; a hello with a life of its sender that is news is a call, which
//! is answered by our own hello. The lanes of an attempt are not polled before the peer is up.
//!
//! Who gives a way up says so in the word of the farewell ([`SEVERED`]), in front of its lane and of its control block,
//! before its sockets close; where nothing is said the process has died. What was not taken out of such a lane is left in
//! it: its sender has it back already. A lane that was passed, and severed before anybody took it, is not taken at all.

use std::os::fd::OwnedFd;

use doorbell_fabric::error::RailError;
use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::message::{MsgId, PeerIndex};

use crate::connect::ReceivedHello;
use crate::rail::{Peer, ShmRail};
use crate::rx::Rx;
use crate::tx::{Handshake, SEVERED, Tx};

/// Lanes of two lives that nobody uses yet.
#[derive(Default)]
pub(crate) struct Attempt {
    pub(crate) epochs: [u32; 2],
    pub(crate) tx: Option<Box<Tx>>,
    pub(crate) rx: Option<Box<Rx>>,
}

/// What is to be done with a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelloVerdict {
    /// Its lane is of the lives of the moment.
    Take,
    /// It is news of the peer's life, and the peer has not heard of ours.
    Answer,
    /// It is old.
    Refuse,
}

impl Peer {
    /// Our lane to it, of the connection or of the attempt at one.
    pub(crate) fn tx_mut(&mut self) -> Option<&mut Tx> {
        let attempted = self
            .attempt
            .as_mut()
            .and_then(|attempt| attempt.tx.as_deref_mut());
        self.tx.as_deref_mut().or(attempted)
    }

    /// Its lane to us, of the connection or of the attempt at one.
    pub(crate) fn rx_mut(&mut self) -> Option<&mut Rx> {
        let attempted = self
            .attempt
            .as_mut()
            .and_then(|attempt| attempt.rx.as_deref_mut());
        self.rx.as_deref_mut().or(attempted)
    }

    /// Whether a lane of the present lives has a place, and is not there yet: of the connection, or of the attempt at one.
    fn expects_lane(&mut self) -> bool {
        let attempted = |attempt: &Attempt| attempt.epochs == self.epochs;
        let place = self.down.is_none() || self.attempt.as_deref().is_some_and(attempted);
        place && self.rx_mut().is_none()
    }

    /// Whether nothing comes after its end.
    pub(crate) fn is_over(&self) -> bool {
        let for_good = |reason| {
            matches!(
                reason,
                DownReason::Closed | DownReason::Died | DownReason::Hostile
            )
        };
        self.over || self.down.is_some_and(for_good)
    }

    /// The watermark: of the oldest lane of which something may be given back, or of the present one.
    pub(crate) fn watermark(&mut self) -> Result<MsgId, RailError> {
        while let Some(retired) = self.retired.first_mut() {
            self.passed = retired.consumed()?.0;
            if self.passed < retired.last() {
                return Ok(MsgId(self.passed));
            }
            // All of it was taken after all.
            self.retired.remove(0);
        }
        if let Some(tx) = &mut self.tx {
            self.passed = tx.consumed()?.0;
        }
        Ok(MsgId(self.passed))
    }

    /// A hello of these lives.
    pub(crate) fn classify_hello(&self, theirs: u32, peer_epoch: u32) -> HelloVerdict {
        let news = theirs > self.epochs[1];
        let known = peer_epoch == self.epochs[0];
        if theirs < self.epochs[1] || peer_epoch > self.epochs[0] {
            return HelloVerdict::Refuse;
        }
        match (news, known) {
            // When we are up, our own life ends with this one.
            (true, true) if self.down.is_some() => HelloVerdict::Take,
            (true, _) => HelloVerdict::Answer,
            (false, true) => HelloVerdict::Take,
            (false, false) => HelloVerdict::Refuse,
        }
    }
}

impl ShmRail {
    /// A hello of a known peer has come.
    pub(crate) fn receive_hello_from(&mut self, index: u32, greeting: &ReceivedHello, socket: OwnedFd) {
        let (theirs, peer_epoch) = (greeting.hello.epoch.get(), greeting.hello.peer_epoch.get());
        let peer = &self.peers[index as usize];
        let call = peer.classify_hello(theirs, peer_epoch);
        // Of a lane that was given up again, nothing counts.
        if call == HelloVerdict::Refuse || peer.is_over() || self.closed || Rx::is_severed(&greeting.lane) {
            self.refused += 1;
            return;
        }
        if theirs > peer.epochs[1] {
            if peer.down.is_none() {
                // Half open: the peer has given the old connection up.
                self.end(index, DownReason::Abandoned);
            }
            self.peers[index as usize].epochs[1] = theirs;
        }
        if self.peers[index as usize].down.is_some() {
            self.attempt(index);
        }
        // Our own lane could perhaps not be made just now: then there is no place for theirs, and it will call again.
        if call == HelloVerdict::Take && self.peers[index as usize].expects_lane() {
            match self.take_lane(index, greeting, socket) {
                Ok(()) => self.has_taken(index),
                Err(RailError::Hostile { .. }) => self.disconnect(index, DownReason::Hostile),
                Err(_) => self.disconnect(index, DownReason::Resources),
            }
        } else if call == HelloVerdict::Take {
            self.refused += 1;
        }
    }

    /// A lane of the peer was taken: it is up at first contact, and anew when ours was welcomed as well.
    fn has_taken(&mut self, index: u32) {
        if self.peers[index as usize].down.is_some() {
            return self.come_up(index);
        }
        self.hot.push(index);
        self.emit(index, EventKind::PeerUp);
    }

    /// Sees to it that our lane of the present lives is on its way.
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
        // Those of other lives were good for a call, and nothing else.
        peer.sever_attempt();
        let Ok(tx) = Tx::new(self.geometry, peer.base) else {
            // Another time: the peer stays down.
            return;
        };
        peer.attempt = Some(Box::new(Attempt {
            epochs,
            tx: Some(Box::new(tx)),
            rx: None,
        }));
        self.expect_handshake();
        // When it fails for good, the attempt has ended.
        let _ = self.dial(index);
    }

    /// The peer is up anew, if both lanes stand.
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

    /// What goes on to begin anew with a peer that is down has failed; our life was used for it.
    pub(crate) fn end_attempt(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        if peer.attempt.is_some() {
            peer.sever_attempt();
            peer.next_epoch();
        }
    }

    /// Calls a peer that is down.
    pub(crate) fn call(&mut self, index: u32) {
        let Some(peer) = self.peers.get(index as usize) else {
            return;
        };
        // A hello that waits at the peer is not sent again.
        if peer.down.is_some() && !peer.is_over() && peer.attempt.is_none() && !self.closed {
            self.attempt(index);
        }
    }

    /// As if the ways to all peers, or to one, had broken by themselves: down as [`Silent`](DownReason::Silent), and told
    /// so. For tests and drills; the owner may revive them whenever it likes.
    pub fn sever(&mut self, peer: Option<PeerIndex>) {
        let all = 0..self.peers.len() as u32;
        match peer {
            Some(peer) => self.end(peer.0, DownReason::Silent),
            None => all.for_each(|index| self.end(index, DownReason::Silent)),
        }
    }

    /// The owner gives a peer up: it knows, so nothing that was to be told about the peer is news any more.
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
    /// Lets the lanes of an attempt go, and says so to whoever has them.
    fn sever_attempt(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            attempt.tx.iter().for_each(|tx| tx.announce_close(SEVERED));
            attempt.rx.iter().for_each(|rx| rx.announce_close(SEVERED));
            self.memory = None;
        }
    }

    /// The present life of our end is used up.
    pub(crate) fn next_epoch(&mut self) {
        match self.epochs[0].checked_add(1) {
            Some(next) => self.epochs[0] = next,
            None => self.over = true,
        }
    }
}
