//! The rail: connections, what makes them, and the contracts.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Features, Limits};
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::{EventKind, Life, RailEvent, Scope};
use doorbell_fabric::gid;
use doorbell_fabric::memory::{Room, SharedBytes};
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Caller, Exposure, FenceScope, Incarnation, Landing, Look, Message,
    MsgId, OpId, PeerIndex, RailReport, Refused, Remote, RemoteKey, Watch,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::{Kind, Place};
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_inet::system_error;

use super::connector::Connector;
use super::core::{Core, Peer, RcStats, Sizes, Stage};
use super::hello::Route;
use super::onesided::WindowFacts;
use super::record::Event as Recorded;
use crate::cm::Refusal;
use crate::config::VerbsConfig;
use crate::discover;
use crate::error::VerbsError;
use crate::paths::Origin;
use crate::ports::Port;
use crate::subnet::PathRecord;
use crate::sys::{AhAttr, Channel, Domain};
use crate::ud::ESTIMATE;
use crate::ud::open::{Source, find};
use crate::watch::{Needs, PortWatch, wake_set};
use crate::ways::Marks;

/// Longest head of a message.
const HEAD: usize = 256;
/// Queues that fail twice within this time fail for good.
const A_MINUTE: Duration = Duration::from_secs(60);
/// Why a rail has ended whose queues could not be made again.
const REFUSED: &str = "its queues had to be made again, and the system refuses others";
/// Most pieces of a body.
const PARTS: usize = 16;

/// A rail of reliable connections: `verbs:DEVICE:PORT`.
pub struct RcRail {
    name: RailName,
    capabilities: Capabilities,
    pub(crate) core: Core,
    pub(crate) connector: Connector,
    pub(crate) watch: PortWatch,
    /// Readable when there is something to do.
    wake: OwnedFd,
    /// The service level that is set.
    service_level: u8,
    /// When its queues were made again.
    renewed: Option<Time>,
    /// Why it has ended, where it was not the device.
    ended: Option<&'static str>,
    /// Its device has failed, or is gone.
    is_over: bool,
    is_closing: bool,
    is_closed: bool,
}

impl RcRail {
    /// Opens the rail `name`, `verbs:DEVICE:PORT`.
    ///
    /// # Errors
    /// [`RailError::Unusable`] with the first step that fails and what to do.
    pub fn open(name: &RailName, config: &VerbsConfig) -> Result<Self, RailError> {
        Self::open_over(name, config, &discover::source(name)?)
    }

    pub(crate) fn open_over(
        name: &RailName,
        config: &VerbsConfig,
        source: &Source,
    ) -> Result<Self, RailError> {
        Self::open_from(name, config, Sizes::of(config), source)
    }

    pub(crate) fn open_from(
        name: &RailName,
        config: &VerbsConfig,
        sizes: Sizes,
        source: &Source,
    ) -> Result<Self, RailError> {
        let found = find(name, config, source)?;
        let sizes = sizes.within(name, &found.open, &found.port, &source.tree)?;
        let failed = |error: VerbsError| discover::rejected_by(name, &error);
        let domain = Domain::new(&found.open).map_err(failed)?;
        let channel = Channel::new(&found.open).map_err(failed)?;
        let place = (
            found.port.number,
            found.port.partition.map_or(0, |(index, _)| index),
        );
        let contact = super::mail::locked(found.port.mtu().unwrap_or(0));
        let sizes = sizes.fit(super::memory_limit(), contact);
        let core = Core::new(&domain, &channel, &found.open, place, sizes);
        let core = core.map_err(|error| discover::rejected_for(name, &error, sizes.locked()))?;
        let marks = Marks {
            service_level: config.service_level,
            traffic_class: config.traffic_class,
        };
        let mut core = core;
        if let Some(route) = to_itself(&found.port) {
            core.probe_windows(&route);
        }
        let abilities = core.onesided.abilities;
        let connector = Connector::open(name, (&domain, &channel), found.port.clone(), marks)?;
        let needs = Needs {
            gid_index: config.gid_index,
            gids: connector.gids().to_vec(),
            // A smaller MTU leads to other queue pairs.
            mtu: None,
        };
        let watch = PortWatch::new(source.tree.clone(), &found.file, found.port, needs);
        let wake = wake_set(&channel, &found.open, connector.ways())
            .map_err(|error| system_error(name, "make an epoll set", error.into()))?;
        Ok(Self {
            name: name.clone(),
            capabilities: discover::of_port(
                capabilities(&core.sizes, abilities.gets(), abilities.atomics),
                name,
            ),
            core,
            connector,
            watch,
            wake,
            service_level: config.service_level,
            renewed: None,
            ended: None,
            is_over: false,
            is_closing: false,
            is_closed: false,
        })
    }

