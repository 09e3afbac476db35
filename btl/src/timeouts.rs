//! Time-outs: acknowledgements that have waited long enough, segments that were not answered, peers that are
//! silent.
//!
//! A time-out is judged only when everything that has arrived was handled: an owner that was away for long
//! finds the acknowledgements in the ring.

use doorbell_fabric::event::{DownReason, EventKind, Scope};
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::rail::Work;

use crate::connectivity::{Notice, Why};
use crate::core::Core;
use crate::peer::{Peer, about};
use crate::record::Event;
use crate::rtt::Bounds;
use crate::send_window::Segments;

/// Retransmission time-outs, without back-off, that lie between two proofs of life elsewhere.
const TRIES: u64 = 16;
/// The lower bound of that time (ns): a process that runs polls all its rails within it.
const CERTAIN: u64 = 100_000_000;

impl Core {
    /// Looks at every peer for which something may be due.
    pub(crate) fn tick(&mut self) -> Work {
        let mut work = 0;
        while let Some(peer) = self.timers.evict(self.clock.now(), &mut self.peers) {
            self.look_at(peer);
            work += 1;
        }
        work
    }

    /// Does what is due, and books for what is due next.
    fn look_at(&mut self, index: PeerIndex) {
        let now = self.clock.now();
        let peer = &mut self.peers[index];
        if peer.is(about::DOWN) {
            return self.look_at_down(index);
        }
        let mut next = u64::MAX;
        if peer.is(about::LEAVING) {
            match self.look_at_leaving(index) {
                Some(again) => next = again,
                None => return,
            }
        }
        let peer = &mut self.peers[index];
        if peer.is(about::ACK) {
            if peer.recv.ack_at() <= now {
                self.acks.now(index, peer);
            } else {
                next = peer.recv.ack_at();
            }
        }
        if let Some(due) = due(peer, &self.segments, wait(peer, &self.bounds)) {
            if due > now {
                next = next.min(due);
            } else {
                self.timers.time_out(index, peer);
            }
        }
        if !peer.send.awaits_ack() && peer.has_work() && peer.is(about::UP) {
            // The device takes nothing.
            let give_up = self.config.give_up.as_nanos() as u64;
            let silent = self.clock.attended() - peer.liveness.waiting();
            if silent >= give_up {
                return self.fail_silent(index);
            }
            next = next.min(now.saturating_add(give_up - silent));
        }
        if peer.is(about::PROBING) {
            next = next.min(self.next_probe(index));
        } else if peer.is(about::GREETED) {
            let quiet = self.clock.attended() - peer.liveness.heard();
            let keep_alive = self.config.keep_alive.as_nanos() as u64;
            if quiet >= keep_alive {
                self.start_check(index, Why::Idle);
            } else {
                next = next.min(now.saturating_add(keep_alive - quiet));
            }
        }
        if next < u64::MAX {
            self.arm(index, next);
        }
    }

    /// Judges the time-outs of the last tick, now that everything that has arrived was handled.
    #[cold]
    pub(crate) fn judge_timeouts(&mut self) {
        for _ in 0..self.timers.timeouts() {
            let Some(peer) = self.timers.next_timeout(&mut self.peers) else {
                return;
            };
            if !self.peers[peer].is(about::DOWN) {
                self.judge_timeout(peer);
            }
        }
    }

