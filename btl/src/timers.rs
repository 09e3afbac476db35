//! What time brings: acknowledgements that waited long enough, segments that nobody answered, peers that are silent.
//!
//! Each peer has at most one room in the hotel, booked for the earliest thing that may be due; whoever is evicted is
//! looked at, and booked again for what comes next. So sending and being answered in time touch the hotel once per
//! time-out, not once per segment.
//!
//! A time-out is judged only when everything that has arrived was looked at: an owner that was away for long finds the
//! acknowledgements in the ring.

use doorbell_fabric::datagram::Channel;
use doorbell_fabric::event::{DownReason, EventKind, Scope};
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::rail::Work;

use crate::connectivity::{Notice, Why};
use crate::core::Core;
use crate::peer::{Peer, about};
use crate::pool::Id;
use crate::record::Event;
use crate::rtt::Bounds;
use crate::segment::State;
use crate::transmit::place;

/// So many retransmission time-outs, without back-off, lie between two proofs of life elsewhere.
const TRIES: u64 = 16;
/// And so much at least (ns): a process that is there looks at all its rails within it, unless it is stopped.
const CERTAIN: u64 = 100_000_000;

impl Core {
    /// Looks at every peer for which something may be due.
    pub(crate) fn tick(&mut self) -> Work {
        let mut work = 0;
        while let Some(evicted) = self.timers.evict(self.now) {
            self.peer(evicted.guest).timer = None;
            self.look_at(evicted.guest);
            work += 1;
        }
        work
    }

    /// Does what is due, and books for what is due next.
    fn look_at(&mut self, peer: PeerIndex) {
        let now = self.now;
        let state = &mut self.peers[peer];
        if state.is(about::DOWN) {
            return self.look_at_down(peer);
        }
        let mut next = u64::MAX;
        if state.is(about::ACK) {
            if state.ack_at <= now {
                self.ack_now(peer);
            } else {
                next = state.ack_at;
            }
        }
        let state = &mut self.peers[peer];
        if let Some(due) = due(state, &self.segments, wait(state, &self.bounds)) {
            if due > now {
                next = next.min(due);
            } else if !state.is(about::TIMEOUT) {
                state.flags |= about::TIMEOUT;
                self.timeouts.push_back(peer);
            }
        }
        let state = &mut self.peers[peer];
        if state.una == Id::NONE && state.has_work() && state.is(about::UP) {
            // The device takes nothing.
            let give_up = self.config.give_up.as_nanos() as u64;
            let silent = self.attended - state.waiting;
            if silent >= give_up {
                return self.fail_silent(peer);
            }
            next = next.min(now.saturating_add(give_up - silent));
        }
        let state = &mut self.peers[peer];
        if state.is(about::PROBING) {
            next = next.min(self.next_probe(peer));
        } else if state.is(about::GREETED) {
            let quiet = self.attended - state.heard;
            let keep_alive = self.config.keep_alive.as_nanos() as u64;
            if quiet >= keep_alive {
                self.start_check(peer, Why::Idle);
            } else {
                next = next.min(now.saturating_add(keep_alive - quiet));
            }
        }
        if next < u64::MAX {
            self.arm(peer, next);
        }
    }

    /// Time-outs of the last tick, now that everything that has arrived was looked at.
    #[cold]
    pub(crate) fn judge_timeouts(&mut self) {
        for _ in 0..self.timeouts.len() {
            let Some(peer) = self.timeouts.pop_front() else {
                return;
            };
            self.peer(peer).flags &= !about::TIMEOUT;
            if !self.peer(peer).is(about::DOWN) {
                self.judge_timeout(peer);
            }
        }
    }

