//! The paths of one peer, what is measured of them, and which of them small and long messages take.

use std::ops::Index;

use doorbell_fabric::message::MsgId;
use doorbell_fabric::time::Time;
use doorbell_paths::{Flow, PATHS_MAX, PathState, PeerPaths, Share, as_good_as_best, each, first_there};

use crate::error::LostReason;
use crate::paths::Path;
use crate::rails::RailId;

/// Bytes of a message by which paths are compared: between the shortest and the longest that are sent at
/// once.
const TYPICAL: u64 = 1024;

/// What is watched of a peer.
#[derive(Debug)]
struct Watch {
    states: PeerPaths,
    /// Fragments under way over each path, and their rate.
    flows: Vec<Flow>,
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

/// The paths of a peer, in the order in which both ends number them.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    all: Vec<Path>,
    /// Present with several paths, or after trouble.
    watch: Option<Box<Watch>>,
    /// The path in use, or next in turn: a byte, as idle peers are many.
    current: u8,
    /// Why the peer is lost, if it is: here, where it takes no further word of an idle peer.
    lost: Option<LostReason>,
}

impl Paths {
    /// Returns why the peer is lost, if it is.
    pub(crate) fn lost(&self) -> Option<LostReason> {
        self.lost
    }

    /// Adds a path, or takes the place of the one over the same rail.
    pub(crate) fn put(&mut self, path: Path) {
        match self.over(path.rail()) {
            Some(at) => self.all[at] = path,
            None => {
                // One or two per peer: a vector that grows by itself makes room for four.
                self.all.reserve_exact(1);
                self.all.push(path);
            }
        }
    }

