//! The transport `tcp`: every NIC of the host is a module of its own, and what goes over one goes over no other.
//!
//! ```text
//!        Command │                                                                     ▲ Event
//!  ┌─────────────▼─────────────────────────────────────────────────────────────────────┴──────────────┐
//!  │ tcp::Tcp      who-are-you (connect::Meeting), links, ways, counters          one, no waiting     │
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
//! * [`choose`] says which NICs are modules, and at which of their addresses they listen: **loopback only, unless
//!   somebody names others**.
//! * [`reach`] says by which module a peer's address is reached, as the kernel would route it.
//! * `line` is a connection: bytes, the Noise session over them, frames in order, how many are out of our hands.
//! * `guests` are those who have connected and have not proved yet that they have the key: they are few, they have little
//!   time, and who fails too often is not heard for a while.
//! * `tcp` holds it together; it never waits, and never touches a socket that is connected.
//!
//! A frame is one message of the session: its head and body are put together where they are encrypted, and nowhere
//! before. A message grows by pieces of at most 64 KiB that have come and were authenticated, and is checked against the
//! limit before each; nobody can make this side take memory by saying a large number.
//!
//! # Trust
//!
//! Nothing is said to, and nothing is taken from, anybody who does not prove the job's key ([`session`](crate::session)).
//! The handshake carries job, rank and life of both ends, the hello inside of the session says them again, and both must
//! agree. Who has *another* key cannot be told so by somebody whom it could believe: the refusal that it gets is a hint
//! in the clear, and its own check of the answer is what counts. Without a key only loopback is served and called.
//!
//! reference: oob, sections 3 and 4.

pub mod address;
pub mod choose;
mod clock;
mod counters;
mod listener;
mod pending;
mod connection;
mod module;
pub mod reach;
mod settings;
mod socket;
mod tcp;

pub use choose::{Chosen, Families, Pattern};
pub use clock::Clock;
pub use counters::Counters;
pub(crate) use connection::{End, Order};
pub use settings::{Ports, Settings, Who};
pub(crate) use tcp::TROUBLES;
pub use tcp::Tcp;
