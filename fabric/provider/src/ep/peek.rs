//! Messages that have arrived and were not received: found, claimed, thrown away.

use doorbell_pml::{Envelope, MessageId, RequestId, Source, Status};
use libfabric_sys::*;

use super::receive::{Posted, Receive, Room, received_flags, refused};
use super::state::{EndpointNumber, Side, Space};
use crate::cq::{Failure, Outlet};
use crate::domain::State;
use crate::errno::{Errno, Result};
use crate::finish::{received_entry, sent_entry};
use crate::ops::{Mark, Operation};

impl State {
    /// Looks for a message, and does with it what the flags want: `FI_PEEK` alone leaves it where it is, with
    /// `FI_CLAIM` it is kept for a receive of the same context, with `FI_DISCARD` it is thrown away. What was
    /// found, or that nothing was, is an entry.
    ///
    /// # Errors
    /// Those of the endpoint and of the address.
    pub(crate) fn peek(&mut self, to: EndpointNumber, receive: Receive) -> Result<isize> {
        let endpoint = self.endpoints.find(to)?;
        let side = endpoint.receiving()?;
        let from = match endpoint.takes_any(Space::Tagged, receive.from)? {
            true => Source::Any,
            false => self.source(to, receive.from)?,
        };
        self.look();
        let context = Space::Tagged.receives(to);
        let pml = self.member.pml();
        let found = if receive.flags & (FI_CLAIM | FI_DISCARD) == 0 {
            pml.probe(from, context, receive.tag, receive.ignore)
        } else if let Some(claimed) = pml.claim(from, context, receive.tag, receive.ignore) {
            if receive.flags & FI_DISCARD != 0 {
                // It was claimed just now, so it is there.
                let _ = pml.discard(claimed.message);
                self.answer(claimed.envelope.source, claimed.envelope.length);
            } else {
                self.endpoints.find(to)?.claim(receive.context, claimed.message);
            }
            Some(claimed.envelope)
        } else {
            None
        };
        match found {
            Some(envelope) => self.found(to, side, &receive, &envelope),
            None => self.not_found(to, side, &receive),
        }
        Ok(0)
    }

    /// Receives the message that a call with the same context has claimed.
    ///
    /// # Errors
    /// Those of the endpoint; `FI_EINVAL` where no such message was claimed.
    pub(crate) fn receive_claimed(
        &mut self,
        to: EndpointNumber,
        room: Room,
        receive: Receive,
    ) -> Result<isize> {
        let (message, side, names) = self.claimed(to, receive.context)?;
        let request = self
            .member
            .pml()
            .recv_claimed(message, room.target(), true)
            .map_err(|error| refused(&error))?;
        self.posted(to, Space::Tagged, &receive, side, Posted::one(request, names));
        Ok(0)
    }

    /// Throws away the message that a call with the same context has claimed. That it was is an entry.
    ///
    /// # Errors
    /// Those of [`State::receive_claimed`].
    pub(crate) fn discard_claimed(&mut self, to: EndpointNumber, receive: Receive) -> Result<isize> {
        let (message, side, _) = self.claimed(to, receive.context)?;
        let envelope = self
            .member
            .pml()
            .discard(message)
            .map_err(|error| refused(&error))?;
        self.answer(envelope.source, envelope.length);
        self.found(to, side, &receive, &envelope);
        Ok(0)
    }

    /// Takes the message that a call with this context has claimed.
    fn claimed(&mut self, to: EndpointNumber, context: usize) -> Result<(MessageId, Side, bool)> {
        let endpoint = self.endpoints.find(to)?;
        let side = endpoint.receiving()?;
        let message = endpoint.take_claimed(context).ok_or(Errno(FI_EINVAL))?;
        Ok((message, side, endpoint.names_senders))
    }

    /// Reports a message that was found. It is reported whether or not the call wants an entry: nothing
    /// else comes of it.
    fn found(&mut self, to: EndpointNumber, side: Side, receive: &Receive, envelope: &Envelope) {
        let operation = looked(to, side, receive);
        let status = Status {
            source: envelope.source,
            endpoint: envelope.endpoint,
            tag: envelope.tag,
            length: envelope.length,
            data: envelope.data,
        };
        self.observed(&operation, &status);
    }

    #[cold]
    fn not_found(&mut self, to: EndpointNumber, side: Side, receive: &Receive) {
        let operation = looked(to, side, receive);
        let mut entry = sent_entry(receive.context, operation.flags);
        entry.tag = receive.tag;
        let failure = Failure {
            entry,
            lost: 0,
            errno: FI_ENOMSG,
            sender: FI_ADDR_NOTAVAIL,
            text: None,
            address: Vec::new(),
        };
        if let Some(queue) = self.queues.get_mut(side.queue) {
            queue.fail(failure);
        }
    }

    /// Messages to an endpoint are kept until they are received.
    pub(crate) fn accept_messages(&mut self, to: EndpointNumber) {
        let pml = self.member.pml();
        for space in [Space::Untagged, Space::Tagged] {
            pml.open_context(space.receives(to));
        }
    }

    /// Rejects messages to an endpoint: those that it has claimed, those that nothing was posted for, and
    /// those that still come.
    pub(crate) fn reject_messages(&mut self, to: EndpointNumber) {
        let claimed = self
            .endpoints
            .get_mut(to.0)
            .map(|endpoint| endpoint.take_all_claimed());
        let pml = self.member.pml();
        for message in claimed.into_iter().flatten() {
            let _ = pml.reject(message);
        }
        for space in [Space::Untagged, Space::Tagged] {
            pml.close_context(space.receives(to));
        }
    }

    /// Adds an entry for a message that was found to the queue.
    fn observed(&mut self, operation: &Operation, status: &Status) {
        let sender = self.address_of(operation.endpoint, status.source, status.endpoint);
        if let Some(queue) = self.queues.get_mut(operation.queue) {
            let entry = received_entry(operation, status);
            queue.add(&mut Outlet::closed(), &entry, sender);
        }
    }
}

/// An operation that has ended when the call returns.
fn looked(to: EndpointNumber, side: Side, receive: &Receive) -> Operation {
    Operation {
        context: receive.context,
        request: RequestId::from_bits(0),
        flags: received_flags(Space::Tagged),
        queue: side.queue,
        endpoint: to.0,
        mark: Mark::RECV,
        multi: 0,
    }
}
