//! One process: its rails, its peers, and up to four interfaces over them.

use std::os::fd::BorrowedFd;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::{Incarnation, Message};
use doorbell_fabric::ni::{Kind, Lost, NiError, NiFail, NiLimits, Process, Register};
use doorbell_fabric::rail::Armed;
use doorbell_fabric::time::Time;
use doorbell_paths::PathState;

use crate::answers::Outcome;
use crate::config::{Config, NodeError, WHOLE, granted};
use crate::core::{Core, NO_NI};
use crate::drops::Drops;
use crate::iface::{Iface, Map};
use crate::link::{Link, LinkConfig, LinkStats, PeerId, RailId};
use crate::ops::Role;
use crate::peers::NONE;
use crate::placed::Given;
use crate::view::{Interface, View};
use crate::wire::{Head, kind};

/// A process: rails, peers, interfaces.
#[derive(Debug)]
pub struct Node<M: Message> {
    pub(crate) link: Link<M>,
    pub(crate) core: Core,
    limits: NiLimits,
}

impl<M: Message> Node<M> {
    /// A process without rails, which knows no peer but itself.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let link = Link::new(LinkConfig {
            patience: config.patience,
            backlog: config.backlog,
        });
        Self {
            link,
            core: Core::new(config.me, config.uid, config.seed),
            limits: config.limits,
        }
    }

    /// Adds a rail.
    ///
    /// # Errors
    /// [`NodeError::TooManyRails`]; [`NodeError::RailTooSmall`].
    pub fn add_rail(&mut self, rail: M) -> Result<RailId, NodeError> {
        let most = rail.capabilities().limits.message;
        if most < WHOLE {
            return Err(NodeError::RailTooSmall {
                rail: rail.name().to_string(),
                most,
            });
        }
        self.link.add_rail(rail).ok_or(NodeError::TooManyRails)
    }

    /// Returns the rail with this number.
    #[must_use]
    pub fn rail(&self, rail: RailId) -> Option<&M> {
        self.link.rail(rail)
    }

    /// A rail, to be changed: for its owner's business, not for its peers'.
    pub fn rail_mut(&mut self, rail: RailId) -> Option<&mut M> {
        self.link.rail_mut(rail)
    }

    /// All rails, with their numbers.
    pub fn rails(&self) -> impl Iterator<Item = (RailId, &M)> {
        self.link.rails()
    }

    /// Adds a peer, or one more path to it. The n-th path to a peer must be the n-th at both ends. To the
    /// process itself there is a path already, and this does nothing.
    ///
    /// # Errors
    /// [`NodeError`]. What the peer had before is as it was; of a new one the name is remembered, and no
    /// more: it is not known ([`Node::knows`]), cannot be reached, and may be connected again.
    pub fn connect(
        &mut self,
        peer: Process,
        rail: RailId,
        address: &RailAddress,
        incarnation: Incarnation,
    ) -> Result<(), NodeError> {
        if self.link.rail(rail).is_none() {
            return Err(NodeError::NoRail(rail));
        }
        if peer == self.core.me {
            return Ok(());
        }
        let id = match self.core.peers.find(peer) {
            Some(id) => {
                if self.core.peers.get(id).is_some_and(|peer| peer.lost) {
                    return Err(NodeError::Lost(peer));
                }
                id
            }
            None => {
                self.core.peers.source(peer)?;
                let id = self.link.add_peer();
                self.core.peers.add(peer, id)?;
                self.core.peer_added(id);
                id
            }
        };
        self.link.connect(id, rail, address, incarnation)?;
        if let Some(peer) = self.core.peers.get_mut(id) {
            peer.connected = true;
        }
        Ok(())
    }

    /// Whether a peer is known: it was given a way, even if it is lost by now.
    #[must_use]
    pub fn knows(&self, peer: Process) -> bool {
        let found = self.core.peers.find(peer);
        found
            .and_then(|id| self.core.peers.get(id))
            .is_some_and(|peer| peer.connected)
    }

    /// Initialises an interface, or counts one user more of one that is there. The limits that it has.
    ///
    /// # Errors
    /// None today.
    pub fn ni_init(&mut self, kind: Kind, desired: Option<&NiLimits>) -> Result<NiLimits, NiError> {
        Ok(self.core.ni_init(kind, granted(desired.unwrap_or(&self.limits))))
    }

    /// Ends one use of an interface; with the last one, everything in it is over. Long transfers that are
    /// being read from a peer's memory at that time end by themselves: see [`Node::is_writing`].
    ///
    /// # Errors
    /// [`NiError::NoInit`].
    pub fn ni_fini(&mut self, kind: Kind) -> Result<(), NiError> {
        let ni = self.core.present(kind)?;
        ni.users -= 1;
        if ni.users == 0 {
            self.take_back(|given| given.is_of_table(kind, None));
            self.core.placing.count_no_more(kind);
            self.core.end_interface(kind);
            self.core.pump(&mut self.link);
        }
        Ok(())
    }

    /// Whether one-sided gets are under way that write memory of this process: of long gets and puts that had
    /// begun when their interface was finished, too; or a peer still writes memory that was taken back from
    /// it. Until there are none, memory that was lent has to stay.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.core.pulls.are_writing() || self.core.placing.is_being_written()
    }

    /// Takes memory back that peers place puts in; whether nothing is written there any more.
    pub(crate) fn take_back(&mut self, which: impl Fn(&Given) -> bool) -> bool {
        self.core.take_back(&mut self.link, which)
    }

    /// Sets the map of a logical interface: which process each rank is.
    ///
    /// # Errors
    /// [`NiError::Ignored`] when it has one; [`NiError::ArgInvalid`] for a physical interface, and for a map
    /// without this process; [`NiError::NoInit`].
    pub fn set_map(&mut self, kind: Kind, map: &[Process]) -> Result<(), NiError> {
        self.core.set_map(kind, map)
    }

    /// The map of a logical interface.
    ///
    /// # Errors
    /// [`NiError::NoInit`] before it is set; [`NiError::ArgInvalid`] for a physical interface.
    pub fn get_map(&self, kind: Kind) -> Result<&[Process], NiError> {
        if !kind.logical {
            return Err(NiError::ArgInvalid("a physical interface has no map"));
        }
        let ni = self.core.nis[kind.number() as usize].as_deref();
        let map = ni.filter(|ni| ni.users != 0).and_then(|ni| ni.map.as_ref());
        map.map(|map| &map.processes[..]).ok_or(NiError::NoInit)
    }

    /// An interface, to be used now. One that is not initialised answers every call with [`NiError::NoInit`].
    pub fn ni(&mut self, kind: Kind) -> View<'_, M> {
        View { node: self, kind }
    }

    /// An interface that owns the node.
    #[must_use]
    pub fn into_ni(self, kind: Kind) -> Interface<M> {
        Interface { node: self, kind }
    }

    /// Disowns a copy in a child of `fork`: every call of an interface fails as if none had been initialised,
    /// and nothing is sent or looked for. What the copy holds is the parent's, and is not dropped.
    #[cold]
    pub fn disown(&mut self) {
        self.core
            .nis
            .iter_mut()
            .for_each(|ni| std::mem::forget(ni.take()));
        self.core.drop_work();
        self.link.disown();
    }

    /// This process as a physical interface names it.
    #[must_use]
    pub fn me(&self) -> Process {
        self.core.me
    }

    /// Returns the counts of invalid messages of peers, by reason.
    #[must_use]
    pub fn drops(&self) -> &Drops {
        &self.core.drops
    }

    /// Returns the counters of its links: messages held, sent again, given up.
    #[must_use]
    pub fn link_stats(&self) -> &LinkStats {
        self.link.stats()
    }

    /// Returns an error counter, of all interfaces together.
    #[must_use]
    pub fn status(&self, register: Register) -> u64 {
        let nis = self.core.nis.iter().flatten();
        nis.map(|ni| ni.registers[register as usize]).sum()
    }

    /// Returns how a rail to a peer is, and half of the round trip of its probes in nanoseconds, once it was
    /// measured. `None` for a rail that does not lead there.
    #[must_use]
    pub fn path(&self, peer: Process, rail: RailId) -> Option<(PathState, Option<u64>)> {
        self.link.path(self.core.peers.find(peer)?, rail)
    }

    /// Shows up to `budget` arrivals to the interfaces, and sends what waits; returns how many. Reads no
    /// clock.
    #[inline]
    pub fn poll(&mut self, budget: usize) -> usize {
        let shown = self.link.poll(budget, &mut self.core);
        if self.core.is_restless() {
            self.core.pump(&mut self.link);
        }
        shown
    }

    /// Looks up to `looks` times whether anything has arrived, for a caller that waits and polls next: over a
    /// rail that has a loop for that ([`Message::linger`]), and while nothing else is to be done. `false`
    /// when nothing was seen.
    #[inline(always)]
    pub fn linger(&mut self, looks: u32) -> bool {
        self.core.is_restless() || self.link.linger(looks)
    }

    /// Housekeeping that needs the time; returns the work done.
    pub fn progress(&mut self, now: Time) -> usize {
        let mut done = self.link.progress(now);
        while let Some((peer, reason)) = self.link.lost() {
            self.core.peer_lost(peer, reason);
            self.core.take_back_of_lost(&mut self.link, peer);
            done += 1;
        }
        if self.core.placing.is_being_written() {
            self.take_back(Given::is_written);
        }
        self.core.pump(&mut self.link);
        self.core.see_off();
        done
    }

    /// The process of a peer has ended, which is known from elsewhere than its rails. Its last messages,
    /// which are there already, are shown first.
    pub fn ended(&mut self, peer: Process, reason: DownReason) {
        let Some(id) = self.core.peers.find(peer) else {
            return;
        };
        for _ in 0..LAST_PASSES {
            if self.poll(LAST_MESSAGES) == 0 {
                break;
            }
        }
        self.link.ended(id, reason);
    }

    /// Whether a rail finds the time of the last [`Node::progress`] old: call it soon then.
    #[must_use]
    pub fn wants_time(&self) -> bool {
        self.link.wants_time()
    }

    /// Returns when [`Node::progress`] has something to do next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.link.next_deadline()
    }

    /// Prepares to sleep: every descriptor that becomes readable when there is work is passed to `each`.
    /// Returns whether there is work already: then do not sleep. [`Node::disarm`] ends it.
    pub fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        let mut ready = self.link.must_poll() || self.core.is_restless();
        let armed = self.link.arm(&mut |_, armed| match armed {
            Armed::Ready => ready = true,
            Armed::Sleep(fd) => each(fd),
        });
        // A rail that cannot be slept on is polled.
        ready || armed.is_err()
    }

    /// Ends what [`Node::arm`] prepared.
    pub fn disarm(&mut self) {
        self.link.disarm();
    }

    /// Rings one doorbell for everything that was begun.
    #[inline]
    pub fn flush(&mut self) {
        self.link.flush();
    }

    /// Forgets what rails hold back now, so that no later call waits for it.
    #[inline]
    pub fn forget_held(&mut self) {
        self.link.forget_held();
    }

    /// A call has waited its whole limit for what rails hold back: [`Node::holds_back`] does not count it any
    /// more, until its peer takes something.
    pub fn give_up_held(&mut self) {
        self.link.give_up_held();
    }

    /// Whether messages that rails have accepted since [`Node::forget_held`] leave only in later calls. A
    /// caller that will make none for long polls until there are none.
    #[inline]
    pub fn holds_back(&mut self) -> bool {
        self.link.holds_back()
    }

    /// Orderly end; to be called with a fresh `now` until it answers `true`, at `by` at the latest.
    pub fn close(&mut self, now: Time, by: Time) -> bool {
        self.core.pump(&mut self.link);
        if now < by && self.core.is_restless() {
            // Operations that have fired, or are requested, and find no room yet.
            self.link.progress(now);
            return false;
        }
        self.link.close(now, by)
    }
}

