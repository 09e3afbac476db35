//! The handle that answers a query: used once, from any thread, now or later.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use super::counters::{Count, ServerCounters};
use crate::query::Answer;
use crate::status::Status;
use crate::wire::{Head, write_answer};

/// A message queued for a client.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// An answer, and the permit of its query.
    Answer(Vec<u8>, OwnedSemaphorePermit),
    /// The queue holds too many bytes.
    TooMuch,
}

/// The queue of answers. It is bounded by the client's open queries, each of which has a permit.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    pub(super) to: UnboundedSender<Outgoing>,
    /// Bytes in the queue.
    pub(super) bytes: Arc<AtomicUsize>,
    pub(super) most: usize,
}

impl Outbox {
    /// Queues an answer, unless the client is gone.
    pub(super) fn put(&self, bytes: Vec<u8>, permit: OwnedSemaphorePermit) {
        let before = self.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        // One answer always fits, however long.
        let fits = before == 0 || before + bytes.len() <= self.most;
        let out = if fits {
            Outgoing::Answer(bytes, permit)
        } else {
            Outgoing::TooMuch
        };
        let _ = self.to.send(out);
    }
}

/// The handle that answers a query. If it is dropped unused, the client gets the status "not connected".
#[derive(Debug)]
pub struct Reply(Option<Open>);

#[derive(Debug)]
struct Open {
    head: Head,
    outbox: Outbox,
    permit: OwnedSemaphorePermit,
    served: Arc<ServerCounters>,
}

impl Reply {
    pub(super) fn new(
        head: Head,
        outbox: Outbox,
        permit: OwnedSemaphorePermit,
        served: Arc<ServerCounters>,
    ) -> Self {
        Self(Some(Open {
            head,
            outbox,
            permit,
            served,
        }))
    }

    /// Sends the answer. It is not an error if the client is gone.
    pub fn send(mut self, found: &Answer) {
        if let Some(open) = self.0.take() {
            open.outbox.put(write_answer(&open.head, found), open.permit);
        }
    }

    /// Whether the client is gone or the query was answered.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.as_ref().is_none_or(|open| open.outbox.to.is_closed())
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            open.served.add(Count::Unanswered);
            let none = write_answer(&open.head, &Err(Status::NotConnected));
            open.outbox.put(none, open.permit);
        }
    }
}
