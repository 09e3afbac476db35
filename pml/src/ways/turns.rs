//! What rails and peers tell about ways: one breaks, answers again, comes back.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Life, RailEvent, Scope};
use doorbell_fabric::message::Message;
use doorbell_fabric::time::Time;
use doorbell_paths::state::TRANSITIONS;
use doorbell_paths::table::next;
use doorbell_paths::{PathEvent, PathState};

use crate::core::Core;
use crate::dispatch::NOBODY;
use crate::error::LostReason;
use crate::peer::{Control, about};
use crate::pml::Pml;
use crate::wire::{self, Head, RNDV_LEN, RndvHeader, WAY_LEN, WayHeader, kind};

/// The first back-off before a way that broke is called, and the longest.
const BACK_OFF: Duration = Duration::from_millis(50);
const BACK_OFF_MOST: Duration = Duration::from_secs(1);
/// How long a way that came back has to stay good before it is used; doubled each time that it breaks again within
/// [`CALM`], up to [`HOLD_MOST`]: with the longest back-off and a second or two of a loaded host, it carries its share
/// within five seconds of its link's return (`cargo xtask rails`).
const HOLD: Duration = Duration::from_millis(500);
const HOLD_MOST: Duration = Duration::from_secs(2);
const CALM: Duration = Duration::from_secs(20);
/// How long what a process sent over other ways before it ended may take to be read.
const LAST_WORDS: Duration = Duration::from_millis(10);

impl<M: Message> Pml<M> {
    /// Acts on an event of a rail.
    #[cold]
    pub(crate) fn on_event(&mut self, rail: usize, event: RailEvent) {
        for rank in self.ranks_of(rail, event.scope) {
            let Some(at) = self.core.peers[rank as usize].path_of(rail as u16) else {
                continue;
            };
            if self.core.hot[rank as usize].is(about::LOST) {
                continue;
            }
            match event.kind {
                EventKind::PeerUp => self.way_reached(rank, at, event.life),
                EventKind::PeerSuspect => self.way_silent(rank, at),
                EventKind::PeerRecovered => self.way_answers(rank, at),
                EventKind::PeerDown(reason) => self.way_ended(rank, at, LostReason::Peer(reason), true),
                EventKind::LinkDown => self.way_broken(rank, at, LostReason::Link),
                EventKind::LinkUp => self.way_plugged(rank, at),
                EventKind::DeviceGone => self.way_broken(rank, at, LostReason::Device),
            }
        }
    }

    fn ranks_of(&self, rail: usize, scope: Scope) -> Vec<u32> {
        let ranks = &self.rails[rail].ranks;
        let all = match scope {
            Scope::Peer(peer) => ranks.get(peer.index()).map(std::slice::from_ref),
            Scope::Rail => Some(&ranks[..]),
        };
        let known = all.unwrap_or_default().iter().copied();
        known.filter(|rank| *rank != NOBODY).collect()
    }

    /// A rail refused a message for good. If that was the end of the peer, the rail will say so.
    #[cold]
    pub(crate) fn path_refused(&mut self, rank: u32, at: usize) {
        self.way_broken(rank, at, LostReason::Link);
    }

    /// Its link is back: the peer is called at once.
    fn way_plugged(&mut self, rank: u32, at: usize) {
        let now = self.core.now;
        let Some(watch) = &mut self.core.peers[rank as usize].watch else {
            return;
        };
        if let Some((until, reason @ LostReason::Link)) = &mut watch.alone {
            // From here on it is no link that keeps the peer away, and it has all of its time to answer.
            *reason = LostReason::Peer(DownReason::Silent);
            *until = now + self.core.config.patience;
        }
        let way = &mut watch.ways[at];
        way.back_off = BACK_OFF;
        match way.state {
            PathState::Down => way.due = now,
            // The calls so far went nowhere.
            PathState::Probing => self.call(now, rank, at),
            PathState::Up | PathState::Suspect | PathState::Returning => {}
        }
        self.core.tick_at = Time::ZERO;
    }

    /// The peer owes answers over this way.
    fn way_silent(&mut self, rank: u32, at: usize) {
        self.core.watch(rank);
        self.core.move_way(rank, at, PathEvent::Silent);
    }

    fn way_answers(&mut self, rank: u32, at: usize) {
        if self.core.peers[rank as usize].watch.is_some() {
            self.core.move_way(rank, at, PathEvent::Answered);
        }
    }

    /// Both directions stand again.
    fn way_reached(&mut self, rank: u32, at: usize, life: Life) {
        let Some(watch) = &mut self.core.peers[rank as usize].watch else {
            return; // first contact
        };
        watch.ways[at].life = life;
        self.core.move_way(rank, at, PathEvent::Reached);
        self.forget_news(rank, at);
        // Without another one, there is nothing to wait for.
        if self.core.peers[rank as usize].way(at) == PathState::Returning
            && self.core.peers[rank as usize].first_up().is_none()
        {
            self.way_steady(rank, at);
        }
    }

