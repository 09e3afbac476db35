//! Everything of the PML but the rails: not generic, so that the protocol is compiled once.
//!
//! Arrivals are handled while their rail is borrowed by its own poll, so nothing here can send. What has to be
//! sent is queued with the peer it goes to, and the peer is put on the list of those with work.

use std::collections::VecDeque;

use doorbell_fabric::message::{OpError, OpId, PeerIndex, RemoteKey};
use doorbell_fabric::time::Time;
use doorbell_matching::{Capacity, Matcher};
use doorbell_paths::{Policy, Timers};

use crate::args::Delivery;
use crate::backlog::{Control, Task};
use crate::by_rank::ByRank;
use crate::config::PmlConfig;
use crate::convertor::Origin;
use crate::counters::Counters;
use crate::error::LostReason;
use crate::hot::{Hot, about};
use crate::lazy_connect::LazyPeers;
use crate::operations::Operations;
use crate::paths::stripe::Flowing;
use crate::peer::Peer;
use crate::pool::Pool;
use crate::rails::RailId;
use crate::rank::Rank;
use crate::request::RequestIndex;
use crate::request::{Outcome, RequestId, Requests, mark};
use crate::unexpected::Unexpected;
use crate::wire::Head;
use crate::worklist::Worklist;

/// A one-sided operation of the caller that ended: the rail's number, the operation, how.
pub(crate) type Foreign = (RailId, OpId, Result<u64, OpError>);

/// What a rail is to let go of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Withdrawal {
    /// Exposed memory.
    Key(RailId, RemoteKey),
    /// A peer that is lost, and everything that was accepted for it.
    Peer(RailId, PeerIndex),
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) hot: ByRank<Hot>,
    pub(crate) matcher: Matcher,
    pub(crate) requests: Requests,
    pub(crate) counters: Counters,
    pub(crate) peers: ByRank<Peer>,
    pub(crate) unexpected: Unexpected,
    pub(crate) pool: Pool,
    pub(crate) completions: VecDeque<RequestId>,
    /// Messages that multi-receives took, and what they still count against their sender's window.
    pub(crate) deliveries: VecDeque<(Delivery, u64)>,
    /// Peers with something for a rail to take.
    pub(crate) work: Worklist,
    /// What rails are to let go of before the poll that found out returns.
    pub(crate) withdrawals: Vec<Withdrawal>,
    pub(crate) operations: Operations,
    pub(crate) foreign: VecDeque<Foreign>,
    /// Where scattered bytes are packed for a rail that cannot gather.
    pub(crate) scratch: Vec<u8>,
    /// Bytes in buffers of our own that wait to be sent.
    pub(crate) own_bytes: usize,
    /// Some ranks cannot be reached: they are lost, or were not met yet.
    pub(crate) any_apart: bool,
    pub(crate) lazy: LazyPeers,
    /// Messages received directly since the last one was sent.
    pub(crate) in_a_row: u32,
    /// When which peer's paths are looked at.
    pub(crate) timers: Timers,
    /// Peers to whom fragments of striped messages are under way.
    pub(crate) flowing: Flowing,
    /// The time of the last housekeeping, and whether a rail finds it old.
    pub(crate) now: Time,
    pub(crate) wants_time: bool,
    pub(crate) config: PmlConfig,
}

/// Words that may wait for a peer that asks and does not take the answers.
const ANSWERS_MOST: usize = 1 << 16;

