//! Nothing is allocated in steady state: a counting allocator watches every kind of call.

use doorbell_matching::{Capacity, Entry, MatchKey, Matcher, Pattern, Posted};
use doorbell_testing::alloc::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEEP: u64 = 1_000;

fn key(number: u64) -> MatchKey {
    MatchKey::new(1, (number % 7) as u32, number % 300)
}

/// Every call there is, with both queues as deep as they get.
fn everything(matcher: &mut Matcher) {
    for number in 0..DEEP {
        let exact = Entry::once(key(number).into(), 64, number);
        let entry = match number % 8 {
            0 => Entry::once(Pattern::any_source(1, number % 300), 64, number),
            1 => Entry::persistent(key(number).into(), 64, number).managed(32),
            2 => exact.overflow(),
            3 => exact.no_truncate(),
            4 => Entry {
                pattern: exact.pattern.ignoring(1 << (number % 20)),
                ..exact
            },
            _ => exact,
        };
        assert!(matches!(matcher.post(&entry), Posted::Linked(_)));
    }
    for number in 0..DEEP {
        matcher.arrive(key(number), number % 100);
    }
    let handles = |matcher: &Matcher| matcher.posted().next().map(|(handle, _)| handle);
    while let Some(handle) = handles(matcher) {
        matcher.cancel(handle).expect("posted");
        if matcher.posted_len().is_multiple_of(100) {
            matcher.cancel_source((matcher.posted_len() / 100) as u32, |_| ());
        }
    }
    for number in 0..DEEP {
        matcher.keep(key(number), number, number);
    }
    for number in 0..DEEP / 4 {
        matcher.peek(&Pattern::any_source(1, number % 300));
        matcher.claim(&Pattern::any_source(1, 0).ignoring(u64::MAX));
        matcher.claim(&Pattern::exact(1, 3, 0).ignoring(u64::MAX));
        matcher.peek_for(&Entry::once(key(number).into(), 8, 0).no_truncate());
        matcher.post(&Entry::once(key(number).into(), 64, number));
    }
    matcher.drain_source(5, |_| ());
    while matcher
        .claim(&Pattern::any_source(1, 0).ignoring(u64::MAX))
        .is_some()
    {}
    for source in 0..7 {
        matcher.cancel_source(source, |_| ());
    }
    assert_eq!((matcher.posted_len(), matcher.unexpected_load().messages), (0, 0));
}

/// Post, arrive, keep and post again, as a ping-pong does.
fn short_way(matcher: &mut Matcher) {
    for number in 0..DEEP {
        let receive = Entry::once(key(number).into(), 64, number);
        assert!(matches!(matcher.post(&receive), Posted::Linked(_)));
        assert!(matcher.arrive(key(number), 8).is_some());
        matcher.keep(key(number), 8, number);
        assert!(matches!(matcher.post(&receive), Posted::Found(_)));
    }
}

fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = alloc::of_thread().allocations;
    work();
    alloc::of_thread().allocations - before
}

#[test]
fn nothing_is_allocated_in_steady_state() {
    let mut warm = Matcher::new(1, Capacity::default());
    assert!(allocations_of(|| everything(&mut warm)) > 0, "the counter counts");
    for round in 0..5 {
        assert_eq!(
            allocations_of(|| everything(&mut warm)),
            0,
            "round {round} after warming up"
        );
    }
    // With capacities given, ordinary receives and kept messages allocate nothing from the first one on.
    let mut given = Matcher::new(
        1,
        Capacity {
            posted: 16,
            unexpected: 16,
        },
    );
    assert_eq!(
        allocations_of(|| short_way(&mut given)),
        0,
        "capacities were given"
    );
    let mut full = Matcher::new(
        1,
        Capacity {
            posted: DEEP as usize,
            unexpected: DEEP as usize,
        },
    );
    let fill = allocations_of(|| {
        for number in 0..DEEP {
            full.post(&Entry::once(MatchKey::new(2, 1, number).into(), 64, number));
            full.keep(key(number), 8, number);
        }
    });
    assert_eq!(fill, 0, "filled to the capacity given");
}
