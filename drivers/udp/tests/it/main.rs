//! Rails over sockets: the contract of all rails, over the loopback, and between two hosts.

mod contract;
mod loopback;
mod namespaces;
