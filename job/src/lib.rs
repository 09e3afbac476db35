//! What every handle on a job of ranks shares: `World`, `Portals` and `Am` of the crate `doorbell` are thin
//! over it.
//!
//! ```text
//!   configuration, launcher ─► rails ─► the ranks meet ─► rails to each peer ─► waits, diagnosis, the end
//!   config      launcher       rails    meet, ranks       connect                wait   diagnose
//! ```
//!
//! A module sees only those of lower levels: the table is code (`tools/xtask/src/arrows/levels.rs`), and
//! `cargo xtask arrows` fails on every other arrow.
#![forbid(unsafe_code)]

pub mod acm;
pub mod binding;
pub mod config;
pub mod connect;
pub mod control;
mod convert;
pub mod cores;
pub mod counter_file;
pub mod diagnose;
pub mod ends;
pub mod error;
mod files;
pub mod handle;
pub mod join;
pub mod launcher;
pub mod lobby;
pub mod meet;
pub mod notices;
pub mod path_report;
pub mod rails;
pub mod random;
pub mod ranks;
pub mod spawn;
pub mod takeover;
pub mod types;
pub mod wait;

pub use config::{Config, drivers};
pub use diagnose::why;
pub use doorbell_fabric::select::Unchosen;
pub use doorbell_oob as oob;
pub use error::Error;
pub use handle::Job;
pub use launcher::launcher;
pub use rails::{capture_file, discover};
pub use types::{Source, Status, Tag};