    /// Returns their number.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Path> {
        self.all.iter()
    }

    /// The first path that is up.
    pub(crate) fn first_up(&self) -> Option<usize> {
        self.all.iter().position(Path::is_up)
    }

    /// The path over a rail.
    pub(crate) fn over(&self, rail: RailId) -> Option<usize> {
        self.all.iter().position(|path| path.rail() == rail)
    }

    /// Notes whether a path may carry messages.
    pub(crate) fn set_up(&mut self, at: usize, is_up: bool) {
        self.all[at].set_up(is_up);
    }

    /// The peer is lost: no path is up or watched any more.
    pub(crate) fn close(&mut self, reason: LostReason) {
        self.lost = Some(reason);
        self.watch = None;
        for path in &mut self.all {
            path.set_up(false);
        }
    }

    // The measurements of watched peers.

    /// Returns what is watched of the peer, from now on of all its paths.
    fn watched(&mut self) -> &mut Watch {
        let paths = self.all.len();
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

    /// The states of the paths, which are watched from now on.
    pub(crate) fn states(&mut self) -> &mut PeerPaths {
        &mut self.watched().states
    }

    /// Whether the paths are watched.
    pub(crate) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Whether the peer has yet to be notified that a path broke.
    pub(crate) fn has_news(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.states.has_news())
    }

    /// The state of a path, while the peer is not lost.
    pub(crate) fn state(&self, at: usize) -> PathState {
        let watch = self.watch.as_ref();
        watch.map_or(PathState::Up, |watch| watch.states.state(at))
    }

    /// While no path is up: until when one is waited for, why the last one went, and the paths over which the
    /// peer is called, as a set.
    pub(crate) fn alone(&self) -> Option<(Time, LostReason, u64)> {
        let states = &self.watch.as_ref()?.states;
        let (until, reason) = states.alone()?;
        Some((until, reason.into(), states.living()))
    }

    /// Half of the round trip of a path's probes (ns).
    pub(crate) fn measured(&self, at: usize) -> Option<u64> {
        self.watch.as_ref()?.states.latency(at)
    }

    /// Bytes per second of a path, once measured; not zero.
    pub(crate) fn measured_rate(&self, at: usize) -> Option<u64> {
        self.watch.as_ref()?.flows.get(at)?.rate()
    }

    // Small messages.

    /// The path in use, or next in turn.
    pub(crate) fn current(&self) -> usize {
        usize::from(self.current)
    }

    /// The path in use, if it is up.
    pub(crate) fn current_up(&self) -> Option<&Path> {
        self.all.get(self.current()).filter(|path| path.is_up())
    }

    /// Small messages take this path.
    pub(crate) fn take(&mut self, at: usize) {
        const { assert!(PATHS_MAX <= 256) };
        self.current = at as u8;
    }

    /// Whether small messages take a path: alone, or in turn with others.
    pub(crate) fn takes_small(&self, at: usize) -> bool {
        let small = self.watch.as_ref().map_or(0, |watch| watch.small);
        self.all[at].is_up() && (at == self.current() || small & 1 << at != 0)
    }

    /// Whether small messages take several paths in turn.
    fn takes_turns(&self) -> bool {
        self.watch
            .as_ref()
            .is_some_and(|watch| watch.small.count_ones() > 1)
    }

    /// The paths that may carry messages, as a set: those that are up; or, when there is none, the suspects.
    pub(crate) fn usable(&self) -> u64 {
        let of = |state| {
            let paths = self.all.iter().enumerate();
            let these = paths.filter(|(at, path)| path.is_up() && self.state(*at) == state);
            these.fold(0, |set, (at, _)| set | 1 << at)
        };
        match of(PathState::Up) {
            0 => of(PathState::Suspect),
            up => up,
        }
    }

    /// Returns what was measured of all of these paths: what is measured and what is estimated cannot be
    /// compared.
    fn known(&self, among: u64) -> Known {
        Known {
            latency: each(among).all(|at| self.measured(at).is_some()),
            rate: each(among).all(|at| self.measured_rate(at).is_some()),
        }
    }

    /// Returns how long (ns) messages that are sent at once take over a path, as far as that distinguishes
    /// paths. Its latency alone would not do: over a path that is as quick, and much narrower, they would
    /// wait for each other.
    fn cost(&self, at: usize, known: Known) -> u64 {
        let measured = self.measured(at).filter(|_| known.latency);
        let latency = measured.unwrap_or(self.all[at].can().estimate.latency_ns);
        let rate = self.measured_rate(at).filter(|_| known.rate);
        latency + rate.map_or(0, |rate| TYPICAL * 1_000_000_000 / rate)
    }

    /// Finds the paths that are as good as the best for small messages, or with `spread` all that can be
    /// used; the one in use stays if it is among them.
    pub(crate) fn compare(&mut self, spread: bool) {
        let usable = self.usable();
        let known = self.known(usable);
        let in_use = self.watch.as_ref().map_or(0, |watch| watch.small);
        let small = if spread {
            usable
        } else {
            as_good_as_best(usable, in_use & usable, |at| self.cost(at, known))
        };
        if small & 1 << self.current() == 0
            && let Some(best) = each(small).min_by_key(|at| self.cost(*at, known))
        {
            self.take(best);
        }
        if let Some(watch) = &mut self.watch {
            watch.small = small;
        }
    }

    /// The turn of the path in use begins, where several take turns, and ends `turn` bytes after `charged`.
    pub(crate) fn begin_turn(&mut self, charged: u64, turn: u64) {
        let turns = self.takes_turns();
        if let Some(watch) = &mut self.watch {
            watch.turn_end = if turns { charged + turn } else { u64::MAX };
        }
    }

    /// Returns what may be charged before the turn of the path in use ends.
    pub(crate) fn turn_end(&self) -> u64 {
        self.watch.as_ref().map_or(u64::MAX, |watch| watch.turn_end)
    }

    /// Whether the turn of the path in use is over, and another one takes its own.
    pub(crate) fn turn_is_over(&self, charged: u64) -> bool {
        self.watch.as_ref().is_some_and(|watch| charged >= watch.turn_end) && self.takes_turns()
    }

    /// Goes on to the next of the paths that take turns.
    pub(crate) fn take_next(&mut self) {
        let Some(watch) = &self.watch else { return };
        let (small, count) = (watch.small, self.all.len());
        let next = (1..=count)
            .map(|step| (self.current() + step) % count)
            .find(|at| small & 1 << at != 0 && self.all[*at].is_up());
        if let Some(next) = next {
            self.take(next);
        }
    }

    // Long messages.

    /// Bytes per second of a path: measured, or as its rail estimates.
    fn rate(&self, at: usize) -> u64 {
        let measured = self.measured_rate(at);
        measured.unwrap_or(self.all[at].can().estimate.bandwidth).max(1)
    }

    /// The paths that a long message may take together, as a set; of one, when there is nothing to gain by
    /// more.
    pub(crate) fn stripes(&self) -> u64 {
        if self.watch.is_none() || self.all.len() < 2 {
            return 0;
        }
        let usable = self.usable();
        let within = each(usable).find(|at| self.all[*at].can().features.within_host);
        within.map_or_else(|| self.one_of_each_port(usable), |at| 1 << at)
    }

    /// Leaves the best path of each port: rails of one port share its bandwidth, which counts once.
    fn one_of_each_port(&self, set: u64) -> u64 {
        let port = |at: usize| self.all[at].can().features.port;
        // Not as measured: rates of one port that differ a little would have them take turns.
        let worth = |at: usize| (self.all[at].can().estimate.bandwidth, self.all[at].fragment());
        let is_best = |at: &usize| {
            let rivals = || each(set).filter(|other| *other != *at && port(*other) == port(*at));
            port(*at) == 0 || rivals().all(|other| (worth(other), *at) < (worth(*at), other))
        };
        each(set).filter(is_best).fold(0, |left, at| left | 1 << at)
    }

    /// The path that the next fragment of a message takes, of which `left` bytes are left; `None`: the ones
    /// that are worth it have enough under way.
    pub(crate) fn next_stripe(&self, set: u64, left: u64, depth: usize) -> Option<usize> {
        let flows = &self.watch.as_ref()?.flows;
        first_there(set, left, |at| Share {
            flying: flows[at].bytes(),
            rate: self.rate(at),
            part: self.all[at].fragment() as u64,
            is_open: flows[at].count() < depth,
        })
    }

    /// A fragment of a striped message has left over a path. Returns whether its arrival is watched.
    pub(crate) fn fragment_left(&mut self, now: Time, at: usize, number: MsgId, bytes: usize) -> bool {
        let Some(watch) = &mut self.watch else {
            return false;
        };
        watch.flows[at].left(now, number, bytes);
        true
    }

    /// Whether fragments of striped messages are under way.
    pub(crate) fn has_fragments(&self) -> bool {
        let flows = self.watch.as_ref().map(|watch| &watch.flows);
        flows.is_some_and(|flows| flows.iter().any(|flow| flow.count() > 0))
    }

    /// Takes note of the fragments that have arrived over some paths, up to the watermark of each. Returns
    /// whether a rate was measured.
    pub(crate) fn fragments_arrived(
        &mut self,
        now: Time,
        set: u64,
        mut watermark: impl FnMut(&Path) -> MsgId,
    ) -> bool {
        let Some(watch) = &mut self.watch else {
            return false;
        };
        let mut measured = false;
        for at in each(set) {
            let flow = &mut watch.flows[at];
            if flow.count() > 0 {
                measured |= flow.arrived(now, watermark(&self.all[at]));
            }
        }
        measured
    }

    /// A path broke: its rail gives back what was under way.
    pub(crate) fn forget_fragments(&mut self, at: usize) {
        self.watched().flows[at].clear();
    }
}

