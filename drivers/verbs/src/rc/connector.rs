//! Makes connections: what contact requests is done to queue pairs, and what becomes of them is reported to
//! contact. Its frames travel over the rail's queue pair of datagrams.
//!
//! ```text
//!   Core ── needs one, has ended, has passed ──► Connector ──► cm::Contact
//!   Core ◄── prepare, connect, prove, ready ──── Connector ◄── Event
//!                                                Mail ◄──► the port
//! ```

use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::gid;
use doorbell_fabric::message::{Caller, Incarnation, PeerIndex};
use doorbell_fabric::name::RailName;
use doorbell_fabric::time::Time;
use doorbell_inet::system_error;
use rustc_hash::FxHashMap;

use super::core::{Core, Step};
use super::hello::{Hello, Route};
use super::mail::{Kept, Mail};
use super::record::Event as Recorded;
use crate::address::PortAddress;
use crate::cm::{
    Attempt, Connect, Contact, ContactConfig, ContactCounts, Diagnosis, Event, LONGEST, Local, Mtu, Numbers,
    Refusal, Target,
};
use crate::name::Service;
use crate::ports::Port;
use crate::subnet::PathRecord;
use crate::sys::{AhAttr, Channel, Domain};
use crate::watch::Changes;
use crate::ways::{Marks, Ways};

/// The kind of the rail's addresses.
pub(crate) const KIND: &str = "verbs";
/// How often ways that are not known are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Queue pairs that are made or connected in one pass: each takes calls of the kernel.
const AT_A_TIME: usize = 4;

/// A key that holds for one peer instead of the job's.
struct OwnKey {
    address: RailAddress,
    incarnation: Incarnation,
    key: [u8; 32],
}

/// What is known about the connection to a peer besides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Note {
    /// Why there is none, and whether we refuse it.
    pub(crate) refusal: Option<(Refusal, bool)>,
    /// That it uses less than both ports carry.
    pub(crate) diagnosis: Option<Diagnosis>,
}

/// Makes the connections of a rail.
pub(crate) struct Connector {
    name: RailName,
    contact: Contact,
    address: RailAddress,
    /// `None` when the device is gone.
    mail: Option<Mail>,
    /// The number of its queue pair that is published.
    pair: u32,
    ways: Ways,
    port: Port,
    keys: Vec<OwnKey>,
    /// The attempts whose queue pairs there are, by peers.
    attempts: FxHashMap<u32, Attempt>,
    /// What waits: for the end of a former connection, or for the way to a peer.
    waiting: Vec<Event>,
    notes: FxHashMap<u32, Note>,
    next_look: Time,
}

impl Connector {
    /// Makes the queue pair of contact on a port.
    ///
    /// # Errors
    /// If the system refuses a step.
    pub(crate) fn open(
        name: &RailName,
        (domain, channel): (&std::sync::Arc<Domain>, &std::sync::Arc<Channel>),
        port: Port,
        marks: Marks,
    ) -> Result<Self, RailError> {
        let mut life = [0; 8];
        getrandom::fill(&mut life).map_err(|error| system_error(name, "get random bytes", error.into()))?;
        let mail = Mail::open(name, (domain, channel), &port, Kept::default())?;
        let ways = Ways::new(domain, &port, marks);
        let (pair, key) = mail.numbers();
        let address = PortAddress {
            service: Service::Connections,
            link: port.link,
            lid: port.attributes.lid,
            partition: port.partition.map_or(0, |(_, key)| key),
            key,
            pairs: [pair, 0],
            mtu: port.attributes.active_mtu as u8,
            gids: ways.own().to_vec(),
        };
        let published = RailAddress::native(KIND, address.to_bytes());
        let local = Local {
            address,
            incarnation: Incarnation(u64::from_ne_bytes(life)),
        };
        let contact = Contact::new(ContactConfig::default(), local);
        let contact = contact.ok_or_else(|| {
            doorbell_inet::unusable(
                name,
                "its port has an MTU that there is not",
                "update the device's firmware and its provider",
            )
        })?;
        Ok(Self {
            name: name.clone(),
            contact,
            address: published,
            mail: Some(mail),
            pair,
            ways,
            port,
            keys: Vec::new(),
            attempts: FxHashMap::default(),
            waiting: Vec::new(),
            notes: FxHashMap::default(),
            next_look: Time::ZERO,
        })
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.contact.incarnation()
    }

