//! What waits for a rail to a peer: messages of the PML itself, steps of transfers, and sends.

use std::collections::VecDeque;

use crate::request::RequestId;
use crate::wire::{AnswerHeader, Head};

/// A message of the PML itself, waiting for a rail.
#[derive(Debug)]
pub(crate) enum Control {
    /// A header without a body.
    Head(Head),
    /// A header with a body.
    Long(Vec<u8>),
    /// A whole message that a rail gave back: header and body.
    Again(Vec<u8>),
    /// The answer to an operation, and what that counts until it has left.
    Answer(AnswerHeader, u64),
}

/// A step of a request that needs a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Read the next part of the sender's memory.
    Get(RequestId),
    /// Expose the room and request a write by the sender.
    Expose(RequestId),
    /// Write the next part into the receiver's memory.
    Put(RequestId),
    /// Send the next fragments.
    Stream(RequestId),
    /// Go on with the restart of a send.
    Restart(RequestId),
    /// Send what an operation returns.
    Reply(RequestId),
}

/// What waits for its turn in the peer's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queued {
    /// A send of which nothing has left.
    Send(RequestId),
    /// The immediate data of the sends behind it.
    Data(Option<u64>),
}

/// What waits for a rail to one peer.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    control: VecDeque<Control>,
    tasks: VecDeque<Task>,
    /// Sends of which nothing has left, and their immediate data, in order.
    sends: VecDeque<Queued>,
}

impl Backlog {
    /// Returns how many messages of the PML itself wait.
    pub(crate) fn control_len(&self) -> usize {
        self.control.len()
    }

    /// Adds a message of the PML itself.
    pub(crate) fn push_control(&mut self, control: Control) {
        self.control.push_back(control);
    }

    /// Takes the first message of the PML itself.
    pub(crate) fn pop_control(&mut self) -> Option<Control> {
        self.control.pop_front()
    }

    /// Puts back the message that was taken, for which there was no room.
    pub(crate) fn put_back(&mut self, control: Control) {
        self.control.push_front(control);
    }

    /// Returns how many steps of transfers wait.
    pub(crate) fn task_count(&self) -> usize {
        self.tasks.len()
    }

    /// Adds a step of a transfer.
    pub(crate) fn push_task(&mut self, task: Task) {
        self.tasks.push_back(task);
    }

    /// Takes the first step of a transfer.
    pub(crate) fn pop_task(&mut self) -> Option<Task> {
        self.tasks.pop_front()
    }

    /// Returns how many sends wait of which nothing has left.
    pub(crate) fn send_count(&self) -> usize {
        self.sends.len()
    }

    /// Whether sends wait of which nothing has left.
    #[inline]
    pub(crate) fn has_sends(&self) -> bool {
        !self.sends.is_empty()
    }

    /// Adds a send.
    pub(crate) fn push_send(&mut self, id: RequestId) {
        self.sends.push_back(Queued::Send(id));
    }

    /// The sends from here on have these immediate data.
    pub(crate) fn push_data(&mut self, data: Option<u64>) {
        if let Some(Queued::Data(last)) = self.sends.back_mut() {
            *last = data;
        } else {
            self.sends.push_back(Queued::Data(data));
        }
    }

    /// The send that is next, or its immediate data.
    pub(crate) fn first_send(&self) -> Option<Queued> {
        self.sends.front().copied()
    }

    /// Takes out what was next.
    pub(crate) fn pop_send(&mut self) {
        self.sends.pop_front();
    }

    /// Takes out a send, wherever it is.
    pub(crate) fn remove_send(&mut self, id: RequestId) {
        self.sends.retain(|queued| *queued != Queued::Send(id));
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.control.is_empty() && self.tasks.is_empty() && self.sends.is_empty()
    }

    /// Forgets everything. Returns the sends that waited.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = RequestId> + use<> {
        self.control.clear();
        self.tasks.clear();
        let queued = std::mem::take(&mut self.sends).into_iter();
        queued.filter_map(|queued| match queued {
            Queued::Send(id) => Some(id),
            Queued::Data(_) => None,
        })
    }
}