impl Index<usize> for Paths {
    type Output = Path;

    #[inline]
    fn index(&self, at: usize) -> &Path {
        &self.all[at]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
    use doorbell_fabric::message::PeerIndex;

    use super::*;
    use crate::config::PmlConfig;
    use crate::rank::Rank;

    /// The paths over rails of these ports and estimates of their bandwidth that a long message takes.
    fn stripes(rails: &[(u32, u64)]) -> Vec<usize> {
        let config = PmlConfig::new(Rank(0), 2, 1);
        let mut paths = Paths::default();
        for (at, (port, bandwidth)) in rails.iter().enumerate() {
            let can = Capabilities {
                features: Features {
                    port: *port,
                    ..Features::default()
                },
                limits: Limits {
                    head: 256,
                    message: 8192,
                    inline: 64,
                    eager: 8192,
                    fragment: 8192,
                    get_from: 8192,
                    parts: 1,
                    one_sided: 0,
                },
                estimate: Estimate {
                    latency_ns: 1000,
                    bandwidth: *bandwidth,
                },
            };
            paths.put(Path::new(
                &config,
                RailId(at as u16),
                PeerIndex(0),
                &Arc::new(can),
            ));
        }
        let _ = paths.states();
        each(paths.stripes()).collect()
    }

    #[test]
    fn of_each_port_the_best_rail_is_used_and_of_no_port_all() {
        assert_eq!(stripes(&[(0, 5), (0, 5)]), [0, 1]);
        assert_eq!(stripes(&[(7, 5), (7, 5)]), [0]);
        assert_eq!(stripes(&[(7, 5), (7, 9), (0, 1)]), [1, 2]);
        assert_eq!(stripes(&[(7, 5), (9, 5), (7, 5), (9, 6)]), [0, 3]);
    }
}
