//! The ends of operations: each becomes an entry of its queue, counts in its counter, or is a failure.
//!
//! ```text
//!   Pml::next_completion ─► operation by its slot ─► entry, written once: to the caller that reads its
//!                                                    queue, else to the queue
//!   Pml::next_notice     ─► entry of the queue of receives: a write of a peer that has brought data
//!   Pml::next_access     ─► counters of what peers do (`events`)
//!   Pml::next_delivery   ─► entry of a buffer for many messages; the last one has its release flag
//! ```

use std::ffi::c_void;
use std::ptr;

use doorbell_pml::{Delivery, OperationError, PmlError, Rank, RequestId, Status};
use libfabric_sys::*;

use crate::cq::{Entry, Failure, Outlet};
use crate::domain::State;
use crate::ops::{Mark, Operation};

/// Returns a client's context, or the address of its memory, as the pointer that it was.
#[inline(always)]
pub(crate) fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

impl State {
    /// Turns what has ended into entries: of the queue that `outlet` reads in the caller's memory, as far as
    /// there is room, of all others in their queues.
    #[inline(always)]
    pub(crate) fn drain(&mut self, outlet: &mut Outlet) {
        if self.member.pml().has_deliveries() {
            self.take_deliveries(outlet);
        }
        if self.member.pml().has_notices() {
            self.take_notices(outlet);
        }
        if self.member.pml().has_accesses() {
            self.take_accesses();
        }
        while !outlet.is_full() {
            let Some(request) = self.member.pml().next_completion() else {
                break;
            };
            self.finish(request, outlet);
        }
    }

    /// An operation has ended.
    #[inline(always)]
    fn finish(&mut self, request: RequestId, outlet: &mut Outlet) {
        let Some(operation) = self.operations.get(request) else {
            // None was noted: its endpoint was closed.
            let _ = self.member.pml().test(request);
            return;
        };
        let operation = *operation;
        if operation.mark.is(Mark::RECV)
            && let Some(status) = self.member.pml().take_well_ended(request)
        {
            self.received(&operation, &status, outlet);
        } else if !self.finish_otherwise(request, &operation, outlet) {
            return;
        }
        self.operations.forget(request);
    }

    /// A send, a buffer for many messages, or a receive that has not ended like most. Returns whether it has
    /// ended at all.
    #[inline(never)]
    fn finish_otherwise(&mut self, request: RequestId, operation: &Operation, outlet: &mut Outlet) -> bool {
        match self.member.pml().test(request) {
            Some(ended) if operation.mark.is(Mark::MULTI) => self.released(operation, ended, outlet),
            Some(Ok(status)) if operation.mark.is(Mark::SEND) => self.sent(operation, &status, outlet),
            Some(Ok(status)) if operation.mark.is(Mark::ACCESS) => self.accessed(operation, &status, outlet),
            Some(Ok(status)) => self.received(operation, &status, outlet),
            Some(Err(error)) => self.failed(operation, &error),
            None => return false,
        }
        true
    }

    #[inline]
    fn sent(&mut self, operation: &Operation, status: &Status, outlet: &mut Outlet) {
        if let Some(endpoint) = self.endpoints.get_mut(operation.endpoint) {
            // It may have the number of one that was closed before all of its operations had ended.
            endpoint.under_way = endpoint.under_way.saturating_sub(1);
        }
        if operation.mark.is(Mark::COUNTED) {
            self.count(operation, status.length);
        }
        if operation.mark.is(Mark::ENTRY)
            && let Some(queue) = self.queues.get_mut(operation.queue)
        {
            queue.complete(
                outlet,
                &sent_entry(operation.context, operation.flags),
                FI_ADDR_NOTAVAIL,
            );
        }
    }

    /// A read or a write has ended well.
    #[inline]
    fn accessed(&mut self, operation: &Operation, status: &Status, outlet: &mut Outlet) {
        if let Some(endpoint) = self.endpoints.get_mut(operation.endpoint) {
            endpoint.accesses = endpoint.accesses.saturating_sub(1);
        }
        self.sent(operation, status, outlet);
    }