    fn judge_timeout(&mut self, index: PeerIndex) {
        if self.owes(index).is_some() && self.is_alive_elsewhere(index) {
            return self.fail_silent(index);
        }
        let now = self.clock.now();
        let peer = &mut self.peers[index];
        match due(peer, &self.segments, wait(peer, &self.bounds)) {
            None => return,
            Some(due) if due > now => return self.arm(index, due),
            Some(_) => {}
        }
        if self.is_over(index) {
            return self.fail_silent(index);
        }
        let peer = &mut self.peers[index];
        let timeout = peer.rtt.timeout(&self.bounds);
        if peer.send.oldest_posted(&self.segments).is_none() {
            // The device has no room for it yet.
            return self.arm(index, now.saturating_add(timeout));
        }
        if peer.rtt.tail(&self.bounds, peer.resends.doublings()).is_some() {
            return self.hurry(index);
        }
        peer.rtt.back_off();
        let from = peer.congestion.window();
        peer.congestion.timed_out();
        let to = peer.congestion.window();
        let in_a_row = peer.rtt.timeouts();
        let suspect = in_a_row >= self.config.suspect_after && !peer.is(about::SUSPECT);
        self.lose_late(index);
        self.record(
            index,
            Event::TimedOut {
                after: timeout,
                in_a_row,
            },
        );
        if to < from {
            self.record(index, Event::Shrunk { from, to });
        }
        // Posting it books a room; but the device may not take it.
        self.arm(index, now.saturating_add(2 * timeout));
        if suspect {
            self.peers[index].set(about::SUSPECT);
            self.counters.suspects += 1;
            self.notice(index, Notice::Suspect);
            self.tell(Scope::Peer(index), EventKind::PeerSuspect);
            if self.config.connectivity_check {
                self.start_check(index, Why::Suspect);
            }
        }
    }

    /// Two round trips have passed and nothing was answered: the oldest segment is retransmitted, which means
    /// nothing yet.
    fn hurry(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[index];
        peer.rtt.hurry();
        peer.resends.timed_out();
        if let Some(oldest) = peer.send.oldest_posted(&self.segments) {
            peer.send.lose(&mut self.segments, oldest);
        }
        self.counters.resends_tail += 1;
        let timeout = peer.rtt.timeout(&self.bounds);
        self.arm(index, self.clock.after(timeout));
    }

    /// A time-out has passed: the oldest segment under way is taken for lost, and with it all that are as
    /// late.
    fn lose_late(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[index];
        let window = peer.rtt.reordering(&self.bounds);
        let (oldest, others) = peer.send.lose_late(&mut self.segments, window);
        // Spurious if the peer was away, so our time-outs were not too short.
        (0..u32::from(oldest) + others).for_each(|_| peer.resends.timed_out());
        self.counters.resends_timeout += u64::from(oldest);
        self.counters.resends_fast += u64::from(others);
    }

    /// Whether a peer that owes answers has been silent for too long.
    fn is_over(&self, index: PeerIndex) -> bool {
        let silent = self.clock.attended() - self.peers[index].liveness.waiting();
        silent >= self.config.give_up.as_nanos() as u64
    }

    /// Since when a peer owes answers and has given none (attended ns); `None` when it owes nothing. While
    /// probes are under way and none came back, what it sends by itself is no answer: our frames may not
    /// reach it.
    fn owes(&self, index: PeerIndex) -> Option<u64> {
        let peer = &self.peers[index];
        let probing = peer.is(about::PROBING);
        let (due, probed, heard) = (peer.liveness.waiting(), peer.check.since(), peer.liveness.heard());
        let mute = probing && !peer.check.has_answers();
        match peer.send.awaits_ack() {
            true if mute => Some(due.max(probed)),
            true => Some(due.max(heard)),
            false if mute => Some(probed),
            false if probing => Some(probed.max(heard)),
            false => None,
        }
    }

    /// Whether a peer that owes answers has proved alive elsewhere while it was silent here, for long enough;
    /// or its driver reports that its process has ended, and it does not contradict.
    pub(crate) fn is_alive_elsewhere(&self, index: PeerIndex) -> bool {
        let peer = &self.peers[index];
        let since = self.owes(index);
        let Some(since) = since.filter(|since| peer.liveness.is_proved_since(*since)) else {
            return false;
        };
        let silence = self.config.silence.as_nanos() as u64;
        peer.is(about::PROVED) || (peer.is(about::REFUSED) && self.clock.attended() - since >= silence)
    }

