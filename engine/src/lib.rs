//! Processes of a job exchange tagged messages from user space.
//!
//! ```
//! let world = doorbell::init()?;
//! let next = (world.rank() + 1) % world.size();
//! world.send(next, 7, b"hello")?;
//! let mut buffer = [0; 64];
//! let status = world.recv(doorbell::Source::Any, 7, &mut buffer)?;
//! println!("rank {} got {} bytes from rank {}", world.rank(), status.len, status.source);
//! # Ok::<(), doorbell::Error>(())
//! ```
//!
//! * [`init`] or [`Builder`] joins the job and gives a [`World`]: this rank's handle.
//! * Blocking calls: [`World::send`], [`World::recv`], [`World::probe`], [`World::barrier`], …. Every wait ends: by the
//!   deadline `wait.deadline` or by [`World::within`], with an [`Error`] that says who waited for what.
//! * Non-blocking calls with borrowed buffers: inside [`World::scope`]; with owned memory ([`Region`]): anywhere.
//! * [`World::spawn`] starts more ranks while the job runs, and gives a world of all.
//! * [`raw`] is for foreign front ends.
//!
//! Progress is made by the caller's thread inside calls (`progress.mode = inline`), or by a dedicated thread
//! (`dedicated`). No other thread, listener, signal handler or memory hook exists.
#![deny(unsafe_code)]

mod above;
pub mod acm;
pub mod am;
pub mod bootstrap;
mod builder;
mod collect;
pub mod config;
pub mod control;
mod convert;
mod cores;
mod directory;
pub mod error;
mod launch;
pub mod lobby;
mod message;
pub mod portals;
mod progress;
mod rails;
mod random;
pub mod raw;
mod request;
#[allow(unsafe_code)]
mod scope;
mod seen;
mod spawn;
mod station;
mod told;
mod types;
mod why;
mod within;
mod world;

pub use am::{Am, local_am, simulated_am};
#[cfg(fuzzing)]
pub use bootstrap::fuzzing;
pub use bootstrap::remote::occupied;
pub use builder::{Builder, init, local, simulated, simulated_datagrams, terms};
pub use config::Config;
pub use config::drivers;
pub use control::Control;
pub use doorbell_fabric as fabric;
pub use doorbell_fabric::memory::{Region, RegionSlice};
pub use doorbell_fabric::{
    discover::Discovery,
    error::Exit,
    select::{Selection, Unchosen},
};
pub use doorbell_oob as oob;
pub use doorbell_pml::{Counters, PathState};
pub use doorbell_sim as sim;
pub use error::{Awaited, Error, Peers, Waiting};
pub use launch::launcher;
pub use message::Message;
pub use portals::{Portals, local_portals, simulated_portals};
pub use rails::{Capture, capture_file, discover};
pub use raw::Raw;
pub use request::Request;
pub use scope::{Scope, Stride};
pub use spawn::Spawn;
pub use types::{Source, Status, Tag};
pub use why::{NOTHING_PASSES, Toward, WayNow, why};
pub use within::Within;
pub use world::{Peer, PeerRail, World};
