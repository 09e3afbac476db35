//! The model of a VIC under clients that were written by hand: what it answers, what it forgives, what it
//! reports, and the wire.

#[path = "../client/mod.rs"]
mod client;

mod choices;
mod exchange;
mod faults;
mod lifecycle;
mod second;
mod violations;
mod wire;
