//! The transport `tcp`: every NIC of the host is a module of its own, and its traffic uses no other NIC.
//!
//! ```text
//!        Command │                                                                     ▲ Event
//!  ┌─────────────▼─────────────────────────────────────────────────────────────────────┴──────────────┐
//!  │ Tcp           the connections of all kinds of lines, paths                   one, no waiting     │
//!  └───┬──────────────────────┬────────────────────────┬─────────────────────▲───────────▲────────────┘
//!      │ Order                │ module 0: eth0         │ module 1: eth1      │ Note      │ Note
//!  ┌───▼───────────┐   ┌──────▼────────┐        ┌──────▼────────┐   ┌────────┴─────┐ ┌───┴────────────┐
//!  │ line: a       │   │ door: accepts │        │ door: accepts │   │ line: a      │ │ watch: links,  │
//!  │ connection,   │   │ on eth0's     │        │ on eth1's     │   │ connection   │ │ addresses,     │
//!  │ its session   │   │ addresses     │        │ addresses     │   │ of eth1      │ │ routes         │
//!  └───────────────┘   └───────────────┘        └───────────────┘   └──────────────┘ └────────────────┘
//!   tasks of the runtime that runs all of it, or of a thread of the module's own (Settings::threads)
//! ```
//!
//! * [`choose`] selects the NICs that are modules, and the addresses at which they listen: **the loopback
//!   only, by default**.
//! * [`reach`] decides by which module a peer's address is reached, as the kernel would route it.
//! * `line` is a TCP connection: the Noise session over it, and frames in order.
//! * `connections` starts and ends them for what all kinds of lines share; it never blocks, and never touches
//!   a connected socket itself.
//! * [`blocking`] has sessions for threads that may wait: they need neither a runtime nor a module.
//!
//! Without a key only loopback is used.

pub mod address;
pub mod blocking;
pub mod choose;
mod connections;
mod line;
mod listener;
mod module;
mod nics;
pub mod reach;
mod settings;
mod socket;
mod source;
mod transport;

pub use choose::{Chosen, Families, Pattern};
pub use settings::{Ports, Settings};
pub use socket::KeepAlive;
pub use transport::Tcp;