    fn judge_timeout(&mut self, peer: PeerIndex) {
        if self.owes(peer).is_some() && self.is_alive_elsewhere(peer) {
            return self.fail_silent(peer);
        }
        let state = &mut self.peers[peer];
        let due = due(state, &self.segments, wait(state, &self.bounds));
        match due {
            None => return,
            Some(due) if due > self.now => return self.arm(peer, due),
            Some(_) => {}
        }
        if self.is_over(peer) {
            return self.fail_silent(peer);
        }
        let state = &mut self.peers[peer];
        let timeout = state.rtt.timeout(&self.bounds);
        if self.segments[state.una].state != State::Posted {
            // The device has no room for it yet.
            return self.arm(peer, self.now.saturating_add(timeout));
        }
        if state.rtt.tail(&self.bounds, state.resends.doublings()).is_some() {
            return self.hurry(peer);
        }
        state.rtt.back_off();
        let from = state.congestion.window();
        state.congestion.timed_out();
        let to = state.congestion.window();
        let suspect = state.rtt.timeouts() >= self.config.suspect_after;
        let in_a_row = state.rtt.timeouts();
        self.lose_late(peer);
        self.record(
            peer,
            Event::TimedOut {
                after: timeout,
                in_a_row,
            },
        );
        if to < from {
            self.record(peer, Event::Shrunk { from, to });
        }
        // Posting it books a room; but nobody knows whether the device takes it.
        self.arm(peer, self.now.saturating_add(2 * timeout));
        if suspect && !self.peer(peer).is(about::SUSPECT) {
            self.peer(peer).flags |= about::SUSPECT;
            self.counters.suspects += 1;
            self.notice(peer, Notice::Suspect);
            self.tell(Scope::Peer(peer), EventKind::PeerSuspect);
            if self.config.connectivity_check {
                self.start_check(peer, Why::Suspect);
            }
        }
    }

    /// Two round trips have passed and nothing was answered: the oldest segment goes again, which means nothing yet.
    fn hurry(&mut self, peer: PeerIndex) {
        let state = &mut self.peers[peer];
        state.rtt.hurry();
        state.resends.timed_out();
        let una = state.una;
        self.lose(una);
        self.counters.resends_tail += 1;
        let timeout = self.peers[peer].rtt.timeout(&self.bounds);
        self.arm(peer, self.now.saturating_add(timeout));
    }

    /// A time-out has passed: the oldest segment under way is taken for lost, and with it all that are as late, which
    /// means: something that was sent much later has arrived on the data channel, which is the one that peers look at
    /// last. (A lost burst of the priority channel with nothing behind it is found so: the oldest went again as data.)
    fn lose_late(&mut self, peer: PeerIndex) {
        let state = &self.peers[peer];
        let newest = state.newest[place(Channel::Data)];
        let (window, unsent) = (state.rtt.reordering(&self.bounds), state.unsent);
        let (first, mut index) = (state.una, state.una);
        while index != Id::NONE && index != unsent {
            let segment = &self.segments[index];
            let (next, late) = (segment.next, newest >= segment.sent_at + window);
            if segment.state == State::Posted && (late || index == first) {
                self.lose(index);
                // In vain if the peer was away, which is no haste of ours.
                self.peer(peer).resends.timed_out();
                if index == first {
                    self.counters.resends_timeout += 1;
                } else {
                    self.counters.resends_fast += 1;
                }
            }
            index = next;
        }
    }

    /// Whether a peer that owes answers has been silent for too long.
    pub(crate) fn is_over(&self, peer: PeerIndex) -> bool {
        let silent = self.attended - self.peers[peer].waiting;
        silent >= self.config.give_up.as_nanos() as u64
    }

    /// Since when a peer owes answers and has given none (attended ns); `None` when it owes nothing. While probes are under
    /// way and none came back, what it says by itself is no answer: our frames may not reach it.
    fn owes(&self, peer: PeerIndex) -> Option<u64> {
        let state = &self.peers[peer];
        let probing = state.is(about::PROBING);
        let (due, probed) = (state.waiting, state.check.since);
        let mute = probing && !state.check.has_answers();
        match state.una != Id::NONE {
            true if mute => Some(due.max(probed)),
            true => Some(due.max(state.heard)),
            false if mute => Some(probed),
            false if probing => Some(probed.max(state.heard)),
            false => None,
        }
    }

    /// Whether a peer that owes answers has proved alive elsewhere while it was silent here, for long enough; or its
    /// place was said to be empty, and it does not contradict.
    pub(crate) fn is_alive_elsewhere(&self, peer: PeerIndex) -> bool {
        let state = &self.peers[peer];
        let Some(since) = self.owes(peer).filter(|since| state.alive > *since) else {
            return false;
        };
        let silence = self.config.silence.as_nanos() as u64;
        state.is(about::PROVED) || (state.is(about::REFUSED) && self.attended - since >= silence)
    }

