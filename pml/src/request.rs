//! Requests: one cache line each for what every message needs, and a longer record beside it for the rest. Their states
//! are those of `fsm`.

use std::fmt;

use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::{MsgId, OpId, Remote, RemoteKey};
use doorbell_matching::{EntryHandle, UnexpectedHandle};

use crate::args::Target;
use crate::convertor::{Cursor, Origin};
use crate::fsm::is_listed;
pub(crate) use crate::fsm::{Event, State};
use crate::intervals::Intervals;
use crate::rails::RailId;
use crate::rank::Rank;
use crate::restart::Phase;

/// Names a request. A request that has ended and was tested leaves a stale id behind, which names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

impl RequestId {
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

    /// As a number: index in the low, generation in the high half.
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

/// Where a request is in the tables of [`Requests`]. Unlike a [`RequestId`], it is used only while its request lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestIndex(u32);

impl RequestIndex {
    #[inline]
    const fn at(self) -> usize {
        self.0 as usize
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Outcome {
    Ok,
    Truncated,
    Corrupt,
    Cancelled,
    PeerLost,
    SendAborted,
}

/// The flags of a slot. A slot without any takes the fast path.
pub(crate) mod mark {
    /// Queue it when it ends.
    pub(crate) const NOTIFY: u8 = 1;
    /// Its record holds something that has to be let go.
    pub(crate) const RECORD: u8 = 2;
    /// A transfer into a multi-receive.
    pub(crate) const CHILD: u8 = 4;
    /// Nobody will test it: it frees itself.
    pub(crate) const DETACHED: u8 = 8;
    /// Its owner aborted it.
    pub(crate) const ABORTED: u8 = 16;
    /// Synchronous send.
    pub(crate) const SYNC: u8 = 32;
    /// Its room is in the record, not in `room`: a layout, or a region, which only its slice may be reached through.
    pub(crate) const APART: u8 = 64;
    /// A multi-receive.
    pub(crate) const MULTI: u8 = 128;
}

/// The cache line of a request.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    pub(crate) generation: u32,
    /// Moved by [`Slot::turn`] alone.
    state: State,
    pub(crate) outcome: Outcome,
    pub(crate) marks: u8,
    /// The other side; in a free slot, the next free one.
    pub(crate) peer: Rank,
    pub(crate) context: u16,
    pub(crate) tag: u64,
    /// Length of the message.
    pub(crate) length: u64,
    /// Receive into one borrowed piece: the room.
    pub(crate) room: MutLoan,
    /// Receive: the entry that is linked.
    pub(crate) entry: Option<EntryHandle>,
}
const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    #[inline(always)]
    pub(crate) const fn state(&self) -> State {
        self.state
    }

    /// Something happens to it: the only way from one state to another.
    #[inline(always)]
    pub(crate) fn turn(&mut self, by: Event) {
        debug_assert!(
            is_listed(self.state, by),
            "{:?} is no move from {:?}",
            by,
            self.state
        );
        self.state = by.leads_to();
    }
}

impl Outcome {
    /// What ends a request in this way.
    #[inline]
    pub(crate) const fn event(self) -> Event {
        match self {
            Self::Ok | Self::Truncated | Self::Corrupt => Event::Completed,
            Self::Cancelled => Event::Cancelled,
            Self::PeerLost => Event::PeerLost,
            Self::SendAborted => Event::SendAborted,
        }
    }
}

/// What only transfers, layouts and waiting sends need.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Send: the bytes.
    pub(crate) origin: Origin,
    /// Receive: the layout, or the region, which is kept alive until the slot is free.
    pub(crate) target: Option<Target>,
    pub(crate) cursor: Cursor,
    /// The request at the other side.
    pub(crate) remote_request: u64,
    /// Send: bytes that were counted with the message, until its receiver says how many it has counted. Receive: those
    /// that came with the announcement.
    pub(crate) counted: u64,
    /// Send: it was counted as one for which the peer's window was full.
    pub(crate) held_back: bool,
    /// Sequence number of the message.
    pub(crate) seq: u32,
    /// The rail that one-sided access uses; none, when the announcement of exposed memory was given back.
    pub(crate) rail: RailId,
    /// Receive: bytes that are wanted. Send: bytes that the receiver wants, as an end.
    pub(crate) until: u64,
    /// Receive: bytes that have arrived (in one-sided transfers, from the front). Send: the next byte to leave.
    pub(crate) moved: u64,
    /// Receive by fragments: what has arrived.
    pub(crate) arrived: Intervals,
    /// The sender's or receiver's exposed memory, starting at `remote_at`.
    pub(crate) remote: Option<Remote>,
    pub(crate) remote_at: u64,
    /// Receive: the sender was asked to write.
    pub(crate) put: bool,
    /// Our own exposed memory.
    pub(crate) exposed: Option<RemoteKey>,
    /// The one-sided operation under way, and its bytes.
    pub(crate) operation: Option<OpId>,
    pub(crate) operation_bytes: u64,
    /// How it is to end when the operation has ended.
    pub(crate) doomed: Option<Outcome>,
    /// A multi-receive: transfers into it. A transfer into one: where.
    pub(crate) children: u32,
    pub(crate) parent: Option<RequestId>,
    pub(crate) parent_at: u64,
    /// Multi-receive: bytes filled.
    pub(crate) filled: u64,
    /// Of the whole message, as it was sent; and, at its receiver, as it arrived.
    pub(crate) checksum: Option<u32>,
    pub(crate) found: u32,
    /// The restart handshake: the number of the attempt, and where it is.
    pub(crate) restart: u32,
    pub(crate) phase: Phase,
    /// Send: the last fragment over each path, where restarts are told so.
    pub(crate) over: Vec<(u16, MsgId)>,
    /// Send: further ranges that the receiver wants.
    pub(crate) wanted: Vec<(u64, u64)>,
    /// Send to ourselves that waits: its place in matching.
    pub(crate) kept: Option<UnexpectedHandle>,
    /// Fragments under way: the rail's numbers for the last ones.
    pub(crate) under_way: UnderWay,
}

