//! The command line: the list of commands.

use clap::{CommandFactory as _, Parser, Subcommand};
use doorbell_tools::exits;

use crate::acm::args::{LoadArgs, PerfArgs};
use crate::budgets::args::BudgetsArgs;
use crate::compare_peers::args::{ComparePeersArgs, OverlapArgs};
use crate::model::args::ModelArgs;
use crate::raw_udp::RawUdpArgs;
use crate::scaling::args::{MeasureScalingArgs, ScalingArgs};

/// For those who develop and evaluate doorbell: judges its budgets, compares it with other stacks, shows how
/// costs grow, emulates devices. Everything else is in the program `doorbell`.
#[derive(Debug, Parser)]
#[command(
    name = "doorbell-lab",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = concat!(
        "What is measured is doorbell itself: this program starts itself for that, and so has every command of `doorbell`, \
         too, which its help leaves out.\n\n",
        exits!(),
        "Examples:\n  doorbell-lab budgets\n  doorbell-lab compare-peers --list\n  doorbell-lab model vic"
    )
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The command line, with the commands of `doorbell` left out of the help.
    pub(crate) fn shown() -> clap::Command {
        let doorbell = doorbell_tools::cli::Cli::command();
        let hidden = doorbell
            .get_subcommands()
            .map(|command| command.get_name().to_owned());
        hidden.fold(Self::command(), |all, name| {
            all.mut_subcommand(name, |command| command.hide(true))
        })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure what the design promises, and judge it
    Budgets(BudgetsArgs),
    /// Measure doorbell and the peers that are installed in turn, and show which is ahead
    ComparePeers(ComparePeersArgs),
    /// Show how costs grow with idle peers, with queued messages, and with ranks on this machine
    Scaling(ScalingArgs),
    /// Measure what the sockets below a udp rail take by themselves
    RawUdp(RawUdpArgs),
    /// Emulate a NIC over vfio-user, for testing drivers without hardware
    #[command(after_help = concat!(exits!(), "\
Examples:\n  doorbell-lab model vic\n  doorbell-lab model vic --help\n  doorbell-lab model vic --dir /tmp/vic --vfs 4"))]
    Model(ModelArgs),
    /// Show what an address service has counted
    AcmPerf(PerfArgs),
    /// Query an address service for known paths from many clients, and time the answers
    AcmLoad(LoadArgs),
    /// What `scaling` starts to measure idle peers, and worlds
    #[command(hide = true)]
    MeasureScaling(MeasureScalingArgs),
    /// What `compare-peers` starts to measure overlap
    #[command(hide = true)]
    MeasureOverlap(OverlapArgs),
    /// What `budgets` starts to measure idle peers
    #[command(hide = true)]
    MeasureIdle,
    #[command(flatten)]
    Doorbell(doorbell_tools::cli::Command),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::shown().debug_assert();
    }

    #[test]
    fn the_help_shows_this_program_s_commands_alone() {
        let commands = Cli::shown();
        let shown: Vec<&str> = commands
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(clap::Command::get_name)
            .collect();
        assert_eq!(
            shown,
            [
                "budgets",
                "compare-peers",
                "scaling",
                "raw-udp",
                "model",
                "acm-perf",
                "acm-load"
            ]
        );
    }

    #[test]
    fn every_command_shows_examples_and_exit_statuses() {
        let mut commands = Cli::shown();
        for command in commands
            .get_subcommands_mut()
            .filter(|command| !command.is_hide_set())
        {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Examples:"), "{}", command.get_name());
            assert!(help.contains("Exit status: 0 done;"), "{}", command.get_name());
        }
    }
}
