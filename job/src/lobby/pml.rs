//! A member with a PML: a process that belongs to no job. Its peers are processes that have its address, or
//! whose addresses it has, and each process numbers its peers by itself.
//!
//! ```text
//!   resolve(address) ─► number, unmet ── something to send ─► wanted ─► desk: a call ── card ─► open ─► sent
//!                                                            the other's desk ─► card ─► opened there too
//! ```
//!
//! The number of a peer belongs to one acquaintance. A peer that forgets this process ([`PmlMember::leave`])
//! and calls it again begins another one: the old number is lost, and a new one appears. So does a peer that
//! is lost here and calls. Both ends count their acquaintances, and cards have these counts, so that two
//! calls at once are not taken for two acquaintances.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use doorbell_fabric::event::DownReason;
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, Rail as _};
use doorbell_fabric::time::Time;
use doorbell_oob::JobKey;
use doorbell_pml::{LostReason, Pml, RailId, Rank};
use doorbell_sim::SimNet;

use super::address::{Address, PeerId};
use super::book::Book;
use super::card::{Card, Name};
use super::desk::{Desk, DeskCounts, Place};
use super::hello::{Doors, HelloCounts};
use super::layer::{MemberLayer, PeerName, PeerNews};
use super::meeting_key::MeetingKey;
use super::naming::{
    FREE_PORTS, at_port, first_door, for_other_hosts, no_port_is_free, port_is_taken, reserve,
    service_is_last, service_is_taken,
};
use super::remote::{Remote, doors_of};
use super::{Member, Prepared, host, prepare, prepare_over};
use crate::config::Config;
use crate::config::drivers::pml_config;
use crate::connect::PeerPath;
use crate::error::Error;
use crate::meet::{Key, RailEntry};
use crate::rails::{AnyRail, Manage as _, would_lead_out};
use crate::random;
use crate::wait::turns::Clock;

/// This process's own number.
const OWN: Rank = Rank(0);
/// Most peers of one member. Those that are not met take little.
const MOST_PEERS: u32 = 1 << 20;
/// The bits of a context that name the sender's endpoint.
const SOURCES: u16 = 0x00ff;
/// Interval between two looks at the desk.
const SERVE_EVERY: Duration = Duration::from_micros(100);
/// Attempts to get a port that no other member of this host has.
const PORT_TRIES: usize = 8;
/// How long the owner waits for the answer of a peer that may have come back under its name.
const ANSWER: Duration = Duration::from_millis(100);
/// Most peers whose lines one look at the desk considers.
const LINES_AT_ONCE: usize = 64;

/// A process that sends and receives messages without a job.
pub type PmlMember = Member<PmlLayer>;

/// A PML above the rails of a member, and its peers.
pub struct PmlLayer {
    pml: Pml<AnyRail>,
    /// The identity in this member's address: that on other hosts.
    own: PeerId,
    book: Book,
    /// The first contact with members of other hosts, where a rail leads there.
    remote: Option<Remote>,
    /// Peers with a line at the desk that a rail may make needless.
    lined: VecDeque<Rank>,
    /// Ends of peers that the owner has not taken.
    lost: VecDeque<(Rank, LostReason)>,
    /// Peers that have called first, which the owner has not taken.
    appeared: VecDeque<Rank>,
    /// Lost peers that the owner has never looked up: they go when nothing is left of them.
    fading: VecDeque<Rank>,
    /// Why peers could not be met.
    troubles: HashMap<Rank, String>,
    /// The PML's count of lost peers when they were last looked for.
    lost_seen: u64,
    next_serve: Time,
    /// Whether this is the empty copy of a child of `fork`.
    is_empty_copy: bool,
}

impl PmlLayer {
    /// Gives a peer a number, which the owner knows for no other one.
    fn add(&mut self, id: PeerId) -> Result<Rank, Error> {
        let mut known = Vec::new();
        let rank = loop {
            match self.pml.add_peer() {
                Ok(rank) if self.book.id(rank).is_some() => known.push(rank),
                other => break other,
            }
        };
        known.into_iter().for_each(|rank| self.pml.forget(rank));
        let rank = rank?;
        self.book.add(rank, id);
        Ok(rank)
    }

