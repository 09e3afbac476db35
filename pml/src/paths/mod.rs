//! The paths of a peer: which of them carries what.
//!
//! | file | job |
//! |---|---|
//! | `mod` | which path small messages take |
//! | `stripe` | long messages over several paths at a time, by what each carries |
//! | `layer` | what [`doorbell_paths`] needs of the PML when a path breaks, returns, or is probed |
//!
//! A peer with one path that never failed has nothing of this (its [`Watch`] is made when there is a second
//! one, or trouble), and a message sees nothing of it but the rail that [`Hot`](crate::peer::Hot) names.

mod layer;
pub(crate) mod stripe;

use doorbell_fabric::time::Time;
use doorbell_paths::{Flow, PathState, PeerPaths, as_good_as_best, each};

use crate::core::Core;
use crate::error::LostReason;
use crate::peer::{Hot, Peer, about};
use crate::rank::Rank;

/// Bytes charged before small messages go on to the next of several equal paths. Longer ones never take the
/// fast path then: it has to be long enough for that to cost nothing.
const TURN: u64 = 16 << 10;
/// Bytes of a message by which paths are compared: between the shortest and the longest that are sent at
/// once.
const TYPICAL: u64 = 1024;

/// What is watched of a peer.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) states: PeerPaths,
    /// Fragments under way over each path, and their rate.
    pub(crate) flows: Vec<Flow>,
    /// The paths that small messages take in turn, as a set; and what may be charged before the next one's
    /// turn.
    small: u64,
    turn_end: u64,
}

/// What was measured of some paths.
#[derive(Clone, Copy, Debug)]
struct Known {
    latency: bool,
    rate: bool,
}

impl Peer {
    /// What is watched of the peer, from now on of all its paths.
    pub(crate) fn watch(&mut self) -> &mut Watch {
        let paths = self.paths.len();
        let watch = self.watch.get_or_insert_with(|| {
            Box::new(Watch {
                states: PeerPaths::default(),
                flows: Vec::new(),
                small: 0,
                turn_end: u64::MAX,
            })
        });
        watch.states.grow(paths);
        if watch.flows.len() < paths {
            watch.flows.resize_with(paths, Flow::default);
        }
        watch
    }

    /// Whether the peer has yet to be notified that a path broke.
    pub(crate) fn has_news(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.states.has_news())
    }

    /// Whether small messages take several paths in turn.
    fn takes_turns(&self) -> bool {
        self.watch
            .as_ref()
            .is_some_and(|watch| watch.small.count_ones() > 1)
    }

    /// The state of a path. A lost peer is not watched any more, and none of its paths is up.
    pub(crate) fn state(&self, at: usize) -> PathState {
        if self.lost.is_some() {
            return PathState::Down;
        }
        let watch = self.watch.as_ref();
        watch.map_or(PathState::Up, |watch| watch.states.state(at))
    }

    /// Whether small messages take a path: alone, or in turn with others.
    pub(crate) fn takes_small(&self, at: usize) -> bool {
        let small = self.watch.as_ref().map_or(0, |watch| watch.small);
        self.paths[at].up && (at == self.current() || small & 1 << at != 0)
    }

    /// The paths that may carry messages, as a set: those that are up; or, when there is none, the suspects.
    pub(crate) fn usable(&self) -> u64 {
        let of = |state| {
            let paths = self.paths.iter().enumerate();
            let these = paths.filter(|(at, path)| path.up && self.state(*at) == state);
            these.fold(0, |set, (at, _)| set | 1 << at)
        };
        match of(PathState::Up) {
            0 => of(PathState::Suspect),
            up => up,
        }
    }

    /// What of these paths was measured, of all of them: what is measured and what is estimated cannot be
    /// compared.
    fn known(&self, among: u64) -> Known {
        Known {
            latency: each(among).all(|at| self.measured(at).is_some()),
            rate: each(among).all(|at| self.measured_rate(at).is_some()),
        }
    }

    /// No path is up: until when one is waited for, why the last one went, and the paths over which the peer
    /// is called, as a set.
    pub(crate) fn alone(&self) -> Option<(Time, LostReason, u64)> {
        let states = &self.watch.as_ref()?.states;
        let (until, reason) = states.alone()?;
        Some((until, reason.into(), states.living()))
    }

    /// Half of the round trip of a path's probes (ns).
    pub(crate) fn measured(&self, at: usize) -> Option<u64> {
        self.watch.as_ref()?.states.latency(at)
    }

    /// How long (ns) messages that are sent at once take over a path, as far as that distinguishes paths. Its
    /// latency alone would not do: over a path that is as quick, and much narrower, they would wait for each
    /// other.
    fn cost(&self, at: usize, known: Known) -> u64 {
        let measured = self.measured(at).filter(|_| known.latency);
        let latency = measured.unwrap_or(self.paths[at].can.estimate.latency_ns);
        let rate = self.measured_rate(at).filter(|_| known.rate);
        latency + rate.map_or(0, |rate| TYPICAL * 1_000_000_000 / rate)
    }
}

