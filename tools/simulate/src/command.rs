//! The command line: which seeds over which faults, and what is printed of them.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use doorbell_sim::Stats;
use serde_json::json;

use crate::class::Class;
pub use crate::credits::command::Options as CreditsOptions;
use crate::failure::Failure;
use crate::job::{Outcome, SimulatedJob, Stack};
use crate::{credits, rails, usnic};

/// Whole jobs over a faulty simulated network: every message once, whole, and in matching order
#[derive(Clone, Debug, Parser)]
#[command(name = "simulate", bin_name = "cargo xtask simulate", after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Options {
    /// Something else than jobs
    #[command(subcommand)]
    pub other: Option<Other>,
    /// How many seeds for each class of faults
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub from: u64,
    /// This seed only
    #[arg(long, value_name = "S", conflicts_with_all = ["seeds", "from"])]
    pub seed: Option<u64>,
    /// Messages of one job; 100,000, or with --rails what the seed chooses
    #[arg(long, value_name = "M")]
    pub messages: Option<usize>,
    /// Jobs of 2 to 8 ranks over 2 to 4 rails that break and come back while messages are under way, all
    /// protocols in turn; some lose a rank. The seed chooses all of it
    #[arg(long, conflicts_with_all = ["fault", "stack", "ranks", "capture"])]
    pub rails: bool,
    /// With --rails: domains of the libfabric provider over two such rails. They meet when they need each
    /// other, and in some jobs one of them loses both rails
    #[arg(long, requires = "rails")]
    pub provider: bool,
    /// Jobs of two ranks over usnic rails of two modelled adapters with a wire between them that loses,
    /// repeats and damages; on the machine's clock, as root. 1,000 messages each
    #[arg(long, conflicts_with_all = ["rails", "ranks", "jobs", "capture"])]
    pub usnic: bool,
    /// Classes of faults; all of them when none is named
    #[arg(long, value_name = "CLASS")]
    pub fault: Vec<Class>,
    /// What the jobs run on; both, in turn, when none is named
    #[arg(long, value_name = "STACK")]
    pub stack: Option<Stack>,
    /// Ranks of one job
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    pub ranks: u32,
    /// Jobs that run at the same time
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,
    /// Stop beginning new seeds after this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub within: Option<u64>,
    /// Write the whole job of a seed to this file, for Wireshark; of one class of faults
    #[arg(long, value_name = "FILE", requires = "seed", requires = "fault")]
    pub capture: Option<PathBuf>,
    /// Print one line of JSON instead
    #[arg(long)]
    pub json: bool,
    /// Where the captures of failed seeds go
    #[arg(long, default_value = "target/simulate", value_name = "FOLDER")]
    pub captures: PathBuf,
}

/// What is simulated beside jobs.
#[derive(Clone, Debug, Subcommand)]
pub enum Other {
    /// The credit economy of active messages: nodes by the thousand, every rule judged at every step
    Credits(Box<CreditsOptions>),
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask simulate                                ten seeds over each class of faults
  cargo xtask simulate --seeds 200 --jobs 2
  cargo xtask simulate --from 101 --seeds 100         the second hundred
  cargo xtask simulate --fault loss10 --messages 10000
  cargo xtask simulate --seed 7 --fault all           one seed again, as a failure names it
  cargo xtask simulate --rails --seeds 1000           failover: rails die, return, are cut and part the ranks
  cargo xtask simulate --rails --seed 7
  cargo xtask simulate --rails --provider --seeds 1000 the same under the libfabric provider
  cargo xtask simulate --usnic --seeds 20             usnic rails over models of their adapter
  cargo xtask simulate credits --nodes 1024           credits of active messages; its --help has more";

/// Messages of a job over one rail by default.
const MESSAGES: usize = 100_000;

impl Options {
    /// Returns the seeds that the command line selects.
    pub(crate) fn all_seeds(&self) -> Range<u64> {
        match self.seed {
            Some(seed) => seed..seed.saturating_add(1),
            None => self.from..self.from.saturating_add(self.seeds),
        }
    }

