//! What time brings to ways: calls of those that are down, probes of those that are used or return, the end of patience.

use std::time::Duration;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::{Body, Message};
use doorbell_fabric::time::Time;
use doorbell_paths::{PathEvent, PathState};
use zerocopy::IntoBytes;

use crate::core::Core;
use crate::error::LostReason;
use crate::peer::about;
use crate::pml::Pml;
use crate::wire::{WayHeader, kind};

use super::Watch;

/// How often ways are looked at while nothing is due.
const TICK: Duration = Duration::from_millis(20);
/// How often ways that are used are compared; and, with a suspect among them, how often the others are asked whether
/// the peer lives.
const COMPARED: Duration = Duration::from_millis(100);
const ALARMED: Duration = Duration::from_millis(20);
/// How long a call may take; a probe that takes longer is asked for again.
const ANSWER: Duration = Duration::from_millis(250);
/// Probes that a way which returns has to answer, spread over its hold.
const PROOFS: u32 = 4;

impl Core {
    /// Whether the peer gave the connection of now up. Word of one that has not come up here yet is kept until it does.
    fn is_given_up(&mut self, rank: u32, at: usize) -> bool {
        let way = &mut self.watch(rank).ways[at];
        let Some(life) = way.given_up else {
            return false;
        };
        if life.is_before(way.life) {
            // Another one came up between the word and this look.
            way.given_up = None;
            self.counters.drops.late_word += 1;
            return false;
        }
        let stands = !matches!(way.state, PathState::Down | PathState::Probing);
        if stands {
            way.given_up = None;
        } else {
            way.forget_given_up();
        }
        stands
    }
}

impl<M: Message> Pml<M> {
    /// Looks at every peer that is watched.
    #[cold]
    pub(crate) fn tick(&mut self, now: Time) {
        self.core.tick_at = Time::NEVER;
        self.core.watch_due = Time::NEVER;
        self.core.stirred = false;
        let mut at = 0;
        while let Some(&rank) = self.core.watched.get(at) {
            if self.core.hot[rank as usize].is(about::LOST) {
                self.core.watched.swap_remove(at);
                continue;
            }
            self.tick_peer(now, rank);
            at += 1;
        }
        if !self.core.watched.is_empty() {
            self.core.tick_at = self.core.tick_at.min(self.core.watch_due.min(now + TICK));
        }
    }

    fn tick_peer(&mut self, now: Time, rank: u32) {
        let ways = self.core.watch(rank).ways.len();
        for at in 0..ways {
            self.hear_way(now, rank, at);
            if self.core.hot[rank as usize].is(about::LOST) {
                return;
            }
        }
        for at in 0..ways {
            self.tick_way(now, rank, at);
            if self.core.hot[rank as usize].is(about::LOST) {
                return;
            }
        }
        let watch = self.core.watch(rank);
        let (alone, ended) = (watch.alone, watch.ended);
        if ended.is_some_and(|until| until <= now) {
            self.read_last_words();
            self.lose(rank, LostReason::Peer(DownReason::Died));
        } else if let Some((_, reason)) = alone.filter(|(until, _)| *until <= now) {
            self.lose(rank, reason);
        } else {
            for until in ended.into_iter().chain(alone.map(|(until, _)| until)) {
                self.core.watch_due = self.core.watch_due.min(until);
            }
        }
    }

    /// What arrived about a way since the last tick.
    fn hear_way(&mut self, now: Time, rank: u32, at: usize) {
        let way = &mut self.core.watch(rank).ways[at];
        let (to_answer, answered) = (way.to_answer.take(), way.answered.take());
        if self.core.is_given_up(rank, at) {
            self.way_broken(rank, at, LostReason::Peer(DownReason::Abandoned));
            if self.core.hot[rank as usize].is(about::LOST) {
                return;
            }
        }
        if let Some(number) = to_answer
            && !self.say_over(rank, at, WayHeader::new(kind::ECHO, at as u16, number))
        {
            // No room now: it is answered with the next tick, or after the next probe.
            self.core.watch(rank).ways[at].to_answer = Some(number);
        }
        let way = &mut self.core.watch(rank).ways[at];
        let number = way.number;
        if let (Some(answer), Some(asked)) = (answered, way.asked)
            && answer == number
        {
            way.asked = None;
            way.answers += 1;
            let first = !std::mem::replace(&mut way.met, true);
            way.latency
                .sample(u64::try_from(now.since(asked).as_nanos()).unwrap_or(u64::MAX));
            if first {
                // It may have been thought dead.
                self.core.move_way(rank, at, PathEvent::Answered);
            }
            self.proved_alive(rank, at);
            self.core.refresh(rank);
        }
    }

    /// The peer has answered over this way: those that wait for it know that the fault is their own.
    fn proved_alive(&mut self, rank: u32, over: usize) {
        let peer = &self.core.peers[rank as usize];
        for (at, path) in peer.paths.iter().enumerate() {
            if at != over && matches!(peer.way(at), PathState::Suspect | PathState::Returning) {
                self.rails[usize::from(path.rail)].rail.proved_alive(path.peer);
            }
        }
    }

    fn tick_way(&mut self, now: Time, rank: u32, at: usize) {
        let way = &self.core.watch(rank).ways[at];
        match way.state {
            PathState::Up => {
                self.tick_used(now, rank, at);
                self.doubt(now, rank, at);
            }
            PathState::Suspect => self.tick_suspect(now, rank, at),
            PathState::Down => self.tick_down(now, rank, at),
            PathState::Probing => self.tick_called(now, rank, at),
            PathState::Returning => self.tick_returning(now, rank, at),
        }
    }

