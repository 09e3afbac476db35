//! The command line of `doorbell doctor`.

use std::net::IpAddr;

use clap::Args;

use crate::cli::values::address;
use crate::{exits, settings};

/// Find out why a rail does not work, and what to do
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Each rail is a chain of steps that rest on each other: interface, link, address, rights, memory, and at the end messages or \
frames through real rails. A chain stops at its first broken step, with the likely cause and what to do; advice for speed \
(governor, isolated cores, memory nodes, huge pages) breaks nothing. With `ofi`, \
the provider for libfabric is looked at: whether the installed libfabric loads it, and which MPIs would take it. Without names, every rail of this machine is looked at, \
but an xdp rail is not opened, which would attach a program to its interface for a moment: name it for that. A device of InfiniBand or RoCE by its \
name alone (`verbs:mlx5_0`) is all of its ports.\n\n\
Nothing is changed: rails and sockets are opened and closed again, and commands are printed and never run. With `--fix`, only \
what is broken is printed as commands; advice stands behind a #. Nothing is sent beyond this machine but to the peer that \
`--peer` names. Status 1 when a chain is broken, also that of a rail or a device that is not there, 0 when none is, also where something could not be found out.\n\n",
settings!(), exits!(), "\
Examples:\n  doorbell doctor\n  doorbell doctor udp:eth0 --peer 10.0.0.2\n  doorbell doctor xdp:eth1\n  \
doorbell doctor igbvf:0000:01:10.0\n  doorbell doctor shm --fix\n  doorbell doctor ofi\n  \
doorbell doctor --json | jq '.chains[] | select(.verdict == \"broken\")'"))]
pub struct DoctorArgs {
    /// A rail, the address of a PCI function, an interface, or an address of one, or `ofi` for libfabric; by
    /// default every rail of this machine
    #[arg(value_name = "RAIL|BDF")]
    pub(crate) rails: Vec<String>,
    /// Check the path to this address, too: route, replies, the longest packet that passes
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) peer: Option<IpAddr>,
    /// Print the report as JSON
    #[arg(long, conflicts_with = "fix")]
    pub(crate) json: bool,
    /// Print the fixes alone, as lines for a shell; they are never run
    #[arg(long)]
    pub(crate) fix: bool,
}
