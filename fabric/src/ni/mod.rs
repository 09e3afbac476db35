//! The contract of a Portals 4 network interface: what active messages are built on, in software
//! (`am/portals`) or hardware (`drivers/portals`).
//!
//! ```text
//!   initiator                                  target
//!   md_bind ─► MdHandle                        pt_alloc ─► index;  append(index, entry, list) ─► EntryHandle
//!   put(&Put) ────────────────────────────────► PRIORITY list, then OVERFLOW: the first entry that matches
//!   SEND, ACK  ◄─ eq_get / ct_get              PUT, AUTO_UNLINK, … ◄─ eq_get / ct_get
//! ```
//!
//! One thread owns an interface. No call waits: without space a call returns [`NiError::Full`], and a long
//! operation ends by an event or a count. Data moves only while [`Ni::poll`] is called, on both sides.
//!
//! reference: portals, sections 3 to 11; the numbers and names are the public header's.

mod error;
mod event;
mod in_place;
pub mod layout;
mod ops;
mod types;

use std::os::fd::BorrowedFd;

pub use error::NiError;
pub use event::{Count, EqGet, Event, EventKind, NiFail};
pub use in_place::{ArrivedPut, TakePut};
pub use ops::{Atomic, FetchAtomic, Get, Piece, Put, Target, Triggered};
pub use types::{
    ANY, AckReq, AtomicKind, CtHandle, Datatype, Entry, EntryHandle, EntryOptions, EqHandle, Kind, List, Md,
    MdHandle, MdOptions, Memory, NID_ANY, NiLimits, PID_ANY, PID_MAX, Process, PtOptions, Register, Search,
};

use crate::memory::SharedBytes;
use crate::message::Body;
use crate::time::Time;

/// A process that can no longer be reached, reported once by [`Ni::lost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The process that is lost.
    pub process: Process,
    /// Why it is lost.
    pub reason: crate::event::DownReason,
}

/// A network interface of one kind, owned by one thread.
pub trait Ni {
    /// Returns the kind of interface.
    fn kind(&self) -> Kind;

    /// Returns the limits that hold exactly.
    fn limits(&self) -> &NiLimits;

    /// This process, as its kind names it.
    fn id(&self) -> Process;

    /// The user that its operations are of.
    fn uid(&self) -> u32;

    /// A status register.
    fn status(&self, register: Register) -> u64;

    /// Shows up to `budget` arrivals to the interface; returns how many. Reads no clock.
    fn poll(&mut self, budget: usize) -> usize;

    /// Polls like [`Ni::poll`], and shows puts into a table entry that request no acknowledgement to `taker`
    /// first, where they lie in the rail's memory. One that it takes is over: no entry is looked for, nothing
    /// is copied, and there is no event and no count. All others go as they would without it. Shown are only
    /// puts whose bytes lie in one piece, into enabled table entries whose event queue holds no event, so
    /// that the order of puts and events stays what it is. An interface may show none, as hardware does.
    #[inline]
    fn poll_in_place(&mut self, budget: usize, taker: &mut impl TakePut) -> usize
    where
        Self: Sized,
    {
        let _ = taker;
        self.poll(budget)
    }

    /// Checks up to `looks` times whether anything has arrived, for a caller that polls next in any case; as
    /// [`Message::linger`](crate::message::Message::linger). `false`: all checks were made, and nothing was
    /// seen.
    #[inline]
    fn linger(&mut self, looks: u32) -> bool {
        let _ = looks;
        true
    }

    /// Housekeeping that needs the time: links, losses, deadlines. Bounded; returns the work done.
    fn progress(&mut self, now: Time) -> usize;

    /// Returns when [`Ni::progress`] has something to do next, or `None`.
    fn next_deadline(&self) -> Option<Time>;

    /// Prepares to sleep: every descriptor that becomes readable when there is work is shown to `each`.
    /// Whether there is work already: then do not sleep. [`Ni::disarm`] ends it.
    fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool;

    /// Ends what [`Ni::arm`] prepared.
    fn disarm(&mut self);

    /// Returns the next lost process. Its outstanding operations have ended as [`NiFail::Undeliverable`]
    /// before.
    fn lost(&mut self) -> Option<Lost>;

