//! `cargo xtask simulate credits`: patterns at some sizes under each policy, and what is printed and drawn of
//! them.

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use serde_json::json;

use super::figures::{Figures, Runs, rates};
use super::{CreditsJob, Pattern, Policy, Tally, plot};

/// What the JSON is.
const SCHEMA: &str = "doorbell.credits/1";

/// The credit economy of active messages: nodes by the thousand, every rule judged at every step
#[derive(Clone, Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Processes; more than once for several sizes
    #[arg(long, default_values_t = [64], value_name = "N", value_parser = clap::value_parser!(u32).range(2..=65_536))]
    nodes: Vec<u32>,
    /// Which nodes send what to which; all patterns when none is named
    #[arg(long, value_name = "PATTERN")]
    pattern: Vec<Pattern>,
    /// How credits are dealt with; unlimited ones are always measured beside them. All but mixed when none is
    /// named
    #[arg(long, value_name = "POLICY")]
    policy: Vec<Policy>,
    /// The first seed
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// How many seeds
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// How long, in epochs of a node that receives as fast as the pattern sends; else as long as the pattern
    /// needs to settle
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    epochs: Option<u32>,
    /// Requests of an epoch
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    epoch_duration: Option<u32>,
    /// How long a phase is, in epochs; else 8
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    phase: Option<u32>,
    /// Begin by the table of the defaults, rather than with the least for every node and a small bank
    #[arg(long, conflicts_with = "banked")]
    table: bool,
    /// The bank of each node; else what the pattern needs and a little more
    #[arg(long, value_name = "CREDITS", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    banked: Option<u32>,
    /// Print one line of JSON instead
    #[arg(long)]
    json: bool,
    /// Draw each pattern into this folder, as PATTERN-NODES.svg
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask simulate credits                                    all patterns, 64 nodes
  cargo xtask simulate credits --nodes 1024 --pattern phases --seeds 5
  cargo xtask simulate credits --nodes 10000 --pattern partners --policy flags --epoch-duration 128 --epochs 16
  cargo xtask simulate credits --nodes 64 --pattern stencil --policy flags --json";

/// The program; returns how many things were not as promised.
pub(crate) fn run(options: &Options) -> u64 {
    let patterns = match options.pattern.is_empty() {
        true => Pattern::ALL.to_vec(),
        false => options.pattern.clone(),
    };
    let mut all = Vec::new();
    for &nodes in &options.nodes {
        for &pattern in &patterns {
            let figures = figures(options, nodes, pattern);
            if !options.json {
                figures.show();
            }
            all.push(figures);
        }
    }
    if options.json {
        println!("{}", json!({ "schema": SCHEMA, "runs": all }));
    }
    all.iter().map(|figures| figures.failures.len() as u64).sum()
}

fn figures(options: &Options, nodes: u32, pattern: Pattern) -> Figures {
    let job = CreditsJob {
        nodes,
        pattern,
        policy: Policy::Unlimited,
        seed: options.seed,
        epochs: options.epochs.unwrap_or(pattern.epochs(nodes)),
        table: options.table,
        banked: options.banked,
        epoch: options.epoch_duration,
        phase: options.phase,
    };
    let mut figures = Figures::new(&job, options.seeds);
    let mut unlimited = Vec::new();
    let asked = |policy: Policy| match options.policy.is_empty() {
        true => policy != Policy::Mixed,
        false => policy == Policy::Unlimited || options.policy.contains(&policy),
    };
    for policy in Policy::ALL.into_iter().filter(|&policy| asked(policy)) {
        let job = CreditsJob { policy, ..job };
        let start = Instant::now();
        let tallies = match runs(&job, options.seeds) {
            Ok(tallies) => tallies,
            Err(failure) => {
                figures.failures.push(failure);
                continue;
            }
        };
        if policy == Policy::Unlimited {
            unlimited = tallies.iter().map(|tally| rates(&job, tally)).collect();
        } else if let Some(shares) = tallies.first().and_then(|tally| tally.shares.as_ref())
            && policy.migrates()
        {
            figures.set_space(shares);
        }
        let runs = Runs {
            job,
            tallies,
            seconds: start.elapsed().as_secs_f64(),
            unlimited: &unlimited,
        };
        figures.rows.push(runs.row());
    }
    figures.judge();
    if let Some(folder) = &options.plots
        && let Err(wrong) = draw(folder, &figures)
    {
        figures.failures.push(wrong);
    }
    figures
}

/// All seeds of one policy; the first fault, with the command that shows it again.
fn runs(job: &CreditsJob, seeds: u64) -> Result<Vec<Tally>, String> {
    let seeds = job.seed..job.seed.saturating_add(seeds);
    let run = |seed| {
        let job = CreditsJob { seed, ..*job };
        job.run()
            .map_err(|fault| format!("{fault}\n  again: {}", again(&job)))
    };
    seeds.map(run).collect()
}

/// The command that plays a run again.
fn again(job: &CreditsJob) -> String {
    let mut line = format!(
        "cargo xtask simulate credits --nodes {} --pattern {} --policy {} --seed {} --epochs {}",
        job.nodes,
        job.pattern.name(),
        job.policy.name(),
        job.seed,
        job.epochs
    );
    for (word, number) in [
        ("epoch-duration", job.epoch),
        ("phase", job.phase),
        ("banked", job.banked),
    ] {
        if let Some(number) = number {
            line += &format!(" --{word} {number}");
        }
    }
    if job.table {
        line += " --table";
    }
    line
}

fn draw(folder: &std::path::Path, figures: &Figures) -> Result<(), String> {
    let file = folder.join(format!("{}-{}.svg", figures.pattern.name(), figures.nodes));
    let svg = plot::plot(figures)?;
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&file, svg))
        .map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Options::command().debug_assert();
        let words = [
            "credits",
            "--nodes",
            "64",
            "--nodes",
            "1024",
            "--pattern",
            "fan-in",
        ];
        let options = Options::parse_from(words);
        assert_eq!(
            (options.nodes, options.pattern),
            (vec![64, 1024], vec![Pattern::FanIn])
        );
        assert!(Options::try_parse_from(["credits", "--table", "--banked", "3"]).is_err());
        assert!(Options::try_parse_from(["credits", "--nodes", "1"]).is_err());
    }

    #[test]
    fn a_fault_names_the_command_that_shows_it_again() {
        let job = CreditsJob {
            nodes: 27,
            pattern: Pattern::Phases,
            policy: Policy::Counters,
            seed: 5,
            epochs: 9,
            table: true,
            banked: None,
            epoch: Some(256),
            phase: Some(3),
        };
        let line = again(&job);
        let words = line.strip_prefix("cargo xtask simulate ").unwrap().split(' ');
        let options = Options::parse_from(words);
        let read = (
            options.nodes,
            options.pattern,
            options.policy,
            options.seed,
            options.epochs,
        );
        let played = (
            vec![27],
            vec![Pattern::Phases],
            vec![Policy::Counters],
            5,
            Some(9),
        );
        assert_eq!(read, played);
        assert_eq!((options.epoch_duration, options.phase), (Some(256), Some(3)));
        assert!(options.table && options.banked.is_none());
    }
}
