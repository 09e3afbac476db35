//! Path choice: which (transport, module) reaches a neighbour, which of the paths have failed, and when to
//! try again or give up.
//!
//! ```text
//!                 a path is left                 Connected
//!         Idle ───────────────────────► Trying ──────────────► Idle, with a link
//!          ▲                             │   ▲
//!          │                     Refused │   │ another path is left
//!          │  time                       ▼   │
//!          └───────────── Resting ◄── the round is over ──► Failed, after the last round: reported once
//! ```
//!
//! A round tries all paths, in the order of the transports and, within one, of its own preference. A peer is
//! given up only when the last round has failed over all of them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use doorbell_fabric::time::Time;

use crate::config::Config;
use crate::name::{Epoch, Name};
use crate::transport::{Address, Attempt, LinkId, ModuleId, Path, TransportId};
use crate::wire::{Frame, Lane};

/// How many times the wait before a better path is tried again doubles.
const BACK_OFF: u32 = 4;

/// A link, among those of all transports.
pub(crate) type LinkKey = (TransportId, LinkId);

/// A frame that is to be relayed, or was given to a link.
#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    pub(crate) frame: Frame,
    pub(crate) to: Name,
    /// Whether it belongs to one of our streams, which can send it again.
    pub(crate) own: bool,
    /// Whether it came from the parent, and must not go back there.
    pub(crate) from_parent: bool,
}

/// A link that is up.
#[derive(Debug)]
pub(crate) struct Link {
    /// The index of the peer's record.
    pub(crate) peer: u32,
    pub(crate) module: ModuleId,
    /// The epoch of the process at the other end.
    pub(crate) epoch: Epoch,
    /// The job of both ends, if it is the same.
    pub(crate) job: Option<u64>,
    /// Number of frames reported as sent.
    pub(crate) sent: u64,
    /// Frames given to the link and not yet reported as sent.
    pub(crate) given: VecDeque<Parcel>,
    /// The bytes of those frames.
    pub(crate) bytes: usize,
}

#[derive(Clone, Debug)]
struct Candidate {
    transport: TransportId,
    path: Path,
    failed: bool,
    /// The time at which the path may be tried again, after a lasting failure.
    barred: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Idle,
    Trying(Attempt, TransportId, ModuleId),
    Resting(Time),
    /// Given up; a new attempt is possible after this time.
    Failed(Time),
}

/// What to do next for a neighbour that needs a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    Connect(TransportId, ModuleId, Vec<Address>),
    Rest(Time),
    /// All paths have failed, in all rounds.
    GiveUp,
}

impl Default for Hop {
    fn default() -> Self {
        Self::new()
    }
}

/// A peer that this process has, or wants, a link to.
#[derive(Debug)]
pub(crate) struct Hop {
    candidates: Vec<Candidate>,
    pub(crate) doing: Doing,
    round: u32,
    /// Its links, the best first.
    pub(crate) links: Vec<LinkKey>,
    /// Frames of other ranks, and control frames, that wait for room.
    pub(crate) relay: VecDeque<Parcel>,
    pub(crate) relay_bytes: usize,
    /// Our own streams that wait for room.
    pub(crate) waiting: VecDeque<(u32, Lane)>,
    /// Whether paths were requested from the transports.
    pub(crate) asked: bool,
    /// Transports that have not answered yet, one bit each.
    pub(crate) awaited: u32,
    /// The transports over which it may be called, one bit each: all for a neighbour in the tree, and for
    /// others those that connect to all peers.
    pub(crate) allowed: u32,
    /// Since when it has had neither a link nor a path.
    pub(crate) away: Time,
    /// The time at which a better path that has failed is tried again, while a link is up.
    pub(crate) again: Time,
    /// How many such attempts have failed.
    in_vain: u32,
    up_since: Time,
    /// Whether the peer made the newest link, over the path it prefers. We keep that one: otherwise two ends
    /// with different preferences would replace each other's links for ever.
    theirs: bool,
}

impl Hop {
    pub(crate) fn new() -> Self {
        Self {
            candidates: Vec::new(),
            doing: Doing::Idle,
            round: 0,
            links: Vec::new(),
            relay: VecDeque::new(),
            relay_bytes: 0,
            waiting: VecDeque::new(),
            asked: false,
            awaited: 0,
            allowed: u32::MAX,
            away: Time::NEVER,
            again: Time::NEVER,
            in_vain: 0,
            up_since: Time::ZERO,
            theirs: false,
        }
    }