    /// Forgets a peer, which finds this process gone.
    fn leave(&mut self, desk: &Desk, rank: Rank) {
        if rank == OWN {
            return;
        }
        let is_current = self.book.is_current(rank);
        let Some(id) = self.book.remove(rank) else { return };
        if is_current {
            self.forget_name(desk, &id);
        }
        self.pml.forget(rank);
        self.lined.retain(|other| *other != rank);
        self.lost.retain(|(other, _)| *other != rank);
        self.appeared.retain(|other| *other != rank);
        self.fading.retain(|other| *other != rank);
        self.troubles.remove(&rank);
    }

    /// What is known of a member by its name is over, with the calls to it.
    fn forget_name(&mut self, desk: &Desk, id: &PeerId) {
        match &mut self.remote {
            Some(remote) if !self.own.is_beside(id) => remote.forget(id),
            _ => desk.forget(&Name::Peer(*id)),
        }
    }

    /// The same for one that has ended, but for what has been reported of another one of its name since.
    fn end_name(&mut self, desk: &Desk, id: &PeerId) {
        match &mut self.remote {
            Some(remote) if !self.own.is_beside(id) => remote.over(id),
            _ => desk.over(&Name::Peer(*id)),
        }
    }

    /// Begins a call to a peer that something is to be sent to.
    fn call(&mut self, desk: &Desk, rank: Rank) {
        match (self.book.id(rank).copied(), &mut self.remote) {
            (Some(id), _) if self.own.is_beside(&id) => desk.begin(Name::Peer(id)),
            (Some(id), Some(remote)) => remote.begin(id, self.book.doors(rank)),
            _ => self.pml.not_met(rank),
        }
    }

    /// A peer may have a line at the desk.
    fn line(&mut self, rank: Rank) {
        if self.book.id(rank).is_some_and(|id| self.own.is_beside(id)) {
            self.lined.push_back(rank);
        }
    }

    /// The owner needs a number no more.
    fn disown(&mut self, desk: &Desk, rank: Rank) {
        if rank == OWN || !self.book.disown(rank) {
            return;
        }
        if self.book.is_lost(rank) {
            self.begin_fading(rank);
        } else if self.pml.is_unmet(rank) && !self.pml.is_wanted(rank) {
            self.leave(desk, rank);
        }
    }

    /// A lost peer is to get another number. Its rails have to forget it before they open it again.
    fn retire(&mut self, desk: &Desk, rank: Rank) {
        if self.book.is_current(rank)
            && let Some(id) = self.book.id(rank).copied()
        {
            self.end_name(desk, &id);
        }
        self.book.disown(rank);
        self.book.let_go(rank);
        self.pml.forget(rank);
        self.begin_fading(rank);
    }

    fn begin_fading(&mut self, rank: Rank) {
        if !self.fading.contains(&rank) {
            self.fading.push_back(rank);
        }
    }

    /// Whether a peer has ended, though the rails have not shown it: another process may have its name. The
    /// system is queried where the owner had given the peer up, and where its line has ended.
    fn is_replaced(&self, desk: &Desk, rank: Rank, id: PeerId) -> bool {
        if !self.own.is_beside(&id) {
            return false;
        }
        let name = Name::Peer(id);
        let is_given_up = self.book.is_given_up(rank);
        let is_doubtful = is_given_up || desk.suspects(&name);
        is_doubtful && self.book.bond(rank).is_some() && desk.is_replaced(&name, is_given_up)
    }

    /// A peer begins another acquaintance: the old one is over, with what it had sent. Its rails have to
    /// forget it before they open it again. Its number stays the owner's until it is left.
    fn renew(&mut self, rank: Rank, now: Time) {
        self.pml.peer_ended(now, rank, DownReason::Closed);
        self.report(rank);
        self.pml.forget(rank);
    }

