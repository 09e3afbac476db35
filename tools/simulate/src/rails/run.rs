//! One job of many rails, played to its end: steps, weather, deaths, and what must hold all the time.

use std::path::Path;
use std::time::Duration;

use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_job::rails::{AnyRail, Manage as _};
use doorbell_pml::{InUse, PathState, Pml, Rank};
use doorbell_sim::{Change, Plane, Random, SimNet};

use super::rail::{attach, leftovers};
use super::seat::{Beside, Seat};
use super::shape::Shape;
use super::weather::Weather;
use super::{Counts, Outcome};
use crate::failure::Kind;
use crate::job::nothing_is_left;
use crate::plan::Plan;
use crate::player::Player;

/// After everything has ended, the longest time until every path that can be is up again. A path that breaks
/// now and then has to stay good for three seconds, after it was called and perhaps found to be silent first.
const RETURNS: Duration = Duration::from_secs(12);
/// The longest time after the last path is back until nothing is left.
const SETTLES: Duration = Duration::from_secs(2);
/// The longest time of an orderly end.
const FAREWELL: Duration = Duration::from_secs(2);
/// The longest time between two steps of a rank, while a rail is full.
const STRIDE: Duration = Duration::from_micros(500);

/// A job under way.
pub(crate) struct Run<'a, E: Seat> {
    net: &'a SimNet,
    shape: &'a Shape,
    plan: &'a Plan,
    weather: Weather,
    players: Vec<Player<E>>,
    /// What each of them does beside the plan, for some seeds.
    asides: Vec<Option<E::Aside>>,
    order: Vec<usize>,
    random: Random,
    stride: Duration,
    /// Ranks that have closed their end, of which nothing is due any more.
    closed: Vec<bool>,
    /// How often the clock was moved.
    steps: u64,
    /// The rank that dies, when, and whether the others were notified.
    death: Option<(u32, Time)>,
    news: Option<Time>,
    planes: Vec<Plane>,
    /// The rank that loses all its rails, and goes on, and when.
    isolation: Option<(u32, Time)>,
    isolated: Option<u32>,
}

impl<'a, E: Seat> Run<'a, E> {
    /// Seats the players, of which `ends` makes an end each, over the planes.
    pub(crate) fn new(
        seed: u64,
        net: &'a SimNet,
        shape: &'a Shape,
        plan: &'a Plan,
        ends: impl FnOnce(&[Plane]) -> Result<Vec<E>, Kind>,
    ) -> Result<Self, Kind> {
        let count = shape.frames.len();
        let more = (1..count).map(|at| net.add_plane(&format!("p{at}")));
        let planes: Vec<Plane> = std::iter::once(Plane::FIRST).chain(more).collect();
        for (plane, faults) in planes.iter().zip(&shape.faults) {
            net.change(Change::Faults(*plane, *faults));
        }
        let ends = ends(&planes)?;
        let seat = |(rank, end)| Player::new(end, plan, rank, shape.ranks, seed, shape.manners);
        Ok(Self {
            net,
            shape,
            plan,
            weather: Weather::of(seed, shape, &planes),
            players: (0..).zip(ends).map(seat).collect(),
            asides: (0..shape.ranks)
                .map(|rank| E::Aside::of(seed, rank, shape.ranks, shape.lasts))
                .collect(),
            order: (0..shape.ranks as usize).collect(),
            random: Random::for_part(seed, &[23]),
            stride: shape.pace,
            closed: vec![false; shape.ranks as usize],
            steps: 0,
            death: shape.death.map(|(rank, at, _)| (rank, Time::ZERO + at)),
            news: None,
            planes,
            isolation: shape.isolation.map(|(rank, at)| (rank, Time::ZERO + at)),
            isolated: None,
        })
    }

    pub(crate) fn play(mut self, dump: Option<&Path>) -> Result<Outcome, Kind> {
        if let Some(path) = dump {
            let file = std::fs::File::create(path).map_err(|error| Kind::Other(error.to_string()))?;
            self.net.dump(file);
        }
        for (player, aside) in self.players.iter_mut().zip(&mut self.asides) {
            if let Some(aside) = aside {
                aside.begin(&mut player.end)?;
            }
        }
        while !self.each_living().all(|(_, player)| player.is_done(self.plan)) {
            self.round()?;
        }
        let ended = self.net.now();
        self.clear_up()?;
        let counts = self.count();
        let longest = self.players.iter().map(|player| player.longest).max();
        self.part()?;
        Ok(Outcome {
            bytes: self.plan.bytes(),
            took: ended.since(Time::ZERO),
            longest: longest.unwrap_or_default(),
            steps: self.steps,
            counts,
            hash: self.net.trace_hash(),
        })
    }

