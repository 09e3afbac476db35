//! The command line of `doorbell-lab budgets`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use doorbell_tools::cli::values::whole;
use doorbell_tools::exits;

/// Measure what the design promises, and judge it
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Ratios are measured within one run, in interleaved repetitions; the verdict is no when a budget is missed. A row that cannot \
be judged here has the reason beside it, and is never counted as met.\n\n\
The rows between two hosts are measured between two network namespaces with a pair of virtual Ethernet interfaces between \
them, and those about losses through a third one that drops frames. They end with the command. That takes root, or a \
kernel that lets users make namespaces, and the packages iproute2, util-linux and nftables; rails past the kernel (xdp) \
take root. All of it takes some three minutes.\n\n", exits!(), "\
Examples:\n  doorbell-lab budgets\n  doorbell-lab budgets --json -\n  doorbell-lab budgets --repetitions 16\n  \
doorbell-lab budgets --quick --only network --only loss"))]
pub(crate) struct BudgetsArgs {
    /// Write the verdicts as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Interleaved repetitions; losses are measured in every second one [default: 8]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole::<u32>(1..=1000))]
    pub(crate) repetitions: Option<u32>,
    /// One shorter repetition, for a first impression
    #[arg(long, conflicts_with = "repetitions")]
    pub(crate) quick: bool,
    /// Only this part; again for each further one
    #[arg(long = "only", value_name = "PART", value_enum)]
    pub(crate) only: Vec<Part>,
}

/// A part of the budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Two processes that share memory
    Shm,
    /// Two processes over the loopback interface
    Loopback,
    /// Inside one process: rings, timers, matching, the stack without a driver
    Process,
    /// Two hosts, over udp and xdp
    Network,
    /// The same two hosts while frames are lost
    Loss,
    /// Memory of idle peers
    Memory,
}

impl Part {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Loopback => "loopback",
            Self::Process => "process",
            Self::Network => "network",
            Self::Loss => "loss",
            Self::Memory => "memory",
        }
    }
}