    /// That a way broke has waited for another one, and is no news any more: the peer has begun anew, too.
    fn forget_news(&mut self, rank: u32, at: usize) {
        let is_that = |word: &Control| match word {
            Control::Head(head) => broken_way(head.as_bytes()).is_some_and(|(way, _)| way == at),
            _ => false,
        };
        self.core.peers[rank as usize]
            .control
            .retain(|word| !is_that(word));
    }

    /// It is used again.
    pub(super) fn way_steady(&mut self, rank: u32, at: usize) {
        self.core.move_way(rank, at, PathEvent::Steady);
        self.forget_news(rank, at);
        let peer = &mut self.core.peers[rank as usize];
        peer.paths[at].up = true;
        if let Some(watch) = &mut peer.watch {
            watch.alone = None;
        }
        self.core.counters.paths_returned += 1;
        self.core.refresh(rank);
        self.core.list(rank);
    }

    /// A way is given up, whatever its rail thinks of it.
    #[cold]
    pub(super) fn way_broken(&mut self, rank: u32, at: usize, reason: LostReason) {
        self.way_ended(rank, at, reason, false);
    }

    /// A way has broken, which its rail has told or is told now: what was under way over it goes over the others.
    #[cold]
    fn way_ended(&mut self, rank: u32, at: usize, reason: LostReason, told: bool) {
        if self.core.hot[rank as usize].is(about::LOST) {
            return;
        }
        let watch = self.core.watch(rank);
        let way = &mut watch.ways[at];
        way.dead |= reason.is_for_good();
        if next(TRANSITIONS, way.state, PathEvent::Broken).is_none() {
            // It is down already, and now it is known why.
            if watch.alone.is_some() {
                self.alone(rank, at, reason);
            }
            return;
        }
        self.core.move_way(rank, at, PathEvent::Broken);
        let path = &mut self.core.peers[rank as usize].paths[at];
        let was_up = std::mem::replace(&mut path.up, false);
        let lossy = was_up && !path.can.features.reclaim;
        if !told {
            // A rail that told it may know more meanwhile: that the peer is back, over a connection which is good.
            let path = &self.core.peers[rank as usize].paths[at];
            self.rails[usize::from(path.rail)].rail.abandon(path.peer);
        }
        self.take_back(rank, at);
        if was_up {
            self.core.counters.paths_down += 1;
            self.core.refresh(rank);
        }
        if self.core.peers[rank as usize].first_up().is_none() {
            self.hurry(rank);
        }
        let others = self.core.peers[rank as usize].first_up().is_some();
        if lossy && (others || self.core.may_hope(rank, at, reason)) {
            self.lose(rank, LostReason::NotReclaimable);
        } else if others {
            self.others_carry_on(rank, at, reason);
        } else {
            self.alone(rank, at, reason);
        }
    }

    /// No way is up: one that is on its way back does not have to prove itself.
    fn hurry(&mut self, rank: u32) {
        let ways = &self.core.watch(rank).ways;
        if let Some(at) = ways.iter().position(|way| way.state == PathState::Returning) {
            self.way_steady(rank, at);
        }
    }

    fn others_carry_on(&mut self, rank: u32, at: usize, reason: LostReason) {
        // Unless it is from the peer that we know.
        if reason != LostReason::Peer(DownReason::Abandoned) {
            self.tell_broken(rank, at);
        }
        self.core.list(rank);
        let within = self.core.peers[rank as usize].paths[at].can.features.within_host;
        if within && reason == LostReason::Peer(DownReason::Died) {
            // Within a host it is the process itself that is seen to end: no need to wait for its silence elsewhere.
            let until = self.core.now + LAST_WORDS;
            self.core.watch(rank).ended.get_or_insert(until);
            self.core.tick_at = Time::ZERO;
        }
    }

    pub(super) fn lose(&mut self, rank: u32, reason: LostReason) {
        self.core.fail_peer(rank, reason);
        self.apply_withdrawals();
    }

    /// Tells the peer that a way is given up, over each of the others: the peer may have closed its end of the one that
    /// is next in turn here, and not have been able to tell us that.
    fn tell_broken(&mut self, rank: u32, broken: usize) {
        let life = self.core.watch(rank).ways[broken].life;
        let word = WayHeader::new(kind::BROKEN, broken as u16, life.0);
        let mut told = false;
        for at in 0..self.core.peers[rank as usize].paths.len() {
            if self.core.peers[rank as usize].paths[at].up {
                told |= self.say_over(rank, at, word);
            }
        }
        if !told {
            self.core.tell(rank, Head::new(&word));
        }
    }

