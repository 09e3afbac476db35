//! `shm`: messages between the processes of one host, through sealed shared memory.
//!
//! ```text
//!   sender                                                        receiver
//!   ┌───────────────┐  lane object: leases, cells, data   ┌───────────────┐
//!   │ writes        │ ───────────────────────────────────►│ maps read-only│
//!   │ maps read-only│◄─────────────────────────────────── │ writes        │  control: consumed, attention
//!   │ sets bits     │ ───────────────────────────────────►│ clears bits   │  ready: lanes with messages
//!   └───────────────┘                                     └───────────────┘
//! ```
//!
//! There is one lane per direction, created when its first message is sent: the sender passes the lane object
//! over a Unix socket (`connect`), the receiver answers with its control and ready objects. The socket stays
//! open: a byte over it wakes a sleeping receiver, and the kernel closes it when either process ends, however
//! it ends. There are no files and no names in `/dev/shm`; when both processes are gone, so is everything.
//!
//! The receiver pulls messages for which that takes less than two copies (`pace`), with `process_vm_readv`,
//! after the handshake has proved that it can (by reading a nonce). Memory of a region is mapped instead, if
//! `/proc/<pid>/fd` allows the object to be opened and it is read often enough for the map to pay, and copied
//! without the kernel. The sender exposes a buffer by a *lease*: a random key in a table that only it can
//! write. The receiver checks the lease before and after reading: if the sender withdrew it in between, the
//! bytes are not used. A waiting sender copies half of the message, or of several every other one
//! (`process_vm_writev`, see `coop_copy`): two cores copy twice as fast as one. Pulling makes the ranks of
//! one user one trust domain (each could read the others' memory anyway); with `cma = false` long messages
//! are copied through the lane in fragments.
//!
//! | file | job |
//! |---|---|
//! | [`config`] | sizes and switches |
//! | `rail` | the rail: its parts and the `Rail` contract |
//! | `data_path` | the `Message` contract, and the hot loop |
//! | `handshake` | socket events: handshakes, wake-ups, ends of peers |
//! | `pending_peers` | hellos of peers that are not open yet |
//! | `reconnect` | giving a connection up, and reconnecting to a live process |
//! | `forget` | closing everything to one peer, and whose number is used again |
//! | `shortage` | descriptors that are lacking for a moment |
//! | `tx`, `rx` | one direction each |
//! | `growth` | the memory of a lane, which grows with its use |
//! | `connect`, `wire` | handshake sockets, and the two handshake messages |
//! | `one_socket` | one socket for both directions of a pair |
//! | `ready`, `wakeup` | ready bits; waking a sleeping process |
//! | `pace` | from which length on messages are read, by what copies take |
//! | `lease`, `pull` | one-sided reads |
//! | `rooms` | one-sided writes into memory of a region that a peer is let write |
//! | `coop_copy` | both ends copying one long read together |
//! | `stats` | counters |
//! | `map`, `sys` | all unsafe code: views of mapped memory; system calls on other processes' memory |
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
//! let mut a = ShmRail::open(&name, &ShmConfig::default())?;
//! let mut b = ShmRail::open(&name, &ShmConfig::default())?;
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
mod forget;
mod growth;
mod handshake;
mod keys;
mod lease;
#[allow(unsafe_code)]
mod map;
mod one_socket;
mod pace;
mod pending_peers;
mod pull;
mod rail;
mod ready;
mod reconnect;
mod rooms;
mod rx;
mod shortage;
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
