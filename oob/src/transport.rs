//! The door between the control plane's core and a transport: commands one way, events the other, and nothing else.
//!
//! ```text
//!              ┌────────────────────── core: node::Node (no socket, clock or thread) ─────────────────────┐
//!              │ messages, routes, which (transport, module) a peer is reached by                         │
//!              └───┬──────────────────────────────────────────────────────────────────────────────────▲───┘
//!      Command     │  Reach  Connect  Cancel  Send  Close                                             │ Event
//!                  ▼                                                                                  │
//!              ┌───┴──────────────────────────────────────────────────────────────────────────────────┴───┐
//!              │ transport, such as tcp: sockets, Noise sessions, who-are-you (connect::Meeting)          │
//!              │   module 0 = eth0          module 1 = eth1             module 2 = …                      │
//!              └──────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A **transport** is a way of carrying frames (`tcp`, `rail`); a **module** is one NIC of it; a **link** is one
//! connection to one peer over one module. The core numbers transports by their place in its configuration, and
//! attempts; the transport numbers its modules and links. Whoever runs both takes
//! a command from the node to the transport that it names, and hands each
//! [`Event`] back. Neither side waits for an answer: any number of
//! commands and events may be under way, and each side copes with what was said before it knew better (a `Send` on a
//! link that is lost already is dropped without a word: its `Lost` is on the way).
//!
//! # What a transport promises
//!
//! 1. **Modules**: [`Event::ModuleUp`] for each NIC, with all its own addresses (both families), before anything happens
//!    over it, and again when they change; [`Event::ModuleDown`] when it goes. The core makes its contact of these. The
//!    links of a module that goes down are lost: each is told by its own [`Event::Lost`], before or after.
//! 2. **Ways**: [`Command::Reach`] is answered by one [`Event::Ways`]: by which modules the peer's addresses can be
//!    reached (route look-up, masks, families), the best first. When routes change, the transport says `Ways` again by
//!    itself, for all peers that it was asked about since.
//! 3. **Attempts**: each [`Command::Connect`] ends with exactly one [`Event::Connected`] that names the attempt, or one
//!    [`Event::Refused`], by its deadline at the latest. The handshake is over and the peer is who it says when
//!    `Connected` is told. An attempt that gives way to the peer's own connection ends with [`Refusal::Yielded`], before
//!    or after the `Connected` of that one (which names no attempt); that counts as no failure.
//! 4. **Links** are numbered once and for all: no number comes back. A link delivers whole frames, unchanged, in the
//!    order of the `Send`s, each at most once, and none after one that was left out. Which frames the peer has got
//!    before a loss is not known, and need not be.
//! 5. **Sent**: [`Event::Sent`] says how many frames of a link, counted from its beginning, are wholly out of the
//!    transport's hands (given to the kernel or the device). A frame of which a part was written is not. The core gives
//!    a link no more than [`Config::link_window`](crate::config::Config::link_window) bytes beyond that and one frame; the
//!    transport takes so much without a limit of its own.
//! 6. **Lost**: exactly one [`Event::Lost`] for each link, whoever ended it, also after [`Command::Close`]; nothing of
//!    the link is told after it. What was not `Sent` the core sends again, over other links.
//! 7. **Silence**: a link over which nothing has come for the transport's keep-alive time is lost. The core has no
//!    heartbeat of its own.
//! 8. **Size**: the length of an incoming frame is checked against the configured limit *before* memory is taken for it;
//!    what is longer ends the link.
//! 9. **Strangers** (no key, wrong job, wrong version) never become links. They are the transport's to count and to
//!    limit.
//!
//! # What the core promises
//!
//! * A transport over which both ends have to know of each other ([`mutual`](crate::config::Transport::mutual)) is asked with
//!   [`Command::Reach`] about everybody that the core learns of; others, about those that it wants to reach. It calls nobody
//!   before all have answered.
//! * At most one attempt for a peer, at a time, over one transport, and never one for itself.
//! * It may get several links to one peer, of several transports or modules: it uses the best, and takes frames from all.
//! * A frame that makes no sense is answered by [`Command::Close`] with [`Loss::Protocol`].
//! * Addresses are handed through unread.

use std::fmt;

use doorbell_fabric::time::Time;

use crate::bytes::Bytes;
pub use crate::contact::Address;
use crate::name::{Epoch, Name};
use crate::wire::Frame;

/// A transport of a node: its place in [`Config::transports`](crate::config::Config::transports).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransportId(pub u8);

/// A module of a transport, numbered by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u16);

