//! The contracts between drivers and protocols, and what both need: memory, addresses, time, discovery, counters.
//!
//! A *rail* is a configured way to peers. Its driver implements [`rail::Rail`] and one of the two traffic
//! contracts: [`message::Message`] (whole messages, each at most once) or [`datagram::Datagram`] (frames that may
//! be lost; the BTL makes messages of them). The layers above know only these traits.
#![deny(unsafe_code)]

pub mod addr;
pub mod caps;
#[allow(unsafe_code)]
pub mod clock;
pub mod counters;
pub mod datagram;
pub mod discover;
pub mod domain;
pub mod error;
pub mod event;
#[allow(unsafe_code)]
pub mod map;
#[allow(unsafe_code)]
pub mod memory;
pub mod message;
pub mod name;
pub mod rail;
pub mod select;
pub mod time;
