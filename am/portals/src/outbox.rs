//! Replies that were made while a poll delivered arrivals: they leave when the rails are free again, at the
//! end of the poll.

use std::collections::HashMap;

use doorbell_fabric::message::{Body, Message, Refused};

use crate::link::{Link, PeerId};
use crate::placed::ROOMS;
use crate::wire::{Head, WINDOW};

/// Answers of a peer that are held at most: one for each of its operations, and the messages about memory in
/// which it places puts.
const MOST: u32 = WINDOW + 3 * ROOMS as u32;

#[derive(Debug)]
struct Answer {
    peer: PeerId,
    head: Head,
    /// The offset of its body in `bytes`.
    from: usize,
    length: usize,
}

/// The answers of one poll, in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    answers: Vec<Answer>,
    bytes: Vec<u8>,
    /// How many of each peer the link could not hold: one that keeps to its window never has more than that
    /// many.
    held: HashMap<PeerId, u32>,
}

impl Outbox {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// An answer, with a short body that is copied.
    #[inline]
    pub(crate) fn push(&mut self, peer: PeerId, head: Head, body: &[u8]) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(body);
        self.answers.push(Answer {
            peer,
            head,
            from,
            length: body.len(),
        });
    }

    /// Sends them. What the link cannot hold now stays, and what is behind it for the same peer; how many
    /// were beyond all bounds, and are dropped.
    #[inline]
    pub(crate) fn send<M: Message>(&mut self, link: &mut Link<M>) -> u64 {
        for at in 0..self.answers.len() {
            let answer = &mut self.answers[at];
            let body = match answer.length {
                0 => Body::Empty,
                length => Body::Bytes(&self.bytes[answer.from..answer.from + length]),
            };
            if link.send(answer.peer, answer.head.as_mut_bytes(), body, true) == Err(Refused::Full) {
                return self.send_rest(link, at);
            }
        }
        self.answers.clear();
        self.bytes.clear();
        0
    }

    /// Sends the answers from one on that the link did not take.
    #[cold]
    #[inline(never)]
    fn send_rest<M: Message>(&mut self, link: &mut Link<M>, from: usize) -> u64 {
        let (mut kept, mut filled, mut dropped) = (0, 0, 0);
        for at in from..self.answers.len() {
            let answer = &mut self.answers[at];
            let (start, length) = (answer.from, answer.length);
            let body = match length {
                0 => Body::Empty,
                length => Body::Bytes(&self.bytes[start..start + length]),
            };
            if let Some(held) = self.held.get_mut(&answer.peer) {
                if *held >= MOST {
                    dropped += 1;
                    continue;
                }
                *held += 1;
            } else if link.send(answer.peer, answer.head.as_mut_bytes(), body, true) == Err(Refused::Full) {
                self.held.insert(answer.peer, 1);
            } else {
                continue;
            }
            answer.from = filled;
            self.bytes.copy_within(start..start + length, filled);
            filled += length;
            self.answers.swap(kept, at);
            kept += 1;
        }
        self.held.clear();
        self.answers.truncate(kept);
        self.bytes.truncate(filled);
        dropped
    }
}
