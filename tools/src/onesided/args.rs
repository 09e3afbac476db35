//! The command line of `doorbell onesided`.

use clap::Args;
use doorbell_bench::size::Size;
use doorbell_fabric::name::RailName;

use crate::cli::values::{an_hour, rail};
use crate::measure::ModeArg;
use crate::{exits, settings};

/// Compare puts, gets and atomics with messages
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Two processes are started over each rail, each bound to a core of its own where there are two. Rank 0 puts eight bytes \
into a window of rank 1, gets eight, and adds to a counter of eight, each until it is done there; beside them it exchanges \
messages of eight bytes. Then it moves longer pieces, eight at a time, by messages, puts and gets, out of regions and out \
of ordinary memory. All of them take turns, so that each ratio is that of neighbours in time; every figure is the median \
of the turns.\n\n",
settings!(), exits!(), "\
Examples:\n  doorbell onesided\n  doorbell onesided --rail shm --rail udp:lo --seconds 2\n  \
doorbell onesided --size 64Ki --mode dedicated\n  \
doorbell onesided --json | jq '.rails[].latency[] | {operation, of_message}'"))]
pub struct OnesidedArgs {
    /// A rail to be measured; again for each further one; shm when none is named
    #[arg(long = "rail", value_name = "RAIL", value_parser = rail)]
    pub(crate) rails: Vec<RailName>,
    /// Length of the pieces whose bandwidth is measured: bytes, or with Ki, Mi, Gi
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, default_value = "1Mi")]
    pub(crate) size: Size,
    /// Time for all operations of eight bytes, and again for all of the long ones, in seconds
    #[arg(long, value_name = "S", allow_hyphen_values = true, value_parser = an_hour, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// The thread that makes progress; without it, as the setting progress.mode (inline by default)
    #[arg(long, value_enum)]
    pub(crate) mode: Option<ModeArg>,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of a rank of `onesided`.
#[derive(Debug, Args)]
pub struct OnesidedRankArgs {
    /// Seconds for each half
    pub(crate) seconds: f64,
    /// Bytes of the long pieces
    pub(crate) bytes: usize,
}
