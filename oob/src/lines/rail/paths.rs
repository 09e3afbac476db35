//! Paths: which peers were requested, which peers and rails are up, and what happens to those that are down.

use doorbell_fabric::event::{DownReason, EventKind, Life, RailEvent, Scope};
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::time::Time;

use super::Rails;
use super::address::Place;
use super::line::Spot;
use super::module::Module;
use super::peer::{Liveness, PeerState};
use super::transport::module_id;
use super::wire::{Head, Kind};
use crate::contact::ADDRESSES_MAX;
use crate::lines::connections::{LineId, Lines};
use crate::lines::stream::End;
use crate::name::Name;
use crate::transport::{Address, Event, Loss, ModuleId, Path, Refusal};

/// Maximum rails of one peer that each of our rails may try.
const EACH: usize = 8;

/// The addresses requested for a peer, and the paths returned.
#[derive(Debug, Default)]
pub(super) struct Requested {
    addresses: Vec<Address>,
    places: Vec<(Address, Spot)>,
    reported: Vec<Path>,
}

impl Rails {
    pub(super) fn is_up(&self, spot: Spot) -> bool {
        let module = &self.modules[spot.module];
        let peer = module.peers.get(spot.peer.index()).and_then(Option::as_ref);
        module.up && peer.is_some_and(|peer| peer.is_up())
    }

    /// Looks up the rails that reach a peer. All its rails of a kind that we have are opened, since the peer
    /// may call us.
    pub(super) fn reach(&mut self, now: Time, name: Name, addresses: Vec<Address>) {
        let before = self.asked.remove(&name).unwrap_or_default();
        let places = if before.addresses == addresses && !addresses.is_empty() {
            before.places.clone()
        } else {
            self.opened(now, &addresses)
        };
        for (_, spot) in &before.places {
            if let Some(peer) = self.modules[spot.module].peer(spot.peer) {
                peer.names.retain(|other| *other != name);
            }
        }
        for (_, spot) in &places {
            if let Some(peer) = self.modules[spot.module].peer(spot.peer)
                && !peer.names.contains(&name)
            {
                peer.names.push(name);
            }
        }
        let reported = self.paths(&places);
        let asked = Requested {
            addresses,
            places,
            reported: reported.clone(),
        };
        self.asked.insert(name, asked);
        self.connections.events.push_back(Event::Paths {
            peer: name,
            paths: reported,
        });
    }

    /// Opens all addresses that one of our rails may reach.
    fn opened(&mut self, now: Time, addresses: &[Address]) -> Vec<(Address, Spot)> {
        let (mut places, mut errors) = (Vec::new(), Vec::new());
        for at in 0..self.modules.len() {
            let mut own = 0;
            for text in addresses.iter().take(ADDRESSES_MAX) {
                let opened = text.parse::<Place>().ok().filter(|_| own < EACH);
                let opened = opened.map(|place| self.modules[at].open(now, &place, &self.settings));
                match opened {
                    Some(Ok(Some(peer))) => {
                        own += 1;
                        places.push((text.clone(), Spot { module: at, peer }));
                    }
                    Some(Err(error)) => errors.push(error),
                    Some(Ok(None)) | None => {}
                }
            }
        }
        // Of several rails each reaches some; only if none does is it reported.
        if places.is_empty() {
            errors
                .into_iter()
                .for_each(|error| self.connections.troubled(error));
        }
        places
    }

    fn paths(&self, places: &[(Address, Spot)]) -> Vec<Path> {
        let mut paths: Vec<Path> = Vec::new();
        for (address, spot) in places.iter().filter(|(_, spot)| self.is_up(*spot)) {
            let module = module_id(spot.module);
            match paths.iter_mut().find(|path| path.module == module) {
                Some(path) => path.addresses.push(address.clone()),
                None => paths.push(Path {
                    module,
                    addresses: vec![address.clone()],
                }),
            }
        }
        paths
    }

    /// Returns the peer of an address that a path named.
    pub(super) fn spot(&self, module: ModuleId, address: &Address) -> Option<Spot> {
        let here = usize::from(module.0);
        let own = &self.modules.get(here)?.place;
        let place: Place = address.parse().ok()?;
        if place == *own {
            return None;
        }
        let mut all = self.asked.values().flat_map(|asked| &asked.places);
        let found = all.find(|(text, spot)| text == address && spot.module == here);
        found.map(|(_, spot)| *spot)
    }

