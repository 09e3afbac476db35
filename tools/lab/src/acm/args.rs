//! The command lines of `doorbell-lab acm-perf` and `acm-load`.

use clap::Args;
use doorbell_tools::cli::values::{seconds, whole};
use doorbell_tools::{acm_exits, acm_services};

/// Show the counters of a service
#[derive(Debug, Args)]
#[command(after_help = concat!(acm_services!(), acm_exits!(), "\
Examples:\n  doorbell-lab acm-perf\n  doorbell-lab acm-perf --all\n  doorbell-lab acm-perf --source 10.0.0.1 --json"))]
pub(crate) struct PerfArgs {
    /// Also show the counters of each endpoint
    #[arg(long, conflicts_with = "source")]
    pub(crate) all: bool,
    /// Show the counters of the endpoint with this address
    #[arg(long, short, value_name = "ADDRESS")]
    pub(crate) source: Option<String>,
    /// The service to query
    #[arg(long, value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Query known paths from many clients, and time the answers
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Each client has a connection of its own and sends its share of the rate; latency is counted from the time at which a query was due, \
so that a stalled service does not get fewer queries. The memory of the service is read before and after, if it \
runs on this host and its process is known.\n\n", acm_services!(), acm_exits!(), "\
Examples:\n  doorbell-lab acm-load 10.0.0.2\n  doorbell-lab acm-load node2 node3 --clients 100 --rate 10000 --seconds 10 --json"))]
pub(crate) struct LoadArgs {
    /// Names and addresses, queried in turn
    #[arg(value_name = "DESTINATION", required = true)]
    pub(crate) destinations: Vec<String>,
    /// Number of clients
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole::<u32>(1..=10_000))]
    pub(crate) clients: u32,
    /// Queries per second, of all clients together
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = whole::<u32>(1..=10_000_000))]
    pub(crate) rate: u32,
    /// How long to run, in seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) seconds: f64,
    /// The service to query
    #[arg(long, value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
