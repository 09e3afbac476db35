//! What rails and peers tell about ways: one breaks, answers again, comes back; and the end of a peer.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Life, RailEvent, Scope};
use doorbell_fabric::message::Message;
use doorbell_paths::{PathEvent, PathState, each};

use super::waiting::seq_of;
use super::way::{BACK_OFF, Why};
use super::{Core, FIRST_LEN, First, Link, NOBODY, OWN_KINDS, PeerId, kind};

/// How long what a process sent over other ways before it ended may take to be read.
const LAST_WORDS: Duration = Duration::from_millis(10);

impl<M: Message> Link<M> {
    /// Acts on an event of a rail.
    #[cold]
    pub(super) fn on_event(&mut self, rail: usize, event: RailEvent) {
        let names = &self.rails[rail].names;
        let about = match event.scope {
            Scope::Peer(peer) => names.get(peer.index()).map(std::slice::from_ref),
            Scope::Rail => Some(&names[..]),
        };
        let about: Vec<u32> = about
            .unwrap_or_default()
            .iter()
            .copied()
            .filter(|name| *name != NOBODY)
            .collect();
        for peer in about {
            let index = match event.scope {
                Scope::Peer(index) => Some(index),
                Scope::Rail => None,
            };
            let ways = self.core.peers[peer as usize].ways_that(|way| {
                usize::from(way.rail) == rail && index.is_none_or(|index| index == way.index)
            });
            for at in each(ways) {
                self.on_way_event(peer, at, event.kind, event.life);
            }
        }
    }

    fn on_way_event(&mut self, peer: u32, at: usize, kind: EventKind, life: Life) {
        if self.core.peers[peer as usize].lost {
            return;
        }
        match kind {
            EventKind::PeerUp => self.way_reached(peer, at, life),
            EventKind::PeerSuspect => self.move_way(peer, at, PathEvent::Silent),
            EventKind::PeerRecovered => self.move_way(peer, at, PathEvent::Answered),
            EventKind::PeerDown(reason) => self.way_ended(peer, at, Why::Peer(reason), true),
            EventKind::LinkDown => self.way_broken(peer, at, Why::Link),
            EventKind::DeviceGone => self.way_broken(peer, at, Why::Device),
            EventKind::LinkUp => self.way_plugged(peer, at),
        }
    }

    /// Moves a way on, if the table says so, and sees to what the new state needs.
    pub(super) fn move_way(&mut self, peer: u32, at: usize, event: PathEvent) {
        let now = self.core.now;
        if self.core.peers[peer as usize].ways[at].turn(now, event) {
            self.core.watch(peer);
            self.refresh(peer);
        }
    }

    /// Its link is back: the peer is called at once.
    fn way_plugged(&mut self, peer: u32, at: usize) {
        let now = self.core.now;
        let known = &mut self.core.peers[peer as usize];
        if let Some((until, why @ Why::Link)) = &mut known.alone {
            // From here on it is no link that keeps the peer away, and it has all of its time to answer.
            *why = Why::Peer(DownReason::Silent);
            *until = now + self.core.config.patience;
        }
        let way = &mut known.ways[at];
        way.back_off = BACK_OFF;
        match way.state {
            PathState::Down => way.due = now,
            // The calls so far went nowhere.
            PathState::Probing => self.call(now, peer, at),
            PathState::Up | PathState::Suspect | PathState::Returning => return,
        }
        self.core.watch(peer);
    }

    /// Both directions stand: at first, or again.
    fn way_reached(&mut self, peer: u32, at: usize, life: Life) {
        let way = &mut self.core.peers[peer as usize].ways[at];
        way.life = life;
        way.met = true;
        if way.state == PathState::Up {
            return self.refresh(peer);
        }
        self.move_way(peer, at, PathEvent::Reached);
        // That it broke is no news any more: the peer has begun anew, too.
        self.forget_news(peer, at);
        let known = &self.core.peers[peer as usize];
        // Without another one, there is nothing to wait for.
        if known.ways[at].state == PathState::Returning && known.ways_that(|way| way.state.is_used()) == 0 {
            self.way_steady(peer, at);
        }
        self.core.stir(peer);
    }

