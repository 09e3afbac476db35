//! Address and route resolution: names, IPv4, IPv6 addresses and GIDs become paths, which are kept, checked and forgotten in
//! time. What rdma-core's clients (librdmacm, `ib_acme`) ask of the service `ibacm` is answered byte for byte as they
//! expect it, with or without InfiniBand.
//!
//! ```text
//!   clients                         service                                          other services
//!   ib_acme, librdmacm ──┐
//!   client::Client ──────┼─► serve ─► resolver::Resolver ◄─► carrier ◄── multicast, one to one ──► …
//!   client::Asker ───────┘    wire     ▲     ▲    mad
//!                                 config     host
//! ```
//!
//! * [`address`]: what is resolved; [`path`]: what it is resolved to; [`status`]: why it was not.
//! * [`endpoint`]: where a path of this host can begin; [`ask`]: questions and answers, whoever asks.
//! * [`resolver`]: what resolves, remembers and forgets, without a socket or a clock; [`mad`]: what services say to each
//!   other; [`sa`]: what a subnet's administration is asked.
//! * [`wire`]: what clients and the service say; [`serve`]: the service's doors; [`client`]: asking it.
//! * [`config`]: what is written in files; [`host`]: what this host has; [`carrier`]: what takes messages to other services.
//! * [`service`]: all of it together.
//!
//! reference: acm.
#![forbid(unsafe_code)]

pub mod address;
pub mod ask;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod carrier;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod client;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod config;
pub mod endpoint;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod host;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
mod line;
pub mod mad;
pub mod path;
pub mod resolver;
pub mod sa;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod serve;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod service;
pub mod status;
mod waiting;
pub mod wire;
