//! Contact: how two rails agree on the queue pairs of a connection. Sans-IO: frames, time and the rail's
//! answers go in; frames and [`Event`]s come out.
//!
//! ```text
//!   A                                                        B
//!   call ─► Make … made
//!   Calling    ── CALL 0, yours 0: numbers of A ───────────►  Make … made, Connect … connected
//!              ◄─────────── ANSWER 0, yours 0: numbers of B ─ Connected
//!   Connect … connected
//!   Connected  ── ANSWER 0, yours 0 ───────────────────────►
//!   Proving    ◄═ few bytes and one MTU, over the connection ═► Proving
//!   Proved     ── READY ────────────► ◄──────────── READY ──  Proved
//!   Up, life 0 + 0                                            Up, life 0 + 0
//! ```
//!
//! Each end counts its own attempts (epochs): queue pairs are of one epoch, and an epoch is used for one
//! connection at most. A frame reports its sender's phase, its sender's epoch, and the latest epoch of the
//! receiver that the sender knows. From that follow all rules:
//!
//! * **Epochs only grow.** A frame of a lower one than the latest known is old, and dropped. One of a higher
//!   one means that its sender has given up whatever it had before: a connection to that ends here too.
//! * **Numbers are taken only from a frame that names our present epoch.** So both ends connect for the same
//!   two epochs or not at all, whatever is lost, repeated or reordered, and whichever end calls first. The
//!   sum of both is the life of the connection ([`Life`](doorbell_fabric::event::Life)).
//! * **An end that waits requests.** Repetitions, with back-off, have `ask` set and are answered once, by
//!   what the receiver has to report; answers request nothing. So there is no storm, and the last frame need
//!   not arrive.
//! * **An end without a connection reports GONE** to a peer that requests, and repeats it after it has lost
//!   one, until the peer knows: so no end stays half open.
//! * **Both sizes are proved** over the connection itself, by each end in its direction. Where few bytes pass
//!   and the MTU does not, that end begins a new epoch with the next smaller one.
//! * **A peer that was forgotten and opened again** begins a new term, in front of the epoch. The other end
//!   finds its peer closed, and the call waits until it has forgotten it, too, as a stranger's does.
//!
//! The MAC of each frame covers the id of its direction, which both ends derive from the key, both addresses
//! and both incarnations. What a stranger calls by is that id.
//!
//! | file | job |
//! |---|---|
//! | `wire`, `epoch`, `mtu` | what frames are made of |
//! | `key` | ids and MACs |
//! | `peer` | the state of one peer |
//! | `contact` | all peers, and what the rail requests |
//! | `receive` | frames that arrive |
//! | `answers` | the rail's answers, and the transitions of an attempt |
//! | `repeat`, `deadlines` | what is due, and frames that leave |
//! | `event`, `counts` | what is reported |

mod answers;
mod contact;
mod counts;
mod deadlines;
mod epoch;
mod event;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod key;
mod mtu;
mod peer;
mod receive;
mod repeat;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use contact::{Contact, ContactConfig, Local};
pub(crate) use counts::ContactCounts;
pub(crate) use event::{Attempt, Connect, Event, Refusal};
pub(crate) use mtu::{Diagnosis, Mtu, Size};
#[cfg(any(test, fuzzing))]
pub(crate) use peer::{From, Remote, Source};
pub(crate) use wire::{LONGEST, Numbers, Target};