    /// The published address.
    pub(crate) fn address(&self) -> RailAddress {
        self.address.clone()
    }

    /// Acts on what has changed about the port.
    pub(crate) fn on_changes(&mut self, port: &Port, changes: &Changes, now: Time) {
        let is_back = changes.link == Some(true);
        if changes.has_moved || changes.is_partition_moved || changes.is_mtu_changed || is_back {
            self.port = port.clone();
        }
        if changes.has_moved || is_back {
            self.ways.doubt();
        }
        if let Some(mail) = self.mail.as_mut().filter(|_| changes.is_partition_moved) {
            mail.doubt();
        }
        let mtu = Mtu::of(port.attributes.active_mtu as u8);
        if let Some(mtu) = mtu.filter(|_| changes.is_mtu_changed) {
            self.contact.set_mtu(mtu, now);
        }
    }

    /// Lets go of everything that is the device's.
    pub(crate) fn leave(&mut self) {
        self.attempts.clear();
        self.waiting.clear();
        self.ways.release();
        self.mail = None;
    }

    /// The GIDs that are published, best first.
    pub(crate) fn gids(&self) -> &[gid::Published] {
        self.ways.own()
    }

    pub(crate) fn counts(&self) -> &ContactCounts {
        self.contact.counts()
    }

    pub(crate) fn mail_counts(&self) -> super::mail::MailCounts {
        self.mail.as_ref().map(|mail| mail.counts).unwrap_or_default()
    }

    /// Has a peer's calls judged by another pair of GIDs than its way uses.
    #[cfg(test)]
    pub(crate) fn mistake_gids(&mut self, peer: PeerIndex) {
        self.contact.mistake_gids(peer);
    }

    /// What is known about the connection to a peer.
    pub(crate) fn note(&self, peer: PeerIndex) -> Note {
        self.notes.get(&peer.0).copied().unwrap_or_default()
    }

    /// Sets the job's key, which holds for peers that have none of their own.
    pub(crate) fn set_key(&mut self, key: &[u8; 32]) {
        self.contact.set_key(key);
    }

    /// Sets the key of one peer that is not open yet.
    pub(crate) fn set_key_of(&mut self, address: &RailAddress, incarnation: Incarnation, key: &[u8; 32]) {
        self.keys
            .retain(|own| own.address != *address || own.incarnation != incarnation);
        self.keys.push(OwnKey {
            address: address.clone(),
            incarnation,
            key: *key,
        });
    }

    fn own_key(&self, address: &RailAddress, incarnation: Incarnation) -> Option<&[u8; 32]> {
        let mut keys = self.keys.iter();
        let own = keys.find(|own| own.address == *address && own.incarnation == incarnation);
        own.map(|own| &own.key)
    }

    /// Opens a peer; nothing is sent. An address that is known in this life is the same peer.
    ///
    /// # Errors
    /// Why it cannot be reached.
    pub(crate) fn open_peer(
        &mut self,
        address: &RailAddress,
        incarnation: Incarnation,
    ) -> Result<u32, RailError> {
        let bad = |reason| RailError::BadAddress {
            rail: self.name.to_string(),
            address: address.to_string(),
            reason,
        };
        let bytes = address.native_of(KIND);
        let bytes = bytes.ok_or_else(|| bad("is of another kind of rail"))?;
        let own_key = self.own_key(address, incarnation).copied();
        let opened = self.contact.open(bytes, incarnation, own_key.as_ref());
        opened.map(|peer| peer.0).map_err(bad)
    }

    /// The name under which a peer at an address calls.
    pub(crate) fn caller(&self, address: &RailAddress, incarnation: Incarnation) -> Option<Caller> {
        let own_key = self.own_key(address, incarnation);
        self.contact
            .caller(address.native_of(KIND)?, incarnation, own_key)
    }

    /// The next caller that is not open.
    pub(crate) fn stranger(&mut self) -> Option<Caller> {
        self.contact.stranger()
    }

    /// Gives a peer's connection up, or what is under way to one.
    pub(crate) fn abandon(&mut self, peer: PeerIndex, now: Time) {
        self.forget_attempt(peer.0);
        self.contact.abandon(peer, now);
    }

