//! Forgetting a peer: everything to it is closed at once, and its number is used again.
//!
//! Each end numbers its acquaintances, one after the other over all peers: this is a peer's *term*, counted
//! up by each `forget`. A hello names the sender's term, and the receiver's as far as it is known; a welcome
//! names the receiver's. So an end that starts over is not taken for the one that it was before:
//!
//! | the hello's term; ours in it | what is done |
//! |---|---|
//! | the known or the first one; ours or none | it is taken (`reconnect` judges its epochs) |
//! | a later one | the peer has forgotten us: its old connection ends as closed, and the hello waits |
//! | an earlier one | nothing: it is of an acquaintance that is over |
//! | any; another one than ours | we have forgotten it: it gets that answer, and closes |
//!
//! The messages in a lane to a peer that is forgotten stay readable for it, as after a close.

use std::collections::HashMap;

use doorbell_fabric::event::{DownReason, Scope};
use doorbell_fabric::map::clofork::CloforkFd;
use doorbell_fabric::message::{Incarnation, PeerIndex};
use rustix::event::epoll;

use crate::connect::ReceivedHello;
use crate::lease::holder;
use crate::rail::{Peer, ShmRail};
use crate::rx::Rx;
use crate::tx::{CLOSED, Tx};
use crate::wire::{Hello, Id};

/// Numbers of peers that are not in use.
#[derive(Default)]
pub(crate) struct Places {
    /// Peers forgotten so far.
    forgotten: u32,
    free: Vec<u32>,
    /// Forgotten, while something of the old peer may still be reported.
    resting: Vec<u32>,
}

impl Places {
    /// The term of an acquaintance that begins now; never zero.
    fn term(&self) -> u32 {
        self.forgotten.saturating_add(1)
    }
}

/// The meaning of a hello's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquaintance {
    /// It is of the present one, or begins the first.
    Same,
    /// The peer has forgotten us, and starts over.
    Newer,
    /// It is of one that is over.
    Older,
    /// It is of one that we have ended.
    Ended,
}

impl Peer {
    /// A place without a peer. All calls about it are answered as about one that is gone.
    fn vacant() -> Self {
        let mut vacant = Self::new([0; 16], Incarnation(0), 0);
        (vacant.down, vacant.over) = (Some(DownReason::Closed), true);
        vacant
    }

    fn is_vacant(&self) -> bool {
        self.terms[0] == 0
    }

    /// Judges the terms of a hello of this peer.
    pub(crate) fn judge_terms(&self, theirs: u32, ours: u32) -> Acquaintance {
        match self.terms[1] {
            0 => {}
            known if theirs > known => return Acquaintance::Newer,
            known if theirs < known => return Acquaintance::Older,
            _ => {}
        }
        if ours != 0 && ours != self.terms[0] {
            Acquaintance::Ended
        } else {
            Acquaintance::Same
        }
    }

    /// All lanes, of the connection and of an attempt, are taken out.
    fn take_lanes(&mut self) -> (Vec<Tx>, Vec<Rx>) {
        let attempt = self.attempt.take().map(|attempt| *attempt).unwrap_or_default();
        let sending = self.tx.take().into_iter().chain(attempt.tx);
        let receiving = self.rx.take().into_iter().chain(attempt.rx);
        (sending.map(|tx| *tx).collect(), receiving.map(|rx| *rx).collect())
    }
}

/// Drops the hellos whose senders have started over since, by a later one of the same call; returns how many.
pub(crate) fn drop_older(greetings: &mut Vec<(ReceivedHello, CloforkFd)>) -> u64 {
    let before = greetings.len();
    let mut newest = HashMap::new();
    for (greeting, _) in greetings.iter() {
        let hello = &greeting.hello;
        let term = newest.entry((hello.id, hello.incarnation.get())).or_insert(0);
        *term = hello.term.get().max(*term);
    }
    greetings.retain(|(greeting, _)| {
        let hello = &greeting.hello;
        newest.get(&(hello.id, hello.incarnation.get())) == Some(&hello.term.get())
    });
    (before - greetings.len()) as u64
}

impl ShmRail {
    /// Closes everything to a peer at once: lanes, memory, descriptors, handshakes, reads, the keys of memory
    /// exposed to it alone, and events about it. What was sent and not consumed stays readable for the peer,
    /// to which this is a close.
    ///
    /// Its index is given out again as soon as no read refers to it any more.
    pub(crate) fn forget_peer(&mut self, peer: PeerIndex) {
        let index = peer.0;
        if self.peers.get(peer.index()).is_none_or(Peer::is_vacant) {
            return;
        }
        self.events.retain(|event| event.scope != Scope::Peer(peer));
        self.past.add(&self.peers[peer.index()]);
        let mut old = std::mem::replace(&mut self.peers[peer.index()], Peer::vacant());
        let (sending, receiving) = old.take_lanes();
        for tx in sending {
            tx.announce_close(CLOSED);
            self.unwatch(tx.socket());
        }
        for mut rx in receiving {
            rx.lane.publish();
            rx.announce_close(CLOSED);
            self.unwatch(Some(rx.socket()));
            self.unwatch(rx.parting.as_deref());
        }
        self.hot.retain(|&hot| hot != index);
        self.cold.retain(|&cold| cold != index);
        self.pulls.requests.owners.forget(holder(&old.id));
        self.pulls.fail(peer, self.leases.coop_state());
        self.leases.forget(peer);
        self.places.forgotten = self.places.forgotten.saturating_add(1);
        self.places.resting.push(index);
        self.pending_peers.report(old.id, old.incarnation);
    }

    /// A copy of the socket in another process would hold it open, and with it the entry of the set.
    pub(crate) fn unwatch(&self, socket: Option<&CloforkFd>) {
        if let Some(socket) = socket {
            let _ = epoll::delete(&self.epoll, socket);
        }
    }

    /// The number of an open peer.
    pub(crate) fn known(&self, id: Id, incarnation: Incarnation) -> Option<u32> {
        let known = |peer: &Peer| peer.id == id && peer.incarnation == incarnation && !peer.is_vacant();
        Some(self.peers.iter().position(known)? as u32)
    }

    /// Enters a peer; `None` if there is no place.
    pub(crate) fn add_peer(&mut self, id: Id, incarnation: Incarnation) -> Option<u32> {
        let Self { places, pulls, .. } = self;
        let free = &mut places.free;
        places.resting.retain(|&index| {
            let rests = pulls.refers_to(PeerIndex(index));
            free.extend((!rests).then_some(index));
            rests
        });
        let peer = Peer::new(id, incarnation, places.term());
        if let Some(index) = places.free.pop() {
            self.peers[index as usize] = peer;
            return Some(index);
        }
        if self.peers.len() >= self.most_peers {
            return None;
        }
        self.peers.push(peer);
        Some(self.peers.len() as u32 - 1)
    }

    /// Judges the terms of a hello, of an open peer or of a stranger.
    pub(crate) fn acquaintance(&self, known: Option<u32>, hello: &Hello) -> Acquaintance {
        let (theirs, ours) = (hello.term.get(), hello.peer_term.get());
        match known.and_then(|index| self.peers.get(index as usize)) {
            Some(peer) => peer.judge_terms(theirs, ours),
            None if ours != 0 => Acquaintance::Ended,
            None => Acquaintance::Same,
        }
    }

    /// The peer has forgotten us: as if it had closed, what it sent before is still delivered.
    pub(crate) fn is_forgotten_by(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        if peer.down.is_some() {
            peer.over = true;
            self.end_attempt(index);
        } else {
            peer.ending.get_or_insert(DownReason::Closed);
        }
    }
}
