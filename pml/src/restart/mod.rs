//! The restart handshake: how both ends of a rendezvous agree to go on over another path (reference: bfo,
//! section 10).
//!
//! ```text
//!   sender                                              receiver
//!   its path breaks: nothing new leaves                 its path breaks: nothing new is requested
//!   what is under way has ended                         what is under way has ended
//!                         ◄──────────── ERROR ───────   (its own failure; the sender may see none)
//!   ──────────────────────── NOTIFY n+1 ────────────►   its memory is withdrawn, what is under way has ended
//!                         ◄──────────── ACK n+1 ─────
//!                         ◄──────────── NACK n+1 ────   or: the message is complete
//!   ──── RNDV or RGET, RESTART n+2, another path ───►   goes on with what it lacks
//! ```
//!
//! `restart` counts by two for each cycle, at both ends; 32 bits do not wrap within the life of a message. A
//! word whose number does not fit is late or came twice, and is dropped; but paths promise no order, so a
//! NOTIFY may overtake the announcement of the cycle before, which is late then. Every word goes over any
//! path: what one that breaks had accepted and the peer has not taken is sent again over another, with the
//! same number.
//!
//! What is different from BFO:
//! * one condition instead of two after NOTIFY: its answer proves that it arrived, so the completion of the
//!   send is not waited for as well;
//! * the receiver keeps what it has, and the answer to the restarted announcement names only what it lacks
//!   ([`Resume`](crate::Resume));
//! * a message that the receiver has not matched yet can be restarted, too: NOTIFY then names no request of
//!   the receiver, and the announcement that is kept there is exchanged.
//!
//! One-sided transfers are restarted so. Fragments usually are not: a rail gives back exactly those that the
//! peer has not taken, and they are sent over the other paths, without a round trip
//! ([`PmlConfig::handshake`](crate::PmlConfig::handshake) changes that).

mod receiver;
mod sender;

use doorbell_fabric::message::MsgId;
use doorbell_paths::table::next;

use crate::core::Core;
use crate::request::RequestIndex;
use crate::wire::{Head, MatchHeader, RestartHeader};

/// Where a request is in the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// No handshake is under way.
    #[default]
    Run,
    /// Sender: what is under way has to end.
    Draining,
    /// Sender: NOTIFY has left.
    Notified,
    /// Receiver: what is under way has to end, then the sender is notified.
    Stopping,
    /// Receiver: ERROR has left.
    Asked,
    /// Receiver: NOTIFY has come, what is under way has to end.
    Called,
    /// Receiver: ACK has left.
    Ready,
}

/// What moves the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Word {
    /// The path of this end broke.
    Broke,
    /// Nothing of this end is under way any more.
    Quiet,
    /// NOTIFY, ACK, NACK, ERROR; and the announcement with RESTART.
    Notify,
    Ack,
    Nack,
    Error,
    Restarted,
    /// A fragment of this attempt: the sender goes on by itself.
    Fragment,
}

/// Every move of the sender.
pub(crate) const SENDER: &[(Phase, Word, Phase)] = {
    use {Phase as D, Word as W};
    &[
        (D::Run, W::Broke, D::Draining),
        (D::Run, W::Error, D::Draining),
        (D::Draining, W::Quiet, D::Notified),
        (D::Notified, W::Ack, D::Run),
        (D::Notified, W::Nack, D::Run),
    ]
};

/// Every move of the receiver.
pub(crate) const RECEIVER: &[(Phase, Word, Phase)] = {
    use {Phase as D, Word as W};
    &[
        (D::Run, W::Broke, D::Stopping),
        (D::Run, W::Notify, D::Called),
        (D::Stopping, W::Quiet, D::Asked),
        (D::Stopping, W::Notify, D::Called),
        (D::Asked, W::Notify, D::Called),
        (D::Asked, W::Fragment, D::Run),
        (D::Called, W::Quiet, D::Ready),
        (D::Ready, W::Notify, D::Called),
        (D::Ready, W::Restarted, D::Run),
    ]
};

/// The handshake of a request.
#[derive(Debug, Default)]
pub(crate) struct Handshake {
    /// The number of the attempt.
    attempt: u32,
    phase: Phase,
    /// Send: the last fragment over each path, where fragments are restarted, too.
    over: Vec<(u16, MsgId)>,
}

