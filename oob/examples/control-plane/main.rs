//! Whole jobs of the control plane in one thread, over a simulated network on a virtual clock.
//!
//! ```text
//! cargo run --release -p doorbell-oob --example control-plane -- --seeds 500
//! cargo run --release -p doorbell-oob --example control-plane -- --seed 7 --ranks 1000
//! cargo run --release -p doorbell-oob --example control-plane -- --start
//! ```
//!
//! `--seeds N` runs N storms, in which links, NICs, relays and the network itself fail while all ranks
//! exchange messages; `--from S` begins with that seed; `--seed S` runs one; `--ranks R` fixes the size of
//! the jobs (otherwise 4 to 60, and each twentieth has 1,000). `--start` prints what starting a job costs:
//! messages, virtual time, memory.

#[path = "../../tests/simulate/network.rs"]
mod network;
mod start;
#[path = "../../tests/simulate/storm.rs"]
mod storm;
#[path = "../../tests/simulate/world.rs"]
mod world;

use std::process::ExitCode;

/// The options of the command line.
struct Options {
    seeds: std::ops::Range<u64>,
    ranks: Option<u32>,
    start: bool,
}

fn options() -> Result<Options, String> {
    let (mut from, mut count, mut ranks, mut start) = (1, 10, None, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().and_then(|value| value.parse::<u64>().ok());
            value.ok_or_else(|| format!("{argument} needs a number"))
        };
        match argument.as_str() {
            "--seeds" => count = number()?,
            "--from" => from = number()?,
            "--seed" => (from, count) = (number()?, 1),
            "--ranks" => {
                ranks = Some(
                    u32::try_from(number()?)
                        .map_err(|error| error.to_string())?
                        .max(2),
                )
            }
            "--start" => start = true,
            other => {
                return Err(format!(
                    "{other}: give --seeds N, --from S, --seed S, --ranks R or --start"
                ));
            }
        }
    }
    Ok(Options {
        seeds: from..from + count,
        ranks,
        start,
    })
}

/// Returns how many ranks the job of a seed has.
fn size(seed: u64) -> u32 {
    if seed.is_multiple_of(20) {
        1000
    } else {
        4 + (seed % 57) as u32
    }
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    if options.start {
        start::print();
        return ExitCode::SUCCESS;
    }
    let (mut good, mut bad) = (0, 0);
    let mut all = storm::Outcome::default();
    for seed in options.seeds {
        let ranks = options.ranks.unwrap_or(size(seed));
        match std::panic::catch_unwind(|| storm::storm(seed, ranks)) {
            Ok(outcome) => {
                good += 1;
                all.add(&outcome);
                println!("seed {seed}: {outcome}");
            }
            Err(_) => {
                bad += 1;
                println!("seed {seed}: FAILED (--seed {seed} --ranks {ranks})");
            }
        }
    }
    println!("{good} good, {bad} failed; in all: {all}");
    if bad > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
