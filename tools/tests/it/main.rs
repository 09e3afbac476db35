//! The program from outside: every command, its output, its exit statuses, and what it leaves behind.

mod acm;
mod budgets;
mod commands;
mod common;
mod counters;
mod doctor;
mod hosts;
mod job_start;
mod launchers;
mod layers;
mod limits;
mod links;
mod links_of_ranks;
mod model;
mod mpi_pair;
#[path = "../../../drivers/udp/tests/netns/mod.rs"]
mod netns;
mod output;
mod peers;
mod picture;
mod portals;
mod rails;
mod run;
mod run_hosts;
mod run_ssh;
mod scaling;
mod signals;
mod slurm;
mod spawn;
mod this_host;
mod trouble;
mod usnic;
mod usnic_failover;
mod usnic_wire;
mod ways;
mod xdp;
