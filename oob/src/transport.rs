//! The interface between the core and a transport: commands in one direction, events in the other.
//!
//! ```text
//!            ┌────────────────────── core: node::Node (no socket, clock or thread) ─────────────────────┐
//!            │ messages, routes, which (transport, module) a peer is reached by                         │
//!            └───┬──────────────────────────────────────────────────────────────────────────────────▲───┘
//!    Command     │  Reach  Connect  Cancel  Send  Close                                             │  Event
//!                ▼                                                                                  │
//!            ┌───┴──────────────────────────────────────────────────────────────────────────────────┴───┐
//!            │ transport, such as tcp: sockets, Noise sessions, who-are-you (connect::Meeting)          │
//!            │   module 0 = eth0          module 1 = eth1             module 2 = …                      │
//!            └──────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A **transport** carries frames (`tcp`, `rail`); a **module** is one NIC of it; a **link** is one
//! connection to one peer over one module. The core numbers transports by their position in its
//! configuration, and attempts; the transport numbers its modules and links. Their driver passes commands
//! from the node to the named transport, and [`Event`]s back. Neither side waits for an answer: any number of
//! commands and events may be in flight, and each side tolerates what was sent before the other knew better
//! (a `Send` on a link that is already lost is dropped silently: its `Lost` is on the way).
//!
//! # What a transport promises
//!
//! 1. **Modules**: [`Event::ModuleUp`] for each NIC, with all its own addresses (both families), before
//!    anything happens over it, and again when they change; [`Event::ModuleDown`] when it goes. The core
//!    makes its contact of these. The links of a module that goes down are lost: each is reported by its own
//!    [`Event::Lost`], before or after.
//! 2. **Paths**: [`Command::Reach`] is answered by one [`Event::Paths`]: the modules by which the peer's
//!    addresses can be reached (route look-up, masks, families), the best first. When routes change, the
//!    transport sends `Paths` again by itself, for all peers that were requested since.
//! 3. **Attempts**: each [`Command::Connect`] ends with exactly one [`Event::Connected`] that names the
//!    attempt, or one [`Event::Refused`], by its deadline at the latest. At `Connected` the handshake is
//!    complete and the peer's identity is proved. An attempt that gives way to the peer's own connection ends
//!    with [`Refusal::Yielded`], before or after the `Connected` of that one (which names no attempt); it
//!    does not count as a failure.
//! 4. **Links**: a link's number is never reused. A link delivers whole frames, unchanged, in the order of
//!    the `Send`s, each at most once, and none after one that was left out. Which frames the peer has
//!    received before a loss is not known, and need not be.
//! 5. **Sent**: [`Event::Sent`] reports how many frames of a link, counted from its beginning, have
//!    completely left the transport (for the kernel or the device). A partly written frame does not count.
//!    The core gives a link at most [`Config::link_window`](crate::config::Config::link_window) bytes beyond
//!    that and one frame; the transport accepts that much without a limit of its own.
//! 6. **Lost**: exactly one [`Event::Lost`] for each link, ended by either side, also after
//!    [`Command::Close`]; no further event of the link follows. What was not `Sent` the core sends again,
//!    over other links.
//! 7. **Silence**: a link without traffic from the peer for the transport's keep-alive time is lost. The core
//!    has no heartbeat of its own.
//! 8. **Size**: the length of an incoming frame is checked against the configured limit *before* memory is
//!    allocated for it; a longer one ends the link.
//! 9. **Strangers** (no key, wrong job, wrong version) never become links. The transport counts and limits
//!    them.
//!
//! # What the core promises
//!
//! * A transport over which both ends have to know each other ([`mutual`](crate::config::Transport::mutual))
//!   gets a [`Command::Reach`] for every contact that the core learns; others, for those that it
//!   needs. The core calls a peer only after all have answered.
//! * At most one attempt for a peer, at a time, over one transport, and never one for itself.
//! * It may have several links to one peer, of several transports or modules: it uses the best, and accepts
//!   frames from all.
//! * A malformed frame is answered by [`Command::Close`] with [`Loss::Protocol`].
//! * Addresses are passed through uninterpreted.

use std::fmt;

use doorbell_fabric::time::Time;

use crate::bytes::Bytes;
pub use crate::contact::Address;
use crate::name::{Epoch, Name};
use crate::wire::Frame;

/// A transport of a node, by its position in [`Config::transports`](crate::config::Config::transports).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransportId(pub u8);

/// A module of a transport, numbered by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u16);

/// A link, numbered by its transport, which never reuses a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// An attempt to connect, numbered by the core, which never reuses a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// A command of the core to a transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Find the modules that reach the peer at these addresses. Answered by [`Event::Paths`].
    Reach {
        /// The peer to reach.
        peer: Name,
        /// All its known addresses for this transport, in place of earlier ones.
        addresses: Vec<Address>,
    },
    /// Connect to the peer over this module. Addresses are tried in order, each as often as the transport
    /// sees fit.
    Connect {
        /// The attempt, which the answer names.
        attempt: Attempt,
        /// The peer to expect there.
        peer: Name,
        /// Its epoch; any, for [`Epoch::UNKNOWN`]. A newer one is accepted, an older one is not.
        epoch: Epoch,
        /// The module to connect over.
        module: ModuleId,
        /// The addresses, as the module's [`Path`] gave them.
        addresses: Vec<Address>,
        /// The deadline of the attempt.
        deadline: Time,
    },
    /// Cancel an attempt. It still ends with one event.
    Cancel {
        /// The attempt to cancel.
        attempt: Attempt,
    },
    /// Send a frame: its header, followed by its body.
    Send {
        /// The link to send over.
        link: LinkId,
        /// The frame to send.
        frame: Frame,
    },
    /// Close the link, once everything queued on it has been written or cannot be.
    Close {
        /// The link to close.
        link: LinkId,
        /// The reason, for the log and, if the transport can send it, for the peer.
        why: Loss,
    },
}

