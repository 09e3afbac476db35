//! Paths: a peer over one rail each, and what a layer over several rails does with them.
//!
//! | module | what it holds |
//! |---|---|
//! | [`state`] | the states of a path, and the table of transitions |
//! | [`table`] | state machines as tables |
//! | [`latency`] | the measured round trip, and which paths are as good as the best |
//! | [`order`] | sequence numbers, messages that arrived ahead, duplicates |
//! | [`set`] | sets of paths |
//!
//! It does no input or output of its own: time is an argument, and its users talk to the rails.
#![forbid(unsafe_code)]

pub mod latency;
pub mod order;
pub mod set;
pub mod state;
pub mod table;

pub use order::{Ahead, Place, Seq};
pub use set::{PATHS_MAX, each};
pub use state::{PathEvent, PathState};
