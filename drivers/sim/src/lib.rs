//! A seeded network on a virtual clock, as a driver: a whole job of N ranks runs repeatably in one test
//! thread.
//!
//! [`SimNet`] is the network. Ranks attach [`SimRail`]s (the `Message` contract) and [`SimDatagram`]s (the
//! `Datagram` contract) to its planes; [`Change`]s break and mend it, by call or at a virtual time.
#![forbid(unsafe_code)]

mod agenda;
mod change;
mod config;
pub mod conformance;
mod conn;
mod datagram;
mod dice;
mod dump;
mod exposure;
mod failure;
mod fault;
mod fence;
mod forget;
mod frame;
mod handle;
mod job;
mod net;
mod null;
mod onesided;
mod pipe;
mod rail;
mod random;
mod slab;
mod state;
mod stats;
mod stranger;
mod trace;
mod way;

pub use change::Change;
pub use config::{Faults, SimConfig};
pub use datagram::{SimDatagram, SimKept, SimRx, SimTx};
pub use dice::Dice;
pub use dump::{DATA_PORT, Dumped, PRIORITY_PORT};
pub use fault::{Aim, Burst, Effect, Part, Pick, Pipe};
pub use job::{Finished, Job, Step, StopReason, Stuck};
pub use net::{Plane, SimNet};
pub use null::NullRail;
pub use rail::SimRail;
pub use random::Random;
pub use stats::Stats;
pub use trace::{Happened, TraceEvent};
