//! Ways: a peer over each of its rails. Which of them carries what, when one is given up, and how it comes back.
//!
//! | file | job |
//! |---|---|
//! | `stripe` | long messages over several ways at a time, by what each carries |
//! | `turns` | events of rails and of the peer: a way breaks, answers, comes back |
//! | `tick` | what time brings: calls, probes, the end of patience |
//!
//! A peer with one way that never failed has nothing of this (its [`Watch`] is made when there is a second one, or
//! trouble), and a message sees nothing of it but the rail that [`Hot`](crate::peer::Hot) names.
//!
//! The ways of a peer are numbered in the order of `connect`, which is the same at both ends: so each can tell the other
//! which one is broken.

pub(crate) mod stripe;
mod tick;
mod turns;

use std::time::Duration;

use doorbell_fabric::event::Life;
use doorbell_fabric::time::Time;
use doorbell_paths::latency::{Latency, as_good_as_best};
use doorbell_paths::{PathState, each};

use crate::core::Core;
use crate::error::LostReason;
use crate::peer::{Hot, Peer, about};
use stripe::Flow;

/// Bytes charged before small messages go on to the next of several equal ways. Longer ones never take the fast path
/// then: it has to be long enough for that to cost nothing.
const TURN: u64 = 16 << 10;
/// Bytes of a message by which ways are compared: between the shortest and the longest that are sent at once.
const TYPICAL: u64 = 1024;

/// What is watched of one way.
#[derive(Debug, Default)]
pub(crate) struct Way {
    pub(crate) state: PathState,
    /// The last connection that was up, as its rail numbers them, which is the same at the other end.
    life: Life,
    /// Since when it is in this state; when something is to be done about it.
    since: Time,
    due: Time,
    /// How long to wait before the next call, and how long it has to stay good before it is used again.
    back_off: Duration,
    hold: Duration,
    /// When it last went down.
    fell: Option<Time>,
    /// Its device is gone, or it broke the rules: it does not come back.
    dead: bool,
    /// When the probe under way left, when the last one did, and its number; what had been sent and received then.
    asked: Option<Time>,
    probed: Time,
    /// Whether a probe was ever answered over it; if not, since when one is asked for.
    met: bool,
    unmet: Option<Time>,
    number: u32,
    traffic: u64,
    /// Probes answered since it returned.
    answers: u32,
    pub(crate) latency: Latency,
    /// Fragments under way, and their rate.
    pub(crate) flow: Flow,
    /// What arrived since the last tick: a probe of the peer to be answered, and the answer to ours.
    pub(crate) to_answer: Option<u32>,
    pub(crate) answered: Option<u32>,
    /// The peer gave this connection up: that of now, or one that has not come up at this end.
    given_up: Option<Life>,
}

impl Way {
    /// The peer says that it gave a connection up. `false` when it is late: there has been another one since.
    pub(crate) fn hear_broken(&mut self, life: Life) -> bool {
        if life.is_before(self.life) {
            return false;
        }
        if self.given_up.is_none_or(|known| known.is_before(life)) {
            self.given_up = Some(life);
        }
        true
    }

    /// The connection of now is over: of what the peer said it gave up, only a later one is news.
    fn forget_given_up(&mut self) {
        self.given_up = self.given_up.filter(|life| self.life.is_before(*life));
    }
}

/// What is watched of a peer.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) ways: Vec<Way>,
    /// The ways that small messages take in turn, as a set; and what may be charged before the next one's turn.
    pub(crate) small: u64,
    pub(crate) turn_end: u64,
    /// No way is up: until when one is waited for, and why the last one went.
    alone: Option<(Time, LostReason)>,
    /// The peer's process has ended: until when its last messages are read.
    ended: Option<Time>,
}

/// What was measured of some ways.
#[derive(Clone, Copy, Debug)]
struct Known {
    latency: bool,
    rate: bool,
}

