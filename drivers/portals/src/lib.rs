//! A Portals 4 network interface in hardware: whatever `libportals` the machine has, loaded at run time, behind the same
//! contract as the one in software ([`doorbell_fabric::ni::Ni`]).
//!
//! ```text
//!   am::Conduit ─► Ni ─► PortalsNi ─► function table ─► libportals.so (the vendor's) ─► NIC
//!                          │ books: which memory the NIC may still reach, and whose events they are
//! ```
//!
//! What the library does with memory that it was given cannot be seen from outside. So the driver keeps it: a descriptor's until
//! its operations have been seen to end, an entry's until its last event can have been read; where that cannot be told, until
//! the interface is closed (`src/books.rs`).
//!
//! Nothing here polls: a Portals library makes progress by itself. So there is nothing to sleep on either, and
//! [`Ni::arm`](doorbell_fabric::ni::Ni::arm) says so.
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