    /// Allocates a portal table entry: a given one, or any for `None`.
    ///
    /// # Errors
    /// [`NiError::PtInUse`], [`NiError::PtFull`], [`NiError::PtEqNeeded`], [`NiError::ArgInvalid`].
    fn pt_alloc(
        &mut self,
        options: PtOptions,
        eq: Option<EqHandle>,
        index: Option<u32>,
    ) -> Result<u32, NiError>;

    /// Frees it.
    ///
    /// # Errors
    /// [`NiError::PtInUse`] with entries or headers left.
    fn pt_free(&mut self, index: u32) -> Result<(), NiError>;

    /// Takes new requests again.
    ///
    /// # Errors
    /// [`NiError::ArgInvalid`].
    fn pt_enable(&mut self, index: u32) -> Result<(), NiError>;

    /// Disables the entry: new requests fail with [`NiFail::PtDisabled`]. Returns whether those in progress
    /// are over, puts included that a peer has written by itself and that are still to be counted; until they
    /// are, call it again after a poll.
    ///
    /// # Errors
    /// [`NiError::ArgInvalid`].
    fn pt_disable(&mut self, index: u32) -> Result<bool, NiError>;

    /// Creates a queue of `count` events, with extra space for one PT_DISABLED of each table entry.
    ///
    /// # Errors
    /// [`NiError::NoSpace`], [`NiError::ArgInvalid`].
    fn eq_alloc(&mut self, count: usize) -> Result<EqHandle, NiError>;

    /// Frees it.
    ///
    /// # Errors
    /// [`NiError::ArgInvalid`].
    fn eq_free(&mut self, eq: EqHandle) -> Result<(), NiError>;

    /// Takes the oldest event. Does not poll.
    ///
    /// # Errors
    /// [`NiError::ArgInvalid`].
    fn eq_get(&mut self, eq: EqHandle) -> Result<EqGet, NiError>;

    /// Returns how many events these queues hold, for owners that poll several in turn: empty ones need not
    /// be polled. [`usize::MAX`] if that is unknown without taking one.
    #[inline]
    fn eq_waiting(&self, queues: [EqHandle; 3]) -> [usize; 3] {
        queues.map(|_| usize::MAX)
    }

    /// A counting event, at zero.
    ///
    /// # Errors
    /// [`NiError::NoSpace`].
    fn ct_alloc(&mut self) -> Result<CtHandle, NiError>;

    /// Frees it, and discards what waits for it.
    ///
    /// # Errors
    /// [`NiError::ArgInvalid`].
    fn ct_free(&mut self, ct: CtHandle) -> Result<(), NiError>;

    /// Returns the value of a counting event. Does not poll.
    ///
    /// # Errors
    /// [`NiError::ArgInvalid`].
    fn ct_get(&self, ct: CtHandle) -> Result<Count, NiError>;

    /// Sets it.
    ///
    /// # Errors
    /// [`NiError::ArgInvalid`].
    fn ct_set(&mut self, ct: CtHandle, to: Count) -> Result<(), NiError>;

    /// Adds to it; only one of the two numbers may be other than zero.
    ///
    /// # Errors
    /// [`NiError::ArgInvalid`].
    fn ct_inc(&mut self, ct: CtHandle, by: Count) -> Result<(), NiError>;

    /// Discards what waits for it.
    ///
    /// # Errors
    /// [`NiError::ArgInvalid`].
    fn ct_cancel_triggered(&mut self, ct: CtHandle) -> Result<(), NiError>;

    /// Makes memory of this process known as a source and destination.
    ///
    /// # Errors
    /// [`NiError::NoSpace`], [`NiError::ArgInvalid`].
    fn md_bind(&mut self, md: Md) -> Result<MdHandle, NiError>;

    /// Forgets it. Operations that have begun keep what they need.
    ///
    /// # Errors
    /// [`NiError::ArgInvalid`].
    fn md_release(&mut self, md: MdHandle) -> Result<(), NiError>;

