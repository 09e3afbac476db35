//! The state of each peer beside its cache line ([`Hot`]).

use doorbell_paths::{Ahead, PathState};

use crate::backlog::Backlog;
use crate::error::LostReason;
use crate::hot::Hot;
use crate::paths::{Path, Paths};
use crate::unexpected::UnexpectedIndex;

/// What is kept of a peer.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub(crate) paths: Paths,
    pub(crate) backlog: Backlog,
    /// Messages that arrived ahead of an earlier one.
    pub(crate) held: Ahead<UnexpectedIndex>,
    /// What the peer reported as consumed.
    reported: u64,
    /// What kept and held messages were charged.
    kept: u64,
}
// Memory per idle peer (design, section 10): at most 1 KiB in `btl` and `pml`.
const _: () = assert!(size_of::<Hot>() + size_of::<Peer>() + 2 * size_of::<Path>() <= 384);

impl Peer {
    /// Returns what the peer reported as consumed.
    pub(crate) fn reported(&self) -> u64 {
        self.reported
    }

    /// Takes a report of what was consumed; `false` for one that is older than the last, overtaken or sent
    /// again.
    pub(crate) fn take_report(&mut self, consumed: u64) -> bool {
        let is_new = consumed > self.reported;
        if is_new {
            self.reported = consumed;
        }
        is_new
    }

    /// Returns what kept and held messages are charged.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// A message is kept or held that counts this.
    pub(crate) fn keep(&mut self, charge: u64) {
        self.kept += charge;
    }

    /// A message is not kept any more.
    pub(crate) fn release(&mut self, charge: u64) {
        self.kept -= charge;
    }

    /// Returns why the peer is lost, if it is.
    pub(crate) fn lost(&self) -> Option<LostReason> {
        self.paths.lost()
    }

    /// The peer is lost.
    pub(crate) fn lose(&mut self, reason: LostReason) {
        self.paths.close(reason);
    }

    /// The state of a path. A lost peer is not watched any more, and none of its paths is up.
    pub(crate) fn state(&self, at: usize) -> PathState {
        match self.lost() {
            Some(_) => PathState::Down,
            None => self.paths.state(at),
        }
    }
}