    /// Reports the end of a peer, once.
    fn report(&mut self, rank: Rank) {
        let Some(reason) = self.pml.lost(rank) else { return };
        if self.book.lose(rank) {
            if reason == LostReason::Peer(DownReason::Resources) {
                self.note_trouble(rank);
            }
            self.lost.push_back((rank, reason));
            if !self.book.is_owned(rank) {
                self.begin_fading(rank);
            }
        }
    }

    /// Keeps what a rail reports about the path to a peer that is lost.
    fn note_trouble(&mut self, rank: Rank) {
        let trouble = |path: &PeerPath| self.pml.rail(path.rail)?.trouble(path.peer);
        if let Some(trouble) = self.book.paths(rank).iter().find_map(trouble) {
            self.troubles.insert(rank, trouble.into_owned());
        }
    }

    /// Looks for peers that the PML has lost, if any were since the last time. Polls lose some, too.
    #[inline]
    fn note_losses(&mut self, desk: &Desk) {
        if self.pml.counters().peers_lost != self.lost_seen {
            self.look_for_lost(desk);
        }
    }

    #[cold]
    fn look_for_lost(&mut self, desk: &Desk) {
        self.lost_seen = self.pml.counters().peers_lost;
        let lost: Vec<Rank> = self
            .book
            .alive()
            .filter(|rank| self.pml.lost(*rank).is_some())
            .collect();
        for rank in lost {
            self.report(rank);
            if self.book.is_current(rank)
                && let Some(id) = self.book.id(rank).copied()
            {
                self.end_name(desk, &id);
            }
        }
    }

    /// Releases lines whose peers' ends a rail shows.
    fn release_lines(&mut self, desk: &Desk) {
        for _ in 0..self.lined.len().min(LINES_AT_ONCE) {
            let Some(rank) = self.lined.pop_front() else {
                return;
            };
            if self.book.is_lost(rank) || !self.book.is_current(rank) {
                continue;
            }
            let shows = |path: &PeerPath| {
                let rail = self.pml.rail(path.rail);
                rail.is_some_and(|rail| rail.shows_end(path.peer))
            };
            match (self.book.paths(rank).iter().any(shows), self.book.id(rank)) {
                (true, Some(id)) => desk.release(&Name::Peer(*id)),
                _ => self.lined.push_back(rank),
            }
        }
    }

    /// Forgets a lost peer that the owner has never looked up, when it has taken its end and nothing of it is
    /// kept.
    fn fade(&mut self, desk: &Desk) {
        let Some(rank) = self.fading.pop_front() else {
            return;
        };
        let is_reported = self.lost.iter().all(|(other, _)| *other != rank);
        if self.book.is_owned(rank) {
            return;
        }
        if is_reported && self.is_bare(rank) {
            self.leave(desk, rank);
        } else {
            self.fading.push_back(rank);
        }
    }

    /// Whether no message of a peer is kept.
    fn is_bare(&self, rank: Rank) -> bool {
        let peer = self.pml.peer(rank);
        peer.is_none_or(|peer| peer.unexpected == 0 && peer.held == 0)
    }
}

impl MemberLayer for PmlLayer {
    type Peer = Rank;

    // The PML takes what has arrived before it ends a peer.
    const GRACE: Duration = Duration::from_millis(20);

    fn each_rail(&self) -> impl Iterator<Item = (RailId, &AnyRail)> {
        self.pml.rails()
    }

    fn add_rail(&mut self, rail: AnyRail) -> Result<(), Error> {
        let id = self.pml.add_rail(rail)?;
        if let (Some(remote), Some(rail)) = (&mut self.remote, self.pml.rail_mut(id)) {
            remote.add(id, rail);
        }
        Ok(())
    }

    fn rail_mut(&mut self, rail: RailId) -> Option<&mut AnyRail> {
        self.pml.rail_mut(rail)
    }

    fn open(&mut self, peer: Rank, rail: RailId, to: &RailEntry) -> Result<(), Error> {
        Ok(self.pml.connect(peer, rail, &to.address, to.life())?)
    }

