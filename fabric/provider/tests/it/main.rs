//! The provider through the installed libfabric, as its clients use it: two processes for each test.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "calls of C, one behind the other"
)]

mod addresses;
mod atomic;
mod automatic;
mod client;
mod completions;
mod counters;
mod ends;
mod events;
mod hosts;
mod messages;
mod mpi;
mod multi;
mod options;
mod pair;
mod pingpong;
mod rma;
mod tagged;
mod threads;
mod waits;