    /// What the rail had accepted and the peer has not taken waits for another way, and what named memory of this one
    /// begins anew.
    fn take_back(&mut self, rank: u32, at: usize) {
        let path = &self.core.peers[rank as usize].paths[at];
        let (index, rail) = (path.peer, usize::from(path.rail));
        let rail = &mut self.rails[rail].rail;
        let taken = rail.handed_over(index);
        let control = &mut self.core.peers[rank as usize].control;
        let (mut announced, mut news) = (Vec::new(), Vec::new());
        rail.reclaim(index, &mut |_, bytes| match bytes.first() {
            // What is about that way itself is over with it.
            Some(&(kind::PROBE | kind::ECHO)) => {}
            Some(&kind::BROKEN) => news.extend(broken_way(bytes).filter(|one| !news.contains(one))),
            Some(&kind::RGET) => {
                announced.extend(announcer(bytes));
                control.push_back(Control::Again(bytes.to_vec()));
            }
            _ => control.push_back(Control::Again(bytes.to_vec())),
        });
        // What it was to tell about others is told once more; of those that have come back since, it is late.
        for (broken, life) in news {
            let ways = &self.core.watch(rank).ways;
            if ways.get(broken).is_some_and(|way| way.life == life) {
                let word = WayHeader::new(kind::BROKEN, broken as u16, life.0);
                self.core.tell(rank, Head::new(&word));
            }
        }
        self.break_transfers(rank, at, &announced, taken);
    }

    /// No way is up. Where one may come back it is waited for; otherwise the peer is lost.
    fn alone(&mut self, rank: u32, at: usize, reason: LostReason) {
        if !self.core.may_hope(rank, at, reason) {
            self.lose(rank, reason);
            return;
        }
        let (now, patience) = (self.core.now, self.core.config.patience);
        let watch = self.core.watch(rank);
        let until = watch.alone.map_or(now + patience, |(until, _)| until);
        watch.alone = Some((until, reason));
        self.core.tick_at = Time::ZERO;
    }
}

/// The way that a BROKEN of our own is about, and which connection of it.
fn broken_way(bytes: &[u8]) -> Option<(usize, Life)> {
    let head = bytes.first_chunk::<WAY_LEN>()?;
    let word: WayHeader = wire::parse(*head);
    (word.kind == kind::BROKEN).then(|| (word.way.get().into(), Life(word.number.get())))
}

/// The request that an RGET belongs to.
fn announcer(bytes: &[u8]) -> Option<u64> {
    let head = bytes.first_chunk::<RNDV_LEN>()?;
    Some(wire::parse::<RndvHeader, _>(*head).sender.get())
}

impl LostReason {
    /// Whether what broke for this reason does not come back.
    fn is_for_good(self) -> bool {
        matches!(
            self,
            Self::Device
                | Self::Peer(
                    DownReason::Closed | DownReason::Died | DownReason::Hostile | DownReason::Control
                )
        )
    }
}

impl Core {
    /// Whether a peer whose last way `at` broke may be heard of again.
    fn may_hope(&mut self, rank: u32, at: usize, reason: LostReason) -> bool {
        let ways = &self.watch(rank).ways;
        let others = ways
            .iter()
            .enumerate()
            .any(|(other, way)| other != at && !way.dead);
        let hope = match reason {
            LostReason::Link | LostReason::Peer(DownReason::Abandoned) => true,
            // What is said of this way alone: another one may come back.
            LostReason::Device
            | LostReason::Peer(DownReason::Silent | DownReason::Hostile | DownReason::Resources) => others,
            // What is said of the process.
            LostReason::Peer(DownReason::Closed | DownReason::Died | DownReason::Control)
            | LostReason::NotReclaimable
            | LostReason::Flood
            | LostReason::Unmet => false,
        };
        hope && !self.config.patience.is_zero()
    }

    /// Moves a way on, if the table says so, and sees to what the new state needs.
    pub(super) fn move_way(&mut self, rank: u32, at: usize, event: PathEvent) {
        let now = self.now;
        let Some(watch) = &mut self.peers[rank as usize].watch else {
            return;
        };
        let way = &mut watch.ways[at];
        let Some(next) = next(TRANSITIONS, way.state, event) else {
            return;
        };
        match (way.state, next) {
            (PathState::Probing, PathState::Down) => way.back_off = (way.back_off * 2).min(BACK_OFF_MOST),
            (_, PathState::Down) => {
                way.fall(now);
                way.flow.broke();
                way.forget_given_up();
            }
            _ => {}
        }
        way.state = next;
        way.since = now;
        (way.asked, way.unmet, way.answers, way.answered) = (None, None, 0, None);
        way.due = match next {
            PathState::Down => now + way.back_off,
            PathState::Up | PathState::Suspect | PathState::Probing | PathState::Returning => now,
        };
        self.tick_at = Time::ZERO;
        if matches!(next, PathState::Up | PathState::Suspect) {
            self.refresh(rank);
        }
    }
}

impl super::Way {
    /// It breaks while it was good: how soon it is called, and for how long it has to stay good.
    fn fall(&mut self, now: Time) {
        let calm = self.fell.is_none_or(|fell| now.since(fell) > CALM);
        self.hold = if calm {
            HOLD
        } else {
            (self.hold * 2).clamp(HOLD, HOLD_MOST)
        };
        self.back_off = BACK_OFF;
        self.fell = Some(now);
    }
}
