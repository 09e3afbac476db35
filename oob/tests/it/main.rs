//! The transport `tcp` with real sockets.

#![allow(unreachable_pub)] // modules of several test binaries
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // a test has sockets and clocks

mod ends;
mod hosts;
mod job;
mod loopback;
mod namespaces;
mod plane;
mod rail_hosts;
mod rail_lines;
mod rails;
mod refused;
mod relays;
mod runner;
mod side;
mod ties;
