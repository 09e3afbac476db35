//! `--usnic`: many seeds, and what is printed of them.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::{UsnicJob, UsnicOutcome};
use crate::class::Class;
use crate::command::Options;
use crate::failure::Failure;
use crate::job::Stack;

/// Messages of a job by default.
const MESSAGES: usize = 1_000;

/// What one class of faults came to.
#[derive(Debug, Serialize)]
struct Row {
    fault: String,
    seeds: u64,
    failed: u64,
    messages: u64,
    bytes: u64,
    frames_sent: u64,
    frames_received: u64,
    no_buffers: u64,
    sent_again: u64,
    twice: u64,
    damaged: u64,
    seconds: f64,
    failures: Vec<String>,
}

impl Row {
    fn new(class: Class) -> Self {
        Self {
            fault: class.to_string(),
            seeds: 0,
            failed: 0,
            messages: 0,
            bytes: 0,
            frames_sent: 0,
            frames_received: 0,
            no_buffers: 0,
            sent_again: 0,
            twice: 0,
            damaged: 0,
            seconds: 0.0,
            failures: Vec::new(),
        }
    }

    fn add(&mut self, messages: usize, outcome: &UsnicOutcome) {
        self.messages += messages as u64;
        self.bytes += outcome.bytes;
        self.frames_sent += outcome.sent;
        self.frames_received += outcome.received;
        self.no_buffers += outcome.no_bufs;
        self.sent_again += outcome.resends.unwrap_or(0);
        self.twice += outcome.twice.unwrap_or(0);
        self.damaged += outcome.damaged.unwrap_or(0);
        self.seconds += outcome.took.as_secs_f64();
    }

    fn fail(&mut self, failure: &Failure, quiet: bool) {
        self.failed += 1;
        if !quiet {
            println!("FAILED: {failure}\n");
        }
        self.failures.push(failure.to_string());
    }

    fn show(&self) {
        println!(
            "{:<12} {:>5} {:>6} {:>9} {:>8.2}G {:>10} {:>10} {:>8} {:>10} {:>7} {:>8} {:>7.0}",
            self.fault,
            self.seeds,
            self.failed,
            self.messages,
            self.bytes as f64 / 1e9,
            self.frames_sent,
            self.frames_received,
            self.no_buffers,
            self.sent_again,
            self.twice,
            self.damaged,
            self.seconds
        );
    }
}

/// Runs all selected seeds, one after the other: each has the machine. Returns how many failed.
pub(crate) fn run(options: &Options) -> u64 {
    if let Some(why) = UsnicJob::lacking() {
        eprintln!(
            "simulate: no wire between two modelled adapters: {why}; run it as root where iproute2 is installed"
        );
        return 1;
    }
    let classes = if options.fault.is_empty() {
        Class::EACH.to_vec()
    } else {
        options.fault.clone()
    };
    let mut rows: Vec<Row> = classes.iter().copied().map(Row::new).collect();
    let began = Instant::now();
    let up = || {
        options
            .within
            .is_some_and(|within| began.elapsed() >= Duration::from_secs(within))
    };
    let each = options
        .all_seeds()
        .flat_map(|seed| classes.iter().map(move |class| (seed, *class)));
    let (mut begun, asked) = (0, each.clone().count());
    for ((seed, class), row) in each.zip((0..classes.len()).cycle()) {
        if up() {
            break;
        }
        begun += 1;
        let job = UsnicJob {
            seed,
            class,
            stack: options.stack.unwrap_or(Stack::of(seed)),
            messages: options.messages.unwrap_or(MESSAGES),
        };
        let row = &mut rows[row];
        row.seeds += 1;
        match job.run() {
            Ok(outcome) => row.add(job.messages, &outcome),
            Err(failure) => row.fail(&failure, options.json),
        }
    }
    let failed = rows.iter().map(|row| row.failed).sum();
    let (not_begun, seconds) = (asked - begun, began.elapsed().as_secs_f64());
    if options.json {
        println!(
            "{}",
            serde_json::json!({ "rows": rows, "not_begun": not_begun, "seconds": seconds })
        );
        return failed;
    }
    println!(
        "{:<12} {:>5} {:>6} {:>9} {:>9} {:>10} {:>10} {:>8} {:>10} {:>7} {:>8} {:>7}",
        "fault",
        "seeds",
        "failed",
        "messages",
        "bytes",
        "sent",
        "received",
        "no room",
        "sent again",
        "twice",
        "damaged",
        "seconds"
    );
    rows.iter().for_each(Row::show);
    println!(
        "{begun} jobs of two ranks over usnic rails of two models, every message once, whole, and in matching order in \
         {} of them; {failed} failed; {not_begun} not begun; {seconds:.0} s (what is sent again, twice and damaged is counted \
         for odd seeds alone: worlds do not report it)",
        begun as u64 - failed
    );
    failed
}
