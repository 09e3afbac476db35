//! One-sided operations: puts, gets and atomics as messages that a window receives.
//!
//! ```text
//!   put     initiator ── MATCH, OPERATION: lead, bytes ──► target writes
//!                     ◄── ANSWER ───────────────────────
//!           initiator ── RNDV or RGET, OPERATION: lead ──► target's memory is where the rendezvous goes
//!                     ◄── … ACK, FRAG, FIN … ───────────
//!                     ◄── ANSWER ───────────────────────
//!   get     initiator ── MATCH, OPERATION: lead ────────► target reads
//!                     ◄── ANSWER, up to eight bytes ────  or
//!                     ◄── MATCH, RNDV or RGET, REPLY ───  a message whose receive is the initiator's request
//!   atomic  as a put or a get: lead, operands, what they are compared with
//! ```
//!
//! An operation has its place in the sequence of its initiator's messages, so order, duplicates, what is
//! held, failover and restart are those of messages. The tag of all its messages is the initiator's request,
//! index and generation: what comes late names nothing. What is *done at its turn* is every operation that
//! is one message: it finds what all operations before it left, and those behind it find what it left.
//! Longer puts are written, and longer gets read, while the operations behind them go on; so are atomics
//! whose operands do not fit one message of the rail ([`launch`]).
//!
//! * An operation ends at its initiator when the target has done it.
//! * It counts against its initiator's window until its answer has left the target, a get with its reply, if
//!   that is one message: this bounds what a peer can make us hold. Replies themselves do not wait for
//!   credit, so that two peers that read from each other cannot wait for each other.
//!
//! | file | job |
//! |---|---|
//! | `args` | arguments, results, errors |
//! | `lead` | what an operation is, in front of its bytes |
//! | `windows` | windows by key, and the memory of an operation |
//! | `calls`, `launch` | operations begin, and leave |
//! | `target` | operations are done |
//! | `transfers` | long puts arrive; replies leave; windows are closed |
//! | `answers` | answers, from the target and at the initiator |
//! | `to_self` | operations of a rank on its own windows |

pub(crate) mod answers;
pub(crate) mod args;
mod calls;
pub(crate) mod launch;
pub(crate) mod lead;
mod target;
mod to_self;
mod transfers;
pub(crate) mod windows;

use std::collections::VecDeque;

use self::answers::Asker;
use self::args::{Access, Notice};
use self::lead::Lead;
use self::windows::{Spans, Windows};
use crate::config::PmlConfig;
use crate::core::Core;
use crate::pool::Buffer;
use crate::rank::Rank;
use crate::request::{Event, Outcome, RequestIndex, State, mark};
use crate::wire::AnswerHeader;

/// Bytes of a reply that is one message, at most.
const REPLY_MOST: u64 = 16 << 10;

/// The longest reply that is one message, and counts against the window of its operation's initiator.
pub(crate) fn reply_most(config: &PmlConfig) -> u64 {
    REPLY_MOST.min(config.window / 4)
}

/// What a reply of this length counts, with its request.
pub(crate) fn reply_charge(config: &PmlConfig, length: u64) -> u64 {
    if length <= reply_most(config) { length } else { 0 }
}

/// What a request keeps of an operation, beside its slot and its record.
#[derive(Debug, Default)]
pub(crate) struct OperationRecord {
    /// Initiator: what the operation is.
    lead: Lead,
    /// Initiator: the answer came before the message was done with.
    answered: Option<Outcome>,
    /// Initiator of a get: what the reply may count.
    solicited: u64,
    /// Target: whose operation it is, and what it counts until its answer has left.
    asker: Option<Asker>,
    /// Target: the memory of a put, or of a reply.
    spans: Spans,
    /// Target: the notice, once a put is done.
    notice: Option<Notice>,
}