impl Handshake {
    /// Makes it ready for the next request; keeps the memory of the list.
    pub(crate) fn reset(&mut self) {
        (self.attempt, self.phase) = (0, Phase::Run);
        self.over.clear();
    }

    /// The number of the attempt.
    pub(crate) fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Notes the number of the attempt.
    pub(crate) fn set_attempt(&mut self, attempt: u32) {
        self.attempt = attempt;
    }

    /// Goes on to the next number.
    fn next_attempt(&mut self) {
        self.attempt = self.attempt.wrapping_add(1);
    }

    /// Returns where the handshake is.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// A receive was matched after its sender had begun to restart it, and had been answered that we are
    /// ready.
    pub(crate) fn join(&mut self) {
        self.phase = Phase::Ready;
    }

    /// Goes on by a word, if one of these transitions does. Returns whether one did.
    fn turn(&mut self, transitions: &[(Phase, Word, Phase)], word: Word) -> bool {
        let next = next(transitions, self.phase, word);
        self.phase = next.unwrap_or(self.phase);
        next.is_some()
    }

    /// Notes a fragment that left over a path.
    pub(crate) fn fragment_left(&mut self, at: usize, number: MsgId) {
        match self.over.iter_mut().find(|(path, _)| usize::from(*path) == at) {
            Some(last) => last.1 = number,
            None => self.over.push((at as u16, number)),
        }
    }

    /// The last fragment over each path.
    pub(crate) fn fragments(&self) -> impl Iterator<Item = (usize, MsgId)> {
        self.over
            .iter()
            .map(|(path, number)| (usize::from(*path), *number))
    }

    /// Forgets the fragments: nothing of the attempt is under way any more.
    fn forget_fragments(&mut self) {
        self.over.clear();
    }
}

impl Core {
    /// Moves the handshake of a request on; `false`: the word is not for where it is.
    fn shake_hands(&mut self, index: RequestIndex, moves: &[(Phase, Word, Phase)], word: Word) -> bool {
        self.requests.record(index).handshake.turn(moves, word)
    }

    /// One of the four words about a live request.
    fn queue_restart_head(&mut self, kind: u8, index: RequestIndex, is_sender: bool) {
        let own = self.requests.id(index).to_bits();
        let (slot, record) = self.requests.both(index);
        let (sender, receiver) = if is_sender {
            (own, record.remote_request())
        } else {
            (record.remote_request(), own)
        };
        let head = Head::new(&RestartHeader {
            matching: MatchHeader::new(kind, 0, slot.context(), record.seq(), slot.tag()),
            sender: sender.into(),
            receiver: receiver.into(),
            restart: record.handshake.attempt().into(),
            reserved: 0.into(),
        });
        let rank = slot.peer();
        if is_sender {
            self.queue_head(rank, head);
        } else {
            // A peer may cause these as often as it likes.
            self.queue_answer(rank, head);
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_testing::snapshot;

    use super::*;

    #[test]
    fn the_moves_are_those_of_the_snapshots() {
        let file = |name: &str| format!("{}/src/snapshots/{name}", env!("CARGO_MANIFEST_DIR"));
        snapshot::check(
            &file("restart-sender.txt"),
            include_str!("../snapshots/restart-sender.txt"),
            SENDER,
        );
        snapshot::check_graph(
            &file("restart-sender.dot"),
            include_str!("../snapshots/restart-sender.dot"),
            "restart_sender",
            SENDER,
        );
        snapshot::check(
            &file("restart-receiver.txt"),
            include_str!("../snapshots/restart-receiver.txt"),
            RECEIVER,
        );
        snapshot::check_graph(
            &file("restart-receiver.dot"),
            include_str!("../snapshots/restart-receiver.dot"),
            "restart_receiver",
            RECEIVER,
        );
    }

    #[test]
    fn both_handshakes_end_where_they_began() {
        for moves in [SENDER, RECEIVER] {
            let mut seen = vec![Phase::Run];
            while let Some((_, _, next)) = moves
                .iter()
                .find(|(from, _, to)| seen.contains(from) && !seen.contains(to))
            {
                seen.push(*next);
            }
            for phase in seen {
                let mut from = vec![phase];
                while let Some((_, _, next)) = moves
                    .iter()
                    .find(|(at, _, to)| from.contains(at) && !from.contains(to))
                {
                    from.push(*next);
                }
                assert!(from.contains(&Phase::Run), "{phase:?} is a trap");
            }
        }
    }
}
