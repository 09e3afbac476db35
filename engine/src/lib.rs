//! Processes of a job exchange tagged messages from user space.
#![deny(unsafe_code)]

pub mod bootstrap;
pub mod config;
pub mod error;
mod types;

pub use config::Config;
pub use error::{Awaited, Error, Waiting};
pub use types::{Source, Status, Tag};
