//! Changes of the network (faults, cables, partitions, deaths), and how rails notice them.
//!
//! A rail does not notice at once, but `link_notice`, `death_notice` or `silence` later, and not at all if
//! the change was undone before. What was sent in between waits (a reliable transport retransmits), and
//! continues.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Scope};
use doorbell_fabric::message::PeerIndex;

use crate::agenda::Due;
use crate::config::Faults;
use crate::net::Plane;
use crate::state::{Ended, Link, Net};
use crate::trace::Happened;

/// A change of the network, made at once by [`SimNet::change`](crate::SimNet::change) or at a time by
/// [`SimNet::at`](crate::SimNet::at). Ranks and planes that do not exist make a change without effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// The faults of a whole plane, wherever a pair has none of its own.
    Faults(Plane, Faults),
    /// The faults of one direction between two ranks; `None` for the plane's again.
    PairFaults {
        /// The plane of the link.
        plane: Plane,
        /// The sending rank.
        from: u32,
        /// The receiving rank.
        to: u32,
        /// What the direction does.
        faults: Option<Faults>,
    },
    /// The plane's switch fails: every NIC on it loses its link.
    PlaneDown(Plane),
    /// The plane's switch recovers.
    PlaneUp(Plane),
    /// A rank's cable is pulled: its own NIC sees the link go, its peers see silence.
    LinkDown(Plane, u32),
    /// Puts the cable back.
    LinkUp(Plane, u32),
    /// Cuts the path from one rank to another; the other direction is not touched.
    Cut {
        /// The plane of the link.
        plane: Plane,
        /// The sending rank.
        from: u32,
        /// The receiving rank.
        to: u32,
    },
    /// The direction passes again.
    Heal {
        /// The plane of the link.
        plane: Plane,
        /// The sending rank.
        from: u32,
        /// The receiving rank.
        to: u32,
    },
    /// A rank's NIC is gone for good (unplugged, VF removed); the process lives on.
    NicDeath(Plane, u32),
    /// A rank's NIC hangs: it takes no frame out of its send rings, which fill up. It still receives. Message
    /// rails do not feel it.
    NicStall(Plane, u32),
    /// The NIC continues, with all that was posted.
    NicResume(Plane, u32),
    /// A rank's process is stopped, or computes and does not poll: polls of its rails return nothing,
    /// [`Job`](crate::Job) does not step it, and messages for it accumulate.
    Pause(u32),
    /// The rank's process continues.
    Resume(u32),
    /// A rank's process dies without closing anything; its rails do nothing any more.
    RankDeath(u32),
}

impl Net {
    pub(crate) fn change(&mut self, change: Change) {
        let (plane, from, to) = change.place();
        self.trace.add(crate::trace::TraceEvent {
            at: self.now,
            what: Happened::Changed,
            plane,
            from,
            to,
            number: change.number(),
            length: 0,
        });
        if plane as usize >= self.planes.len() {
            return;
        }
        match change {
            Change::Faults(_, faults) => {
                self.planes[plane as usize].faults = faults;
                let inherits = |link: &&mut Link| link.plane == plane && link.faults.is_none();
                self.links.iter_mut().filter(inherits).for_each(Link::begin_anew);
            }
            Change::PairFaults { faults, .. } => {
                let link = self.link(plane, from, to);
                self.links[link as usize].faults = faults;
                self.links[link as usize].begin_anew();
            }
            Change::PlaneDown(_) => self.planes[plane as usize].up = false,
            Change::PlaneUp(_) => self.planes[plane as usize].up = true,
            Change::LinkDown(..) => self.set_cable(plane, from, false),
            Change::LinkUp(..) => self.set_cable(plane, from, true),
            Change::Cut { .. } => self.set_cut(plane, from, to, true),
            Change::Heal { .. } => self.set_cut(plane, from, to, false),
            Change::NicDeath(..) => self.end_nics(Ended::Gone, |_, on, rank| (on, rank) == (plane, from)),
            Change::NicStall(..) => self.set_stalled(plane, from, true),
            Change::NicResume(..) => self.set_stalled(plane, from, false),
            Change::Pause(_) => {
                self.paused.insert(from);
            }
            Change::Resume(_) => {
                self.paused.remove(&from);
            }
            Change::RankDeath(_) => self.end_life(from),
        }
        self.look();
    }

