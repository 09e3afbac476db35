//! `usnic`: datagrams over the queues of a Cisco VIC's usNIC virtual function, driven from user space through
//! VFIO.
//!
//! ```text
//!   post ─► chunk, descriptor ─► posted index ═══► the adapter ═══► completion, coloured ─► poll, in place
//!                                     │  its switch, or the wire
//!   agent ─► physical function ─► filters, queue pairs on
//! ```
//!
//! The frames on the wire are those of the `udp` rail: UDP over IPv4, two neighbouring ports for the two
//! channels, so that rails of both kinds talk to each other. No system call is made to send or to receive.
//! Each channel is a queue pair of its own; its frames come to it by a filter.
//!
//! **Nothing of this has ever run on a VIC.** It was written from what public drivers do (`docs/usnic.md`);
//! what they state has no mark here, `[I]` is inferred from what they do, `[U]` is unknown and
//! therefore a setting, or left alone. It is tried over a model of the adapter that was written from the same
//! sources and apart from it: passing there is not passing on a VIC.
//!
//! In the shipping stack a function does not control its own filters and queue pairs: its physical function
//! does. [`Agent`] is the process that owns the physical function, and [`Control`] selects where requests go.
//! No kernel has the function's IP address, so it is a setting, and the rail sends and answers ARP requests
//! itself.
//!
//! | file | job |
//! |---|---|
//! | `config` | sizes, switches, each function's address, and what the reference leaves open |
//! | `rail_name` | what a rail's name means, and where its registers are |
//! | `table` | the resource table |
//! | `regs` | the unsafe room: registers, typed |
//! | `window` | a block of them, mapped or reached by calls |
//! | `desc` | descriptors and completions |
//! | `devcmd/`, `errno` | commands to the firmware, and why they fail |
//! | `notify` | what the device reports of itself |
//! | `filter` | what comes to a queue |
//! | `flow_steering/` | who installs that: the function itself, its physical one, an agent |
//! | `pf`, `pf_watchdog`, `agent/` | a physical function that is ours, how it is kept, and the process that has it |
//! | `layout` | how the memory that the device reaches is cut up |
//! | `wq`, `rq`, `cq` | the queues |
//! | `queue`, `bringup` | turning them on and off, step by step |
//! | `open` | everything of a rail |
//! | `health`, `restart` | looking after it, and restarting it |
//! | `rx` | the receive queues with their completion queues |
//! | `sleep` | interrupts, and the device's leave |
//! | `rail` | the function while it is open |
//! | `discover` | candidates for discovery |
//! | `stats` | what is counted |
//!
//! What is the same for every card (peers, headers, housekeeping) is in `doorbell-packet`.
//!
//! ```no_run
//! use doorbell_fabric::datagram::{Channel, Datagram, Transmit};
//! use doorbell_fabric::message::{Body, Incarnation};
//! use doorbell_usnic::{UsnicConfig, UsnicRail};
//!
//! let config = UsnicConfig { address: Some("10.0.0.5/24".to_owned()), ..UsnicConfig::default() };
//! let mut rail = UsnicRail::open(&"usnic:0000:3b:00.1".parse()?, &config)?;
//! let peer = Datagram::open(&mut rail, &"udp:10.0.0.2:56080".parse()?, Incarnation(1))?;
//! let (tx, _) = rail.split();
//! if tx.reserve(Channel::Priority, 1) == 1 {
//!     tx.post(Channel::Priority, peer, b"head", Body::Bytes(b" and body")).expect("reserved");
//!     tx.doorbell();
//! }
//! # Ok::<(), doorbell_fabric::error::RailError>(())
//! ```
#![deny(unsafe_code)]

mod agent;
mod bringup;
mod config;
mod cq;
pub mod desc;
pub mod devcmd;
mod discover;
mod errno;
#[cfg(test)]
mod fake;
pub mod filter;
pub mod flow_steering;
mod health;
mod layout;
pub mod notify;
mod open;
mod pf;
mod pf_watchdog;
mod queue;
mod rail;
mod rail_name;
#[allow(unsafe_code)]
mod regs;
mod remedies;
mod restart;
mod rq;
mod rx;
mod sleep;
mod stats;
pub mod table;
mod window;
mod wq;

pub use agent::{Agent, AgentEvent};
pub use config::{Commands, Control, PORT, UsnicConfig, VfCommands};
pub use discover::UsnicDriver;
pub use doorbell_inet::KeptFrame as UsnicKept;
pub use errno::{Errno, Fault};
pub use flow_steering::Trouble;
pub use open::{agent_socket, pf_of};
pub use pf::{Pf, PfInfo};
pub use rail::{Usnic, UsnicRail, over};
pub use rail_name::{DEVICE_ADMIN, DEVICE_PF, DEVICES, Object};
pub use remedies::{
    agent_at, agent_command, is_other_kind, is_stopped, make_function, model_command, see_model, start_model,
};
pub use stats::UsnicStats;