/// The state of one-sided operations.
#[derive(Debug, Default)]
pub(crate) struct Rma {
    windows: Windows,
    /// By the place of the request.
    records: Vec<OperationRecord>,
    /// By rank, as far as replies were ever requested: what those may be charged that are waited for.
    solicited: Vec<u64>,
    notices: VecDeque<(Notice, Asker)>,
    /// What was done in our windows, where that is recorded.
    accesses: VecDeque<Access>,
    records_accesses: bool,
    /// Answers that have not been offered to a rail: the next pass does it.
    answers: Vec<(AnswerHeader, Asker)>,
}

impl Rma {
    /// What a request keeps of its operation.
    pub(crate) fn record(&mut self, index: RequestIndex) -> &mut OperationRecord {
        if self.records.len() <= index.at() {
            self.records.resize_with(index.at() + 1, OperationRecord::default);
        }
        &mut self.records[index.at()]
    }

    /// Returns what replies of a peer may be charged that we have requested.
    pub(crate) fn solicited(&self, rank: Rank) -> u64 {
        self.solicited.get(rank.index()).copied().unwrap_or(0)
    }

    /// A reply is requested of a peer that may be charged this.
    fn solicit(&mut self, rank: Rank, charge: u64) {
        if self.solicited.len() <= rank.index() {
            self.solicited.resize(rank.index() + 1, 0);
        }
        self.solicited[rank.index()] += charge;
    }

    /// A reply is not waited for any more.
    fn unsolicit(&mut self, rank: Rank, charge: u64) {
        if let Some(solicited) = self.solicited.get_mut(rank.index()) {
            *solicited = solicited.saturating_sub(charge);
        }
    }

    /// The notices of a peer, and answers to it, mean nothing any more.
    pub(crate) fn forget(&mut self, rank: Rank) {
        if let Some(solicited) = self.solicited.get_mut(rank.index()) {
            *solicited = 0;
        }
        self.notices.retain(|(notice, _)| notice.rank != rank);
        self.answers.retain(|(_, asker)| asker.rank != rank);
    }

    /// Answers that have not been offered to a rail.
    pub(crate) fn answers(&self) -> usize {
        self.answers.len()
    }

    /// Notices that were not taken.
    pub(crate) fn untaken(&self) -> usize {
        self.notices.len()
    }
}

impl Core {
    /// A request of an operation is to end. Returns how; `None`: it does not end yet.
    pub(crate) fn operation_ends(&mut self, index: RequestIndex, outcome: Outcome) -> Option<Outcome> {
        let slot = self.requests.peek(index);
        let (state, marks, rank) = (slot.state(), slot.marks(), slot.peer());
        if marks & mark::OPERATION != 0 {
            if outcome == Outcome::Ok && state != State::AwaitAnswer {
                return self.handed_over_to_target(index);
            }
        } else if marks & mark::FETCH != 0 {
            let solicited = std::mem::take(&mut self.rma.record(index).solicited);
            self.rma.unsolicit(rank, solicited);
            if outcome == Outcome::SendAborted {
                return Some(Outcome::WindowClosed);
            }
            if outcome == Outcome::Corrupt {
                return Some(Outcome::Damaged);
            }
        } else if marks & mark::LANDING != 0 {
            return Some(self.landed(index, outcome));
        }
        Some(outcome)
    }

    /// The bytes of an operation have left, and the target has not answered; or has.
    pub(crate) fn handed_over_to_target(&mut self, index: RequestIndex) -> Option<Outcome> {
        let (slot, record) = self.requests.both(index);
        slot.turn(Event::HandedOver);
        let (rank, origin) = (slot.peer(), record.memory.take_origin());
        self.drop_origin(rank, origin);
        self.rma.record(index).answered.take()
    }

    /// A request that served a peer's operation is freed.
    pub(crate) fn operation_freed(&mut self, index: RequestIndex) {
        let record = self.rma.record(index);
        record.spans = Spans::default();
        let asker = record.asker.take();
        let room = self.requests.record(index).memory.take_own();
        self.give_room(room);
        if let Some(asker) = asker {
            self.settle_operation(asker.rank, asker.charge);
        }
    }