    /// This rail's epoch: random, new at every opening; peers pass it to `open`.
    pub fn incarnation(&self) -> Incarnation {
        self.connector.incarnation()
    }

    /// Sets the job's key, before any peer is opened: 32 random bytes. Contact is made with those that have
    /// it, too.
    pub fn set_key(&mut self, key: &[u8; 32]) {
        self.connector.set_key(key);
    }

    /// Sets the key of the peer at this address, in this life, which holds instead of the job's. Before the
    /// peer is opened.
    pub fn set_key_of(&mut self, address: &RailAddress, incarnation: Incarnation, key: &[u8; 32]) {
        self.connector.set_key_of(address, incarnation, key);
    }

    /// The totals so far.
    #[must_use]
    pub fn stats(&self) -> RcStats {
        let regions = &self.core.memory.regions;
        RcStats {
            registrations: regions.made,
            registered_bytes: regions.bytes,
            pinned: self.core.memory.pinned.0,
            pinned_bytes: self.core.memory.pinned.1,
            ..self.core.stats
        }
    }

    /// Describes what the rail uses: the link, the MTU, the GIDs by rank, the partition.
    #[must_use]
    pub fn describe(&self) -> String {
        let port = self.watch.port();
        let gids: Vec<String> = self
            .connector
            .gids()
            .iter()
            .map(|own| format!("{} ({})", own.gid, own.kind))
            .collect();
        let (_, partition) = self.watch.partition();
        let mut described = format!(
            "{}, reliable connections, MTU of {} bytes, partition {partition:#06x}, GIDs {}",
            port.link.name(),
            port.mtu().unwrap_or(0),
            gids.join(", ")
        );
        if let Some(reason) = self.connector.ways().reason_of_assumption() {
            described.push_str(&format!(
                ", paths assumed (the LID with service level {}, the port's MTU): {reason}",
                self.service_level
            ));
        }
        described
    }

    /// Takes a path to a peer's port that the resolver of addresses gave. It is used where it leads to a port
    /// in the rail's partition, for peers with which nothing was exchanged yet; elsewhere than on InfiniBand
    /// it means nothing.
    pub fn give_path(&mut self, record: &PathRecord) {
        self.connector.give_path(*record);
    }

    /// Returns the path to a peer on InfiniBand, once there is one: what it is, and where it comes from.
    #[must_use]
    pub fn path(&self, peer: PeerIndex) -> Option<String> {
        self.connector.ways().path(peer.0).map(ToString::to_string)
    }

