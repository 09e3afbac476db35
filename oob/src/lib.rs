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
//!
//! Without a key, only loopback is served and called: what goes over a network is authenticated always.
#![forbid(unsafe_code)]

pub mod error;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod key;
pub mod session;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod tcp;

pub use error::OobError;
pub use key::JobKey;
pub use session::{Event, Peer, Role, Session, Terms};
pub use tcp::{Canceller, Connection, Endpoint, Listener};
