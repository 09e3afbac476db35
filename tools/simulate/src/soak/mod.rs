//! `cargo xtask soak`: mixed traffic of several processes for a long time, during which nothing may grow and
//! nothing may be wrong.
//!
//! ```text
//!   supervisor ─┬─ doorbell-lab model vic, every register access a message and judged
//!               ├─ doorbell agent usnic
//!               └─ ranks: epochs of messages, each judged by the simulator's books
//! ```
//!
//! | file | job |
//! |---|---|
//! | `rank` | a rank: epochs, until the first rank announces the end |
//! | `process` | a process that is watched: its output, its memory, its descriptors |
//! | `watch` | samples, and whether something grew |
//! | `usnic` | the scenario of that name |

mod process;
mod rank;
mod usnic;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Mixed traffic for a long time: nothing may be wrong, and nothing may grow
#[derive(Debug, Parser)]
#[command(name = "soak", bin_name = "cargo xtask soak", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    scenario: Scenario,
}

const EXAMPLES: &str = "\
Exit status: 0 all was well; 1 something was wrong, or grew.

Examples:
  cargo xtask soak usnic                             an hour of three ranks over a modelled VIC
  cargo xtask soak usnic --minutes 1 --json target/soak.json";

#[derive(Debug, Subcommand)]
enum Scenario {
    /// Ranks over usnic rails of one modelled adapter that judges every access of a register
    Usnic(Options),
    /// A rank of a scenario, which is started by it
    #[command(hide = true)]
    Rank(rank::Options),
}

/// How long, and with what.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// How long messages are exchanged
    #[arg(long, default_value_t = 60.0, value_name = "N")]
    pub(crate) minutes: f64,
    /// Ranks, each with a function of its own
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=16))]
    pub(crate) ranks: u32,
    /// Chooses the messages
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub(crate) seed: u64,
    /// The program `doorbell`, for the model and the agent; without it, the one beside this program
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Write the summary as JSON, too; `-` is the standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// The whole program.
pub fn main() -> ExitCode {
    let ended = match Cli::parse().scenario {
        Scenario::Usnic(options) => usnic::run(&options),
        Scenario::Rank(options) => rank::run(&options).map(|()| true),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("soak: {why}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        let Scenario::Usnic(options) = Cli::parse_from(["soak", "usnic", "--minutes", "0.5"]).scenario else {
            panic!("it is a scenario");
        };
        assert_eq!((options.minutes, options.ranks), (0.5, 3));
    }
}
