//! `--rails`: many seeds, and what is printed of them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{Outcome, RailsJob};
use crate::command::Options;
use crate::failure::Failure;

/// What all seeds came to.
#[derive(Debug, Default, Serialize)]
struct Sum {
    seeds: u64,
    failed: u64,
    not_begun: u64,
    seconds: f64,
    bytes: u64,
    ways_broken: u64,
    ways_returned: u64,
    restarts: u64,
    resent: u64,
    duplicates: u64,
    peers_lost: u64,
    slowest: Option<Slowest>,
    longest_wait: Option<Longest>,
    failures: Vec<String>,
}

/// The seed that took the longest.
#[derive(Debug, Serialize)]
struct Slowest {
    seed: u64,
    seconds: f64,
    virtual_seconds: f64,
}

/// The request that took the longest, in virtual time.
#[derive(Debug, Serialize)]
struct Longest {
    seed: u64,
    virtual_seconds: f64,
}

impl Sum {
    fn add(&mut self, seed: u64, outcome: &Outcome, took: Duration) {
        self.seeds += 1;
        self.bytes += outcome.bytes;
        self.ways_broken += outcome.counts.broken;
        self.ways_returned += outcome.counts.returned;
        self.restarts += outcome.counts.restarts;
        self.resent += outcome.counts.resent;
        self.duplicates += outcome.counts.duplicates;
        self.peers_lost += outcome.counts.lost;
        let (seconds, virtual_seconds) = (took.as_secs_f64(), outcome.took.as_secs_f64());
        if self.slowest.as_ref().is_none_or(|known| known.seconds < seconds) {
            self.slowest = Some(Slowest {
                seed,
                seconds,
                virtual_seconds,
            });
        }
        let virtual_seconds = outcome.longest.as_secs_f64();
        if self
            .longest_wait
            .as_ref()
            .is_none_or(|known| known.virtual_seconds < virtual_seconds)
        {
            self.longest_wait = Some(Longest {
                seed,
                virtual_seconds,
            });
        }
    }

    fn fail(&mut self, failure: &Failure, quiet: bool) {
        self.seeds += 1;
        self.failed += 1;
        if !quiet {
            println!("FAILED: {failure}\n");
        }
        self.failures.push(failure.to_string());
    }

    fn show(&self, provider: bool) {
        let over = if provider {
            "2 rails under the provider"
        } else {
            "2 to 4 rails"
        };
        println!(
            "{} seeds over {over}, {} failed, {} not begun; {:.1} GB; {:.0} s",
            self.seeds,
            self.failed,
            self.not_begun,
            self.bytes as f64 / 1e9,
            self.seconds
        );
        println!(
            "ways: {} broken, {} taken back; {} transfers restarted, {} messages sent again, {} duplicates dropped; {} peers lost",
            self.ways_broken,
            self.ways_returned,
            self.restarts,
            self.resent,
            self.duplicates,
            self.peers_lost
        );
        if let (Some(slowest), Some(longest)) = (&self.slowest, &self.longest_wait) {
            println!(
                "slowest seed: {}, {:.2} s ({:.2} s of virtual time); longest wait: {:.2} s of virtual time, seed {}",
                slowest.seed, slowest.seconds, slowest.virtual_seconds, longest.virtual_seconds, longest.seed
            );
        }
    }
}

/// Runs all seeds that the command line selects; returns how many failed.
pub(crate) fn run(options: &Options) -> u64 {
    let seeds = options.all_seeds();
    let (sum, start) = (Mutex::new(Sum::default()), Instant::now());
    let next = AtomicUsize::new(0);
    let up = || {
        options
            .within
            .is_some_and(|within| start.elapsed().as_secs() >= within)
    };
    let worker = || {
        while !up()
            && let Some(seed) = seeds.clone().nth(next.fetch_add(1, Ordering::Relaxed))
        {
            let job = RailsJob {
                seed,
                provider: options.provider,
                messages: options.messages,
                script: Vec::new(),
            };
            let began = Instant::now();
            let ended = job.run(Some(&options.captures));
            let mut sum = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match ended {
                Ok(outcome) => sum.add(seed, &outcome, began.elapsed()),
                Err(failure) => sum.fail(&failure, options.json),
            }
        }
    };
    std::thread::scope(|scope| {
        (0..options.jobs).for_each(|_| _ = scope.spawn(worker));
    });
    let mut sum = sum
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    sum.not_begun = (seeds.end - seeds.start) - sum.seeds;
    sum.seconds = start.elapsed().as_secs_f64();
    if options.json {
        println!("{}", serde_json::json!(sum));
    } else {
        sum.show(options.provider);
    }
    sum.failed
}
