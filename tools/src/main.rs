//! The `doorbell` program: starts ranks, shows rails, measures.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::CommandFactory as _;
use doorbell_tools::cli::Cli;

fn main() -> ExitCode {
    doorbell_tools::program("doorbell", Cli::command(), |cli: Cli| {
        doorbell_tools::carry_out(cli.command)
    })
}
