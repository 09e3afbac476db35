//! The state of a peer.

use std::collections::VecDeque;

use doorbell_fabric::message::PeerIndex;
use doorbell_paths::{Ahead, PeerPaths};

use super::buffers::Kept;
use super::in_flight::Window;
use super::path::Path;
use super::types::Sizes;

/// What the data path needs of a peer.
#[derive(Debug)]
pub(super) struct Hot {
    /// What the rail's numbers of the messages to it are ahead of ours, in the last run of its current path.
    pub(super) run: u64,
    /// What its messages were charged, and up to where the window needs no check.
    pub(super) charged: u64,
    pub(super) check: u64,
    /// The number of the next message to it.
    pub(super) next: u32,
    /// Messages up to this many bytes go to this rail at once; zero: none.
    pub(super) limit: u32,
    pub(super) index: PeerIndex,
    /// The number of the next message from it.
    pub(super) expected: u32,
    pub(super) rail: u16,
    /// Something is held until an earlier message came.
    pub(super) held: bool,
}
const _: () = assert!(size_of::<Hot>() <= 48);

/// No rail's number is ahead of ours by this much.
pub(super) const NO_RUN: u64 = u64::MAX;

/// The rest of a peer.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) paths: Vec<Path>,
    pub(super) states: PeerPaths,
    /// The path of small messages; the paths that long ones take together, as a set (empty: as small ones),
    /// and from how many bytes on.
    pub(super) current: usize,
    pub(super) stripes: u64,
    pub(super) stripe_from: usize,
    pub(super) sizes: Option<Sizes>,
    pub(super) window: Window,
    /// What goes first when there is room again, after the news of paths: what rails gave back (by number),
    /// urgent messages.
    pub(super) again: VecDeque<Kept>,
    pub(super) fresh: VecDeque<Kept>,
    pub(super) fresh_bytes: usize,
    /// Messages that arrived ahead, and what they are charged.
    pub(super) held: Ahead<Kept>,
    pub(super) held_charge: u64,
    pub(super) lost: bool,
    /// Something was to be sent to it, so its paths are worth a look.
    pub(super) introduced: bool,
    /// Whether it is on the link's list of peers with something that waits.
    pub(super) is_waiting: bool,
}

impl Peer {
    /// Whether messages may take a path.
    pub(super) fn is_used(&self, at: usize) -> bool {
        at < self.paths.len() && self.states.state(at).is_used()
    }

    /// Whether anything waits for room.
    pub(super) fn waits(&self) -> bool {
        self.states.has_news() || !(self.again.is_empty() && self.fresh.is_empty())
    }
}
