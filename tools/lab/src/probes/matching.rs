//! Matching a fully given tag with many entries queued against matching it with one.

use std::hint::black_box;

use doorbell_fabric::clock::Clock;
use doorbell_matching::{Capacity, Entry, MatchKey, Matcher, Pattern};

/// What is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Posted entries: a message arrives, its entry is found, and posted again.
    Posted,
    /// Kept messages: an entry is posted, its message is found, and kept again.
    Unexpected,
}

/// Which of the queued tags are matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Sixteen, again and again: what takes time is the search.
    Few,
    /// All, in an order that no cache can guess: the entries' own cache lines are in it.
    All,
}

impl Asked {
    /// Returns which of `count` tags is matched in a round.
    #[inline]
    fn of(self, round: u64, count: u64) -> u64 {
        const FEW: u64 = 16;
        match self {
            Self::Few => (round % FEW) * (count / FEW).max(1) % count,
            Self::All => round.wrapping_mul(SPREAD) % count,
        }
    }
}

/// Entries queued in the long case.
const MANY: u64 = 100_000;
/// Matches for one look at the clock.
const MATCHES: u64 = 200_000;
/// Looks, in turn; the best of each counts.
const TURNS: usize = 3;
/// Tags are spread, as hashes and addresses in them would be.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns how many times longer a match takes with 100,000 entries queued than with one. Where few tags are
/// used, this compares the search; where all are, it includes the cache misses of touching everything.
pub(crate) fn matching_ratio(clock: &Clock, queue: Queue, asked: Asked) -> f64 {
    let mut short = filled(queue, 1);
    let mut long = filled(queue, MANY);
    let mut best = [f64::INFINITY; 2];
    for _ in 0..TURNS {
        best[0] = best[0].min(look(clock, queue, asked, &mut short, 1));
        best[1] = best[1].min(look(clock, queue, asked, &mut long, MANY));
    }
    best[1] / best[0]
}

/// Nanoseconds of a match, and of queueing again what was found, with `count` entries queued.
pub(crate) fn matching_nanos(clock: &Clock, queue: Queue, asked: Asked, count: u64) -> f64 {
    let count = count.max(1);
    let mut matcher = filled(queue, count);
    let looks = (0..TURNS).map(|_| look(clock, queue, asked, &mut matcher, count));
    clock.ticks_to_nanos_f64(looks.fold(f64::INFINITY, f64::min) as u64) / MATCHES as f64
}

fn tag(n: u64) -> u64 {
    n.wrapping_mul(SPREAD)
}

fn filled(queue: Queue, count: u64) -> Matcher {
    let room = usize::try_from(count).unwrap_or(usize::MAX) + 1;
    let mut matcher = Matcher::new(
        0x5eed,
        Capacity {
            posted: room,
            unexpected: room,
        },
    );
    for n in 0..count {
        match queue {
            Queue::Posted => {
                matcher.post(&entry(n));
            }
            Queue::Unexpected => {
                matcher.keep(MatchKey::new(0, 1, tag(n)), 8, n);
            }
        }
    }
    matcher
}

fn entry(n: u64) -> Entry {
    Entry::once(Pattern::exact(0, 1, tag(n)), 8, n)
}

/// Ticks of a round of matches.
fn look(clock: &Clock, queue: Queue, asked: Asked, matcher: &mut Matcher, count: u64) -> f64 {
    let start = clock.ticks();
    for round in 0..MATCHES {
        let n = asked.of(round, count);
        match queue {
            Queue::Posted => {
                black_box(matcher.arrive(MatchKey::new(0, 1, black_box(tag(n))), 8));
                matcher.post(&entry(n));
            }
            Queue::Unexpected => {
                black_box(matcher.post(&entry(black_box(n))));
                matcher.keep(MatchKey::new(0, 1, tag(n)), 8, n);
            }
        }
    }
    clock.ticks().saturating_sub(start) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requested_tag_is_found_and_the_queue_keeps_its_length() {
        let clock = Clock::system();
        for (queue, count) in [(Queue::Posted, 1), (Queue::Posted, 100), (Queue::Unexpected, 100)] {
            let mut matcher = filled(queue, count);
            look(&clock, queue, Asked::Few, &mut matcher, count);
            look(&clock, queue, Asked::All, &mut matcher, count);
            let (posted, kept) = (
                matcher.posted_len() as u64,
                matcher.unexpected_load().messages as u64,
            );
            match queue {
                Queue::Posted => assert_eq!((posted, kept), (count, 0)),
                Queue::Unexpected => assert_eq!((posted, kept), (0, count)),
            }
        }
    }
}