    fn each_living(&self) -> impl Iterator<Item = (u32, &Player<E>)> {
        let all = (0..).zip(&self.players);
        all.filter(|(rank, _)| self.net.is_alive(*rank))
    }

    /// Steps every rank once, and advances the clock.
    fn round(&mut self) -> Result<(), Kind> {
        let now = self.net.now();
        self.turn(now);
        self.random.shuffle(&mut self.order);
        let mut worked = false;
        for &rank in &self.order {
            if self.net.is_alive(rank as u32) && !self.net.is_paused(rank as u32) {
                worked |= self.players[rank].step(self.plan, now)?;
                if let Some(aside) = &mut self.asides[rank] {
                    aside.step(&mut self.players[rank].end, now)?;
                }
            }
        }
        self.check(now)?;
        self.advance(worked);
        Ok(())
    }

    /// The weather turns, and ranks die.
    fn turn(&mut self, now: Time) {
        for change in self.weather.due(now) {
            self.net.change(change);
        }
        if let Some((rank, _)) = self.death.take_if(|(_, at)| *at <= now) {
            self.net.change(Change::RankDeath(rank));
            self.weather.changed = now;
            self.players.iter_mut().for_each(|player| player.died(rank));
            self.players[rank as usize].end.die();
            self.news = self.shape.death.map(|(_, _, after)| now + after);
        }
        if self.news.take_if(|at| *at <= now).is_some() {
            self.weather.changed = now;
            self.tell_of_the_dead(now);
        }
        if let Some((rank, _)) = self.isolation.take_if(|(_, at)| *at <= now) {
            self.isolate(rank);
            // Only then its peers are lost, those that were not noticed before.
            self.weather.changed = now + self.shape.patience();
        }
    }

    /// A rank loses all its rails, for good, and goes on.
    fn isolate(&mut self, rank: u32) {
        self.isolated = Some(rank);
        for plane in &self.planes {
            self.net.change(Change::NicDeath(*plane, rank));
        }
        for (other, player) in (0..).zip(&mut self.players) {
            if other != rank {
                player.died(rank);
                continue;
            }
            (0..self.shape.ranks)
                .filter(|peer| *peer != rank)
                .for_each(|peer| player.died(peer));
        }
    }

    /// When something changes next, beside the network itself.
    fn next_change(&self) -> Option<Time> {
        let of = |event: Option<(u32, Time)>| event.map(|(_, at)| at);
        [self.weather.next(), self.news, of(self.death), of(self.isolation)]
            .into_iter()
            .flatten()
            .min()
    }

    fn tell_of_the_dead(&mut self, now: Time) {
        let dead: Vec<u32> = (0..self.shape.ranks)
            .filter(|rank| !self.net.is_alive(*rank))
            .collect();
        for (rank, player) in (0..).zip(&mut self.players) {
            if self.net.is_alive(rank) {
                dead.iter().for_each(|dead| player.end.peer_died(now, *dead));
            }
        }
    }

    /// What holds all the time: a request for each that a rank has open, and no wait without an end.
    fn check(&self, now: Time) -> Result<(), Kind> {
        for (rank, player) in self.each_living() {
            let beside = self.asides[rank as usize].as_ref().map_or(0, Beside::open);
            let checked = player.end.check(player.open() + beside);
            checked.map_err(|why| Kind::Other(format!("rank {rank} {why}")))?;
        }
        let resting = self.next_change().is_some();
        let beside: u64 = self.asides.iter().flatten().map(Beside::bytes).sum();
        let most = self.shape.bound(self.plan.bytes() + beside)
            + if resting {
                self.shape.lull()
            } else {
                Duration::ZERO
            };
        let late = self
            .each_living()
            .find_map(|(_, player)| player.overdue(now, self.weather.changed, most));
        match late {
            Some(late) => Err(Kind::Endless(format!("{late}\n{}", self.explain()))),
            None => Ok(()),
        }
    }

    /// Returns which rank waits for what, and the state of the paths.
    fn explain(&self) -> String {
        let mut text = self.shape.text();
        for (rank, player) in self.each_living() {
            if !player.is_done(self.plan) {
                text.push_str(&format!("\n{}", player.explain(self.plan)));
            }
            let of = |peer: u32| {
                let number = player.end.number(peer);
                let known = player.end.pml().peer(number);
                known.into_iter().flat_map(|peer| peer.paths)
            };
            for peer in (0..self.shape.ranks).filter(|peer| *peer != rank) {
                let states: Vec<&str> = of(peer).map(|path| path.state.as_str()).collect();
                if states.iter().any(|state| *state != "up") {
                    text.push_str(&format!("\n  rank {rank} to {peer}: {}", states.join(", ")));
                }
            }
            text.push_str(&format!("\n  rank {rank}: {:?}", player.end.pml().in_use()));
        }
        text
    }

