//! The developers' own commands: everything that keeps the project in order and is not part of what users
//! get.
//!
//! `cargo xtask test` runs every test of the project and counts them, `arrows` keeps the floors, the unsafe
//! rooms and the tree in order, `prose` checks the words of comments and documents, `licences` looks at what
//! the dependencies are licensed under, `fuzz` attacks parsers and protocols, `simulate` plays whole jobs
//! over a faulty simulated network, `soak` exchanges messages for a long time, `links` measures the udp rail
//! between two hosts, `rails` breaks links under several of them, `instructions` counts what a message costs,
//! `lab` proves in emulated machines what needs other NICs and kernels, `clients` runs programs of others
//! over libportals, `ofi-layouts` compares libfabric's headers with the types of `fabric/libfabric-sys`,
//! `provider` installs the provider for libfabric, `fabtests` runs libfabric's own tests over it,
//! `mpi-clients` several MPIs, `peers` installs what `doorbell-lab compare-peers` measures beside doorbell.
#![forbid(unsafe_code)]

mod arrows;
pub mod child;
mod clients;
pub mod error;
mod fabtests;
mod fuzz;
mod instructions;
mod lab;
mod lexer;
mod licences;
mod links;
mod lock;
mod mpi_clients;
mod ofi_layouts;
mod peers;
mod prose;
mod provider;
mod rails;
mod results;
mod simulate;
mod soak;
mod test;
mod tree;
mod two_hosts;
mod workshop;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Error;
use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The developers' own commands", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every test of the project and end with the counts
    #[command(after_help = test::HELP)]
    Test(test::Options),
    /// Check the dependencies of crates, where unsafe lives, and what lies in the tree
    #[command(after_help = arrows::HELP)]
    Arrows,
    /// Check the words of comments, messages and documents
    #[command(after_help = prose::HELP)]
    Prose(prose::Options),
    /// Check the licences and sources of all dependencies
    #[command(after_help = licences::HELP)]
    Licences,
    /// Measure the udp rail between two hosts, with and without loss, beside raw UDP and TCP
    #[command(after_help = links::HELP)]
    Links(links::Options),
    /// Break links under several rails between two hosts, and check every message
    #[command(after_help = rails::HELP)]
    Rails(rails::Options),
    /// Count the instructions of a small message, with one rail and with several
    #[command(after_help = instructions::HELP)]
    Instructions(instructions::Options),
    /// Build Open MPI, OpenSHMEM, GASNet and others from source trees against libportals, and run their tests
    #[command(after_help = clients::HELP)]
    Clients(clients::Options),
    /// Measure libfabric's headers, and compare them with the types of fabric/libfabric-sys
    #[command(after_help = ofi_layouts::HELP)]
    OfiLayouts(ofi_layouts::Options),
    /// Build the provider for libfabric, check the library, and install it where libfabric finds it
    #[command(after_help = provider::HELP)]
    Provider(provider::Options),
    /// Build libfabric's own tests from a source tree, and run them over our provider and the built-in ones
    #[command(after_help = fabtests::HELP)]
    Fabtests(fabtests::Options),
    /// Run the MPIs of PyPI and of the system over our provider and others
    #[command(after_help = mpi_clients::HELP)]
    MpiClients(mpi_clients::Options),
    /// Install the newest releases of the stacks that doorbell is compared with
    #[command(after_help = peers::HELP)]
    Peers(peers::Options),
    /// Prove in emulated machines what needs NICs and kernels that this one does not have
    #[command(after_help = lab::HELP)]
    Lab(lab::Options),
    /// Attack parsers and protocols with inputs that are made up
    #[command(after_help = fuzz::HELP)]
    Fuzz(fuzz::Options),
    /// Exchange mixed messages for a long time, and see that nothing is wrong and nothing grows
    // Its options are those of the program that it starts.
    #[command(disable_help_flag = true)]
    Soak {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Play whole jobs over a faulty simulated network, and check every message
    // Its options are those of the program that it starts.
    #[command(disable_help_flag = true)]
    Simulate {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask test                     everything, as CI runs it
  cargo xtask test --fast              without the slow proofs (release, loom, AddressSanitizer)
  cargo xtask test --only loom         one step; --list names them
  cargo xtask test --json target/r.json
  cargo xtask arrows
  cargo xtask prose --since main       words that your changes should not have
  cargo xtask licences
  cargo xtask links                    as root: latency, bandwidth, loss between two hosts
  cargo xtask rails                    as root: links break at random, and every message arrives
  cargo xtask instructions             what a small message costs, with one rail and with three
  cargo xtask lab                      emulated NICs and other kernels, in virtual machines
  cargo xtask clients --from ~/src     Open MPI, OpenSHMEM, GASNet over libportals, from source trees there
  cargo xtask ofi-layouts --headers /usr/include
                                       libfabric's headers against the types of fabric/libfabric-sys
  cargo xtask provider --into DIR      the provider for libfabric, checked and installed
  cargo xtask fabtests --from ~/src/libfabric
                                       libfabric's own tests over our provider, shm, tcp, sockets, udp;ofi_rxd
  cargo xtask mpi-clients              MPICH, Open MPI and mpi4py's tests over our provider, tcp, shm
  cargo xtask peers --into DIR         the stacks that doorbell-lab compare-peers measures beside doorbell
  cargo xtask fuzz --seconds 600       ten minutes of each fuzzer
  cargo xtask soak usnic --minutes 60  an hour of mixed traffic over a modelled VIC; see its --help
  cargo xtask simulate --seeds 200     200 seeds over each class of faults; see its --help";

/// Runs the whole program: reads the command line, runs one command, and returns 0 or 1.
pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one command; `Ok(false)` means that it worked and found something wrong.
fn run(cli: Cli) -> Result<bool, Error> {
    let workspace = Workspace::load(&workspace::root()?)?;
    match cli.command {
        Command::Test(options) => test::run(&workspace, &options),
        Command::Arrows => arrows::run(&workspace),
        Command::Prose(options) => prose::run(&workspace, &options),
        Command::Licences => licences::run(&workspace),
        Command::Links(options) => links::run(&workspace, &options),
        Command::Rails(options) => rails::run(&workspace, &options),
        Command::Instructions(options) => instructions::run(&workspace, &options),
        Command::Clients(options) => clients::run(&workspace, &options),
        Command::OfiLayouts(options) => ofi_layouts::run(&workspace, &options),
        Command::Provider(options) => provider::run(&workspace, &options),
        Command::Fabtests(options) => fabtests::run(&workspace, &options),
        Command::MpiClients(options) => mpi_clients::run(&workspace, &options),
        Command::Peers(options) => peers::run(&workspace, &options),
        Command::Lab(options) => lab::run(&workspace, &options),
        Command::Fuzz(options) => fuzz::run(&workspace, &options),
        Command::Soak { arguments } => soak::run(&workspace, &arguments),
        Command::Simulate { arguments } => simulate::run(&workspace, &arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound_and_its_help_shows_examples() {
        Cli::command().debug_assert();
        let help = Cli::command().render_help().to_string();
        for command in [
            "test",
            "arrows",
            "prose",
            "licences",
            "links",
            "rails",
            "instructions",
            "clients",
            "provider",
            "fabtests",
            "mpi-clients",
            "peers",
            "lab",
            "fuzz",
            "simulate",
            "soak",
        ] {
            assert!(
                help.contains(&format!("cargo xtask {command}")),
                "no example of {command} in:\n{help}"
            );
        }
    }
}
