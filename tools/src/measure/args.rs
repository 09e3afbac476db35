//! The command lines of `doorbell pingpong`, `stream` and `rate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use doorbell::oob::Endpoint;
use doorbell_bench::layer::Layer;
use doorbell_bench::size::Size;
use doorbell_fabric::name::RailName;

use crate::cli::values::{an_hour, core, endpoint, per_second, rail, whole};

/// Where the engine makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// The program's own, in its calls
    Inline,
    /// A separate thread, on a core of its own
    Dedicated,
}

impl ModeArg {
    /// Its name, as the configuration knows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Dedicated => "dedicated",
        }
    }
}

/// What carries the messages of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LayerArg {
    /// Tagged messages, matched by the receiver
    Pml,
    /// Puts of a Portals interface in software
    Portals,
    /// Active messages over such an interface
    Am,
}

impl LayerArg {
    pub(crate) fn layer(self) -> Layer {
        match self {
            Self::Pml => Layer::Pml,
            Self::Portals => Layer::Portals,
            Self::Am => Layer::Am,
        }
    }
}

/// The options that all measurements share.
#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    /// A rail to use, without a substitute if it cannot be used; may be repeated
    #[arg(long = "rail", value_name = "RAIL", value_parser = rail)]
    pub(crate) rails: Vec<RailName>,
    /// What carries the messages: tagged messages (pml), puts into the other's memory (portals), or requests
    /// and their replies (am); between two hosts, the same on both sides
    #[arg(long, value_enum, default_value_t = LayerArg::Pml)]
    pub(crate) layer: LayerArg,
    /// The thread that makes progress; without it, as the setting progress.mode (inline by default)
    #[arg(long, value_enum)]
    pub(crate) mode: Option<ModeArg>,
    /// Message sizes: bytes, or with Ki, Mi, Gi
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) sizes: Vec<Size>,
    /// Time for each size, in seconds; a warm-up of up to half a second each comes on top
    #[arg(long, value_name = "S", allow_hyphen_values = true, value_parser = an_hour, conflicts_with = "samples",
          default_value_t = 0.5)]
    pub(crate) seconds: f64,
    /// Samples per size instead of a time; whole rounds are measured, of up to 1,000 exchanges where they are
    /// short, so that it may be more
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole::<u64>(1..=1_000_000_000_000))]
    pub(crate) samples: Option<u64>,
    /// Shared memory without the system's call for copies between processes
    #[arg(long)]
    pub(crate) no_cma: bool,
    /// Capture every frame of a udp rail, for Wireshark (pcapng); each rank writes a file of its own, with
    /// its number before the ending, for its user only; one that cannot be written whole makes the exit
    /// status 6
    #[arg(long, value_name = "FILE", requires = "rails")]
    pub(crate) pcap: Option<PathBuf>,
    /// Leave out the bare cache-line exchange that is measured beside each size
    #[arg(long)]
    pub(crate) no_reference: bool,
    /// Stamp every message with a number and a checksum, and have its receiver check them; a message that is
    /// lost, duplicated, misordered or corrupt makes the exit status 1
    #[arg(long)]
    pub(crate) verify: bool,
    /// With `--verify`: flip a bit in one of N messages before it leaves, to see that it is found
    #[arg(long, value_name = "N", requires = "verify", allow_hyphen_values = true, value_parser = whole::<u64>(1..=1_000_000_000_000))]
    pub(crate) spoil: Option<u64>,
    /// The two cores, as in `--cores 0,1`, or with `--mode dedicated` four, as in `--cores 0,1,2,3`: each
    /// rank's own and that of its progress thread; with `--serve` or `--connect`, those of this side
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1, allow_hyphen_values = true,
          value_parser = core)]
    pub(crate) cores: Vec<usize>,
    /// The cores that the process that started this rank was allowed to use
    #[arg(long, hide = true, value_delimiter = ',', value_parser = core)]
    pub(crate) allowed: Vec<usize>,
    /// Write the report as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the rows as CSV; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Write a picture (.svg) or a page with pictures and table (.html)
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) hosts: HostsArgs,
}

