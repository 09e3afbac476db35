//! What time brings to ways: calls of those that are down, probes of those that return, the end of patience; and what the
//! peer said about them.

use std::time::Duration;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::Message;
use doorbell_fabric::time::Time;
use doorbell_paths::{PathEvent, PathState};

use super::way::Why;
use super::{Core, Link, kind};

/// How often peers that are watched are looked at while nothing is due.
const TICK: Duration = Duration::from_millis(20);
/// With a suspect among its ways, how often a peer is asked over the others whether it lives.
const ALARMED: Duration = Duration::from_millis(20);
/// A way that has been suspect for so long, while the peer answered over another one, is given up.
const SILENCE: Duration = Duration::from_secs(1);
/// How long a call may take, or a probe before another one is sent.
const ANSWER: Duration = Duration::from_millis(250);
/// After that long, an answer for which there was no room is tried again.
const ANSWER_AGAIN: Duration = Duration::from_millis(1);
/// Probes that a way which returns has to answer, spread over its hold.
const PROOFS: u32 = 4;

impl<M: Message> Link<M> {
    /// What arrived about ways since the last time. Returns how many peers it was about.
    pub(super) fn hear(&mut self) -> usize {
        let mut stirred = std::mem::take(&mut self.core.stirred);
        let count = stirred.len();
        for &peer in &stirred {
            self.core.peers[peer as usize].is_stirred = false;
            for at in 0..self.core.peers[peer as usize].ways.len() {
                if self.core.peers[peer as usize].lost {
                    break;
                }
                self.hear_way(peer, at);
            }
        }
        // What could not be answered now is heard again with the next tick.
        stirred.clear();
        if self.core.stirred.is_empty() {
            self.core.stirred = stirred;
        }
        count
    }

    fn hear_way(&mut self, peer: u32, at: usize) {
        let way = &mut self.core.peers[peer as usize].ways[at];
        let (to_answer, answered, number) = (way.to_answer.take(), way.answered.take(), way.number);
        if way.is_given_up() {
            self.way_broken(peer, at, Why::Peer(DownReason::Abandoned));
            if self.core.peers[peer as usize].lost {
                return;
            }
        }
        if let Some(number) = to_answer
            && !self.say_over(peer, at, kind::ECHO, at as u16, number)
        {
            let way = &mut self.core.peers[peer as usize].ways[at];
            if way.state != PathState::Down {
                way.to_answer = Some(number);
                self.core.watch(peer);
                // There is no room: not at once.
                self.core.tick_at = self.core.now + ANSWER_AGAIN;
            }
        }
        let way = &mut self.core.peers[peer as usize].ways[at];
        if answered == Some(number) && way.asked.take().is_some() {
            way.answers += 1;
            way.heard = self.core.now;
            let first = !std::mem::replace(&mut way.met, true);
            if first && way.state == PathState::Suspect {
                self.move_way(peer, at, PathEvent::Answered); // it was thought dead
            } else if first {
                self.refresh(peer);
                self.core.watch(peer);
            }
            self.prove_alive(peer, at);
        }
    }

    /// The peer has answered over this way: those that wait for it know that the fault is their own.
    fn prove_alive(&mut self, peer: u32, over: usize) {
        for (at, way) in self.core.peers[peer as usize].ways.iter().enumerate() {
            if at != over && matches!(way.state, PathState::Suspect | PathState::Returning) {
                self.rails[usize::from(way.rail)].rail.proved_alive(way.index);
            }
        }
    }

    /// Looks at every peer that is watched.
    #[cold]
    pub(super) fn tick(&mut self, now: Time) {
        self.core.tick_at = Time::NEVER;
        let mut at = 0;
        while let Some(&peer) = self.core.watched.get(at) {
            if self.core.peers[peer as usize].lost || !self.tick_peer(now, peer) {
                self.core.peers[peer as usize].is_watched = false;
                self.core.watched.swap_remove(at);
            } else {
                at += 1;
            }
        }
        if !self.core.watched.is_empty() {
            self.core.tick_at = self.core.tick_at.min(now + TICK);
        }
    }

    /// Whether it is to be watched on.
    fn tick_peer(&mut self, now: Time, peer: u32) -> bool {
        for at in 0..self.core.peers[peer as usize].ways.len() {
            self.hear_way(peer, at);
            if self.core.peers[peer as usize].lost {
                return false;
            }
            match self.core.peers[peer as usize].ways[at].state {
                PathState::Up => self.tick_used(now, peer, at),
                PathState::Suspect => self.tick_suspect(now, peer, at),
                PathState::Down => self.tick_down(now, peer, at),
                PathState::Probing => self.tick_called(now, peer, at),
                PathState::Returning => self.tick_returning(now, peer, at),
            }
        }
        let known = &self.core.peers[peer as usize];
        let (alone, ended) = (known.alone, known.ended);
        if ended.is_some_and(|until| until <= now) {
            self.lose(peer, Why::Peer(DownReason::Died));
        } else if let Some((_, why)) = alone.filter(|(until, _)| *until <= now) {
            self.lose(peer, why);
        } else {
            for until in ended.into_iter().chain(alone.map(|(until, _)| until)) {
                self.core.due(until);
            }
        }
        self.is_worth_watching(peer)
    }

