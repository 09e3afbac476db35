//! Reliable messages over unreliable datagrams: the protocol of the usNIC BTL over any rail that carries
//! frames.
//!
//! [`Btl`] takes a [`Datagram`](doorbell_fabric::datagram::Datagram), whose frames may be lost, duplicated,
//! reordered and corrupted, and is a [`Message`](doorbell_fabric::message::Message): each message once and
//! whole, with a watermark, one-sided operations, back-pressure, and events about peers that are gone. The
//! time is an argument; there is no clock, socket, thread or file in here, so that a simulator runs a whole
//! job repeatably.
//!
//! ```text
//!   send ─► segments ─► window ─► priority / data channel ─► driver   (send, send_window, stream, transmit)
//!              ▲ lost: again        ▲ one room of the hotel per peer  (ack_processing, timers, timeouts)
//!   poll ◄─ reassembly ◄─ once each, in any order ◄─ the only parse ◄─ driver (receive, recv_window, wire)
//!                                    └─► put, get, atomic: answered here      (serve, stream)
//! ```
//!
//! * **Segments** are frames that are kept until they are acknowledged, in a pool that all peers share; a
//!   peer that is idle takes a few hundred bytes.
//! * **Acknowledgements** ride on segments, or go alone after [`BtlConfig::ack_delay`]; with a gap, at once,
//!   and with a bitmap of everything that came behind it, so that one loss costs one packet.
//! * **Loss** is what later transmissions of the same channel have overtaken; the two channels overtake each
//!   other all the time. Where nothing answers, time-outs follow the measured round trips and back off.
//! * **Congestion** closes the window when round trips become long or losses many, not for a loss now and
//!   then.
//! * **Before use** a peer is probed with two sizes in both directions, and again when it becomes suspect: a
//!   path that drops full frames is named ([`Diagnosis`]).
//! * **Identity**: every frame carries a connection id that only the two ends can derive from the job's key,
//!   their addresses and their incarnations. Frames of strangers, of other jobs and of former lives are
//!   counted and dropped. An incoming connection that is not open here is reported to the owner
//!   ([`Message::stranger`](doorbell_fabric::message::Message::stranger)), and loses nothing if it is opened:
//!   the peer keeps probing for [`BtlConfig::give_up`].
//! * **First contact** of processes that share no key yet goes by hellos: single frames under a number that
//!   their receiver has published, with contents that the layer above seals ([`Btl::send_hello`]).
//! * **A peer that is down comes back** by calls: both ends begin a new life of their link, with other ids,
//!   numbers and MAC keys, and check it with two sizes before they use it.
//!
//! # Example
//!
//! ```
//! use doorbell_btl::{Btl, BtlConfig, JobKey};
//! use doorbell_fabric::message::{Arrivals, Body, Inbound, Message, OpError, OpId, PeerIndex};
//! use doorbell_fabric::rail::Rail;
//! use doorbell_sim::{Faults, SimConfig, SimNet};
//!
//! struct Count(usize);
//! impl Arrivals for Count {
//!     fn message(&mut self, _: PeerIndex, message: Inbound<'_>) {
//!         assert_eq!(message.read(0), Some(*b"through the rain"));
//!         self.0 += 1;
//!     }
//!     fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
//! }
//!
//! // A network that loses every tenth frame.
//! let faults = Faults { loss: 0.1, ..Faults::NONE };
//! let net = SimNet::new(7, SimConfig { faults, ..SimConfig::default() });
//! let mut ends = [net.attach_datagram(), net.attach_datagram()].map(|driver| {
//!     let life = driver.incarnation();
//!     let mut btl = Btl::new(driver, BtlConfig::default(), life).unwrap();
//!     btl.set_key(JobKey::from_bytes([7; 32])); // of the job: 32 random bytes
//!     btl
//! });
//! let (there, life) = (ends[1].address(), ends[1].incarnation());
//! let to = ends[0].open(&there, life)?;
//! let (back, life) = (ends[0].address(), ends[0].incarnation());
//! ends[1].open(&back, life)?;
//!
//! for _ in 0..100 {
//!     ends[0].send(to, b"through ", Body::Bytes(b"the rain")).unwrap();
//! }
//! ends[0].flush();
//! let mut count = Count(0);
//! while count.0 < 100 {
//!     let wake = ends.iter().filter_map(|end| end.next_deadline()).min();
//!     net.advance_to(wake.expect("something is under way"));
//!     for end in &mut ends {
//!         end.progress(net.now());
//!         end.poll(64, &mut count);
//!     }
//! }
//! assert_eq!(count.0, 100);
//! assert!(ends[0].counters().resends > 0);
//! # Ok::<(), doorbell_fabric::error::RailError>(())
//! ```
//!
//! Sources: reference: vic, section 6 (the usNIC BTL), and bfo, section 13; RFC 6298, 2018 and 8985 for what
//! is better than there: time-outs by round-trip times, selective acknowledgement, loss by later
//! transmissions.
#![forbid(unsafe_code)]

mod ack_processing;
mod ack_schedule;
mod batching;
mod btl;
mod clock;
mod config;
mod congestion;
mod connectivity;
mod core;
mod counters;
mod departure;
mod error;
mod framing;
mod hellos;
mod key;
mod liveness;
mod message;
mod onesided;
mod peer;
mod peer_keys;
mod peer_queue;
mod peers;
mod pool;
mod pooled_list;
mod rail;
mod reassembly;
mod receive;
mod reconnect;
mod record;
mod recv_window;
mod report;
mod resends;
mod rtt;
mod run;
mod send;
mod send_window;
mod seq;
mod serve;
mod strangers;
mod stream;
mod teardown;
mod timeouts;
mod timers;
mod together;
mod transmit;
pub mod wire;

pub use crate::btl::Btl;
pub use crate::config::BtlConfig;
pub use crate::connectivity::{Diagnosis, Notice, Why};
pub use crate::counters::{Counters, Drop as Dropped};
pub use crate::error::BtlError;
pub use crate::key::JobKey;
pub use crate::record::Event;
pub use crate::report::InUse;
pub use crate::seq::Seq;
