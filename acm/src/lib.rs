//! Address and route resolution: names, IPv4, IPv6 addresses and GIDs become paths, which are kept, checked and forgotten in
//! time. What rdma-core's clients (librdmacm, `ib_acme`) ask of the service `ibacm` is answered byte for byte as they
//! expect it, with or without InfiniBand.
//!
//! * [`address`]: what is resolved; [`path`]: what it is resolved to; [`status`]: why it was not.
//! * [`endpoint`]: where a path of this host can begin; [`ask`]: questions and answers, whoever asks.
//!
//! reference: acm.
#![forbid(unsafe_code)]

pub mod address;
pub mod ask;
pub mod client;
pub mod endpoint;
mod line;
pub mod path;
pub mod serve;
pub mod status;
pub mod wire;
