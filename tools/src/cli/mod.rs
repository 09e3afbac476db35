//! The command line: one place for names, defaults, help and examples.

pub mod values;

use clap::{Parser, Subcommand};

use crate::acm::args::AcmArgs;
use crate::agent::AgentCommand;
use crate::compare::CompareArgs;
use crate::counters::CountersArgs;
use crate::doctor::args::DoctorArgs;
use crate::info::InfoArgs;
use crate::key::KeyArgs;
use crate::links::args::LinksArgs;
use crate::measure::args::{PingpongArgs, RateArgs, StreamArgs};
use crate::onesided::args::{OnesidedArgs, OnesidedRankArgs};
use crate::run::args::{ExecArgs, KeepArgs, RunArgs};
use crate::why::args::WhyArgs;

/// With which number a command ends: the same words in the help of each.
#[macro_export]
macro_rules! exits {
    () => {
        "\
Exit status: 0 done; 1 the verdict is no; 2 wrong usage or configuration, or a file that it names is not there; 3 a rail \
cannot be used; 4 a peer was lost; 5 a deadline passed; 6 the system refused; 128 + n a rank was ended by signal n. Of several ranks, the first that \
fails decides; a program of `run` may end with numbers of its own (126: it cannot be run, 127: it is not there).\n\n"
    };
}

/// Where settings come from: the same words in the help of each command that reads them.
#[macro_export]
macro_rules! settings {
    () => {
        "\
Settings: what is not set by an option comes from the environment (DOORBELL_DEADLINE=5s), else from the TOML file that \
DOORBELL_CONFIG names, else from the defaults; `doorbell info --config` lists every setting with its variable, its \
value and where that came from.\n\n"
    };
}

/// How two hosts measure together: the same words in the help of each measurement.
macro_rules! hosts {
    () => {
        "\
Two hosts: `--serve` on one, `--connect` on the other, with a copy of the same key file (`doorbell key FILE`) on both. \
Addresses, start and end go over one TCP connection, port 7117 unless another is named, which the key authenticates and \
encrypts; messages go over the rails. The connecting side's options rule, and it writes the report; each side names its \
own rails, mode and cores (`--cores A` is then the core of this side, `--cores A,B` in dedicated mode also that of its \
progress thread). One `--serve` serves pingpong, stream and rate, one client after another, until it is interrupted. \
Without a key, only loopback is served and called.\n\n"
    };
}

/// Processes of a job exchange tagged messages from user space.
#[derive(Debug, Parser)]
#[command(
    name = "doorbell",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = concat!(
        exits!(),
        "Examples:\n  doorbell info\n  doorbell pingpong\n  doorbell run -n 4 -- ./my-program --its-flag"
    )
)]
pub struct Cli {
    #[command(subcommand)]
    /// The command to run.
    pub command: Command,
}

/// The commands of `doorbell`, including hidden ones that it starts itself with.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start N ranks of a program, on this machine or on several
    Run(RunArgs),
    /// Show the rails of this machine, and why each can or cannot be used
    Info(InfoArgs),
    /// Show which rails lead to a peer, and why the others do not
    Why(WhyArgs),
    /// Show the counters of the ranks that run on this machine
    Counters(CountersArgs),
    /// Find out why a rail does not work, and what to do
    Doctor(DoctorArgs),
    /// Ping every pair of ranks over every rail
    Links(LinksArgs),
    /// Resolve names and addresses to paths, as a service and as its client
    #[command(after_help = concat!(exits!(), "\
Examples:\n  doorbell acm serve --nic eth0\n  doorbell acm resolve node3\n  doorbell acm watch"))]
    Acm(AcmArgs),
    /// Own a physical function, for the rails over its virtual ones
    #[command(after_help = concat!(exits!(), "\
Examples:\n  doorbell agent usnic --pf 0000:3b:00.0\n  doorbell agent usnic --pf model/D/pf"))]
    Agent {
        /// The kind of rail
        #[command(subcommand)]
        kind: AgentCommand,
    },
    /// Measure latency: one message to and fro
    #[command(after_help = concat!("\