    fn set_cable(&mut self, plane: u32, rank: u32, cable: bool) {
        for nic in self
            .nics
            .iter_mut()
            .filter(|nic| (nic.plane, nic.rank) == (plane, rank))
        {
            nic.cable = cable;
        }
    }

    fn set_stalled(&mut self, plane: u32, rank: u32, stalled: bool) {
        for nic in 0..self.nics.len() as u32 {
            let state = &mut self.nics[nic as usize];
            if (state.plane, state.rank) == (plane, rank) {
                state.stalled = stalled;
                self.hand_over(nic);
            }
        }
    }

    fn set_cut(&mut self, plane: u32, from: u32, to: u32, cut: bool) {
        let link = self.link(plane, from, to);
        self.links[link as usize].cut = cut;
    }

    fn end_nics(&mut self, how: Ended, which: impl Fn(u32, u32, u32) -> bool) {
        for nic in 0..self.nics.len() as u32 {
            let state = &self.nics[nic as usize];
            if state.ended.is_none() && which(state.life, state.plane, state.rank) {
                self.end_nic(nic, how);
            }
        }
    }

    pub(crate) fn end_life(&mut self, rank: u32) {
        let Some(&life) = self.ranks.get(&rank) else {
            return;
        };
        self.lives[life as usize].alive = false;
        self.paused.remove(&rank);
        self.end_nics(Ended::Died, |of, _, _| of == life);
    }

    /// Removes a NIC: nothing touches the memory exposed through it any more, and nothing of it is in flight.
    pub(crate) fn end_nic(&mut self, nic: u32, how: Ended) {
        if self.nics[nic as usize].ended.is_some() {
            return;
        }
        self.nics[nic as usize].ended = Some(how);
        self.nics[nic as usize].exposed.clear();
        for conn in 0..self.nics[nic as usize].conns.len() as u32 {
            if how == Ended::Closed {
                self.fail_ops(nic, conn);
            } else {
                self.fail_conn(nic, conn);
            }
        }
        self.purge(nic, None);
        self.drop_frames(nic);
        if how == Ended::Gone {
            self.report(nic, Scope::Rail, EventKind::DeviceGone);
        }
    }

    /// Updates every link and every path after a change: resumes what can continue, and schedules notices.
    pub(crate) fn look(&mut self) {
        for nic in 0..self.nics.len() as u32 {
            if self.nics[nic as usize].ended.is_some() {
                continue;
            }
            self.look_at_link(nic);
            for conn in 0..self.nics[nic as usize].conns.len() as u32 {
                self.look_at_peer(nic, conn);
                self.resume(nic, conn);
            }
        }
    }

    /// Schedules the notice of a change of the NIC's own link.
    pub(crate) fn look_at_link(&mut self, nic: u32) {
        let state = &mut self.nics[nic as usize];
        let up = state.cable && self.planes[state.plane as usize].up;
        if state.ended.is_some() || up == state.seen_link {
            return;
        }
        state.seen_link = up;
        state.link_turn += 1;
        if up == state.told_down {
            let turn = state.link_turn;
            let at = self.now + self.config.link_notice;
            self.agenda.push(at, Due::LinkNotice { nic, turn });
        }
    }

    pub(crate) fn notice_link(&mut self, nic: u32, turn: u32) {
        let state = &mut self.nics[nic as usize];
        if state.ended.is_some() || state.link_turn != turn || state.seen_link != state.told_down {
            return;
        }
        state.told_down = !state.seen_link;
        let down = state.told_down;
        self.report(
            nic,
            Scope::Rail,
            if down {
                EventKind::LinkDown
            } else {
                EventKind::LinkUp
            },
        );
        for conn in 0..self.nics[nic as usize].conns.len() as u32 {
            if down {
                self.fail_conn(nic, conn);
                self.withdraw_from(nic, conn);
            } else {
                self.acknowledge(nic, conn);
            }
        }
    }

