//! Carriers over UDP: on the loopback, and between hosts in network namespaces.

#![allow(unreachable_pub)] // modules of one test
// Real sockets and real time are what is tried here.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod hosts;
mod loopback;
mod side;
