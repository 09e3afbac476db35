//! Requests that have ended, until their owner takes note of it.

use std::collections::VecDeque;

use crate::args::{Delivery, LostSends};
use crate::error::LostReason;
use crate::rank::Rank;
use crate::request::RequestId;

/// Requests that ended.
#[derive(Debug)]
pub(crate) struct Reports {
    /// Requests whose end is to be reported.
    requests: VecDeque<RequestId>,
    /// Messages that were lost after they had been reported as sent.
    lost: VecDeque<LostSends>,
}

/// Reports of such messages that wait at most, for an owner that does not take them.
const LOST_MOST: usize = 4096;

impl Reports {
    /// No reports, with room for those of `most` requests.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            requests: VecDeque::with_capacity(most),
            lost: VecDeque::new(),
        }
    }

    /// A message is lost that was reported as sent.
    #[cold]
    pub(crate) fn push_lost(&mut self, rank: Rank, reason: LostReason, context: u16) {
        let same = |lost: &&mut LostSends| (lost.rank, lost.reason, lost.context) == (rank, reason, context);
        if let Some(lost) = self.lost.iter_mut().rev().find(same) {
            lost.count = lost.count.saturating_add(1);
        } else if self.lost.len() < LOST_MOST {
            self.lost.push_back(LostSends {
                rank,
                reason,
                context,
                count: 1,
            });
        }
    }

    /// Takes the first report of lost messages.
    pub(crate) fn pop_lost(&mut self) -> Option<LostSends> {
        self.lost.pop_front()
    }

    /// A request has ended.
    #[inline]
    pub(crate) fn push_request(&mut self, id: RequestId) {
        self.requests.push_back(id);
    }

    /// Takes the first request that ended.
    #[inline]
    pub(crate) fn pop_request(&mut self) -> Option<RequestId> {
        self.requests.pop_front()
    }

    /// Whether there is such a request.
    #[inline]
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Returns the number of reports.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }
}

/// A message that a multi-receive took, and what it still counts against its sender's window.
type Charged = (Delivery, u64);

/// Messages that multi-receives took, each with what it still counts against its sender's window. What it
/// counts is given back when the owner takes it: that bounds the queue.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    /// Those that the owner has not been offered, oldest first.
    next: VecDeque<Charged>,
    /// Those that wait for something of the owner's: its number, and they, oldest first. None is empty.
    aside: Vec<(usize, VecDeque<Charged>)>,
}

impl Deliveries {
    /// Adds a message.
    pub(crate) fn push(&mut self, delivery: Delivery, charge: u64) {
        self.next.push_back((delivery, charge));
    }

    /// Whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.next.is_empty() && self.aside.is_empty()
    }

    /// Takes the first message that does not wait. `waits_for` returns the number of what the messages of a
    /// request wait for, if they do. Each message is put aside once, so it is not looked at again by every
    /// call.
    pub(crate) fn pop(&mut self, waits_for: impl Fn(RequestId) -> Option<usize>) -> Option<Charged> {
        for at in 0..self.aside.len() {
            let waiting = &mut self.aside[at].1;
            let of = waiting.front().map(|(delivery, _)| delivery.request);
            if of.is_some_and(|request| waits_for(request).is_none()) {
                let taken = waiting.pop_front();
                if waiting.is_empty() {
                    self.aside.swap_remove(at);
                }
                return taken;
            }
        }
        while let Some(first) = self.next.pop_front() {
            match waits_for(first.0.request) {
                None => return Some(first),
                Some(number) => self.put_aside(number, first),
            }
        }
        None
    }

    #[cold]
    fn put_aside(&mut self, number: usize, message: Charged) {
        let found = self.aside.iter_mut().find(|(of, _)| *of == number);
        match found {
            Some((_, waiting)) => waiting.push_back(message),
            None => self.aside.push((number, VecDeque::from([message]))),
        }
    }

    /// Returns the number of messages.
    pub(crate) fn len(&self) -> usize {
        self.all().count()
    }

    fn all(&self) -> impl Iterator<Item = &Charged> {
        let aside = self.aside.iter().flat_map(|(_, waiting)| waiting);
        aside.chain(&self.next)
    }

    /// The sender of these is forgotten: they stay, and count nothing.
    pub(crate) fn forget(&mut self, rank: Rank) {
        let aside = self.aside.iter_mut().flat_map(|(_, waiting)| waiting);
        aside
            .chain(&mut self.next)
            .filter(|(delivery, _)| delivery.status.source == rank)
            .for_each(|(_, charge)| *charge = 0);
    }

    /// The senders of all messages.
    pub(crate) fn senders(&self) -> impl Iterator<Item = Rank> {
        self.all().map(|(delivery, _)| delivery.status.source)
    }

    /// Drops the messages of a multi-receive. `dropped` is called with the sender of each, and what it
    /// counts.
    pub(crate) fn drop_of(&mut self, id: RequestId, mut dropped: impl FnMut(Rank, u64)) {
        let mut stays = |(delivery, charge): &Charged| {
            let stays = delivery.request != id;
            if !stays {
                dropped(delivery.status.source, *charge);
            }
            stays
        };
        self.aside
            .iter_mut()
            .for_each(|(_, waiting)| waiting.retain(&mut stays));
        self.aside.retain(|(_, waiting)| !waiting.is_empty());
        self.next.retain(stays);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Status;

    fn message(request: u64, offset: u64) -> Delivery {
        Delivery {
            request: RequestId::from_bits(request),
            offset,
            delivered: 1,
            status: Status {
                source: Rank(3),
                endpoint: 0,
                tag: 0,
                length: 1,
                data: None,
            },
            intact: true,
            last: false,
        }
    }

    #[test]
    fn messages_that_wait_let_others_pass_and_keep_their_order() {
        let mut all = Deliveries::default();
        // Requests 1 and 2 wait for the same, request 3 for nothing.
        for (offset, request) in (0..).zip([1, 2, 3, 1, 3, 2]) {
            all.push(message(request, offset), offset);
        }
        let offset = |taken: Option<Charged>| taken.map(|(delivery, _)| delivery.offset);
        let waits = |request: RequestId| (request.to_bits() < 3).then_some(7);
        assert_eq!(offset(all.pop(waits)), Some(2));
        assert_eq!(offset(all.pop(waits)), Some(4));
        assert_eq!(offset(all.pop(waits)), None);
        assert_eq!((all.len(), all.is_empty()), (4, false));
        all.push(message(1, 6), 6);
        all.push(message(3, 7), 7);
        assert_eq!(offset(all.pop(waits)), Some(7));
        let mut dropped = 0;
        all.drop_of(RequestId::from_bits(2), |_, charge| dropped += charge);
        assert_eq!(dropped, 1 + 5);
        let rest: Vec<_> = std::iter::from_fn(|| offset(all.pop(|_| None))).collect();
        assert_eq!(rest, [0, 3, 6]);
        assert!(all.is_empty());
    }
}
