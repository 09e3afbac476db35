//! The hellos of a member over its rails.

use std::net::SocketAddr;
use std::time::Duration;

use doorbell_fabric::addr::{Address, RailAddress};
use doorbell_fabric::rail::Rail as _;
use doorbell_fabric::time::Time;
use doorbell_pml::{Pml, RailId};

use super::address::PeerId;
use super::card::Card;
use super::desk::News;
use super::hello::{Doors, HelloCounts, Hellos, LONGEST, Post};
use super::leads_out;
use crate::meet::RankInfo;
use crate::rails::{AnyRail, Manage as _};

/// Most frames that one look handles: each may cost as much as a session takes to open.
const FRAMES: usize = 32;

/// The hellos of a member, and the rails that are its doors.
pub(super) struct Remote {
    hellos: Hellos,
    /// The rails that hellos leave by.
    rails: Vec<RailId>,
    /// Frames that have arrived, and were not looked at.
    arrived: Vec<Vec<u8>>,
    room: Vec<u8>,
}

impl Remote {
    /// Returns the hellos of a member with these rails, whose address has this identity; `None` where no rail
    /// leads to other hosts.
    ///
    /// # Errors
    /// A card that is too long for hellos; errors of the system.
    pub(super) fn new(
        own: PeerId,
        card: &Card,
        rails: &[AnyRail],
        limit: Duration,
    ) -> Result<Option<Self>, String> {
        let doors = Doors::new(
            rails
                .iter()
                .filter(|rail| leads_out(rail))
                .filter_map(AnyRail::door),
        );
        if doors.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            hellos: Hellos::new(own, doors, card.info.clone(), limit)?,
            rails: Vec::new(),
            arrived: Vec::new(),
            room: Vec::new(),
        }))
    }

    /// The owner has added a rail, which is a door from now on if it can be one.
    pub(super) fn add(&mut self, id: RailId, rail: &mut AnyRail) {
        if rail.hello_room() >= LONGEST && leads_out(rail) {
            rail.open_door(self.hellos.door());
            self.rails.push(id);
        }
    }

    /// Returns where this member can be reached.
    pub(super) fn doors(&self) -> Doors {
        *self.hellos.doors()
    }

    /// Returns the counters.
    pub(super) fn counts(&self) -> HelloCounts {
        self.hellos.counts()
    }

    /// Begins a call, unless there is one.
    pub(super) fn begin(&mut self, to: PeerId, doors: Doors) {
        self.hellos.begin(to, doors);
    }

    /// Begins a call to a member that is met, which may have come back, unless there is one.
    pub(super) fn begin_again(&mut self, to: PeerId, doors: Doors) {
        self.hellos.begin_again(to, doors);
    }

    /// Whether a call to a member has not ended.
    pub(super) fn is_wanted(&self, to: &PeerId) -> bool {
        self.hellos.is_wanted(to)
    }

    /// Forgets a member: a call to it ends, and a later one begins another acquaintance.
    pub(super) fn forget(&mut self, peer: &PeerId) {
        self.hellos.forget(peer);
    }

    /// Forgets a member that has ended, unless there are news of it.
    pub(super) fn over(&mut self, peer: &PeerId) {
        self.hellos.over(peer);
    }

    /// Takes the news of other hosts since the last call, in order.
    pub(super) fn take(&mut self) -> Vec<News> {
        self.hellos.take()
    }

    /// Returns when [`Remote::serve`] is due.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        match self.arrived.is_empty() {
            true => self.hellos.next_deadline(),
            false => Some(Time::ZERO),
        }
    }

    /// Takes what the rails have received. Returns whether there is anything.
    pub(super) fn collect(&mut self, pml: &mut Pml<AnyRail>) -> bool {
        for rail in &self.rails {
            let Some(rail) = pml.rail_mut(*rail) else { continue };
            while self.arrived.len() < FRAMES && rail.next_hello(&mut self.room) {
                self.arrived.push(self.room.clone());
            }
        }
        !self.arrived.is_empty()
    }

    /// Handles what has arrived, and sends what is due.
    pub(super) fn serve(&mut self, pml: &mut Pml<AnyRail>, now: Time) {
        self.collect(pml);
        let Self {
            hellos,
            rails,
            arrived,
            ..
        } = self;
        let mut send = |post: Post<'_>| post_over(pml, rails, &post);
        for bytes in arrived.drain(..) {
            hellos.on_frame(&bytes, now, &mut send);
        }
        hellos.serve(now, &mut send);
    }
}

/// Sends a frame: at first over one rail, later over each, to another door every second time. A rail whose
/// link is down is left out while there are others.
fn post_over(pml: &mut Pml<AnyRail>, rails: &[RailId], post: &Post<'_>) -> Result<(), String> {
    let doors: Vec<SocketAddr> = post.doors.sockets().collect();
    let is_up = |rail: &RailId| !pml.is_down(*rail);
    let all_are_down = !rails.iter().any(is_up);
    // The first rail goes to the first door, the second to the second: they are of one network if both ends
    // name their rails in one order.
    let round = (post.turn.saturating_sub(1) / 2) as usize;
    let ways: Vec<(RailId, SocketAddr)> = rails
        .iter()
        .enumerate()
        .filter(|(_, rail)| all_are_down || is_up(rail))
        .map(|(at, rail)| (*rail, doors[(at + round) % doors.len()]))
        .collect();
    let mut outcome = Err("it has no rail to other hosts".to_owned());
    for (rail, door) in ways {
        let Some(rail) = pml.rail_mut(rail) else { continue };
        let to = RailAddress::inet(rail.name().wire(), door);
        match rail.send_hello(&to, post.door, post.bytes) {
            Ok(()) if post.turn == 0 => return Ok(()),
            Ok(()) => outcome = Ok(()),
            Err(error) => outcome = outcome.or(Err(error.to_string())),
        }
    }
    outcome
}

/// Returns where the process of a card can be reached.
pub(super) fn doors_of(info: &RankInfo) -> Doors {
    Doors::new(info.rails.iter().filter_map(|rail| match rail.address.address {
        Address::Inet(socket) => Some(socket),
        Address::Native(_) => None,
    }))
}