    fn admit(&mut self, card: &Card, now: Time) -> Option<Rank> {
        let Name::Peer(id) = card.name else { return None };
        let known = self.book.find(&id).map(|rank| (rank, self.book.bond(rank)));
        let rank = match known {
            Some((rank, None)) if !self.book.is_lost(rank) => rank,
            Some((rank, Some(bond))) if bond == card.bond => {
                // The other one of two calls at once has one more line.
                self.line(rank);
                return None;
            }
            Some((old, _)) => {
                let rank = self.appear(id)?;
                self.renew(old, now);
                rank
            }
            None => self.appear(id)?,
        };
        self.book.set_bond(rank, card.bond);
        self.book.set_doors(rank, doors_of(&card.info));
        Some(rank)
    }

    fn opened(&mut self, desk: &Desk, rank: Rank, paths: Result<Vec<PeerPath>, Error>) {
        match paths {
            Ok(paths) => {
                self.book.set_paths(rank, paths);
                self.line(rank);
            }
            Err(error) => {
                self.troubles.insert(rank, error.to_string());
                self.pml.not_met(rank);
                if let Some(id) = self.book.id(rank).copied() {
                    self.forget_name(desk, &id);
                }
            }
        }
    }

    fn not_reached(&mut self, PeerName(name): &PeerName, reason: String) {
        let Name::Peer(id) = name else { return };
        let Some(rank) = self.book.find(id) else { return };
        if self.pml.is_unmet(rank) {
            self.troubles.insert(rank, reason);
            self.pml.not_met(rank);
        }
    }

    fn ended(&mut self, PeerName(name): &PeerName, now: Time, reason: DownReason) {
        let Name::Peer(id) = name else { return };
        // One that has not been met is not the one that has ended: it has the name after that one.
        if let Some(rank) = self.book.find(id).filter(|rank| self.book.bond(*rank).is_some()) {
            self.pml.peer_ended(now, rank, reason);
        }
    }

    fn news(&mut self) -> PeerNews {
        PeerNews(self.remote.as_mut().map_or_else(Vec::new, Remote::take))
    }

    fn tend(&mut self, desk: &Desk, now: Time) -> usize {
        let mut work = 0;
        while let Some(rank) = self.pml.wanted() {
            work += 1;
            self.call(desk, rank);
        }
        if work > 0 || now >= self.next_serve {
            self.next_serve = now + SERVE_EVERY;
            desk.serve();
            if let Some(remote) = &mut self.remote {
                remote.serve(&mut self.pml, now);
            }
            self.release_lines(desk);
            self.fade(desk);
        }
        work
    }

    fn poll(&mut self) -> usize {
        self.pml.poll()
    }

    fn progress(&mut self, desk: &Desk, now: Time) -> usize {
        let work = self.pml.progress(now);
        self.note_losses(desk);
        work
    }

    fn next_deadline(&self) -> Option<Time> {
        let remote = self.remote.as_ref().and_then(Remote::next_deadline);
        self.pml.next_deadline().into_iter().chain(remote).min()
    }

    fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        let mut ready = self.pml.must_poll() || !self.lost.is_empty() || !self.appeared.is_empty();
        if let Some(remote) = &mut self.remote {
            ready |= remote.collect(&mut self.pml);
        }
        for (_, rail) in self.pml.rails_mut() {
            match rail.arm() {
                Ok(Armed::Sleep(descriptor)) => each(descriptor),
                // A rail that cannot be slept on is polled.
                Ok(Armed::Ready) | Err(_) => ready = true,
            }
        }
        ready
    }

    fn disarm(&mut self) {
        self.pml.rails_mut().for_each(|(_, rail)| rail.disarm());
    }

    fn flush(&mut self) {
        self.pml.flush();
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        self.pml.close(now, by)
    }
}

impl PmlLayer {
    /// Returns the identity that the member of an address has here.
    fn id_of(&self, to: &Address) -> PeerId {
        to.peer().seen_from(self.own.host())
    }

    /// Whether a member can be met.
    fn reaches(&self, to: &Address) -> bool {
        self.own.is_beside(&to.peer()) || self.remote.is_some() && !to.doors().is_empty()
    }

    /// Whether a peer has its number still, and a call to it is under way.
    fn awaits(&self, rank: Rank, id: &PeerId) -> bool {
        let is_called = self.remote.as_ref().is_some_and(|remote| remote.is_wanted(id));
        is_called && self.book.find(id) == Some(rank)
    }

