//! What is taken now of everything that is given back: for tests that look for leaks, and for explanations.

use doorbell_fabric::message::Message;

use crate::pml::Pml;
use crate::request::{State, mark};

/// What is taken: nothing of it, when all is done and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// Requests that their owner has not seen the end of.
    pub requests: usize,
    /// Requests that end by themselves: injected messages that wait, detached and aborted ones.
    pub own_requests: usize,
    /// Messages that our owner reads in place and has not released.
    pub in_place: usize,
    /// Receives that nothing has matched.
    pub posted: usize,
    /// Messages that no receive has matched.
    pub kept: usize,
    /// Records of messages: kept, claimed, or held because an earlier one is missing.
    pub records: usize,
    /// The number of these that are held.
    pub held: usize,
    /// Words of the protocol, and messages that a rail gave back, that wait for a rail.
    pub words: usize,
    /// Steps of transfers that wait for a rail.
    pub tasks: usize,
    /// Sends of which nothing has left.
    pub queued: usize,
    /// One-sided operations that have not ended.
    pub operations: usize,
    /// Bytes in buffers of our own that wait to be sent.
    pub bytes: usize,
    /// Deliveries, notices, ended requests and operations that the owner has not taken yet.
    pub untaken: usize,
    /// Exposed memory that is to be withdrawn.
    pub withdrawals: usize,
}

impl<M: Message> Pml<M> {
    /// Every request that was not freed, in a line each: for the reports of tests that look for leaks.
    #[must_use]
    pub fn live_lines(&self) -> Vec<String> {
        let core = &self.core;
        let live = core
            .requests
            .indices()
            .filter(|index| core.requests.peek(*index).state() != State::Free);
        live.map(|index| {
            let (slot, record) = (core.requests.peek(index), core.requests.peek_record(index));
            format!(
                "{}: {:?} {:?} {} children of {:?}, peer {}, context {}, tag {}, number {}, of {} B, restart {}, marks {:#x}, other's {:#x}",
                core.requests.id(index),
                slot.state(),
                record.handshake.phase(),
                record.multi.children(),
                record.multi.parent(),
                slot.peer(),
                slot.context(),
                slot.tag(),
                record.seq(),
                slot.length(),
                record.handshake.attempt(),
                slot.marks(),
                record.remote_request()
            )
        })
        .collect()
    }

    /// Returns what is taken now. Not for the data path: it looks at everything.
    #[must_use]
    pub fn in_use(&self) -> InUse {
        let core = &self.core;
        let (mut requests, mut own_requests, mut in_place) = (0, 0, 0);
        for slot in core.requests.each_live() {
            match slot.marks() & (mark::DETACHED | mark::ABORTED | mark::CHILD) {
                _ if slot.state() == State::Held => in_place += 1,
                0 => requests += 1,
                _ => own_requests += 1,
            }
        }
        let of_peers = |count: fn(&crate::peer::Peer) -> usize| core.peers.iter().map(count).sum();
        InUse {
            requests,
            own_requests,
            in_place,
            posted: core.matcher.posted_len(),
            kept: core.matcher.unexpected_load().messages,
            records: core.unexpected.taken(),
            held: of_peers(|peer| peer.held.count()),
            words: core.rma.answers()
                + of_peers(|peer| peer.backlog.control_len() + usize::from(peer.paths.has_news())),
            tasks: of_peers(|peer| peer.backlog.task_count()),
            queued: of_peers(|peer| peer.backlog.send_count()),
            operations: core.operations.open(),
            bytes: core.pool.held(),
            untaken: core.deliveries.len() + core.reports.len() + core.rma.untaken(),
            withdrawals: core.withdrawals.len(),
        }
    }
}
