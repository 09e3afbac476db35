//! The command line of `doorbell why`.

use std::path::PathBuf;

use clap::Args;
use doorbell_fabric::name::RailName;

use crate::cli::values::{process, rail};
use crate::{exits, settings};

/// Show which rails lead to a peer, and why the others do not
#[derive(Debug, Args)]
#[command(after_help = concat!("\
A number is a rank of a job that runs on this machine: the counter files of its other ranks show how their rails \
to it are, and why each of the others was not chosen. 16 hexadecimal digits are the name of a process without a job, which \
`doorbell counters` shows of those that have met it; its address, as the log of the libfabric provider and fi_av_straddr print it \
(doorbell://HOST/NAME), is taken, too. Everything else is a host: the rails of this machine are judged by \
interface, address family and routing table towards all its addresses, and nothing is sent; with `--probe`, a \
`doorbell pingpong --serve` that runs there (port 7117) is met, small and full frames are tried in both directions, and \
latencies are measured. The verdict is no when no rail leads there, also where a named one does not exist; \
the rails to name are printed then.\n\n", settings!(), exits!(), "\
Examples:\n  doorbell why 10.0.0.2\n  doorbell why node7 --rail udp:eth0\n  doorbell why 1\n  \
doorbell why 1 --job 4711 --json | jq '.from[].rails[].reason'\n  \
doorbell why 10.0.0.2 --probe --rail udp:eth0 --key-file job.key"))]
pub struct WhyArgs {
    /// A rank, the name or the address of a process without a job, or the address or the name of a host
    #[arg(value_name = "PEER")]
    pub(crate) peer: String,
    /// With a rank: only the view of this process, one of the job's ranks
    #[arg(long, value_name = "PID", allow_hyphen_values = true, value_parser = process)]
    pub(crate) job: Option<u32>,
    /// With a host: a rail to check as if it were named; may be repeated
    #[arg(long = "rail", value_name = "RAIL", value_parser = rail)]
    pub(crate) rails: Vec<RailName>,
    /// With a host: connect to `--serve` there, and try the rails
    #[arg(long)]
    pub(crate) probe: bool,
    /// With --probe: the key that both sides have; without one, only loopback is used
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