/// Passes for the last messages of a peer that has ended, and of each: more than a lane holds, and an end to
/// a flood of others.
const LAST_PASSES: u32 = 10_000;
const LAST_MESSAGES: usize = 64;

impl Core {
    fn ni_init(&mut self, kind: Kind, limits: NiLimits) -> NiLimits {
        let at = &mut self.nis[kind.number() as usize];
        match at {
            Some(ni) if ni.users != 0 => {
                ni.users += 1;
                return ni.limits;
            }
            Some(ni) => ni.renew(limits),
            None => *at = Some(Box::new(Iface::new(kind, limits))),
        }
        if let Some(ni) = at {
            if !kind.logical {
                ni.id = self.me;
                ni.ready = true;
            }
            ni.sources = self
                .peers
                .iter()
                .map(|peer| if kind.logical { NONE } else { peer.source })
                .collect();
        }
        limits
    }

    fn set_map(&mut self, kind: Kind, map: &[Process]) -> Result<(), NiError> {
        if !kind.logical {
            return Err(NiError::ArgInvalid("a physical interface has no map"));
        }
        if self.present(kind)?.map.is_some() {
            return Err(NiError::Ignored);
        }
        let rank = map.iter().position(|process| *process == self.me);
        let rank = rank.ok_or(NiError::ArgInvalid("a map without this process"))? as u32;
        let peers: Vec<u32> = map
            .iter()
            .map(|process| self.peers.find(*process).map_or(NONE, |peer| peer.0))
            .collect();
        let mut sources = vec![NONE; self.peers.len()];
        for (rank, peer) in peers.iter().enumerate().rev() {
            if let Some(source) = sources.get_mut(*peer as usize) {
                *source = rank as u32;
            }
        }
        let ni = self.present(kind)?;
        ni.id = Process::rank(rank);
        ni.sources = sources;
        ni.ready = true;
        ni.map = Some(Map {
            processes: map.into(),
            peers,
        });
        Ok(())
    }

