//! Jobs of this library: in threads, in processes, over the simulator, between two hosts; ended, killed,
//! watched.

#[path = "../common/mod.rs"]
mod common;

mod am;
mod apart;
mod beside;
mod bound;
mod control;
mod examples;
mod faults;
mod killed;
mod leaving;
mod lend;
mod lengths;
mod local;
mod portals;
mod posted;
mod processes;
mod raw;
mod reentry;
mod seen;
mod sim;
mod suspended;
mod two_hosts;
mod windows;
