//! The C side of launchers, and the only part of this crate with `unsafe`: libpmix, loaded on demand, behind
//! safe calls; and the descriptor of a PMI, taken over by its number.
//!
//! ```text
//!   library      finds libpmix and its functions        (dlopen)
//!   abi          the C types, with the sizes that the header gives them
//!   client       the calls, in and out with Rust's types; they block
//!   descriptor   PMI_FD
//! ```
//!
//! Libpmix starts a thread of its own and keeps it until it is finalized; nothing in it calls back into Rust.
//! It is never unloaded, since its threads and memory may outlive every call.

mod abi;
pub(crate) mod client;
pub(crate) mod descriptor;
mod library;

pub(crate) use library::{LIBRARY, loads};
