//! `igbvf`: datagrams over the rings of an Intel 82576's virtual function, driven from user space through
//! VFIO.
//!
//! ```text
//!   post ─► chunk, descriptor ─► tail register ═══► the adapter ═══► descriptor back ─► poll, in place
//!                                     │  its switch, or the wire
//!   mailbox ◄──────────────────────── physical function: hardware address, queues on, "I was reset"
//! ```
//!
//! The frames on the wire are those of the `udp` rail: UDP over IPv4 or IPv6, two neighbouring ports for the
//! two channels, so that rails of both kinds talk to each other. No system call is made to send or to
//! receive. The function has two pairs of queues: urgent frames are sent by the one and all others by the
//! other, so that they do not wait for them; what comes in comes by the first, as the adapter sorts by
//! address and not by port.
//!
//! No kernel has the function's IP address, so it is a setting, and the rail sends and answers neighbour
//! requests itself (ARP, neighbour discovery). No other process may have the device: a second one is refused
//! by name.
//!
//! The physical function may reset at any time. The rail is down then, sends requests until it is let in
//! again, sets up its rings again, and is up. Where a user unbinds or unplugs the function, the kernel waits
//! until the rail releases it, which it does at the next poll, within 20 ms.
//!
//! Sources: Intel 82576EB datasheet, revision 2.87 (sections 7.1, 7.2, 7.8, 8 and 9); Linux's igb and igbvf
//! for the messages between the two functions. What is run against here is QEMU's model of the adapter behind
//! Linux's igb: the model writes descriptors back at once and one by one, and knows no times, so that this
//! proves nothing about the speed of hardware.
//!
//! | file | job |
//! |---|---|
//! | `config` | sizes, switches, and each function's address |
//! | `regs` | the unsafe room: registers, typed |
//! | `desc` | descriptors |
//! | `layout` | how the memory that the device reaches is cut up |
//! | `mailbox` | what is agreed on with the physical function |
//! | `open` | everything of a rail, step by step |
//! | `ring`, `rx` | a send ring, and the receive ring |
//! | `sleep` | interrupts, and the device's leave |
//! | `rail` | the function while it is open: link, mailbox, resets |
//! | `discover` | candidates for discovery |
//!
//! What is the same for every card (peers, headers, housekeeping) is in `doorbell-packet`.
//!
//! ```no_run
//! use doorbell_fabric::datagram::{Channel, Datagram, Transmit};
//! use doorbell_fabric::message::{Body, Incarnation};
//! use doorbell_igbvf::{IgbvfConfig, IgbvfRail};
//!
//! let config = IgbvfConfig { address: Some("10.0.0.5/24".to_owned()), ..IgbvfConfig::default() };
//! let mut rail = IgbvfRail::open(&"igbvf:0000:01:10.0".parse()?, &config)?;
//! let peer = Datagram::open(&mut rail, &"udp:10.0.0.2:56080".parse()?, Incarnation(1))?;
//! let (tx, _) = rail.split();
//! if tx.reserve(Channel::Priority, 1) == 1 {
//!     tx.post(Channel::Priority, peer, b"head", Body::Bytes(b" and body")).expect("reserved");
//!     tx.doorbell();
//! }
//! # Ok::<(), doorbell_fabric::error::RailError>(())
//! ```
#![deny(unsafe_code)]

mod config;
mod desc;
mod discover;
mod layout;
mod mailbox;
mod open;
mod rail;
#[allow(unsafe_code)]
mod regs;
mod ring;
mod rx;
mod sleep;

pub use config::{IgbvfConfig, PORT};
pub use discover::{DEVICES, IgbvfDriver};
pub use doorbell_inet::KeptFrame as IgbvfKept;
pub use rail::{Igbvf, IgbvfRail, over};
