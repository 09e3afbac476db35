//! libfabric on this system, and our provider for it: `doorbell info` lists them, `doorbell doctor ofi`
//! checks them.
//!
//! ```text
//!   found     files: libfabrics, providers, by the rules of the loader and of libfabric
//!   child     a process with a deadline: it loads one file, or looks for the provider as clients do
//!   clients   the hints of each client
//!   listing   the part of `doorbell info`
//! ```
//!
//! No file is loaded into the program itself: libfabric starts every provider that it finds, whatever its
//! code does.

pub(crate) mod child;
pub(crate) mod clients;
pub(crate) mod found;
pub(crate) mod listing;

/// The name of our provider.
pub(crate) const PROVIDER: &str = "doorbell";