    /// Why no frame passes, and what to do, where that is known.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        if let Some(reason) = self.ended {
            return Some(format!(
                "{reason}; look at what the kernel has logged of the device (dmesg), and start the job again"
            ));
        }
        let (reason, remedy) = self.watch.port().reason()?;
        Some(format!("{reason}; {remedy}"))
    }

    /// Whether the connection to a peer is refused, at either end, because both choose different pairs of
    /// GIDs.
    #[must_use]
    pub fn refuses_gids(&self, peer: PeerIndex) -> bool {
        let refusal = self.connector.note(peer).refusal;
        refusal.is_some_and(|(refusal, _)| refusal == Refusal::Gids)
    }

    /// Returns what was found out about the way to a peer: that no connection is made, and why;
    /// that it uses less than both ports carry.
    #[must_use]
    pub fn findings(&self, peer: PeerIndex) -> Option<String> {
        let note = self.connector.note(peer);
        if let Some((refusal, by_us)) = note.refusal {
            let who = if by_us {
                "refused here"
            } else {
                "refused by the peer"
            };
            if refusal == Refusal::Gids {
                let own = gid::table(self.connector.gids());
                return Some(format!("{who}: {refusal} (this port's GIDs: {own})"));
            }
            return Some(format!("{who}: {refusal}"));
        }
        let diagnosis = note.diagnosis.map(|diagnosis| diagnosis.to_string());
        diagnosis.or_else(|| {
            let path = self.connector.ways().path(peer.0);
            let path = path.filter(|path| matches!(path.origin, Origin::Assumption(_)));
            path.map(|path| format!("its path is {path}"))
        })
    }

    /// Returns the last `most` notable events on the path to a peer and of the rail itself, one line each,
    /// newest last: of the last 256 that were recorded.
    #[must_use]
    pub fn recent(&self, peer: PeerIndex, most: usize) -> Vec<String> {
        self.core.recent(peer, most)
    }

    /// Tries what the port's memory windows are worth, on the port itself and before any peer is opened;
    /// `None` where the device has none that bind. For a diagnosis: it takes up to some seconds on a broken
    /// device.
    pub fn examine_windows(&mut self) -> Option<WindowFacts> {
        let route = to_itself(self.watch.port())?;
        self.core.examine_windows(&route)
    }

    /// Returns why the last registration of memory was refused, if one was.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        self.core.memory.refusal.as_deref()
    }

    /// Returns its place in the network, for its peers to judge.
    #[must_use]
    pub fn place(&self) -> Place {
        let port = self.watch.port();
        let mtu = port.mtu().unwrap_or(0);
        Place {
            interface: port.interface.clone().unwrap_or_default(),
            network: doorbell_inet::network(),
            prefix: self.connector.gids().first().map_or(0, |own| own.prefix),
            mtu,
            takes: mtu,
            kind: Kind::Plain,
            port: Some(gid::Port {
                link: port.link,
                partition: self.watch.partition().1,
                gids: self.connector.gids().to_vec(),
            }),
        }
    }

    /// Calls `each` with every counter's name and total. Names and order never change.
    pub fn each_count(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let mail = self.connector.mail_counts();
        self.stats().named().for_each(|(name, count)| each(name, count));
        let one_sided = self.core.onesided.stats;
        one_sided.named().for_each(|(name, count)| each(name, count));
        self.connector
            .counts()
            .named()
            .for_each(|(name, count)| each(name, count));
        for (name, count) in [
            ("contact_unresolved", mail.sent.unresolved),
            ("contact_errors", mail.sent.failed + mail.failed),
            ("contact_nonsense", mail.sent.nonsense + mail.nonsense),
            ("contact_resets", mail.resets),
            ("contact_renewed", mail.renewed),
        ] {
            each(name, count);
        }
    }

    /// Breaks the connection to one peer, or to all, as a failure of the network would: its queue pair takes
    /// no request any more, which is reported to neither end.
    pub fn sever(&mut self, peer: Option<PeerIndex>) {
        for index in 0..self.core.peers.len() as u32 {
            if peer.is_none_or(|peer| peer.0 == index) {
                self.core.sever(index);
            }
        }
    }

    /// Reports to a peer at once what was taken of its messages, if it does not know: for an owner that may
    /// not call again for long, while the peer waits for that.
    pub fn acknowledge(&mut self, peer: PeerIndex) {
        self.core.acknowledge(peer.0);
    }

    fn report_link(&mut self, kind: EventKind) {
        self.core.record(None, Recorded::Told(kind));
        self.core.events.push_back(RailEvent {
            at: self.core.now,
            scope: Scope::Rail,
            kind,
            life: Life::FIRST,
        });
    }

    /// The device has failed, or is gone: lets go of everything that is the device's.
    fn fail(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.report_link(EventKind::DeviceGone);
            self.leave();
        }
    }

    fn leave(&mut self) {
        self.core.leave();
        self.connector.leave();
    }

    /// Looks after the device, if it is time to.
    fn look(&mut self, now: Time) {
        let Some(open) = self.core.device.as_ref().map(|device| Arc::clone(&device.open)) else {
            return;
        };
        let core = &mut self.core;
        let (ways, mut mail) = self.connector.watched();
        let changes = self.watch.look(now, &open, ways, &mut |event| {
            if !mail.as_mut().is_some_and(|mail| mail.on_event(event)) {
                core.on_device_event(event);
            }
        });
        drop(open);
        let Some(changes) = changes else { return };
        if changes.is_gone {
            return self.fail();
        }
        if let Some(is_up) = changes.link {
            self.report_link(if is_up {
                EventKind::LinkUp
            } else {
                EventKind::LinkDown
            });
        }
        if changes.is_partition_moved {
            // Queue pairs name it by its place.
            self.core.set_partition(self.watch.partition().0);
        }
        self.connector.on_changes(self.watch.port(), &changes, now);
        if self.core.is_broken || self.connector.is_lost() {
            self.renew(now);
        } else if !self.core.is_renewing() && self.core.slots.is_exhausted() {
            // Connections that broke may have cost too many slots. It is no failure of the device.
            self.core.record(None, Recorded::Exhausted);
            self.core.renew_queues();
        }
        if self.core.finish_renewal().is_err() {
            self.ended = Some(REFUSED);
            self.fail();
        }
    }

    /// A queue has failed, of connections or of contact: it and those beside it are made again, once a
    /// minute.
    fn renew(&mut self, now: Time) {
        let is_again = self.renewed.is_some_and(|at| now < at + A_MINUTE);
        self.renewed = Some(now);
        if is_again {
            self.ended = Some("its queues have failed twice within a minute");
            return self.fail();
        }
        if std::mem::take(&mut self.core.is_broken) {
            self.core.renew_queues();
        }
        if self.connector.is_lost() && self.connector.renew(&self.core, now).is_err() {
            self.ended = Some(REFUSED);
            return self.fail();
        }
        self.core.record(None, Recorded::Renewed);
    }

    /// Looks after contact.
    fn progress_contact(&mut self, now: Time) {
        self.connector.progress(&mut self.core, now);
        if self.connector.is_lost() {
            self.renew(now);
        }
    }

    /// Whether the port is up, as of the last look.
    #[must_use]
    pub fn is_link_up(&self) -> bool {
        self.watch.is_up() && !self.is_over
    }

    /// Shows up to `budget` operations that have ended; returns how many.
    #[inline(always)]
    fn show_ended<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        let mut shown = 0;
        while shown < budget
            && let Some((op, outcome)) = self.core.onesided.ended.pop_front()
        {
            sink.completed(op, outcome);
            shown += 1;
        }
        shown
    }

    /// Sends bytes in one piece, as most bodies are.
    #[inline(always)]
    fn send_piece(&mut self, peer: PeerIndex, head: &[u8], bytes: SharedBytes<'_>) -> Result<MsgId, Refused> {
        if head.len() > HEAD || head.len() + bytes.len() > self.capabilities.limits.message {
            return Err(Refused::TooLong);
        }
        self.core.accept(peer.0, head, &Body::Shared(bytes))
    }

    /// Sends any body.
    #[inline(never)]
    fn send_any(&mut self, peer: PeerIndex, head: &[u8], body: &Body<'_>) -> Result<MsgId, Refused> {
        let too_many = matches!(body, Body::Parts(parts) if parts.len() > PARTS);
        if head.len() > HEAD || too_many || head.len() + body.len() > self.capabilities.limits.message {
            return Err(Refused::TooLong);
        }
        self.core.accept(peer.0, head, body)
    }

    fn known(&self, peer: PeerIndex) -> bool {
        peer.index() < self.core.peers.len()
    }
}