impl Core {
    /// Watches a peer from now on.
    pub(crate) fn watch(&mut self, rank: Rank) {
        if let Some((states, timers)) = self.paths_of(rank) {
            timers.watch(rank.0, states);
        }
    }

    /// Whether something that was accepted waits for a path that may come back.
    pub(crate) fn waits_for_a_path(&self) -> bool {
        let waits = |rank: Rank| {
            let peer = &self.peers[rank];
            let states = peer.watch.as_ref().map(|watch| &watch.states);
            states.is_some_and(|states| states.alone().is_some())
                && !(peer.control.is_empty()
                    && !peer.has_news()
                    && peer.tasks.is_empty()
                    && peer.sends.is_empty())
        };
        self.timers.watched().map(Rank).any(waits)
    }

    /// Decides again which path small messages take, and whether the fast path may be taken.
    pub(crate) fn refresh(&mut self, rank: Rank) {
        self.hot[rank].below = 0;
        if self.hot[rank].is(about::LOST) {
            return;
        }
        let peer = &mut self.peers[rank];
        if peer.watch.is_some() {
            self.compare(rank);
        } else {
            let Some(at) = peer.first_up() else { return };
            peer.take(at);
        }
        self.use_current(rank);
    }

    /// Finds the paths that are as good as the best for small messages; the one in use stays if it is among
    /// them.
    fn compare(&mut self, rank: Rank) {
        let spread = self.config.spread;
        let peer = &mut self.peers[rank];
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

    /// Small messages go over the current path from now on, if it can be used.
    fn use_current(&mut self, rank: Rank) {
        let (hot, peer) = (&mut self.hot[rank], &mut self.peers[rank]);
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
        // A message of the PML's own that a dead rail gave back does not have to leave first: the order is
        // restored by the receiver.
        self.reopen(rank);
    }

    /// Nothing waits any more: the fast path may be taken again, over the path that small messages take now.
    pub(crate) fn reopen(&mut self, rank: Rank) {
        let (hot, peer) = (&mut self.hot[rank], &self.peers[rank]);
        let path = peer.paths.get(peer.current()).filter(|path| path.up);
        if let Some(path) = path.filter(|_| peer.sends.is_empty() && !self.config.checksum) {
            hot.below = u32::try_from(path.eager + 1).unwrap_or(u32::MAX);
        }
    }

    /// The path that the next message to `rank` takes.
    pub(crate) fn next_path(&mut self, rank: Rank) -> Option<usize> {
        let (hot, peer) = (&self.hot[rank], &mut self.peers[rank]);
        let over = peer
            .watch
            .as_ref()
            .is_some_and(|watch| hot.charged >= watch.turn_end);
        if over && peer.takes_turns() {
            self.next_in_turn(rank);
        }
        let peer = &self.peers[rank];
        let path = peer.paths.get(peer.current())?;
        path.up.then_some(peer.current())
    }

    /// The next of the paths that take turns.
    fn next_in_turn(&mut self, rank: Rank) {
        let peer = &mut self.peers[rank];
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
    /// Sets what may be charged before the fast path looks again: the window, or the end of this path's turn.
    pub(crate) fn limit(&mut self, peer: &Peer) {
        let turn_end = peer.watch.as_ref().map_or(u64::MAX, |watch| watch.turn_end);
        self.limit = self.window_end.min(turn_end);
    }
}