/// The options of a measurement between two hosts.
#[derive(Debug, Args)]
pub(crate) struct HostsArgs {
    /// Serve clients, one after another, until interrupted
    #[arg(help_heading = "Two hosts", long, conflicts_with_all = ["connect", "sizes", "seconds", "samples", "json", "csv", "plot", "verify"])]
    pub(crate) serve: bool,
    /// The address to serve on: loopback unless another is named
    #[arg(help_heading = "Two hosts", long, value_name = "ADDR[:PORT]", requires = "serve", value_parser = endpoint)]
    pub(crate) bind: Option<Endpoint>,
    /// End after the first measurement: 0 when it was carried out, whatever its result, which the other side
    /// reports
    #[arg(help_heading = "Two hosts", long, requires = "serve")]
    pub(crate) once: bool,
    /// Measure with the process that serves there
    #[arg(help_heading = "Two hosts", long, value_name = "ADDR[:PORT]", value_parser = endpoint)]
    pub(crate) connect: Option<Endpoint>,
    /// The key that both sides have; without one, only loopback is used
    #[arg(help_heading = "Two hosts", long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
}

/// Options of `doorbell pingpong`.
#[derive(Debug, Args)]
pub struct PingpongArgs {
    #[command(flatten)]
    pub(crate) all: MeasureArgs,
    /// Open loop: this many messages leave each second whether or not the last one was answered, and times
    /// count from when each should have left; k, M and G are understood
    #[arg(long, value_name = "R", allow_hyphen_values = true, value_parser = per_second)]
    pub(crate) rate: Option<f64>,
    /// Open loop at 50, 80 and 95 % of the highest rate that is sustained, which is searched for first
    #[arg(long, conflicts_with = "rate")]
    pub(crate) open_loop: bool,
    /// Measure each direction separately, too, where the clocks allow it
    #[arg(long, conflicts_with_all = ["rate", "open_loop", "verify"])]
    pub(crate) one_way: bool,
    /// Write percentile distributions as text, for HdrHistogram's plotter
    #[arg(long, value_name = "FILE")]
    pub(crate) hgrm: Option<PathBuf>,
    /// Write the histograms as an interval log, without loss
    #[arg(long, value_name = "FILE")]
    pub(crate) hlog: Option<PathBuf>,
}

/// Options of `doorbell stream`.
#[derive(Debug, Args)]
pub struct StreamArgs {
    #[command(flatten)]
    pub(crate) all: MeasureArgs,
    /// How many messages are outstanding
    #[arg(long, value_name = "N", allow_hyphen_values = true, default_value_t = 64, value_parser = whole::<u32>(1..=65_536))]
    pub(crate) window: u32,
    /// Send out of ordinary memory and receive into it at every size; without it, regions are used from 64
    /// KiB on
    #[arg(long)]
    pub(crate) plain: bool,
}

/// Options of `doorbell rate`.
#[derive(Debug, Args)]
pub struct RateArgs {
    #[command(flatten)]
    pub(crate) all: MeasureArgs,
    /// How many messages are outstanding
    #[arg(long, value_name = "N", allow_hyphen_values = true, default_value_t = 512, value_parser = whole::<u32>(1..=65_536))]
    pub(crate) window: u32,
    /// Have N non-blocking sends and receives outstanding instead of blocking calls
    #[arg(long, value_name = "N", allow_hyphen_values = true, conflicts_with = "window", value_parser = whole::<u32>(1..=65_536))]
    pub(crate) posted: Option<u32>,
    /// Send out of ordinary memory and receive into it at every size; without it, regions are used from 64
    /// KiB on
    #[arg(long)]
    pub(crate) plain: bool,
}
