//! The interface against the plain model: random programs of calls, event by event; over rough networks; and
//! against peers that send whatever they like.

mod compare;
mod hostile;
mod numbers;
mod program;
mod run;
mod steps;
mod storm;

#[allow(unused)]
#[path = "../model/mod.rs"]
mod model;
#[allow(dead_code)]
#[path = "../rig/mod.rs"]
mod rig;

/// This many cases, unless the environment sets another number (PROPTEST_CASES).
fn config(cases: u32) -> proptest::test_runner::Config {
    use proptest::test_runner::Config;
    let usual = Config::default();
    Config {
        cases: if usual.cases == USUAL { cases } else { usual.cases },
        max_shrink_iters: 2000,
        failure_persistence: None,
        ..usual
    }
}

/// The number of proptest's cases where the environment sets none.
const USUAL: u32 = 256;