    /// Keeps where a peer can be reached, while it has not sent its card.
    fn note_doors(&mut self, rank: Rank, to: &Address) {
        if rank != OWN && self.book.bond(rank).is_none() {
            self.book.set_doors(rank, to.doors());
        }
    }

    /// Gives a peer that has called first a number; `None` when there are as many as there may be.
    fn appear(&mut self, id: PeerId) -> Option<Rank> {
        let rank = self.add(id).ok()?;
        self.appeared.push_back(rank);
        Some(rank)
    }
}

impl Member<PmlLayer> {
    /// Opens the rails that `config` names, or shared memory alone where it names none, and a desk under a
    /// random name.
    ///
    /// # Errors
    /// A rail that cannot be used; errors of the system.
    pub fn enter(config: Config) -> Result<Self, Error> {
        Self::enter_as(config, || Ok(PeerId::new(host::number(), &random::bytes()?)))
    }

    /// Does the same with a desk at a port of this host, which every process of the same user there can name
    /// ([`Address::of_port`]): at `port`, or at one that is free. It is no port of the network: nothing
    /// listens there, and members of other hosts need the address. With a key ([`MeetingKey::of`]) the rails
    /// that lead to other hosts take the port, too, and members there that have the key can name it
    /// ([`Address::of_door`]).
    ///
    /// # Errors
    /// Those of [`PmlMember::enter`], and of the system where another member has the port.
    pub fn enter_at(
        config: Config,
        port: Option<NonZeroU16>,
        key: Option<&MeetingKey>,
    ) -> Result<Self, Error> {
        let leads_out = |name: &RailName| would_lead_out(name, &config);
        match key {
            Some(key) if config.rails.list.get().0.iter().any(leads_out) => match port {
                Some(port) => Self::enter_keyed(config, key, port),
                None => Self::enter_keyed_anywhere(&config, key),
            },
            _ => Self::enter_unkeyed(config, port),
        }
    }

    fn enter_unkeyed(config: Config, port: Option<NonZeroU16>) -> Result<Self, Error> {
        let mut is_first = true;
        Self::enter_as(config, || {
            let number = match port {
                Some(port) if std::mem::take(&mut is_first) => port,
                Some(_) => return Err(port_is_taken()),
                None => FREE_PORTS | (random::number()? as u16),
            };
            Ok(PeerId::of_port(host::number(), number))
        })
    }

    /// Enters at a port that the rails take, too: so a member of another host that has the key names this one
    /// by it.
    fn enter_keyed(mut config: Config, key: &MeetingKey, port: NonZeroU16) -> Result<Self, Error> {
        if port == NonZeroU16::MAX {
            return Err(service_is_last());
        }
        let place = at_port(port)?.ok_or_else(port_is_taken)?;
        config.udp.port.set(port.get().into());
        config.udp.pairs.set(1);
        let prepared = prepare(config).map_err(|error| service_is_taken(error, port))?;
        Self::enter_prepared(place, prepared, random::number()?, Some(key))
    }

    /// Enters at the port that the system gives to the first rail that leads to other hosts, or at any where
    /// no rail carries hellos.
    fn enter_keyed_anywhere(config: &Config, key: &MeetingKey) -> Result<Self, Error> {
        for _ in 0..PORT_TRIES {
            let prepared = prepare(config.clone())?;
            let Some(port) = first_door(&prepared.rails).and_then(|door| NonZeroU16::new(door.port())) else {
                return Self::enter_unkeyed(config.clone(), None);
            };
            // A member of this host without such rails may have the name.
            if let Some(place) = at_port(port)? {
                return Self::enter_prepared(place, prepared, random::number()?, Some(key));
            }
        }
        Err(no_port_is_free())
    }

