//! A peer of contact: where its frames go, and the state of the connection.

use std::time::Duration;

use doorbell_fabric::event::Life;
use doorbell_fabric::gid::Link;
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::time::Time;

use super::epoch::Epoch;
use super::event::{Attempt, Farewell, Refusal};
use super::key::ContactKey;
use super::mtu::Mtu;
use super::wire::{Kind, Numbers, Terms};
use crate::gid::{Gid, GidPair, PUBLISHED};

pub(crate) use crate::source::{From, Source};

/// Where a peer's frames go, and where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) link: Link,
    /// The MTU of its port, when it was opened there; and that of the path to it, where one is known.
    pub(crate) mtu: Mtu,
    pub(crate) path: Option<Mtu>,
    pub(crate) lid: u16,
    pub(crate) partition: u16,
    /// The queue pair of contact, and its Q_Key.
    pub(crate) pair: u32,
    pub(crate) key: u32,
    /// The GIDs that are used; zero where there are none.
    pub(crate) gids: GidPair,
    /// A hash of each GID that its address has.
    sources: [u32; PUBLISHED],
}

impl Remote {
    pub(crate) fn new(to: &crate::address::PortAddress, mtu: Mtu, gids: GidPair) -> Self {
        let mut sources = [0; PUBLISHED];
        for (place, published) in sources.iter_mut().zip(&to.gids) {
            *place = hash(published.gid);
        }
        Self {
            link: to.link,
            mtu,
            path: None,
            lid: to.lid,
            partition: to.partition,
            pair: to.pairs[0],
            key: to.key,
            gids,
            sources,
        }
    }

    /// Whether a frame can come from that port. A hint, which costs less than a MAC.
    pub(crate) fn has(&self, from: &From) -> bool {
        match from.port {
            Source::Lid(lid) => self.link == Link::InfiniBand && lid == self.lid,
            Source::Gid(bytes) => self.sources.contains(&hash(Gid(bytes))),
        }
    }
}

/// Never zero, which is the place of no GID.
fn hash(gid: Gid) -> u32 {
    let number = u128::from_le_bytes(gid.0);
    let folded = (number ^ number >> 64) as u64;
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 | 1
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// There is none.
    Down,
    /// An attempt failed, and the next waits for its time.
    Resting,
    /// The rail makes queue pairs.
    Making,
    /// They are made, and the peer's are not known.
    Calling,
    /// The rail connects them to the peer's.
    Connecting,
    /// They are connected; whether the peer's are is not known.
    Connected,
    /// The rail sends both sizes.
    Proving,
    /// Both have passed; whether the peer's have is not known.
    Proved,
    /// The connection carries messages.
    Up,
}

/// What is under way with a peer: an attempt, a connection, or a farewell.
#[derive(Clone, Debug)]
pub(crate) struct Effort {
    /// When the peer is due.
    pub(crate) due: Time,
    /// The time from one repetition to the next.
    pub(crate) wait: Duration,
    /// When it last came further, and for how long it may not.
    pub(crate) since: Time,
    pub(crate) bears: Duration,
    /// Whether the peer began it.
    pub(crate) called_by_peer: bool,
    /// Attempts that failed.
    failed: u8,
    /// Whether our rail wants the connection, and gets an event when there is none.
    pub(crate) wanted: bool,
    /// The largest MTU that has not failed.
    pub(crate) most: Mtu,
    /// What we offer.
    pub(crate) offer: Mtu,
    pub(crate) numbers: Numbers,
    /// What the peer offers, for both present epochs.
    pub(crate) theirs: Option<Terms>,
    /// The furthest that the peer reported.
    pub(crate) seen: Option<Kind>,
    /// Whether the short message has passed, and that of the MTU.
    pub(crate) passed: [bool; 2],
}

impl Effort {
    pub(crate) fn new(now: Time, bears: Duration, most: Mtu) -> Self {
        Self {
            due: Time::NEVER,
            wait: FIRST,
            since: now,
            bears,
            called_by_peer: false,
            failed: 0,
            wanted: false,
            most,
            offer: most,
            numbers: Numbers::default(),
            theirs: None,
            seen: None,
            passed: [false; 2],
        }
    }

    /// The connection came further: repetitions start over, and patience does where nothing failed yet.
    pub(crate) fn progress(&mut self, now: Time) {
        self.wait = FIRST;
        if self.failed == 0 {
            self.since = now;
        }
    }

    /// The time of the next attempt, after one that failed at `now`.
    pub(crate) fn rest(&mut self, now: Time) -> Time {
        let wait = (FIRST * (1 << self.failed.min(7))).min(LONGEST_WAIT);
        self.failed = self.failed.saturating_add(1);
        now + wait
    }