    /// Reports the paths of those for which they have changed.
    fn retell(&mut self, names: Vec<Name>) {
        for name in names {
            let Some(asked) = self.asked.get(&name) else {
                continue;
            };
            let paths = self.paths(&asked.places);
            if paths == asked.reported {
                continue;
            }
            if let Some(asked) = self.asked.get_mut(&name) {
                asked.reported.clone_from(&paths);
            }
            self.connections
                .events
                .push_back(Event::Paths { peer: name, paths });
        }
    }

    /// Reports a module that is up.
    pub(super) fn report_module(&mut self, at: usize) {
        self.connections.events.push_back(Event::ModuleUp {
            module: module_id(at),
            addresses: vec![self.modules[at].address.clone()],
        });
    }

    /// Handles an event of a rail.
    pub(super) fn happened(&mut self, now: Time, at: usize, event: RailEvent) {
        match (event.scope, event.kind) {
            (Scope::Peer(peer), kind) => self.peer_event(now, Spot { module: at, peer }, kind, event.life),
            (Scope::Rail, EventKind::LinkUp) => self.module_up(now, at),
            (Scope::Rail, EventKind::LinkDown) => self.module_down(now, at),
            (Scope::Rail, EventKind::DeviceGone) => {
                self.modules[at].gone = true;
                self.module_down(now, at);
            }
            (Scope::Rail, _) => {}
        }
        self.act(now);
    }

    fn peer_event(&mut self, now: Time, spot: Spot, kind: EventKind, life: Life) {
        match kind {
            EventKind::PeerUp => self.peer_up(now, spot, life),
            EventKind::PeerDown(reason) => {
                let loss = match reason {
                    DownReason::Closed => Loss::Closed,
                    DownReason::Silent => Loss::Silent,
                    DownReason::Hostile => Loss::Protocol,
                    DownReason::Died
                    | DownReason::Abandoned
                    | DownReason::Resources
                    | DownReason::Control => Loss::Broken,
                };
                self.peer_down(now, spot, loss);
                let over = matches!(reason, DownReason::Closed | DownReason::Hostile);
                if let Some(peer) = self.modules[spot.module].peer(spot.peer).filter(|_| over) {
                    peer.stand = PeerState::Over;
                }
            }
            // Silence is measured by our own clock; a working path needs no other judgement.
            EventKind::PeerSuspect
            | EventKind::PeerRecovered
            | EventKind::LinkUp
            | EventKind::LinkDown
            | EventKind::DeviceGone => {}
        }
    }

    fn peer_up(&mut self, now: Time, spot: Spot, life: Life) {
        let Some(peer) = self.modules[spot.module].peer(spot.peer) else {
            return;
        };
        if peer.is_up() && !peer.life.is_before(life) {
            return; // the first contact
        }
        if peer.is_up() {
            // Its end was not reported, or was caused by us: nothing of the previous connection is left.
            self.peer_down(now, spot, Loss::Broken);
        }
        let Some(peer) = self.modules[spot.module].peer(spot.peer) else {
            return;
        };
        (peer.stand, peer.life) = (PeerState::Up, life);
        peer.mark_alive(now);
        self.counters.peers_back += 1;
        let names = peer.names.clone();
        self.retell(names);
    }

    /// Handles a peer that is no longer reached over a rail: its links are lost, and it is called until it is
    /// back.
    pub(super) fn peer_down(&mut self, now: Time, spot: Spot, loss: Loss) {
        let (first, module) = (self.settings.revive, &mut self.modules[spot.module]);
        let Some(peer) = module.peer(spot.peer).filter(|peer| peer.is_up()) else {
            return;
        };
        peer.stand = PeerState::Down(now + first, first);
        peer.clear();
        let (names, lines) = (peer.names.clone(), peer.lines.clone());
        module.rail.forget(spot.peer);
        self.counters.peers_down += 1;
        self.book(now + first);
        // Report the paths first, so that the core uses others at once.
        self.retell(names);
        self.cut(now, &lines, loss);
    }

    fn cut(&mut self, now: Time, lines: &[LineId], loss: Loss) {
        let refusal = match loss {
            Loss::Silent => Refusal::TimedOut,
            Loss::ModuleDown => Refusal::NoRoute,
            _ => Refusal::Broken,
        };
        for &id in lines {
            self.connections.broken(now, id);
            self.end(now, id, refusal, loss);
            self.bury(id);
        }
        self.act(now);
    }

