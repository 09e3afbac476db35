//! The command line: one place for names, defaults, help and examples.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use doorbell_bench::size::Size;
use doorbell_fabric::name::RailName;

/// Processes of a job exchange tagged messages from user space.
#[derive(Debug, Parser)]
#[command(
    name = "doorbell",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "Exit status: 0 done, 1 the verdict is no, 2 wrong usage or configuration, 3 a rail cannot be used, \
                  4 a peer was lost, 5 a deadline passed, 6 the system refused.\n\n\
                  Examples:\n  doorbell info\n  doorbell pingpong\n  doorbell run -n 4 -- ./my-program --its-flag"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start N ranks of a program on this machine
    Run(RunArgs),
    /// Show the rails of this machine, and why each can or cannot be used
    Info(InfoArgs),
    /// Measure latency: one message to and fro
    #[command(after_help = "\
Two processes are started, each bound to a core of its own; under `doorbell run` the ranks work in pairs 0-1, 2-3, …\n\
Half round trips are shown: means over whole rounds, percentiles over single exchanges.\n\n\
Examples:\n  doorbell pingpong\n  doorbell pingpong --sizes 8,64,4Ki --seconds 2 --plot latency.svg\n  \
doorbell pingpong --sizes 8 --json - | jq '.results[0].half_rtt_ns.p99'")]
    Pingpong(MeasureArgs),
    /// Measure bandwidth: messages in one direction, a window outstanding
    #[command(after_help = "\
Examples:\n  doorbell stream\n  doorbell stream --sizes 64Ki,1Mi --window 16 --no-cma\n  \
doorbell stream --csv stream.csv --plot stream.html")]
    Stream(MeasureArgs),
    /// Measure messages per second: small ones, a large window
    #[command(after_help = "\
Examples:\n  doorbell rate\n  doorbell rate --sizes 8,64,1Ki --window 1024\n  doorbell rate --json rate.json")]
    Rate(MeasureArgs),
    /// Measure what the design promises, and judge it
    Budgets(BudgetsArgs),
    /// What `run` starts instead of the program itself
    #[command(hide = true)]
    ExecRank(ExecArgs),
}

/// Binding of ranks to cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bind {
    /// One core for each rank in turn, when there are enough; not at all otherwise
    Auto,
    /// One core for each rank in turn, shared when there are too few
    Core,
    /// Leave it to the scheduler
    None,
}

/// Start N ranks of a program on this machine
#[derive(Debug, Args)]
#[command(after_help = "\
Each rank finds DOORBELL_RANK, DOORBELL_SIZE and DOORBELL_ROOT in its environment. The first rank that fails decides \
the exit status (128 + n for signal n); the others are ended then. Rank 0 reads the standard input when it is not a \
terminal.\n\n\
Examples:\n  doorbell run -n 2 -- ./hello\n  doorbell run -n 4 --rail shm --timeout 60 -- ./my-program --its-flag\n  \
doorbell run -n 2 --bind none --no-prefix -- sh -c 'echo $DOORBELL_RANK of $DOORBELL_SIZE'")]
pub(crate) struct RunArgs {
    /// Number of ranks, 1 to 1024
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) ranks: u32,
    /// Rails to be used or refused, most wanted first; all usable ones when none is named
    #[arg(long = "rail", value_name = "RAIL", value_parser = rail)]
    pub(crate) rails: Vec<RailName>,
    /// End the job after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) timeout: Option<f64>,
    /// Binding of ranks to cores
    #[arg(long, value_enum, default_value_t = Bind::Auto)]
    pub(crate) bind: Bind,
    /// Pass output on as it is, without the rank in front of each line
    #[arg(long)]
    pub(crate) no_prefix: bool,
    /// The program
    #[arg(value_name = "PROGRAM", required = true)]
    pub(crate) program: std::ffi::OsString,
    /// Its arguments
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<std::ffi::OsString>,
}

