//! The protocol between clients and the service, over a stream, byte for byte as rdma-core has it.
//!
//! ```text
//!  byte  0        1       2       3 . . 5   6 . . 7   8 . . . . 15
//!       ┌────────┬───────┬───────┬─────────┬─────────┬────────────┬───────────────────────────────────────┐
//!       │ version│ opcode│ status│ data[3] │ length  │ tid        │ records of 72 bytes, counters, or an  │
//!       │    1   │       │       │         │ (whole) │ (echoed)   │ endpoint (80 bytes) and its addresses │
//!       └────────┴───────┴───────┴─────────┴─────────┴────────────┴───────────────────────────────────────┘
//! ```
//!
//! Beware of the byte order. For the operation *resolve*, the length and the fields before an address (flags,
//! type) are in host order, since client and service were meant to share a host; the lengths of the other
//! operations are big endian. Addresses, paths and counters always are.
//!
//! * [`read_question`] and [`write_answer`] are the service's side. An invalid question is either answered
//!   with a status, or ends the connection ([`Rejected`]).
//! * [`write_question`] and [`read_response`] are the client's side.
//! * [`Decoder`] splits a stream into messages.
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

pub use answer::write_answer;
pub use decoder::Decoder;
pub use layout::{BadMessage, Op};
pub use question::{Head, Rejected, read_question};
pub use request::write_question;
pub use response::{BadAnswer, EndpointInfo, Response, read_response, tid_of};

/// Bytes of the longest question: eight records.
pub const QUESTION_MAX: usize = 16 + 8 * 72;
/// Bytes of the longest answer: the maximum of its length field.
pub const ANSWER_MAX: usize = u16::MAX as usize;
