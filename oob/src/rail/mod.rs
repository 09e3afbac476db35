//! The transport `rail`: the control plane over rails, as the ranks' messages go. A module for each rail.
//!
//! ```text
//!        Command │                                                                       ▲ Event
//!  ┌─────────────▼───────────────────────────────────────────────────────────────────────┴──────────────┐
//!  │ carrier::Rails   who-are-you (connect::Meeting), links, ways, counters          one, no waiting    │
//!  │    line  line  line      a Noise session each: bytes in order, frames, how many the peer has       │
//!  └─────┬───────────────────────────┬──────────────────────────────────────────────────────▲───────────┘
//!        │ pieces, numbered          │                                                      │ pieces
//!  ┌─────▼───────────┐        ┌──────▼──────────┐                                 ┌─────────┴───────────┐
//!  │ module 0: shm   │        │ module 1: udp:  │   at most 64 pieces to a peer   │ put in order, joined│
//!  │ Endpoint        │        │ eth0, Endpoint  │   above its watermark           │ (the same, opposite)│
//!  └─────────────────┘        └─────────────────┘                                 └─────────────────────┘
//!   wake: the rail's descriptor, in the thread's epoll; or a timer; or every turn of a thread that spins
//! ```
//!
//! * [`Endpoint`] is what is asked of a rail: any [`Message`](doorbell_fabric::message::Message) is one ([`endpoint`]). The
//!   rails are opened on the progress thread, by functions ([`Open`]), and belong to it alone: they are not those over
//!   which the ranks' messages go.
//! * [`address`] is how a rail stands in a contact: `udp:10.0.0.1:56081@1f…`, with the life of the rail.
//! * [`wire`] is the head of a message on the rail: which line, and which place in it.
//! * `line` is a connection: it needs no socket, as the session and the meeting need none.
//!
//! # Once and in order
//! A rail delivers each message once, in any order, or it says that the peer is down. A line numbers its pieces; whoever
//! receives them puts them in order, and gives the bytes to the session. Since nobody sends more than [`wire::WINDOW`]
//! pieces beyond those that the peer has taken (the rail's watermark), no more than these ever wait to be put in order, and
//! before the handshake is over no more than 16 KiB of them. A frame that is longer than a message is cut, and one piece may
//! hold many that are short. What a rail refuses because it is full waits in the line, and with it the core's window.
//!
//! A frame is *sent* ([`Event::Sent`](crate::transport::Event::Sent)) when the peer has taken it.
//!
//! # A rail that fails, and comes back
//! A peer that is down over a rail takes its links along, and its ways: the core goes over other transports. It is called
//! again and again ([`Settings::revive`], doubled up to [`Settings::revive_max`]); when it is up, its way is told again, and
//! the core comes back by itself. A rail whose link is gone is a module that is down, until the link is back. A peer of which
//! nothing was heard for [`Settings::silence`], although it was asked, is given up in the same way.
//!
//! # Both ends open
//! Over most rails somebody who was not opened is not heard. So both have to know of each other: the core tells this
//! transport of everybody it learns of ([`mutual`](crate::config::Transport::mutual)), and to open somebody costs no word.
//! Children learn of their parents before they call and tell them their own contact; others [look
//! up](crate::plane::Oob::look_up) each other, through whatever transport reaches both.
//!
//! # Trust
//! Each link has the session of [`session`](crate::session), over every kind of rail: by the job's key, encrypted. Its
//! purpose differs from that of `tcp`, so nothing that was recorded there means anything here. Without a key, only rails
//! within the host carry it; of shm that means: processes of this user, which the kernel vouches for. The heads of pieces are
//! not authenticated, as those of TCP are not: who can write on the way can end a link, and change nothing.
//!
//! reference: oob, sections 2 (components beside each other), 4 and 9.

pub mod address;
mod carrier;
mod counters;
mod endpoint;
mod connection;
mod module;
mod peer;
mod settings;
#[cfg(test)]
mod tests;
mod wake;
pub mod wire;

pub use carrier::Rails;
pub use counters::Counters;
pub use endpoint::{Endpoint, Open, endpoint};
pub use settings::Settings;