    /// What an operation of a peer counted is given back.
    pub(crate) fn settle_operation(&mut self, rank: Rank, charge: u64) {
        if charge > 0 {
            self.peers[rank].release(charge);
            self.consume(rank, charge);
        }
    }
}

/// Where a receive goes that is not the user's: a buffer of our own.
#[derive(Debug)]
pub(crate) struct OwnRoom {
    pub(crate) buffer: Buffer,
    pub(crate) length: usize,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use doorbell_fabric::memory::{ConstLoan, MutLoan};
    use doorbell_fabric::rail::Rail;
    use doorbell_sim::{Change, Faults, Plane, SimConfig, SimNet, SimRail};

    use super::args::{RemotePiece, WindowAccess, WindowArgs, WindowMemory};
    use crate::config::PmlConfig;
    use crate::pml::Pml;
    use crate::rank::Rank;

    /// Two ranks, whose sequences begin here.
    fn pair(net: &SimNet, first: u32) -> [Pml<SimRail>; 2] {
        let rails = [0, 1].map(|rank| net.attach_rank(rank, Plane::FIRST));
        let known = rails.each_ref().map(|rail| (rail.address(), rail.incarnation()));
        let mut ranks = [0, 1];
        let mut rails = rails.into_iter();
        ranks.each_mut().map(|rank| {
            let mut pml = Pml::new(PmlConfig::new(Rank(*rank), 2, 7)).unwrap();
            let rail = pml.add_rail(rails.next().unwrap()).unwrap();
            let other = Rank(1 - *rank);
            let (address, incarnation) = &known[other.index()];
            pml.connect(other, rail, address, *incarnation).unwrap();
            pml.core.hot[other].begin_at(first);
            pml
        })
    }

    #[test]
    fn operations_go_on_where_the_sequence_wraps() {
        let net = SimNet::new(3, SimConfig::default());
        let faults = Faults {
            delay: Duration::from_micros(3),
            reorder: 0.5,
            reorder_window: Duration::from_micros(40),
            ..Faults::NONE
        };
        net.change(Change::Faults(Plane::FIRST, faults));
        let mut pmls = pair(&net, u32::MAX - 20);
        let window = MutLoan::of_static(vec![0; 100_000].leak());
        let open = WindowArgs {
            key: 1,
            base: 0,
            memory: WindowMemory::Loans(vec![window]),
            access: WindowAccess::ALL,
        };
        pmls[1].open_window(open).unwrap();
        let mut all = Vec::new();
        for number in 0..60u8 {
            // Replies wrap in the other direction.
            let length = if number % 7 == 0 { 90_000 } else { 100 };
            let at = RemotePiece {
                key: 1,
                address: u64::from(number),
                length: 100,
            };
            let long = RemotePiece {
                key: 1,
                address: 200,
                length,
            };
            let bytes = ConstLoan::of_static(vec![number; 100].leak());
            let long_bytes = ConstLoan::of_static(vec![number; length as usize].leak());
            let room = MutLoan::of_static(vec![0; 100].leak());
            let put = pmls[0].put_loan(Rank(1), 0, at, bytes, false).unwrap();
            let other = pmls[0].put_loan(Rank(1), 0, long, long_bytes, false).unwrap();
            let get = pmls[0].get_loan(Rank(1), 0, at, room, false).unwrap();
            all.push((put, other, get, room, number));
        }
        for _ in 0..20_000 {
            let now = net.now() + Duration::from_micros(1);
            net.advance_to(now);
            for pml in &mut pmls {
                pml.progress(now);
            }
        }
        for (put, other, get, room, number) in all {
            for id in [put, other, get] {
                pmls[0].test(id).expect("it has ended").unwrap();
            }
            assert_eq!(
                room.as_shared().to_vec(),
                [number; 100],
                "it is between its neighbours"
            );
        }
        let hot = [&pmls[0].core.hot[Rank(1)], &pmls[1].core.hot[Rank(0)]];
        assert!(hot.iter().all(|hot| hot.next_seq().0 < 1000), "both have wrapped");
    }
}
