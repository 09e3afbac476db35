//! A Portals 4 network interface in software, over any rails that carry messages.
#![forbid(unsafe_code)]

mod link;

pub use link::RailId;
