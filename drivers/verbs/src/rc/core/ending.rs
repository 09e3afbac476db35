//! The ends of connections.

use doorbell_fabric::event::{DownReason, EventKind, Life};

use super::{Core, Stage};
use crate::rc::link::State;
use crate::rc::record::Event;
use crate::sys::numbers;

impl Core {
    /// Ends a connection for a reason: what has come is shown before, and what was posted ends; then the peer
    /// is down.
    pub(crate) fn end(&mut self, index: u32, reason: DownReason) {
        let now = self.now;
        let Some(link) = &mut self.peers[index as usize].link else {
            return;
        };
        match link.state {
            // It was not up: contact makes another one, or reports that there is none.
            State::Made | State::Receiving => {
                self.discard(index);
                self.ended.push_back((index, reason));
            }
            State::Up => {
                let posted = link.fail(reason, now);
                // Its last sends are among those that the queue has room for.
                link.last_send = self.inbox.fetched + self.sizes.receives.1 as u64;
                self.record(Some(index), Event::Ending(reason));
                self.ending.push(index);
                self.under_way += posted.requests;
                self.is_live_no_more(index);
                self.one_sided_failed(index);
            }
            State::Ending(..) => {}
        }
    }

    /// Whether a peer's connection carries messages.
    #[inline]
    pub(crate) fn is_up(&self, index: u32) -> bool {
        let link = self.peers[index as usize].link.as_ref();
        link.is_some_and(|link| link.state == State::Up)
    }

    /// Whether one is being made, and receives.
    #[inline]
    pub(crate) fn is_beginning(&self, index: u32) -> bool {
        let link = self.peers[index as usize].link.as_ref();
        link.is_some_and(|link| link.state == State::Receiving)
    }

    /// Whether messages wait for a connection that there was none of yet.
    pub(crate) fn is_wanted(&self, index: u32) -> bool {
        self.peers[index as usize].is_wanted
    }

    /// Takes a connection off the list of those that are up.
    fn is_live_no_more(&mut self, index: u32) {
        let at = std::mem::replace(&mut self.peers[index as usize].live_at, u32::MAX);
        if at != u32::MAX {
            self.live.swap_remove(at as usize);
            if let Some(&moved) = self.live.get(at as usize) {
                self.peers[moved as usize].live_at = at;
            }
        }
    }

    /// There will be no connection to a peer: what waits for one is given back.
    pub(crate) fn lose(&mut self, index: u32, reason: DownReason) {
        if self.peers[index as usize].stage != Stage::Down {
            self.bury(index);
            self.report(index, EventKind::PeerDown(reason), Life::FIRST);
        }
    }

    /// Breaks a connection without a report to either end.
    pub(crate) fn sever(&mut self, index: u32) {
        if let Some(link) = &mut self.peers[index as usize].link {
            link.sever();
        }
    }

    /// Ends a peer at once and without an event, whatever it has.
    pub(crate) fn drop_peer(&mut self, index: u32) {
        if self.peers[index as usize].stage != Stage::Down {
            self.bury(index);
        }
    }

    /// Takes a connection down: its queue pair is destroyed, and what was not taken is kept to be reclaimed.
    pub(crate) fn bury(&mut self, index: u32) {
        self.reap();
        self.is_live_no_more(index);
        let peer = &mut self.peers[index as usize];
        (peer.stage, peer.is_wanted) = (Stage::Down, false);
        let (accepted, link) = (peer.accepted(), peer.link.take());
        let mut taken = 0;
        if let Some(mut link) = link {
            // What cannot be is no news.
            let _ = link.read_page(accepted);
            taken = link.known.consumed;
            self.let_go_of(index, link);
            if let Some(at) = self.ending.iter().position(|ending| *ending == index) {
                self.ending.swap_remove(at);
            }
        }
        let has_left = self.retired.contains_key(&index);
        let peer = &mut self.peers[index as usize];
        if !has_left {
            peer.passed = peer.passed.max(peer.base + taken);
        }
        let (base, mut retired) = (peer.base, Vec::new());
        if let Some(outbox) = &mut peer.outbox {
            peer.base += outbox.accepted;
            outbox.end(&mut self.pool, taken, |number, message| {
                retired.push((base + number, message));
            });
        }
        if !retired.is_empty() {
            self.retired.entry(index).or_default().extend(retired);
        }
        self.inbox.forget(index, &mut self.slots);
        self.one_sided_over(index);
    }
}

/// Why a connection ended, by the status of the request that found it out. None of them shows that the peer's
/// process has ended: a first error may be a flush without a cause, as where an interface goes down.
pub(crate) fn reason_of(status: i32) -> DownReason {
    match status {
        numbers::RETRY_EXC_ERR => DownReason::Silent,
        numbers::LOC_LEN_ERR | numbers::LOC_QP_OP_ERR | numbers::LOC_PROT_ERR | numbers::MW_BIND_ERR => {
            DownReason::Resources
        }
        _ => DownReason::Abandoned,
    }
}
