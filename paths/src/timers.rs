//! The times at which peers are checked.

use std::time::Duration;

use doorbell_fabric::time::Time;

use crate::layer::Layer;
use crate::peer::PeerPaths;

/// How often peers that are watched are looked at while nothing is due.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// What a layer decides about its paths.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// How long a peer without a path in use is waited for; zero: not at all.
    pub patience: Duration,
    /// A path that has been suspect for this time, while the peer answered over another one, is given up.
    /// `None`: its rail decides.
    pub silence: Option<Duration>,
    /// Whether a peer is waited for when its only path broke for a reason of its own, such as silence.
    /// Otherwise its rail has waited for long enough.
    pub waits_for_only_path: bool,
}

/// The peers that time has to do with, and when they are looked at next.
#[derive(Debug)]
pub struct Timers {
    policy: Policy,
    /// Peers that time has to do with, and those that something about paths has arrived from.
    watched: Vec<u32>,
    arrived: Vec<u32>,
    /// When the watched ones are looked at next, and when that is urgent enough to wake for.
    look_at: Time,
    due: Time,
}

impl Timers {
    /// Makes the timers of a layer without peers.
    #[must_use]
    pub const fn new(policy: Policy) -> Self {
        Self {
            policy,
            watched: Vec::new(),
            arrived: Vec::new(),
            look_at: Time::NEVER,
            due: Time::NEVER,
        }
    }

    /// Watches a peer from now on: it is looked at by the next [`tick`](crate::tick), which is due at once.
    pub fn watch(&mut self, peer: u32, paths: &mut PeerPaths) {
        self.look_at = Time::ZERO;
        self.enlist(peer, paths);
    }

    /// Watches a peer from now on.
    pub(crate) fn enlist(&mut self, peer: u32, paths: &mut PeerPaths) {
        if !std::mem::replace(&mut paths.is_watched, true) {
            self.watched.push(peer);
        }
    }

    /// Forgets a peer, whose number another one may be given, with new [`PeerPaths`].
    pub fn forget(&mut self, peer: u32) {
        self.watched.retain(|watched| *watched != peer);
        self.arrived.retain(|arrived| *arrived != peer);
    }

    /// Whether [`act_on_words`](crate::act_on_words) has something to do.
    #[must_use]
    #[inline]
    pub fn has_words(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Whether [`tick`](crate::tick) is to be called.
    #[must_use]
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        self.look_at <= now
    }

    /// Returns the next time at which [`act_on_words`](crate::act_on_words) or [`tick`](crate::tick) have
    /// something to do.
    #[must_use]
    pub fn next_deadline(&self, now: Time) -> Option<Time> {
        let soon = now + Duration::from_nanos(1);
        let due = if self.has_words() || self.is_due(now) {
            soon
        } else {
            self.due.max(soon)
        };
        Some(due).filter(|due| *due < Time::NEVER)
    }

    /// Returns the peers that are watched.
    pub fn watched(&self) -> impl Iterator<Item = u32> {
        self.watched.iter().copied()
    }

    /// Something about the paths of a peer has arrived.
    pub(crate) fn note_arrival(&mut self, peer: u32, paths: &mut PeerPaths) {
        if !std::mem::replace(&mut paths.has_words, true) {
            self.arrived.push(peer);
        }
    }

    /// Something about a peer that is watched is due then.
    pub(crate) fn due(&mut self, at: Time) {
        self.due = self.due.min(at);
        self.look_at = self.look_at.min(at);
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    pub(crate) fn take_arrived(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.arrived)
    }

    /// Gives the memory of the list back, unless there is another one.
    pub(crate) fn give_back(&mut self, mut arrived: Vec<u32>) {
        arrived.clear();
        if self.arrived.is_empty() {
            self.arrived = arrived;
        }
    }

    pub(crate) fn watched_at(&self, at: usize) -> Option<u32> {
        self.watched.get(at).copied()
    }

    pub(crate) fn unwatch(&mut self, at: usize) {
        self.watched.swap_remove(at);
    }

    /// A look at all watched peers begins: what is due is found out by it.
    pub(crate) fn begin(&mut self) {
        (self.look_at, self.due) = (Time::NEVER, Time::NEVER);
    }

    pub(crate) fn end(&mut self, now: Time) {
        if !self.watched.is_empty() {
            self.look_at = self.look_at.min(now + TICK);
        }
    }
}

/// Time in which this process did not look, although it should have, is not the peers': what they sent may be
/// here already. To be called before anything else with each new time, with the time before it, too.
#[inline]
pub fn extend_waits<L: Layer>(layer: &mut L, before: Time, now: Time) {
    let in_time = layer.timers().due.since(before).max(TICK);
    let away = now.since(before);
    if away > in_time {
        extend_all(layer, away - in_time);
    }
}

#[cold]
fn extend_all<L: Layer>(layer: &mut L, away: Duration) {
    let mut at = 0;
    while let Some(peer) = layer.timers().watched_at(at) {
        if let Some((paths, _)) = layer.paths(peer) {
            paths.extend_waits(away);
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forgotten_peer_is_not_looked_at_and_its_number_is_watched_anew() {
        let mut timers = Timers::new(Policy {
            patience: TICK,
            silence: None,
            waits_for_only_path: false,
        });
        let mut paths = [PeerPaths::default(), PeerPaths::default()];
        for (peer, paths) in (0..).zip(&mut paths) {
            timers.watch(peer, paths);
            timers.note_arrival(peer, paths);
        }
        timers.forget(0);
        assert_eq!(timers.watched().collect::<Vec<_>>(), [1]);
        assert_eq!(timers.take_arrived(), [1]);
        timers.watch(0, &mut PeerPaths::default());
        assert_eq!(timers.watched().collect::<Vec<_>>(), [1, 0]);
    }
}
