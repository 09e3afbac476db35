//! What is due, and frames that leave.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::time::Time;

use super::contact::Contact;
use super::event::{Farewell, Refusal};
use super::peer::{Effort, Peer, Phase};
use super::wire::{Frame, Kind, LONGEST, Terms};

impl Contact {
    /// Does what is due at `now`.
    pub(crate) fn tick(&mut self, now: Time) {
        self.now = now;
        while let Some((at, index)) = self.deadlines.due(now) {
            if self.peer(index).is_some_and(|peer| peer.is_due_at(at)) {
                self.look(index);
            }
        }
    }

    /// When the next thing is due; it may turn out to be nothing.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.next()
    }

    /// A peer is due.
    fn look(&mut self, index: u32) {
        let now = self.now;
        let Some(way) = self.under_way(index) else {
            return;
        };
        let is_late = now >= way.effort.end();
        match *way.phase {
            Phase::Down if is_late => self.end_farewell(index),
            Phase::Proving => self.fall_or_rest(index),
            Phase::Resting => self.begin(index),
            Phase::Making | Phase::Up => {}
            _ if is_late => self.finish(index, Some(DownReason::Silent), Farewell::Abandoned),
            Phase::Connecting => self.wait_on(index),
            Phase::Down | Phase::Calling | Phase::Connected | Phase::Proved => self.repeat(index),
        }
    }

    /// Waits for the rail, until patience ends.
    pub(super) fn wait_on(&mut self, index: u32) {
        if let Some(way) = self.under_way(index) {
            way.effort.due = way.effort.end();
            let due = way.effort.due;
            self.arm(index, due);
        }
    }

    /// The peer knows that there is no connection, or will not before it finds out by itself.
    pub(super) fn end_farewell(&mut self, index: u32) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        peer.effort = None;
        if peer.leaving {
            self.release(index);
        }
    }

    /// Sends what there is to report, now and again, until something follows from it.
    pub(super) fn repeat(&mut self, index: u32) {
        let now = self.now;
        self.enqueue(index, true, false);
        if let Some(way) = self.under_way(index) {
            let due = way.effort.back_off(now).min(way.effort.end().max(now));
            way.effort.due = due;
            self.arm(index, due);
        }
    }

    /// Answers a peer that requests a report.
    pub(super) fn reply(&mut self, index: u32) {
        if !matches!(self.phase(index), Phase::Making | Phase::Resting) {
            self.enqueue(index, false, false);
        }
    }

    /// Answers that there will be no connection.
    pub(super) fn reply_refusal(&mut self, index: u32) {
        self.enqueue(index, false, true);
    }

    fn enqueue(&mut self, index: u32, ask: bool, refuses: bool) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        peer.pending.ask |= ask;
        peer.pending.refuses |= refuses;
        if !std::mem::replace(&mut peer.pending.queued, true) {
            self.queue.push_back(index);
        }
    }

    /// A peer is due at `at`, which its effort has, too.
    pub(super) fn arm(&mut self, index: u32, at: Time) {
        let peers = &self.peers;
        let holds = |index: u32, at: Time| {
            let peer = peers.get(index as usize).and_then(Option::as_ref);
            peer.is_some_and(|peer| peer.is_due_at(at))
        };
        self.deadlines.set(at, index, peers.len(), holds);
    }

    /// Writes the next frame to be sent; returns its peer and its length.
    pub(crate) fn next_frame(&mut self, into: &mut [u8; LONGEST]) -> Option<(PeerIndex, usize)> {
        while let Some(index) = self.queue.pop_front() {
            let Some(frame) = self.take_frame(index) else {
                continue;
            };
            let peer = self.peers[index as usize].as_ref()?;
            let Some(key) = peer.key.as_deref().or(self.key.as_ref()) else {
                continue;
            };
            self.counts.sent += 1;
            let length = frame.write(key, into);
            return Some((PeerIndex(index), length));
        }
        None
    }

    /// What is reported to a peer: what holds when the frame leaves.
    fn take_frame(&mut self, index: u32) -> Option<Frame> {
        let (from, partition, port) = (self.local.incarnation, self.local.address.partition, self.mtu);
        let is_closing = self.is_closing;
        let peer = self.peer(index)?;
        let pending = std::mem::take(&mut peer.pending);
        let refusal = peer
            .refusal
            .filter(|_| pending.refuses && peer.phase == Phase::Down);
        let (kind, reason) = report(peer, refusal, is_closing)?;
        let terms = peer
            .effort
            .as_deref()
            .map(|effort| terms(peer, effort, partition, port));
        Some(Frame {
            kind,
            ask: pending.ask && kind != Kind::Refused,
            reason,
            link: peer.out,
            from,
            to: peer.incarnation,
            ours: peer.ours,
            yours: peer.theirs,
            terms: terms.filter(|_| matches!(kind, Kind::Call | Kind::Answer)),
        })
    }
}

/// What is reported to a peer: the phase, or why there is no connection.
fn report(peer: &Peer, refusal: Option<Refusal>, is_closing: bool) -> Option<(Kind, u8)> {
    if let Some(refusal) = refusal {
        return Some((Kind::Refused, refusal as u8));
    }
    Some(match peer.phase {
        Phase::Resting | Phase::Making => return None,
        Phase::Down if is_closing || peer.leaving => (Kind::Gone, Farewell::Closed as u8),
        Phase::Down => (Kind::Gone, peer.farewell as u8),
        Phase::Calling | Phase::Connecting => (Kind::Call, 0),
        Phase::Connected | Phase::Proving => (Kind::Answer, 0),
        Phase::Proved | Phase::Up => (Kind::Ready, 0),
    })
}

fn terms(peer: &Peer, effort: &Effort, partition: u16, port: super::mtu::Mtu) -> Terms {
    Terms {
        gids: peer.remote.gids,
        mtu: effort.offer,
        port,
        partition,
        numbers: effort.numbers,
    }
}
