//! All paths of one peer.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, Life};
use doorbell_fabric::time::Time;

use crate::path::Path;
use crate::reason::Reason;
use crate::set::PATHS_MAX;
use crate::state::PathState;
use crate::timers::Policy;

/// The states of all paths of one peer. A path is a number in the order in which the rails to the peer were
/// connected, which is the same at both ends.
#[derive(Debug, Default)]
pub struct PeerPaths {
    paths: Vec<Path>,
    /// No path is used: until when one is waited for, and why the last one broke.
    alone: Option<(Time, Reason)>,
    /// The peer's process has ended: until when its last messages are read.
    ended: Option<Time>,
    /// Given-up connections of which the peer was not notified yet, because there was no room.
    news: Vec<(usize, Life)>,
    /// On which lists of the timers it is.
    pub(crate) is_watched: bool,
    pub(crate) has_words: bool,
}

impl PeerPaths {
    /// Adds paths until there are `count` (at most [`PATHS_MAX`]). New ones are up.
    #[inline]
    pub fn grow(&mut self, count: usize) {
        if self.paths.len() < count.min(PATHS_MAX) {
            self.paths.resize_with(count.min(PATHS_MAX), Path::default);
        }
    }

    /// Returns the state of a path; [`PathState::Up`] of one that was not added.
    #[must_use]
    pub fn state(&self, at: usize) -> PathState {
        self.paths.get(at).map_or(PathState::Up, Path::state)
    }

    /// Returns the paths in states of which `is_one` is true, as a set.
    #[must_use]
    pub fn in_state(&self, is_one: impl Fn(PathState) -> bool) -> u64 {
        self.set(|path| is_one(path.state()))
    }

    /// Returns the paths that messages may take, as a set: up or suspect.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.in_state(PathState::is_used)
    }

    /// Returns the paths that are not gone for good, as a set.
    #[must_use]
    pub fn living(&self) -> u64 {
        self.set(|path| !path.is_dead())
    }

    /// Returns the paths that ever worked in both directions, as a set.
    #[must_use]
    pub fn met(&self) -> u64 {
        self.set(|path| path.probes.met())
    }

    /// Returns half of the least round trip of a path's last probes (ns), once it was measured.
    #[must_use]
    pub fn latency(&self, at: usize) -> Option<u64> {
        self.paths.get(at)?.probes.latency()
    }

    /// No path is used and one may come back: returns until when that is waited for, and why the last one
    /// broke.
    #[must_use]
    pub fn alone(&self) -> Option<(Time, Reason)> {
        self.alone
    }

    /// Whether the peer has yet to be notified of a connection that was given up
    /// ([`send_news`](crate::send_news)).
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// The peer is lost: nothing is waited for any more.
    pub fn clear(&mut self) {
        (self.alone, self.ended) = (None, None);
        self.news.clear();
    }

    fn set(&self, is_one: impl Fn(&Path) -> bool) -> u64 {
        let paths = self.paths.iter().enumerate();
        paths
            .filter(|(_, path)| is_one(path))
            .fold(0, |set, (at, _)| set | 1 << at)
    }

    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Path> {
        self.paths.get(at)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Path> {
        self.paths.get_mut(at)
    }

    pub(crate) fn first_in(&self, state: PathState) -> Option<usize> {
        self.paths.iter().position(|path| path.state() == state)
    }

    pub(crate) fn any(&self, is_one: impl Fn(&Path) -> bool) -> bool {
        self.paths.iter().any(is_one)
    }

    /// Whether a peer whose path `at` broke for this reason, as the last one, may be reached again.
    pub(crate) fn may_hope(&self, at: usize, reason: Reason, policy: Policy) -> bool {
        let this = if policy.waits_for_only_path { 0 } else { 1 << at };
        !policy.patience.is_zero() && reason.leaves_hope(self.living() & !this != 0)
    }

    /// No path is used: one is waited for, until then if it is not waited for already.
    pub(crate) fn wait(&mut self, until: Time, reason: Reason) {
        let until = self.alone.map_or(until, |(until, _)| until);
        self.alone = Some((until, reason));
    }

    /// A path is used again.
    pub(crate) fn wait_no_more(&mut self) {
        self.alone = None;
    }

    /// A link is back. Where it was the link that kept the peer away, it has all of the time to answer from
    /// here on.
    pub(crate) fn wait_anew(&mut self, until: Time) {
        if let Some((end, reason @ Reason::Link)) = &mut self.alone {
            (*end, *reason) = (until, Reason::Peer(DownReason::Silent));
        }
    }

    /// The peer's process has ended: its last messages are read until then.
    pub(crate) fn end(&mut self, until: Time) {
        self.ended.get_or_insert(until);
    }

    pub(crate) fn ended(&self) -> Option<Time> {
        self.ended
    }

    /// Time in which this process did not look is not the peer's.
    pub(crate) fn extend_waits(&mut self, away: Duration) {
        if let Some((until, _)) = &mut self.alone {
            *until += away;
        }
        if let Some(until) = &mut self.ended {
            *until += away;
        }
    }

    /// The peer is to be notified that this connection of a path is given up, once there is room.
    pub(crate) fn add_news(&mut self, at: usize, life: Life) {
        self.forget_news(at);
        self.news.push((at, life));
    }

    pub(crate) fn last_news(&self) -> Option<(usize, Life)> {
        self.news.last().copied()
    }

    /// The peer was notified that a path broke, or the path is back: the peer has started over, too.
    pub(crate) fn forget_news(&mut self, at: usize) {
        self.news.retain(|(known, _)| *known != at);
    }

    /// Whether time has anything to do with the peer.
    pub(crate) fn is_worth_watching(&self, is_measured: bool) -> bool {
        let several = self.paths.len() > 1;
        let quiet = self.paths.iter().all(|path| {
            let probed = path.probes.met() || path.probes.unmet_since().is_some();
            path.is_quiet() && (probed || !several || path.is_dead())
        });
        let doubts = self.any(|path| path.probes.met())
            && self.any(|path| path.state() == PathState::Up && path.probes.unmet_since().is_some());
        several && is_measured || !quiet || doubts || self.alone.is_some() || self.ended.is_some()
    }
}