/// The route of a port to itself.
fn to_itself(port: &Port) -> Option<Route> {
    let mut to = AhAttr::zeroed();
    (to.dlid, to.port_num) = (port.attributes.lid, port.number);
    if port.needs_route() {
        let own = port.gids.usable.first()?;
        (to.is_global, to.grh.dgid.0) = (1, own.published.gid.0);
        (to.grh.sgid_index, to.grh.hop_limit) = (own.index, 1);
    }
    let mtu = u8::try_from(port.attributes.active_mtu).ok()?;
    Some(Route { to, mtu })
}

/// What a rail of these sizes can do, on a device with or without reads and atomics.
pub(crate) fn capabilities(sizes: &Sizes, gets: bool, atomics: bool) -> Capabilities {
    let message = sizes.message();
    Capabilities {
        features: Features {
            get: gets,
            put: true,
            atomics: gets && atomics,
            gather: true,
            reclaim: true,
            checksum: true,
            ..Features::default()
        },
        limits: Limits {
            head: HEAD,
            message,
            inline: sizes
                .inline
                .saturating_sub(super::head::HEAD + super::head::LENGTH),
            eager: message,
            fragment: message,
            get_from: sizes.one_sided.get_from,
            parts: PARTS,
            // Cut at what the port carries at a time.
            one_sided: isize::MAX as u64,
        },
        estimate: ESTIMATE,
    }
}

