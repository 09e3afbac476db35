//! The command line of `doorbell onesided`.

use clap::{Args, ValueEnum};
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
of ordinary memory. With --layer am it puts into the segment of rank 1 and gets from there, beside requests and their \
replies (GASNet's extended interface, which has no atomics). All of them take turns, so that each ratio is that of neighbours in time; every figure is the median \
of the turns.\n\n",
settings!(), exits!(), "\
Examples:\n  doorbell onesided\n  doorbell onesided --rail shm --rail udp:lo --seconds 2\n  \
doorbell onesided --layer am --rail shm --rail udp:lo\n  doorbell onesided --size 64Ki --mode dedicated\n  \
doorbell onesided --json | jq '.rails[].latency[] | {operation, of_message}'"))]
pub struct OnesidedArgs {
    /// A rail to be measured; again for each further one; shm when none is named
    #[arg(long = "rail", value_name = "RAIL", value_parser = rail)]
    pub(crate) rails: Vec<RailName>,
    /// What the operations belong to
    #[arg(long, value_enum, default_value_t = OnesidedLayer::Pml)]
    pub(crate) layer: OnesidedLayer,
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

/// What one-sided operations belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnesidedLayer {
    /// Windows of a job of tagged messages
    Pml,
    /// Segments of a job of active messages
    Am,
}

impl OnesidedLayer {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pml => "pml",
            Self::Am => "am",
        }
    }
}

/// Arguments of a rank of `onesided`.
#[derive(Debug, Args)]
pub struct OnesidedRankArgs {
    /// What the operations belong to
    pub(crate) layer: OnesidedLayer,
    /// Seconds for each half
    pub(crate) seconds: f64,
    /// Bytes of the long pieces
    pub(crate) bytes: usize,
}
