//! One rail over the queues of a network card, generic over the card.
//!
//! ```text
//!   Datagram ─► PacketTx ──► SendRing::{post, doorbell, reap}      descriptors, registers: the driver
//!               PacketRx ──► ReceiveQueues::{poll, fill}
//!   Rail ─────► PacketRail ► Nic::{look, reset, arm, leave}        bring-up, interrupts, link: the driver
//! ```
//!
//! A frame is UDP over IPv4 or IPv6, as the `udp` rail's are, so rails of all kinds that do so are peers of
//! each other. What does not depend on the card is here: headers and checksums, peers and their next hops,
//! channels, buffers that are kept, the schedule of housekeeping, events, counters, captures. Calls are
//! generic: there is no dynamic call on the data path, and nothing there allocates.
//!
//! What the driver of a further card has to bring is in `README.md`.
//!
//! | file | job |
//! |---|---|
//! | `rail` | peers, housekeeping and events; the trait [`Nic`] |
//! | `tx`, `rx` | the two halves; the traits [`SendRing`] and [`ReceiveQueues`] |
//! | `ring` | which entries of a ring are in use, and what they hold |
//! | `config` | bounds that settings of all cards have |
//! | `stats` | what is counted |
#![forbid(unsafe_code)]

mod config;
mod rail;
mod ring;
mod rx;
mod stats;
mod tx;

pub use config::{Bounds, LINK};
pub use rail::{Both, Gone, Halves, Nic, PacketRail, Parts, State, Verdict, capabilities};
pub use ring::{Lent, Place, Posted, Slots};
pub use rx::{Arrivals, Packet, PacketRx, ReceiveCounts, ReceiveQueues, Shown};
pub use stats::PacketStats;
pub use tx::{PacketTx, SendCounts, SendRing};
