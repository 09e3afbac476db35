//! The cache line of a request: what every message needs.

use doorbell_fabric::memory::MutLoan;
use doorbell_matching::EntryHandle;

use crate::args::Status;
use crate::fsm::{Event, State, is_listed};
use crate::rank::Rank;
use crate::wire::flag;

/// The flags of a slot. A slot without any takes the fast path.
pub(crate) mod mark {
    /// Queue it when it ends.
    pub(crate) const NOTIFY: u16 = 1;
    /// Its record holds something that has to be released.
    pub(crate) const RECORD: u16 = 2;
    /// It is a transfer into a multi-receive.
    pub(crate) const CHILD: u16 = 4;
    /// It is never tested, and frees itself.
    pub(crate) const DETACHED: u16 = 8;
    /// Its owner aborted it.
    pub(crate) const ABORTED: u16 = 16;
    /// It is a synchronous send.
    pub(crate) const SYNC: u16 = 32;
    /// Its room is in the record, not in the slot: a layout, or a region, which only its slice may be reached
    /// through.
    pub(crate) const APART: u16 = 64;
    /// It is a multi-receive.
    pub(crate) const MULTI: u16 = 128;
    /// Its message has immediate data, which are in the record.
    pub(crate) const DATA: u16 = 256;
    /// It is an operation on a peer's window that returns no bytes.
    pub(crate) const OPERATION: u16 = 512;
    /// It is one that returns bytes.
    pub(crate) const FETCH: u16 = 1024;
    /// It is a transfer into one of our windows.
    pub(crate) const LANDING: u16 = 2048;
    /// It is what a peer's operation returns.
    pub(crate) const REPLY: u16 = 4096;
    /// It is a send that ends when the peer's process has taken all of it.
    pub(crate) const DELIVERED: u16 = 8192;
    /// It is a send of memory that its receiver may read where it lies.
    pub(crate) const LENT: u16 = 16384;
    /// Any of those of operations.
    pub(crate) const RMA: u16 = OPERATION | FETCH | LANDING | REPLY;
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
    /// Its receiver has closed the context.
    Rejected,
    /// The target of an operation has not done it: see [`OperationError`](crate::OperationError).
    UnknownKey,
    NoAccess,
    OutOfRange,
    Unmapped,
    Invalid,
    WindowClosed,
    Damaged,
}

impl Outcome {
    /// The event that ends a request in this way.
    #[inline]
    const fn event(self) -> Event {
        match self {
            Self::Ok | Self::Truncated | Self::Corrupt => Event::Completed,
            Self::Cancelled => Event::Cancelled,
            Self::PeerLost => Event::PeerLost,
            Self::SendAborted => Event::SendAborted,
            Self::Rejected => Event::Rejected,
            Self::UnknownKey
            | Self::NoAccess
            | Self::OutOfRange
            | Self::Unmapped
            | Self::Invalid
            | Self::WindowClosed
            | Self::Damaged => Event::Denied,
        }
    }
}