impl fmt::Debug for RcRail {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RcRail")
            .field("name", &self.name)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Rail for RcRail {
    fn name(&self) -> &RailName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn address(&self) -> RailAddress {
        self.connector.address()
    }

    fn progress(&mut self, now: Time) -> Work {
        if self.is_over {
            return 0;
        }
        let before = self.core.events.len();
        self.core.now = now;
        self.look(now);
        if self.is_over {
            return self.core.events.len() - before;
        }
        self.core.progress(now);
        self.progress_contact(now);
        self.core.events.len() - before
    }

    fn next_deadline(&self) -> Option<Time> {
        if self.is_over || self.is_closed {
            return None;
        }
        let own = self.core.next_deadline().min(self.watch.next_look());
        Some(own.min(self.connector.next_deadline(self.core.now)))
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        let mut is_busy = self.core.arm();
        if !self.is_over {
            self.connector.arm();
            // What came before raises no event.
            self.progress_contact(self.core.now);
            is_busy |= !self.core.events.is_empty();
        }
        Ok(if is_busy {
            Armed::Ready
        } else {
            Armed::Sleep(self.wake.as_fd())
        })
    }

    fn disarm(&mut self) {
        self.core.disarm();
    }

    fn poll_cost(&self) -> PollCost {
        PollCost::Memory
    }

    fn event(&mut self) -> Option<RailEvent> {
        self.core.events.pop_front()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        if self.is_closed {
            return true;
        }
        let now = now.max(self.core.now);
        self.progress(now);
        if now < by && !self.is_over && !self.core.is_settled() {
            return false;
        }
        if !std::mem::replace(&mut self.is_closing, true) {
            self.core.drop_all();
        }
        let is_done = self.is_over || self.connector.close(&mut self.core, now);
        self.is_closed = is_done || now >= by;
        if self.is_closed {
            self.leave();
        }
        self.is_closed
    }
}

impl Message for RcRail {
    fn open(&mut self, address: &RailAddress, incarnation: Incarnation) -> Result<PeerIndex, RailError> {
        let bad = |reason| RailError::BadAddress {
            rail: self.name.to_string(),
            address: address.to_string(),
            reason,
        };
        if self.is_over || self.is_closing {
            return Err(bad("the rail has ended: its device is gone, or it was closed"));
        }
        let index = self.connector.open_peer(address, incarnation)?;
        if self.core.meet(index).is_none() {
            self.connector.forget(PeerIndex(index), self.core.now);
            return Err(bad("there are as many peers as the rail has memory for"));
        }
        Ok(PeerIndex(index))
    }

    fn stranger(&mut self) -> Option<Caller> {
        self.connector.stranger()
    }