impl Core {
    pub(crate) fn new(config: PmlConfig) -> Self {
        Self {
            hot: ByRank::new(config.size, |rank| Hot::new(&config, rank == config.rank)),
            matcher: Matcher::new(
                config.seed,
                Capacity {
                    posted: config.requests,
                    unexpected: config.unexpected,
                },
            ),
            requests: Requests::new(config.requests),
            counters: Counters::default(),
            peers: ByRank::new(config.size, |_| Peer::default()),
            unexpected: Unexpected::new(config.unexpected),
            pool: Pool::new(),
            completions: VecDeque::with_capacity(config.requests),
            deliveries: VecDeque::new(),
            work: Worklist::new(config.size),
            withdrawals: Vec::with_capacity(16),
            operations: Operations::default(),
            foreign: VecDeque::new(),
            scratch: Vec::new(),
            own_bytes: 0,
            any_apart: config.lazy,
            lazy: LazyPeers::default(),
            in_a_row: 0,
            timers: Timers::new(Policy {
                patience: config.patience,
                // A suspect is its rail's to judge: one that keeps nothing would take the peer along.
                silence: None,
                waits_for_only_path: false,
            }),
            flowing: Flowing::default(),
            now: Time::ZERO,
            wants_time: false,
            config,
        }
    }

    /// Puts a peer on the list of those with work.
    #[inline]
    pub(crate) fn list(&mut self, rank: Rank) {
        self.work.add(rank, &mut self.hot[rank]);
    }

    /// Queues a header for a peer.
    pub(crate) fn queue_head(&mut self, rank: Rank, head: Head) {
        if !self.hot[rank].is(about::LOST | about::SELF) {
            self.peers[rank].backlog.push_control(Control::Head(head));
            self.list(rank);
        }
    }

    /// Answers a word about a message that no request of ours knows. An honest peer takes its answers.
    #[cold]
    pub(crate) fn queue_answer(&mut self, rank: Rank, head: Head) {
        if self.peers[rank].backlog.control_len() < ANSWERS_MOST {
            self.queue_head(rank, head);
        } else {
            self.fail_peer(rank, LostReason::Flood);
        }
    }

    /// Queues a header that ranges follow. Rare: it allocates.
    #[cold]
    pub(crate) fn queue_head_with(&mut self, rank: Rank, head: Head, ranges: &[(u64, u64)]) {
        if self.hot[rank].is(about::LOST | about::SELF) {
            return;
        }
        let mut bytes = head.as_bytes().to_vec();
        for (from, to) in ranges {
            bytes.extend_from_slice(&from.to_le_bytes());
            bytes.extend_from_slice(&to.to_le_bytes());
        }
        self.peers[rank].backlog.push_control(Control::Long(bytes));
        self.list(rank);
    }

    /// Queues something that needs a rail.
    pub(crate) fn queue_task(&mut self, rank: Rank, task: Task) {
        if !self.hot[rank].is(about::LOST) {
            self.peers[rank].backlog.push_task(task);
            self.list(rank);
        }
    }

    /// Ends a request.
    pub(crate) fn finish(&mut self, index: RequestIndex, outcome: Outcome) {
        let slot = self.requests.slot(index);
        let marks = slot.end(outcome);
        if marks & !mark::RECORD == 0 {
            return;
        }
        if marks & mark::CHILD != 0 {
            self.child_finished(index);
        } else if marks & mark::DETACHED != 0 {
            self.free(index);
        } else if marks & (mark::NOTIFY | mark::ABORTED) == mark::NOTIFY {
            let id = self.requests.id(index);
            self.completions.push_back(id);
        }
    }

    /// Frees a request, and gives its buffer back.
    pub(crate) fn free(&mut self, index: RequestIndex) {
        if self.requests.peek(index).is(mark::RECORD) {
            let origin = self.requests.record(index).memory.take_origin();
            self.drop_origin(origin);
        }
        self.requests.free(index);
    }

    /// Lets the bytes of a send go.
    pub(crate) fn drop_origin(&mut self, origin: Origin) {
        if let Origin::Own(buffer, used) = origin {
            self.own_bytes = self.own_bytes.saturating_sub(used);
            self.pool.give(buffer);
        }
    }

    /// Revokes what a request has exposed, before the current call returns to the user.
    pub(crate) fn withdraw(&mut self, index: RequestIndex) {
        if let Some((rail, key)) = self.requests.record(index).one_sided.withdraw() {
            self.withdrawals.push(Withdrawal::Key(rail, key));
        }
    }

    /// Our own rank.
    #[inline]
    pub(crate) fn me(&self) -> Rank {
        self.config.rank
    }
}
