//! The choice of the path that a message takes.
//!
//! Small messages take one path, the one of the least latency. Long ones take several where that brings
//! bandwidth: each the path on which it will be there first, by what is under way and what the rails estimate
//! of their rates; a path that is slower than estimated has more under way, and is given less. Within a host,
//! one path has all the bandwidth there is.

use doorbell_fabric::caps::Limits;
use doorbell_fabric::message::Message;
use doorbell_paths::{PathState, each, time_of};

use super::path::Path;
use super::{Link, NO_RUN, Sizes};

/// Shorter messages are never striped: the paths' latencies would cost more than their rates bring.
const STRIPED_FROM: usize = 4096;

impl<M: Message> Link<M> {
    /// The path that a message takes.
    pub(super) fn pick(&mut self, peer: u32, length: usize, tried: u64) -> Option<usize> {
        let known = &mut self.core.peers[peer as usize];
        if known.stripes == 0 || length < known.stripe_from {
            let at = known.current;
            let fits = |path: &Path| self.rails[usize::from(path.rail)].can.limits.message >= length;
            let fits = known.is_used(at) && known.paths.get(at).is_some_and(fits);
            return (tried & 1 << at == 0 && fits).then_some(at);
        }
        let mut best = None;
        for at in each(known.stripes & !tried) {
            let path = &mut known.paths[at];
            let slot = &mut self.rails[usize::from(path.rail)];
            if slot.can.limits.message < length {
                continue;
            }
            let bytes = path.flight.bytes(slot.rail.handed_over(path.index)) + length as u64;
            let there =
                time_of(bytes, slot.can.estimate.bandwidth) + u128::from(slot.can.estimate.latency_ns);
            if best.is_none_or(|(least, _)| there < least) {
                best = Some((there, at));
            }
        }
        best.map(|(_, at)| at)
    }

    /// Decides again which paths a peer's messages take, and with which sizes.
    pub(super) fn refresh(&mut self, peer: u32) {
        self.core.settle(peer);
        let rails = &self.rails;
        let can = |path: &Path| &rails[usize::from(path.rail)].can;
        let known = &mut self.core.peers[peer as usize];
        let mut used = known.states.in_state(|state| state == PathState::Up);
        if used == 0 {
            used = known.states.in_state(|state| state == PathState::Suspect);
        }
        let latency = |at: &usize| (can(&known.paths[*at]).estimate.latency_ns, *at);
        let best = each(used).min_by_key(latency);
        let within = each(used).any(|at| can(&known.paths[at]).features.within_host);
        let stripes = used & known.states.met();
        known.stripes = if within || stripes.count_ones() < 2 {
            0
        } else {
            stripes
        };
        known.current = best.unwrap_or(known.current);
        let over = if known.stripes == 0 {
            best.map_or(0, |at| 1 << at)
        } else {
            known.stripes
        };
        let least = |of: fn(&Limits) -> usize| {
            move |set: u64, paths: &[Path]| each(set).map(|at| of(&can(&paths[at]).limits)).min()
        };
        let all = known.states.living();
        let message = least(|limits| limits.message)(all, &known.paths);
        let get = each(used)
            .map(|at| can(&known.paths[at]))
            .filter(|can| can.features.get)
            .map(|can| can.limits.get_from)
            .min();
        if let Some(message) = message {
            let fragment = least(|limits| limits.fragment)(over, &known.paths)
                .unwrap_or(message)
                .min(message);
            let eager = best
                .map_or(message, |at| can(&known.paths[at]).limits.eager)
                .min(message);
            known.stripe_from = (fragment / 2).max(STRIPED_FROM);
            known.sizes = Some(Sizes {
                message,
                eager,
                fragment,
                get_from: get,
            });
        }
        self.core.hot[peer as usize].run = NO_RUN;
        self.reopen(peer);
    }

    /// Opens the short way for the messages of a peer, if nothing waits and a path is used.
    pub(super) fn reopen(&mut self, peer: u32) {
        let known = &self.core.peers[peer as usize];
        let hot = &mut self.core.hot[peer as usize];
        hot.limit = 0;
        if known.lost || !known.is_used(known.current) {
            return;
        }
        let path = &known.paths[known.current];
        (hot.rail, hot.index) = (path.rail, path.index);
        if known.waits() {
            self.core.list(peer);
            return;
        }
        let longest = known.sizes.map_or(0, |sizes| sizes.message);
        let short = if known.stripes == 0 {
            longest
        } else {
            longest.min(known.stripe_from - 1)
        };
        hot.limit = u32::try_from(short).unwrap_or(u32::MAX);
    }
}
