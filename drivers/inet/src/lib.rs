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
//! | `demux` | packets that arrived, by channel and sender |
//! | `inbox` | frames that wait to be looked at where the device put them, and those that are kept |
//! | `nics` | all interfaces with all addresses, and word of changes |
//! | `netlink` | questions to the kernel |
//! | `zero_copy` | whether a driver lets frames go straight to a process's memory |
//! | `sys` | the unsafe room: calls without safe wrappers |
#![deny(unsafe_code)]

mod capture;
mod demux;
mod details;
mod discover;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod inbox;
mod interface;
mod interface_query;
mod kernel_neighbours;
mod link;
mod neighbour_cache;
mod netlink;
mod nics;
mod peer;
mod ports;
mod route;
mod static_address;
#[allow(unsafe_code)]
mod sys;
mod zero_copy;

pub use capture::{CaptureWriter, RemoteEnd, Tap};
pub use demux::{Demux, Demuxed, UNKNOWN_PEER};
pub use details::{Attached, Channels, Details, Program, channels};
pub use discover::{is_by_address, is_other_name, rails, rejected};
pub use frame::{
    PARTS_MAX, PeerHeaders, channel_index, for_each_part, frame_capabilities, has_too_many_parts,
};
pub use inbox::{Inbox, InboxFrame, KeptFrame, SpareChunks};
pub use interface::{
    Interface, headers, interface_state, is_up, looks_like_address, name_of, scoped, system_error,
};
pub use interface_query::{FRAME_MIN, Family, InterfaceQuery, PAYLOAD_MAX, unusable};
pub use kernel_neighbours::{KernelNeighbours, NeighbourUpdate};
pub use link::LinkMonitor;
pub use neighbour_cache::{NeighbourCache, PacketSender};
pub use nics::{ALTERNATIVE_MAX, Assigned, Nic, NicAddress, NicMonitor, assigned, index_of, nics, own_name};
pub use peer::UDP_RAIL_KINDS;
pub use ports::{bind, claim, unbound};
pub use route::{NextHop, NoRoute, is_own, network, next_hop_to, place};
pub use static_address::{PORT, StaticAddress, network_of};
pub use sys::{InterfaceState, bind_to_device};
pub use zero_copy::{has_zero_copy, zero_copy_pieces};