    /// Returns why `nic` cannot reach the peer of `conn`, its own link aside.
    fn obstacle(&self, nic: u32, conn: u32) -> Option<DownReason> {
        let conn = self.conn(nic, conn);
        let peer = &self.nics[conn.nic as usize];
        match peer.ended {
            Some(Ended::Closed) => return Some(DownReason::Closed),
            Some(Ended::Died) => return Some(DownReason::Died),
            Some(Ended::Gone) => return Some(DownReason::Silent),
            None => {}
        }
        let cut = |link: u32| self.links[link as usize].cut;
        (!peer.cable || cut(conn.link_out) || cut(conn.link_back)).then_some(DownReason::Silent)
    }

    /// Schedules the notice of a change of the path to a peer.
    pub(crate) fn look_at_peer(&mut self, nic: u32, conn: u32) {
        let obstacle = self.obstacle(nic, conn);
        let state = &mut self.nics[nic as usize].conns[conn as usize];
        if state.seen_open == obstacle.is_none() {
            return;
        }
        state.seen_open = obstacle.is_none();
        state.turn += 1;
        if state.seen_open == state.down {
            let turn = state.turn;
            let (link, wait) = (state.link_back, self.patience(obstacle));
            let wait = wait.unwrap_or_else(|| self.faults(link).delay);
            self.agenda
                .push(self.now + wait, Due::PeerNotice { nic, conn, turn });
        }
    }

    /// Returns the time until an obstacle is noticed; a goodbye is as fast as the link.
    fn patience(&self, obstacle: Option<DownReason>) -> Option<Duration> {
        match obstacle {
            Some(DownReason::Closed) => None,
            Some(DownReason::Died) => Some(self.config.death_notice),
            _ => Some(self.config.silence),
        }
    }

    pub(crate) fn notice_peer(&mut self, nic: u32, conn: u32, turn: u32) {
        let state = self.conn(nic, conn);
        if self.nics[nic as usize].ended.is_some() || state.turn != turn || state.seen_open != state.down {
            return;
        }
        let scope = Scope::Peer(PeerIndex(conn));
        let Some(reason) = self.obstacle(nic, conn) else {
            if self.is_abandoned(nic, conn) {
                return;
            }
            let state = self.conn_mut(nic, conn);
            state.down = false;
            state.greeted = true;
            self.report(nic, scope, EventKind::PeerUp);
            self.acknowledge(nic, conn);
            return;
        };
        self.conn_mut(nic, conn).fall();
        self.report(nic, scope, EventKind::PeerDown(reason));
        self.fail_conn(nic, conn);
        self.withdraw_from(nic, conn);
        if reason != DownReason::Silent {
            // It is over: nothing of that process is seen after the news of its end.
            let peer = self.conn(nic, conn).nic;
            if let Some(&theirs) = self.nics[peer as usize].peers.get(&nic) {
                self.fail_conn(peer, theirs);
            }
            self.purge(nic, Some(peer));
        }
    }
}

impl Net {
    /// Whether one of the two ends has given up the connection, so that it does not recover by itself.
    fn is_abandoned(&self, nic: u32, conn: u32) -> bool {
        let ours = self.conn(nic, conn);
        let theirs = self.nics[ours.nic as usize].peers.get(&nic);
        ours.abandoned || theirs.is_some_and(|theirs| self.conn(ours.nic, *theirs).abandoned)
    }

