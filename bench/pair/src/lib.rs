//! PML and BTL with their driver taken out: two ranks on one thread, over datagram rails that only copy
//! frames from one array to another.
//!
//! ```text
//!   Pml ── Btl ── End ══ frames in memory ══ End ── Btl ── Pml
//! ```
//!
//! The benchmarks time it, and `cargo xtask instructions` counts what its program `stack` executes. It is a
//! crate of its own so that this program is built from what is counted and from nothing else.
//!
//! ```
//! let mut pair = doorbell_pair::Pair::over(&[100])?;
//! pair.there_and_back()?;
//! assert!(pair.frames()[0] >= 2);
//! # Ok::<(), doorbell_pair::Failed>(())
//! ```

#![forbid(unsafe_code)]

mod pair;
mod program;
mod wire;

pub use pair::{Failed, Pair};
pub use program::{number, program};
pub use wire::{End, Rx, Shape, Tx};