    #[inline(always)]
    fn received(&mut self, operation: &Operation, status: &Status, outlet: &mut Outlet) {
        self.answer(status.source, status.length);
        let sender = self.sender(operation, status);
        if self.is_unknown(operation, sender) {
            self.report_unknown(operation, status, received_entry(operation, status));
            return self.forget_place(operation);
        }
        if operation.mark.is(Mark::COUNTED) {
            self.count(operation, status.length);
        }
        if !operation.mark.is(Mark::ENTRY) {
            return;
        }
        if let Some(queue) = self.queues.get_mut(operation.queue) {
            queue.complete(outlet, &received_entry(operation, status), sender);
        }
    }

    /// The send of a long message ends when it is reported that all of it was taken: at once, since a client
    /// that has what it waited for may make no calls for long.
    #[inline(always)]
    pub(crate) fn answer(&mut self, from: Rank, length: u64) {
        if length > self.unanswered {
            self.member.acknowledge(from);
        }
    }

    /// The address of a message's sender, where the endpoint reports those.
    #[inline(always)]
    fn sender(&mut self, operation: &Operation, status: &Status) -> fi_addr_t {
        if !operation.mark.is(Mark::NAMES) {
            return FI_ADDR_NOTAVAIL;
        }
        self.address_of(operation.endpoint, status.source, status.endpoint)
    }

    /// Whether a message's sender is to be reported, and is in no address vector of the endpoint.
    #[inline(always)]
    fn is_unknown(&self, operation: &Operation, sender: fi_addr_t) -> bool {
        sender == FI_ADDR_NOTAVAIL
            && operation.mark.is(Mark::NAMES)
            && self
                .endpoints
                .get(operation.endpoint)
                .is_some_and(|endpoint| endpoint.reports_unknown)
    }

    /// Reports a message of a sender that is in no address vector: as a failure that has the address, as
    /// fi_cq(3) wants it under `FI_SOURCE_ERR`. The message has been delivered.
    #[cold]
    fn report_unknown(&mut self, operation: &Operation, status: &Status, entry: Entry) {
        let address = self.vectors.written(&self.member, status.source, status.endpoint);
        let failure = Failure {
            entry,
            lost: 0,
            errno: FI_EADDRNOTAVAIL,
            sender: FI_ADDR_NOTAVAIL,
            text: None,
            address,
        };
        self.report(operation, failure);
    }

    #[cold]
    fn count(&mut self, operation: &Operation, bytes: u64) {
        let Some(endpoint) = self.endpoints.get(operation.endpoint) else {
            return;
        };
        let index = endpoint.counter(operation.mark);
        if let Some(counter) = self.counters.get_mut(index) {
            counter.count(bytes);
        }
    }

    /// An operation has failed.
    #[cold]
    fn failed(&mut self, operation: &Operation, error: &PmlError) {
        if operation.mark.is(Mark::SEND.and(Mark::ACCESS))
            && let Some(endpoint) = self.endpoints.get_mut(operation.endpoint)
        {
            endpoint.under_way = endpoint.under_way.saturating_sub(1);
            let is_access = u32::from(operation.mark.is(Mark::ACCESS));
            endpoint.accesses = endpoint.accesses.saturating_sub(is_access);
        }
        let failure = self.failure(operation, error);
        self.report(operation, failure);
        if let PmlError::Truncated {
            source_rank, length, ..
        }
        | PmlError::Corrupt {
            source_rank, length, ..
        } = error
        {
            self.answer(*source_rank, *length);
        }
        if operation.mark.is(Mark::PLACE)
            && let Some(queue) = self.queues.get_mut(operation.queue)
        {
            queue.release();
        }
    }

    /// Adds a failure of an operation to its queue, and counts it.
    #[cold]
    pub(crate) fn report(&mut self, operation: &Operation, failure: Failure) {
        if let Some(endpoint) = self.endpoints.get(operation.endpoint) {
            let index = endpoint.counter(operation.mark);
            if let Some(counter) = self.counters.get_mut(index) {
                counter.add_errors(1);
            }
        }
        if let Some(queue) = self.queues.get_mut(operation.queue) {
            queue.fail(failure);
        }
    }