impl Peer {
    /// Whether small messages take several ways in turn.
    fn takes_turns(&self) -> bool {
        self.watch
            .as_ref()
            .is_some_and(|watch| watch.small.count_ones() > 1)
    }

    /// The state of a way. A lost peer is not watched any more, and none of its ways is up.
    pub(crate) fn way(&self, at: usize) -> PathState {
        if self.lost.is_some() {
            return PathState::Down;
        }
        let watched = self.watch.as_ref().and_then(|watch| watch.ways.get(at));
        watched.map_or(PathState::Up, |way| way.state)
    }

    /// Whether small messages take a way: alone, or in turn with others.
    pub(crate) fn takes_small(&self, at: usize) -> bool {
        let small = self.watch.as_ref().map_or(0, |watch| watch.small);
        self.paths[at].up && (at == self.current() || small & 1 << at != 0)
    }

    /// The ways that may carry messages, as a set: those that are up; or, when there is none, the suspects.
    pub(crate) fn usable(&self) -> u64 {
        let of = |state| {
            let paths = self.paths.iter().enumerate();
            let these = paths.filter(|(at, path)| path.up && self.way(*at) == state);
            these.fold(0, |set, (at, _)| set | 1 << at)
        };
        match of(PathState::Up) {
            0 => of(PathState::Suspect),
            up => up,
        }
    }

    /// What of these ways was measured, of all of them: what is measured and what is estimated cannot be compared.
    fn known(&self, among: u64) -> Known {
        Known {
            latency: each(among).all(|at| self.measured(at).is_some()),
            rate: each(among).all(|at| self.measured_rate(at).is_some()),
        }
    }

    /// No way is up: until when one is waited for, why the last one went, and the ways over which the peer is called, as a
    /// set.
    pub(crate) fn alone(&self) -> Option<(Time, LostReason, u64)> {
        let watch = self.watch.as_ref()?;
        let (until, reason) = watch.alone?;
        let ways = watch.ways.iter().enumerate();
        let called = ways.filter(|(_, way)| !way.dead);
        Some((until, reason, called.fold(0, |set, (at, _)| set | 1 << at)))
    }

    /// Half of the round trip of a way's probes (ns).
    pub(crate) fn measured(&self, at: usize) -> Option<u64> {
        self.watch.as_ref()?.ways.get(at)?.latency.half()
    }

    /// How long (ns) messages that are sent at once take over a way, as far as that tells ways apart. Its latency alone
    /// would not do: over a way that is as quick, and much narrower, they would wait for each other.
    fn cost(&self, at: usize, known: Known) -> u64 {
        let measured = self.measured(at).filter(|_| known.latency);
        let latency = measured.unwrap_or(self.paths[at].can.estimate.latency_ns);
        let rate = self.measured_rate(at).filter(|_| known.rate);
        latency + rate.map_or(0, |rate| TYPICAL * 1_000_000_000 / rate)
    }
}

impl Core {
    /// Watches a peer from now on, and all of its ways.
    pub(crate) fn watch(&mut self, rank: u32) -> &mut Watch {
        let ways = self.peers[rank as usize].paths.len();
        if self.peers[rank as usize].watch.is_none() {
            self.watched.push(rank);
            self.tick_at = Time::ZERO;
        }
        let peer = &mut self.peers[rank as usize];
        let watch = peer.watch.get_or_insert_with(|| {
            Box::new(Watch {
                ways: Vec::new(),
                small: 0,
                turn_end: u64::MAX,
                alone: None,
                ended: None,
            })
        });
        watch.ways.resize_with(ways, Way::default);
        watch
    }

    /// Whether something that was accepted waits for a way that may come back.
    pub(crate) fn waits_for_a_way(&self) -> bool {
        let waits = |rank: &u32| {
            let peer = &self.peers[*rank as usize];
            let alone = peer.watch.as_ref().is_some_and(|watch| watch.alone.is_some());
            alone && !(peer.control.is_empty() && peer.tasks.is_empty() && peer.sends.is_empty())
        };
        self.watched.iter().any(waits)
    }