    /// Forgets a peer, which learns of it. Its number is free once it has, or had the time.
    pub(crate) fn forget(&mut self, peer: PeerIndex, now: Time) {
        self.forget_attempt(peer.0);
        self.notes.remove(&peer.0);
        self.contact.forget(peer, now);
    }

    /// Tries whether a peer that is down is back.
    pub(crate) fn revive(&mut self, peer: PeerIndex, now: Time) {
        self.contact.revive(peer, now);
    }

    /// Requests one event when a frame of contact comes. What came before is found by
    /// [`progress`](Self::progress).
    pub(crate) fn arm(&self) {
        if let Some(mail) = &self.mail {
            mail.arm();
        }
    }

    /// Takes a path that the resolver of addresses gave.
    pub(crate) fn give_path(&mut self, record: PathRecord) {
        self.ways.give_path(record);
    }

    /// Has something else answer requests for paths.
    #[cfg(test)]
    pub(crate) fn set_administration(&mut self, administration: Box<dyn crate::paths::Administration>) {
        self.ways.set_administration(administration);
    }

    /// The ways to peers.
    pub(crate) fn ways(&self) -> &Ways {
        &self.ways
    }

    /// The ways to peers, and the queue pair of contact, which events of the device may be about.
    pub(crate) fn watched(&mut self) -> (&Ways, Option<&mut Mail>) {
        (&self.ways, self.mail.as_mut())
    }

    /// Whether contact needs another queue pair.
    pub(crate) fn is_lost(&self) -> bool {
        self.mail.as_ref().is_some_and(Mail::is_lost)
    }

