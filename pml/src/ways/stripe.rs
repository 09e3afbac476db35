//! Long messages over several ways at a time: each fragment takes the way on which it will be there first, by what each
//! way has carried lately, and a slow way is not given what the others will have carried before it.
//!
//! Shares that are fixed beforehand (reference: bfo, section 6) are right as long as nothing changes; here the next
//! fragment is decided by what is under way now, so that a way which slows down gets less at once.

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_fabric::message::{Message, MsgId};
use doorbell_fabric::time::Time;
use doorbell_paths::each;

use crate::core::Core;
use crate::peer::Peer;
use crate::pml::Pml;

/// A rate is measured over so long at least, without a pause.
const SAMPLE: Duration = Duration::from_millis(1);
/// Fragments over one way, of all messages, for each of one message's pipeline.
pub(crate) const DEEPER: usize = 2;
/// Messages from so many bytes on are striped: below, the ways' latencies cost more than their rates bring.
pub(crate) const STRIPED_FROM: u64 = 128 << 10;

/// A fragment under way.
#[derive(Clone, Copy, Debug)]
struct Flying {
    number: MsgId,
    bytes: u32,
}

/// The fragments under way over one way, and how fast they go.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    flying: VecDeque<Flying>,
    /// Bytes under way.
    bytes: u64,
    /// Bytes that arrived since, while it was never empty.
    done: u64,
    since: Time,
    /// Bytes per second; zero: not measured.
    rate: u64,
}

impl Flow {
    /// A fragment has left.
    pub(crate) fn left(&mut self, now: Time, number: MsgId, bytes: usize) {
        if self.flying.is_empty() {
            (self.done, self.since) = (0, now);
        }
        let bytes = bytes as u32; // a fragment is shorter than 4 GiB
        self.bytes += u64::from(bytes);
        self.flying.push_back(Flying { number, bytes });
    }

    /// Everything up to `watermark` has arrived. Whether the rate was measured anew.
    pub(crate) fn arrived(&mut self, now: Time, watermark: MsgId) -> bool {
        while let Some(first) = self.flying.front().filter(|first| first.number <= watermark) {
            self.bytes -= u64::from(first.bytes);
            self.done += u64::from(first.bytes);
            self.flying.pop_front();
        }
        let took = now.since(self.since);
        // One that ends early is the end of a message: a part of the time that it is short of will do.
        let enough = if self.flying.is_empty() {
            SAMPLE / 4
        } else {
            SAMPLE
        };
        let measured = self.done > 0 && took >= enough;
        if measured {
            self.sample(took);
            (self.done, self.since) = (0, now);
        }
        measured
    }

    fn sample(&mut self, took: Duration) {
        let rate = u128::from(self.done) * 1_000_000_000 / took.as_nanos().max(1);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        self.rate = if self.rate == 0 {
            rate
        } else {
            self.rate - self.rate / 4 + rate / 4
        };
    }

    /// The way is over: its rail gives back what was under way.
    pub(crate) fn broke(&mut self) {
        self.bytes = 0;
        self.flying.clear();
    }

    /// Bytes per second, once measured.
    pub(crate) fn rate(&self) -> Option<u64> {
        (self.rate > 0).then_some(self.rate)
    }
}

impl Peer {
    /// Bytes per second of a way: measured, or as its rail estimates.
    fn rate(&self, at: usize) -> u64 {
        let measured = self.measured_rate(at);
        measured.unwrap_or(self.paths[at].can.estimate.bandwidth).max(1)
    }

    /// Bytes per second of a way, once measured; not zero.
    pub(crate) fn measured_rate(&self, at: usize) -> Option<u64> {
        self.watch.as_ref()?.ways.get(at)?.flow.rate()
    }

    /// The ways that a long message may take together, as a set; of one, when there is nothing to gain by more.
    pub(crate) fn stripes(&self) -> u64 {
        let Some(watch) = &self.watch else { return 0 };
        if watch.ways.len() < 2 {
            return 0;
        }
        let usable = self.usable();
        let within = each(usable).find(|at| self.paths[*at].can.features.within_host);
        within.map_or(usable, |at| 1 << at)
    }

