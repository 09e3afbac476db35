//! Tagged messages between the processes of a job, sent and received from user space.
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
//! * Blocking calls: [`World::send`], [`World::recv`], [`World::probe`], [`World::barrier`], …. Every wait
//!   ends: by the deadline `wait.deadline` or by [`World::within`], with an [`Error`] that names the rank
//!   that waited and what it waited for.
//! * Non-blocking calls: on borrowed buffers inside [`World::scope`], on owned memory ([`Region`]) anywhere.
//! * Without a copy between processes of one host: [`World::lend`] and [`World::recv_in_place`].
//! * One-sided operations: [`World::put`], [`World::get`], [`World::accumulate`] and their like on a
//!   [`Window`] of any rank.
//! * [`World::spawn`] starts more ranks while the job runs, and returns a world of all of them.
//! * [`raw`] is for foreign front ends.
//!
//! Progress is made by the caller's thread inside calls (`progress.mode = inline`), or by a dedicated thread
//! (`dedicated`); that of puts and active messages takes over while no call waits. No other thread, listener,
//! signal handler or memory hook exists.
#![deny(unsafe_code)]

#[macro_use]
mod handle;

pub mod am;
mod build;
mod builder;
mod collect;
mod control;
#[cfg(test)]
mod lazy_tests;
mod ledger;
mod lend;
mod message;
mod one_sided;
mod pieces;
pub mod portals;
mod progress;
pub mod raw;
mod request;
#[allow(unsafe_code)]
mod scope;
mod shared_node;
mod spawn;
mod tagged;
mod window;
mod within;
mod world;

pub use am::{Am, local_am, simulated_am};
pub use builder::{Builder, init, local, simulated, simulated_datagrams};
pub use doorbell_fabric as fabric;
pub use doorbell_fabric::atomics::Arithmetic;
pub use doorbell_fabric::memory::{Region, RegionSlice, SharedBytes};
pub use doorbell_fabric::{
    discover::Discovery,
    error::Exit,
    select::{Selection, Unchosen},
};
pub use doorbell_job::binding::Binding;
pub use doorbell_job::config::{Config, drivers};
pub use doorbell_job::control::Control;
pub use doorbell_job::counter_file::CORE_ROWS;
pub use doorbell_job::diagnose::{NOTHING_PASSES, PathStatus, RailVerdict, why};
pub use doorbell_job::error::{Awaited, Error, Peers, Waiting};
pub use doorbell_job::handle::Job;
pub use doorbell_job::join::terms;
pub use doorbell_job::launcher::launcher;
#[cfg(fuzzing)]
pub use doorbell_job::meet::fuzzing;
pub use doorbell_job::meet::tcp::occupied;
pub use doorbell_job::rails::sets::RailSets;
pub use doorbell_job::rails::{Capture, capture_file, discover};
pub use doorbell_job::spawn::Spawn;
pub use doorbell_job::types::{Source, Status, Tag};
pub use doorbell_oob as oob;
pub use doorbell_pml::{Counters, OperationError, PathState, WindowAccess, WindowCounts};
pub use doorbell_sim as sim;
pub use lend::{InPlace, Lent};
pub use message::Message;
pub use pieces::LentCounts;
pub use portals::{Portals, local_portals, simulated_portals};
pub use raw::Raw;
pub use request::Request;
pub use scope::{Scope, Stride};
pub use window::{Atomic, RemoteWindow, Window, Windows};
pub use within::Within;
pub use world::{Peer, PeerRail, World};

/// The addresses of peers, as the address service resolved them.
pub mod acm {
    pub use doorbell_job::acm::{How, Resolution, host};
}

/// How the ranks of a job find each other, and what each publishes about itself.
pub mod bootstrap {
    pub use doorbell_job::meet::{Key, RailEntry, RankInfo};
}

/// The configuration: typed, small, with the origin of each value.
pub mod config {
    pub use doorbell_job::config::*;
    pub use doorbell_job::launcher::warn_of_unknown_variables;
}

/// What a control plane is made of, from the settings `control.*`: for programs that start one of their own.
pub mod control_plane {
    pub use doorbell_job::control::{Means, RAIL_PURPOSE, check, check_rails};
}

/// The one error type: what failed, on what, the system's message, the likely cause, and what to do next.
pub mod error {
    pub use doorbell_job::error::{Awaited, Error, Peers, Waiting};
}

/// The thread that makes progress while a program makes no calls.
pub mod takeover {
    pub use doorbell_job::takeover::*;
}

/// Processes with Portals interfaces that meet when one first needs the other.
pub mod lobby {
    pub use doorbell_job::lobby::{Address, Card, Desk, PortalsMember as Member, Taken, finish};
}
