//! Sends that end when all of them is with the peer's process ([`SendMode::Delivered`](crate::SendMode)).
//!
//! ```text
//!   all has left ─► marks: what each rail had accepted by then ─► the watermarks reach them ─► ended
//!                     ▲                │ a rail breaks above its watermark
//!                     └─ left again ◄──┘
//! ```
//!
//! The order of a peer's sends is the order in which they left, so that the first one to wait ends first.

use std::collections::VecDeque;

use doorbell_fabric::message::{Message, MsgId, PeerIndex};
use doorbell_paths::PathState;

use crate::core::Core;
use crate::paths::Path;
use crate::pml::Pml;
use crate::rails::RailId;
use crate::rank::Rank;
use crate::request::{Event, Outcome, RequestId, RequestIndex, State};

/// Marks that need no memory of their own.
const FEW: usize = 4;

/// How far a rail has to come.
#[derive(Clone, Copy, Debug)]
struct Mark {
    rail: RailId,
    peer: PeerIndex,
    upto: MsgId,
}

/// A send that waits.
#[derive(Debug)]
struct Waiting {
    id: RequestId,
    /// The rails that have not come so far; not set yet, or not any more.
    marks: Option<Marks>,
}

#[derive(Clone, Debug, Default)]
struct Marks {
    few: [Option<Mark>; FEW],
    more: Vec<Mark>,
}

impl Marks {
    fn add(&mut self, mark: Mark) {
        match self.few.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(mark),
            None => self.more.push(mark),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Mark> {
        self.few.iter().flatten().chain(&self.more)
    }
}

/// The sends to one peer that wait, in the order in which they left.
#[derive(Debug)]
struct Queue {
    rank: Rank,
    sends: VecDeque<Waiting>,
    /// How many of them have no marks.
    unmarked: usize,
    /// Messages that were given back and are announced now, since they are too long for the rails that are
    /// left.
    announced: Vec<RequestId>,
}

/// The sends that wait, by peer.
#[derive(Debug, Default)]
pub(crate) struct HandOvers {
    queues: Vec<Queue>,
}

impl HandOvers {
    /// Whether none waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    fn queue(&mut self, rank: Rank) -> Option<&mut Queue> {
        self.queues.iter_mut().find(|queue| queue.rank == rank)
    }

    fn push(&mut self, rank: Rank, id: RequestId) {
        let waiting = Waiting { id, marks: None };
        match self.queue(rank) {
            Some(queue) => {
                queue.sends.push_back(waiting);
                queue.unmarked += 1;
            }
            None => self.queues.push(Queue {
                rank,
                sends: VecDeque::from([waiting]),
                unmarked: 1,
                announced: Vec::new(),
            }),
        }
    }

    /// A rail gave back what it had accepted for a peer above `taken`: that leaves again, over other rails.
    pub(crate) fn note_break(&mut self, rank: Rank, rail: RailId, taken: MsgId) {
        let Some(queue) = self.queue(rank) else { return };
        for waiting in &mut queue.sends {
            let is_affected = |marks: &Marks| marks.iter().any(|mark| mark.rail == rail && mark.upto > taken);
            if waiting.marks.as_ref().is_some_and(is_affected) {
                waiting.marks = None;
                queue.unmarked += 1;
            }
        }
    }

    /// What a rail gave back is announced by a request of its own: its bytes have not left before that ends.
    pub(crate) fn note_announced(&mut self, rank: Rank, id: RequestId) {
        if let Some(queue) = self.queue(rank) {
            queue.announced.push(id);
        }
    }
}

impl Core {
    /// All of a send has left: it ends when the peer's process has taken it.
    pub(crate) fn await_hand_over(&mut self, index: RequestIndex) {
        let (slot, record) = self.requests.both(index);
        slot.turn(Event::HandedOver);
        let (rank, origin) = (slot.peer(), record.memory.take_origin());
        self.drop_origin(rank, origin);
        let id = self.requests.id(index);
        self.hand_overs.push(rank, id);
    }
}

impl<M: Message> Pml<M> {
    /// Whether a path to another rank leaves this host, or may once the rank is met.
    pub(crate) fn leads_out(&self, rank: Rank) -> bool {
        if rank == self.core.me() {
            return false;
        }
        let Some(peer) = self.core.peers.get(rank) else {
            return false;
        };
        let is_far = |path: &Path| !path.can().features.within_host;
        peer.paths.is_empty() || peer.paths.iter().any(is_far)
    }

    /// Marks a send that has left just now: what leaves for its peer after it, such as a probe of ours, is
    /// none of what it waits for.
    pub(crate) fn mark_hand_overs(&mut self, rank: Rank) {
        let mut hand_overs = std::mem::take(&mut self.core.hand_overs);
        if let Some(queue) = hand_overs.queue(rank) {
            self.mark(queue);
        }
        self.core.hand_overs = hand_overs;
    }

    /// Ends the sends that are with their peers. Returns how many.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_handed_over(&mut self) -> usize {
        let mut ended = 0;
        let mut hand_overs = std::mem::take(&mut self.core.hand_overs);
        hand_overs.queues.retain_mut(|queue| {
            if queue.unmarked > 0 {
                self.mark(queue);
            }
            while let Some(first) = queue.sends.front() {
                let (id, awaits) = (first.id, self.awaits(first.id));
                if awaits && !self.is_with_peer(first) {
                    break;
                }
                queue.unmarked -= usize::from(first.marks.is_none());
                queue.sends.pop_front();
                if awaits {
                    self.core.finish(id.index(), Outcome::Ok);
                    ended += 1;
                }
            }
            !queue.sends.is_empty()
        });
        self.core.hand_overs = hand_overs;
        ended
    }

    /// Whether a request is a send that has not ended otherwise.
    fn awaits(&self, id: RequestId) -> bool {
        let slot = self.core.requests.get(id);
        slot.is_some_and(|slot| slot.state() == State::AwaitAnswer)
    }

    /// Whether all of a send is with its peer.
    fn is_with_peer(&mut self, waiting: &Waiting) -> bool {
        let Some(marks) = &waiting.marks else { return false };
        marks
            .iter()
            .all(|mark| self.rails[mark.rail].handed_over(mark.peer) >= mark.upto)
    }

    /// Marks the sends of a peer that have no marks, unless something waits to leave again.
    fn mark(&mut self, queue: &mut Queue) {
        queue.announced.retain(|id| self.core.requests.get(*id).is_some());
        let Some(peer) = self.core.peers.get(queue.rank) else {
            return;
        };
        if peer.backlog.control_len() > 0 || !queue.announced.is_empty() {
            return;
        }
        let mut marks = Marks::default();
        for (at, path) in peer.paths.iter().enumerate() {
            let (rail, index) = path.route();
            // A path that broke has given back what it had.
            let may_carry = !matches!(peer.paths.state(at), PathState::Down | PathState::Probing);
            let upto = self.rails[rail].accepted(index);
            if may_carry && self.rails[rail].handed_over(index) < upto {
                let peer = index;
                marks.add(Mark { rail, peer, upto });
            }
        }
        for waiting in queue.sends.iter_mut().filter(|waiting| waiting.marks.is_none()) {
            waiting.marks = Some(marks.clone());
        }
        queue.unmarked = 0;
    }
}