    /// Replaces the paths of one transport.
    pub(crate) fn set_paths(&mut self, transport: TransportId, paths: Vec<Path>) {
        self.candidates
            .retain(|candidate| candidate.transport != transport);
        self.theirs = false;
        self.awaited &= !bit(transport);
        let fresh = paths.into_iter().filter(|path| !path.addresses.is_empty());
        self.candidates.extend(fresh.map(|path| Candidate {
            transport,
            path,
            failed: false,
            barred: Time::ZERO,
        }));
        self.candidates.sort_by_key(|candidate| candidate.transport);
        if let Doing::Resting(_) | Doing::Failed(_) = self.doing {
            self.doing = Doing::Idle;
            self.round = 0;
        }
    }

    /// Whether this transport has a path that has not failed.
    pub(crate) fn has_path(&self, transport: TransportId) -> bool {
        let mut candidates = self.candidates.iter();
        candidates.any(|candidate| candidate.transport == transport && !candidate.failed)
    }

    /// Returns what to do to get a link.
    pub(crate) fn pursue(&mut self, now: Time, config: &Config) -> Step {
        if !self.links.is_empty() {
            return Step::Nothing;
        }
        match self.doing {
            Doing::Trying(..) => return Step::Nothing,
            Doing::Resting(until) if until > now => return Step::Nothing,
            Doing::Failed(until) if until > now => return Step::Nothing,
            Doing::Failed(_) => self.round = config.rounds.saturating_sub(1),
            _ => {}
        }
        self.doing = Doing::Idle;
        if !self.candidates.iter().any(|candidate| self.allows(candidate)) {
            return self.absent(now, config);
        }
        self.away = Time::NEVER;
        match self.next(now, self.candidates.len()) {
            Some(step) => step,
            None => self.round_over(now, config),
        }
    }

    /// Handles a peer without a known path: it has some time to connect to us.
    fn absent(&mut self, now: Time, config: &Config) -> Step {
        if self.away == Time::NEVER {
            self.away = now;
        }
        let until = self.away + config.grace;
        if until <= now {
            self.away = Time::NEVER;
            self.doing = Doing::Failed(now + config.retry_max);
            return Step::GiveUp;
        }
        self.doing = Doing::Resting(until);
        Step::Rest(until)
    }

    fn allows(&self, candidate: &Candidate) -> bool {
        self.allowed
            .checked_shr(u32::from(candidate.transport.0))
            .unwrap_or(0)
            & 1
            == 1
    }

    /// Returns the first of the best `most` paths that has not failed.
    fn next(&self, now: Time, most: usize) -> Option<Step> {
        let mut candidates = self.candidates.iter().take(most);
        let next = candidates.find(|next| !next.failed && next.barred <= now && self.allows(next))?;
        Some(Step::Connect(
            next.transport,
            next.path.module,
            next.path.addresses.clone(),
        ))
    }

    fn round_over(&mut self, now: Time, config: &Config) -> Step {
        self.round += 1;
        self.candidates
            .iter_mut()
            .for_each(|candidate| candidate.failed = false);
        if self.round >= config.rounds {
            self.round = 0;
            self.doing = Doing::Failed(now + config.retry_max);
            return Step::GiveUp;
        }
        let wait = config.retry.saturating_mul(1 << (self.round - 1).min(16));
        let until = now + wait.min(config.retry_max);
        self.doing = Doing::Resting(until);
        Step::Rest(until)
    }

    /// Returns a path better than the one in use, if one has not failed.
    pub(crate) fn better(&self, now: Time, links: &BTreeMap<LinkKey, Link>) -> Step {
        if self.doing != Doing::Idle {
            return Step::Nothing;
        }
        let Some(best) = self.links.first() else {
            return Step::Nothing;
        };
        let rank = links.get(best).and_then(|link| self.rank(best.0, link.module));
        // All processes agree on which transport is better.
        let others = |candidate: &&Candidate| candidate.transport < best.0;
        let most = match rank {
            Some(rank) if !self.theirs => rank,
            _ => self.candidates.iter().take_while(others).count(),
        };
        self.next(now, most).unwrap_or(Step::Nothing)
    }

