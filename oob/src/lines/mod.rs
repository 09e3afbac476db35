//! Connections: what carries frames between two processes, over two kinds of lines.
//!
//! ```text
//!      Command │                                                                          ▲ Event
//!  ┌───────────▼──────────────────────────────────────────────────────────────────────────┴───────────┐
//!  │ Connections   who-are-you (connect::Meeting), guests, links, problems, counters      sans I/O    │
//!  │   Stream  Stream  Stream …   a Noise session each: sealed up to a limit, frames counted as sent  │
//!  └──────────┬──────────────────────────────────────────────────┬────────────────────────────────────┘
//!  ┌──────────▼────────────────────────────────┐  ┌──────────────▼────────────────────────────────────┐
//!  │ tcp: a socket and a task for each line,   │  │ rail: numbered segments over any rail, probes,    │
//!  │ NICs as modules, keepalive by the kernel  │  │ rails as modules, peers called until they are back│
//!  └───────────────────────────────────────────┘  └───────────────────────────────────────────────────┘
//! ```
//!
//! * `connections` has all that does not depend on the kind: a connection's way from the call over the hello
//!   to the link, and how it ends. A kind of line adds how one is called, instructed and ended.
//! * `stream` is the session of one line, as bytes in both directions.
//! * `guests` holds callers that have not yet proved the key: their number and time are limited, and sources
//!   that fail too often are rejected for a while.
//! * [`tcp`] and [`rail`] are the two kinds. [`tcp::blocking`] has sessions over TCP for threads that may
//!   wait, without meeting, links and frames.
//!
//! A frame is one message of the session: header and body are joined where they are encrypted, and nowhere
//! before. A message grows by authenticated segments of at most 64 KiB, and is checked against the limit
//! before each; a peer cannot make this side allocate memory by announcing a large length.
//!
//! # Trust
//!
//! Only peers that prove the job's key are talked to ([`session`](crate::session)). The handshake carries
//! job, rank and epoch of both ends, the hello inside the session repeats them, and both must agree. A peer
//! with a *different* key cannot be informed of that authentically: the refusal that it gets is an
//! unauthenticated hint, and only its own check of the answer counts. Each kind has a purpose of its own, so
//! that recordings of one are useless for the other.
//!
//! reference: oob, sections 3 and 4.

#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
mod clock;
mod connections;
mod counters;
mod guests;
mod limits;
pub mod rail;
mod stream;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod tcp;

pub use clock::Clock;
pub use counters::Counters;
pub use limits::{Limits, Who};

/// Number of problems kept for reports.
pub(crate) const TROUBLES: usize = 64;
