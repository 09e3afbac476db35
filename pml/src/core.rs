//! Everything of the PML but the rails: not generic, so that the protocol is compiled once.
//!
//! Arrivals are handled while their rail is borrowed by its own poll, so nothing here can send. What has to
//! be sent is queued with the peer it goes to, and the peer is put on the list of those with work.

use doorbell_matching::{Capacity, Matcher};
use doorbell_paths::{Policy, Timers};

use crate::backlog::{Control, Task};
use crate::blocking_recv::Streak;
use crate::by_rank::ByRank;
use crate::clock::Clock;
use crate::closed::ClosedContexts;
use crate::config::PmlConfig;
use crate::convertor::{Origin, Scratch};
use crate::counters::Counters;
use crate::error::LostReason;
use crate::hand_over::HandOvers;
use crate::hot::{Hot, about};
use crate::immediate::Immediate;
use crate::lazy_connect::LazyPeers;
use crate::members::Numbers;
use crate::operations::Operations;
use crate::paths::stripe::Flowing;
use crate::peer::Peer;
use crate::pool::Pool;
use crate::rank::Rank;
use crate::reports::{Deliveries, Reports};
use crate::request::{Outcome, RequestIndex, Requests, State, mark};
use crate::rma::Rma;
use crate::unexpected::Unexpected;
use crate::wire::Head;
use crate::withdrawals::{Withdrawal, Withdrawals};
use crate::worklist::Worklist;

/// The state of a PML. Each part keeps its own fields, and what it does is its methods; what concerns several
/// parts is a method of [`Core`], in the file of its subject.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: PmlConfig,
    pub(crate) counters: Counters,
    pub(crate) clock: Clock,

    // Peers.
    /// The cache line of each peer.
    pub(crate) hot: ByRank<Hot>,
    /// The rest about each peer.
    pub(crate) peers: ByRank<Peer>,
    /// Peers with something for a rail to take.
    pub(crate) work: Worklist,
    /// Peers that are connected when they are needed.
    pub(crate) lazy: LazyPeers,
    /// When which peer's paths are looked at.
    pub(crate) timers: Timers,
    /// Immediate data, to and from each peer.
    pub(crate) immediate: Immediate,
    /// The numbers of peers that were forgotten.
    pub(crate) numbers: Numbers,
    /// Peers to which fragments of striped messages are under way.
    pub(crate) flowing: Flowing,

    // Requests and messages.
    pub(crate) requests: Requests,
    pub(crate) matcher: Matcher,
    pub(crate) unexpected: Unexpected,
    /// Contexts whose messages are dropped.
    pub(crate) closed: ClosedContexts,
    pub(crate) operations: Operations,
    pub(crate) streak: Streak,
    /// One-sided operations, and windows.
    pub(crate) rma: Rma,

    // Buffers.
    pub(crate) pool: Pool,
    pub(crate) scratch: Scratch,

    // The reports to the owner, and to rails.
    pub(crate) reports: Reports,
    pub(crate) deliveries: Deliveries,
    pub(crate) withdrawals: Withdrawals,
    /// Sends of which all has left, and that end when it is with their peers.
    pub(crate) hand_overs: HandOvers,
}

/// Answers that may wait for a peer that sends requests and does not take them.
const ANSWERS_MOST: usize = 1 << 16;

impl Core {
    pub(crate) fn new(config: PmlConfig) -> Self {
        Self {
            counters: Counters::default(),
            clock: Clock::new(),
            hot: ByRank::new(config.size, |rank| Hot::new(&config, rank == config.rank)),
            peers: ByRank::new(config.size, |_| Peer::default()),
            work: Worklist::new(config.size),
            lazy: LazyPeers::new(config.lazy),
            timers: Timers::new(Policy {
                patience: config.patience,
                // A suspect is its rail's to judge: one that keeps nothing would take the peer along.
                silence: None,
                waits_for_only_path: false,
            }),
            immediate: Immediate::default(),
            numbers: Numbers::default(),
            flowing: Flowing::default(),
            requests: Requests::new(config.requests),
            matcher: Matcher::new(
                config.seed,
                Capacity {
                    posted: config.requests,
                    unexpected: config.unexpected,
                },
            ),
            unexpected: Unexpected::new(config.unexpected),
            closed: ClosedContexts::default(),
            operations: Operations::default(),
            streak: Streak::default(),
            rma: Rma::default(),
            pool: Pool::new(),
            scratch: Scratch::default(),
            reports: Reports::new(config.requests),
            deliveries: Deliveries::default(),
            withdrawals: Withdrawals::new(),
            hand_overs: HandOvers::default(),
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

    /// Answers a word about a message that none of our requests knows. An honest peer takes its answers.
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
        let mut outcome = outcome;
        if self.requests.peek(index).is(mark::DELIVERED)
            && outcome == Outcome::Ok
            && self.requests.peek(index).state() != State::AwaitAnswer
        {
            return self.await_hand_over(index);
        }
        if self.requests.peek(index).is(mark::RMA) {
            match self.operation_ends(index, outcome) {
                Some(ends) => outcome = ends,
                None => return,
            }
        }
        let slot = self.requests.slot(index);
        let marks = slot.end(outcome);
        if marks & !mark::RECORD == 0 {
            return;
        }
        if marks & mark::CHILD != 0 {
            self.child_finished(index);
        } else if marks & mark::DETACHED != 0 {
            self.free(index);
        } else if marks & (mark::NOTIFY | mark::ABORTED) == mark::NOTIFY
            && (marks & mark::MULTI == 0 || !self.requests.record(index).multi.has_untaken())
        {
            let id = self.requests.id(index);
            self.reports.push_request(id);
        }
    }

    /// Frees a request, and gives its buffer back.
    pub(crate) fn free(&mut self, index: RequestIndex) {
        if self.requests.peek(index).is(mark::RECORD) {
            let origin = self.requests.record(index).memory.take_origin();
            let peer = self.requests.peek(index).peer();
            self.drop_origin(peer, origin);
            if self.requests.peek(index).is(mark::LANDING | mark::REPLY) {
                self.operation_freed(index);
            }
        }
        self.requests.free(index);
    }

    /// Lets the bytes of a send to a rank go.
    pub(crate) fn drop_origin(&mut self, to: Rank, origin: Origin) {
        if let Origin::Own(buffer, used) = origin {
            self.pool.release(to, buffer, used);
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