    /// Returns the position of a path among all; lower is better.
    pub(crate) fn rank(&self, transport: TransportId, module: ModuleId) -> Option<usize> {
        let is = |candidate: &Candidate| candidate.transport == transport && candidate.path.module == module;
        self.candidates.iter().position(is)
    }

    /// Clears the failures of better paths when it is time to try them again.
    pub(crate) fn retry_better(&mut self, now: Time) {
        if self.again <= now {
            self.again = Time::NEVER;
            self.renew();
        }
    }

    /// Schedules the next try of a better path that has failed, with a back-off.
    pub(crate) fn missed(&mut self, now: Time, config: &Config) {
        let wait = config.retry_max.saturating_mul(1 << self.in_vain.min(BACK_OFF));
        self.in_vain += 1;
        self.again = now + wait;
    }

    /// Records an attempt that ended without a link.
    pub(crate) fn refused(&mut self, attempt: Attempt, counts: bool, barred: Time) {
        let Doing::Trying(own, transport, module) = self.doing else {
            return;
        };
        if own != attempt {
            return;
        }
        self.doing = Doing::Idle;
        let of =
            |candidate: &&mut Candidate| candidate.transport == transport && candidate.path.module == module;
        if let Some(candidate) = self.candidates.iter_mut().find(of) {
            candidate.failed = counts;
            candidate.barred = candidate.barred.max(barred);
        }
    }

    /// Records a new link.
    pub(crate) fn connected(
        &mut self,
        now: Time,
        key: LinkKey,
        attempt: Option<Attempt>,
        links: &BTreeMap<LinkKey, Link>,
    ) {
        self.links.push(key);
        let place = |key: &LinkKey| {
            let module = links.get(key).map(|link| link.module);
            (
                key.0,
                module
                    .and_then(|module| self.rank(key.0, module))
                    .unwrap_or(usize::MAX),
            )
        };
        let mut sorted = self.links.clone();
        sorted.sort_by_key(place);
        self.links = sorted;
        match self.doing {
            Doing::Trying(own, ..) if attempt != Some(own) => {}
            _ => self.doing = Doing::Idle,
        }
        if self.links.first() == Some(&key) {
            (self.again, self.in_vain) = (Time::NEVER, 0);
        }
        self.up_since = now;
        self.away = Time::NEVER;
        self.theirs = attempt.is_none();
    }

    /// Records the loss of a link. After the last one all paths are tried again, soon unless the link was
    /// short-lived.
    pub(crate) fn disconnected(&mut self, now: Time, key: LinkKey, config: &Config) {
        self.links.retain(|&link| link != key);
        if self.links.is_empty() {
            self.renew();
            self.round = 0;
            (self.again, self.in_vain) = (Time::NEVER, 0);
            if self.doing == Doing::Idle && now.since(self.up_since) < config.retry {
                self.doing = Doing::Resting(now + config.retry);
            }
        }
    }

    /// Clears all failures.
    pub(crate) fn renew(&mut self) {
        for candidate in &mut self.candidates {
            candidate.failed = false;
        }
    }

    /// Removes the paths of a module that is down.
    pub(crate) fn module_down(&mut self, transport: TransportId, module: ModuleId) {
        self.candidates
            .retain(|candidate| candidate.transport != transport || candidate.path.module != module);
    }
}

/// Returns the bit of a transport in a set; transports beyond the thirty-second have none.
pub(crate) fn bit(transport: TransportId) -> u32 {
    1_u32.checked_shl(u32::from(transport.0)).unwrap_or(0)
}