/// The cache line of a request.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    generation: u32,
    /// Changed by [`Slot::turn`] alone.
    state: State,
    outcome: Outcome,
    marks: u16,
    /// The other side; in a free slot, the number of the next free one.
    peer: Rank,
    context: u16,
    tag: u64,
    /// Length of the message.
    length: u64,
    /// Receive into one borrowed piece: the room.
    room: MutLoan,
    /// Receive: the entry that is linked.
    entry: Option<EntryHandle>,
}
const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    /// A free slot, in front of another one.
    pub(super) const fn free(next: u32) -> Self {
        Self {
            generation: 1,
            state: State::Free,
            outcome: Outcome::Ok,
            marks: 0,
            peer: Rank(next),
            context: 0,
            tag: 0,
            length: 0,
            room: MutLoan::EMPTY,
            entry: None,
        }
    }

    /// The number of the free slot behind this one.
    #[inline(always)]
    pub(super) const fn next_free(&self) -> u32 {
        self.peer.0
    }

    /// Takes a free slot. Returns its generation.
    #[inline(always)]
    pub(super) fn take(&mut self) -> u32 {
        self.outcome = Outcome::Ok;
        self.generation
    }

    /// Gives a slot back, in front of another free one; ids of this generation are stale from now on.
    #[inline(always)]
    pub(super) fn give(&mut self, next: u32) {
        self.generation = self.generation.wrapping_add(1);
        self.turn(Event::Freed);
        self.marks = 0;
        self.entry = None;
        self.peer = Rank(next);
    }

    /// Returns how often the slot was used.
    #[inline(always)]
    pub(super) const fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns where the request is on its way.
    #[inline(always)]
    pub(crate) const fn state(&self) -> State {
        self.state
    }

    /// An event of the request: the only way from one state to another.
    #[inline(always)]
    pub(crate) fn turn(&mut self, by: Event) {
        debug_assert!(
            is_listed(self.state, by),
            "{:?} has no transition from {:?}",
            by,
            self.state
        );
        self.state = by.leads_to();
    }

    /// A send begins.
    pub(crate) fn send(
        &mut self,
        by: Event,
        marks: u16,
        peer: Rank,
        (context, tag): (u16, u64),
        length: u64,
    ) {
        self.turn(by);
        self.marks = marks;
        self.peer = peer;
        self.context = context;
        self.tag = tag;
        self.length = length;
    }

    /// An operation begins that returns this many bytes, with their room, or with none where that is in the
    /// record.
    pub(crate) fn fetch(
        &mut self,
        marks: u16,
        peer: Rank,
        (context, request): (u16, u64),
        length: u64,
        room: MutLoan,
    ) {
        self.turn(Event::Requested);
        self.marks = marks;
        self.context = context;
        self.room = room;
        self.matched(peer, request, length);
    }

    /// A receive begins, with its room, or with none where that is in the record.
    #[inline(always)]
    pub(crate) fn post(&mut self, marks: u16, context: u16, tag: u64, room: MutLoan) {
        self.turn(Event::Posted);
        self.marks = marks;
        self.context = context;
        self.tag = tag;
        self.room = room;
    }

    /// A transfer into a part of a multi-receive begins.
    pub(crate) fn post_part(&mut self, marks: u16, context: u16, room: MutLoan) {
        self.turn(Event::Parted);
        self.marks = marks;
        self.context = context;
        self.room = room;
    }

    /// Whether one of these flags is set, of [`mark`].
    #[inline(always)]
    pub(crate) const fn is(&self, marks: u16) -> bool {
        self.marks & marks != 0
    }

    /// Sets these flags, of [`mark`].
    #[inline]
    pub(crate) fn set(&mut self, marks: u16) {
        self.marks |= marks;
    }

    /// All flags together.
    #[inline(always)]
    pub(crate) const fn marks(&self) -> u16 {
        self.marks
    }

    /// The other side.
    #[inline(always)]
    pub(crate) const fn peer(&self) -> Rank {
        self.peer
    }

    /// The flags that its messages have.
    pub(crate) const fn wire_flags(&self) -> u8 {
        match self.marks & (mark::OPERATION | mark::REPLY) {
            0 => 0,
            mark::REPLY => flag::REPLY,
            _ => flag::OPERATION,
        }
    }

    /// Notes the other side, which is known now.
    pub(crate) fn set_peer(&mut self, peer: Rank) {
        self.peer = peer;
    }

    /// The context of the request.
    #[inline]
    pub(crate) const fn context(&self) -> u16 {
        self.context
    }

    /// Notes the context of the message.
    pub(crate) fn set_context(&mut self, context: u16) {
        self.context = context;
    }

    /// The tag: of the message, or that a receive waits for.
    #[inline]
    pub(crate) const fn tag(&self) -> u64 {
        self.tag
    }

    /// Length of the message.
    #[inline]
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// The message of a receive is known.
    #[inline(always)]
    pub(crate) fn matched(&mut self, peer: Rank, tag: u64, length: u64) {
        self.peer = peer;
        self.tag = tag;
        self.length = length;
    }

    /// Returns how it ended, or is to end.
    #[inline]
    pub(crate) const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The request ends. Returns its flags.
    #[inline(always)]
    pub(crate) fn end(&mut self, outcome: Outcome) -> u16 {
        self.turn(outcome.event());
        self.outcome = outcome;
        self.marks
    }

    /// Notes how a multi-receive is to end, whose buffer has been filled up to here.
    pub(crate) fn end_later(&mut self, outcome: Outcome, filled: u64) {
        self.outcome = outcome;
        self.length = filled;
    }

    /// Whether it ended well, and nothing but its slot has to be released.
    #[inline(always)]
    pub(crate) fn is_well_ended(&self) -> bool {
        self.state == State::Done
            && self.marks & !(mark::NOTIFY | mark::DATA | mark::OPERATION | mark::FETCH) == 0
            && self.outcome == Outcome::Ok
    }

    /// The status of its message, without the message's data; `sources` are the bits of a context that are
    /// the sender's endpoint.
    #[inline(always)]
    pub(crate) const fn status(&self, sources: u16) -> Status {
        Status {
            source: self.peer,
            endpoint: (self.context & sources) as u8,
            tag: self.tag,
            length: self.length,
            data: None,
        }
    }

    /// The room, where it is one borrowed piece.
    #[inline(always)]
    pub(crate) const fn room(&self) -> &MutLoan {
        &self.room
    }

    /// The room of a plain receive, if a message of this length fits.
    #[inline(always)]
    pub(crate) fn plain_room(&self, length: usize) -> Option<&MutLoan> {
        (self.marks & !mark::NOTIFY == 0 && length <= self.room.len()).then_some(&self.room)
    }

    /// Notes the entry of matching that is linked for it.
    #[inline(always)]
    pub(crate) fn link(&mut self, entry: EntryHandle) {
        self.entry = Some(entry);
    }

    /// The entry of matching that is linked for it.
    #[inline]
    pub(crate) const fn entry(&self) -> Option<EntryHandle> {
        self.entry
    }

    /// Forgets the entry of matching, which is not linked any more, or is to be unlinked now.
    pub(crate) fn unlink(&mut self) -> Option<EntryHandle> {
        self.entry.take()
    }
}
