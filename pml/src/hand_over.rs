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

#[derive(Debug, Default)]
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

/// The sends that wait, by peer.
#[derive(Debug, Default)]
pub(crate) struct HandOvers {
    peers: Vec<(Rank, VecDeque<Waiting>)>,
}

impl HandOvers {
    /// Whether none waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    fn push(&mut self, rank: Rank, id: RequestId) {
        let waiting = Waiting { id, marks: None };
        match self.peers.iter_mut().find(|(peer, _)| *peer == rank) {
            Some((_, queue)) => queue.push_back(waiting),
            None => self.peers.push((rank, VecDeque::from([waiting]))),
        }
    }

    /// A rail gave back what it had accepted for a peer above `taken`: that leaves again, over other rails.
    pub(crate) fn note_break(&mut self, rank: Rank, rail: RailId, taken: MsgId) {
        let Some((_, queue)) = self.peers.iter_mut().find(|(peer, _)| *peer == rank) else {
            return;
        };
        for waiting in queue {
            let is_affected = |marks: &Marks| marks.iter().any(|mark| mark.rail == rail && mark.upto > taken);
            if waiting.marks.as_ref().is_some_and(is_affected) {
                waiting.marks = None;
            }
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
    /// Whether a path to a rank leaves this host.
    pub(crate) fn leads_out(&self, rank: Rank) -> bool {
        let peer = self.core.peers.get(rank);
        peer.is_some_and(|peer| {
            peer.paths.is_empty() || peer.paths.iter().any(|path| !path.can().features.within_host)
        })
    }

    /// Ends the sends that are with their peers. Returns how many.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_handed_over(&mut self) -> usize {
        let mut ended = 0;
        let mut hand_overs = std::mem::take(&mut self.core.hand_overs);
        hand_overs.peers.retain_mut(|(rank, queue)| {
            while let Some(first) = queue.front_mut() {
                if !self.is_with_peer(*rank, first) {
                    break;
                }
                let id = first.id;
                queue.pop_front();
                if self.awaits(id) {
                    self.core.finish(id.index(), Outcome::Ok);
                    ended += 1;
                }
            }
            !queue.is_empty()
        });
        self.core.hand_overs = hand_overs;
        ended
    }

    /// Whether a request is a send that has not ended otherwise.
    fn awaits(&self, id: RequestId) -> bool {
        let slot = self.core.requests.get(id);
        slot.is_some_and(|slot| slot.state() == State::AwaitAnswer)
    }

    /// Whether all of a send is with its peer, or nothing is to be waited for any more.
    fn is_with_peer(&mut self, rank: Rank, waiting: &mut Waiting) -> bool {
        if !self.awaits(waiting.id) {
            return true;
        }
        if waiting.marks.is_none() {
            waiting.marks = self.marks_of(rank);
        }
        let Some(marks) = &waiting.marks else { return false };
        marks
            .iter()
            .all(|mark| self.rails[mark.rail].handed_over(mark.peer) >= mark.upto)
    }

    /// How far the rails to a peer have to come; `None` while something waits to leave again.
    fn marks_of(&mut self, rank: Rank) -> Option<Marks> {
        let peer = self.core.peers.get(rank)?;
        if peer.backlog.control_len() > 0 {
            return None;
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
        Some(marks)
    }
}
