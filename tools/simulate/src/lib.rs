//! Whole jobs over a faulty simulated network: eight ranks, the PML, the reliable layer and the simulator, in
//! one thread. A seed is a run: it chooses the messages, the receives, the shape of the network and every
//! fault.
//!
//! ```text
//!   plan ─► player (one per rank): sends, receives ─► (World ─►) Pml ─► Btl ─► SimDatagram ─► SimNet
//!     └────► books: every message once, whole, and in matching order
//! ```
//!
//! That is one rail for all ranks, which loses, repeats, damages. Over several rails that break and come
//! back, also of clients of the libfabric provider, see [`RailsJob`]. Over queues of a modelled device
//! instead of a simulated network, and on the machine's clock: [`UsnicJob`]. The credits of active messages,
//! between up to ten thousand nodes: [`CreditsJob`].
//!
//! `cargo xtask simulate` runs many seeds; a failing one is printed with the command that runs it again, and
//! its last moments are kept as a capture for Wireshark.
#![forbid(unsafe_code)]

mod books;
mod class;
pub mod command;
mod credits;
mod end;
mod failure;
mod job;
mod plan;
mod player;
mod rails;
mod shape;
pub mod soak;
mod usnic;

pub use class::Class;
pub use credits::{
    CreditsJob, Pattern as CreditsPattern, Policy as CreditsPolicy, Sample as CreditsSample,
    Tally as CreditsTally,
};
pub use failure::{Failure, Kind};
pub use job::{Outcome, SimulatedJob, Stack};
pub use rails::{Counts, Outcome as RailsOutcome, RailsJob};
pub use usnic::{Adapter, UsnicJob, UsnicOutcome};
