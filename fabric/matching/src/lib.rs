//! Tag matching: which posted entry takes an arrival, and which kept message a new entry takes.
//!
//! One structure serves two front ends: the PML (MPI-like tagged receives) and a Portals 4 network interface
//! in software. Both need the same two answers:
//!
//! ```text
//!            arrive(key, len)                                    post(entry)
//!                  |                                                  |
//!   PRIORITY list, earliest posted first              kept messages, earliest arrived first
//!                  | no match                                         | none
//!   OVERFLOW list, earliest posted first              linked on its list, behind all earlier ones
//!                  | no match
//!             keep(key, len, token)
//! ```
//!
//! * An arrival has a [`MatchKey`]; an entry or a probe has a [`Pattern`], which may leave source bits and
//!   match bits open.
//! * An [`Entry`] is used once or stays, may place messages in its room by itself ([`Space::Managed`], the
//!   multi-receive buffers), and may refuse what does not fit.
//! * Every entry and every kept message carries the caller's token (a request id, a buffer number); the
//!   matcher never looks inside it.
//!
//! Fully given keys (exact source, no ignored bits) are hashed: with 100,000 entries queued an arrival still
//! costs one look-up. See [`Matcher`] for the costs, the seed and what allocates.
//!
//! ```
//! use doorbell_matching::{Capacity, Entry, MatchKey, Matcher, Pattern, Posted};
//!
//! let mut matcher = Matcher::new(0x5eed, Capacity { posted: 64, unexpected: 64 });
//! let receive = Entry::once(Pattern::exact(0, 3, 42), 4096, 7);
//! let Posted::Linked(_handle) = matcher.post(&receive) else { panic!("nothing was kept") };
//!
//! let hit = matcher.arrive(MatchKey::new(0, 3, 42), 8).expect("a receive waits for it");
//! assert_eq!((hit.token, hit.offset, hit.length, hit.unlinked), (7, 0, 8, true));
//!
//! // No receive waits for the second one: keep it, and the next receive finds it.
//! let key = MatchKey::new(0, 3, 42);
//! assert!(matcher.arrive(key, 8).is_none());
//! matcher.keep(key, 8, 1001);
//! let Posted::Found(kept) = matcher.post(&receive) else { panic!("one message was kept") };
//! assert_eq!((kept.token, kept.length), (1001, 8));
//! ```
//!
//! reference: bfo, section 4; portals, sections 5 to 7 and 11; ofi, P9 (peek, claim, discard, multi-receive).
#![forbid(unsafe_code)]

mod chain;
mod entry;
mod error;
mod hash;
mod kept;
mod key;
mod lanes;
mod masks;
mod matcher;
mod node;
mod posted;
mod sources;
mod table;
mod views;

pub use entry::{
    Candidate, Entry, EntryHandle, List, Match, Placement, Posted, Space, Unexpected, UnexpectedHandle,
};
pub use error::MatchError;
pub use key::{MatchKey, Pattern};
pub use matcher::{Capacity, Load, Matcher};
