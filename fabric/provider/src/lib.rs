//! The libfabric provider `doorbell`: clients of libfabric (MPI, SHMEM, GASNet) run on doorbell unchanged.
//!
//! ```text
//!   client ── libfabric.so.1 ── fi_prov_ini, getinfo, fabric        once, through the library
//!     └────── tables of the objects ── this crate ── Pml ── rails   each call, without the library
//! ```
//!
//! libfabric loads `libdoorbell_fi.so` from the folders of `FI_PROVIDER_PATH`. The file links nothing of
//! libfabric and exports one symbol, [`fi_prov_ini`]; types and constants are those of `libfabric-sys`.
//!
//! # Objects
//! An object is a structure of libfabric with our fields behind it (`object`). All objects of a domain share
//! its state (`domain`): the member that owns the rails, the queues and the endpoints. A call enters it
//! through `Domain::run`: in its turn, by the domain's lock where the client's threading model needs one
//! (`turns`), and through the fence (`fence`), which no unwind passes.
//!
//! # Tables
//! Every entry of every table is set, and each table is followed by spare refusing entries, since the headers
//! of newer releases call entries without looking at the table's size (`refuse`).
//!
//! | file | what it holds |
//! |---|---|
//! | `errno`, `fence`, `turns`, `object`, `refuse` | what every call and every object need |
//! | `log`, `params` | libfabric's own log and parameters, where it is found |
//! | `address` | the names of endpoints, in the formats that clients have |
//! | `info/` | getinfo: what is offered, and the matching of hints |
//! | `fabric`, `domain`, `eq`, `av`, `mr`, `wait/` | the objects without data path |
//! | `cq/`, `cntr/`, `ep/`, `ops` | queues, counters, endpoints, operations |
//! | `calls`, `msg`, `tagged` | the calls of messages |
//! | `rma`, `atomic` | the calls of reads, writes and atomics of peers' memory |
//! | `finish` | the ends of operations: entries, counts, failures |
//! | `events` | counters of what peers do |
//! | `waitable` | what completion queues and counters are alike in |
//! | `bell`, `sleep` | what wakes a client that sleeps; waits |
//! | `auto` | the thread of a domain with automatic progress |
//! | `memory`, `text` | the client's memory, lent; texts that are written there |
//! | `exit` | domains that are open when the process ends |
//! | `simulated` | domains over simulated rails, for tests of failures |
#![deny(unsafe_code)]
#![allow(unsafe_code, reason = "an interface of C: every call takes pointers")]

mod address;
mod atomic;
mod auto;
mod av;
mod bell;
mod calls;
mod cntr;
mod cq;
mod domain;
mod entry;
mod ep;
mod eq;
mod errno;
mod events;
mod exit;
mod fabric;
mod fence;
mod finish;
mod info;
mod log;
mod mapped;
mod member;
mod memory;
mod mr;
mod msg;
mod object;
mod ops;
mod params;
mod refuse;
mod rma;
#[doc(hidden)]
pub mod simulated;
mod sleep;
mod tagged;
mod text;
mod turns;
mod wait;
mod waitable;

pub use entry::fi_prov_ini;
