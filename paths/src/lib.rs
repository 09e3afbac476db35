//! Paths: what a layer over several rails does with them. A *path* is a peer over one rail.
//!
//! ```text
//!  layer (PML, Portals, one-sided operations): messages, their layout, what is resent
//!    │  implements Layer: send a word, call, give up, take back, choose again, lose
//!    ▼
//!  paths: which path is up, suspect, down, probing, returning; what the peer is sent about it;
//!         how long a peer is waited for
//!    ▲
//!    │  on_event (of a rail), on_word (of the peer), broken (a refusal), act_on_words and tick (time)
//!  layer
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`state`] | the states of a path, and the table of transitions |
//! | `path` | one path: connections, back-off, hold |
//! | `peer` | all paths of a peer, and how long it is waited for |
//! | `probe` | probes of one path, and their answers |
//! | `word` | the words that both ends exchange about paths |
//! | `events` | a path breaks, answers, comes back; a peer is lost |
//! | `tick`, `timers` | what time brings, and when which peer is looked at |
//! | `latency`, `flow` | the measured round trip and rate, and what follows for small and long messages |
//! | `order` | sequence numbers, messages that arrived ahead, duplicates |
//! | [`table`], `set`, `reason` | state machines as tables; sets of paths; why one broke |
//!
//! It does no input or output of its own, and reads no clock: time is an argument, and rails are the layer's.
//! What is kept of a path is private to this crate; a layer keeps what is its own beside it, by the same
//! numbers of peers and paths.
//!
//! # What a layer does with it
//!
//! 1. It keeps a [`PeerPaths`] for each peer and one [`Timers`] with its [`Policy`], and implements
//!    [`Layer`].
//! 2. Events of rails go to [`on_event`]; a refusal for good to [`broken`]; words that arrive to [`on_word`],
//!    which is for use within a poll; and with each new time, [`extend_waits`], [`act_on_words`] and [`tick`]
//!    are called where they are due.
//! 3. What it sends takes a path that [`PeerPaths::used`] has: small messages the one with the least latency
//!    ([`as_good_as_best`]), long ones those on which their parts are there first ([`first_there`]).
//! 4. Each message has a [`Seq`], in the peer's sequence and not the rail's. After a break,
//!    [`Layer::take_back`] puts what the rail gives back in front of what waits; it goes over the other paths
//!    under its old number.
//! 5. At the other end, [`Seq::place`] returns whether it is the expected one, one that has to wait
//!    ([`Ahead`]), or one that was taken already and comes again after a break.
//!
//! # One-sided operations
//!
//! A provider whose puts, gets and atomics are to be executed once, in a peer's sequence, over rails that
//! break, is such a layer. An operation is a message with a number: the target executes the expected one,
//! holds those ahead, and does not execute one behind. What it needs beyond that is its own:
//!
//! * an operation that returns something (a get, a fetching atomic) has its answer kept by the target until
//!   the initiator's next number shows that it arrived: an operation that comes again is answered from there,
//!   and not executed again;
//! * one that a rail executes by itself, in memory that was exposed over it, ends with its path
//!   ([`Layer::take_back`]): its key is withdrawn first, so that a late write changes nothing. A put or get
//!   is then restarted over another path, before any operation behind it; an atomic never goes this way,
//!   since it is not known whether it was executed;
//! * a fence waits for the numbers before it ([`Seq`]), and a counter or completion is raised once, when its
//!   number is taken.
#![forbid(unsafe_code)]

mod events;
mod flow;
mod latency;
mod layer;
mod order;
mod path;
mod peer;
mod probe;
mod reason;
mod set;
pub mod state;
pub mod table;
mod tick;
mod timers;
mod word;

pub use events::{broken, given_back, on_event, send_news};
pub use flow::{Flow, Share, first_there, time_of};
pub use latency::as_good_as_best;
pub use layer::{Count, Layer};
pub use order::{Ahead, Place, Seq};
pub use peer::PeerPaths;
pub use reason::Reason;
pub use set::{PATHS_MAX, each};
pub use state::{PathEvent, PathState};
pub use tick::{act_on_words, tick};
pub use timers::{Policy, Timers, extend_waits};
pub use word::{Arrival, Word, on_word};