    /// Decides again which way small messages take, and whether the fast path may be taken.
    pub(crate) fn refresh(&mut self, rank: u32) {
        self.hot[rank as usize].below = 0;
        if self.hot[rank as usize].is(about::LOST) {
            return;
        }
        let peer = &mut self.peers[rank as usize];
        if peer.watch.is_some() {
            self.compare(rank);
        } else {
            let Some(at) = peer.first_up() else { return };
            peer.take(at);
        }
        self.use_current(rank);
    }

    /// Finds the ways that are as good as the best for small messages; the one in use stays if it is among them.
    fn compare(&mut self, rank: u32) {
        let spread = self.config.spread;
        let peer = &mut self.peers[rank as usize];
        let usable = peer.usable();
        let known = peer.known(usable);
        let in_use = peer.watch.as_ref().map_or(0, |watch| watch.small);
        let small = if spread {
            usable
        } else {
            as_good_as_best(usable, in_use & usable, |at| peer.cost(at, known))
        };
        if small & 1 << peer.current() == 0
            && let Some(best) = each(small).min_by_key(|at| peer.cost(*at, known))
        {
            peer.take(best);
        }
        if let Some(watch) = &mut peer.watch {
            watch.small = small;
        }
    }

    /// Small messages go over the current way from now on, if it can be used.
    fn use_current(&mut self, rank: u32) {
        let (hot, peer) = (&mut self.hot[rank as usize], &mut self.peers[rank as usize]);
        let Some(path) = peer.paths.get(peer.current()).filter(|path| path.up) else {
            return;
        };
        hot.rail = path.rail;
        hot.peer = path.peer;
        let turns = peer.takes_turns();
        if let Some(watch) = &mut peer.watch {
            let turn = if self.config.spread { 1 } else { TURN };
            watch.turn_end = if turns { hot.charged + turn } else { u64::MAX };
        }
        hot.limit(peer);
        // A message of the PML's own that a dead rail gave back does not have to leave first: the order is restored
        // by the receiver.
        self.reopen(rank);
    }

    /// Nothing waits any more: the fast path may be taken again, over the way that small messages take now.
    pub(crate) fn reopen(&mut self, rank: u32) {
        let (hot, peer) = (&mut self.hot[rank as usize], &self.peers[rank as usize]);
        let path = peer.paths.get(peer.current()).filter(|path| path.up);
        if let Some(path) = path.filter(|_| peer.sends.is_empty() && !self.config.checksum) {
            hot.below = u32::try_from(path.eager + 1).unwrap_or(u32::MAX);
        }
    }

    /// The way that the next message to `rank` takes.
    pub(crate) fn turn(&mut self, rank: u32) -> Option<usize> {
        let (hot, peer) = (&self.hot[rank as usize], &mut self.peers[rank as usize]);
        let over = peer
            .watch
            .as_ref()
            .is_some_and(|watch| hot.charged >= watch.turn_end);
        if over && peer.takes_turns() {
            self.next_in_turn(rank);
        }
        let peer = &self.peers[rank as usize];
        let path = peer.paths.get(peer.current())?;
        path.up.then_some(peer.current())
    }

    /// The next of the ways that take turns.
    fn next_in_turn(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        let Some(watch) = &peer.watch else { return };
        let (small, count) = (watch.small, peer.paths.len());
        let next = (1..=count)
            .map(|step| (peer.current() + step) % count)
            .find(|at| small & 1 << at != 0 && peer.paths[*at].up);
        if let Some(next) = next {
            peer.take(next);
        }
        self.use_current(rank);
    }
}

impl Hot {
    /// Sets what may be charged before the fast path asks again: the window, or the end of this way's turn.
    pub(crate) fn limit(&mut self, peer: &Peer) {
        let turn_end = peer.watch.as_ref().map_or(u64::MAX, |watch| watch.turn_end);
        self.limit = self.window_end.min(turn_end);
    }
}
