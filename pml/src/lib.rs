//! Order, tag matching, eager and rendezvous protocols over any number of rails.
//!
//! ```text
//!   send ─► eager | launch ─► rail                      rail ─► arrivals ─► order ─► matching ─► receive
//!              (announced) ◄── ACK, PUT, FIN ── rendezvous ── ACK, PUT, FIN ──► (long ones)
//! ```
//!
//! [`Pml`] is generic over the rail ([`doorbell_fabric::message::Message`]) and does no input or output of
//! its own: no socket, clock, thread or file. One thread owns it. Messages of one sender match in the order
//! in which they were sent, whatever the rails do; each is delivered once; a receive gets the earliest
//! message that matches, a message the earliest receive.
//!
//! | file | job |
//! |---|---|
//! | `eager`, `launch` | sends: the fast path; the choice of a protocol |
//! | `arrivals`, `order`, `receive` | arrivals: parsed, put in order, matched |
//! | `posting`, `blocking_recv`, `probe`, `ending` | receives, those that wait in the call, probes, the end of requests |
//! | `rendezvous`, `restart` | long messages; how both ends begin again over another path |
//! | `rma` | puts, gets and atomics on windows, as messages |
//! | `credit` | back-pressure |
//! | `paths` | a peer over each of its rails: which carries what; states and probes are [`doorbell_paths`]'s |
//! | `rails`, `resend`, `fail` | the rails; what one gives back, sent over another; peers that are lost |
//! | `local` | messages to ourselves |
//! | `diagnostics`, `leak_stats` | what each request waits for; what is taken |
//! | `lazy_connect` | peers that are connected when they are needed |
//! | `members` | peers that join and leave |
//! | `senders` | the endpoints of senders |
//! | `immediate` | immediate data of messages |
//! | `checksum` | whether what arrived is what was sent |
//! | `core` | the state, as a list of parts that keep their own fields: |
//! | `hot`, `peer`, `backlog`, `worklist` | … of peers |
//! | `request`, `unexpected`, `operations` | … of requests and messages |
//! | `reports`, `withdrawals`, `clock`, `pool` | … of all |
//! | `wire`, `fsm`, `intervals`, `convertor`, `by_rank` | headers, state tables, ranges, layouts, tables |
//!
//! ```
//! use doorbell_fabric::memory::MutLoan;
//! use doorbell_pml::{Pml, PmlConfig, Rank, Sent, Source};
//! # use doorbell_fabric::message::Message;
//! # fn with_rails_of_some_kind<M: Message>() -> Result<(), doorbell_pml::PmlError> {
//! let mut pml: Pml<M> = Pml::new(PmlConfig::new(Rank(0), 1, 0x5eed))?;
//! let room = MutLoan::of_static(vec![0; 16].leak());
//! let receive = pml.recv_loan(Source::Any, 0, 7, 0, room)?;
//! // To ourselves: no rail is needed.
//! pml.inject(Rank(0), 0, 7, b"hello")?;
//! let status = pml.test(receive).expect("it has arrived")?;
//! assert_eq!((status.source, status.length), (Rank(0), 5));
//! assert_eq!(room.as_shared().take(5).to_vec(), b"hello");
//! # Ok(())
//! # }
//! # with_rails_of_some_kind::<doorbell_sim::SimRail>().unwrap();
//! ```
//!
//! reference: bfo, sections 2 to 5 and 8 to 11.
#![forbid(unsafe_code)]

mod args;
mod arrivals;
mod backlog;
mod blocking_recv;
mod by_rank;
mod checksum;
mod clock;
mod closed;
mod config;
mod convertor;
mod core;
mod counters;
mod credit;
mod diagnostics;
mod eager;
mod ending;
mod error;
mod fail;
mod fsm;
mod hand_over;
mod hot;
mod immediate;
mod in_place;
mod intervals;
mod launch;
mod lazy_connect;
mod leak_stats;
mod local;
mod members;
mod operations;
mod order;
mod paths;
mod peer;
mod pml;
mod pool;
mod posting;
mod probe;
mod rails;
mod rank;
mod receive;
mod rendezvous;
mod reports;
mod request;
mod resend;
mod restart;
mod rma;
mod senders;
mod unexpected;
mod wire;
mod withdrawals;
mod worklist;

pub use args::{
    Aborted, Claimed, Delivery, Envelope, LostSends, MessageId, MultiArgs, Payload, RecvArgs, SendArgs,
    SendMode, Sent, Status, Strided, Target,
};
pub use config::{PmlConfig, Protocol, Resume};
pub use counters::{Counters, Drops};
pub use diagnostics::{Explanation, NoPath, PathReport, PeerReport, Waiting};
pub use doorbell_paths::PathState;
pub use eager::AtOnce;
pub use error::{LostReason, PmlError};
pub use leak_stats::InUse;
pub use pml::Pml;
pub use rails::RailId;
pub use rank::{Rank, Source};
pub use request::RequestId;
pub use rma::args::{
    ATOMIC_MOST, Access, AtomicArgs, GetArgs, Notice, OperationError, PIECES_MOST, PutArgs, RemotePiece,
    RemotePieces, WindowAccess, WindowArgs, WindowCounts, WindowMarks, WindowMemory,
};
