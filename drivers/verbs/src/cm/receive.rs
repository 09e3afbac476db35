//! Frames that arrive: what they are of, whether they are true, and what follows from them.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::gid::{Link, share_partition};
use doorbell_fabric::time::Time;

use super::contact::Contact;
use super::counts::Drop;
use super::event::{Farewell, Refusal};
use super::peer::{From, Peer, Phase};
use super::wire::{self, Frame, Kind, Terms};
use crate::gid::GidPair;

impl Contact {
    /// Takes a frame that has arrived over the rail's queue pair of datagrams.
    pub(crate) fn receive(&mut self, from: &From, bytes: &[u8], now: Time) {
        self.now = now;
        match self.take(from, bytes) {
            Ok(()) => self.counts.received += 1,
            Err(why) => self.counts.drop(why),
        }
    }

    fn take(&mut self, from: &From, bytes: &[u8]) -> Result<(), Drop> {
        let frame = Frame::read(bytes)?;
        if frame.to != self.local.incarnation {
            return Err(Drop::OtherLife);
        }
        let Some(index) = self.ids.get(&frame.link).copied() else {
            return Err(self.take_stranger(&frame, bytes));
        };
        self.verify(index, &frame, from, bytes)?;
        if let Some(peer) = self.peer(index).filter(|peer| has_moved(peer, &frame, from)) {
            peer.remote.pair = from.pair;
        }
        self.handle(index, &frame)
    }

    /// A frame of a sender that is not open here. Where all have one key, those without it are no strangers.
    fn take_stranger(&mut self, frame: &Frame, bytes: &[u8]) -> Drop {
        let known = self.key.as_ref().filter(|_| !self.has_own_keys);
        if known.is_some_and(|key| !wire::holds(key, bytes)) {
            return Drop::Forged;
        }
        if frame.kind == Kind::Call && !self.is_closing {
            self.strangers.note(frame.link, self.now);
        }
        Drop::Stranger
    }

    /// Checks that a frame is a peer's.
    fn verify(&self, index: u32, frame: &Frame, from: &From, bytes: &[u8]) -> Result<(), Drop> {
        let peer = self.peers[index as usize].as_ref().ok_or(Drop::Stranger)?;
        // What ends a connection, and what brings one further, names no queue pair: the key proves it.
        let may_be = from.pair == peer.remote.pair || frame.terms.is_none() || has_moved(peer, frame, from);
        if !peer.remote.has(from) || !may_be {
            return Err(Drop::Source);
        }
        let key = peer.key.as_deref().or(self.key.as_ref()).ok_or(Drop::Forged)?;
        if !wire::holds(key, bytes) {
            return Err(Drop::Forged);
        }
        if frame.from != peer.incarnation {
            return Err(Drop::OtherLife);
        }
        // It was never sent.
        if frame.yours > peer.ours {
            return Err(Drop::Malformed);
        }
        Ok(())
    }

    /// Handles a frame that is a peer's.
    fn handle(&mut self, index: u32, frame: &Frame) -> Result<(), Drop> {
        let peer = self.peer(index).ok_or(Drop::Stranger)?;
        // What names an earlier term of ours is of before it was forgotten, but for a first call.
        let knows_term = frame.yours.term == peer.ours.term;
        if frame.ours < peer.theirs || !knows_term && frame.kind != Kind::Call {
            return Err(Drop::Old);
        }
        let is_next_term = frame.ours.term > peer.theirs.term && peer.heard;
        if is_next_term && !peer.leaving {
            self.was_forgotten(index);
        }
        let peer = self.peer(index).ok_or(Drop::Stranger)?;
        if peer.over || is_next_term {
            return Err(self.take_after_end(index, frame, is_next_term));
        }
        peer.heard |= knows_term;
        let is_newer = frame.ours > peer.theirs;
        if is_newer {
            (peer.theirs, peer.used) = (frame.ours, false);
            self.leave_behind(index, frame);
        }
        self.stop_farewell(index, frame);
        let queued = self.is_queued(index);
        match frame.kind {
            Kind::Gone => self.on_gone(index, frame),
            Kind::Refused => self.on_refused(index, frame)?,
            Kind::Call | Kind::Answer | Kind::Ready => self.on_stage(index, frame),
        }
        if (frame.ask || is_newer && frame.kind != Kind::Gone) && !queued && !self.is_queued(index) {
            self.reply(index);
        }
        Ok(())
    }

    /// The peer has forgotten us, and opened us again.
    fn was_forgotten(&mut self, index: u32) {
        self.end(index, Some(DownReason::Closed));
        if let Some(peer) = self.peer(index) {
            peer.over = true;
        }
    }

    /// A frame of a peer with which nothing follows. Where it has forgotten us and calls again, the call
    /// waits until we have, too.
    fn take_after_end(&mut self, index: u32, frame: &Frame, is_next_term: bool) -> Drop {
        let Some(peer) = self.peer(index) else {
            return Drop::Over;
        };
        if frame.kind != Kind::Call {
            return Drop::Over;
        }
        if !is_next_term {
            peer.theirs = peer.theirs.max(frame.ours);
            peer.refusal = Some(Refusal::Over);
            self.reply_refusal(index);
        } else if !self.is_closing {
            self.strangers.note(frame.link, self.now);
        }
        Drop::Over
    }

