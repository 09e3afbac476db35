//! `xdp`: datagrams over AF_XDP, bypassing the kernel's network stack.
//!
//! ```text
//!   device queue ─► program: ours? ──► the rail's memory, read in place     all else: the kernel, as before
//!                                        ▲
//!   device queue ◄── kernel ◄── one call per batch (none while a zero-copy device is awake)
//! ```
//!
//! The frames on the wire are those of the `udp` rail: UDP over IPv4 or IPv6, two neighbouring ports for the
//! two channels, so that rails of both kinds talk to each other. Receiving makes no system call. A program of
//! some thirty instructions sees each frame that comes in on the interface, and sends those for the rail's
//! own address and ports to the rail; it is attached by a link that the kernel closes with the process,
//! however that ends. Routes and neighbours are the kernel's; its own sockets hold the two ports, so that no
//! other socket gets them.
//!
//! How frames get to the rail's memory is the mode: `zero-copy`, `native` or `generic`. A mode that is set is
//! used or refused; where none is set, the best one that the interface has is used, and reported.
//!
//! Of the MTU's frames, those that fit a page with the kernel's headroom are in one chunk of memory: about
//! 3,800 bytes, and 3,000 where a device that counts in units of 1 KiB may write them itself. Where the MTU
//! is larger, a frame is in several (multi-buffer, Linux 6.6), up to about 56,000 bytes: it is sent from
//! where it was written, and copied once where it comes in. Where the kernel or the device has none of that,
//! frames are as long as fits a chunk, which is reported; a peer over sockets has to keep to that
//! (`udp.mtu`), and is refused by the engine where it does not.
//!
//! Sources: the kernel's `Documentation/networking/af_xdp.rst`, linux/if_xdp.h, RFC 9669 (BPF's
//! instructions).
//!
//! | file | job |
//! |---|---|
//! | `config` | sizes, switches, modes |
//! | `check` | whether a rail can be opened, before anything is made |
//! | `layout` | how the memory of frames is cut up |
//! | `open` | memory, sockets and program, in the mode that is wanted |
//! | `rights` | which capability is missing |
//! | `program` | the program that steers frames |
//! | `attach` | attaching it, and making sure |
//! | `program_owner` | who else has a program on the interface |
//! | `queue` | a socket and its rings |
//! | `rail` | peers, link, and the `Rail` contract |
//! | `next_hops` | the next hop to each peer |
//! | `sleep` | what wakes the owner |
//! | `diagnostics` | what is wrong although the link is up |
//! | `tx`, `rx` | the two halves |
//! | `multibuf` | frames that come in several chunks |
//! | `raw` | what the queues take by themselves |
//! | `discover` | candidates for discovery |
//! | `stats` | what is counted |
//! | `sys` | the unsafe room: calls without safe wrappers |
//!
//! ```no_run
//! use doorbell_fabric::datagram::{Channel, Datagram, Transmit};
//! use doorbell_fabric::message::{Body, Incarnation};
//! use doorbell_xdp::{XdpConfig, XdpRail};
//!
//! let mut rail = XdpRail::open(&"xdp:eth1".parse()?, &XdpConfig::default())?;
//! println!("{} on queues {:?}", rail.granted().mode, rail.granted().queues);
//! let peer = Datagram::open(&mut rail, &"udp:10.0.0.2:56080".parse()?, Incarnation(1))?;
//! let (tx, _) = rail.split();
//! if tx.reserve(Channel::Priority, 1) == 1 {
//!     tx.post(Channel::Priority, peer, b"head", Body::Bytes(b" and body")).expect("reserved");
//!     tx.doorbell();
//! }
//! # Ok::<(), doorbell_fabric::error::RailError>(())
//! ```
#![deny(unsafe_code)]

mod attach;
mod check;
mod config;
mod diagnostics;
mod discover;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod layout;
mod multibuf;
mod next_hops;
mod open;
mod program;
mod program_owner;
mod queue;
mod rail;
mod raw;
mod rights;
mod rx;
mod sleep;
mod stats;
#[allow(unsafe_code)]
mod sys;
mod tx;

pub use check::{has_sockets, locked_bytes};
pub use config::{Mode, XdpConfig};
pub use discover::XdpDriver;
pub use doorbell_inet::Family;
pub use doorbell_inet::KeptFrame as XdpKept;
pub use open::Granted;
pub use program_owner::of_program as holder_of_program;
pub use rail::XdpRail;
pub use raw::XdpRaw;
pub use rx::XdpRx;
pub use stats::XdpStats;
pub use tx::XdpTx;
