//! `udp`: datagrams over the kernel's UDP sockets, IPv4 and IPv6.
//!
//! ```text
//!            ┌─ priority, port P   ─┬─ the rail's own socket          strangers, and peers without their own
//!   address ─┤                      └─ connected sockets, one a peer  no address to look up
//!            └─ data, port P + 1   ─── the same                       UDP_SEGMENT, UDP_GRO: runs in one piece
//! ```
//!
//! The two channels are two neighbouring ports, as the usNIC BTL gives each channel a queue pair and port of its own
//! (reference: vic, section 6): the channel of a frame is known before a byte of it is looked at, and short urgent frames
//! never wait behind long ones. The published address names the first port. Frames are carried as they are: nothing is
//! added to them.
//!
//! What the kernel does for a frame is nearly all of its cost, so this driver spares calls: connected sockets per peer
//! (`UdpConfig::connected` of them), single frames by `send`, batches by `sendmmsg` and `recvmmsg`, runs of frames of
//! one size by one message, on both channels: a burst of short messages is such a run. Which sockets are asked when is told in `lookout`.
//!
//! Frames are never fragmented: one that is too long for the path is dropped and counted, and the path's limit can be
//! asked for. A "port unreachable" answer is a hint and no error. The rail's name decides the address that frames come
//! from, the only one that is bound, and the interface through which they leave (`SO_BINDTODEVICE`): a peer that is
//! not reached by it cannot be opened, whatever other ways there are.
//!
//! | file | job |
//! |---|---|
//! | `config` | sizes and switches |
//! | `sockets` | binding, connecting, options |
//! | `rail` | opening, peers, and the `Rail` contract |
//! | `tx`, `rx`, `buffers` | the two halves, and the receive buffers |
//! | `lookout` | which sockets are asked when |
//! | `hints` | peers that refuse |
//! | `discover` | candidates for discovery |
//! | `stats` | what is counted |
//! | `sys` | the unsafe room: calls without safe wrappers |
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
