//! Answers that were made while arrivals were shown: they leave when the rails are free again, at the end of the poll.

use doorbell_fabric::message::{Body, Message, Refused};

use crate::link::{Link, PeerId};
use crate::wire::Head;

#[derive(Debug)]
struct Answer {
    peer: PeerId,
    head: Head,
    /// Its body, in `bytes`.
    from: usize,
    length: usize,
}

/// The answers of one poll, in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    answers: Vec<Answer>,
    bytes: Vec<u8>,
    /// Answers that did not leave: the link holds no more for their peers.
    pub(crate) refused: u64,
}

/// Answers that wait at most; a peer that keeps to its window never makes so many.
const MOST: usize = 1 << 16;

impl Outbox {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// An answer, with a short body that is copied.
    #[inline]
    pub(crate) fn push(&mut self, peer: PeerId, head: Head, body: &[u8]) {
        if self.answers.len() >= MOST {
            self.refused += 1;
            return;
        }
        let from = self.bytes.len();
        self.bytes.extend_from_slice(body);
        self.answers.push(Answer {
            peer,
            head,
            from,
            length: body.len(),
        });
    }

    /// Sends them. What the link cannot hold now stays, and what is behind it for the same peer.
    #[inline(never)]
    pub(crate) fn send<M: Message>(&mut self, link: &mut Link<M>) {
        let mut kept = 0;
        for at in 0..self.answers.len() {
            let held = self.answers[..kept]
                .iter()
                .any(|kept| kept.peer == self.answers[at].peer);
            let answer = &mut self.answers[at];
            let body = match answer.length {
                0 => Body::Empty,
                length => Body::Bytes(&self.bytes[answer.from..answer.from + length]),
            };
            if held || link.send(answer.peer, answer.head.as_mut_bytes(), body, true) == Err(Refused::Full) {
                self.answers.swap(kept, at);
                kept += 1;
            }
        }
        self.answers.truncate(kept);
        if kept == 0 {
            self.bytes.clear();
        }
    }
}
