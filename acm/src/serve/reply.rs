//! The way back to the client that asked: used once, from any thread, now or later.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use super::counters::{Count, Served};
use crate::ask::Answer;
use crate::status::Status;
use crate::wire::{Head, answer};

/// What is on its way to a client.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// An answer, and its place among the client's questions.
    Answer(Vec<u8>, OwnedSemaphorePermit),
    /// There is no room for another.
    TooMuch,
}

/// Where answers go. No more than the client's questions can be in it: each has a permit.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    pub(super) to: UnboundedSender<Outgoing>,
    /// Bytes that are in it.
    pub(super) bytes: Arc<AtomicUsize>,
    pub(super) most: usize,
}

impl Outbox {
    /// Puts an answer in; a client that is gone gets none.
    pub(super) fn put(&self, bytes: Vec<u8>, permit: OwnedSemaphorePermit) {
        let before = self.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        // One answer always has room, however long.
        let fits = before == 0 || before + bytes.len() <= self.most;
        let out = if fits {
            Outgoing::Answer(bytes, permit)
        } else {
            Outgoing::TooMuch
        };
        let _ = self.to.send(out);
    }
}

/// The way back to the client that asked. Dropped unused, it says that the service is not connected to anything.
#[derive(Debug)]
pub struct Reply(Option<Open>);

#[derive(Debug)]
struct Open {
    head: Head,
    outbox: Outbox,
    permit: OwnedSemaphorePermit,
    served: Arc<Served>,
}

impl Reply {
    pub(super) fn new(head: Head, outbox: Outbox, permit: OwnedSemaphorePermit, served: Arc<Served>) -> Self {
        Self(Some(Open {
            head,
            outbox,
            permit,
            served,
        }))
    }

    /// Answers. A client that is gone by now is no error.
    pub fn send(mut self, found: &Answer) {
        if let Some(open) = self.0.take() {
            open.outbox.put(answer(&open.head, found), open.permit);
        }
    }

    /// Whether nobody waits for it any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.as_ref().is_none_or(|open| open.outbox.to.is_closed())
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            open.served.add(Count::Unanswered);
            let none = answer(&open.head, &Err(Status::NotConnected));
            open.outbox.put(none, open.permit);
        }
    }
}
