//! The cost of a post and of an arrival, alone and with 100,000 others queued.
//!
//! `cargo bench -p doorbell-matching`. The ratios at the end are the budget "a fully given tag with 100,000
//! entries queued takes at most twice the time with one", from rounds interleaved in one run.
//!
//! Two kinds of 100,000: `hot` matches the same key again and again while the others only stay there;
//! `swept` takes a different one of the 100,000 each time, so that every round also misses the caches.

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group};
use doorbell_matching::{Capacity, Entry, MatchKey, Matcher, Pattern, Posted};

const MANY: u64 = 100_000;
const SEED: u64 = 0x5eed_0001;

/// The key of the hot pair; no queued key equals it.
const HOT: MatchKey = MatchKey::new(1, 5, 0xbeef_0000);

fn key(number: u64) -> MatchKey {
    MatchKey::new(1, (number % 64) as u32, number)
}

fn receive(key: MatchKey) -> Entry {
    Entry::once(Pattern::from(key), 4096, 7)
}

fn empty() -> Matcher {
    let room = MANY as usize + 16;
    Matcher::new(
        SEED,
        Capacity {
            posted: room,
            unexpected: room,
        },
    )
}

fn with_posted(entries: u64) -> Matcher {
    let mut matcher = empty();
    for number in 0..entries {
        assert!(matches!(matcher.post(&receive(key(number))), Posted::Linked(_)));
    }
    matcher
}

fn with_kept(messages: u64) -> Matcher {
    let mut matcher = empty();
    for number in 0..messages {
        matcher.keep(key(number), 8, number);
    }
    matcher
}

/// Hides a key from the optimiser word by word: as a struct it would go through memory in pieces, and the
/// loads that join them would cost more than the look-up.
#[inline]
fn hidden(key: MatchKey) -> MatchKey {
    MatchKey::new(key.table, black_box(key.source), black_box(key.bits))
}

/// Posts and returns whether it waits; what was found counts as used.
#[inline]
fn post(matcher: &mut Matcher, entry: &Entry) -> bool {
    match matcher.post(entry) {
        Posted::Linked(_) => true,
        Posted::Found(found) => {
            black_box(found.token);
            false
        }
    }
}

/// Takes an arrival and returns whether a receive waited.
#[inline]
fn arrive(matcher: &mut Matcher, key: MatchKey) -> bool {
    match matcher.arrive(key, 8) {
        Some(hit) => {
            black_box(hit.token);
            black_box(hit.length);
            true
        }
        None => false,
    }
}

/// A receive is posted and its message arrives.
#[inline]
fn post_arrive(matcher: &mut Matcher, key: MatchKey) {
    assert!(post(matcher, &receive(hidden(key))));
    assert!(arrive(matcher, hidden(key)));
}

/// A message arrives, is kept, and its receive is posted.
#[inline]
fn keep_post(matcher: &mut Matcher, key: MatchKey) {
    let arrived = hidden(key);
    assert!(!arrive(matcher, arrived));
    matcher.keep(arrived, 8, 9);
    assert!(!post(matcher, &receive(hidden(key))));
}

/// A receive of any source is posted and a message arrives.
#[inline]
fn any_source(matcher: &mut Matcher, key: MatchKey) {
    let asked = hidden(key);
    assert!(post(
        matcher,
        &Entry::once(Pattern::any_source(asked.table, asked.bits), 4096, 7)
    ));
    assert!(arrive(matcher, hidden(key)));
}

/// The queued receive of one of many keys is taken, and posted again.
#[inline]
fn arrive_again(matcher: &mut Matcher, round: u64) {
    let key = hidden(key(round % MANY));
    assert!(arrive(matcher, key));
    assert!(post(matcher, &receive(key)));
}

/// The kept message of one of many keys is taken; another arrives and is kept in its place.
#[inline]
fn keep_again(matcher: &mut Matcher, round: u64) {
    let key = hidden(key(round % MANY));
    assert!(!post(matcher, &receive(key)));
    assert!(!arrive(matcher, hidden(HOT)));
    matcher.keep(key, 8, 9);
}