    /// The owner of `nic` gives up the connection to a peer, which is not notified.
    pub(crate) fn abandon(&mut self, nic: u32, conn: u32) {
        if self.nics[nic as usize].ended.is_some() || self.conn(nic, conn).down {
            return;
        }
        let state = self.conn_mut(nic, conn);
        state.fall();
        state.abandoned = true;
        // Pending events about the peer are obsolete.
        let scope = Scope::Peer(PeerIndex(conn));
        self.nics[nic as usize]
            .events
            .retain(|event| event.scope != scope);
        self.fail_conn(nic, conn);
        self.withdraw_from(nic, conn);
    }

    /// Sends a reconnect request to a peer that is down; it is lost on a closed path.
    pub(crate) fn revive(&mut self, nic: u32, conn: u32) {
        let state = self.conn(nic, conn);
        if state.down && self.nics[nic as usize].ended.is_none() {
            let at = self.transit(state.link_out, self.now);
            self.agenda.push(at, Due::Revive { nic, conn });
        }
    }

    /// Handles a reconnect request: the peer drops the old connection, and both ends reconnect.
    pub(crate) fn revived(&mut self, nic: u32, conn: u32) {
        let state = self.conn(nic, conn);
        let (peer, link) = (state.nic, state.link_out);
        let over = !state.down
            || state.over
            || self.nics[nic as usize].ended.is_some()
            || self.nics[nic as usize].told_down;
        let theirs = self.nics[peer as usize].peers.get(&nic).copied();
        let open = self.obstacle(nic, conn).is_none() && self.passes(nic, peer, link);
        if open && !over {
            self.note_sender(peer, nic);
        }
        let (Some(theirs), true, false) = (theirs, open, over || self.nics[peer as usize].told_down) else {
            return;
        };
        if self.conn(peer, theirs).over {
            return;
        }
        if !self.conn(peer, theirs).down {
            self.conn_mut(peer, theirs).fall();
            let scope = Scope::Peer(PeerIndex(theirs));
            self.report(peer, scope, EventKind::PeerDown(DownReason::Abandoned));
            self.fail_conn(peer, theirs);
            self.withdraw_from(peer, theirs);
        }
        for (nic, conn) in [(nic, conn), (peer, theirs)] {
            let state = self.conn_mut(nic, conn);
            (state.down, state.abandoned, state.greeted) = (false, false, true);
            self.report(nic, Scope::Peer(PeerIndex(conn)), EventKind::PeerUp);
            self.acknowledge(nic, conn);
        }
    }
}

impl Link {
    /// Resets fault state for new faults: an aim counts from the next frame, and no burst continues.
    fn begin_anew(&mut self) {
        self.bursting = false;
        self.picked = 0;
    }
}

impl Change {
    /// Plane, first and second rank that a change is about.
    fn place(&self) -> (u32, u32, u32) {
        match *self {
            Change::Faults(plane, _) | Change::PlaneDown(plane) | Change::PlaneUp(plane) => (plane.0, 0, 0),
            Change::PairFaults { plane, from, to, .. }
            | Change::Cut { plane, from, to }
            | Change::Heal { plane, from, to } => (plane.0, from, to),
            Change::LinkDown(plane, rank)
            | Change::LinkUp(plane, rank)
            | Change::NicStall(plane, rank)
            | Change::NicResume(plane, rank)
            | Change::NicDeath(plane, rank) => (plane.0, rank, rank),
            Change::Pause(rank) | Change::Resume(rank) | Change::RankDeath(rank) => (0, rank, rank),
        }
    }

    /// The kind of change, as the trace's number.
    fn number(&self) -> u64 {
        match self {
            Change::Faults(..) => 1,
            Change::PairFaults { .. } => 2,
            Change::PlaneDown(_) => 3,
            Change::PlaneUp(_) => 4,
            Change::LinkDown(..) => 5,
            Change::LinkUp(..) => 6,
            Change::Cut { .. } => 7,
            Change::Heal { .. } => 8,
            Change::NicDeath(..) => 9,
            Change::RankDeath(_) => 10,
            Change::Pause(_) => 11,
            Change::Resume(_) => 12,
            Change::NicStall(..) => 13,
            Change::NicResume(..) => 14,
        }
    }
}