    /// Enters over `rails` of a simulated network, in its time. `number` takes the place of what is random:
    /// two members of equal numbers act alike, and of two that meet, the order of their numbers decides what
    /// the order of their names decides otherwise.
    ///
    /// # Errors
    /// Those of [`PmlMember::enter`].
    pub fn enter_simulated(
        config: Config,
        rails: Vec<AnyRail>,
        net: &SimNet,
        number: u64,
    ) -> Result<Self, Error> {
        let place = reserve(|| {
            // The lower half of its name stays random, since the host has other members.
            let mut bytes: [u8; 24] = random::bytes()?;
            bytes[4..8].copy_from_slice(&number.to_le_bytes()[4..]);
            Ok(PeerId::new(host::number(), &bytes))
        })?;
        let prepared = prepare_over(config, rails, Clock::Virtual(net.clone()))?;
        Self::enter_prepared(place, prepared, number, None)
    }

    /// Enters under the first of the identities that `next` makes which no other member has.
    fn enter_as(mut config: Config, next: impl FnMut() -> Result<PeerId, Error>) -> Result<Self, Error> {
        if config.rails.list.get().0.is_empty() {
            config.set("rails.list", "shm")?;
        }
        Self::enter_prepared(reserve(next)?, prepare(config)?, random::number()?, None)
    }

    fn enter_prepared(
        (place, here): (Place, PeerId),
        prepared: Prepared,
        seed: u64,
        key: Option<&MeetingKey>,
    ) -> Result<Self, Error> {
        let own = for_other_hosts(here, &prepared.rails, key)?;
        let mut settings = pml_config(&prepared.config, OWN.0, 1, seed);
        settings.peers_most = MOST_PEERS;
        settings.sources = SOURCES;
        settings.lazy = true;
        let give_up = *prepared.config.btl.give_up.get();
        let make = |desk: &Desk, rails: &[AnyRail]| {
            if rails.iter().any(|rail| rail.name().kind() == "shm") {
                desk.expect_releases();
            }
            let remote = Remote::new(own, desk.card(), rails, give_up)
                .map_err(|reason| Error::Disagreement { reason })?;
            let mut book = Book::default();
            book.add(OWN, here);
            book.own(OWN);
            if let Some(remote) = &remote {
                book.set_doors(OWN, remote.doors());
            }
            Ok(PmlLayer {
                pml: Pml::new(settings)?,
                own,
                book,
                remote,
                lined: VecDeque::new(),
                lost: VecDeque::new(),
                appeared: VecDeque::new(),
                fading: VecDeque::new(),
                troubles: HashMap::new(),
                lost_seen: 0,
                next_serve: Time::ZERO,
                is_empty_copy: false,
            })
        };
        Self::assemble(place, prepared, &base_key(), make)
    }

    /// Returns the address of one of this member's endpoints, below [`super::ENDPOINTS`].
    #[must_use]
    pub fn address(&self, endpoint: u8) -> Address {
        Address::new(&self.layer.own, endpoint, &self.layer.book.doors(OWN))
    }

    /// Returns the number of the member that an address is of, which is made at the first call; no contact is
    /// made before something is to be sent. This member's own number is 0.
    ///
    /// # Errors
    /// [`Error::Elsewhere`] for an address of another host, or of another network namespace of this one,
    /// where either member has no rail to other hosts; [`Error::Forked`]; as many peers as there may be.
    pub fn resolve(&mut self, to: &Address) -> Result<Rank, Error> {
        self.here()?;
        let layer = &mut *self.layer;
        let id = layer.id_of(to);
        layer.note_losses(&self.desk);
        if !layer.reaches(to) {
            return Err(Error::Elsewhere {
                peer: id.to_string(),
                is_namespace: host::is_same_boot(id.host(), layer.own.host()),
            });
        }
        if let Some(rank) = layer.book.find(&id) {
            // What a lost one has sent can still be received, under the number that it was sent by.
            if layer.book.is_owned(rank) || !layer.book.is_lost(rank) || !layer.is_bare(rank) {
                layer.book.own(rank);
                layer.note_doors(rank, to);
                return Ok(rank);
            }
            // It was never looked up, has gone, and has left nothing: it may be called again.
            layer.leave(&self.desk, rank);
        }
        let rank = layer.add(id)?;
        layer.book.own(rank);
        layer.note_doors(rank, to);
        Ok(rank)
    }