    fn is_worth_watching(&self, peer: u32) -> bool {
        let known = &self.core.peers[peer as usize];
        let doubted =
            known.ways_that(|way| way.met) != 0 && known.ways.get(known.current).is_some_and(|way| !way.met);
        let quiet = known.ways.iter().all(|way| {
            way.is_quiet() && (way.met || way.asked.is_some() || known.ways.len() == 1 || way.dead)
        });
        !known.lost && (!quiet || doubted || known.alone.is_some() || known.ended.is_some())
    }

    /// One of several ways that are used: it is asked once whether it works at all, and again and again while another is
    /// suspect.
    fn tick_used(&mut self, now: Time, peer: u32, at: usize) {
        let known = &self.core.peers[peer as usize];
        if known.ways.len() == 1 {
            return;
        }
        let alarmed = known.ways_that(|way| matches!(way.state, PathState::Suspect)) != 0;
        let way = &known.ways[at];
        if alarmed {
            if way.probed + ALARMED <= now {
                self.ask_over(now, peer, at);
            }
            self.core.due(now + ALARMED);
        } else if !way.met && way.asked.is_none() {
            self.ask_over(now, peer, at);
        }
        self.doubt(now, peer, at);
    }

    /// A way over which nothing was ever answered, while the peer answers over another one, may be dead from the start:
    /// its rail, which waits long for a peer that has yet to begin, does not know of the other one.
    fn doubt(&mut self, now: Time, peer: u32, at: usize) {
        let known = &self.core.peers[peer as usize];
        let way = &known.ways[at];
        let Some(asked) = way.asked.filter(|_| !way.met && at == known.current) else {
            return;
        };
        if known.ways_that(|way| way.met) == 0 {
            return;
        }
        if asked + ANSWER <= now {
            self.move_way(peer, at, PathEvent::Silent);
        } else {
            self.core.due(asked + ANSWER);
        }
    }

    /// Its rail says when it answers again, and mostly when it does not. One that was suspect before it ever answered is
    /// asked: nothing else may be on its way over it.
    fn tick_suspect(&mut self, now: Time, peer: u32, at: usize) {
        let known = &self.core.peers[peer as usize];
        let way = &known.ways[at];
        let end = way.since + SILENCE;
        // The peer polls: it has answered late in that time.
        let polls = known.ways_that(|way| way.state == PathState::Up && way.heard + SILENCE / 2 >= end) != 0;
        if end <= now && polls {
            return self.way_broken(peer, at, Why::Peer(DownReason::Silent));
        }
        if !way.met {
            self.ask_over(now, peer, at);
        }
        self.core.due(if end > now { end } else { now + ANSWER });
    }

    fn tick_down(&mut self, now: Time, peer: u32, at: usize) {
        let way = &mut self.core.peers[peer as usize].ways[at];
        if way.dead {
            return;
        }
        if way.due > now {
            let due = way.due;
            return self.core.due(due);
        }
        way.turn(now, PathEvent::Called);
        self.call(now, peer, at);
    }

    /// Calls the peer over a way that is down.
    pub(super) fn call(&mut self, now: Time, peer: u32, at: usize) {
        let way = &mut self.core.peers[peer as usize].ways[at];
        way.due = now + ANSWER;
        self.rails[usize::from(way.rail)].rail.revive(way.index);
        self.core.stats.calls += 1;
        self.core.due(now + ANSWER);
    }

    fn tick_called(&mut self, now: Time, peer: u32, at: usize) {
        let way = &mut self.core.peers[peer as usize].ways[at];
        if way.due <= now {
            way.turn(now, PathEvent::Unanswered);
        }
        let due = way.due;
        self.core.due(due);
    }

    fn tick_returning(&mut self, now: Time, peer: u32, at: usize) {
        let way = &self.core.peers[peer as usize].ways[at];
        let (end, pace) = (way.since + way.hold, way.hold / (PROOFS + 1));
        if way.answers >= PROOFS && end <= now {
            return self.way_steady(peer, at);
        }
        if way.probed + pace <= now {
            self.ask_over(now, peer, at);
        }
        self.core.due(if end > now {
            end.min(now + pace)
        } else {
            now + pace
        });
    }

    /// Asks over this way for an answer over this way. An earlier question that was not answered is waited for first.
    fn ask_over(&mut self, now: Time, peer: u32, at: usize) {
        let way = &mut self.core.peers[peer as usize].ways[at];
        if way.asked.is_some_and(|asked| now.since(asked) < ANSWER) {
            return;
        }
        way.probed = now;
        way.number = way.number.wrapping_add(1);
        let number = way.number;
        if self.say_over(peer, at, kind::PROBE, at as u16, number) {
            self.core.peers[peer as usize].ways[at].asked = Some(now);
            self.core.stats.probes += 1;
        }
    }
}

impl Core {
    /// Something about a peer that is watched is due then.
    fn due(&mut self, at: Time) {
        self.tick_at = self.tick_at.min(at);
    }

    /// Time that this process did not look, although it should have, is not the peer's: what it says may be here already.
    pub(super) fn excuse(&mut self, now: Time) {
        let in_time = self.tick_at.since(self.now).max(TICK);
        let away = now.since(self.now);
        if away <= in_time || self.now == Time::ZERO {
            return;
        }
        for &peer in &self.watched {
            let known = &mut self.peers[peer as usize];
            if let Some((until, _)) = &mut known.alone {
                *until += away - in_time;
            }
            if let Some(until) = &mut known.ended {
                *until += away - in_time;
            }
        }
    }
}
