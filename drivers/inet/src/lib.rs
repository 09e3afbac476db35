//! Everything that drivers of UDP/IP frames share, whether they use the kernel's sockets (`udp`) or queues
//! that bypass it (`xdp`, `igbvf`, `usnic`).
//!
//! | file | job |
//! |---|---|
//! | `interface_query` | which address of an interface a rail uses, and how long its frames may be |
//! | `interface` | resolves a rail's name to an interface, its address and its MTU |
//! | `details` | further attributes of an interface: hardware address, queues, XDP programs |
//! | `route` | the next hop to a peer by the kernel's routing table, and kinds of interfaces |
//! | `kernel_neighbours` | ARP and NDP entries of the kernel's neighbour table |
//! | `link` | monitors the link state of one interface |
//! | `ports` | binds the pair of ports of a rail |
//! | `peer` | the two socket addresses of a peer |
//! | `discover` | names of rails over interfaces |
//! | `capture` | writes frames as pcapng |
//! | `frame` | header templates of peers, parts of frames, capabilities of packet rails |
//! | `static_address` | the configured address of a function that the kernel does not manage |
//! | `neighbour_cache` | ARP and NDP for such a function: requests, replies, retries |
//! | `demux` | demultiplexes received packets by channel and sender |
//! | `inbox` | received frames in their device buffers, and frames that the application keeps |
//! | `nics` | lists all interfaces with all addresses, and monitors changes |
//! | `dcb` | which priorities of an interface are paused, and by which DSCP |
//! | `netlink` | requests to the kernel over netlink |
//! | `zero_copy` | queries whether a driver supports zero-copy AF_XDP |
//! | `sys` | all unsafe code: system calls without safe wrappers |
#![deny(unsafe_code)]

mod capture;
mod dcb;
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
mod peer_numbers;
mod ports;
mod route;
mod routed;
mod static_address;
#[allow(unsafe_code)]
mod sys;
mod zero_copy;

pub use capture::{CaptureWriter, RemoteEnd, Tap};
pub use dcb::{FlowControl, flow_control};
pub use demux::{Demux, Demuxed, UNKNOWN_PEER};
pub use details::{Attached, Channels, Details, Program, channels, has_rules};
pub use discover::{is_by_address, is_other_name, rails, rejected};
pub use frame::{PARTS_MAX, PeerHeaders, for_each_part, frame_capabilities, has_too_many_parts};
pub use inbox::{Inbox, InboxFrame, KeptFrame, SpareChunks};
pub use interface::{
    Interface, headers, interface_state, is_up, looks_like_address, name_of, scoped, system_error,
};
pub use interface_query::{FRAME_MIN, Family, InterfaceQuery, PAYLOAD_MAX, taken, unusable};
pub use kernel_neighbours::{KernelNeighbours, NeighbourUpdate};
pub use link::LinkMonitor;
pub use neighbour_cache::{NeighbourCache, PacketSender};
pub use nics::{ALTERNATIVE_MAX, Assigned, Nic, NicAddress, NicMonitor, assigned, index_of, nics, own_name};
pub use peer::UDP_RAIL_KINDS;
pub use peer_numbers::{PeerNumbers, put_peer};
pub use ports::{bind, claim, unbound};
pub use route::{NextHop, NoRoute, is_own, network, next_hop_to, place};
pub use routed::routed;
pub use static_address::{PORT, StaticAddress, network_of};
pub use sys::{InterfaceState, bind_to_device};
pub use zero_copy::{has_zero_copy, zero_copy_pieces};
