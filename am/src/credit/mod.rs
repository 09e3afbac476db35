//! The credit economy of the conduit: who may send how many requests to whom, and how credits migrate to where they are
//! needed. Reference: gasnet, sections 2 and 6 to 10, with the rules that the sources have wrong put right.
//!
//! A credit stands for 256 bytes in the receive buffers of its lender and one event in the queue of its requests. A process
//! lends each other one some, at least what a full message takes, so that no request waits for ever; the rest is in its bank.
//! A request takes credits for as long as it is not answered, so what arrives always finds room, and nobody ever overruns
//! anybody. Replies need none: they land in the chunk that their request was sent from.
//!
//! ```text
//!   borrower X                                                lender Y
//!   take ─ too few: stall, poll, again ─┐
//!    └─ byte: E, lacked, used ──────────┴─ request ─────────► arrived ─ lacked > 0: a grant, out of the bank
//!                                                                │        └ bank empty: search for victims
//!   replied ◄──────────────────── reply: E, granted, used ────── answer       │
//!                                                                             ▼
//!   revoked ◄──────────────────── CREDIT_REVOKE: E ─────────────────────── next_revoke
//!    └─ what was not used lately ── CREDIT_RETURN: E, given ─► returned ─ into the bank
//! ```
//!
//! [`CreditState`] is sans-IO: one call for each message that comes or goes. All of it is reckoned from [`CreditConfig`], which are the
//! same everywhere but for the rank; what every process begins with is [`Shares`], by the table and the three settings.
//!
//! # Calls
//!
//! | when | call | gives |
//! |---|---|---|
//! | a request is to be sent | [`CreditState::take`] with an [`Ask`], again after each poll while it stalls | its [`CreditByte`] |
//! | it is not sent after all | [`CreditState::untake`] | |
//! | a request's event is polled | [`CreditState::arrived`] | [`Due`], for its token |
//! | its reply is sent | [`CreditState::answer`] | the reply's byte |
//! | after that, while system messages can be sent | [`CreditState::next_revoke`], until `None` | CREDIT_REVOKE to whom |
//! | a reply came | [`CreditState::replied`] | what was granted |
//! | CREDIT_REVOKE came | [`CreditState::revoked`] | CREDIT_RETURN, always to be sent |
//! | CREDIT_RETURN came | [`CreditState::returned`] | |
//!
//! Messages may overtake each other in any way: no rule depends on their order. A process that does not keep to the rules is a
//! [`Violation`], which names it before it has overrun anything; its message changes nothing.
//!
//! # Rules
//!
//! * **Stall**: while a request wants more than `send - in_use`. What it lacked then, 7 at most, goes with it when it goes at
//!   last; the stall counts once.
//! * **Grant**, on arrival: if the limits allow all that was lacking (`lend` in an epoch, `most_per_node` in all), as much of it
//!   as the bank holds. It is lent from then on.
//! * **Epoch**: so many requests received. What was granted and asked decays; the next message to each peer says so (E), and
//!   there, what was stalled, used and given back decays. An end costs the same for any number of peers: each peer's counters
//!   catch up when it is next dealt with.
//! * **Search**: when the limits allowed a grant and the bank was empty. Once around those who have more than the least, from
//!   where the last search ended, up to `fan_out` revocations under way, one for each peer. Spared are those who asked lately,
//!   and those who had nothing to give lately.
//! * **Revocation**: who stalled lately gives nothing; others, what lies above the most that they used lately and above the
//!   least, up to `revoke` in an epoch of the lender's.
//! * **Always**: bank and loans add up; a loan is what the borrower has and what is under way; nobody has less than the least,
//!   more than `most_per_node`, or less than it uses.
//!
//! # What the sources have wrong
//!
//! | source | here | a test that the wrong one fails |
//! |---|---|---|
//! | stalls while `n < avail` | while `n > avail` | `tests::rules`, `tests::interleavings` |
//! | a grant lowers the bank and raises no loan | it raises the loan | the same |
//! | the receiver decays its own entry, and tells its own entry's epoch | the sender's | the same |
//! | two schemes of epochs, counted and timed, on top of each other | counted | the same |
//! | what was given is compared with the limit before the grant is added | after | the same |
//! | the most in use decays below what is in use, which a revocation then gives away (code, too) | it stays at what is in use | the same |
//! | the end of an epoch visits all peers | peers catch up | `several_epochs_without_a_message…` |
//! | who was refused is a flag, who asked is a counter | [`Memory`]: flags, both counters, or as there | docs/credits.md |
//!
//! # Cost
//!
//! 32 bytes for each peer ([`Peer`], asserted), in one allocation at the start, and none afterwards. Which kind of memory is the
//! better one, and what all of it comes to among 64 to 10,000 processes: docs/credits.md.

mod borrow;
mod byte;
mod config;
mod error;
mod lend;
mod mutants;
mod peer;
mod scavenge;
mod shares;
mod state;
mod table;
#[cfg(test)]
mod tests;

pub use borrow::{Ask, Return};
pub use byte::{CreditByte, MOST_CREDITS, MOST_EXTRA};
pub use config::{
    BYTES_PER_CREDIT, Chunk, CreditConfig, CreditConfigError, Limits, Memory, SEED_EVENT_BYTES, credits_for,
};
pub use error::{NoCredits, Violation};
pub use lend::Due;
pub use peer::{Dense, Peer, Peers};
pub use scavenge::Revoke;
pub use shares::Shares;
pub use state::{Counters, CreditState};
pub use table::defaults;
