//! Which way a message takes.
//!
//! Small messages take one way, the one of the least latency. Long ones take several where that brings bandwidth: each
//! the way on which it will be there first, by what is under way and what the rails' estimates say of their rates; a way
//! that is slower than estimated has more under way, and is given less. Within a host, one way has all the bandwidth
//! there is.

use doorbell_fabric::caps::Limits;
use doorbell_fabric::message::Message;
use doorbell_paths::{PathState, each};

use super::way::Way;
use super::{Link, NO_RUN, Sizes};

/// Shorter messages are never striped: the ways' latencies would cost more than their rates bring.
const STRIPED_FROM: usize = 4096;

impl<M: Message> Link<M> {
    /// The way that a message takes.
    pub(super) fn pick(&mut self, peer: u32, length: usize, tried: u64) -> Option<usize> {
        let known = &mut self.core.peers[peer as usize];
        if known.stripes == 0 || length < known.stripe_from {
            let at = known.current;
            let fits = |way: &Way| {
                way.state.is_used() && self.rails[usize::from(way.rail)].can.limits.message >= length
            };
            return (tried & 1 << at == 0 && known.ways.get(at).is_some_and(fits)).then_some(at);
        }
        let mut best = None;
        for at in each(known.stripes & !tried) {
            let way = &mut known.ways[at];
            let slot = &mut self.rails[usize::from(way.rail)];
            if slot.can.limits.message < length {
                continue;
            }
            let bytes = way.flight.bytes(slot.rail.handed_over(way.index)) + length as u64;
            let there = u128::from(bytes) * 1_000_000_000 / u128::from(slot.can.estimate.bandwidth.max(1))
                + u128::from(slot.can.estimate.latency_ns);
            if best.is_none_or(|(least, _)| there < least) {
                best = Some((there, at));
            }
        }
        best.map(|(_, at)| at)
    }

    /// Decides again which ways a peer's messages take, and with which sizes.
    pub(super) fn refresh(&mut self, peer: u32) {
        self.core.settle(peer);
        let rails = &self.rails;
        let can = |way: &Way| &rails[usize::from(way.rail)].can;
        let known = &mut self.core.peers[peer as usize];
        let mut used = known.ways_that(|way| way.state == PathState::Up);
        if used == 0 {
            used = known.ways_that(|way| way.state == PathState::Suspect);
        }
        let latency = |at: &usize| (can(&known.ways[*at]).estimate.latency_ns, *at);
        let best = each(used).min_by_key(latency);
        let within = each(used).any(|at| can(&known.ways[at]).features.within_host);
        let stripes = used & known.ways_that(|way| way.met);
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
            move |set: u64, ways: &[Way]| each(set).map(|at| of(&can(&ways[at]).limits)).min()
        };
        let all = known.ways_that(|way| !way.dead);
        let message = least(|limits| limits.message)(all, &known.ways);
        let get = each(used)
            .map(|at| can(&known.ways[at]))
            .filter(|can| can.features.get)
            .map(|can| can.limits.get_from)
            .min();
        if let Some(message) = message {
            let fragment = least(|limits| limits.fragment)(over, &known.ways)
                .unwrap_or(message)
                .min(message);
            let eager = best
                .map_or(message, |at| can(&known.ways[at]).limits.eager)
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

    /// Opens the short way for the messages of a peer, if nothing waits and a way is used.
    pub(super) fn reopen(&mut self, peer: u32) {
        let known = &self.core.peers[peer as usize];
        let hot = &mut self.core.hot[peer as usize];
        hot.limit = 0;
        let Some(way) = known
            .ways
            .get(known.current)
            .filter(|way| !known.lost && way.state.is_used())
        else {
            return;
        };
        (hot.rail, hot.index) = (way.rail, way.index);
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