    /// The peer has shown life elsewhere. Once is not enough: its process may have been stopped between
    /// polling two rails. Twice, so far apart that it would have polled this one in between and our frames
    /// were sent again, it is. That is judged in the next pass, when everything that has arrived was handled.
    #[cold]
    pub(crate) fn on_proof(&mut self, index: PeerIndex) {
        if self.peers[index].is(about::GONE) {
            return;
        }
        let Some(since) = self.owes(index) else {
            return;
        };
        let most = self.config.silence.as_nanos() as u64;
        let peer = &mut self.peers[index];
        let bound = if peer.is(about::GREETED) {
            (TRIES * peer.rtt.settled(&self.bounds)).max(CERTAIN).min(most)
        } else {
            // It may not have begun to poll this rail.
            most
        };
        match peer.liveness.prove_elsewhere(self.clock.attended(), since, bound) {
            None => peer.clear(about::PROVED),
            Some(false) => {}
            Some(true) => {
                peer.set(about::PROVED);
                self.timers.time_out(index, peer);
            }
        }
    }

    /// The link is back: sends again, and probes, without waiting any longer.
    #[cold]
    pub(crate) fn on_link_up(&mut self) {
        for index in self.peers.indices() {
            let peer = &mut self.peers[index];
            if peer.is(about::DOWN) {
                continue;
            }
            peer.rtt.answered();
            if peer.is(about::PROBING) {
                self.probing.restart(index, peer, self.clock.now());
            }
            if let Some(oldest) = peer.send.oldest_posted(&self.segments) {
                peer.send.lose(&mut self.segments, oldest);
                peer.resends.timed_out();
                self.counters.resends_timeout += 1;
            }
        }
    }

    /// The driver reports that no process is there any more (or that one is again). That can be forged; but
    /// if the peer stays silent when it is probed now, it is believed after
    /// [`BtlConfig::silence`](crate::BtlConfig::silence).
    #[cold]
    pub(crate) fn on_hint(&mut self, driver: PeerIndex, kind: EventKind) {
        let mut known = None;
        for index in self.peers.indices() {
            let peer = &mut self.peers[index];
            if peer.driver() != driver || peer.is(about::GONE) {
                continue;
            }
            known = Some(index);
            if !matches!(kind, EventKind::PeerDown(_)) {
                peer.clear(about::REFUSED);
            } else if peer.is(about::GREETED) {
                peer.set(about::REFUSED);
                self.start_check(index, Why::Suspect);
                let peer = &mut self.peers[index];
                peer.liveness.restart_proofs(self.clock.attended());
                peer.clear(about::PROVED);
            }
        }
        if let Some(peer) = known {
            self.record(peer, Event::Hint(kind));
        }
    }

    /// The end of a peer that does not answer.
    #[cold]
    pub(crate) fn fail_silent(&mut self, index: PeerIndex) {
        let reason = if self.peers[index].is(about::REFUSED) {
            DownReason::Died
        } else {
            DownReason::Silent
        };
        self.fail_peer(index, reason);
    }

    /// A suspect peer has answered.
    #[cold]
    pub(crate) fn clear_suspicion(&mut self, index: PeerIndex) {
        self.peers[index].clear(about::SUSPECT);
        self.notice(index, Notice::Recovered);
        self.tell(Scope::Peer(index), EventKind::PeerRecovered);
    }
}

/// Returns how long the oldest segment under way waits for an answer: the short time, once, then the
/// time-out.
#[inline]
pub(crate) fn wait(peer: &Peer, bounds: &Bounds) -> u64 {
    let tail = peer.rtt.tail(bounds, peer.resends.doublings());
    tail.unwrap_or_else(|| peer.rtt.timeout(bounds))
}

/// Returns when the oldest segment under way is to be sent again: while others are answered, later ones show
/// a loss sooner.
fn due(peer: &Peer, segments: &Segments, timeout: u64) -> Option<u64> {
    let sent_at = peer.send.oldest(segments)?.sent_at();
    Some(sent_at.max(peer.liveness.acked()).saturating_add(timeout))
}
