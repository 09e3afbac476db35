//! Honest latency, bandwidth and rate: load, histograms, reports.
//!
//! ```text
//!   plan ──► load (closed and open loops) ──► rows ──┐
//!              ▲    ▲                                 ├──► report: table, JSON, CSV, .hgrm, .hlog, SVG, HTML
//!  bare exchange   memcpy       environment, doubts ──┘
//! ```
//!
//! A figure without its circumstances is a rumour. Every row carries what the machine itself could do at the
//! same moment ([`baseline`]), every report the record of the machine and every reason to doubt it
//! ([`mod@env`]), and a percentile that the samples cannot support is not shown ([`stats`]).
#![forbid(unsafe_code)]

pub mod baseline;
pub mod compare;
pub mod env;
pub mod error;
pub mod job;
pub mod layer;
pub mod link;
pub mod load;
pub mod pin;
pub mod plan;
pub mod report;
pub mod size;
pub mod stats;
pub mod verify;
pub mod world;
