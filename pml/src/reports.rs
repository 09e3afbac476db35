//! Requests that have ended, until their owner takes note of it.

use std::collections::VecDeque;

use doorbell_fabric::message::{OpError, OpId};

use crate::args::Delivery;
use crate::rails::RailId;
use crate::rank::Rank;
use crate::request::RequestId;

/// A one-sided operation of the owner's that ended: its rail, its number, how.
pub(crate) type Ended = (RailId, OpId, Result<u64, OpError>);

/// Requests and operations that ended.
#[derive(Debug)]
pub(crate) struct Reports {
    /// Requests whose end is to be reported.
    requests: VecDeque<RequestId>,
    operations: VecDeque<Ended>,
}

impl Reports {
    /// No reports, with room for those of `most` requests.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            requests: VecDeque::with_capacity(most),
            operations: VecDeque::new(),
        }
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

    /// An operation has ended.
    pub(crate) fn push_operation(&mut self, ended: Ended) {
        self.operations.push_back(ended);
    }

    /// Takes the first operation that ended.
    pub(crate) fn pop_operation(&mut self) -> Option<Ended> {
        self.operations.pop_front()
    }

    /// Returns the number of reports.
    pub(crate) fn len(&self) -> usize {
        self.requests.len() + self.operations.len()
    }
}

/// Messages that multi-receives took, each with what it still counts against its sender's window. What it
/// counts is given back when the owner takes it: that bounds the queue.
#[derive(Debug, Default)]
pub(crate) struct Deliveries(VecDeque<(Delivery, u64)>);

impl Deliveries {
    /// Adds a message.
    pub(crate) fn push(&mut self, delivery: Delivery, charge: u64) {
        self.0.push_back((delivery, charge));
    }

    /// Whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the first message.
    pub(crate) fn pop(&mut self) -> Option<(Delivery, u64)> {
        self.0.pop_front()
    }

    /// Returns the number of messages.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The sender of these is forgotten: they stay, and count nothing.
    pub(crate) fn forget(&mut self, rank: Rank) {
        let of_rank = self
            .0
            .iter_mut()
            .filter(|(delivery, _)| delivery.status.source == rank);
        of_rank.for_each(|(_, charge)| *charge = 0);
    }

    /// The senders of all messages.
    pub(crate) fn senders(&self) -> impl Iterator<Item = Rank> {
        self.0.iter().map(|(delivery, _)| delivery.status.source)
    }

    /// Drops the messages of a multi-receive. `dropped` is called with the sender of each, and what it
    /// counts.
    pub(crate) fn drop_of(&mut self, id: RequestId, mut dropped: impl FnMut(Rank, u64)) {
        self.0.retain(|(delivery, charge)| {
            let stays = delivery.request != id;
            if !stays {
                dropped(delivery.status.source, *charge);
            }
            stays
        });
    }
}