/// A link, numbered by its transport. No number comes twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// An attempt to connect, numbered by the core. No number comes twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// What the core wants of a transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// By which modules can the peer be reached at these addresses? Answered by [`Event::Ways`].
    Reach {
        /// The peer.
        peer: Name,
        /// All that is known of it for this transport; what was said before is replaced.
        addresses: Vec<Address>,
    },
    /// Connect to the peer over this module. Addresses are tried in order, each as often as the transport thinks right.
    Connect {
        /// Which attempt, to be named in the answer.
        attempt: Attempt,
        /// Whom to expect there.
        peer: Name,
        /// In which life; any, when it is [`Epoch::UNKNOWN`]. A newer one than this is welcome, an older one is not.
        epoch: Epoch,
        /// Over which module.
        module: ModuleId,
        /// Where, as the module's [`Way`] said.
        addresses: Vec<Address>,
        /// When it must be over.
        deadline: Time,
    },
    /// The attempt is not wanted any more. It still ends with one event.
    Cancel {
        /// Which.
        attempt: Attempt,
    },
    /// Send a frame: first its head, then its body.
    Send {
        /// Over which link.
        link: LinkId,
        /// What.
        frame: Frame,
    },
    /// Close the link, when what was given to it before has been written or cannot be.
    Close {
        /// Which.
        link: LinkId,
        /// Why, for the log and, where the transport can, for the peer.
        why: Loss,
    },
}

/// What a transport tells the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A module is there, or has new addresses.
    ModuleUp {
        /// Which.
        module: ModuleId,
        /// Its own addresses, as peers are to be told them: all that it listens on.
        addresses: Vec<Address>,
    },
    /// A module is gone. It may come back, which is told by another `ModuleUp`.
    ModuleDown {
        /// Which.
        module: ModuleId,
    },
    /// By which modules a peer can be reached, the best first; none, when by none.
    Ways {
        /// The peer.
        peer: Name,
        /// The ways.
        ways: Vec<Way>,
    },
    /// A link is there, authenticated.
    Connected {
        /// Its number.
        link: LinkId,
        /// Over which module.
        module: ModuleId,
        /// Who is at the other end.
        peer: Name,
        /// In which life.
        epoch: Epoch,
        /// Which attempt this ends; none, when the peer has connected to us.
        attempt: Option<Attempt>,
    },
    /// An attempt has failed.
    Refused {
        /// Which.
        attempt: Attempt,
        /// Why.
        why: Refusal,
    },
    /// So many frames of a link, counted from its beginning, are out of our hands.
    Sent {
        /// Which link.
        link: LinkId,
        /// How many.
        frames: u64,
    },
    /// A frame came, whole: head and body in one piece.
    Received {
        /// Over which link.
        link: LinkId,
        /// All of it.
        frame: Bytes,
    },
    /// A link is over.
    Lost {
        /// Which.
        link: LinkId,
        /// Why.
        why: Loss,
    },
}

/// A way to a peer within a transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Over which module.
    pub module: ModuleId,
    /// The addresses of the peer that this module reaches, the best first.
    pub addresses: Vec<Address>,
}

/// Why an attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// Nobody listens at any of the addresses.
    NotListening,
    /// No route to any of the addresses, or the module is down.
    NoRoute,
    /// The deadline came first.
    TimedOut,
    /// The connection was there, and broke during the handshake.
    Broken,
    /// The other side has another key.
    WrongKey,
    /// The other side speaks another version.
    WrongVersion,
    /// Somebody else answers there.
    WrongName,
    /// The peer answers in an older life than we know of.
    OldEpoch,
    /// The peer knows of a later life of ours: we are out of date.
    OutOfDate,
    /// The peer's own connection was kept instead.
    Yielded,
    /// It was cancelled.
    Cancelled,
}

impl Refusal {
    /// Whether trying again later may help. Nothing here is for ever: an address may be somebody else's today and the
    /// peer's tomorrow; but what is not transient is tried again no sooner than the longest back-off.
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
            Self::NotListening => "nobody listens there: is the process alive, and the port right?",
            Self::NoRoute => "there is no route to it: look at `ip route get` and at the link",
            Self::TimedOut => "no answer in time: a firewall drops it, or the host is down",
            Self::Broken => "the connection broke in the handshake: look at the other side's output",
            Self::WrongKey => "the other side has another key: give both the same job key",
            Self::WrongVersion => "the other side speaks another version: use the same doorbell on both",
            Self::WrongName => "somebody else answers there: the contact is out of date",
            Self::OldEpoch => "an earlier life of it answers there: end that process",
            Self::OutOfDate => "this process has a successor already: end it",
            Self::Yielded => "the other side's own connection was kept",
            Self::Cancelled => "it was not wanted any more",
        })
    }
}

/// Why a link is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Loss {
    /// The peer closed it in good order.
    Closed,
    /// It broke: reset, or ended without a word.
    Broken,
    /// Nothing came for the keep-alive time.
    Silent,
    /// Its module is down.
    ModuleDown,
    /// A newer link to the same peer took its place.
    Replaced,
    /// What came made no sense.
    Protocol,
    /// The peer has begun a new life.
    Restarted,
    /// We end.
    Finished,
}

impl fmt::Display for Loss {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Closed => "the other side closed it",
            Self::Broken => "it broke: look at the other side's output and at the link",
            Self::Silent => "nothing came for the keep-alive time: the host or the way to it is down",
            Self::ModuleDown => "its network interface is down",
            Self::Replaced => "a newer one took its place",
            Self::Protocol => "what came made no sense: use the same doorbell on both sides",
            Self::Restarted => "the other side has begun a new life",
            Self::Finished => "this side ends",
        })
    }
}
