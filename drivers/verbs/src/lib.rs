//! Rails over queue pairs of InfiniBand and RoCE devices, driven through libibverbs.
//!
//! ```text
//!   Datagram ─► UdTx ──► post_send     one doorbell for a batch; one in sixteen reports
//!               UdRx ──► poll_cq       frames in place; buffers go back by sixteens
//!   Rail ─────► UdRail                 events, the port, address handles
//! ```
//!
//! The library is loaded when a verbs rail is looked for on a machine that has RDMA devices, and never
//! otherwise; nothing of it is needed to build.
//!
//! | file | job |
//! |---|---|
//! | `sys` | all unsafe code: the library's functions and structures, owners of its objects |
//! | `discover` | ports as candidates |
//! | `ports` | what a port is, and why it cannot be used |
//! | `inspect` | what the library reports about ports, for diagnosis |
//! | `gid` | GIDs by rank, and the pair of them that two ports use |
//! | `address` | what a rail publishes |
//! | `name`, `config` | names and settings |
//! | `nearest` | names that mean nothing here, and which name was meant |
//! | `neighbour` | whether a call of the kernel would wait for a peer's hardware address |
//! | `source` | where a datagram comes from |
//! | `ways` | address handles of peers |
//! | `paths` | paths of an InfiniBand subnet to peers |
//! | `watch` | the device and the port of a rail, looked after while it is open |
//! | `ud` | datagrams |
//! | `mads` | management datagrams between services, and their multicast groups |
//! | `subnet` | requests to the administration of a subnet, through libibumad |
//! | `cm` | how two rails agree on the queue pairs of a connection, without a device |
//! | `rc` | messages over reliable connections |
//!
//! Reference: verbs; InfiniBand Architecture Specification, volume 1; RoCE v2 annex (A17).
#![deny(unsafe_code)]

mod address;
mod cm;
mod config;
mod discover;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod gid;
pub mod inspect;
pub mod mads;
#[cfg(feature = "model")]
pub mod model;
mod name;
mod nearest;
mod neighbour;
mod paths;
mod ports;
mod rc;
mod source;
pub mod subnet;
#[allow(unsafe_code)]
mod sys;
mod ud;
mod watch;
mod ways;

pub use config::{RingUse, VerbsConfig};
pub use discover::VerbsDriver;
pub use error::VerbsError;
pub use name::{PortName, Service};
pub use nearest::name_error;
pub use ports::Tree;
pub use rc::{RcRail, RcStats, WindowFacts};
pub use ud::{QueueSizes, ReceiveCounts, SendCounts, UdRail, UdRx, UdStats, UdTx};

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: doorbell_testing::alloc::Counting = doorbell_testing::alloc::Counting;
