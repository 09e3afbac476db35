//! Carriers over UDP: on the loopback, and between hosts in network namespaces.

#![allow(unreachable_pub)] // modules of one test

#[path = "../../../drivers/udp/tests/netns/mod.rs"]
mod netns;

mod hosts;
mod loopback;
mod side;