    fn forget_news(&mut self, peer: u32, at: usize) {
        let news = &mut self.core.peers[peer as usize].news;
        news.retain(|(way, _)| usize::from(*way) != at);
    }

    /// It is used again.
    pub(super) fn way_steady(&mut self, peer: u32, at: usize) {
        self.forget_news(peer, at);
        self.core.peers[peer as usize].alone = None;
        self.core.stats.ways_returned += 1;
        self.move_way(peer, at, PathEvent::Steady);
    }

    /// A way is given up, whatever its rail thinks of it.
    #[cold]
    pub(super) fn way_broken(&mut self, peer: u32, at: usize, why: Why) {
        self.way_ended(peer, at, why, false);
    }

    /// A way has broken, which its rail has `told`, or is told now: what was under way over it goes over the others.
    #[cold]
    fn way_ended(&mut self, peer: u32, at: usize, why: Why, told: bool) {
        if self.core.peers[peer as usize].lost {
            return;
        }
        self.core.settle(peer);
        let known = &mut self.core.peers[peer as usize];
        let way = &mut known.ways[at];
        way.dead |= why.is_for_good();
        let was = way.state;
        if !way.turn(self.core.now, PathEvent::Broken) {
            // It is down already, and now it is known why.
            if known.alone.is_some() {
                self.alone(peer, why);
            }
            return;
        }
        let slot = &mut self.rails[usize::from(way.rail)];
        let keeps = slot.can.features.reclaim;
        let lossy = !keeps
            && way
                .flight
                .oldest_over(|| slot.rail.handed_over(way.index))
                .is_some();
        if !told {
            // A rail that told it may know more meanwhile: that the peer is back, over a connection which is good.
            slot.rail.abandon(way.index);
        }
        self.core.stats.ways_down += u64::from(was.is_used());
        self.core.watch(peer);
        self.take_back(peer, at);
        self.refresh(peer);
        if self.used(peer) == 0 {
            self.hurry(peer);
        }
        let others = self.used(peer) != 0;
        if lossy && (others || self.hopes(peer, why)) {
            self.lose(peer, Why::NotReclaimable);
        } else if others {
            self.others_carry_on(peer, at, why);
        } else {
            self.alone(peer, why);
        }
    }

    fn used(&self, peer: u32) -> u64 {
        self.core.peers[peer as usize].ways_that(|way| way.state.is_used())
    }

    /// No way is up: one that is on its way back does not have to prove itself.
    fn hurry(&mut self, peer: u32) {
        let ways = &self.core.peers[peer as usize].ways;
        if let Some(at) = ways.iter().position(|way| way.state == PathState::Returning) {
            self.way_steady(peer, at);
        }
    }

    /// Tells the peer which way is given up, over each of the others: the peer may have closed its end of the one that is
    /// next here, and not have been able to tell us that.
    fn others_carry_on(&mut self, peer: u32, at: usize, why: Why) {
        let way = &self.core.peers[peer as usize].ways[at];
        let (life, rail) = (way.life, usize::from(way.rail));
        // Unless it is from the peer that we know.
        if why != Why::Peer(DownReason::Abandoned) && !self.tell_all(peer, at as u16, life) {
            self.core.add_news(peer, at as u16, life);
        }
        if self.rails[rail].can.features.within_host && why == Why::Peer(DownReason::Died) {
            // Within a host it is the process itself that is seen to end: no need to wait for its silence elsewhere.
            let until = self.core.now + LAST_WORDS;
            self.core.peers[peer as usize].ended.get_or_insert(until);
            self.core.watch(peer);
        }
    }

