//! The command line of `doorbell-lab scaling`, and of what it starts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use doorbell_tools::cli::values::whole;
use doorbell_tools::exits;

/// A quantity that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Grows {
    /// Peers that are connected and silent
    Idle,
    /// Posted receives, and messages without a receive
    Queues,
    /// Ranks of a job on this machine
    Ranks,
}

/// Show how costs grow with idle peers, with queued messages, and with ranks on this machine
#[derive(Debug, Args)]
#[command(after_help = concat!("\
idle    PML and BTL of two ranks on one thread, over a rail that copies, each connected to a growing number of ranks that are \
silent: a ping-pong of 8 bytes, a poll where nothing has come, and the memory of it all.\n\
queues  A fully given tag is matched, and what was found is queued again, with a growing number of receives posted or of \
messages kept: sixteen of their tags again and again, and all of them in an order that no cache can guess.\n\
ranks   Jobs of a growing number of processes over shared memory, more than there are cores: a ping-pong of 8 bytes in pairs, a \
barrier of all, the time until a rank has its world, and the whole job from its start to its end.\n\n\
With many more ranks than cores a round takes a minute. Each point is the median of the rounds. A slope is the power with which the curve grows (0 is flat, 1 in proportion; given from two rounds on, where \
it is more than their noise), and what one more costs from the first point to the last; that of exchanges among ranks is taken where they share cores.\n\n", exits!(), "\
\n\nExamples:\n  \
doorbell-lab scaling\n  \
doorbell-lab scaling --only idle --peers 2,4096\n  \
doorbell-lab scaling --quick --json scaling.json --html scaling.html"))]
pub(crate) struct ScalingArgs {
    /// Only this; may be given several times
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) only: Vec<Grows>,
    /// Numbers of idle peers
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, value_parser = whole::<u32>(1..=50_000),
          default_values_t = [2, 16, 64, 256, 1024, 4096])]
    pub(crate) peers: Vec<u32>,
    /// Posted receives or kept messages
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, value_parser = whole::<u32>(1..=1_000_000),
          default_values_t = [1, 10, 100, 1_000, 10_000, 100_000])]
    pub(crate) entries: Vec<u32>,
    /// Ranks on this machine; they work in pairs
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, value_parser = whole::<u32>(2..=1024),
          default_values_t = [2, 4, 8, 16, 32, 64])]
    pub(crate) ranks: Vec<u32>,
    /// Number of interleaved rounds
    #[arg(long, value_name = "N", allow_hyphen_values = true, default_value_t = 3, value_parser = whole::<u32>(1..=1000))]
    pub(crate) rounds: u32,
    /// One round, and three points of each curve, for a first impression
    #[arg(long, conflicts_with = "rounds")]
    pub(crate) quick: bool,
    /// Write the report as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the report as a page with pictures
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// One measurement of `scaling`.
#[derive(Debug, Args)]
pub(crate) struct MeasureScalingArgs {
    /// Idle peers; without it this is a rank of a world
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=50_000))]
    pub(crate) idle: Option<u32>,
}
