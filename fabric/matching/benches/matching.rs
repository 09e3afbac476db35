//! What a post and an arrival cost, alone and with 100,000 others queued.
//!
//! `cargo bench -p doorbell-matching`. The ratios at the end are the budget "a fully given tag with 100,000
//! entries queued takes at most twice the time with one", from rounds interleaved in one run.
//!
//! Two kinds of 100,000: `hot` matches the same key again and again while the others only stand there; `swept`
//! takes a different one of the 100,000 each time, so that every round also misses the caches.

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

/// A receive is posted and its message arrives.
#[inline]
fn post_arrive(matcher: &mut Matcher, key: MatchKey) {
    let posted = matcher.post(black_box(&receive(key)));
    debug_assert!(matches!(posted, Posted::Linked(_)));
    black_box(posted);
    black_box(matcher.arrive(black_box(key), 8));
}

/// A message arrives, is kept, and its receive is posted.
#[inline]
fn keep_post(matcher: &mut Matcher, key: MatchKey) {
    let arrived = matcher.arrive(black_box(key), 8);
    debug_assert!(arrived.is_none());
    black_box(arrived);
    matcher.keep(black_box(key), 8, 9);
    black_box(matcher.post(black_box(&receive(key))));
}

/// A receive for anybody is posted and a message arrives.
#[inline]
fn any_source(matcher: &mut Matcher, key: MatchKey) {
    let entry = Entry::once(Pattern::any_source(key.table, key.bits), 4096, 7);
    black_box(matcher.post(black_box(&entry)));
    black_box(matcher.arrive(black_box(key), 8));
}

/// One bench: what is queued and what one round does.
type Case = (&'static str, Matcher, Box<dyn FnMut(&mut Matcher, u64)>);

fn cases() -> Vec<Case> {
    // The sweep takes the queued keys in their order and queues each again at the end.
    let sweep_posted = |matcher: &mut Matcher, round: u64| {
        let key = key(round % MANY);
        black_box(matcher.arrive(black_box(key), 8));
        black_box(matcher.post(black_box(&receive(key))));
    };
    let sweep_kept = |matcher: &mut Matcher, round: u64| {
        let key = key(round % MANY);
        black_box(matcher.post(black_box(&receive(key))));
        black_box(matcher.arrive(black_box(HOT), 8));
        matcher.keep(black_box(key), 8, 9);
    };
    vec![
        (
            "post+arrive, one",
            empty(),
            Box::new(|matcher, _| post_arrive(matcher, HOT)),
        ),
        (
            "post+arrive, 100,000 posted, hot",
            with_posted(MANY),
            Box::new(|matcher, _| post_arrive(matcher, HOT)),
        ),
        (
            "post+arrive, 100,000 posted, swept",
            with_posted(MANY),
            Box::new(sweep_posted),
        ),
        (
            "arrive+keep+post, one",
            empty(),
            Box::new(|matcher, _| keep_post(matcher, HOT)),
        ),
        (
            "arrive+keep+post, 100,000 kept, hot",
            with_kept(MANY),
            Box::new(|matcher, _| keep_post(matcher, HOT)),
        ),
        (
            "arrive+keep+post, 100,000 kept, swept",
            with_kept(MANY),
            Box::new(sweep_kept),
        ),
        (
            "any source, one",
            empty(),
            Box::new(|matcher, _| any_source(matcher, HOT)),
        ),
        (
            "any source, 100,000 posted, hot",
            with_posted(MANY),
            Box::new(|matcher, _| any_source(matcher, HOT)),
        ),
        (
            "any source, 100,000 kept, hot",
            with_kept(MANY),
            Box::new(|matcher, _| any_source(matcher, HOT)),
        ),
    ]
}

fn bench(criterion: &mut Criterion) {
    for (name, mut matcher, mut round) in cases() {
        let mut count = 0;
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| {
                round(&mut matcher, count);
                count += 1;
            });
        });
    }
}

/// Prints the medians and ratios of interleaved rounds.
fn ratios() {
    const ROUNDS: usize = 41;
    const EXCHANGES: u64 = 100_000;
    let mut cases = cases();
    let mut nanoseconds = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for ((_, matcher, round), times) in cases.iter_mut().zip(&mut nanoseconds) {
            let start = Instant::now();
            for count in 0..EXCHANGES {
                round(matcher, count);
            }
            times.push(start.elapsed().as_nanos() as f64 / EXCHANGES as f64);
        }
    }
    println!("\nmedians of {ROUNDS} interleaved rounds of {EXCHANGES} (ratio to one queued; budget 2.00)");
    let mut base = 0.0;
    for ((name, _, _), times) in cases.iter().zip(&mut nanoseconds) {
        times.sort_by(f64::total_cmp);
        let median = times[ROUNDS / 2];
        if name.ends_with("one") {
            base = median;
        }
        println!("{name:<42} {median:7.2} ns   ratio {:.2}", median / base);
    }
}

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
