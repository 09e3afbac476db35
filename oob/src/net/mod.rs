//! The transport `tcp`: every NIC of the host is a module of its own, and its traffic uses no other NIC.
//!
//! ```text
//!        Command │                                                                     ▲ Event
//!  ┌─────────────▼─────────────────────────────────────────────────────────────────────┴──────────────┐
//!  │ tcp::Tcp      who-are-you (connect::Meeting), links, paths, counters         one, no waiting     │
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
//! * `connection` is a TCP connection: the Noise session over it, and frames in order.
//! * `pending` holds accepted connections that have not yet proved the key: their number and time are
//!   limited, and sources that fail too often are rejected for a while.
//! * `tcp` combines it all; it never blocks, and never touches a connected socket itself.
//!
//! A frame is one message of the session: header and body are joined where they are encrypted, and nowhere
//! before. A message grows by authenticated segments of at most 64 KiB, and is checked against the limit
//! before each; a peer cannot make this side allocate memory by announcing a large length.
//!
//! # Trust
//!
//! Only peers that prove the job's key are talked to ([`session`](crate::session)). The handshake carries
//! job, rank and epoch of both ends, the hello inside the session repeats them, and both must agree. A peer
//! with a *different* key cannot be informed of that authentically: the refusal that it gets is an
//! unauthenticated hint, and only its own check of the answer counts. Without a key only loopback is used.
//!
//! reference: oob, sections 3 and 4.

pub mod address;
pub mod choose;
mod clock;
mod connection;
mod counters;
mod listener;
mod module;
mod pending;
pub mod reach;
mod settings;
mod socket;
mod tcp;

pub use choose::{Chosen, Families, Pattern};
pub use clock::Clock;
pub(crate) use connection::{End, Order};
pub use counters::Counters;
pub use settings::{Ports, Settings, Who};
pub(crate) use tcp::TROUBLES;
pub use tcp::Tcp;
