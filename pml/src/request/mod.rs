//! Requests: one cache line each for what every message needs, and a longer record beside it for the rest.
//! Their states are those of `fsm`.

use std::fmt;

use crate::args::Status;

mod memory;
mod multi;
mod one_sided;
mod pipeline;
mod progress;
mod record;
mod slot;

pub(crate) use self::memory::Memory;
pub(crate) use self::multi::Multi;
pub(crate) use self::one_sided::OneSided;
pub(crate) use self::pipeline::Pipeline;
pub(crate) use self::progress::Progress;
pub(crate) use self::record::Record;
pub(crate) use self::slot::{Outcome, Slot, mark};
pub(crate) use crate::fsm::{Event, State};

/// Names a request. A request that has ended and was tested leaves a stale id behind, which names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

impl RequestId {
    /// The request number that means none: no slot has this generation at first.
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    const fn new(index: RequestIndex, generation: u32) -> Self {
        Self(index.0 as u64 | (generation as u64) << 32)
    }

    #[inline]
    pub(crate) const fn index(self) -> RequestIndex {
        RequestIndex(self.0 as u32)
    }

    #[inline]
    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the place of the request in a table: small, dense from zero, and that of no other live one.
    /// For tables that the owner keeps beside the requests.
    #[inline]
    #[must_use]
    pub const fn slot(self) -> usize {
        self.index().at()
    }

    /// Converts it to a number: index in the low, generation in the high half.
    #[inline]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Back from [`RequestId::to_bits`]. A number that names nothing is found out when it is used.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "request {}.{}", self.index().0, self.generation())
    }
}

/// Where a request is in the tables of [`Requests`]. Unlike a [`RequestId`], it is used only while its
/// request lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestIndex(u32);

impl RequestIndex {
    #[inline]
    pub(crate) const fn at(self) -> usize {
        self.0 as usize
    }
}

/// The requests of a PML.
#[derive(Debug)]
pub(crate) struct Requests {
    slots: Vec<Slot>,
    records: Vec<Record>,
    free: u32,
    live: u32,
}

const NONE: u32 = u32::MAX;

impl Requests {
    pub(crate) fn new(room: usize) -> Self {
        let mut requests = Self {
            slots: Vec::with_capacity(room),
            records: Vec::with_capacity(room),
            free: NONE,
            live: 0,
        };
        (0..room).for_each(|_| requests.grow());
        requests
    }

    #[cold]
    fn grow(&mut self) {
        let index = u32::try_from(self.slots.len()).unwrap_or(NONE);
        // 2^32 slots of 64 bytes do not fit in memory: the allocator gives up long before.
        assert!(index != NONE, "more requests than can be numbered");
        self.slots.push(Slot::free(self.free));
        self.records.push(Record::default());
        self.free = index;
    }

    /// Takes a free slot; everything but the generation is the caller's to set.
    #[inline]
    pub(crate) fn take(&mut self) -> (RequestId, &mut Slot) {
        if self.free == NONE {
            self.grow();
        }
        let index = RequestIndex(self.free);
        let slot = &mut self.slots[index.at()];
        self.free = slot.next_free();
        self.live += 1;
        // After them: its first store and that of the state, by the caller, are one then.
        (RequestId::new(index, slot.take()), slot)
    }

    /// Gives a slot back; its id is stale from now on.
    #[inline]
    pub(crate) fn free(&mut self, index: RequestIndex) {
        let slot = &mut self.slots[index.at()];
        if slot.is(!(mark::NOTIFY | mark::DATA | mark::OPERATION | mark::FETCH)) {
            self.records[index.at()].reset();
        }
        slot.give(self.free);
        self.free = index.0;
        self.live -= 1;
    }

    /// The slot of a live request; `None` when the id is stale or never was.
    #[inline]
    pub(crate) fn get(&self, id: RequestId) -> Option<&Slot> {
        let slot = self.slots.get(id.index().at())?;
        (slot.generation() == id.generation() && slot.state() != State::Free).then_some(slot)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.index().at())?;
        (slot.generation() == id.generation() && slot.state() != State::Free).then_some(slot)
    }

    /// A slot that is known to be live.
    #[inline]
    pub(crate) fn slot(&mut self, index: RequestIndex) -> &mut Slot {
        &mut self.slots[index.at()]
    }

    #[inline]
    pub(crate) fn peek(&self, index: RequestIndex) -> &Slot {
        &self.slots[index.at()]
    }

    #[inline]
    pub(crate) fn record(&mut self, index: RequestIndex) -> &mut Record {
        &mut self.records[index.at()]
    }

    #[inline]
    pub(crate) fn peek_record(&self, index: RequestIndex) -> &Record {
        &self.records[index.at()]
    }

    #[inline]
    pub(crate) fn both(&mut self, index: RequestIndex) -> (&mut Slot, &mut Record) {
        (&mut self.slots[index.at()], &mut self.records[index.at()])
    }

    /// The message of a receive has this context, of which its sender's endpoint is a part, and these
    /// immediate data.
    #[inline]
    pub(crate) fn note(&mut self, index: RequestIndex, context: u16, data: Option<u64>) {
        let slot = &mut self.slots[index.at()];
        slot.set_context(context);
        if let Some(data) = data {
            slot.set(mark::DATA);
            self.records[index.at()].data = data;
        }
    }

    /// The status of the message of a request; `sources` are the bits of its context that are the sender's
    /// endpoint.
    #[inline]
    pub(crate) fn status(&self, index: RequestIndex, sources: u16) -> Status {
        let slot = &self.slots[index.at()];
        // The record is another cache line.
        let data = slot.is(mark::DATA).then(|| self.records[index.at()].data);
        Status {
            data,
            ..slot.status(sources)
        }
    }

    /// The id of a live slot.
    #[inline]
    pub(crate) fn id(&self, index: RequestIndex) -> RequestId {
        RequestId::new(index, self.slots[index.at()].generation())
    }

    /// The slots that exist, live or not.
    pub(crate) fn indices(&self) -> impl Iterator<Item = RequestIndex> + use<> {
        (0..self.slots.len() as u32).map(RequestIndex)
    }

    /// Those that have not been freed. It looks no further than the last of them.
    pub(crate) fn each_live(&self) -> impl Iterator<Item = &Slot> {
        let live = self.slots.iter().filter(|slot| slot.state() != State::Free);
        live.take(self.live as usize)
    }

    /// Requests that have not been freed.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_request_leaves_a_stale_id() {
        let mut requests = Requests::new(1);
        let (first, slot) = requests.take();
        slot.turn(Event::Posted);
        assert!(requests.get(first).is_some());
        requests.free(first.index());
        assert!(requests.get(first).is_none());
        let (second, slot) = requests.take();
        slot.turn(Event::Posted);
        assert_eq!(second.index(), first.index());
        assert!(requests.get(first).is_none() && requests.get(second).is_some());
        assert!(requests.get(RequestId::from_bits(u64::MAX)).is_none());
        assert_eq!(RequestId::from_bits(second.to_bits()), second);
    }
}