    /// Describes the failure of an operation.
    #[cold]
    pub(crate) fn failure(&mut self, operation: &Operation, error: &PmlError) -> Failure {
        let mut failure = Failure {
            entry: Entry {
                op_context: pointer(operation.context),
                flags: u64::from(operation.flags),
                len: 0,
                buf: ptr::null_mut(),
                data: 0,
                tag: 0,
            },
            lost: 0,
            errno: FI_EIO,
            sender: FI_ADDR_NOTAVAIL,
            text: None,
            address: Vec::new(),
        };
        match error {
            PmlError::Truncated {
                source_rank,
                endpoint,
                tag,
                data,
                length,
                room,
            } => {
                failure.errno = FI_ETRUNC;
                if let Some(data) = data {
                    failure.entry.flags |= FI_REMOTE_CQ_DATA;
                    failure.entry.data = *data;
                }
                if operation.mark.is(Mark::NAMES) {
                    failure.sender = self.address_of(operation.endpoint, *source_rank, *endpoint);
                }
                failure.entry.tag = *tag;
                failure.entry.len = *room as usize;
                failure.lost = (length - room) as usize;
            }
            PmlError::Cancelled { tag, .. } => {
                failure.errno = FI_ECANCELED;
                failure.entry.tag = *tag;
            }
            PmlError::SendAborted { tag, .. } => {
                failure.errno = FI_ECONNABORTED;
                failure.entry.tag = *tag;
            }
            PmlError::Rejected { rank, .. } => {
                failure.errno = FI_ECONNREFUSED;
                let name = self.member.name_of(*rank);
                failure.text = Some(format!("{name} has closed the endpoint that the message was for"));
            }
            PmlError::PeerLost { rank, reason } => {
                failure.errno = FI_EHOSTUNREACH;
                failure.text = Some(self.member.loss(*rank, *reason));
            }
            PmlError::NoRail { rank } => {
                failure.errno = FI_EHOSTUNREACH;
                failure.text = Some(format!("no rail leads to {}", self.member.name_of(*rank)));
            }
            PmlError::Operation { rank, reason } => {
                failure.errno = errno_of(*reason);
                failure.text = Some(format!("{}: {reason}", self.member.name_of(*rank)));
            }
            PmlError::Corrupt { tag, length, .. } => {
                failure.entry.tag = *tag;
                failure.entry.len = *length as usize;
                failure.text = Some(error.to_string());
            }
            other => failure.text = Some(other.to_string()),
        }
        failure
    }

    // Buffers for many messages.

    /// Reports messages that such buffers took. Those whose queue has as many unread entries as it may wait
    /// until it is read, and count against their senders meanwhile.
    #[inline(never)]
    fn take_deliveries(&mut self, outlet: &mut Outlet) {
        while !outlet.is_full() {
            let (operations, queues) = (&self.operations, &self.queues);
            let crowded = |request| {
                let queue = operations.get(request)?.queue;
                queues.is_full(queue).then_some(usize::from(queue.0))
            };
            let Some(delivery) = self.member.pml().next_delivery_unless(crowded) else {
                return;
            };
            if let Some(&operation) = self.operations.get(delivery.request) {
                self.delivered(&operation, &delivery, outlet);
            }
        }
    }

    /// A buffer is released, and its messages have all been reported; none of them had the flag of the last.
    #[cold]
    fn released(&mut self, operation: &Operation, ended: Result<Status, PmlError>, outlet: &mut Outlet) {
        match ended {
            Err(error) => self.failed(operation, &error),
            Ok(_) => self.report_release(operation, outlet),
        }
        self.operations.free_multi(operation.multi);
    }

    /// A message of a buffer: the last one releases it.
    fn delivered(&mut self, operation: &Operation, delivery: &Delivery, outlet: &mut Outlet) {
        self.report_delivery(operation, delivery, outlet);
        if delivery.last {
            // It has ended well.
            let _ = self.member.pml().test(delivery.request);
            self.operations.forget(delivery.request);
            self.operations.free_multi(operation.multi);
        }
    }

