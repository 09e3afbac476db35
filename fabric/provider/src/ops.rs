//! What is known of an operation beside its request in the PML: by the request's slot, without a search.

use doorbell_pml::RequestId;

use crate::cq::QueueIndex;

/// What an operation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark(u8);

impl Mark {
    /// The mark of no operation.
    pub(crate) const NONE: Self = Self(0);
    /// It is a send.
    pub(crate) const SEND: Self = Self(1);
    /// A receive of one message.
    pub(crate) const RECV: Self = Self(2);
    /// A receive of many messages into one buffer.
    pub(crate) const MULTI: Self = Self(4);
    /// It adds an entry to its queue when it ends well.
    pub(crate) const ENTRY: Self = Self(8);
    /// It has a place in its queue: a buffer for many messages has one for its release in any case.
    pub(crate) const PLACE: Self = Self(8 | 4);
    /// A counter counts it.
    pub(crate) const COUNTED: Self = Self(16);
    /// Its entry names the sender.
    pub(crate) const NAMES: Self = Self(32);
    /// It is a read of a peer's memory.
    pub(crate) const READ: Self = Self(64);
    /// A write of a peer's memory.
    pub(crate) const WRITE: Self = Self(128);
    /// Either of the two.
    pub(crate) const ACCESS: Self = Self(64 | 128);

    /// These and those.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These, and those if `add`.
    #[inline(always)]
    pub(crate) const fn and_if(self, other: Self, add: bool) -> Self {
        Self(self.0 | if add { other.0 } else { 0 })
    }

    /// Those of these that are in `other`, too.
    #[inline(always)]
    pub(crate) const fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether it is one of these.
    #[inline(always)]
    pub(crate) const fn is(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// An operation under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    /// The client's context.
    pub(crate) context: usize,
    /// The request in the PML.
    pub(crate) request: RequestId,
    /// The flags of its entry.
    pub(crate) flags: u32,
    /// The queue of its entry, and of its failure.
    pub(crate) queue: QueueIndex,
    /// The number of its endpoint.
    pub(crate) endpoint: u8,
    pub(crate) mark: Mark,
    /// A receive of many messages: the number of its buffer.
    pub(crate) multi: u32,
}
const _: () = assert!(size_of::<Operation>() == 32);

impl Operation {
    /// The place of no operation.
    const NONE: Self = Self {
        context: 0,
        request: RequestId::from_bits(0),
        flags: 0,
        queue: QueueIndex::NONE,
        endpoint: 0,
        mark: Mark::NONE,
        multi: 0,
    };
}

/// The operations of a domain that are under way, by the slots of their requests.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    table: Vec<Operation>,
    /// The addresses of buffers for many messages.
    multis: Vec<usize>,
    /// Places of `multis` that are free.
    free: Vec<u32>,
}

impl Operations {
    /// Notes an operation.
    #[inline(always)]
    pub(crate) fn put(&mut self, operation: Operation) {
        let slot = operation.request.slot();
        match self.table.get_mut(slot) {
            Some(place) => *place = operation,
            None => self.put_behind(operation),
        }
    }

    #[cold]
    fn put_behind(&mut self, operation: Operation) {
        let slot = operation.request.slot();
        // A power of two, so that it grows seldom.
        self.table.resize((slot + 1).next_power_of_two(), Operation::NONE);
        self.table[slot] = operation;
    }

    /// The operation of a request that is under way. `None` for a request that nothing was noted of.
    #[inline(always)]
    pub(crate) fn get(&self, request: RequestId) -> Option<&Operation> {
        let operation = self.table.get(request.slot())?;
        (operation.request == request).then_some(operation)
    }

    /// Takes the operation of a request that has ended.
    #[inline(always)]
    pub(crate) fn take(&mut self, request: RequestId) -> Option<Operation> {
        let place = self.table.get_mut(request.slot())?;
        if place.request != request {
            return None;
        }
        let operation = *place;
        // The rest of it is not looked at.
        place.request = Operation::NONE.request;
        Some(operation)
    }

    /// An operation that was found has ended.
    #[inline(always)]
    pub(crate) fn forget(&mut self, request: RequestId) {
        if let Some(place) = self.table.get_mut(request.slot()) {
            place.request = Operation::NONE.request;
        }
    }

    /// Notes a buffer for many messages; returns its number.
    pub(crate) fn put_multi(&mut self, base: usize) -> u32 {
        if let Some(number) = self.free.pop() {
            self.multis[number as usize] = base;
            return number;
        }
        self.multis.push(base);
        self.multis.len() as u32 - 1
    }

    /// The address of the buffer of a number.
    #[inline]
    pub(crate) fn multi(&self, number: u32) -> usize {
        self.multis[number as usize]
    }

    /// The buffer was released.
    pub(crate) fn free_multi(&mut self, number: u32) {
        self.free.push(number);
    }

    /// All operations that are under way.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Operation> {
        let none = Operation::NONE.request;
        self.table
            .iter()
            .filter(move |operation| operation.request != none)
    }

    /// Those of an endpoint.
    pub(crate) fn of_endpoint(&self, endpoint: u8) -> impl Iterator<Item = &Operation> {
        self.all().filter(move |operation| operation.endpoint == endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(slot: u64, generation: u64, endpoint: u8) -> Operation {
        Operation {
            context: slot as usize,
            request: RequestId::from_bits(slot | generation << 32),
            endpoint,
            ..Operation::NONE
        }
    }

    #[test]
    fn an_operation_is_found_by_its_request_until_it_is_taken() {
        let mut operations = Operations::default();
        for slot in [0, 700, 3] {
            operations.put(operation(slot, 1, (slot % 2) as u8));
        }
        assert_eq!(operations.table.len(), 1024);
        let request = RequestId::from_bits(700 | 1 << 32);
        assert_eq!(operations.get(request).map(|found| found.context), Some(700));
        assert!(
            operations.get(RequestId::from_bits(700 | 2 << 32)).is_none(),
            "another request of that slot"
        );
        assert!(operations.get(RequestId::from_bits(5000)).is_none());
        assert_eq!(operations.all().count(), 3);
        assert_eq!(operations.of_endpoint(0).count(), 2);
        assert_eq!(operations.take(request).map(|found| found.context), Some(700));
        assert!(operations.take(request).is_none());
        assert_eq!(operations.of_endpoint(0).count(), 1);
    }

    #[test]
    fn numbers_of_buffers_are_used_again() {
        let mut operations = Operations::default();
        let numbers = [1, 2, 3].map(|base| operations.put_multi(base));
        operations.free_multi(numbers[1]);
        assert_eq!(operations.put_multi(4), numbers[1]);
        assert_eq!(operations.multi(numbers[1]), 4);
        assert_eq!(operations.multi(numbers[2]), 3);
    }
}
