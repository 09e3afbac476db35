//! Rails over sockets: the contract of all rails, over the loopback, and between two hosts.

#[path = "../netns/mod.rs"]
mod netns;

mod contract;
mod loopback;
mod namespaces;
