//! `udp`: datagrams over the kernel's UDP sockets, IPv4 and IPv6.
//!
//! ```text
//!            ┌─ priority, port P ─┬─ the rail's own socket          unknown senders, peers without a socket
//!   address ─┤                    └─ connected sockets, one a peer  no address lookup
//!            └─ data, port P + 1 ─── the same                       UDP_SEGMENT, UDP_GRO: runs in one piece
//! ```
//!
//! The two channels are two consecutive ports, as the usNIC BTL gives each channel a queue pair and port of
//! its own (reference: vic, section 6): the channel of a frame is known before its first byte is read, and
//! short urgent frames never wait behind long ones. The published address has the first port. Frames are
//! carried without a header of our own.
//!
//! The kernel's work is nearly all of a frame's cost, so this driver saves system calls: connected sockets
//! for up to `UdpConfig::connected` peers, single frames by `send`, batches by `sendmmsg` and `recvmmsg`, and
//! runs of frames of one size in one message, on both channels: a burst of short messages is such a run.
//! `poll_schedule` decides which sockets are polled when.
//!
//! Frames are never fragmented: one that is too long for the path is dropped and counted, and
//! `UdpRail::path_limit` returns the path's limit. An ICMP "port unreachable" is a hint and no error. The
//! rail's name determines the source address, which is the only one bound, and the interface
//! (`SO_BINDTODEVICE`): a peer that cannot be reached through it cannot be opened, whatever other routes
//! there are.
//! | file | job |
//! |---|---|
//! | `config` | sizes and switches |
//! | `sockets` | binding, connecting, options |
//! | `rail` | opening, peers, and the `Rail` contract |
//! | `tx`, `rx`, `buffers` | the two halves, and the receive buffers |
//! | `poll_schedule` | which sockets are polled when |
//! | `icmp` | peers that answer with ICMP "port unreachable" |
//! | `refused` | peers to which the kernel refuses to send |
//! | `discover` | candidates for discovery |
//! | `stats` | counters |
//! | `sys` | all unsafe code: system calls without safe wrappers |
//!
//! ```
//! use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
//! use doorbell_fabric::message::{Body, Incarnation};
//! use doorbell_fabric::rail::Rail;
//! use doorbell_udp::{UdpConfig, UdpRail};
//!
//! let (name, config) = ("udp:lo".parse()?, UdpConfig::default());
//! let (mut a, mut b) = (UdpRail::open(&name, &config)?, UdpRail::open(&name, &config)?);
//! let to_b = Datagram::open(&mut a, &b.address(), Incarnation(1))?;
//! let (tx, _) = a.split();
//! assert_eq!(tx.reserve(Channel::Priority, 1), 1);
//! tx.post(Channel::Priority, to_b, b"head", Body::Bytes(b" and body")).expect("reserved");
//! tx.doorbell();
//! let (_, rx) = b.split();
//! while rx.poll(Channel::Priority, 16) == 0 {}
//! assert_eq!(rx.frame(Channel::Priority, 0).unwrap().bytes.to_vec(), b"head and body");
//! # Ok::<(), doorbell_fabric::error::RailError>(())
//! ```
#![deny(unsafe_code)]

mod buffers;
mod config;
mod discover;
mod icmp;
mod poll_schedule;
mod rail;
mod refused;
mod rx;
mod sockets;
mod stats;
#[allow(unsafe_code)]
mod sys;
mod tx;

pub use buffers::UdpKept;
pub use config::UdpConfig;
pub use discover::UdpDriver;
pub use doorbell_inet::{CaptureWriter, Family};
pub use rail::UdpRail;
pub use rx::UdpRx;
pub use sockets::Granted;
pub use stats::UdpStats;
pub use tx::UdpTx;