    /// Appends an entry to a list. Match entries on a matching interface; on the other the fields of matching
    /// are passed over.
    ///
    /// # Errors
    /// [`NiError::NoSpace`], [`NiError::ListTooLong`], [`NiError::ArgInvalid`].
    fn append(
        &mut self,
        pt_index: u32,
        entry: Entry,
        list: List,
        user_ptr: u64,
    ) -> Result<EntryHandle, NiError>;

    /// Takes an entry off its list.
    ///
    /// # Errors
    /// [`NiError::InUse`] while operations or unexpected headers refer to it, or a peer that wrote its memory
    /// by itself has not reported its last put yet: no peer writes there any more, but puts may be still to
    /// be counted. Call it again after a poll. [`NiError::ArgInvalid`] when it is gone.
    fn unlink(&mut self, entry: EntryHandle) -> Result<(), NiError>;

    /// Searches the unexpected headers. Ends by an event of the table entry's queue, which carries
    /// `user_ptr`.
    ///
    /// # Errors
    /// [`NiError::ArgInvalid`].
    fn search(&mut self, pt_index: u32, entry: &Entry, how: Search, user_ptr: u64) -> Result<(), NiError>;

    /// Starts a put.
    ///
    /// # Errors
    /// [`NiError::Full`], [`NiError::ArgInvalid`], [`NiError::NoInit`]. A target that cannot be reached is
    /// not an error of the call: the operation ends with [`NiFail::Undeliverable`].
    fn put(&mut self, put: &Put) -> Result<(), NiError>;

    /// Puts `words`, as little-endian bytes, and `body` behind them, all of which is copied before the call
    /// returns: like [`Ni::put`] out of a descriptor that has no events, with no acknowledgement, to offset
    /// and match bits of `target`. `None`: the interface does not do this for this put now, or at all;
    /// nothing was sent, and [`Ni::put`] returns why not.
    #[inline]
    fn put_bytes(
        &mut self,
        target: &Target,
        hdr_data: u64,
        words: &[u64],
        body: Body<'_>,
    ) -> Option<Result<(), NiError>> {
        let _ = (target, hdr_data, words, body);
        None
    }

    /// Whether [`Ni::place`] would probably write `length` bytes for this target now.
    #[inline]
    fn can_place(&mut self, target: &Target, length: u64) -> bool {
        let _ = (target, length);
        false
    }

    /// Writes bytes straight into the target's memory, before the call returns, where that has offered it
    /// ([`Ni::offer`]): they are there when any later put arrives. It is a put without acknowledgement into
    /// an entry that neither counts nor posts puts, and there is no event of it at the initiator either.
    /// `false`: nothing was written.
    #[inline]
    fn place(&mut self, target: &Target, bytes: SharedBytes<'_>) -> bool {
        let _ = (target, bytes);
        false
    }

    /// Suggests that a process could use [`Ni::place`] for an entry here, because it has just sent `length`
    /// bytes that it could have placed. An interface that cannot do this, or not for that many, ignores it.
    #[inline]
    fn offer(&mut self, to: Process, entry: EntryHandle, length: u64) {
        let _ = (to, entry, length);
    }

    /// Starts a get.
    ///
    /// # Errors
    /// Those of [`Ni::put`].
    fn get(&mut self, get: &Get) -> Result<(), NiError>;

    /// Starts an atomic.
    ///
    /// # Errors
    /// Those of [`Ni::put`].
    fn atomic(&mut self, atomic: &Atomic) -> Result<(), NiError>;

    /// Starts a fetching atomic or a swap.
    ///
    /// # Errors
    /// Those of [`Ni::put`].
    fn fetch_atomic(&mut self, fetch: &FetchAtomic) -> Result<(), NiError>;

    /// Does it when the counting event reaches the threshold; at once, if it has. The handle is that of the
    /// entry of [`Triggered::Append`].
    ///
    /// # Errors
    /// [`NiError::NoSpace`] when `max_triggered_ops` wait for this counting event, and those of the operation
    /// itself, which are found now and not when it fires.
    fn trigger(
        &mut self,
        ct: CtHandle,
        threshold: u64,
        what: Triggered,
    ) -> Result<Option<EntryHandle>, NiError>;

    /// Rings one doorbell for all operations that were started.
    fn flush(&mut self);
}
