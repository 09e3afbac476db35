//! The control plane: what a job says that is not on a rail.
//!
//! ```text
//!   key file ──► JobKey ──┐
//!                         ▼
//!   Endpoint ──► tcp::Connection / tcp::Listener        sockets, deadlines, limits
//!                         │ bytes, time
//!                         ▼
//!                session::Session                       Noise handshake, encrypted records; no socket, no clock
//! ```
//!
//! * [`key`]: the secret of a job, and the file in which it is kept.
//! * [`session`]: mutual authentication by that key and encryption, over any stream of bytes.
//! * [`tcp`]: sessions over TCP, with a deadline for everything.
//! * [`launch`]: who we are when somebody else's launcher started us, and how the ranks tell each other through it.
//!
//! What a job's processes say to each other is the business of a core without sockets, clocks, threads or files:
//!
//! * [`name`], [`wire`], [`bytes`]: who somebody is, the head of a frame, and what messages are made of.
//! * [`transport`]: the door between the core and whatever carries frames; [`contact`]: where somebody can be reached.
//! * [`connect`]: who-are-you, and which of two connections is kept: for transports that make them.
//! * [`config`]: every limit and every time; [`event`]: everything that is told.
//! * [`node`]: one process of a job, put together: tags ([`rml`]), streams that make messages arrive once and in order, the
//!   tree and its repair ([`routed`]), ways to neighbours over all transports and NICs, broadcasts and all-gathers.
//!
//! And what carries it:
//!
//! * [`net`]: the transport `tcp`, with a module for each NIC; [`rail`]: the transport `rail`, with one for each rail.
//! * [`runner`]: the thread that runs a core and its transports.
//!
//! Without a key, only loopback is served and called: what goes over a network is authenticated always.
#![deny(unsafe_code)]

mod path_choice;
pub mod bytes;
pub mod config;
pub mod connect;
pub mod contact;
pub mod error;
pub mod event;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod key;
pub mod launch;
pub mod name;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod net;
pub mod node;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod plane;
#[allow(unsafe_code)]
// Its tests open sockets and files.
#[cfg_attr(test, allow(clippy::disallowed_types, clippy::disallowed_methods))]
mod pmix;
pub mod rail;
pub mod rml;
pub mod routed;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod runner;
pub mod serve;
pub mod session;
mod stream;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod tcp;
pub mod transport;
pub mod wire;

pub use error::OobError;
pub use key::JobKey;
pub use launch::{LaunchError, Launcher};
pub use session::{Event, Peer, Role, Session, Terms};
pub use tcp::{Canceller, Connection, Endpoint, Listener};
