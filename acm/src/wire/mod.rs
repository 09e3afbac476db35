//! What clients and the service say to each other over a stream, byte for byte.
//!
//! ```text
//!  byte  0        1       2       3 . . 5   6 . . 7   8 . . . . 15
//!       ┌────────┬───────┬───────┬─────────┬─────────┬────────────┬───────────────────────────────────────┐
//!       │ version│ opcode│ status│ data[3] │ length  │ tid        │ records of 72 bytes, counters, or an  │
//!       │    1   │       │       │         │ (whole) │ (echoed)   │ endpoint (80 bytes) and its addresses │
//!       └────────┴───────┴───────┴─────────┴─────────┴────────────┴───────────────────────────────────────┘
//! ```
//!
//! The trap is the byte order. To resolve something, the length and what stands before an address (flags, type) are in the
//! order of the host, since client and service were meant to share one; the lengths of the other questions are big
//! endian. Addresses, paths and counters always are.
//!
//! * [`question`] and [`answer`]: the service's side. What is wrong is either answered with a status, or it is the end of
//!   the conversation ([`Refused`]).
//! * [`request`] and [`told`]: the client's side.
//! * [`Pieces`]: messages out of a stream that cuts them anywhere.
//!
//! reference: acm, sections 3 to 7.

mod answer;
mod decoder;
mod layout;
mod question;
mod request;
mod response;

#[cfg(test)]
mod tests;

pub use answer::answer;
pub use decoder::Pieces;
pub use layout::{Nonsense, Op};
pub use question::{Head, Refused, question};
pub use request::request;
pub use response::{BadAnswer, Report, Told, tid_of, told};

/// Bytes of the longest question: eight records.
pub const QUESTION_MAX: usize = 16 + 8 * 72;
/// Bytes of the longest answer: what its length can say.
pub const ANSWER_MAX: usize = u16::MAX as usize;