    /// Gives up a peer that the rail regards as alive.
    fn give_up(&mut self, now: Time, spot: Spot, loss: Loss) {
        let module = &mut self.modules[spot.module];
        module.wake.end(&mut *module.rail);
        module.rail.abandon(spot.peer);
        self.peer_down(now, spot, loss);
    }

    fn module_down(&mut self, now: Time, at: usize) {
        if !std::mem::replace(&mut self.modules[at].up, false) {
            return;
        }
        self.connections.events.push_back(Event::ModuleDown {
            module: module_id(at),
        });
        let talks = |&at: &usize, module: &Module| {
            let peer = module.peers.get(at).and_then(Option::as_ref);
            peer.is_some_and(|peer| peer.is_up() && !peer.lines.is_empty())
        };
        let module = &self.modules[at];
        let all: Vec<usize> = (0..module.peers.len())
            .filter(|peer| talks(peer, module))
            .collect();
        for peer in all {
            let peer = PeerIndex(peer as u32);
            self.give_up(now, Spot { module: at, peer }, Loss::ModuleDown);
        }
        self.retell(self.asked.keys().copied().collect());
    }

    fn module_up(&mut self, now: Time, at: usize) {
        let module = &mut self.modules[at];
        if module.gone || std::mem::replace(&mut module.up, true) {
            return;
        }
        module.wake.forget();
        let first = self.settings.revive;
        for peer in module.peers.iter_mut().flatten() {
            if let PeerState::Down(..) = peer.stand {
                peer.stand = PeerState::Down(now, first);
            }
        }
        self.book(now);
        self.report_module(at);
        self.retell(self.asked.keys().copied().collect());
    }

    /// Checks for time-outs: handshakes, closing lines, silent peers, peers to be called.
    pub(super) fn scan(&mut self, now: Time) {
        self.scan_at = Time::NEVER;
        let all = self.connections.all.iter();
        let late = all.filter(|(_, own)| own.line.deadline.is_some_and(|at| at <= now));
        let late: Vec<LineId> = late.map(|(&id, _)| id).collect();
        for id in late {
            if let Some(connection) = self.connections.live(id) {
                let closing = connection.why.is_some();
                let end = if closing {
                    End::closed()
                } else {
                    connection.line.late(&self.terms)
                };
                self.over(now, id, end);
            }
            self.bury_late(now, id);
        }
        let lines = self.connections.all.values();
        let deadline = lines.filter_map(|own| own.line.deadline).min();
        deadline.into_iter().for_each(|at| self.book(at));
        for at in 0..self.modules.len() {
            for peer in 0..self.modules[at].peers.len() {
                let peer = PeerIndex(peer as u32);
                self.scan_peer(now, Spot { module: at, peer });
            }
        }
        self.act(now);
    }

    /// Removes an ended line whose time is over.
    fn bury_late(&mut self, now: Time, id: LineId) {
        let ended = self.connections.all.get(&id).filter(|own| own.over);
        if ended.is_some_and(|own| own.line.deadline.is_some_and(|at| at <= now)) {
            self.bury(id);
        }
    }

    fn scan_peer(&mut self, now: Time, spot: Spot) {
        let settings = self.settings.clone();
        let module = &mut self.modules[spot.module];
        let up = module.up;
        let Some(peer) = module.peer(spot.peer) else {
            return;
        };
        match peer.stand {
            PeerState::Over => {}
            PeerState::Down(at, _) if at > now => self.book(at),
            PeerState::Down(_, wait) => {
                let next = (wait * 2).min(settings.revive_max.max(settings.revive));
                peer.stand = PeerState::Down(now + wait, next);
                // No peer is expected at an address that its contact no longer has.
                if up && !peer.names.is_empty() {
                    module.wake.end(&mut *module.rail);
                    module.rail.revive(spot.peer);
                    module.stirs(now, &settings);
                    self.counters.revivals += 1;
                }
                self.book(now + wait);
            }
            PeerState::Up if peer.lines.is_empty() => {}
            PeerState::Up => match peer.judge(now, &settings) {
                Liveness::Wait(at) => self.book(at),
                Liveness::Silent => self.give_up(now, spot, Loss::Silent),
                Liveness::Probe => {
                    peer.asked = Some(now);
                    let (at, _) = peer.due(&settings);
                    self.book(at);
                    self.word(spot, Head::alone(Kind::Ask));
                }
            },
        }
    }
}