    /// Gives contact another queue pair, of another number, which goes with the next calls. What is under
    /// way begins again; connections go on.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn renew(&mut self, core: &Core, now: Time) -> Result<(), RailError> {
        let (Some(device), Some(mail)) = (&core.device, self.mail.take()) else {
            return Ok(());
        };
        let (shared, kept) = ((&device.domain, &device.channel), mail.replace_pair());
        self.mail = Some(Mail::open(&self.name, shared, &self.port, kept)?);
        self.contact.restart(now);
        Ok(())
    }

    /// The next time at which there is something to do: at once where a pass left some of it.
    pub(crate) fn next_deadline(&self, now: Time) -> Time {
        if self.contact.has_event() || self.ways.is_behind() {
            return now;
        }
        let contact = self.contact.next_deadline();
        contact.map_or(self.next_look, |at| at.min(self.next_look))
    }

    /// Brings core, contact and network together.
    pub(crate) fn progress(&mut self, core: &mut Core, now: Time) {
        self.report(core, now);
        let contact = &mut self.contact;
        let Some(mail) = &mut self.mail else { return };
        mail.receive(|from, bytes| contact.receive(from, bytes, now));
        if self.ways.begin_pass(now) || now >= self.next_look {
            self.next_look = now + LOOK;
            mail.mend(&self.port);
            self.ways.look(now, &self.port, mail);
        }
        self.take_paths(now);
        self.contact.tick(now);
        self.act(core, now);
        self.send(now);
    }

    /// Ends everything, with a farewell to each peer; whether all of them know.
    pub(crate) fn close(&mut self, core: &mut Core, now: Time) -> bool {
        let is_done = self.contact.close(now);
        self.progress(core, now);
        // A queue pair that has failed brings no farewell.
        is_done || self.is_lost()
    }

    /// Reports to contact what has become of connections.
    fn report(&mut self, core: &mut Core, now: Time) {
        while let Some((peer, reason)) = core.ended.pop_front() {
            if reason == DownReason::Silent {
                self.ways.distrust(peer);
            }
            if let Some(attempt) = self.attempts.remove(&peer) {
                self.contact.died(attempt, reason, now);
            }
        }
        while let Some(peer) = core.wanted.pop_front() {
            // It may have been abandoned or forgotten since.
            if core.is_wanted(peer) {
                self.contact.call(PeerIndex(peer), now);
            }
        }
        while let Some((peer, step)) = core.steps.pop_front() {
            let Some(attempt) = self.attempts.get(&peer).copied() else {
                continue;
            };
            match step {
                Step::Established => self.contact.is_established(attempt, now),
                Step::Passed(size) => self.contact.passed(attempt, size, now),
                Step::Heard => self.contact.heard_over(attempt, now),
            }
        }
    }

    /// Does what contact requests, a few steps at a time.
    fn act(&mut self, core: &mut Core, now: Time) {
        let mut left = AT_A_TIME;
        let mut at = 0;
        while at < self.waiting.len() && left > 0 {
            match self.waiting[at] {
                event if self.has_to_wait(core, &event) => at += 1,
                event => {
                    self.waiting.remove(at);
                    self.handle(core, event, now);
                    left -= 1;
                }
            }
        }
        while left > 0
            && let Some(event) = self.contact.event()
        {
            if self.has_to_wait(core, &event) {
                self.waiting.push(event);
            } else {
                left -= usize::from(matches!(event, Event::Make(_) | Event::Connect(_)));
                self.handle(core, event, now);
            }
        }
    }

    /// Whether an event has to wait: for the end of a former connection, for other queues, or for the way to
    /// the peer.
    fn has_to_wait(&self, core: &Core, event: &Event) -> bool {
        match event {
            Event::Make(attempt) => core.is_renewing() || core.is_ending(attempt.peer.0),
            Event::Connect(connect) => !self.ways.is_made(connect.attempt.peer.0),
            _ => false,
        }
    }

    fn handle(&mut self, core: &mut Core, event: Event, now: Time) {
        match event {
            Event::Make(attempt) => self.make(core, attempt, now),
            Event::Connect(connect) => self.connect(core, &connect, now),
            Event::Prove(attempt, mtu) if self.is_present(attempt) => core.prove(attempt.peer.0, mtu.bytes()),
            Event::Prove(..) => {}
            Event::Released(peer) => {
                if let Some(mail) = &mut self.mail {
                    self.ways.remove(peer.0, now, mail);
                }
            }
            Event::Up {
                attempt, diagnosis, ..
            } => {
                let note = Note {
                    refusal: None,
                    diagnosis,
                };
                self.notes.insert(attempt.peer.0, note);
                if let Some(diagnosis) = diagnosis {
                    core.record(Some(attempt.peer.0), Recorded::Narrow(diagnosis));
                }
                core.ready(attempt.peer.0);
            }
            Event::Discard(attempt) => self.discard(core, attempt),
            Event::Down(attempt, reason) => self.down(core, attempt, reason),
            Event::Refused {
                attempt,
                refusal,
                by_us,
            } => {
                let note = self.notes.entry(attempt.peer.0).or_default();
                note.refusal = Some((refusal, by_us));
                core.record(Some(attempt.peer.0), Recorded::Refused(refusal, by_us));
                self.refused(core, attempt, refusal);
            }
        }
    }

    fn is_present(&self, attempt: Attempt) -> bool {
        self.attempts.get(&attempt.peer.0) == Some(&attempt)
    }

    /// Begins to look for the way to a peer, if that is not done yet.
    fn reach(&mut self, peer: PeerIndex, now: Time) {
        let Some(mail) = &mut self.mail else { return };
        if !self.ways.is_known(peer.0)
            && let Some(to) = self.contact.remote_of(peer)
        {
            self.ways.add(peer.0, to.lid, to.gids);
            self.ways.make(peer.0, now, &self.port, mail);
        }
    }

    /// What paths carry is offered to peers.
    fn take_paths(&mut self, now: Time) {
        while let Some((peer, mtu)) = self.ways.next_path() {
            let mtu = mtu.and_then(Mtu::of);
            self.contact.set_path(PeerIndex(peer), mtu, now);
        }
    }

    /// Makes our end.
    fn make(&mut self, core: &mut Core, attempt: Attempt, now: Time) {
        core.record(Some(attempt.peer.0), Recorded::Making);
        // Before something is offered.
        self.reach(attempt.peer, now);
        self.take_paths(now);
        let pair = self.mail.as_ref().map_or(self.pair, |mail| mail.numbers().0);
        // A later one may have the number that was published.
        let moved = if self.mail_counts().renewed == 0 { 0 } else { pair };
        let hello = core.prepare(attempt.peer.0).ok();
        let numbers = hello.map(|hello| numbers(&hello, moved));
        if numbers.is_some() {
            self.attempts.insert(attempt.peer.0, attempt);
        }
        self.contact.made(attempt, numbers, now);
    }

    /// Connects our end to the peer's.
    fn connect(&mut self, core: &mut Core, connect: &Connect, now: Time) {
        let peer = connect.attempt.peer;
        if !self.is_present(connect.attempt) {
            return;
        }
        let route = self.route(peer, connect.mtu);
        core.record(Some(peer.0), Recorded::Connecting(connect.mtu.bytes() as u16));
        let theirs = hello(&connect.to);
        let result = match route {
            Some(route) => core.connect(peer.0, &theirs, &route, connect.life),
            // The GID that was published is not there any more.
            None => Err(DownReason::Abandoned),
        };
        if result.is_err() {
            core.discard(peer.0);
            self.attempts.remove(&peer.0);
        }
        self.contact.connected(connect.attempt, result, now);
    }

    fn route(&self, peer: PeerIndex, mtu: Mtu) -> Option<Route> {
        let to: AhAttr = self.ways.attributes(peer.0, &self.port)?;
        Some(Route {
            to,
            mtu: mtu.number(),
        })
    }

    /// Nothing of a peer's present attempt is waited for any more.
    fn forget_attempt(&mut self, peer: u32) -> Option<Attempt> {
        self.waiting.retain(|event| match event {
            Event::Make(attempt) => attempt.peer.0 != peer,
            Event::Connect(connect) => connect.attempt.peer.0 != peer,
            _ => true,
        });
        self.attempts.remove(&peer)
    }

    /// The queue pairs of an attempt are not needed.
    fn discard(&mut self, core: &mut Core, attempt: Attempt) {
        if self.forget_attempt(attempt.peer.0).is_some() {
            // A message may have shown that it is up, before contact knew.
            if core.is_up(attempt.peer.0) {
                core.end(attempt.peer.0, DownReason::Abandoned);
            } else {
                core.discard(attempt.peer.0);
            }
        }
    }

    /// A connection is over, or a peer that was called does not answer.
    fn down(&mut self, core: &mut Core, attempt: Attempt, reason: DownReason) {
        let peer = attempt.peer.0;
        if core.is_up(peer) {
            // What has come is shown before. Contact knows.
            self.forget_attempt(peer);
            return core.end(peer, reason);
        }
        self.discard(core, attempt);
        if !core.is_ending(peer) {
            core.lose(peer, reason);
        }
    }

    /// No connection is made. Where it was not wanted here, no operation waits for it.
    fn refused(&mut self, core: &mut Core, attempt: Attempt, refusal: Refusal) {
        self.discard(core, attempt);
        if core.is_wanted(attempt.peer.0) {
            let reason = match refusal {
                Refusal::Resources => DownReason::Resources,
                Refusal::Over => DownReason::Closed,
                Refusal::Gids | Refusal::Partition | Refusal::Other => DownReason::Abandoned,
            };
            core.lose(attempt.peer.0, reason);
        }
    }

    /// Sends the frames of contact.
    fn send(&mut self, now: Time) {
        let mut bytes = [0; LONGEST];
        while self.mail.as_mut().is_some_and(Mail::has_room)
            && let Some((peer, length)) = self.contact.next_frame(&mut bytes)
        {
            self.reach(peer, now);
            if let (Some(mail), Some(to)) = (&mut self.mail, self.contact.remote_of(peer)) {
                mail.send(peer.0, (to.pair, to.key), &bytes[..length]);
            }
        }
    }
}

/// Our end, as contact brings it to the peer; with the queue pair of contact, where it is not the published
/// one any more.
fn numbers(hello: &Hello, contact: u32) -> Numbers {
    Numbers {
        pairs: [hello.pair, contact],
        sequences: [hello.psn, 0],
        credits: hello.credits,
        slot: hello.slot,
        counters: Target {
            address: hello.page.0,
            key: hello.page.1,
        },
        ..Numbers::default()
    }
}

/// The peer's end, as contact has brought it.
fn hello(numbers: &Numbers) -> Hello {
    Hello {
        pair: numbers.pairs[0],
        psn: numbers.sequences[0],
        credits: numbers.credits,
        slot: numbers.slot,
        page: (numbers.counters.address, numbers.counters.key),
    }
}