    /// Whether a member can be met: it is on this host, or both have a rail to other ones.
    #[must_use]
    pub fn reaches(&self, to: &Address) -> bool {
        self.layer.reaches(to)
    }

    /// Does the same for an address that the owner has from its user again: a peer that is lost gets another
    /// number, since it may have come back, and is called again. One of another host whose name may come back
    /// is called while it does not seem lost, too, and its answer awaited for 0.1 s; one that has come back
    /// and answers later ends what was sent to it meanwhile.
    ///
    /// # Errors
    /// Those of [`PmlMember::resolve`].
    pub fn resolve_again(&mut self, to: &Address) -> Result<Rank, Error> {
        self.here()?;
        let id = self.layer.id_of(to);
        if self.layer.book.find(&id).is_some() {
            // What is known of its end already counts.
            self.desk.serve();
            self.progress();
            self.call_again(id, to.doors());
        }
        let (layer, desk) = (&mut *self.layer, &self.desk);
        if let Some(rank) = layer.book.find(&id).filter(|rank| *rank != OWN) {
            if layer.is_replaced(desk, rank, id) {
                layer.pml.peer_ended(self.clock.now(), rank, DownReason::Control);
                layer.note_losses(desk);
            }
            if layer.book.is_lost(rank) {
                layer.retire(desk, rank);
            }
        }
        self.resolve(to)
    }

    /// Calls a peer of another host that is met, and has its name by a key: another process may have it now.
    /// That one has another number when this returns, if it has answered soon.
    fn call_again(&mut self, id: PeerId, doors: Doors) {
        let layer = &mut *self.layer;
        let met = layer.book.find(&id).filter(|rank| {
            let is_met = layer.book.bond(*rank).is_some() && !layer.book.is_lost(*rank);
            *rank != OWN && is_met && id.is_keyed() && !layer.own.is_beside(&id)
        });
        let (Some(rank), Some(remote)) = (met, &mut layer.remote) else {
            return;
        };
        remote.begin_again(id, doors);
        let until = Instant::now() + ANSWER;
        while self.layer.awaits(rank, &id) && Instant::now() < until {
            self.progress();
            std::thread::yield_now();
        }
    }

    /// Returns the number of a peer that is known.
    #[must_use]
    pub fn known(&self, peer: &PeerId) -> Option<Rank> {
        self.layer.book.find(peer)
    }

    /// Returns which peer has a number.
    #[must_use]
    pub fn peer(&self, rank: Rank) -> Option<&PeerId> {
        self.layer.book.id(rank)
    }

    /// Returns a peer as a text, which has its address of IP where its identity has no host.
    #[must_use]
    pub fn peer_text(&self, rank: Rank) -> Option<String> {
        Some(self.peer(rank)?.at(self.keyed_door(rank)))
    }

    /// Returns the first door of a peer of another host that is known by a key.
    pub(super) fn keyed_door(&self, rank: Rank) -> Option<SocketAddr> {
        let is_keyed = self.peer(rank)?.is_keyed();
        self.layer.book.doors(rank).sockets().next().filter(|_| is_keyed)
    }

    /// The owner keeps the number of a peer that has called first, which stays that peer's from then on.
    pub fn own(&mut self, rank: Rank) {
        self.layer.book.own(rank);
    }

    /// The owner needs a number no more. The peer is not disturbed: what is under way with it goes on, and
    /// its messages still arrive. It is forgotten when it is lost and nothing of it is kept, and at once if
    /// it was never needed.
    pub fn disown(&mut self, rank: Rank) {
        if self.layer.is_here() {
            self.layer.note_losses(&self.desk);
            self.layer.disown(&self.desk, rank);
        }
    }

    /// Returns the address of an endpoint, below [`super::ENDPOINTS`], of the peer that has a number.
    #[must_use]
    pub fn address_of(&self, rank: Rank, endpoint: u8) -> Option<Address> {
        let book = &self.layer.book;
        Some(Address::new(book.id(rank)?, endpoint, &book.doors(rank)))
    }