/// An event of a transport for the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A module is up, or has new addresses.
    ModuleUp {
        /// The number of the module.
        module: ModuleId,
        /// Its own addresses for publication: all that it listens on.
        addresses: Vec<Address>,
    },
    /// A module is down. It may come back, with another `ModuleUp`.
    ModuleDown {
        /// The number of the module.
        module: ModuleId,
    },
    /// The modules by which a peer can be reached, the best first; empty if there is none.
    Paths {
        /// The peer that was requested.
        peer: Name,
        /// The paths to the peer.
        paths: Vec<Path>,
    },
    /// A link is up and authenticated.
    Connected {
        /// The number of the link.
        link: LinkId,
        /// The module it goes over.
        module: ModuleId,
        /// The process at the other end.
        peer: Name,
        /// The epoch of that process.
        epoch: Epoch,
        /// The attempt that this ends; `None` if the peer has connected to us.
        attempt: Option<Attempt>,
    },
    /// An attempt has failed.
    Refused {
        /// The attempt that failed.
        attempt: Attempt,
        /// The reason of the failure.
        why: Refusal,
    },
    /// Frames of a link have left the transport.
    Sent {
        /// The link that sent them.
        link: LinkId,
        /// Their number, counted from the beginning of the link.
        frames: u64,
    },
    /// A frame was received: header and body in one piece.
    Received {
        /// The link it came over.
        link: LinkId,
        /// The whole frame.
        frame: Bytes,
    },
    /// A link has ended.
    Lost {
        /// The link that ended.
        link: LinkId,
        /// The reason of its end.
        why: Loss,
    },
}

/// A path to a peer within a transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The module of the path.
    pub module: ModuleId,
    /// The addresses of the peer that this module reaches, the best first.
    pub addresses: Vec<Address>,
}

/// Why an attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// Nothing listens at any of the addresses.
    NotListening,
    /// There is no route to any of the addresses, or the module is down.
    NoRoute,
    /// The deadline has passed.
    TimedOut,
    /// The connection broke during the handshake.
    Broken,
    /// The other side has a different key.
    WrongKey,
    /// The other side uses another version.
    WrongVersion,
    /// Another process answers there.
    WrongName,
    /// The peer answers in an older epoch than the known one.
    OldEpoch,
    /// The peer knows a later epoch of ours: we are out of date.
    OutOfDate,
    /// The peer's own connection was kept instead.
    Yielded,
    /// The attempt was cancelled.
    Cancelled,
}

impl Refusal {
    /// Whether trying again soon may help. No failure is final, since an address may change its owner; but a
    /// lasting failure is retried no sooner than after the longest back-off.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Self::NotListening
                | Self::NoRoute
                | Self::TimedOut
                | Self::Broken
                | Self::Yielded
                | Self::Cancelled
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NotListening => "nothing listens there: is the process alive, and the port correct?",
            Self::NoRoute => "there is no route to it: check `ip route get` and the link",
            Self::TimedOut => "no answer in time: a firewall drops it, or the host is down",
            Self::Broken => "the connection broke in the handshake: check the other side's output",
            Self::WrongKey => "the other side has a different key: give both the same job key",
            Self::WrongVersion => "the other side speaks another version: use the same doorbell on both",
            Self::WrongName => "another process answers there: the contact is out of date",
            Self::OldEpoch => "an earlier incarnation of it answers there: end that process",
            Self::OutOfDate => "this process has been replaced by a newer one: end it",
            Self::Yielded => "the other side's own connection was kept",
            Self::Cancelled => "the attempt was cancelled",
        })
    }
}

/// Why a link has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Loss {
    /// The peer closed it regularly.
    Closed,
    /// It broke: reset, or ended without being closed.
    Broken,
    /// Nothing came for the keep-alive time.
    Silent,
    /// Its module is down.
    ModuleDown,
    /// A newer link to the same peer has replaced it.
    Replaced,
    /// The peer violated the protocol.
    Protocol,
    /// The peer has restarted.
    Restarted,
    /// This node ends.
    Finished,
}

impl fmt::Display for Loss {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Closed => "the other side closed it",
            Self::Broken => "it broke: check the other side's output and the link",
            Self::Silent => "nothing came for the keep-alive time: the host or the path to it is down",
            Self::ModuleDown => "its network interface is down",
            Self::Replaced => "a newer one replaced it",
            Self::Protocol => "invalid data was received: use the same doorbell on both sides",
            Self::Restarted => "the other side has restarted",
            Self::Finished => "this side ends",
        })
    }
}
