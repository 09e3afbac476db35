//! The credit economy, a slice: every pattern among 64 nodes, judged at every step;
//! `cargo xtask simulate credits` has the whole.

use std::process::Command;

use doorbell_simulate::{CreditsJob, CreditsPattern as Pattern, CreditsPolicy as Policy, CreditsTally};

/// Epochs of 256 requests rather than 1,024: everything settles four times as fast.
fn job(pattern: Pattern, policy: Policy, epochs: u32) -> CreditsJob {
    CreditsJob {
        nodes: 64,
        pattern,
        policy,
        seed: 7,
        epochs,
        table: false,
        banked: None,
        epoch: Some(256),
        phase: None,
    }
}

fn played(job: CreditsJob) -> CreditsTally {
    job.run().unwrap_or_else(|fault| panic!("{job:?}: {fault}"))
}

/// Requests of frequent partners in the last third, and credits moved there.
fn late(tally: &CreditsTally) -> (f64, f64) {
    let late = || {
        tally
            .samples
            .iter()
            .filter(|sample| sample.tick * 3 > tally.ticks * 2)
    };
    (
        late().map(|sample| sample.rate).sum(),
        late().map(|sample| sample.granted + sample.returned).sum(),
    )
}

/// Of unlimited credits' throughput, once credits have migrated.
fn ratio(pattern: Pattern, policy: Policy, epochs: u32) -> f64 {
    let unlimited = late(&played(job(pattern, Policy::Unlimited, epochs))).0;
    late(&played(job(pattern, policy, epochs))).0 / unlimited
}

#[test]
fn the_stencil_of_640_credits_converges_and_stops() {
    let stencil = played(job(Pattern::Stencil, Policy::Flags, 96));
    assert_eq!(
        stencil.counters.granted,
        64 * (640 - 26 * 4),
        "what it needs, to the credit"
    );
    let (rate, moved) = late(&stencil);
    assert_eq!((moved, stencil.counters.returned), (0.0, 0));
    let unlimited = late(&played(job(Pattern::Stencil, Policy::Unlimited, 96))).0;
    assert!(rate >= 0.9 * unlimited, "{rate} of {unlimited}");
    let fixed = late(&played(job(Pattern::Stencil, Policy::Fixed, 96))).0;
    assert!(
        fixed < 0.5 * unlimited,
        "{fixed}: the same credits, where they stay"
    );
    assert!(stencil.looks > 100_000 && stencil.audits > 10);
}

#[test]
fn partners_have_nine_tenths_of_unlimited_credits_by_flags_and_by_counters() {
    for policy in [Policy::Flags, Policy::Counters] {
        let ratio = ratio(Pattern::Partners, policy, 16);
        assert!(ratio >= 0.9, "{policy:?}: {ratio}");
    }
    let fixed = ratio(Pattern::Partners, Policy::Fixed, 16);
    assert!(fixed < 0.5, "{fixed}");
}

#[test]
fn partners_that_change_take_credits_from_earlier_ones() {
    let mut changing = job(Pattern::Phases, Policy::Flags, 48);
    changing.nodes = 32;
    let tally = played(changing);
    assert!(
        tally.counters.returned > 0 && tally.counters.revocations > 0,
        "{tally:?}"
    );
    assert_eq!(tally.counters.returned, tally.counters.given_back);
    let counters = played(CreditsJob {
        policy: Policy::Counters,
        ..changing
    });
    assert_ne!(counters.counters, tally.counters, "they choose other victims");
}

#[test]
fn all_at_once_neither_hit_the_catch_basin_nor_leave_the_receiver_idle() {
    let fan_in = played(job(Pattern::FanIn, Policy::Flags, 64));
    assert!(fan_in.most_waiting > 40 && fan_in.counters.dry > 0, "{fan_in:?}");
    let unlimited = late(&played(job(Pattern::FanIn, Policy::Unlimited, 64))).0;
    assert!(late(&fan_in).0 >= 0.9 * unlimited);
    let bursts = played(job(Pattern::Bursts, Policy::Flags, 96));
    assert!(bursts.steps > 5);
}

#[test]
fn nothing_moves_without_a_stall() {
    let quiet = played(job(Pattern::Quiet, Policy::Flags, 4));
    let counters = quiet.counters;
    assert!(counters.taken > 10_000 && counters.epochs > 64);
    assert_eq!(
        (
            counters.stalls,
            counters.granted,
            counters.revocations,
            counters.returned
        ),
        (0, 0, 0, 0)
    );
}

#[test]
fn the_tables_of_programs_do_exactly_what_the_simulations_do() {
    for pattern in [Pattern::Phases, Pattern::Bursts] {
        let mut job = job(pattern, Policy::Flags, 24);
        job.nodes = 27;
        job.table = pattern == Pattern::Bursts;
        assert_eq!(job.run(), job.run_dense(), "{pattern:?}");
    }
}

#[test]
fn a_seed_is_a_run() {
    let mut job = job(Pattern::Partners, Policy::Counters, 4);
    let first = played(job);
    assert_eq!(first, played(job));
    job.seed = 8;
    assert_ne!(first, played(job));
}

#[test]
fn a_torus_needs_three_sides() {
    let mut job = job(Pattern::Stencil, Policy::Flags, 4);
    job.nodes = 62;
    assert!(job.run().is_err_and(|wrong| wrong.contains("no torus")));
}

#[test]
fn the_command_prints_by_its_schema_draws_and_fails_where_something_is_not_as_promised() {
    let schema: serde_json::Value = serde_json::from_str(include_str!("../credits-1.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell-simulate"));
        command.args(["credits", "--nodes", "27", "--pattern", "stencil", "--json"]);
        command.args(words).arg("--plots").arg(folder.path());
        let ended = command.output().unwrap();
        let printed: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        let wrong: Vec<String> = schema
            .iter_errors(&printed)
            .map(|error| error.to_string())
            .collect();
        assert_eq!(wrong, Vec::<String>::new());
        (ended.status.code(), printed)
    };
    let (status, printed) = run(&["--epochs", "80", "--epoch-duration", "256"]);
    assert_eq!(
        (status, &printed["runs"][0]["failures"]),
        (Some(0), &serde_json::json!([]))
    );
    let svg = std::fs::read_to_string(folder.path().join("stencil-27.svg")).unwrap();
    for word in [
        "unlimited",
        "fixed",
        "flags",
        "counters",
        "granted",
        "stencil, 27 nodes",
    ] {
        assert!(svg.contains(word), "{word}");
    }
    assert!(svg.len() < 100_000);
    // Before anything has migrated.
    let (status, printed) = run(&["--epochs", "1", "--policy", "flags"]);
    assert_eq!(status, Some(1));
    let failures = printed["runs"][0]["failures"].as_array().unwrap();
    let said = failures[0].as_str().unwrap();
    for word in [
        "stencil of 27 nodes: flags: 0.",
        "of unlimited credits' throughput",
        "below the 0.9 that is promised",
        "1 epoch may be too few for credits to migrate: try `--epochs 48`",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
}