/// Show the rails of this machine, and why each can or cannot be used
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:\n  doorbell info\n  doorbell info --config\n  doorbell info --json | jq '.drivers[].kind'")]
pub(crate) struct InfoArgs {
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show every setting instead, with its value and where it came from
    #[arg(long)]
    pub(crate) config: bool,
}

/// Where the engine makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    /// In the calls of the program
    Inline,
    /// In a thread of its own on a core of its own
    Dedicated,
}

impl ModeArg {
    /// Its name, as the configuration knows it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Dedicated => "dedicated",
        }
    }
}

/// What all measurements have in common.
#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    /// The rail to be used or refused
    #[arg(long, value_name = "RAIL", value_parser = rail)]
    pub(crate) rail: Option<RailName>,
    /// Where progress is made
    #[arg(long, value_enum, default_value_t = ModeArg::Inline)]
    pub(crate) mode: ModeArg,
    /// Message sizes: bytes, or with Ki, Mi, Gi
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) sizes: Vec<Size>,
    /// Measured time per size, in seconds; warm-up and reference come on top
    #[arg(long, value_name = "S", value_parser = seconds, conflicts_with = "samples", default_value_t = 0.5)]
    pub(crate) seconds: f64,
    /// Samples per size instead of a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) samples: Option<u64>,
    /// Messages outstanding (stream: 64, rate: 512)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) window: Option<u32>,
    /// Shared memory without the system's call for copies between processes
    #[arg(long)]
    pub(crate) no_cma: bool,
    /// Leave out the bare cache-line exchange that is measured beside each size
    #[arg(long)]
    pub(crate) no_reference: bool,
    /// The two cores, as in `--cores 0,1`
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1)]
    pub(crate) cores: Vec<usize>,
    /// Write the report as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the rows as CSV; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Write percentile distributions as text, for HdrHistogram's plotter
    #[arg(long, value_name = "FILE")]
    pub(crate) hgrm: Option<PathBuf>,
    /// Write the histograms as an interval log, without loss
    #[arg(long, value_name = "FILE")]
    pub(crate) hlog: Option<PathBuf>,
    /// Write a picture (.svg) or a page with pictures and table (.html)
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// Measure what the design promises, and judge it
#[derive(Debug, Args)]
#[command(after_help = "\
Ratios are measured within one run, in interleaved repetitions; the exit status is 1 when a budget is missed.\n\n\
Examples:\n  doorbell budgets\n  doorbell budgets --json -\n  doorbell budgets --repetitions 16")]
pub(crate) struct BudgetsArgs {
    /// Write the verdicts as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Interleaved repetitions
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: u32,
}

/// How a rank becomes the program.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The launcher's process: when it is another one, the launcher is dead already
    #[arg(long)]
    pub(crate) launcher: u32,
    /// The core to be bound to
    #[arg(long)]
    pub(crate) core: Option<usize>,
    /// The program
    #[arg(required = true)]
    pub(crate) program: std::ffi::OsString,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<std::ffi::OsString>,
}

/// A rail's name; the error names the nearest valid kind.
fn rail(text: &str) -> Result<RailName, String> {
    text.parse()
        .map_err(|error: doorbell_fabric::error::RailError| error.to_string())
}

/// A time in seconds, above zero and at most a week.
fn seconds(text: &str) -> Result<f64, String> {
    const WEEK: f64 = 7.0 * 86_400.0;
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= WEEK => Ok(value),
        _ => Err("give seconds above 0, such as 0.5 or 60".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples() {
        let mut commands = Cli::command();
        for command in commands
            .get_subcommands_mut()
            .filter(|command| !command.is_hide_set())
        {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Examples:"), "{}", command.get_name());
        }
    }

    #[test]
    fn programs_keep_their_own_flags() {
        let cli = Cli::parse_from(["doorbell", "run", "-n", "2", "--", "prog", "--help", "-n", "7"]);
        let Command::Run(run) = cli.command else {
            panic!("{cli:?}")
        };
        assert_eq!((run.ranks, run.args.len()), (2, 3));
    }
}
