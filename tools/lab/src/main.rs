//! The `doorbell-lab` program, for those who develop and evaluate doorbell: it judges what the design
//! promises, measures beside other stacks, shows how costs grow, and emulates devices. Users of a cluster
//! need `doorbell` alone.
//!
//! | module | what it is |
//! |---|---|
//! | `cli` | the list of commands |
//! | `budgets` | what the design promises, measured and judged |
//! | `compare_peers` | Open MPI, MPICH, UCX and libfabric, measured in turn with doorbell |
//! | `scaling` | how costs grow with peers, queued messages and ranks |
//! | `raw_udp` | what the sockets or queues below a rail take by themselves |
//! | `model` | devices that are processes |
//! | `acm` | the counters of an address service, and its load |
//! | `probes` | single costs, each measured by itself, for `budgets` and `scaling` |
//! | `place`, `page` | two hosts out of network namespaces; pages with pictures |
#![forbid(unsafe_code)]

mod acm;
mod budgets;
mod cli;
mod compare_peers;
mod html;
mod model;
mod place;
mod probes;
mod raw_udp;
mod scaling;

use std::process::ExitCode;

use doorbell_tools::error::ToolError;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    doorbell_tools::program("doorbell-lab", Cli::shown(), carry_out)
}

fn carry_out(cli: Cli) -> Result<ExitCode, ToolError> {
    match cli.command {
        Command::Budgets(args) => budgets::budgets(&args),
        Command::ComparePeers(args) => compare_peers::compare_peers(&args),
        Command::Scaling(args) => {
            doorbell::config::warn_of_unknown_variables();
            scaling::scaling(&args)
        }
        Command::RawUdp(args) => raw_udp::raw_udp(&args),
        Command::Model(args) => model::model(&args),
        Command::AcmPerf(args) => acm::perf(&args),
        Command::AcmLoad(args) => acm::load(&args),
        Command::MeasureScaling(args) => scaling::measure_scaling(&args),
        Command::MeasureOverlap(args) => compare_peers::measure_overlap(&args),
        Command::MeasureIdle => budgets::measure_idle(),
        Command::Doorbell(command) => doorbell_tools::carry_out(command),
    }
}
