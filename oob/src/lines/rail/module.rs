//! A rail as a module: its messages and events, when it has to be polled, and its peers.

use std::collections::BTreeSet;
use std::task::Context;
use std::time::Duration;

use doorbell_fabric::event::RailEvent;
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::time::Time;

use super::address::Place;
use super::endpoint::Endpoint;
use super::peer::Peer;
use super::settings::Settings;
use super::wake::{Sleep, Wake};
use super::wire::{HEAD, PIECE_MAX};
use crate::contact::{Address, TEXT_MAX};
use crate::error::OobError;

/// Maximum messages taken per poll.
const BUDGET: usize = 128;
/// Minimum useful bytes of a segment.
const LEAST: usize = 64;
/// How long after an event the rail's own deadlines are observed.
const AWAKE: Duration = Duration::from_millis(200);

/// The result of a poll.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) events: Vec<RailEvent>,
    /// Messages that arrived, copied, each with its sender.
    pub(super) messages: Vec<(PeerIndex, Vec<u8>)>,
    /// Number of messages longer than any segment, which were not copied.
    pub(super) oversized: u64,
}

pub(super) struct Module {
    pub(super) rail: Box<dyn Endpoint>,
    pub(super) wake: Wake,
    /// Whether its link is up.
    pub(super) up: bool,
    /// Whether its device is gone for good.
    pub(super) gone: bool,
    pub(super) address: Address,
    pub(super) place: Place,
    /// Maximum bytes of a segment.
    pub(super) piece: usize,
    pub(super) peers: Vec<Option<Peer>>,
    /// Peers with something queued, or not taken yet.
    pub(super) busy: BTreeSet<PeerIndex>,
    /// The next time it is polled by a timer, and the interval.
    look_at: Time,
    pause: Duration,
    awake: Time,
    /// Whether it is being closed, and whether it is closed.
    pub(super) closing: bool,
    pub(super) closed: bool,
}

impl Module {
    /// Creates a module from an open rail; `host` is the id of this host.
    pub(super) fn new(
        rail: Box<dyn Endpoint>,
        host: u64,
        keyed: bool,
        settings: &Settings,
    ) -> Result<Self, OobError> {
        let (name, can) = (rail.name().to_string(), *rail.capabilities());
        if !keyed && !can.features.within_host {
            return Err(OobError::RailKey { rail: name });
        }
        let most = can.limits.message.saturating_sub(HEAD);
        let piece = most.min(settings.piece.max(LEAST)).min(PIECE_MAX);
        if piece < LEAST || can.limits.head < HEAD {
            return Err(OobError::RailShort {
                rail: name,
                length: can.limits.message,
                least: HEAD + LEAST,
            });
        }
        let place = Place {
            address: rail.address(),
            life: rail.incarnation(),
            host: can.features.within_host.then_some(host),
        };
        let address = place.to_string();
        if address.len() > TEXT_MAX {
            return Err(OobError::Setting {
                setting: "rails",
                given: name,
                reason: format!(
                    "its address has {} characters, but a contact allows {TEXT_MAX}: use another rail",
                    address.len()
                ),
            });
        }
        Ok(Self {
            rail,
            wake: Wake::default(),
            up: true,
            gone: false,
            address: address.into(),
            place,
            piece,
            peers: Vec::new(),
            busy: BTreeSet::new(),
            look_at: Time::ZERO,
            pause: settings.look,
            awake: Time::ZERO,
            closing: false,
            closed: false,
        })
    }

    pub(super) fn peer(&mut self, peer: PeerIndex) -> Option<&mut Peer> {
        self.peers.get_mut(peer.index())?.as_mut()
    }

    /// Opens a peer, unless it is open; `None` if it cannot be opened, or there are too many.
    pub(super) fn open(
        &mut self,
        now: Time,
        place: &Place,
        settings: &Settings,
    ) -> Result<Option<PeerIndex>, OobError> {
        let other_host = place.host.is_some() && place.host != self.place.host;
        if place.address.kind != self.place.address.kind || other_host || *place == self.place {
            return Ok(None);
        }
        if self.peers.len() >= settings.peers {
            return Err(OobError::Setting {
                setting: "rail.peers",
                given: settings.peers.to_string(),
                reason: format!(
                    "`{}` already has that many peers: raise the limit",
                    self.rail.name()
                ),
            });
        }
        let peer = self.rail.open(&place.address, place.life)?;
        if self.peers.len() <= peer.index() {
            self.peers.resize_with(peer.index() + 1, || None);
        }
        self.peers[peer.index()].get_or_insert_with(|| Peer::new(now));
        self.stirs(now, settings);
        Ok(Some(peer))
    }

    /// Polls the rail. Events come before the messages that were shown together with them: if a peer went and
    /// came back in between, the messages belong to the new connection.
    pub(super) fn look(&mut self, now: Time, settings: &Settings) -> Found {
        let mut found = Found::default();
        if self.closing {
            return found;
        }
        self.wake.end(&mut *self.rail);
        self.rail.progress(now);
        let (messages, oversized) = (&mut found.messages, &mut found.oversized);
        let shown = self.rail.poll(BUDGET, &mut |peer, inbound| {
            if inbound.len() > HEAD + PIECE_MAX {
                *oversized += 1;
                return;
            }
            let mut bytes = vec![0; inbound.len()];
            inbound.copy_to(0, &mut bytes);
            messages.push((peer, bytes));
        });
        while let Some(event) = self.rail.event() {
            found.events.push(event);
        }
        if shown > 0 || !found.events.is_empty() {
            self.stirs(now, settings);
        }
        found
    }

    /// Shortens the polling interval after an event.
    pub(super) fn stirs(&mut self, now: Time, settings: &Settings) {
        self.awake = now + AWAKE;
        self.pause = settings.look;
        self.look_at = self.look_at.min(now + self.pause);
    }

    /// Schedules the next poll by the timer.
    pub(super) fn looked(&mut self, now: Time, settings: &Settings) {
        if now >= self.look_at {
            self.pause = (self.pause * 2).clamp(settings.look, settings.look_max.max(settings.look));
            self.look_at = now + self.pause;
        }
    }

    /// Returns when a sleeping thread has to poll it at the latest.
    pub(super) fn next_deadline(&self, now: Time, settings: &Settings) -> Option<Time> {
        if self.closing || settings.spin {
            return None;
        }
        let waits = self.wake.polled || !self.busy.is_empty();
        let least = if waits || now < self.awake {
            settings.look
        } else {
            settings.housekeeping
        };
        let own = self.rail.next_deadline().map(|own| own.max(now + least));
        own.into_iter().chain(waits.then_some(self.look_at)).min()
    }

    /// Puts it to sleep so that it wakes the task of `cx`; returns whether it sleeps.
    pub(super) fn sleep(&mut self, cx: &mut Context<'_>) -> bool {
        if self.closing || self.wake.polled {
            return true;
        }
        self.wake.sleep(&mut *self.rail, cx) == Sleep::Asleep
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Module({}, up: {})", self.rail.name(), self.up)
    }
}