impl Record {
    /// Makes it ready for the next request; keeps the memory of the ranges.
    pub(crate) fn reset(&mut self) {
        let mut arrived = std::mem::take(&mut self.arrived);
        let mut over = std::mem::take(&mut self.over);
        let mut wanted = std::mem::take(&mut self.wanted);
        arrived.clear();
        over.clear();
        wanted.clear();
        *self = Self {
            arrived,
            over,
            wanted,
            ..Self::default()
        };
    }
}

/// The rail's numbers of the last fragments of a transfer: a bounded pipeline (reference: bfo, section 5).
#[derive(Debug)]
pub(crate) struct UnderWay {
    ids: [MsgId; Self::MOST],
    rail: RailId,
    count: usize,
}

impl UnderWay {
    /// The deepest pipeline.
    pub(crate) const MOST: usize = 16;

    const fn over_rail(rail: RailId) -> Self {
        Self {
            ids: [MsgId(0); Self::MOST],
            rail,
            count: 0,
        }
    }

    /// The fragment that must have been handed over before another one may leave over `rail`.
    pub(crate) fn gate(&mut self, rail: RailId, depth: usize) -> MsgId {
        self.over(rail);
        if self.count < depth {
            return MsgId(0);
        }
        self.ids[(self.count - depth) % Self::MOST]
    }

    fn over(&mut self, rail: RailId) {
        if self.rail != rail {
            *self = Self::over_rail(rail);
        }
    }

    /// Notes one that left over `rail`.
    pub(crate) fn note(&mut self, rail: RailId, id: MsgId) {
        self.over(rail);
        self.ids[self.count % Self::MOST] = id;
        self.count += 1;
    }
}

impl Default for UnderWay {
    fn default() -> Self {
        Self::over_rail(RailId::NONE)
    }
}

/// All requests.
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
        self.slots.push(Slot {
            generation: 1,
            state: State::Free,
            outcome: Outcome::Ok,
            marks: 0,
            peer: Rank(self.free),
            context: 0,
            tag: 0,
            length: 0,
            room: MutLoan::EMPTY,
            entry: None,
        });
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
        self.free = slot.peer.0;
        self.live += 1;
        slot.outcome = Outcome::Ok;
        (RequestId::new(index, slot.generation), slot)
    }

    /// Gives a slot back; its id is stale from now on.
    #[inline]
    pub(crate) fn free(&mut self, index: RequestIndex) {
        let slot = &mut self.slots[index.at()];
        if slot.marks & !mark::NOTIFY != 0 {
            self.records[index.at()].reset();
        }
        slot.generation = slot.generation.wrapping_add(1);
        slot.turn(Event::Freed);
        slot.marks = 0;
        slot.entry = None;
        slot.peer = Rank(self.free);
        self.free = index.0;
        self.live -= 1;
    }

    /// The slot of a live request; `None` when the id is stale or never was.
    #[inline]
    pub(crate) fn get(&self, id: RequestId) -> Option<&Slot> {
        let slot = self.slots.get(id.index().at())?;
        (slot.generation == id.generation() && slot.state != State::Free).then_some(slot)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.index().at())?;
        (slot.generation == id.generation() && slot.state != State::Free).then_some(slot)
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

    /// The id of a live slot.
    #[inline]
    pub(crate) fn id(&self, index: RequestIndex) -> RequestId {
        RequestId::new(index, self.slots[index.at()].generation)
    }

    /// The slots that exist, live or not.
    pub(crate) fn indices(&self) -> impl Iterator<Item = RequestIndex> + use<> {
        (0..self.slots.len() as u32).map(RequestIndex)
    }

    /// Those that have not been freed.
    pub(crate) fn each_live(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.state != State::Free)
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

    #[test]
    fn the_pipeline_waits_for_the_fragment_that_left_depth_ago() {
        let mut under_way = UnderWay::default();
        for id in 1..=40 {
            let gate = under_way.gate(RailId(3), 4);
            assert_eq!(gate.0, u64::max(4, id - 1) - 4 + u64::from(id > 4));
            under_way.note(RailId(3), MsgId(id));
        }
        assert_eq!(
            under_way.gate(RailId(2), 4),
            MsgId(0),
            "another rail counts for itself"
        );
    }
}
