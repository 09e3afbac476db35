//! A slice of what `cargo xtask simulate --usnic` runs: two ranks over usnic rails of two modelled adapters,
//! and a wire between them that loses, repeats, holds back and damages. Every message comes once, whole and
//! in order; requests end; nothing is left; and the drivers do nothing that hardware would not forgive.

use doorbell_simulate::{Class, Stack, UsnicJob, UsnicOutcome};
use doorbell_testing::skipped;

/// Messages of a job: some 5 MB, from none to a MiB each.
const MESSAGES: usize = 80;

fn good(seed: u64, class: Class, stack: Stack) -> UsnicOutcome {
    let job = UsnicJob {
        seed,
        class,
        stack,
        messages: MESSAGES,
    };
    match job.run() {
        Ok(outcome) => outcome,
        Err(failure) => panic!("{failure}"),
    }
}

/// Checks that the wire acted as its class requires: how much did not come, and how much came twice.
fn is_like_its_class(class: Class, outcome: &UsnicOutcome) {
    let UsnicOutcome { sent, received, .. } = *outcome;
    let arrived = received + outcome.no_bufs;
    assert!(sent > 200, "{class}: {outcome:?}");
    match class {
        // More than half of the configured share, of a few hundred frames at least.
        Class::Loss10 => assert!(arrived < sent - sent / 20, "{class}: {outcome:?}"),
        Class::Loss1 => assert!(arrived < sent, "{class}: {outcome:?}"),
        Class::Duplicate10 => assert!(arrived > sent, "{class}: {outcome:?}"),
        _ => {}
    }
    if let (Class::Loss10 | Class::All, Some(resends)) = (class, outcome.resends) {
        assert!(resends > 0, "{class}: {outcome:?}");
    }
    if let (Class::Duplicate10 | Class::All, Some(twice)) = (class, outcome.twice) {
        assert!(twice > 0, "{class}: {outcome:?}");
    }
}

fn slice(test: &str, stack: Stack, seeds: [u64; 7]) {
    if let Some(reason) = UsnicJob::lacking() {
        return skipped(test, &reason);
    }
    let mut damaged = 0;
    for (seed, class) in seeds.into_iter().zip(Class::EACH) {
        let outcome = good(seed, class, stack);
        println!("seed {seed}, {class}: {outcome:?}");
        is_like_its_class(class, &outcome);
        if matches!(class, Class::Corrupt | Class::All) {
            damaged += outcome.damaged.unwrap_or(1);
        } else if class != Class::Reorder64 {
            assert_eq!(outcome.damaged.unwrap_or(0), 0, "{class}: {outcome:?}");
        }
    }
    assert!(damaged > 0, "nothing was damaged");
}

#[test]
fn every_message_once_over_two_adapters_with_everything_that_a_seed_sets() {
    let test = "usnic::every_message_once_over_two_adapters_with_everything_that_a_seed_sets";
    slice(test, Stack::Pml, [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn every_message_once_over_two_adapters_by_calls_that_wait_and_requests_that_are_posted() {
    let test = "usnic::every_message_once_over_two_adapters_by_calls_that_wait_and_requests_that_are_posted";
    slice(test, Stack::Worlds, [8, 9, 10, 11, 12, 13, 14]);
}