Two processes are started, each bound to a core of its own; under `doorbell run` the ranks work in pairs 0-1, 2-3, …\n\
Half round trips are shown, every figure of all exchanges. With `--rate` or `--open-loop`, \
full round trips: from the intended send, beside those from the actual one.\n\n", hosts!(), settings!(), exits!(), "\
Examples:\n  doorbell pingpong\n  doorbell pingpong --sizes 8,64,4Ki --seconds 2 --plot latency.svg\n  \
doorbell pingpong --sizes 8 --json - | jq '.results[0].half_rtt_ns.p99'\n  \
doorbell pingpong --verify\n  \
doorbell pingpong --sizes 64 --rate 200k\n  doorbell pingpong --sizes 64 --open-loop\n  \
doorbell pingpong --sizes 8 --one-way\n  \
doorbell pingpong --rail shm --rail udp:lo\n  \
doorbell pingpong --layer portals --sizes 8\n  doorbell pingpong --layer am --rail udp:lo\n  \
doorbell pingpong --serve --bind 10.0.0.1 --rail udp:eth0 --key-file job.key\n  \
doorbell pingpong --connect 10.0.0.1 --rail udp:eth0 --key-file job.key"))]
    Pingpong(PingpongArgs),
    /// Measure bandwidth: messages in one direction, with a window of them outstanding
    #[command(after_help = concat!(hosts!(), settings!(), exits!(), "\
Examples:\n  doorbell stream\n  doorbell stream --sizes 64Ki,1Mi --window 16 --no-cma\n  \
doorbell stream --sizes 1Mi --verify --json - | jq '.results[].verified'\n  \
doorbell stream --csv stream.csv --plot stream.html"))]
    Stream(StreamArgs),
    /// Measure messages per second: small ones, in one direction
    #[command(after_help = concat!("\
Messages up to 4 KiB are sent and received by blocking calls, which is the fastest way: the rail's own queue keeps \
them under way. `--posted N` has N non-blocking requests outstanding on each side instead, as benchmarks of MPI do; \
each then costs a request more than the same message by blocking calls.\n\n", hosts!(), settings!(), exits!(), "\
Examples:\n  doorbell rate\n  doorbell rate --posted 512\n  doorbell rate --sizes 8,64,1Ki --json rate.json\n  \
doorbell rate --verify"))]
    Rate(RateArgs),
    /// Compare puts, gets and atomics with messages
    Onesided(OnesidedArgs),
    /// Make a key that two hosts share
    Key(KeyArgs),
    /// Compare two reports: is the second run worse than the first, or is that noise?
    Compare(CompareArgs),
    /// What `links` starts: a rank that meets all others
    #[command(hide = true)]
    LinksRank,
    /// What `onesided` starts: one of two ranks
    #[command(hide = true)]
    OnesidedRank(OnesidedRankArgs),
    /// What `doctor` starts to see whether two processes can exchange messages
    #[command(hide = true)]
    DoctorPeer,
    /// What `info` and `doctor` start to load a file of libfabric
    #[command(hide = true)]
    OfiChild {
        /// What to load, as JSON
        task: String,
    },
    /// What `run` starts instead of the program itself
    #[command(hide = true)]
    ExecRank(ExecArgs),
    /// What `run` leaves beside the ranks, to end them when the launcher cannot
    #[command(hide = true)]
    KeepJob(KeepArgs),
    /// What `run --hosts` starts on each host
    #[command(hide = true)]
    Daemon,
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
    fn every_command_shows_examples_and_exit_statuses() {
        let mut commands = Cli::command();
        for command in commands
            .get_subcommands_mut()
            .filter(|command| !command.is_hide_set())
        {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Examples:"), "{}", command.get_name());
            // Wrapped to the terminal's width.
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words(&help).contains(&words(exits!())), "{}", command.get_name());
            let alone = ["acm", "agent", "counters", "key", "compare"];
            let reads = !alone.contains(&command.get_name());
            assert_eq!(help.contains("DOORBELL_CONFIG"), reads, "{}", command.get_name());
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
