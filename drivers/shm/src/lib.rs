//! `shm`: messages between the processes of one host, through sealed shared memory.
//!
//! ```text
//!   sender                                                        receiver
//!   ┌───────────────┐  lane object: leases, cells, data   ┌───────────────┐
//!   │ writes        │ ───────────────────────────────────►│ maps read-only│
//!   │ maps read-only│◄─────────────────────────────────── │ writes        │  control object: consumed, attention
//!   │ sets bits     │ ───────────────────────────────────►│ clears bits   │  ready object: who has something
//!   └───────────────┘                                     └───────────────┘
//! ```
//!
//! One lane per direction, made when its first message is sent: the sender passes the lane object over a Unix
//! socket (`connect`), the receiver answers with its control and ready objects. The socket stays open: a byte
//! over it wakes a receiver that sleeps, and the kernel closes it when either process ends, however it ends. There are no
//! files and no names in `/dev/shm`; when both processes are gone, so is everything.
//!
//! Long messages are pulled by their receiver with `process_vm_readv`, after it has proved at the connection that
//! it can (by reading a nonce); memory of a region it maps instead, where `/proc/<pid>/fd` lets it open the object
//! and it is read often enough for the map to pay, and copies without the kernel. The sender exposes a buffer by a *lease*: a random key in a table
//! that it alone can write. The receiver checks it before it reads and after: a sender that withdrew in between is noticed,
//! and the bytes are not used. From 32 KiB on a sender that waits copies shares of the message too, from the back
//! (`process_vm_writev`, see `board`): two cores copy twice as fast as one. Pulling makes the ranks of one user one trust domain (each could read the others'
//! memory anyway); `cma = false` turns it off, and long messages are then copied through the lane in fragments.
//!
//! | file | job |
//! |---|---|
//! | [`config`] | sizes and switches |
//! | `rail` | the rail: its parts and the `Rail` contract |
//! | `traffic` | the `Message` contract, and the hot loop |
//! | `contact` | what happens on the sockets: first contact, wake-ups, ends |
//! | `stranger` | hellos of peers that are not open yet, and who they are |
//! | `again` | how a way is given up, and made anew with a process that lives |
//! | `tx`, `rx` | one direction each |
//! | `connect`, `wire` | first contact, and its two messages |
//! | `ready`, `attend` | who has something for us; how a sleeping process is woken |
//! | `lease`, `pull` | one-sided reads |
//! | `board`, `share`, `help` | how both ends copy one long read together |
//! | `map`, `sys` | the unsafe rooms: areas of maps; system calls on foreign memory |
//!
//! ```
//! use doorbell_fabric::message::{Arrivals, Body, Inbound, Message, OpError, OpId, PeerIndex};
//! use doorbell_fabric::{rail::Rail, time::Time};
//! use doorbell_shm::{ShmConfig, ShmRail};
//!
//! struct Print;
//! impl Arrivals for Print {
//!     fn message(&mut self, peer: PeerIndex, inbound: Inbound<'_>) {
//!         println!("{} bytes from peer {}", inbound.len(), peer.0);
//!     }
//!     fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
//! }
//!
//! let name = "shm".parse()?;
//! let (mut a, mut b) = (ShmRail::open(&name, &ShmConfig::default())?, ShmRail::open(&name, &ShmConfig::default())?);
//! let to_b = Message::open(&mut a, &b.address(), b.incarnation())?;
//! Message::open(&mut b, &a.address(), a.incarnation())?;
//! a.send(to_b, b"a head of any kind", Body::Bytes(b" and a body")).expect("an empty lane takes it");
//! while b.poll(16, &mut Print) == 0 {
//!     b.progress(Time::ZERO);
//! }
//! # Ok::<(), doorbell_fabric::error::RailError>(())
//! ```
#![deny(unsafe_code)]

pub mod config;

mod connect;
mod coop_copy;
mod data_path;
mod handshake;
mod lease;
#[allow(unsafe_code)]
mod map;
mod pending_peers;
mod pull;
mod rail;
mod ready;
mod reconnect;
mod rx;
mod stats;
#[allow(unsafe_code)]
mod sys;
mod tx;
mod wakeup;
mod wire;

#[cfg(test)]
mod tests;

pub use config::ShmConfig;
pub use rail::ShmRail;
pub use stats::ShmStats;
pub use sys::try_read;
