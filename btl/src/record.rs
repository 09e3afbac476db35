//! What the flight recorder of a BTL keeps: what went wrong, what was tried, what was told. Nothing of it happens while
//! nothing is lost, so the paths that must be fast never come here.

use std::fmt;

use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::recorder;
use doorbell_fabric::time::Time;

use crate::connectivity::{Notice, Why};
use crate::core::Core;
use crate::counters::Drop;

/// A notable event of a BTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A life of the peer was made known.
    Opened,
    /// Probes of two sizes began to go out.
    Probing(Why),
    /// The check's result, or a change of suspicion.
    Noticed(Notice),
    /// Nothing was acknowledged in time: the oldest segment goes again.
    TimedOut {
        /// How long was waited (ns).
        after: u64,
        /// Time-outs without an answer between them.
        in_a_row: u32,
    },
    /// Segments go again because later ones have arrived.
    Overtaken {
        /// How many.
        segments: u32,
    },
    /// The oldest segment goes again because the peer said a second time that it is missing.
    Missed,
    /// Segments went again in vain: the network reorders.
    Vain {
        /// How many.
        segments: u32,
    },
    /// Fewer segments may be under way.
    Shrunk {
        /// Before.
        from: u32,
        /// Now.
        to: u32,
    },
    /// It acknowledged what was never sent.
    BadAck,
    /// A frame of it was dropped.
    Dropped(Drop),
    /// It was called, to begin anew.
    Called {
        /// Our life of the link.
        ours: u32,
        /// The peer's, as far as we know.
        theirs: u32,
    },
    /// It has called in a life that was not heard of before.
    CalledBy {
        /// Its life of the link.
        life: u32,
        /// Ours, as far as it knows.
        yours: u32,
    },
    /// A new connection began, to be checked.
    LifeBegun {
        /// Our life of the link.
        ours: u32,
        /// The peer's.
        theirs: u32,
    },
    /// The driver has heard something of its place.
    Hint(EventKind),
    /// What the layer above was told.
    Told(EventKind),
}

impl recorder::Event for Event {
    fn absorb(&mut self, later: &Self) -> bool {
        match (self, later) {
            (Self::TimedOut { in_a_row, .. }, Self::TimedOut { in_a_row: now, .. })
                if *now > *in_a_row || *now + *in_a_row == 2 =>
            {
                *in_a_row = *now;
            }
            (Self::Overtaken { segments }, Self::Overtaken { segments: more })
            | (Self::Vain { segments }, Self::Vain { segments: more }) => {
                *segments = segments.saturating_add(*more);
            }
            (Self::Shrunk { to, .. }, Self::Shrunk { to: now, .. }) => *to = *now,
            (Self::Dropped(one), Self::Dropped(other)) => return one == other,
            (Self::Hint(one), Self::Hint(other)) => return one == other,
            (
                Self::Called { ours, theirs },
                Self::Called {
                    ours: now,
                    theirs: heard,
                },
            ) => return (*ours, *theirs) == (*now, *heard),
            (Self::Missed, Self::Missed) | (Self::BadAck, Self::BadAck) => {}
            _ => return false,
        }
        true
    }
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened => out.write_str("opened"),
            Self::Probing(why) => write!(out, "probed with two sizes, {}", why.as_str()),
            Self::Noticed(notice) => out.write_str(notice.as_str()),
            Self::TimedOut { after, in_a_row } => {
                let ms = *after as f64 / 1e6;
                write!(
                    out,
                    "time-out: nothing acknowledged for {ms:.1} ms, {in_a_row} in a row"
                )
            }
            Self::Overtaken { segments } => {
                write!(out, "{segments} segments sent again: later ones had arrived")
            }
            Self::Missed => out.write_str("a segment sent again: the peer said twice that it is missing"),
            Self::Vain { segments } => write!(out, "{segments} segments sent again in vain"),
            Self::Shrunk { from, to } => write!(out, "window from {from} to {to} segments"),
            Self::BadAck => out.write_str("dropped an acknowledgement of what was never sent"),
            Self::Dropped(why) => write!(out, "dropped a frame: {}", why.as_str()),
            Self::Called { ours, theirs } => write!(out, "called, in our life {ours}; its was {theirs}"),
            Self::CalledBy { life, yours } => write!(out, "it calls, in its life {life}; ours was {yours}"),
            Self::LifeBegun { ours, theirs } => {
                write!(out, "a new connection, of our life {ours} and its life {theirs}")
            }
            Self::Hint(kind) => write!(out, "the driver hears: {}", told(*kind)),
            Self::Told(kind) => out.write_str(told(*kind)),
        }
    }
}

fn told(kind: EventKind) -> &'static str {
    match kind {
        EventKind::PeerUp => "up: it answers",
        EventKind::PeerDown(DownReason::Closed) => "down: it said goodbye",
        EventKind::PeerDown(DownReason::Died) => "down: its process has ended",
        EventKind::PeerDown(DownReason::Hostile) => "down: it broke the rules",
        EventKind::PeerDown(DownReason::Silent) => "down: it did not answer",
        EventKind::PeerDown(DownReason::Abandoned) => "down: the way was given up",
        EventKind::PeerSuspect => "suspect: it owes answers",
        EventKind::PeerRecovered => "recovered: it answers again",
        EventKind::PeerDown(DownReason::Control) => "down: the control plane has lost it",
        EventKind::PeerDown(DownReason::Resources) => "down: no memory or descriptors to talk to it",
        EventKind::LinkUp => "link up",
        EventKind::LinkDown => "link down",
        EventKind::DeviceGone => "device gone",
    }
}

impl Core {
    /// Records an event about a peer, or about the rail.
    #[cold]
    pub(crate) fn record(&mut self, peer: impl Into<Option<PeerIndex>>, event: Event) {
        self.recorder
            .record(Time::from_nanos(self.now), peer.into(), event);
    }

    /// Counts a dropped frame, and keeps why. Before its connection was found, nobody knows whose it was; afterwards it
    /// is the one that was looked up last.
    #[cold]
    pub(crate) fn drop_frame(&mut self, why: Drop) {
        self.counters.dropped(why);
        let peer = match why {
            Drop::Short | Drop::Version | Drop::Kind | Drop::Unknown => None,
            _ => self.peers.last_found(),
        };
        self.record(peer, Event::Dropped(why));
    }
}