    /// The peer has shown life elsewhere. Once is not enough: its process may have been stopped between looking at two
    /// rails. Twice, so far apart that it would have looked here in between and our frames were sent again, it is. That
    /// is judged in the next pass, when everything that has arrived was looked at.
    #[cold]
    pub(crate) fn on_proof(&mut self, peer: PeerIndex) {
        let Some(since) = self.owes(peer).filter(|_| !self.peers[peer].is(about::DOWN)) else {
            return;
        };
        let (attended, most) = (self.attended, self.config.silence.as_nanos() as u64);
        let state = &mut self.peers[peer];
        let bound = if state.is(about::GREETED) {
            (TRIES * state.rtt.settled(&self.bounds)).max(CERTAIN).min(most)
        } else {
            // It may not have begun to look here.
            most
        };
        if state.alive <= since {
            state.alive = attended;
            state.flags &= !about::PROVED;
        } else if attended >= state.alive.saturating_add(bound) {
            state.flags |= about::PROVED;
            if !state.is(about::TIMEOUT) {
                state.flags |= about::TIMEOUT;
                self.timeouts.push_back(peer);
            }
        }
    }

    /// The link is back: whoever waits has waited long enough.
    #[cold]
    pub(crate) fn on_link_up(&mut self) {
        for peer in self.peers.indices() {
            let now = self.now;
            let state = &mut self.peers[peer];
            if state.is(about::DOWN) {
                continue;
            }
            state.rtt.answered();
            let una = state.una;
            if state.is(about::PROBING) {
                state.check.hurry(now);
                if !state.is(about::PROBE) {
                    state.flags |= about::PROBE;
                    self.probes.push_back(peer);
                }
            }
            if una != Id::NONE && self.segments[una].state == State::Posted {
                self.lose(una);
                self.peer(peer).resends.timed_out();
                self.counters.resends_timeout += 1;
            }
        }
    }

    /// The driver heard that nobody is there any more (or again). Anybody can say so; but if the peer stays silent when
    /// it is probed now, it is believed after [`BtlConfig::silence`](crate::BtlConfig::silence).
    #[cold]
    pub(crate) fn on_hint(&mut self, place: PeerIndex, kind: EventKind) {
        let attended = self.attended;
        let mut known = None;
        for peer in self.peers.indices() {
            let state = self.peer(peer);
            if state.driver != place || state.is(about::DOWN) {
                continue;
            }
            known = Some(peer);
            if !matches!(kind, EventKind::PeerDown(_)) {
                state.flags &= !about::REFUSED;
            } else if state.is(about::GREETED) {
                state.flags |= about::REFUSED;
                self.start_check(peer, Why::Suspect);
                let state = self.peer(peer);
                state.alive = attended + 1;
                state.flags &= !about::PROVED;
            }
        }
        if let Some(peer) = known {
            self.record(peer, Event::Hint(kind));
        }
    }

    /// The end of a peer that does not answer.
    #[cold]
    pub(crate) fn fail_silent(&mut self, peer: PeerIndex) {
        let refused = self.peer(peer).is(about::REFUSED);
        let reason = if refused {
            DownReason::Died
        } else {
            DownReason::Silent
        };
        self.fail_peer(peer, reason);
    }

    #[cold]
    pub(crate) fn clear_suspicion(&mut self, peer: PeerIndex) {
        self.peer(peer).flags &= !about::SUSPECT;
        self.notice(peer, Notice::Recovered);
        self.tell(Scope::Peer(peer), EventKind::PeerRecovered);
    }
}

/// How long the oldest segment under way waits for an answer: the short time, once, then the time-out.
#[inline]
pub(crate) fn wait(state: &Peer, bounds: &Bounds) -> u64 {
    let tail = state.rtt.tail(bounds, state.resends.doublings());
    tail.unwrap_or_else(|| state.rtt.timeout(bounds))
}

/// When the oldest segment under way is to be sent again: while others are answered, what later ones tell is quicker.
fn due(state: &Peer, segments: &crate::segment::Segments, timeout: u64) -> Option<u64> {
    if state.una == Id::NONE {
        return None;
    }
    Some(
        segments[state.una]
            .sent_at
            .max(state.progressed)
            .saturating_add(timeout),
    )
}
