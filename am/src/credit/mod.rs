//! Credit-based flow control of the conduit: how many requests each process may send to each other, and how
//! credits migrate to where they are needed. Reference: gasnet, sections 2 and 6 to 10, with corrections
//! where the sources are wrong.
//!
//! A credit is 256 bytes in the receive buffers of its lender and one event in its request queue. A process
//! lends some to each other process, at least what a full message takes, so that no request waits for ever;
//! the rest is in its bank. A request holds credits until it is answered, so there is always room for what
//! arrives, and no receiver is overrun. Replies need none: they land in the chunk that their request was sent
//! from.
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
//! [`CreditState`] is sans-IO: one call for each message sent or received. It is computed from a
//! [`CreditConfig`], which is the same everywhere except for the rank; the initial distribution is
//! [`Shares`], by the table and the three settings.
//!
//! # Calls
//!
//! | when | call | gives |
//! |---|---|---|
//! | a request is to be sent | [`CreditState::take`] with an [`Ask`], again after each poll while it stalls | its [`CreditByte`] |
//! | it is not sent after all | [`CreditState::untake`] | |
//! | a request's event is polled | [`CreditState::arrived`] | [`Due`], for its token |
//! | its reply is sent | [`CreditState::answer`] | the reply's byte |
//! | after that, while system messages can be sent | [`CreditState::next_revoke`], until `None` | CREDIT_REVOKE and its rank |
//! | a reply came | [`CreditState::replied`] | what was granted |
//! | CREDIT_REVOKE came | [`CreditState::revoked`] | CREDIT_RETURN, always to be sent |
//! | CREDIT_RETURN came | [`CreditState::returned`] | |
//!
//! Messages may be reordered in any way: no rule depends on their order. A process that breaks the rules
//! causes a [`Violation`], which names it before it has overrun anything; its message has no effect.
//!
//! # Rules
//!
//! * **Stall**: a request that needs more than `send - in_use` stalls. It carries what it lacked, 7 at most,
//!   when it is sent; the stall counts once.
//! * **Grant**, on arrival: if the limits allow all that was lacking (`lend` in an epoch, `most_per_node` in
//!   all), as much of it as the bank holds, which is lent from then on.
//! * **Epoch**: a number of requests received. At its end the lender's counters of grants and requests for
//!   more decay; the next message to each peer reports the end (E), and there the counters of stalls, use and
//!   returns decay. The end costs the same for any number of peers: each peer's counters catch up when it is
//!   next accessed.
//! * **Search**: when the limits allowed a grant and the bank was empty. It goes once around the peers above
//!   the minimum, from where the last search ended, with up to `fan_out` revocations in flight, one for each
//!   peer. It skips peers that lacked credits recently, and those that had nothing to return recently.
//! * **Revocation**: a borrower that stalled recently returns nothing; others return what exceeds the most
//!   that they used recently and the minimum, up to `revoke` in an epoch of the lender.
//! * **Invariants**: bank and loans add up; a loan is what the borrower has and what is in flight; each
//!   borrower has at least the minimum, at most `most_per_node`, and no less than it uses.
//!
//! # Corrections to the sources
//!
//! | source | here | a test that the wrong one fails |
//! |---|---|---|
//! | stalls while `n < avail` | while `n > avail` | `tests::rules`, `tests::interleavings` |
//! | a grant lowers the bank and raises no loan | it raises the loan | the same |
//! | the receiver decays its own entry, and sends its own entry's epoch | the sender's | the same |
//! | two schemes of epochs, counted and timed, on top of each other | counted | the same |
//! | what was given is compared with the limit before the grant is added | after | the same |
//! | the most in use decays below what is in use, which a revocation then gives away (code, too) | it stays at what is in use | the same |
//! | the end of an epoch visits all peers | peers catch up | `several_epochs_without_a_message…` |
//! | a refused peer is a flag, a requesting one a counter | [`Memory`]: flags, both counters, or as there | docs/credits.md |
//!
//! # Cost
//!
//! 32 bytes for each peer ([`Peer`], asserted), in one allocation at the start, and none afterwards.
//! docs/credits.md compares the kinds of memory, with figures for 64 to 10,000 processes.

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