    /// One round takes its time; when no rank did anything, as long as until something is due.
    fn advance(&mut self, worked: bool) {
        self.steps += 1;
        let now = self.net.now();
        if worked {
            self.stride = self.shape.pace;
            return self.net.advance_to(now + self.shape.pace);
        }
        let awake = |(rank, player): (u32, &Player<E>)| {
            let deadline = player.next_deadline();
            deadline.filter(|_| !self.net.is_paused(rank))
        };
        let open = || {
            self.each_living()
                .filter(|(rank, _)| !self.closed[*rank as usize])
        };
        let due = open().filter_map(awake).chain(self.next_change());
        let mut next = due.chain(self.net.next_event()).min();
        if open().any(|(_, player)| player.end.must_poll()) {
            self.stride = (2 * self.stride).min(STRIDE);
            next = Some(next.map_or(now + self.stride, |next| next.min(now + self.stride)));
        }
        let least = now + self.shape.pace;
        self.net.advance_to(next.map_or(least, |next| next.max(least)));
    }

    /// All messages are there: the weather goes on to its end, ways come back, and then nothing may be left.
    fn clear_up(&mut self) -> Result<(), Kind> {
        while let Some(next) = self.next_change() {
            self.idle_until(next)?;
            self.turn(self.net.now());
        }
        let by = self.net.now() + RETURNS;
        while let Some(way) = self.missing_way() {
            if self.net.now() >= by {
                return Err(Kind::Other(format!(
                    "{way} after {RETURNS:?} of calm\n{}",
                    self.explain()
                )));
            }
            self.idle_until((self.net.now() + Duration::from_millis(50)).min(by))?;
        }
        let living = (0..)
            .zip(&mut self.players)
            .filter(|(rank, _)| self.net.is_alive(*rank));
        living.for_each(|(_, player)| player.discard_lost());
        let by = self.net.now() + SETTLES;
        while self.leftovers().is_some() && self.net.now() < by {
            self.idle_until(self.net.now() + Duration::from_millis(1))?;
        }
        match self.leftovers() {
            Some(what) => Err(Kind::Other(format!("{what}\n{}", self.explain()))),
            None => Ok(()),
        }
    }

    fn idle_until(&mut self, end: Time) -> Result<(), Kind> {
        self.net.set_alarm(u32::MAX, Some(end));
        while self.net.now() < end {
            let now = self.net.now();
            let mut worked = false;
            for rank in 0..self.players.len() {
                if self.net.is_alive(rank as u32) && !self.net.is_paused(rank as u32) {
                    worked |= self.players[rank].step(self.plan, now)?;
                    if let Some(aside) = &mut self.asides[rank] {
                        aside.clear_up(&mut self.players[rank].end)?;
                    }
                }
            }
            self.check(now)?;
            self.advance(worked);
        }
        self.net.set_alarm(u32::MAX, None);
        Ok(())
    }

    /// A way between two living ranks that could be up, and is not.
    fn missing_way(&self) -> Option<String> {
        let dead = |rank: u32| !self.net.is_alive(rank);
        for (rank, player) in self.each_living() {
            for other in (0..self.shape.ranks).filter(|other| *other != rank && !dead(*other)) {
                let Some(peer) = player.end.pml().peer(player.end.number(other)) else {
                    continue;
                };
                for (at, path) in peer.paths.iter().enumerate() {
                    let way = (at, rank.min(other), rank.max(other));
                    let gone = self.weather.is_gone(way) || [rank, other].map(Some).contains(&self.isolated);
                    if path.state != PathState::Up && !gone {
                        return Some(format!(
                            "rank {rank}: the way to {other} over {} is {}",
                            path.name, path.state
                        ));
                    }
                }
            }
        }
        None
    }

    /// What is taken and should not be.
    fn leftovers(&self) -> Option<String> {
        let of = |(rank, player): (u32, &Player<E>)| {
            let used = player.end.pml().in_use();
            if used != InUse::default() {
                let requests = player.end.pml().live_lines().join("; ");
                return Some(format!("rank {rank} is left with {used:?}: {requests}"));
            }
            let peers = self.shape.ranks as usize - 1;
            let rails = player.end.pml().rails();
            rails
                .filter_map(|(_, rail)| {
                    let left = leftovers(rail, peers)?;
                    Some(format!("rank {rank}: {} is left with {left}", rail.name()))
                })
                .next()
        };
        let beside = || {
            let asides: Vec<_> = self.asides.iter().map(Option::as_ref).collect();
            E::Aside::missing(&asides, &|one, other| self.are_together(one, other))
        };
        self.each_living()
            .find_map(of)
            .or_else(|| self.debt())
            .or_else(beside)
    }