    /// What the rail had accepted and the peer has not taken waits for another way.
    fn take_back(&mut self, peer: u32, at: usize) {
        let core = &mut self.core;
        let way = &mut core.peers[peer as usize].ways[at];
        way.flight.clear();
        let (rail, index) = (usize::from(way.rail), way.index);
        let mut news = Vec::new();
        self.rails[rail].rail.reclaim(index, &mut |_, bytes| {
            let Some(first) = bytes.first_chunk::<FIRST_LEN>() else {
                return;
            };
            let first: First = zerocopy::transmute!(*first);
            if first.kind < OWN_KINDS {
                core.peers[peer as usize]
                    .again
                    .push_back(core.buffers.copy(bytes));
            } else if first.kind == kind::BROKEN {
                // What it was to tell about others is told once more; probes of that way itself are over with it.
                news.push((first.short.get(), Life(first.seq.get())));
            }
        });
        for (way, life) in news {
            // Of those that have come back since, it is late.
            let known = core.peers[peer as usize].ways.get(usize::from(way));
            if known.is_some_and(|way| way.life == life) {
                core.add_news(peer, way, life);
            }
        }
        let next = core.hot[peer as usize].next;
        let age = |kept: &super::Kept| std::cmp::Reverse(next.wrapping_sub(seq_of(kept)));
        let again = &mut core.peers[peer as usize].again;
        again.make_contiguous().sort_by_key(age);
        if core.peers[peer as usize].waits() {
            core.list(peer);
        }
    }

    /// No way is up. Where one may come back it is waited for; otherwise the peer is lost.
    fn alone(&mut self, peer: u32, why: Why) {
        if !self.hopes(peer, why) {
            self.lose(peer, why);
            return;
        }
        let patience = self.core.now + self.core.config.patience;
        let known = &mut self.core.peers[peer as usize];
        let until = known.alone.map_or(patience, |(until, _)| until);
        known.alone = Some((until, why));
        self.core.watch(peer);
    }

    /// Whether a peer whose last way broke may be heard of again.
    fn hopes(&self, peer: u32, why: Why) -> bool {
        let more = self.core.peers[peer as usize].ways_that(|way| !way.dead) != 0;
        why.leaves_hope(more) && !self.core.config.patience.is_zero()
    }

    /// The process of a peer has ended, which is known from elsewhere than its rails.
    pub(crate) fn ended(&mut self, peer: PeerId, reason: DownReason) {
        if peer != PeerId::SELF && peer.index() < self.core.peers.len() {
            self.lose(peer.0, Why::Peer(reason));
        }
    }

    /// A peer is lost: nothing more goes to it, and nothing that comes is shown. Its ways are given up: a rail that does
    /// not know of the loss would go on to send again what nobody will answer, and keep it for ever.
    #[cold]
    pub(super) fn lose(&mut self, peer: u32, why: Why) {
        if std::mem::replace(&mut self.core.peers[peer as usize].lost, true) {
            return;
        }
        for at in 0..self.core.peers[peer as usize].ways.len() {
            let way = &mut self.core.peers[peer as usize].ways[at];
            way.flight.clear();
            let (rail, index) = (usize::from(way.rail), way.index);
            let slot = &mut self.rails[rail];
            slot.names[index.index()] = NOBODY;
            slot.rail.abandon(index);
            slot.rail.reclaim(index, &mut |_, _| {});
        }
        self.core.forget(peer);
        self.core.stats.lost += 1;
        self.core.gone.push_back((PeerId(peer), why.reason()));
    }
}

impl Core {
    /// The peer is to be told that a way is given up, once there is room.
    fn add_news(&mut self, peer: u32, way: u16, life: Life) {
        let news = &mut self.peers[peer as usize].news;
        news.retain(|(known, _)| *known != way);
        news.push((way, life));
        self.list(peer);
    }

    /// Everything that waits for a peer, or of it, is over.
    fn forget(&mut self, peer: u32) {
        let hot = &mut self.hot[peer as usize];
        (hot.limit, hot.held) = (0, false);
        let known = &mut self.peers[peer as usize];
        known.news.clear();
        self.buffers.give_all(&mut known.again);
        self.buffers.give_all(&mut known.fresh);
        known.fresh_bytes = 0;
        for kept in known.held.take() {
            self.buffers.give(kept);
        }
        known.held_charge = 0;
        (known.alone, known.ended) = (None, None);
    }
}