    /// The time of the next repetition, after one at `now`.
    pub(crate) fn back_off(&mut self, now: Time) -> Time {
        let at = now + self.wait;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        at
    }

    /// The time at which it is given up.
    pub(crate) fn end(&self) -> Time {
        self.since + self.bears
    }

    /// The MTU of the connection, once the peer's offer is known.
    pub(crate) fn agreed(&self) -> Mtu {
        self.theirs
            .map_or(self.offer, |theirs| theirs.mtu.min(self.offer))
    }
}

/// The first time between two repetitions, and the longest.
const FIRST: Duration = Duration::from_millis(5);
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// A frame to be sent to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// It is in the queue.
    pub(crate) queued: bool,
    pub(crate) ask: bool,
    /// It refuses, whatever the phase.
    pub(crate) refuses: bool,
}

/// A peer that was opened.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) incarnation: Incarnation,
    /// Ids of what we send, and of what the peer does.
    pub(crate) out: u64,
    pub(crate) from: u64,
    pub(crate) remote: Remote,
    /// Its key, where it has its own.
    pub(crate) key: Option<Box<ContactKey>>,
    /// Our epoch, and the latest of the peer's that is known.
    pub(crate) ours: Epoch,
    pub(crate) theirs: Epoch,
    pub(crate) phase: Phase,
    pub(crate) effort: Option<Box<Effort>>,
    pub(crate) pending: Pending,
    /// Why there is no connection, for peers that request a report.
    pub(crate) farewell: Farewell,
    pub(crate) refusal: Option<Refusal>,
    /// Something of the peer has arrived.
    pub(crate) heard: bool,
    /// We were connected to the peer's epoch: it is used up.
    pub(crate) used: bool,
    /// Nothing follows: the peer has closed, or its numbers have ended.
    pub(crate) over: bool,
    /// It was forgotten, and gets a farewell.
    pub(crate) leaving: bool,
}

/// An attempt, or the connection that it became.
pub(crate) struct UnderWay<'a> {
    pub(crate) attempt: Attempt,
    pub(crate) life: Life,
    pub(crate) gids: GidPair,
    /// What the path to the peer carries, where that is known.
    pub(crate) path: Option<Mtu>,
    pub(crate) phase: &'a mut Phase,
    pub(crate) used: &'a mut bool,
    pub(crate) refusal: &'a mut Option<Refusal>,
    pub(crate) effort: &'a mut Effort,
}

/// Most bytes of an entry in the table of ids: a number, its peer and a byte, in a table that may be less
/// than half full.
const ENTRY: usize = (size_of::<(u64, u32)>() + 1) * 16 / 7 + 1;
// The table of peers grows by a quarter.
const _: () = assert!(size_of::<Option<Peer>>() * 5 / 4 + ENTRY <= 256);

impl Peer {
    pub(crate) fn new(incarnation: Incarnation, links: [u64; 2], remote: Remote, term: u32) -> Self {
        Self {
            incarnation,
            out: links[0],
            from: links[1],
            remote,
            key: None,
            ours: Epoch::first(term),
            theirs: Epoch::default(),
            phase: Phase::Down,
            effort: None,
            pending: Pending::default(),
            farewell: Farewell::Abandoned,
            refusal: None,
            heard: false,
            used: false,
            over: false,
            leaving: false,
        }
    }

    /// The present attempt.
    pub(crate) fn attempt(&self, index: u32) -> Attempt {
        Attempt {
            peer: PeerIndex(index),
            epoch: self.ours,
        }
    }

    /// What is under way, in parts that are changed together.
    pub(crate) fn under_way(&mut self, index: PeerIndex) -> Option<UnderWay<'_>> {
        Some(UnderWay {
            attempt: Attempt {
                peer: index,
                epoch: self.ours,
            },
            life: self.ours.life(self.theirs),
            gids: self.remote.gids,
            path: self.remote.path,
            phase: &mut self.phase,
            used: &mut self.used,
            refusal: &mut self.refusal,
            effort: self.effort.as_deref_mut()?,
        })
    }

    /// Our epoch is used up.
    pub(crate) fn next_epoch(&mut self) {
        match self.ours.next() {
            Some(next) => self.ours = next,
            None => self.over = true,
        }
    }

    /// Whether its deadline is this one.
    pub(crate) fn is_due_at(&self, at: Time) -> bool {
        self.effort.as_ref().is_some_and(|effort| effort.due == at)
    }
}