/// Returns how long a path with a lasting failure is not tried.
pub(crate) fn bar(config: &Config) -> Duration {
    config.retry_max
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config::new(Name::new(7, 0), Epoch(1), 2, Vec::new())
    }

    fn path(module: u16) -> Path {
        Path {
            module: ModuleId(module),
            addresses: vec!["there".into()],
        }
    }

    /// Fails the path that is to be tried, and returns which one it was.
    fn fail(hop: &mut Hop, now: Time, number: u64) -> Option<(u8, u16)> {
        match hop.pursue(now, &config()) {
            Step::Connect(transport, module, _) => {
                hop.doing = Doing::Trying(Attempt(number), transport, module);
                hop.refused(Attempt(number), true, Time::ZERO);
                Some((transport.0, module.0))
            }
            _ => None,
        }
    }

    #[test]
    fn all_ways_of_all_transports_in_all_rounds_and_then_it_is_given_up_once() {
        let mut hop = Hop::new();
        hop.set_paths(TransportId(1), vec![path(0)]);
        hop.set_paths(TransportId(0), vec![path(1), path(0)]);
        let mut now = Time::ZERO;
        for round in 1..=config().rounds {
            let tried: Vec<_> = (0..3).map(|number| fail(&mut hop, now, number)).collect();
            assert_eq!(tried, [Some((0, 1)), Some((0, 0)), Some((1, 0))]);
            match hop.pursue(now, &config()) {
                Step::Rest(until) => now = until,
                Step::GiveUp => assert_eq!(round, config().rounds),
                step => panic!("{step:?}"),
            }
        }
        assert_eq!(hop.pursue(now, &config()), Step::Nothing, "reported once");
        assert_eq!(now, Time::ZERO + config().retry * 7, "100, 200 and 400 ms");
        now += config().retry_max;
        assert!(fail(&mut hop, now, 9).is_some(), "it may be tried again later");
    }

    #[test]
    fn without_any_way_the_peer_has_its_grace() {
        let mut hop = Hop::new();
        let until = Time::ZERO + config().grace;
        assert_eq!(hop.pursue(Time::ZERO, &config()), Step::Rest(until));
        assert_eq!(hop.pursue(Time::from_nanos(5), &config()), Step::Nothing);
        assert_eq!(hop.pursue(until, &config()), Step::GiveUp);
    }

    #[test]
    fn a_better_way_is_sought_while_a_worse_one_carries() {
        let mut hop = Hop::new();
        hop.set_paths(TransportId(0), vec![path(0), path(1)]);
        hop.set_paths(TransportId(1), vec![path(0), path(1)]);
        let key = |transport| (TransportId(transport), LinkId(1));
        let link = || Link {
            peer: 0,
            module: ModuleId(1),
            epoch: Epoch(1),
            job: None,
            sent: 0,
            given: VecDeque::new(),
            bytes: 0,
        };
        let links = BTreeMap::from([(key(1), link()), (key(0), link())]);
        let sought = |hop: &Hop| match hop.better(Time::ZERO, &links) {
            Step::Connect(transport, module, _) => Some((transport.0, module.0)),
            _ => None,
        };
        hop.connected(Time::ZERO, key(1), None, &links);
        assert_eq!(sought(&hop), Some((0, 0)), "all processes prefer that transport");
        hop.connected(Time::ZERO, key(0), None, &links);
        assert_eq!(sought(&hop), None, "the peer prefers that module");
        hop.set_paths(TransportId(0), vec![path(0), path(1)]);
        assert_eq!(sought(&hop), Some((0, 0)), "something has changed");
        hop.connected(Time::ZERO, key(0), Some(Attempt(1)), &links);
        assert_eq!(sought(&hop), Some((0, 0)), "it was the best one available then");
        hop.doing = Doing::Trying(Attempt(1), TransportId(0), ModuleId(0));
        hop.refused(Attempt(1), true, Time::ZERO);
        let mut now = Time::ZERO;
        for doubled in [1, 2, 4, 8, 16, 16] {
            assert_eq!(hop.better(now, &links), Step::Nothing, "it has failed");
            hop.missed(now, &config());
            assert_eq!(hop.again, now + config().retry_max * doubled);
            hop.retry_better(now);
            assert_eq!(hop.better(now, &links), Step::Nothing, "not yet");
            now = hop.again;
            hop.retry_better(now);
            assert!(matches!(
                hop.better(now, &links),
                Step::Connect(_, ModuleId(0), _)
            ));
            hop.doing = Doing::Trying(Attempt(2), TransportId(0), ModuleId(0));
            hop.refused(Attempt(2), true, Time::ZERO);
        }
        hop.module_down(TransportId(0), ModuleId(0));
        assert_eq!(hop.better(Time::ZERO, &links), Step::Nothing);
        assert_eq!(hop.pursue(Time::ZERO, &config()), Step::Nothing, "a link is up");
    }
}
