//! Peers that are forgotten, and opened again under the same or another number.
//!
//! A connection that one end forgets is over for both: the other end finds it down, and keeps its number
//! until it forgets in turn. What the first end sends over a fresh one meanwhile waits, as a stranger's
//! messages do.

use doorbell_fabric::event::{DownReason, EventKind, Scope};
use doorbell_fabric::message::PeerIndex;

use crate::state::Net;

impl Net {
    /// The owner of `nic` forgets a peer.
    pub(crate) fn forget_peer(&mut self, nic: u32, conn: u32) {
        let state = self.conn(nic, conn);
        let (peer, was_over) = (state.nic, state.over);
        let ours = &mut self.nics[nic as usize].peers;
        if ours.get(&peer) != Some(&conn) {
            return; // forgotten before
        }
        ours.remove(&peer);
        self.end_conn(nic, conn);
        while !self.conn(nic, conn).retained.is_empty() {
            self.let_go(nic, conn);
        }
        self.drop_events(nic, conn);
        self.nics[nic as usize].forgotten.push(conn);
        // Of two ends that have forgotten each other, the other one may be connected afresh.
        if !was_over && let Some(&theirs) = self.nics[peer as usize].peers.get(&nic) {
            let was_down = self.conn(peer, theirs).down || self.nics[peer as usize].ended.is_some();
            self.end_conn(peer, theirs);
            if !was_down {
                let scope = Scope::Peer(PeerIndex(theirs));
                self.report(peer, scope, EventKind::PeerDown(DownReason::Closed));
            }
        }
        self.drop_old(nic, peer);
        self.drop_old(peer, nic);
    }

    /// Ends a connection for good at one of its ends.
    fn end_conn(&mut self, nic: u32, conn: u32) {
        let state = self.conn_mut(nic, conn);
        if !state.down {
            state.fall();
        }
        (state.abandoned, state.over) = (true, true);
        state.turn += 1;
        self.fail_conn(nic, conn);
        self.withdraw_from(nic, conn);
    }

    fn drop_events(&mut self, nic: u32, conn: u32) {
        let scope = Scope::Peer(PeerIndex(conn));
        self.nics[nic as usize]
            .events
            .retain(|event| event.scope != scope);
    }

    /// Drops what waits at `nic` and was sent by `from` over a connection that is over.
    fn drop_old(&mut self, nic: u32, from: u32) {
        let live = self.nics[from as usize].peers.get(&nic).copied();
        let state = &mut self.nics[nic as usize];
        let waiting: Vec<u32> = state.inbox.drain(..).chain(state.strangers.drain(..)).collect();
        for message in waiting {
            if self.messages[message].from == from && !self.is_of(message, live) {
                self.lose(message);
            } else {
                self.queue(nic, message);
            }
        }
    }
}