    /// Whether both live, and can reach each other.
    fn are_together(&self, one: u32, other: u32) -> bool {
        let is_cut_off = |rank| self.isolated == Some(rank);
        self.net.is_alive(one)
            && self.net.is_alive(other)
            && (one == other || !is_cut_off(one) && !is_cut_off(other))
    }

    /// Where nothing is under way, a window has no less room than for what its receiver has not reported yet.
    fn debt(&self) -> Option<String> {
        let living = |rank: &u32| self.net.is_alive(*rank);
        let of = |(rank, player): (u32, &Player<E>)| {
            let most = player.end.pml().config().window / 4;
            (0..self.shape.ranks).filter(living).find_map(|other| {
                let peer = player.end.pml().peer(player.end.number(other));
                let peer = peer.filter(|peer| peer.lost.is_none())?;
                let debt = peer.unreported;
                (debt > most).then(|| {
                    format!(
                        "rank {rank} has {debt} bytes to its charge at {other}, which counts {most} at most"
                    )
                })
            })
        };
        self.each_living().find_map(of)
    }

    fn count(&self) -> Counts {
        let mut counts = Counts::default();
        for (_, player) in self.each_living() {
            let of = player.end.pml().counters();
            counts.broken += of.paths_down;
            counts.returned += of.paths_returned;
            counts.restarts += of.restarts;
            counts.resent += of.resent;
            counts.duplicates += of.drops.duplicate;
            counts.lost += of.peers_lost;
        }
        counts
    }

    /// Closes every rank, and checks that the network has nothing under way any more.
    fn part(&mut self) -> Result<(), Kind> {
        let drops = self.each_living().find_map(|(rank, player)| {
            let drops = player.end.pml().counters().drops;
            // A way that breaks brings the others: what comes twice, late, or of the dead.
            let wrong = drops.runt
                + drops.unknown_kind
                + drops.unknown_peer
                + drops.too_far_ahead
                + drops.wrong_peer
                + drops.wrong_identity
                + drops.bad_range
                + drops.unknown_operation;
            (wrong > 0).then(|| format!("rank {rank} has dropped {drops:?}"))
        });
        if let Some(drops) = drops {
            return Err(Kind::Other(drops));
        }
        let by = self.net.now() + FAREWELL;
        self.closed = (0..self.shape.ranks)
            .map(|rank| !self.net.is_alive(rank))
            .collect();
        while self.closed.contains(&false) {
            let now = self.net.now();
            for (player, closed) in self.players.iter_mut().zip(&mut self.closed) {
                *closed = *closed || player.end.close(now, by);
            }
            self.advance(false);
        }
        self.players.clear();
        nothing_is_left(self.net)
    }
}

/// Makes a PML for each rank, which knows all of them.
pub(crate) fn pmls(
    seed: u64,
    net: &SimNet,
    shape: &Shape,
    planes: &[Plane],
) -> Result<Vec<Pml<AnyRail>>, Kind> {
    let other = |error: String| Kind::Other(error);
    let rails = (0..shape.ranks).map(|rank| rails_of(seed, net, shape, planes, rank));
    let rails = rails.collect::<Result<Vec<_>, Kind>>()?;
    let address = |rail: &AnyRail| (rail.address(), rail.incarnation());
    let known: Vec<Vec<_>> = rails
        .iter()
        .map(|own| own.iter().map(address).collect())
        .collect();
    let mut pmls = Vec::new();
    for (rank, own) in (0..).zip(rails) {
        let mut pml = Pml::new(shape.pml(rank)).map_err(|error| other(error.to_string()))?;
        for (at, rail) in own.into_iter().enumerate() {
            let id = pml.add_rail(rail).map_err(|error| other(error.to_string()))?;
            for (peer, addresses) in (0..).zip(&known) {
                let (address, life) = &addresses[at];
                pml.connect(Rank(peer), id, address, *life)
                    .map_err(|error| other(error.to_string()))?;
            }
        }
        pmls.push(pml);
    }
    Ok(pmls)
}

/// Makes the rails of a rank, one for each plane.
pub(crate) fn rails_of(
    seed: u64,
    net: &SimNet,
    shape: &Shape,
    planes: &[Plane],
    rank: u32,
) -> Result<Vec<AnyRail>, Kind> {
    let mut key = [0; 32];
    let mut random = Random::for_part(seed, &[5]);
    key.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
    let own = planes.iter().zip(&shape.frames);
    own.map(|(plane, frames)| attach(net, rank, *plane, *frames, &shape.btl, key))
        .collect()
}
