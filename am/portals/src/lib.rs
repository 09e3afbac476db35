//! A Portals 4 network interface in software, over any rails that carry messages.
//!
//! ```text
//!   initiator                              target
//!   put, get, atomic …                     pt_alloc, append …
//!     │ judged, addressed                    ▲ events, counts ─► triggered operations
//!     ▼                                      │ matched, judged, landed
//!   heads (`wire`) ─► link ─► rails ··· rails ─► link ─► in order, exactly once
//!                          ◄─ ACK, REPLY; PULL and FRAG, or one-sided gets, for what is long
//! ```
//!
//! A [`Node`] is one process: it owns its rails, knows its peers by physical name (node and process id), and
//! has up to four interfaces, one of each [`Kind`](doorbell_fabric::ni::Kind). An interface is used as a
//! [`View`], or as an [`Interface`] that owns the node; both are [`Ni`](doorbell_fabric::ni::Ni), where each
//! call is described. One thread owns a node. Nothing in it waits, reads a clock or does input and output:
//! rails do, and time is an argument.
//!
//! ```
//! use doorbell_am_portals::{Config, Node};
//! use doorbell_fabric::memory::Region;
//! use doorbell_fabric::message::Landing;
//! use doorbell_fabric::ni::*;
//!
//! // A process that talks to itself needs no rail.
//! let me = Process::physical(1, 1);
//! let mut node = Node::<doorbell_sim::SimRail>::new(Config::new(me));
//! node.ni_init(Kind::MATCHING_LOGICAL, None)?;
//! node.set_map(Kind::MATCHING_LOGICAL, &[me])?;
//! let mut ni = node.into_ni(Kind::MATCHING_LOGICAL);
//!
//! let memory = |region: &Region| Memory::One(Landing::Region(region.whole()));
//! let (here, there) = (Region::new(8)?, Region::new(8)?);
//! here.write(0, b"doorbell");
//! let eq = ni.eq_alloc(8)?;
//! let pt_index = ni.pt_alloc(PtOptions::NONE, Some(eq), None)?;
//! ni.append(pt_index, Entry::open(memory(&there), EntryOptions::OP_PUT), List::Priority, 5)?;
//! let md = ni.md_bind(Md { memory: memory(&here), ..Md::default() })?;
//! let target = Target { process: Process::rank(0), pt_index, match_bits: 0, remote_offset: 0 };
//! let from = Piece { md, offset: 0 };
//! ni.put(&Put { from, length: 8, ack: AckReq::None, target, user_ptr: 0, hdr_data: 7 })?;
//! while ni.poll(16) > 0 {}
//!
//! let told = std::iter::from_fn(|| match ni.eq_get(eq) {
//!     Ok(EqGet::Event(event)) => Some((event.kind, event.user_ptr, event.hdr_data)),
//!     _ => None,
//! });
//! assert_eq!(told.collect::<Vec<_>>(), [(EventKind::Link, 5, 0), (EventKind::Put, 5, 7)]);
//! # let mut bytes = [0; 8]; there.read(0, &mut bytes); assert_eq!(&bytes, b"doorbell");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Files
//!
//! | file | job |
//! |---|---|
//! | `node`, `view`, `config` | a process and its interfaces, as their users hold them |
//! | `core`, `peers` | what a node knows apart from its rails; messages come in here |
//! | `iface`, `calls` | one interface: objects, the events that it posts; calls that move no data |
//! | `slab` | objects behind handles with generations |
//! | `table`, `entries`, `append` | the portal table, its lists, unexpected headers, searches |
//! | `events`, `counting`, `triggered` | event queues, counting events, what waits for them |
//! | `memory`, `bytes` | memory descriptors; bytes in and out of memory in pieces |
//! | `initiator`, `initiator_get`, `answers` | operations at their initiator: begun, and ended by answers |
//! | `target`, `target_match` | requests at their target: which entry takes one, and what it does |
//! | `short`, `direct` | the short way of small puts; that of one which is waited for by its count |
//! | `placed` | puts that the initiator writes into the entry's memory by itself, gets that it reads there |
//! | `ops`, `pulls`, `serving`, `outbox` | operations in progress, long transfers, answers that wait for the rails |
//! | `wire`, `drops` | heads; what was dropped of what peers sent, by reason |
//! | `link` | peers over several rails: order, exactly once, failover and failback |
//!
//! # What is decided here
//!
//! Where the sources leave a choice (reference: portals), this interface does the following.
//!
//! * *Order.* Requests of one initiator are matched in the order in which they were begun. Up to 512 bytes a
//!   message travels with its request or its answer: its bytes are in order with all others
//!   (`max_waw_ordered_size`, `max_war_ordered_size`), and what is sent may be changed when the call has
//!   returned (`max_volatile_size`), VOLATILE or not. Longer ones are moved when they have been matched, and
//!   end in any order; the events of an entry are in the order in which its operations end.
//! * *SEND* comes when the bytes have been copied: at once for a message that is sent whole, with the end of
//!   the transfer for one that is pulled. It reports a failure only of a target that cannot be reached; other
//!   failures at the target are reported by ACK.
//! * *Acknowledgements* that would be neither posted nor counted (no queue, nothing counted) are not
//!   requested. A full one without a queue counts. An OC acknowledgement that counts bytes counts those that
//!   were requested.
//! * *The events of one entry* come in this order: *_OVERFLOW of the unexpected headers that it matched when
//!   it was appended, LINK, its communication events, AUTO_UNLINK, AUTO_FREE. So after AUTO_UNLINK of a
//!   priority entry no operation writes into its memory any more, also where several long ones end in any
//!   order. An entry that is never linked, because headers have used it up, has its AUTO_UNLINK after their
//!   *_OVERFLOW events; these wait for the bytes of their headers. A message that arrives for a persistent
//!   entry meanwhile is taken, and its event may come before that LINK. AUTO_FREE is only of overflow
//!   entries.
//! * *Success and failure.* EVENT_SUCCESS_DISABLE hides events of communication, *_OVERFLOW and SEARCH; LINK,
//!   AUTO_UNLINK and AUTO_FREE have options of their own. EVENT_COMM_DISABLE hides SEARCH too. Requests that
//!   are refused by permission or operation are counted in the registers and reported to their initiator, not
//!   to the target's queue; neither uses an entry up.
//! * *Unexpected headers* that an appended entry may not take are consumed, and reported as failures. A
//!   persistent search reports every header. A search counts with EVENT_CT_OVERFLOW: each header that it
//!   finds, and once more as a failure where it looks for all of them or finds none, so that a waiter knows
//!   its end. A header of no bytes fits everywhere.
//! * *Flow control.* A queue that reaches its count disables every table entry that posts to it. Operations
//!   that such an entry has taken by then post their events all the same, and so does whatever else comes:
//!   the queue keeps all events beyond its count. EVENT_FLOWCTRL_DISABLE leaves PT_DISABLED out where that
//!   entry was the reason.
//! * *Limits* count what is there: an entry that is off its list counts until nothing refers to it; a
//!   descriptor that was released does not.
//! * *MAY_ALIGN* allows and does not require: local offsets are not rounded, because copies are as quick at
//!   any offset.
//! * *Long doubles* are computed with as C does on x86, and on other processors only swapped and compared:
//!   see [`doorbell_fabric::atomics`], which has the arithmetic.
//! * *Descriptors* that a trigger or an operation in progress needs may be released; the memory has to stay
//!   until it has ended.
//! * *A peer* that is lost is lost for good: what it owed ends as undeliverable, and then
//!   [`Ni::lost`](doorbell_fabric::ni::Ni::lost) reports it. Targets that are not in the map, or not known,
//!   are undeliverable; so are targets without an interface of that kind, and initiators that the target's
//!   map does not have.
//!
//! # Trust
//!
//! Nothing that a peer sends is trusted: heads are read once, lengths, table indices, offsets and operation
//! numbers are checked, and what cannot be is dropped and counted by reason ([`Node::drops`]). A user number
//! is what the peer sends when it introduces itself, before anything else; the job's key is what makes it one
//! of us (design, section 9). A peer can make this process hold 1,024 operations in progress and as many
//! answers, and no more; unexpected headers are bounded by the interface's limit for all peers together.
#![forbid(unsafe_code)]

mod answers;
mod append;
mod bytes;
mod calls;
mod config;
mod core;
mod counting;
mod direct;
mod drops;
mod entries;
mod events;
mod iface;
mod in_place;
mod initiator;
mod initiator_get;
mod link;
mod memory;
mod node;
mod ops;
mod outbox;
mod peers;
mod placed;
mod pulls;
mod serving;
mod short;
mod slab;
mod table;
mod target;
mod target_match;
#[cfg(test)]
mod tests;
mod triggered;
mod view;
mod wire;

pub use config::{Config, NodeError};
pub use direct::Seen;
pub use drops::{Drop, Drops};
pub use link::{LinkStats, RailId};
pub use node::Node;
pub use view::{Guarded, Interface, View};
