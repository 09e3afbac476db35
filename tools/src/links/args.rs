//! The command line of `doorbell links`.

use std::path::PathBuf;

use clap::Args;
use doorbell::oob::Endpoint;
use doorbell_fabric::name::RailName;

use crate::cli::values::{endpoint, rail, whole};
use crate::{exits, settings};

/// Ping every pair of ranks over every rail
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Messages of eight bytes and of the longest that goes in one frame go to and fro between each two ranks, and are compared byte \
by byte. Each rail has a job of its own, in which it is the only one: no other rail steps in, and one that fails stops no \
other. In a round every rank has one partner, so that with more ranks than cores they wait for each other: the figures show \
that it works, `pingpong` shows how fast. A pair that does not work is printed with what its rail found out.\n\n\
Two hosts: `doorbell pingpong --serve` on one, with its rails; `doorbell links --connect` on the other.\n\n\
Without `--rail`, which `--connect` needs, the rails of the settings (rails.list), else shm and udp:lo, which listen on this machine alone. Status 1 when a pair does not work, \
also where its rail is not there.\n\n",
settings!(), exits!(), "\
Examples:\n  doorbell links\n  doorbell links --ranks 4 --rail shm --rail udp:eth0\n  \
doorbell links --connect 10.0.0.1 --rail udp:eth0 --rail xdp:eth1 --key-file job.key\n  \
doorbell links --json | jq '.rails[].pairs[] | select(.works | not)'"))]
pub struct LinksArgs {
    /// A rail to be tried; again for each further one
    #[arg(long = "rail", value_name = "RAIL", value_parser = rail)]
    pub(crate) rails: Vec<RailName>,
    /// Ranks on this machine, 2 to 64
    #[arg(long, value_name = "N", allow_hyphen_values = true, default_value_t = 2, value_parser = whole::<u32>(2..=64), conflicts_with = "connect")]
    pub(crate) ranks: u32,
    /// With the side that serves there, instead of ranks of this machine
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = endpoint, requires = "rails")]
    pub(crate) connect: Option<Endpoint>,
    /// With --connect: the key that both sides have; without one, only loopback is used
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Print the pairs as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
