//! The contracts between drivers and protocols, and what both need: memory, addresses, time, discovery,
//! counters.
//!
//! A *rail* is a configured way to peers. Its driver implements [`rail::Rail`] and one of the two traffic
//! contracts: [`message::Message`] (whole messages, each at most once) or [`datagram::Datagram`] (frames that
//! may be lost; the BTL makes messages of them). The layers above know only these traits.
//!
//! # Ownership
//!
//! ```text
//!   at start              job                                       one thread, while it runs
//!   ───────────────────   ───────────────────────────────────────   ────────────────────────────────────────
//!   discover ─ Candidate  clock::Clock          Copy, shared       rail ─┬─ peers    PeerIndex, by `open`
//!        │                    └ Time, passed to everything               ├─ accepted MsgId, till handed_over
//!   select ── Selection   memory::Region        Arc: users, rails,       ├─ exposed  domain::KeyTable
//!        │                    │                 and owners of slices     │   └ RemoteKey ─► slice or loan
//!   name::RailName            └ map::Map ◄─ map::Object (memfd)          └─ queues   map::Map, ring's cells
//!   addr::RailAddress     counters::CounterFile one per rank
//!                             └ Counter, Gauge, Histogram          written by that thread, read from outside
//! ```
//!
//! * A **rail** belongs to one thread, and everything that it hands out by number (peers, messages,
//!   operations, keys) means something on that rail only.
//! * A **[`Region`](memory::Region)** lives as long as anything holds it or a slice of it: a user, a message
//!   in flight, an exposure. A **loan** ([`memory::ConstLoan`], [`memory::MutLoan`]) is a user's memory and
//!   lives as long as its request; `engine`'s scopes see to that. Safe code makes no loan of a region, nor of
//!   anything else that ends.
//! * What arrives is lent for the length of a call ([`message::Inbound`], [`datagram::Frame`]), and may be
//!   changed by its sender meanwhile: [`memory::SharedBytes`] is copied first and judged afterwards.
//! * A **[`Map`](map::Map)** is owned by what it is for; those who only look hold it by `Arc`
//!   ([`map::Words`]).
//!
//! # Unsafe code
//!
//! Only in [`memory`], [`map`] and [`clock`]; all other modules, and all users of these, get by with safe
//! code.
//!
//! # Example
//!
//! A layer over any rail: send one message, take what arrives.
//!
//! ```
//! use doorbell_fabric::memory::Region;
//! use doorbell_fabric::message::{Arrivals, Body, Inbound, Message, OpError, OpId, PeerIndex, Refused};
//! use doorbell_fabric::time::Time;
//!
//! /// Adds up the first word of every message.
//! #[derive(Default)]
//! struct Sum(u64);
//!
//! impl Arrivals for Sum {
//!     fn message(&mut self, _from: PeerIndex, inbound: Inbound<'_>) {
//!         // Copied once, then checked: a message that is too short adds nothing.
//!         self.0 += inbound.read::<8>(0).map_or(0, u64::from_le_bytes);
//!     }
//!     fn completed(&mut self, _op: OpId, _outcome: Result<u64, OpError>) {}
//! }
//!
//! fn exchange<R: Message>(rail: &mut R, peer: PeerIndex, now: Time) -> Result<u64, Refused> {
//!     let page = Region::new(4096).map_err(|_| Refused::Full)?;
//!     rail.send(peer, &7u64.to_le_bytes(), Body::Region(&page.whole()))?;
//!     rail.flush();
//!     let mut sum = Sum::default();
//!     while rail.poll(16, &mut sum) + rail.progress(now) > 0 {}
//!     Ok(sum.0)
//! }
//! ```
#![deny(unsafe_code)]

pub mod addr;
pub mod atomics;
pub mod caps;
#[allow(unsafe_code)]
pub mod clock;
pub mod cores;
pub mod counters;
pub mod datagram;
pub mod discover;
pub mod domain;
pub mod error;
pub mod ether;
pub mod event;
pub mod gid;
pub mod limits;
#[allow(unsafe_code)]
pub mod map;
#[allow(unsafe_code)]
pub mod memory;
pub mod message;
pub mod name;
pub mod nearest;
pub mod ni;
pub mod pace;
pub mod pairs;
pub mod pcapng;
pub mod poll;
pub mod process;
pub mod rail;
pub mod rail_set;
pub mod recorder;
pub mod select;
pub mod shown;
pub mod signals;
pub mod strangers;
pub mod time;
pub mod timers;
