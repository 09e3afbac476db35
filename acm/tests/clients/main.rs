//! The service as its clients see it: ours, strangers, and rdma-core's own, against a back-end that is a
//! table.

// Real sockets, threads and time are what is tried here.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod acme;
mod common;
mod hostile;
mod liar;
mod librdmacm;
mod many;
mod original;
mod served;