    fn caller(&self, address: &RailAddress, incarnation: Incarnation) -> Option<Caller> {
        self.connector.caller(address, incarnation)
    }

    #[inline]
    fn send(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        match body {
            Body::Loan(bytes) => self.send_piece(peer, head, bytes.as_shared()),
            Body::Bytes(bytes) => self.send_piece(peer, head, SharedBytes::of(bytes)),
            _ => self.send_any(peer, head, &body),
        }
    }

    #[inline]
    fn flush(&mut self) {
        self.core.flush();
    }

    #[inline]
    fn flush_for(&mut self, peer: PeerIndex) -> bool {
        self.core.flush();
        let peer = self.core.peers.get(peer.index());
        peer.is_none_or(|peer| !peer.waits())
    }

    fn holds_back(&mut self, peer: Option<PeerIndex>) -> bool {
        self.core.flush();
        match peer {
            Some(peer) => self.core.peers.get(peer.index()).is_some_and(Peer::waits),
            None => self.core.holds_back(),
        }
    }

    fn accepted(&self, peer: PeerIndex) -> MsgId {
        self.core.last_accepted(peer.0)
    }

    #[inline]
    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        let mut shown = self.show_ended(budget, sink);
        shown += self.core.poll(budget - shown, sink);
        // What has ended meanwhile does not wait for another call.
        shown + self.show_ended(budget - shown, sink)
    }

    #[inline]
    fn look(&mut self, peer: PeerIndex, head: [u64; 2], room: Room<'_>, watch: Watch) -> Look {
        self.core.look(peer, head, room, watch)
    }

    #[inline]
    fn linger(&mut self, looks: u32) -> bool {
        self.core.linger(looks)
    }

    fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
        self.core.watermark(peer.0)
    }

    fn reclaim(&mut self, peer: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
        self.core.reclaim(peer.0, each);
    }

    fn abandon(&mut self, peer: PeerIndex) {
        if self.known(peer) && self.core.peers[peer.index()].stage != Stage::Down {
            self.core.drop_peer(peer.0);
            self.connector.abandon(peer, self.core.now);
        }
    }

    fn forget(&mut self, peer: PeerIndex) {
        if self.known(peer) {
            self.core.forget(peer.0);
            self.connector.forget(peer, self.core.now);
        }
    }

    fn revive(&mut self, peer: PeerIndex) {
        let has_ended = self.is_closing || self.is_over;
        if self.known(peer) && self.core.peers[peer.index()].stage == Stage::Down && !has_ended {
            self.connector.revive(peer, self.core.now);
        }
    }

    fn proved_alive(&mut self, peer: PeerIndex) {
        self.core.on_proof(peer.0);
    }

    fn report(&self, peer: PeerIndex) -> RailReport {
        RailReport {
            link: Some(self.is_link_up()),
            ..self.core.report_of(peer.0)
        }
    }

    fn expose(&mut self, memory: Exposure, access: Access, to: Option<PeerIndex>) -> Result<Remote, Refused> {
        self.core.expose(memory, access, to)
    }

    fn withdraw(&mut self, key: RemoteKey) {
        self.core.withdraw(key);
    }

    fn get(&mut self, peer: PeerIndex, op: OpId, from: &Remote, into: Landing) -> Result<(), Refused> {
        self.core.get(peer, op, from, into)
    }

    fn put(&mut self, peer: PeerIndex, op: OpId, from: Body<'_>, to: &Remote) -> Result<(), Refused> {
        if matches!(from, Body::Parts(parts) if parts.len() > PARTS) {
            return Err(Refused::TooLong);
        }
        self.core.put(peer, op, &from, to)
    }

    fn atomic(&mut self, peer: PeerIndex, op: OpId, at: &Remote, what: AtomicOp) -> Result<(), Refused> {
        self.core.atomic(peer, op, at, what)
    }

    fn fence(&mut self, scope: FenceScope, op: OpId) -> Result<(), Refused> {
        self.core.fence(scope, op)
    }
}
