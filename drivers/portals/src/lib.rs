//! A Portals 4 network interface in hardware: the machine's `libportals`, loaded at run time, behind the same
//! trait as the one in software ([`doorbell_fabric::ni::Ni`]).
//!
//! ```text
//!   am::Conduit ─► Ni ─► PortalsNi ─► function table ─► libportals.so (the vendor's) ─► NIC
//!                          │ nic_records: memory that the NIC may still access, and owners of events
//! ```
//!
//! The driver cannot observe how long the library uses memory, so it keeps the memory: a descriptor's until
//! its operations have ended, an entry's until its last event has been read, and where that is unknown, until
//! the interface is closed (`src/nic_records.rs`).
//!
//! Nothing here polls: a Portals library makes progress by itself. So there is nothing to sleep on either,
//! which [`Ni::arm`](doorbell_fabric::ni::Ni::arm) reports.
//!
//! reference: portals, sections 2 to 10 and 13.
#![deny(unsafe_code)]

mod convert;
mod error;
mod ni;
mod nic_records;
mod open;
#[allow(unsafe_code)]
mod sys;

pub use error::PortalsError;
pub use ni::PortalsNi;
pub use open::{LIBRARIES, Settings, available};