    fn report_delivery(&mut self, operation: &Operation, delivery: &Delivery, outlet: &mut Outlet) {
        self.answer(delivery.status.source, delivery.status.length);
        let base = self.operations.multi(operation.multi);
        let mut entry = received_entry(operation, &delivery.status);
        entry.len = delivery.delivered as usize;
        entry.buf = pointer(base + delivery.offset as usize);
        if delivery.last {
            entry.flags |= FI_MULTI_RECV;
        }
        let sender = self.sender(operation, &delivery.status);
        let lost = delivery.status.length - delivery.delivered;
        if lost > 0 || !delivery.intact {
            let errno = if delivery.intact {
                FI_ETRUNC
            } else {
                FI_ECONNABORTED
            };
            let failure = Failure {
                entry,
                lost: lost as usize,
                errno,
                sender,
                text: None,
                address: Vec::new(),
            };
            self.report(operation, failure);
            if delivery.last {
                self.forget_place(operation);
            }
            return;
        }
        if self.is_unknown(operation, sender) {
            self.report_unknown(operation, &delivery.status, entry);
            if delivery.last {
                self.forget_place(operation);
            }
            return;
        }
        if operation.mark.is(Mark::COUNTED) {
            self.count(operation, delivery.delivered);
        }
        if !operation.mark.is(Mark::ENTRY) {
            if delivery.last {
                self.report_release(operation, outlet);
            }
            return;
        }
        if let Some(queue) = self.queues.get_mut(operation.queue) {
            match delivery.last {
                true => queue.complete(outlet, &entry, sender),
                false => queue.add(outlet, &entry, sender),
            }
        }
    }

    /// Reports the release of a buffer by an entry of its own, which has no other flag: with `FI_RECV` it
    /// would be a message. There is one also where the messages of the buffer have none, by fi_msg(3).
    fn report_release(&mut self, operation: &Operation, outlet: &mut Outlet) {
        let entry = Entry {
            op_context: pointer(operation.context),
            flags: FI_MULTI_RECV,
            len: 0,
            buf: ptr::null_mut(),
            data: 0,
            tag: 0,
        };
        if let Some(queue) = self.queues.get_mut(operation.queue) {
            queue.complete(outlet, &entry, FI_ADDR_NOTAVAIL);
        }
    }

    /// The place of an operation's entry is free: it is reported otherwise.
    fn forget_place(&mut self, operation: &Operation) {
        if operation.mark.is(Mark::PLACE)
            && let Some(queue) = self.queues.get_mut(operation.queue)
        {
            queue.release();
        }
    }
}

/// The number for an operation that its peer has not done.
#[cold]
fn errno_of(error: OperationError) -> i32 {
    match error {
        OperationError::UnknownKey => FI_ENOKEY,
        OperationError::Access => FI_EACCES,
        OperationError::Range => FI_EINVAL,
        OperationError::Unmapped => FI_EFAULT,
        OperationError::Invalid => FI_EOPNOTSUPP,
        OperationError::Closed => FI_ECANCELED,
        _ => FI_EIO,
    }
}

/// The entry of a send that ended well.
#[inline(always)]
pub(crate) fn sent_entry(context: usize, flags: u32) -> Entry {
    Entry {
        op_context: pointer(context),
        flags: u64::from(flags),
        len: 0,
        buf: ptr::null_mut(),
        data: 0,
        tag: 0,
    }
}

/// The entry of a message that was received.
#[inline(always)]
pub(crate) fn received_entry(operation: &Operation, status: &Status) -> Entry {
    let (has_data, data) = match status.data {
        Some(data) => (FI_REMOTE_CQ_DATA, data),
        None => (0, 0),
    };
    Entry {
        op_context: pointer(operation.context),
        flags: u64::from(operation.flags) | has_data,
        len: status.length as usize,
        buf: ptr::null_mut(),
        data,
        tag: status.tag,
    }
}
