//! The credit economy of the conduit: who may send how many requests to whom, and how credits migrate to where they are
//! needed (gasnet.md sections 2 and 6 to 10).

mod borrow;
mod byte;
mod economy;
mod error;
mod lend;
mod peer;
mod scavenge;
mod shares;
mod table;
mod terms;
#[cfg(test)]
mod tests;
mod wrong;

pub use borrow::{Ask, Return};
pub use byte::{CreditByte, MOST_CREDITS, MOST_EXTRA};
pub use economy::{Counters, Economy};
pub use error::{NoCredits, Violation};
pub use lend::Due;
pub use peer::{Dense, Peer, Peers};
pub use scavenge::Revoke;
pub use shares::Shares;
pub use table::defaults;
pub use terms::{BYTES_PER_CREDIT, Chunk, Limits, Memory, SEED_EVENT_BYTES, Terms, TermsError, credits_for};
