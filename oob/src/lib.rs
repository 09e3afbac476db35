//! The control plane: the traffic of a job that does not go over its rails.
//!
//! ```text
//!   key file ──► JobKey ──┐
//!                         ▼
//!   Endpoint ──► Connection / Listener              sockets, deadlines, limits
//!                         │ bytes, time
//!                         ▼
//!                session::Session                   Noise handshake, encrypted records; no socket, no clock
//! ```
//!
//! * [`key`]: the secret of a job, and its file.
//! * [`session`]: mutual authentication by that key and encryption, over any stream of bytes.
//! * [`lines::tcp::blocking`]: blocking sessions over TCP, with a deadline for everything.
//! * [`launch`]: how a process started by another launcher learns its rank, and exchanges values with the
//!   other ranks.
//!
//! The messages between a job's processes are handled by a sans-I/O core:
//!
//! * [`name`], [`wire`], [`bytes`]: names of processes, the header of a frame, and the bytes of messages.
//! * [`transport`]: the interface between the core and whatever carries frames; [`contact`]: addresses of a
//!   process.
//! * [`connect`]: identification of peers, and arbitration of simultaneous connections, for transports that
//!   make them.
//! * [`config`]: every limit and every time; [`event`]: everything that is reported.
//! * [`node`]: one process of a job: tags ([`rml`]), streams that deliver messages once and in order, the
//!   tree and its repair ([`routed`]), paths to neighbours over all transports and NICs, broadcasts and
//!   all-gathers.
//!
//! What carries the frames:
//!
//! * [`lines`]: connections over two kinds of lines; [`lines::tcp`]: the transport `tcp`, with a module for
//!   each NIC; [`lines::rail`]: the transport `rail`, with one for each rail.
//! * [`runner`]: the thread that runs a core and its transports.
//!
//! Without a key, only loopback is used: traffic over a network is always authenticated.
#![deny(unsafe_code)]

pub mod bytes;
pub mod config;
pub mod connect;
pub mod contact;
pub mod error;
pub mod event;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod key;
pub mod launch;
pub mod lines;
pub mod name;
pub mod node;
mod path_choice;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod plane;
#[allow(unsafe_code)]
// Its tests open sockets and files.
#[cfg_attr(test, allow(clippy::disallowed_types, clippy::disallowed_methods))]
mod pmix;
pub mod rml;
pub mod routed;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod runner;
pub mod serve;
pub mod session;
mod stream;
pub mod transport;
pub mod wire;

pub use error::OobError;
pub use key::JobKey;
pub use launch::{LaunchError, Launcher};
pub use lines::tcp::blocking::{Canceller, Connection, Endpoint, Listener};
pub use session::{Event, Peer, Role, Session, Terms};