    /// Forgets a peer: what is under way with it ends, and its number may become another peer's. It finds
    /// this process gone, and may call again, which then is another acquaintance.
    pub fn leave(&mut self, rank: Rank) {
        if self.layer.is_here() {
            self.layer.leave(&self.desk, rank);
        }
    }

    /// Returns the PML, for calls of the data path. In a child of `fork` it is another one, without peers, so
    /// that every call but those to itself fails.
    #[inline]
    pub fn pml(&mut self) -> &mut Pml<AnyRail> {
        if !self.layer.is_here() {
            self.empty();
        }
        &mut self.layer.pml
    }

    /// Returns the PML as [`PmlMember::pml`] does, to an owner that keeps calls of a child out itself.
    #[inline(always)]
    pub fn own_pml(&mut self) -> &mut Pml<AnyRail> {
        &mut self.layer.pml
    }

    /// Replaces what is the parent's.
    #[cold]
    fn empty(&mut self) {
        if std::mem::replace(&mut self.layer.is_empty_copy, true) {
            return;
        }
        let config = self.layer.pml.config().clone();
        if let Ok(empty) = Pml::new(config) {
            std::mem::forget(std::mem::replace(&mut self.layer.pml, empty));
        }
    }

    /// Delivers some arrivals; reads no clock, and meets no peer.
    #[inline]
    pub fn poll(&mut self) -> usize {
        if !self.layer.is_here() {
            return 0;
        }
        self.layer.pml.poll()
    }

    /// Takes the next peer whose end was noticed. Its requests have ended; messages of it that are kept can
    /// still be received, until the owner calls [`PmlMember::leave`].
    pub fn lost(&mut self) -> Option<(Rank, LostReason)> {
        self.layer.lost.pop_front()
    }

    /// Takes the next peer that has contacted this process first. Its messages match already. A peer that was
    /// resolved here appears too when it has begun another acquaintance: under another number.
    pub fn appeared(&mut self) -> Option<Rank> {
        self.layer.appeared.pop_front()
    }

    /// Returns the PML, to be looked at.
    #[must_use]
    pub fn counted(&self) -> &Pml<AnyRail> {
        &self.layer.pml
    }

    /// Returns the peers that were met, with the paths to each.
    pub(super) fn met(&self) -> impl Iterator<Item = (Rank, &PeerId, &[PeerPath])> {
        self.layer.book.met()
    }

    /// How often the peers of [`PmlMember::met`] have changed.
    pub(super) fn changes(&self) -> u64 {
        self.layer.book.changes()
    }

    /// Reports to a peer all that was taken of its messages, for an owner that may not call again for long:
    /// the peer may wait for that, as sends in [`SendMode::Delivered`](doorbell_pml::SendMode::Delivered) do.
    pub fn acknowledge(&mut self, rank: Rank) {
        let layer = &mut *self.layer;
        for path in layer.book.paths(rank) {
            if let Some(rail) = layer.pml.rail_mut(path.rail) {
                rail.acknowledge(path.peer);
            }
        }
    }

    /// Returns why a peer could not be met, in words.
    #[must_use]
    pub fn trouble(&self, rank: Rank) -> Option<&str> {
        self.layer.troubles.get(&rank).map(String::as_str)
    }

    /// Returns the number of peers, this process included.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.layer.book.len()
    }

    /// Returns the counters of the hellos that came from other hosts.
    #[must_use]
    pub fn hello_counts(&self) -> HelloCounts {
        self.layer
            .remote
            .as_ref()
            .map_or_else(HelloCounts::default, Remote::counts)
    }

    /// Returns the counters of what came to the desk.
    #[must_use]
    pub fn desk_counts(&self) -> DeskCounts {
        self.desk.counts()
    }
}

impl std::fmt::Debug for Member<PmlLayer> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Member({})", self.layer.own)
    }
}

/// Returns the key from which connection ids and MAC keys are derived: the same for all processes of a user,
/// since an address may come from any of them.
fn base_key() -> Key {
    let uid = rustix::process::geteuid().as_raw();
    let base = JobKey::from_bytes([0; 32]);
    Key::of_bytes(*base.derive(&format!("messages {uid}")).expose())
}
