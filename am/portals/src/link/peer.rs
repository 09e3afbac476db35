//! What is kept of a peer.

use std::collections::VecDeque;

use doorbell_fabric::event::Life;
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::time::Time;
use doorbell_paths::Ahead;

use super::buffers::Kept;
use super::flight::Window;
use super::types::Sizes;
use super::way::{Way, Why};

/// What the data path needs of a peer.
#[derive(Debug)]
pub(super) struct Hot {
    /// What the rail's numbers of the messages to it are ahead of ours, in the last run of its current way.
    pub(super) run: u64,
    /// What its messages were charged, and up to where nobody has to look at the window.
    pub(super) charged: u64,
    pub(super) check: u64,
    /// The number of the next message to it.
    pub(super) next: u32,
    /// Messages up to so many bytes go to this rail at once; zero: none.
    pub(super) limit: u32,
    pub(super) index: PeerIndex,
    /// The number of the next message from it.
    pub(super) expected: u32,
    pub(super) rail: u16,
    /// Something is held until an earlier message came.
    pub(super) held: bool,
}
const _: () = assert!(size_of::<Hot>() <= 48);

/// No rail's number is ahead of ours by so much.
pub(super) const NO_RUN: u64 = u64::MAX;

/// The rest of a peer.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) ways: Vec<Way>,
    /// The way of small messages; the ways that long ones take together, as a set (empty: as small ones), and from how
    /// many bytes on.
    pub(super) current: usize,
    pub(super) stripes: u64,
    pub(super) stripe_from: usize,
    pub(super) sizes: Option<Sizes>,
    pub(super) window: Window,
    /// What goes first when there is room again: news of ways, what rails gave back (by number), urgent messages.
    pub(super) news: Vec<(u16, Life)>,
    pub(super) again: VecDeque<Kept>,
    pub(super) fresh: VecDeque<Kept>,
    pub(super) fresh_bytes: usize,
    /// Messages that arrived ahead, and what they are charged.
    pub(super) held: Ahead<Kept>,
    pub(super) held_charge: u64,
    /// No way is up: until when one is waited for, and why the last one went.
    pub(super) alone: Option<(Time, Why)>,
    /// The peer's process has ended: until when its last messages are read.
    pub(super) ended: Option<Time>,
    pub(super) lost: bool,
    /// Something was to be sent to it, so its ways are worth a look.
    pub(super) introduced: bool,
    /// On which of the link's lists it is.
    pub(super) is_watched: bool,
    pub(super) is_waiting: bool,
    pub(super) is_stirred: bool,
}

impl Peer {
    /// The ways in a state that `which` likes, as a set.
    pub(super) fn ways_that(&self, which: impl Fn(&Way) -> bool) -> u64 {
        let ways = self.ways.iter().enumerate();
        ways.filter(|(_, way)| which(way))
            .fold(0, |set, (at, _)| set | 1 << at)
    }

    /// Whether anything waits for room.
    pub(super) fn waits(&self) -> bool {
        !(self.news.is_empty() && self.again.is_empty() && self.fresh.is_empty())
    }
}
