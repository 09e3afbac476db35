//! GASNet-style active messages, put and get over a Portals interface, with credits that migrate to where
//! they are needed.
//!
//! A [`Conduit`] belongs to one process of a job and uses an interface, [`doorbell_fabric::ni::Ni`], in
//! software (`doorbell-am-portals`) or hardware. It is sans-IO: no clock, socket, thread or file; its owner
//! polls it, passes the time, and reads the environment and writes the statistics for it.
//!
//! ```text
//!   Attaching::new(ni, Config, Handlers) ─ step ─ step ─► Conduit
//!     request_{short,medium,long}  ──AM──►  Request<'_> ── reply_{short,medium,long} ──►  Reply<'_>
//!     put, get, *_nbi, try_sync    ──RAR─►  segment
//!     barrier, exit, credits       ──SYS─►
//! ```
//!
//! # How the objects of the original map onto Portals 4
//!
//! The conduit was written for Portals 3.3 (gasnet.md section 1). There a memory descriptor has a queue of
//! its own, and lies in a list if it is a target; in Portals 4 a descriptor is the initiator's alone, a match
//! entry the target's, and the queue belongs to the portal table entry. So what shares a queue shares a table
//! entry here, and a third one, 40, is needed for SYS.
//!
//! | original | bits 3–0 | here, as a target | here, as a source | queue |
//! |---|---|---|---|---|
//! | RAR | 0 | entry of table entry 38: the segment, put and get, offset from the initiator, no events | – | the initiator's: SAFE |
//! | RARAM | 1 | entry of **39** (it was 38's): the segment, put | – | AM |
//! | RARSRC | 2 | entry of 38: the segment, put | three descriptors of the segment: volatile, with SEND, without | SAFE |
//! | ReqRB | 3 | priority entries of 39, one for each buffer: put, `MANAGE_LOCAL`, `min_free` of one chunk, so unlinked by itself with AUTO_UNLINK | – | AM |
//! | CB | 3 | entry of no bytes on the **overflow list** of 39, which keeps no headers and counts: any count is fatal. (As a match it would need room in the AM queue, which has none to spare.) | – | a counting event |
//! | ReqSB | 4 | first entry of **38** (it was 39's, last): put, lands at the offset of the request's chunk | three descriptors, as above | SAFE |
//! | SYS | 5 | entry of no bytes of **40** (it was 39's, first) | a descriptor of no bytes, no events | SYS |
//! | BOOT | 6 | entry of 40: the table of segments | a descriptor of it | SYS |
//! | RplSB | – | – | three descriptors, as above | SAFE |
//! | TMPMD | – | – | `md_bind` at the operation, `md_release` at its ACK, REPLY or SEND; a ticket for each | SAFE |
//! | SAFE_EQ | | 2 × MSG_LIMIT + RPL_CHUNKS + 3 × SB_CHUNKS events, three quarters of it above 10,000 | | |
//! | AM_EQ | | one event for each credit, and one AUTO_UNLINK for each buffer, which 3.3 reported elsewhere | | |
//! | SYS_EQ | | 2 × nodes + 10, and the steps of two barriers and an exit | | |
//!
//! Other differences: 3.3's PUT_END is PUT, SEND_END is SEND, REPLY_END is REPLY. An initiator's event has no
//! match bits in Portals 4: what the original reads from them is in the user pointer, in the same layout
//! ([`match_bits`]), with the local memory's number. What is not longer than the interface copies at once
//! (`max_volatile_size`) leaves from a volatile descriptor: no SEND comes, and its ticket is free when the
//! call returns.
//!
//! # Threads
//!
//! GASNet's SEQ is what the types are: a conduit is `Send` and not `Sync`, one thread owns it, there is no
//! lock. PAR is [`threads`]: other threads hold clones of a [`threads::Client`], whose requests, puts and
//! gets go through a bounded mailbox to the thread that owns the conduit; the result is a word that the
//! client reads. Handlers run on the owner's thread, one at a time; the original lets any thread run them,
//! which costs its locks and the second spare receive buffer. PARSYNC, where threads take turns, is moving
//! the conduit (it is `Send`), or a lock around it: a thread beside the owner's polls under that lock, with
//! handlers ([`Conduit::poll`]) or without ([`Conduit::poll_data`]).
//!
//! ```
//! fn moves<T: Send>() {}
//! moves::<doorbell_am::Conduit<()>>();
//! ```
//!
//! ```compile_fail,E0277
//! fn is_shared<T: Sync>() {}
//! is_shared::<doorbell_am::Conduit<()>>(); // one thread has it at a time
//! ```
//!
//! # Segments
//!
//! FAST: one region, pinned at the start, which all peers reach. EVERYTHING is refused by name
//! ([`AmError::Everything`]): it would lend peers memory that the program uses and frees at any time, which
//! no safe Rust can.
//!
//! # Rules for users
//!
//! All processes have the same settings and the same handlers. Handlers do not block. The owner polls:
//! nothing arrives otherwise, and a peer that waits for a reply waits until then.
#![forbid(unsafe_code)]

pub mod credit;
pub mod match_bits;
pub mod settings;
pub mod threads;

mod attach;
mod barrier;
mod boot;
mod chunks;
mod conduit;
mod config;
mod deferred;
mod error;
mod exit;
mod handler;
mod in_place;
mod local;
mod long;
mod long_cache;
mod objects;
mod ops;
mod poll;
mod prepared;
mod putget;
mod receive;
mod receiver;
mod reply;
mod reqrb;
mod request;
mod resources;
mod source;
mod stats;
mod sys;
mod tickets;
mod token;

pub use attach::Attaching;
pub use barrier::BarrierName;
pub use boot::{External, ExternalError, RemoteSegment};
pub use conduit::Conduit;
pub use config::{AM_INDEX, Config, RAR_INDEX, Ranks, SYS_INDEX, Segment};
pub use error::{AmError, BootError, Fault, Stall, Try, WaitsFor};
pub use exit::{ExitFlag, Leaving, Unclean};
pub use handler::{Handlers, MAX_ARGS, NO_OP, Payload, Reply, ReplyHandler, RequestHandler};
pub use long::LongSent;
pub use ops::Handle;
pub use prepared::PreparedMedium;
pub use putget::Remote;
pub use request::Wait;
pub use settings::{ExitTimes, Settings, SettingsError};
pub use source::{Destination, Source};
pub use stats::{Resources, Stats};
pub use token::{PreparedReply, Request};
