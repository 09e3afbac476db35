//! The BTL over the simulator and over UDP: its promises, faults, hostile frames, paths, connections that
//! come back.

// What is tested has no clock and no socket; the tests have.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/lane.rs"]
mod lane;

mod batching;
mod channels;
mod conformance;
mod faults;
mod haste;
mod hellos;
mod hints;
mod hostile;
mod late;
mod leaving;
mod long;
mod named;
mod one_wire;
mod path;
mod rates;
mod recorder;
mod revival;
mod scarce;
mod udp_links;
