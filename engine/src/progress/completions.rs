//! The one queue of completions of the raw interface.

use doorbell_job::error::{Awaited, Error, Peers};
use doorbell_job::types::Status;
use doorbell_pml::{Delivery, RequestId};

use super::core::Core;

/// A completion of the raw interface.
#[derive(Debug)]
pub enum Completion {
    /// A send or receive. A send that returned [`Sent::Done`](doorbell_pml::Sent::Done) has none.
    Request {
        /// The number of the request.
        id: RequestId,
        /// Its status, or the error.
        outcome: Result<Status, Error>,
    },
    /// A message that a multi-receive has received; the buffer itself ends as a [`Completion::Request`].
    Delivery(Delivery),
}

impl Core {
    /// Returns the next completion of the raw interface.
    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        if let Some(found) = self.watch.found.take() {
            return Some(found);
        }
        if let Some(delivery) = self.pml.next_delivery() {
            return Some(Completion::Delivery(delivery));
        }
        let queued = self.raw_completions.pop_front();
        // The dedicated thread drains the PML's queue itself, since its slots complete through it, too.
        let id = if self.dedicated {
            queued
        } else {
            queued.or_else(|| self.pml.next_completion())
        }?;
        let outcome = self.pml.test(id)?;
        Some(Completion::Request {
            id,
            outcome: outcome.map(Into::into).map_err(|error| self.explained(error)),
        })
    }
}

/// Describes a wait for completions.
pub(super) fn awaited_completion() -> Awaited {
    Awaited::Requests {
        count: 1,
        peers: Peers::default(),
    }
}