/// One bench: its name, what is queued, and the exchanges of a range, beginning with a number.
type Case = (&'static str, Matcher, fn(&mut Matcher, std::ops::Range<u64>));

/// Three groups; the first of each is what the others are compared with.
fn groups() -> [fn() -> [Case; 3]; 3] {
    [posted_cases, kept_cases, any_source_cases]
}

fn posted_cases() -> [Case; 3] {
    [
        ("post+arrive, one", empty(), |matcher, rounds| {
            rounds.for_each(|_| post_arrive(matcher, HOT))
        }),
        (
            "post+arrive, 100,000 posted, hot",
            with_posted(MANY),
            |matcher, rounds| {
                rounds.for_each(|_| post_arrive(matcher, HOT));
            },
        ),
        (
            "arrive+post, 100,000 posted, swept",
            with_posted(MANY),
            |matcher, rounds| {
                rounds.for_each(|round| arrive_again(matcher, round));
            },
        ),
    ]
}

fn kept_cases() -> [Case; 3] {
    [
        ("arrive+keep+post, one", empty(), |matcher, rounds| {
            rounds.for_each(|_| keep_post(matcher, HOT))
        }),
        (
            "arrive+keep+post, 100,000 kept, hot",
            with_kept(MANY),
            |matcher, rounds| {
                rounds.for_each(|_| keep_post(matcher, HOT));
            },
        ),
        (
            "post+arrive+keep, 100,000 kept, swept",
            with_kept(MANY),
            |matcher, rounds| {
                rounds.for_each(|round| keep_again(matcher, round));
            },
        ),
    ]
}

fn any_source_cases() -> [Case; 3] {
    [
        ("any source, one", empty(), |matcher, rounds| {
            rounds.for_each(|_| any_source(matcher, HOT))
        }),
        (
            "any source, 100,000 posted, hot",
            with_posted(MANY),
            |matcher, rounds| {
                rounds.for_each(|_| any_source(matcher, HOT));
            },
        ),
        (
            "any source, 100,000 kept, hot",
            with_kept(MANY),
            |matcher, rounds| {
                rounds.for_each(|_| any_source(matcher, HOT));
            },
        ),
    ]
}

fn bench(criterion: &mut Criterion) {
    for (name, mut matcher, exchange) in groups().into_iter().flat_map(|cases| cases()) {
        let mut done = 0;
        criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|count| {
                let start = Instant::now();
                exchange(&mut matcher, done..done + count);
                done += count;
                start.elapsed()
            });
        });
    }
}

/// Prints minima, medians and ratios of interleaved rounds, group by group.
fn ratios() {
    println!(
        "\nns per exchange, {ROUNDS} interleaved rounds of {EXCHANGES}; ratios to one queued (budget 2.00)"
    );
    println!(
        "{:<40} {:>8} {:>7} {:>8} {:>7}",
        "", "minimum", "ratio", "median", "ratio"
    );
    for cases in groups() {
        let mut cases = cases();
        let mut nanoseconds = vec![Vec::new(); cases.len()];
        for round in 0..ROUNDS {
            for ((_, matcher, exchange), times) in cases.iter_mut().zip(&mut nanoseconds) {
                let start = Instant::now();
                exchange(matcher, round * EXCHANGES..(round + 1) * EXCHANGES);
                times.push(start.elapsed().as_nanos() as f64 / EXCHANGES as f64);
            }
        }
        let mut base = (0.0, 0.0);
        for ((name, _, _), times) in cases.iter().zip(&mut nanoseconds) {
            times.sort_by(f64::total_cmp);
            let (minimum, median) = (times[0], times[times.len() / 2]);
            if name.ends_with("one") {
                base = (minimum, median);
            }
            let (by_minimum, by_median) = (minimum / base.0, median / base.1);
            println!("{name:<40} {minimum:8.2} {by_minimum:7.2} {median:8.2} {by_median:7.2}");
        }
    }
}

/// Rounds short enough that most of them run undisturbed on a busy machine.
const ROUNDS: u64 = 2_001;
const EXCHANGES: u64 = 2_000;

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50);
    targets = bench
}

fn main() {
    benches();
    // `cargo test --benches` runs everything once; ratios are for `cargo bench`.
    if std::env::args().any(|argument| argument == "--bench") {
        ratios();
    }
    Criterion::default().configure_from_args().final_summary();
}
