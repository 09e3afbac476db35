//! The flight recorder of a BTL, and the queue of its events: what went wrong, what was tried, what was
//! reported. Nothing of it happens while nothing is lost, so the data path never comes here.

use std::collections::VecDeque;
use std::fmt;

use doorbell_fabric::event::{EventKind, Life, RailEvent, Scope};
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::recorder::{self, Recorder};

use crate::connectivity::{Notice, Why};
use crate::core::Core;
use crate::counters::Drop;
use crate::peer::about;

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
    /// Nothing was acknowledged in time: the oldest segment is retransmitted.
    TimedOut {
        /// How long was waited (ns).
        after: u64,
        /// Time-outs without an answer between them.
        in_a_row: u32,
    },
    /// Segments are retransmitted because later ones have arrived.
    Overtaken {
        /// How many segments there were.
        segments: u32,
    },
    /// The oldest segment is sent again: the peer repeated an acknowledgement without it.
    Missed,
    /// Retransmissions were spurious: the network reorders.
    Vain {
        /// How many segments there were.
        segments: u32,
    },
    /// Fewer segments may be under way.
    Shrunk {
        /// The window before, in segments.
        from: u32,
        /// The window now, in segments.
        to: u32,
    },
    /// It acknowledged what was never sent.
    BadAck,
    /// A frame of it was dropped.
    Dropped(Drop),
    /// It was called, to reconnect.
    Called {
        /// Our life of the link.
        ours: u32,
        /// The peer's, as far as we know.
        theirs: u32,
    },
    /// It has called in a new life.
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
        /// The peer's life of the link.
        theirs: u32,
    },
    /// The driver reported something about its address.
    Hint(EventKind),
    /// An event that was reported to the layer above.
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
            Self::Missed => out.write_str("a segment sent again: the peer reported it missing twice"),
            Self::Vain { segments } => write!(out, "{segments} segments sent again in vain"),
            Self::Shrunk { from, to } => write!(out, "window from {from} to {to} segments"),
            Self::BadAck => out.write_str("dropped an acknowledgement of what was never sent"),
            Self::Dropped(why) => write!(out, "dropped a frame: {}", why.as_str()),
            Self::Called { ours, theirs } => write!(out, "called, in our life {ours}; its was {theirs}"),
            Self::CalledBy { life, yours } => write!(out, "it calls, in its life {life}; ours was {yours}"),
            Self::LifeBegun { ours, theirs } => {
                write!(out, "a new connection, of our life {ours} and its life {theirs}")
            }
            Self::Hint(kind) => write!(out, "the driver reports: {}", kind.as_str()),
            Self::Told(kind) => out.write_str(kind.as_str()),
        }
    }
}

/// Notices that are kept; older ones are dropped.
const NOTICES: usize = 256;

/// Events and notices for the owner, and the flight recorder.
#[derive(Debug)]
pub(crate) struct Journal {
    events: VecDeque<RailEvent>,
    notices: VecDeque<(PeerIndex, Notice)>,
    recorder: Recorder<Event>,
}

impl Journal {
    /// An empty journal, whose recorder keeps `most` events.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            events: VecDeque::new(),
            notices: VecDeque::new(),
            recorder: Recorder::new(most),
        }
    }

    /// Whether there are events that the owner has not read.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes the next event that the owner has not read.
    pub(crate) fn next_event(&mut self) -> Option<RailEvent> {
        self.events.pop_front()
    }

    /// Drops the events about a peer that the owner has not read.
    pub(crate) fn forget_events(&mut self, peer: PeerIndex) {
        self.events.retain(|event| event.scope != Scope::Peer(peer));
    }

    /// Drops the notices about a peer that the owner has not read.
    pub(crate) fn forget_notices(&mut self, peer: PeerIndex) {
        self.notices.retain(|(of, _)| *of != peer);
    }

    /// Takes the oldest notice that the owner has not read.
    pub(crate) fn next_notice(&mut self) -> Option<(PeerIndex, Notice)> {
        self.notices.pop_front()
    }

    /// The last notable events.
    pub(crate) fn recorder(&self) -> &Recorder<Event> {
        &self.recorder
    }
}

impl Core {
    /// Records an event about a peer.
    #[cold]
    pub(crate) fn record(&mut self, peer: PeerIndex, event: Event) {
        self.record_of(Some(peer), event);
    }

    /// Records an event about a peer, or about the rail.
    #[cold]
    pub(crate) fn record_of(&mut self, peer: Option<PeerIndex>, event: Event) {
        self.journal.recorder.record(self.clock.time(), peer, event);
    }

    /// Queues an event for the owner, and records it.
    #[cold]
    pub(crate) fn tell(&mut self, scope: Scope, kind: EventKind) {
        if matches!(scope, Scope::Peer(peer) if self.peers[peer].is(about::LEAVING)) {
            return;
        }
        let life = match (scope, kind) {
            (Scope::Peer(peer), EventKind::PeerUp) => self.life(peer),
            _ => Life::FIRST,
        };
        self.journal.events.push_back(RailEvent {
            at: self.clock.time(),
            scope,
            kind,
            life,
        });
        let peer = match scope {
            Scope::Peer(peer) => Some(peer),
            Scope::Rail => None,
        };
        self.record_of(peer, Event::Told(kind));
    }

    /// Keeps a notice for the owner, and records it.
    #[cold]
    pub(crate) fn notice(&mut self, peer: PeerIndex, what: Notice) {
        if self.peers[peer].is(about::LEAVING) {
            return;
        }
        let notices = &mut self.journal.notices;
        if notices.len() == NOTICES {
            notices.pop_front();
        }
        notices.push_back((peer, what));
        self.record(peer, Event::Noticed(what));
    }

    /// Counts a dropped frame, and records why. Before its connection was found, its peer is not known;
    /// afterwards it is the one that was looked up last.
    #[cold]
    pub(crate) fn drop_frame(&mut self, why: Drop) {
        self.counters.dropped(why);
        let peer = match why {
            Drop::Short | Drop::Version | Drop::Kind | Drop::Unknown => None,
            _ => self.peers.last_found(),
        };
        self.record_of(peer, Event::Dropped(why));
    }
}