    /// A way that is used is measured while there is traffic, and asked for a sign of life while another is suspect.
    fn tick_used(&mut self, now: Time, rank: u32, at: usize) {
        let hot = &self.core.hot[rank as usize];
        let traffic = hot.charged.wrapping_add(hot.consumed);
        let watch = self.core.watch(rank);
        let alarmed = watch.ways.iter().any(|way| way.state == PathState::Suspect);
        let idle = watch.ways[at].traffic == traffic;
        if watch.ways.len() == 1 || (idle && !alarmed) {
            return;
        }
        let pace = if alarmed { ALARMED } else { COMPARED };
        let way = &mut watch.ways[at];
        if way.probed + pace <= now {
            way.traffic = traffic;
            self.ask_over(now, rank, at, pace);
        }
        if alarmed {
            self.core.watch_due = self.core.watch_due.min(now + pace);
        }
    }

    /// A way over which nothing was ever answered, while the peer answers over another one, may be dead from the start:
    /// its rail, which waits long for a peer that has yet to begin, does not know of the other one.
    fn doubt(&mut self, now: Time, rank: u32, at: usize) {
        let ways = &self.core.watch(rank).ways;
        let since = ways[at].unmet.filter(|_| !ways[at].met);
        let Some(since) = since.filter(|_| ways.iter().any(|way| way.met)) else {
            return;
        };
        let due = since + ANSWER;
        if due <= now {
            self.core.move_way(rank, at, PathEvent::Silent);
        } else {
            self.core.watch_due = self.core.watch_due.min(due);
        }
    }

    /// Its rail says when it answers again. One that was suspect before it ever answered is asked for as long as it is:
    /// nothing else may be on its way over it.
    fn tick_suspect(&mut self, now: Time, rank: u32, at: usize) {
        if !self.core.watch(rank).ways[at].met {
            self.ask_over(now, rank, at, ANSWER);
            self.core.watch_due = self.core.watch_due.min(now + ANSWER);
        }
    }

    fn tick_down(&mut self, now: Time, rank: u32, at: usize) {
        let way = &mut self.core.watch(rank).ways[at];
        if way.dead {
            return;
        }
        if way.due > now {
            let due = way.due;
            self.core.watch_due = self.core.watch_due.min(due);
            return;
        }
        self.core.move_way(rank, at, PathEvent::Called);
        self.call(now, rank, at);
    }

    /// Calls the peer over a way that is down.
    pub(super) fn call(&mut self, now: Time, rank: u32, at: usize) {
        let path = &self.core.peers[rank as usize].paths[at];
        let (rail, peer) = (usize::from(path.rail), path.peer);
        self.rails[rail].rail.revive(peer);
        self.core.counters.calls += 1;
        let way = &mut self.core.watch(rank).ways[at];
        way.due = now + ANSWER;
        self.core.watch_due = self.core.watch_due.min(now + ANSWER);
    }

    fn tick_called(&mut self, now: Time, rank: u32, at: usize) {
        let way = &mut self.core.watch(rank).ways[at];
        if way.due <= now {
            self.core.move_way(rank, at, PathEvent::Unanswered);
        }
        let due = self.core.watch(rank).ways[at].due;
        self.core.watch_due = self.core.watch_due.min(due);
    }

    fn tick_returning(&mut self, now: Time, rank: u32, at: usize) {
        let way = &self.core.watch(rank).ways[at];
        let end = way.since + way.hold;
        if way.answers >= PROOFS && end <= now {
            return self.way_steady(rank, at);
        }
        let pace = way.hold / (PROOFS + 1);
        if way.probed + pace <= now {
            self.ask_over(now, rank, at, pace);
        }
        let next = if end > now {
            end.min(now + pace)
        } else {
            now + pace
        };
        self.core.watch_due = self.core.watch_due.min(next);
    }

    /// Asks over this way for an answer over this way. An earlier question that was not answered is waited for first:
    /// its time is what is to be measured.
    fn ask_over(&mut self, now: Time, rank: u32, at: usize, pace: Duration) {
        let way = &mut self.core.watch(rank).ways[at];
        if way.asked.is_some_and(|asked| now.since(asked) < ANSWER.max(pace)) {
            return;
        }
        way.probed = now;
        way.number = way.number.wrapping_add(1);
        let number = way.number;
        if self.say_over(rank, at, WayHeader::new(kind::PROBE, at as u16, number)) {
            let way = &mut self.core.watch(rank).ways[at];
            way.asked = Some(now);
            way.unmet.get_or_insert(now);
            self.core.counters.probes += 1;
        }
    }

    /// Sends a word over one way and no other; `false` when its rail does not take it.
    pub(super) fn say_over(&mut self, rank: u32, at: usize, word: WayHeader) -> bool {
        let path = &self.core.peers[rank as usize].paths[at];
        let rail = &mut self.rails[usize::from(path.rail)].rail;
        let sent = rail.send(path.peer, word.as_bytes(), Body::Empty).is_ok();
        if sent {
            rail.flush();
            // The time of the answer is what is to be measured, not that until somebody looks.
            self.paces.expect(usize::from(path.rail));
        }
        sent
    }
}

impl Core {
    /// Time that this process did not look, although it should have, is not the peer's: what it says may be here already.
    pub(crate) fn excuse(&mut self, now: Time) {
        let in_time = self.watch_due.since(self.now).max(TICK);
        let away = now.since(self.now);
        if away <= in_time {
            return;
        }
        for rank in &self.watched {
            if let Some(watch) = &mut self.peers[*rank as usize].watch {
                watch.excuse(away - in_time);
            }
        }
    }
}

impl Watch {
    fn excuse(&mut self, away: Duration) {
        if let Some((until, _)) = &mut self.alone {
            *until += away;
        }
        if let Some(until) = &mut self.ended {
            *until += away;
        }
    }
}
