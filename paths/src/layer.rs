//! What the paths need of the layer that owns the rails.

use crate::peer::PeerPaths;
use crate::reason::Reason;
use crate::state::PathState;
use crate::timers::Timers;
use crate::word::Word;

/// Something that a layer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// A path broke that carried messages.
    Down,
    /// A path that had been down is used again.
    Returned,
    /// A peer was called over a path that is down.
    Call,
    /// A probe was sent.
    Probe,
    /// A word was about a connection that is not the last one any more.
    Late,
}

/// A layer over several rails. A peer is a number of the layer's own, a path one of the peer's rails in the
/// order in which they were connected.
///
/// None of these methods calls back into this crate, but [`Layer::take_back`], which hands words on to
/// [`given_back`](crate::given_back).
pub trait Layer {
    /// Returns the paths of a peer, and the timers; `None` for a peer that is lost.
    fn paths(&mut self, peer: u32) -> Option<(&mut PeerPaths, &mut Timers)>;

    /// Returns the timers.
    fn timers(&mut self) -> &mut Timers;

    /// Sends a word over one path and no other, and rings its doorbell. Returns `false` when the rail does
    /// not take it.
    fn send_word(&mut self, peer: u32, at: usize, word: Word) -> bool;

    /// Calls the peer over a path that is down
    /// ([`Message::revive`](doorbell_fabric::message::Message::revive)).
    fn revive(&mut self, peer: u32, at: usize);

    /// Gives a path up which its rail takes for good
    /// ([`Message::abandon`](doorbell_fabric::message::Message::abandon)).
    fn abandon(&mut self, peer: u32, at: usize);

    /// The peer answers over another path
    /// ([`Message::proved_alive`](doorbell_fabric::message::Message::proved_alive)).
    fn proved_alive(&mut self, peer: u32, at: usize);

    /// Whether both ends of a path are on this host: its rail then sees a process end.
    fn is_within_host(&self, peer: u32, at: usize) -> bool;

    /// Whether messages may be under way over a path that has just broken, and its rail gives nothing back.
    fn loses(&mut self, peer: u32, at: usize) -> bool;

    /// Takes back what the rail of a broken path had accepted and the peer has not taken
    /// ([`Message::reclaim`](doorbell_fabric::message::Message::reclaim)), to be sent over other paths. Words
    /// go to [`given_back`](crate::given_back).
    fn take_back(&mut self, peer: u32, at: usize);

    /// A path is in another state, before anything else follows from that.
    fn moved(&mut self, peer: u32, at: usize, state: PathState);

    /// Other paths may be used than before, or were measured: the layer chooses again.
    fn choose(&mut self, peer: u32);

    /// Something waits for room on any path: [`send_news`](crate::send_news) is to be called when there may
    /// be some.
    fn wants_room(&mut self, peer: u32);

    /// The peer is lost, with all its paths. From now on [`Layer::paths`] returns `None` for it.
    fn lose(&mut self, peer: u32, reason: Reason);

    /// Something happened that is counted.
    fn count(&mut self, what: Count);

    /// Returns a sum of what was sent to a peer and received from it, by which traffic is noticed: while
    /// there is some, the latency of its paths is measured. `None`: it is not, and a path is probed once.
    fn traffic(&self, _peer: u32) -> Option<u64> {
        None
    }

    /// Takes everything that has arrived, because a peer's process has ended.
    fn last_words(&mut self) {}
}
