//! A Portals 4 network interface in software, over any rails that carry messages.
#![forbid(unsafe_code)]

mod answers;
mod append;
mod atomics;
mod bytes;
mod calls;
mod config;
mod core;
mod counting;
mod drops;
mod entries;
mod events;
mod iface;
mod initiator;
mod link;
mod memory;
mod node;
mod ops;
mod outbox;
mod peers;
mod pulls;
mod short;
mod slab;
mod table;
mod target;
#[cfg(test)]
mod tests;
mod triggered;
mod view;
mod wire;

pub use config::{Config, NodeError};
pub use drops::{Drop, Drops};
pub use link::{LinkStats, RailId};
pub use node::Node;
pub use view::{Interface, View};
