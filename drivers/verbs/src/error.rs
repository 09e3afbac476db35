//! Errors of the library and its devices.

use std::io;

use thiserror::Error;

/// What failed while a device was looked for or opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// No library, or one that lacks functions.
    #[error(
        "{name} cannot be used: {reason}; install it (Debian: apt-get install libibverbs1 ibverbs-providers)"
    )]
    Library {
        /// The name, as it was given to the loader.
        name: String,
        /// The reason for the refusal.
        reason: String,
    },
    /// A call of the library.
    #[error("{call} of {on} failed: {error}")]
    Call {
        /// The name of the function.
        call: &'static str,
        /// The device, and the port where it is about one.
        on: String,
        /// The system's error.
        error: io::Error,
    },
    /// The library lists no device of this name.
    #[error("{device} is not in the library's list of devices: {reason}")]
    NoDevice {
        /// The name of the device.
        device: String,
        /// Why, as far as it is known.
        reason: String,
    },
    /// A device answers what cannot be.
    #[error("{device} reports {what}, which cannot be; its provider or its firmware is broken")]
    Nonsense {
        /// The name of the device.
        device: String,
        /// What it reports.
        what: String,
    },
}
