//! A model of Cisco's VIC as a vfio-user server: the registers, rings and firmware commands of a
//! physical function and of usNIC virtual functions, as far as public sources describe them, and a switch
//! between them.
//!
//! ```text
//!   DIR/pf.sock ──┐                      ┌ devcmd, proxy, filters ┐
//!   DIR/vf0.sock ─┼─► reader threads ──► │ engine: one thread     │ ◄── posted indexes, in shared memory
//!   DIR/vf1.sock ─┘   (messages)         │ queues, switch, faults │ ──► the client's memory, by its maps
//!                                        └────────────────────────┘ ◄─► a bridge to a kernel's network
//! ```
//!
//! It is for authors and testers of a driver: what it sees a driver do wrong is recorded ([`Violations`]),
//! and it fails on purpose where a script of faults has it fail. It is written from descriptions alone and
//! shares nothing with any driver. **To pass on the model is not to pass on a VIC**: where hardware is
//! unknown, the model made a choice, marked **\[M\]** in these pages ([`Options`]).
//!
//! | file | what is in it |
//! |---|---|
//! | `options` `error` `violation` | the options of a model, why it cannot start, what it saw a driver do |
//! | `folder` `server` `line` `wire` `serve` `access` | sockets; clients; messages; their bytes; the answers; registers by message |
//! | `engine` `world` `switch` `bridge` | the thread; all functions; where frames go; a kernel's network beside them |
//! | `function` `config` `layout` `registers` | a function; its configuration space; its BAR0; offsets |
//! | `devcmd/` `filter` `notify` `stats` | commands, and what they are about |
//! | `ring/` `wq` `rq` `cq` `desc` `frame` `io` | queues; descriptors; frames; memory and interrupts |
//! | `fault/` | what goes wrong on purpose: rules, their script, frames, deeds |
//! | `dma` `map` `sys` | the client's memory; the unsafe rooms |
#![deny(unsafe_code)]

mod access;
mod bridge;
mod config;
mod cq;
mod desc;
mod devcmd;
mod dma;
mod engine;
mod error;
mod fault;
mod filter;
mod folder;
mod frame;
mod function;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod io;
mod layout;
mod line;
mod map;
mod model;
mod notify;
mod options;
mod random;
mod registers;
mod ring;
mod rq;
mod serve;
mod server;
mod stats;
mod switch;
mod sys;
mod violation;
mod wire;
mod world;
mod wq;

pub use error::Error;
pub use model::{Counters, Functions, Model, Socket, Summary};
pub use options::{
    Behaviour, BridgeTo, Counts, Identity, Idle, LayoutOptions, Options, Policy, Timing, Trap,
};
pub use violation::{Kind, Violation, Violations};