    fn per_job(&self) -> usize {
        self.messages.unwrap_or(MESSAGES)
    }
}

/// What one class of faults came to.
#[derive(Clone, Debug, Default)]
struct Row {
    good: u64,
    bad: u64,
    bytes: u64,
    took: Duration,
    network: Stats,
    /// Of the jobs that report it: frames that did not arrive as they were sent, and segments that were sent
    /// again.
    lost: u64,
    sent_again: u64,
    failures: Vec<String>,
}

impl Row {
    fn add(&mut self, outcome: &Outcome) {
        self.good += 1;
        self.bytes += outcome.bytes;
        self.took += outcome.took;
        self.network += outcome.network;
        if let Some(again) = outcome.sent_again {
            self.lost += lost(&outcome.network);
            self.sent_again += again;
        }
    }
}

/// Frames and copies that did not arrive as they were sent.
fn lost(network: &Stats) -> u64 {
    network.frames_dropped() + network.corrupted
}

/// The whole program; 1 when a seed has failed.
pub fn main() -> ExitCode {
    let options = Options::parse();
    let failed = run(&options);
    if failed > 0 {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Runs what the command line selects, and prints a line per class and each failure; returns how many seeds
/// failed.
pub fn run(options: &Options) -> u64 {
    if let Some(Other::Credits(options)) = &options.other {
        return credits::command::run(options);
    }
    if let Err(error) = std::fs::create_dir_all(&options.captures) {
        eprintln!(
            "{}: {error}; failed seeds are not captured",
            options.captures.display()
        );
    }
    if options.rails {
        return rails::command::run(options);
    }
    if options.usnic {
        return usnic::command::run(options);
    }
    let classes = if options.fault.is_empty() {
        Class::EACH.to_vec()
    } else {
        options.fault.clone()
    };
    // Seed by seed through all classes: when the time is up, each has had its share.
    let each = options
        .all_seeds()
        .flat_map(|seed| classes.iter().map(move |&class| (seed, class)));
    let work: Vec<(u64, Class)> = each.collect();
    let rows = Mutex::new(vec![Row::default(); classes.len()]);
    let (next, start) = (AtomicUsize::new(0), Instant::now());
    let up = || {
        options
            .within
            .is_some_and(|within| start.elapsed() >= Duration::from_secs(within))
    };
    let worker = || {
        while !up()
            && let Some(&(seed, class)) = work.get(next.fetch_add(1, Ordering::Relaxed))
        {
            let job = SimulatedJob {
                seed,
                class,
                stack: options.stack.unwrap_or(Stack::of(seed)),
                ranks: options.ranks,
                messages: options.per_job(),
                mtu: None,
                script: Vec::new(),
            };
            let ended = match &options.capture {
                Some(file) => job.capture(file),
                None => job.run(Some(&options.captures)),
            };
            let mut rows = rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let row = classes
                .iter()
                .position(|&known| known == class)
                .unwrap_or_default();
            count(&mut rows[row], ended, options.json);
        }
    };
    std::thread::scope(|scope| {
        (0..options.jobs).for_each(|_| _ = scope.spawn(worker));
    });
    let rows = rows
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let show = if options.json { show_json } else { show };
    show(options, &classes, &rows, work.len() as u64, start.elapsed());
    rows.iter().map(|row| row.bad).sum()
}

fn count(row: &mut Row, ended: Result<Outcome, Failure>, json: bool) {
    match ended {
        Ok(outcome) => row.add(&outcome),
        Err(failure) => {
            row.bad += 1;
            row.failures.push(failure.to_string());
            if !json {
                println!("FAILED: {failure}\n");
            }
        }
    }
}

fn show_json(options: &Options, classes: &[Class], rows: &[Row], asked: u64, took: Duration) {
    let row = |(class, row): (&Class, &Row)| {
        json!({
            "fault": class.to_string(),
            "seeds": row.good + row.bad,
            "failed": row.bad,
            "messages": row.good * options.per_job() as u64,
            "bytes": row.bytes,
            "frames": row.network.frames_sent,
            "lost": lost(&row.network),
            "twice": row.network.duplicated,
            "sent_again": row.sent_again,
            "virtual_seconds": row.took.as_secs_f64(),
            "failures": row.failures,
        })
    };
    let begun: u64 = rows.iter().map(|row| row.good + row.bad).sum();
    let all = json!({
        "ranks": options.ranks,
        "rows": classes.iter().zip(rows).map(row).collect::<Vec<_>>(),
        "not_begun": asked - begun,
        "seconds": took.as_secs_f64(),
    });
    println!("{all}");
}

fn show(options: &Options, classes: &[Class], rows: &[Row], asked: u64, took: Duration) {
    println!(
        "{:<12} {:>5} {:>6} {:>10} {:>9} {:>11} {:>9} {:>8} {:>11} {:>6} {:>8}",
        "fault",
        "seeds",
        "failed",
        "messages",
        "bytes",
        "frames",
        "lost",
        "twice",
        "sent again",
        "ratio",
        "Gb/s"
    );
    for (class, row) in classes.iter().zip(rows) {
        let ratio = if row.lost > 0 {
            row.sent_again as f64 / row.lost as f64
        } else {
            0.0
        };
        let seconds = row.took.as_secs_f64().max(f64::MIN_POSITIVE);
        println!(
            "{:<12} {:>5} {:>6} {:>10} {:>8.1}G {:>11} {:>9} {:>8} {:>11} {:>6.2} {:>8.1}",
            class,
            row.good + row.bad,
            row.bad,
            row.good * options.per_job() as u64,
            row.bytes as f64 / 1e9,
            row.network.frames_sent,
            lost(&row.network),
            row.network.duplicated,
            row.sent_again,
            ratio,
            row.bytes as f64 * 8.0 / 1e9 / seconds,
        );
    }
    let (good, bad) = rows
        .iter()
        .fold((0, 0), |(good, bad), row| (good + row.good, bad + row.bad));
    println!(
        "{good} jobs of {} ranks with every message once, whole, and in matching order; {bad} failed; {} not begun; {:.0} s",
        options.ranks,
        asked - good - bad,
        took.as_secs_f64()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Options::command().debug_assert();
        let options = Options::parse_from([
            "simulate",
            "--seed",
            "7",
            "--fault",
            "reorder64",
            "--fault",
            "all",
        ]);
        assert_eq!(
            (options.seed, options.fault),
            (Some(7), vec![Class::Reorder64, Class::All])
        );
        let options = Options::parse_from(["simulate", "--rails", "--from", "5", "--seeds", "3"]);
        assert!(options.rails && options.all_seeds() == (5..8));
        let options = Options::parse_from(["simulate", "credits", "--nodes", "64"]);
        assert!(matches!(options.other, Some(Other::Credits(_))));
        assert!(Options::try_parse_from(["simulate", "--rails", "credits"]).is_err());
        let mixed = Options::try_parse_from(["simulate", "--rails", "--fault", "all"]);
        assert!(mixed.is_err(), "the seed chooses what breaks");
    }
}