    /// A peer became known: the interfaces that are there learn what it is to them.
    fn peer_added(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get(id) else { return };
        let (process, source) = (peer.process, peer.source);
        for ni in self.nis.iter_mut().flatten() {
            let mut is = if ni.kind.logical { NONE } else { source };
            if let Some(map) = &mut ni.map {
                for (rank, at) in map.processes.iter().enumerate().rev() {
                    if *at == process {
                        map.peers[rank] = id.0;
                        is = rank as u32;
                    }
                }
            }
            ni.sources.push(is);
        }
    }

    /// Handles a peer that is gone for good: what it owed ends, and what it wanted. The interfaces report it
    /// when that is done.
    fn peer_lost(&mut self, id: PeerId, reason: DownReason) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        if std::mem::replace(&mut peer.lost, true) {
            return;
        }
        // Messages of it that come late are dropped.
        peer.uid = None;
        peer.rooms.clear();
        for op in self.ops.places() {
            if self.ops.at(op).is_some_and(|op| op.peer == id.0) {
                self.fail_op(op);
            }
        }
        self.leaving.push((id, reason));
    }

    /// Reports lost peers whose operations have all ended.
    fn see_off(&mut self) {
        let mut at = 0;
        while let Some(&(id, reason)) = self.leaving.get(at) {
            let open = self.peers.get(id).map_or(0, |peer| peer.open + peer.owed);
            if open == 0 {
                self.leaving.swap_remove(at);
                self.post_lost(id, reason);
            } else {
                at += 1;
            }
        }
    }

    fn post_lost(&mut self, id: PeerId, reason: DownReason) {
        let Some(peer) = self.peers.get(id) else { return };
        let process = peer.process;
        for ni in self.nis.iter_mut().flatten().filter(|ni| ni.users != 0) {
            let process = match ni.sources.get(id.index()) {
                _ if !ni.kind.logical => process,
                Some(&rank) if rank != NONE => Process::rank(rank),
                _ => continue,
            };
            ni.lost.push_back(Lost { process, reason });
        }
    }

    /// Ends an operation that cannot go on. A peer that waits for bytes of it is notified that they will not
    /// come.
    fn fail_op(&mut self, op: u32) {
        let waits = self.ops.at(op).and_then(|at| match at.role {
            Role::Serve => Some((PeerId(at.peer), at.far)),
            Role::Rts => at.stream.map(|stream| (PeerId(at.peer), stream.to)),
            _ => None,
        });
        if let Some((peer, far)) = waits
            && self.peers.get(peer).is_some_and(|peer| !peer.lost)
        {
            self.outbox.push(peer, Head::new(kind::GONE, 0, 0).word(far), &[]);
        }
        match self.ops.at(op).map(|op| op.role) {
            Some(Role::Put | Role::Rts) => self.end_put(op, Outcome::failed(NiFail::Undeliverable)),
            Some(Role::Get | Role::Landing) => self.landed(op, NiFail::Undeliverable),
            Some(Role::Serve) => self.end_target(op, NiFail::Undeliverable),
            _ => {}
        }
    }

    /// Ends everything in an interface. Peers that wait for it are notified of the failure.
    fn end_interface(&mut self, kind: Kind) {
        let number = kind.number() as u8;
        for op in self.ops.places() {
            if self.ops.at(op).is_some_and(|op| op.ni == number) {
                self.fail_op(op);
            }
            // Writes in progress end by themselves, without an event.
            if let Some(op) = self.ops.at_mut(op).filter(|op| op.ni == number) {
                op.ni = NO_NI;
            }
        }
        if let Some(ni) = self.nis[kind.number() as usize].as_deref_mut() {
            let limits = ni.limits;
            ni.renew(limits);
            ni.users = 0;
        }
    }
}