    /// The peer has left what we were connected to, or connected with.
    fn leave_behind(&mut self, index: u32, frame: &Frame) {
        let reason = match frame.kind {
            Kind::Gone => Farewell::of(frame.reason).reason(),
            _ => DownReason::Abandoned,
        };
        match self.phase(index) {
            Phase::Down | Phase::Resting => {}
            // Ours were not connected to anything yet.
            Phase::Making | Phase::Calling => {
                if let Some(way) = self.under_way(index) {
                    way.effort.theirs = None;
                }
            }
            Phase::Up => self.end(index, Some(reason)),
            _ => self.renew(index),
        }
    }

    /// The peer knows that we have no connection: that is not repeated any more.
    fn stop_farewell(&mut self, index: u32, frame: &Frame) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        if peer.phase == Phase::Down && frame.yours == peer.ours {
            self.end_farewell(index);
        }
    }

    /// The peer has no connection.
    fn on_gone(&mut self, index: u32, frame: &Frame) {
        let closed = Farewell::of(frame.reason) == Farewell::Closed;
        let Some(peer) = self.peer(index) else {
            return;
        };
        if closed {
            peer.over = true;
            return self.end(index, Some(DownReason::Closed));
        }
        // It began to call us, and has given up.
        let is_wanted = peer.effort.as_ref().is_some_and(|effort| effort.wanted);
        let is_calling = matches!(peer.phase, Phase::Resting | Phase::Making | Phase::Calling);
        if is_calling && !is_wanted && frame.yours == peer.ours && self.has_called(index) {
            self.end(index, None);
        }
    }

    /// Whether it is the peer that began what is under way.
    fn has_called(&mut self, index: u32) -> bool {
        self.under_way(index).is_some_and(|way| way.effort.called_by_peer)
    }

    /// The peer makes no connection with what we called with.
    fn on_refused(&mut self, index: u32, frame: &Frame) -> Result<(), Drop> {
        let peer = self.peer(index).ok_or(Drop::Stranger)?;
        let is_under_way = peer.phase > Phase::Making && peer.phase < Phase::Up;
        if frame.yours != peer.ours || !is_under_way {
            return Err(Drop::Old);
        }
        self.end_refused(index, Refusal::of(frame.reason), false);
        Ok(())
    }

    /// The peer is about to make a connection, or has made one.
    fn on_stage(&mut self, index: u32, frame: &Frame) {
        let refusal = frame.terms.as_ref().and_then(|terms| self.judge(index, terms));
        if let Some(refusal) = refusal {
            return self.refuse(index, refusal);
        }
        let Some(peer) = self.peer(index) else {
            return;
        };
        let is_call = frame.kind == Kind::Call;
        // One that names our present epoch is not of what was there before, and its sender is not connected.
        let is_fresh = !peer.used || frame.yours == peer.ours;
        let may_begin = is_call && is_fresh && !peer.leaving;
        match peer.phase {
            Phase::Down if may_begin => self.start_called(index),
            Phase::Resting if is_call => self.begin(index),
            _ => {}
        }
        if self.peer(index).is_some_and(|peer| peer.ours == frame.yours) {
            self.bear(index);
            self.take_terms(index, frame);
            self.see(index, frame.kind);
        }
    }

    /// What the peer began is borne with as long as it insists.
    fn bear(&mut self, index: u32) {
        let now = self.now;
        if let Some(way) = self.under_way(index).filter(|way| way.effort.called_by_peer) {
            way.effort.since = now;
        }
    }

    /// Takes what the peer offers for both present epochs.
    fn take_terms(&mut self, index: u32, frame: &Frame) {
        let Some(way) = self.under_way(index) else {
            return;
        };
        if way.effort.theirs.is_some() || frame.terms.is_none() {
            return;
        }
        match *way.phase {
            Phase::Making => way.effort.theirs = frame.terms,
            Phase::Calling => {
                way.effort.theirs = frame.terms;
                self.connect(index);
            }
            _ => {}
        }
    }

    /// Why no connection is made with what a peer offers.
    fn judge(&self, index: u32, terms: &Terms) -> Option<Refusal> {
        let peer = self.peers[index as usize].as_ref()?;
        let GidPair { ours, theirs, kind } = terms.gids;
        let as_we = GidPair {
            ours: theirs,
            theirs: ours,
            kind,
        };
        if peer.remote.gids != as_we {
            return Some(Refusal::Gids);
        }
        let is_infiniband = peer.remote.link == Link::InfiniBand;
        if is_infiniband && !share_partition(terms.partition, self.local.address.partition) {
            return Some(Refusal::Partition);
        }
        None
    }

    fn is_queued(&mut self, index: u32) -> bool {
        self.peer(index).is_some_and(|peer| peer.pending.queued)
    }

    /// Whether the connection to a peer carries messages.
    #[cfg(test)]
    pub(crate) fn is_up(&self, peer: doorbell_fabric::message::PeerIndex) -> bool {
        self.phase(peer.0) == Phase::Up
    }
}

/// Whether a frame makes its queue pair the peer's: it names it, where it names any, and is no repetition of
/// an earlier one.
fn has_moved(peer: &Peer, frame: &Frame, from: &From) -> bool {
    let names_it = frame
        .terms
        .is_none_or(|terms| terms.numbers.pairs[1] == from.pair);
    names_it && (frame.ours > peer.theirs || !peer.heard)
}