    /// The way on which the next `fragment(at)` bytes of a message, of which `left` bytes are left, will be there first;
    /// `None`: the ones that are worth it have enough under way.
    fn next_stripe(&self, set: u64, left: u64, depth: usize) -> Option<usize> {
        let watch = self.watch.as_ref()?;
        let time = |bytes: u64, rate: u64| u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let flying = |at: usize| watch.ways[at].flow.bytes;
        let part = |at: usize| left.min(self.paths[at].fragment() as u64);
        let there = |at: usize| time(flying(at) + part(at), self.rate(at));
        // When everything would be there, if all went on at their rates.
        let (bytes, rates) = each(set).fold((left, 0u64), |(bytes, rates), at| {
            (bytes + flying(at), rates.saturating_add(self.rate(at)))
        });
        let first = each(set).map(there).min()?;
        let all = time(bytes, rates).max(first);
        let open = |at: &usize| watch.ways[*at].flow.flying.len() < depth && there(*at) <= all;
        each(set).filter(open).min_by_key(|at| there(*at))
    }
}

impl Core {
    /// A fragment of a striped message has left over way `at`.
    pub(crate) fn flows(&mut self, rank: u32, at: usize, (number, bytes): (MsgId, usize)) {
        let now = self.now;
        let Some(watch) = &mut self.peers[rank as usize].watch else {
            return;
        };
        watch.ways[at].flow.left(now, number, bytes);
        if !self.flowing.contains(&rank) {
            self.flowing.push(rank);
        }
    }

    /// Whether a message of this length goes over several ways.
    pub(crate) fn is_striped(&self, rank: u32, length: u64) -> bool {
        length >= STRIPED_FROM && self.peers[rank as usize].stripes().count_ones() > 1
    }
}

impl<M: Message> Pml<M> {
    /// Looks at what has arrived of the fragments under way: a rate is good only when the time of that is.
    #[cold]
    pub(crate) fn look_at_flows(&mut self) {
        let mut index = 0;
        while let Some(&rank) = self.core.flowing.get(index) {
            let ways = self.core.peers[rank as usize].paths.len();
            self.look_at_flow(rank, !0 >> (64 - ways.clamp(1, 64)));
            let watch = &self.core.peers[rank as usize].watch;
            let flows = watch
                .as_ref()
                .is_some_and(|watch| watch.ways.iter().any(|way| !way.flow.flying.is_empty()));
            if flows {
                index += 1;
            } else {
                self.core.flowing.swap_remove(index);
            }
        }
    }

    fn look_at_flow(&mut self, rank: u32, set: u64) {
        let now = self.core.now;
        let peer = &mut self.core.peers[rank as usize];
        let Some(watch) = &mut peer.watch else { return };
        let mut measured = false;
        for at in each(set) {
            let (path, flow) = (&peer.paths[at], &mut watch.ways[at].flow);
            if !flow.flying.is_empty() {
                let rail = &mut self.rails[usize::from(path.rail)].rail;
                measured |= flow.arrived(now, rail.handed_over(path.peer));
            }
        }
        if measured {
            self.core.refresh(rank);
        }
    }

    /// The way that the next fragment of a striped message takes.
    pub(crate) fn stripe(&mut self, rank: u32, set: u64, left: u64) -> Option<usize> {
        self.look_at_flow(rank, set);
        let depth = self.core.config.pipeline * DEEPER;
        self.core.peers[rank as usize].next_stripe(set, left, depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_what_arrives_while_it_is_busy() {
        let at = |us: u64| Time::from_nanos(us * 1000);
        let mut flow = Flow::default();
        for number in 1..=10 {
            flow.left(at(0), MsgId(number), 1000);
        }
        flow.arrived(at(500), MsgId(5));
        assert_eq!((flow.rate(), flow.bytes), (None, 5000), "too short");
        flow.arrived(at(1000), MsgId(10));
        assert_eq!((flow.rate(), flow.bytes), (Some(10_000_000), 0));
        // A pause does not count.
        flow.left(at(50_000), MsgId(11), 1000);
        flow.arrived(at(51_000), MsgId(11));
        assert_eq!(flow.rate(), Some(7_500_000 + 250_000));
        flow.left(at(60_000), MsgId(12), 1000);
        flow.broke();
        assert_eq!(flow.bytes, 0);
    }
}
