//! Address and route resolution: names, IPv4 and IPv6 addresses and GIDs are resolved to paths, which are
//! cached, confirmed and expired. It serves the clients of rdma-core's `ibacm` (librdmacm, `ib_acme`) with
//! their own protocol, with or without InfiniBand.
//!
//! ```text
//!   clients                         service                                          other services
//!   ib_acme, librdmacm ──┐
//!   client::Client ──────┼─► serve ─► resolver::Resolver ◄─► carrier ◄── multicast, unicast ──► …
//!   client::AsyncClient ─┘    wire     ▲     ▲    mad
//!                                 config     host
//! ```
//!
//! * [`address`], [`path`], [`status`]: what is resolved, the result, and why there is none.
//! * [`endpoint`]: where a path of this host can start; [`query`]: queries and answers, independent of the
//!   protocol.
//! * [`resolver`]: the sans-I/O core with its cache; [`mad`]: the messages between services; [`sa`]: queries
//!   to a subnet administrator.
//! * [`wire`]: the protocol between clients and the service; [`serve`]: its listeners; [`client`]: its
//!   clients.
//! * [`config`]: the configuration files; [`host`]: the endpoints of this host; [`carrier`]: transport
//!   between services.
//! * [`service`]: all of it together.
//!
//! reference: acm.
#![forbid(unsafe_code)]

pub mod address;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod carrier;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod client;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod config;
pub mod endpoint;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod host;
pub mod mad;
pub mod path;
pub mod query;
mod register;
pub mod resolver;
pub mod sa;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod serve;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
pub mod service;
pub mod status;
#[allow(clippy::disallowed_types, clippy::disallowed_methods)]
mod stream;
pub mod wire;
