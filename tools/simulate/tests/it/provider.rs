//! A slice of what `cargo xtask simulate --rails --provider` runs: clients of the libfabric provider over two
//! rails that lose, double and reorder, that break and come back, or are both gone.

use doorbell_fabric::time::Time;
use doorbell_sim::{Change, Plane};
use doorbell_simulate::{Counts, RailsJob, RailsOutcome};

fn job(seed: u64) -> RailsJob {
    RailsJob {
        seed,
        provider: true,
        messages: Some(60),
        script: Vec::new(),
    }
}

fn good(seed: u64) -> RailsOutcome {
    match job(seed).run(None) {
        Ok(outcome) => outcome,
        Err(failure) => panic!("{failure}"),
    }
}

/// Messages come once, whole and in order, and each operation ends once; nothing is left, no wait is endless,
/// every way comes back, and what a rank without rails wants ends with an error while all others go on.
#[test]
fn every_operation_ends_once_while_rails_break_and_come_back() {
    let mut all = Counts::default();
    for seed in 1..17 {
        let counts = good(seed).counts;
        all.broken += counts.broken;
        all.returned += counts.returned;
        all.resent += counts.resent;
        all.lost += counts.lost;
    }
    println!("{all:?}");
    assert!(all.broken > 100 && all.returned > 100, "{all:?}");
    assert!(all.resent > 5 && all.lost > 5, "{all:?}");
}

/// Seeds that once failed, and what they had found.
#[test]
fn what_was_found_stays_mended() {
    let found = [
        (20, "a cancelled buffer was given back before all entries of it"),
        (34, "a cancelled buffer was given back before all entries of it"),
    ];
    for (seed, what) in found {
        let whole = RailsJob {
            messages: None,
            ..job(seed)
        };
        if let Err(failure) = whole.run(None) {
            panic!("{what}:\n{failure}");
        }
    }
}

#[test]
fn equal_seeds_are_equal_runs() {
    let hashes: Vec<u64> = (60..64).map(|seed| good(seed).hash).collect();
    for (seed, hash) in (60..64).zip(&hashes) {
        assert_eq!(good(seed).hash, *hash, "seed {seed}");
    }
    assert!(hashes.windows(2).all(|two| two[0] != two[1]));
}

/// What the first rail carries from rank 0 to rank 1 is lost for good, behind the back of the weather.
#[test]
fn a_failure_names_how_to_repeat_it() {
    let cut = Change::Cut {
        plane: Plane::FIRST,
        from: 0,
        to: 1,
    };
    let broken = RailsJob {
        script: vec![(Time::ZERO, cut)],
        ..job(2)
    };
    let text = broken.run(None).unwrap_err().to_string();
    assert!(
        text.contains("seed 2 over several rails under the libfabric provider"),
        "{text}"
    );
    let again = text.lines().find(|line| line.starts_with("again: "));
    assert_eq!(
        again,
        Some("again: cargo xtask simulate --rails --provider --seed 2 --messages 60")
    );
}
