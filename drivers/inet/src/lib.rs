//! What the drivers have in common that put frames into UDP over IP: the kernel's sockets (`udp`), and queues that are mapped
//! past it (`xdp`, and the virtual functions to come).
//!
//! | file | job |
//! |---|---|
//! | `wanted` | what is asked of an interface |
//! | `interface` | what a rail's name means: interface, address, MTU |
//! | `details` | what else the kernel tells of it: hardware address, queues, XDP programs |
//! | `route` | how the kernel would get a frame to a peer, and kinds of interfaces |
//! | `neighbour` | the link address of the next station, as the kernel knows it |
//! | `link` | is the link there? |
//! | `ports` | the pair of ports of a rail |
//! | `peer` | a peer's two sockets |
//! | `discover` | names of rails over interfaces |
//! | `capture` | frames as pcapng |
//! | `frame` | peers by their headers, frames by their parts, what rails of whole packets can do |
//! | `address` | the address that a function without a kernel is given |
//! | `hops` | neighbours of such a function: asking and answering |
//! | `sorter` | packets that arrived, by channel and sender |
//! | `inbox` | frames that wait to be looked at where the device put them, and those that are kept |
//! | `nics` | all interfaces with all addresses, and word of changes |
//! | `netlink` | questions to the kernel |
//! | `zero_copy` | whether a driver lets frames go straight to a process's memory |
//! | `sys` | the unsafe room: calls without safe wrappers |
#![deny(unsafe_code)]

mod address;
mod capture;
mod details;
mod discover;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod hops;
mod inbox;
mod interface;
mod link;
mod neighbour;
mod netlink;
mod nics;
mod peer;
mod ports;
mod route;
mod sorter;
#[allow(unsafe_code)]
mod sys;
mod wanted;
mod zero_copy;

pub use address::{Given, PORT, network_of};
pub use capture::{CaptureWriter, Other, Tap};
pub use details::{Attached, Channels, Details, Program, channels};
pub use discover::{is_by_address, is_other_name, rails, rejected};
pub use frame::{Headed, PARTS_MAX, channel_index, each, frame_capabilities, has_too_many_parts};
pub use hops::{Hops, Speaker};
pub use inbox::{Entry, Inbox, Kept, Spares};
pub use interface::{Interface, headers, is_up, look, looks_like_address, name_of, scoped, system};
pub use link::Link;
pub use neighbour::{Change, Neighbours};
pub use nics::{ALTERNATIVE_MAX, Assigned, Nic, NicAddress, NicWatch, assigned, index_of, nics, own_name};
pub use peer::KINDS;
pub use ports::{bind, claim, unbound};
pub use route::{No, Way, is_own, network, place, way};
pub use sorter::{NOBODY, Sorted, Sorter};
pub use sys::{Seen, bind_to_device};
pub use wanted::{FRAME_MIN, Family, PAYLOAD_MAX, Wanted, unusable};
pub use zero_copy::{has_zero_copy, zero_copy_pieces};
