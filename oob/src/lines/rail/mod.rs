//! The transport `rail`: the control plane over rails like those of the ranks' messages, with a module for
//! each rail.
//!
//! ```text
//!        Command │                                                                       ▲ Event
//!  ┌─────────────▼───────────────────────────────────────────────────────────────────────┴──────────────┐
//!  │ Rails            the connections of all kinds of lines, paths                   one, no waiting    │
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
//! * [`Endpoint`] is the interface of a rail: any [`Message`](doorbell_fabric::message::Message) has it
//!   ([`endpoint()`]). The rails are opened on the progress thread, by functions ([`Open`]), and belong to it
//!   alone; they are not the rails of the ranks' messages.
//! * [`address`] is the form of a rail in a contact: `udp:10.0.0.1:56081@1f…`, with the incarnation of the
//!   rail.
//! * [`wire`] is the header of a message on the rail: the line, and the position in it.
//! * `line` is a connection over a rail: sans I/O, as the session and the meeting are.
//!
//! # Once and in order
//! A rail delivers each message once, in any order, or reports that the peer is down. A line numbers its
//! segments; the receiver reorders them, and passes the bytes to the session. Since a sender never has more
//! than [`wire::WINDOW`] segments in flight (beyond the rail's watermark), no more than these wait to be
//! reordered, and before the end of the handshake no more than 16 KiB of them. A frame longer than a message
//! is cut, and one segment may contain many short frames. What a rail refuses because it is full waits in the
//! line, and with it the core's window.
//!
//! A frame is *sent* ([`Event::Sent`](crate::transport::Event::Sent)) when the peer has taken it.
//!
//! # A rail that fails, and comes back
//! A peer that is down over a rail loses its links and its paths: the core uses other transports. It is
//! called again and again ([`Settings::revive`], doubled up to [`Settings::revive_max`]); when it is up, its
//! path is reported again, and the core returns to it. A rail whose link is down is a module that is down,
//! until the link is back. A peer that does not answer for [`Settings::silence`] is given up in the same way.
//!
//! # Both ends open
//! Over most rails, messages from a peer that was not opened are dropped. So both ends have to know each
//! other: the core passes every contact that it learns to this transport
//! ([`mutual`](crate::config::Transport::mutual)), and opening a peer sends nothing. Children know their
//! parents before they call, and send them their own contact; other ranks [look
//! up](crate::plane::Oob::look_up) each other, through any transport that reaches both.
//!
//! # Trust
//! Each link has the session of [`session`](crate::session), over every kind of rail: authenticated by the
//! job's key, and encrypted. Its purpose differs from that of `tcp`, so that recordings of one are useless
//! for the other. Without a key, only rails within the host are used; for shm that means processes of this
//! user, as the kernel confirms. The headers of segments are not authenticated, like those of TCP: an
//! attacker on the path can end a link, but change nothing.
//!
//! reference: oob, sections 2 (components beside each other), 4 and 9.

pub mod address;
mod arrivals;
mod connections;
mod counters;
mod endpoint;
mod line;
mod module;
mod paths;
mod peer;
mod send;
mod settings;
#[cfg(test)]
mod tests;
mod transport;
mod wake;
pub mod wire;

pub use counters::Counters;
pub use endpoint::{Endpoint, Open, endpoint};
pub use settings::Settings;
pub use transport::Rails;
