//! The service as a whole: its second socket, changes of its files while questions are open, and hosts in
//! network namespaces.

// Real sockets, threads and time are what is tried here.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(unreachable_pub)] // modules of one test

mod common;
mod hosts;
mod listener;
mod written;
