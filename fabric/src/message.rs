//! The `Message` contract: messages to known peers, each delivered at most once per rail.
//!
//! ```text
//!   open(address, incarnation) ─► PeerIndex
//!   send(peer, head, body)     ─► MsgId n        accepted: the rail keeps the bytes
//!   handed_over(peer)          ─► MsgId w        all n <= w were taken by the peer's upper layer
//!   reclaim(peer, f)                             the messages above w, oldest first, given back
//!   poll(budget, sink)         ─► sink.message / sink.completed
//! ```
//!
//! The promises, which the PML (and the Portals NI) build on:
//!
//! 1. *Once.* A rail never delivers one accepted message twice, and never delivers one that was not sent.
//! 2. *No order.* Messages of one peer may arrive in any order; the layer above restores it by its own
//!    sequence.
//! 3. *Watermark.* [`Message::handed_over`] only grows. What is at or below it was taken by the peer's upper
//!    layer; what is above it may or may not have arrived, and the rail keeps its bytes until it knows, so
//!    that [`Message::reclaim`] can give them back for another rail to carry.
//! 4. *Bytes.* `send` has taken what it needs when it returns: a borrowed body was copied. Only a
//!    [`Body::Region`] is kept by reference, and its owner is kept alive with it. A `put` may read a
//!    [`Body::Loan`] until the operation has ended.
//! 5. *Back-pressure.* [`Refused::Full`] is a value: nothing was taken, try again after a poll.
//! 6. *Failure.* A dead peer or link is an event of [`Rail::event`], told once; never a panic. After it,
//!    `send` answers [`Refused::PeerDown`], and one-sided operations still open complete with an error, the
//!    memory that was exposed to the peer alone is withdrawn, and its messages wait for [`Message::reclaim`].
//!    A peer that is down comes back by [`EventKind::PeerUp`](crate::event::EventKind::PeerUp): a fresh
//!    connection, over which nothing of the old one arrives. It has a number, the event's
//!    [`life`](crate::event::RailEvent::life), that both ends tell alike and that is later than those of all
//!    connections before it which either end had told to be up.
//! 7. *One-sided.* Each operation carries an [`OpId`] chosen by its initiator; a target executes one id of
//!    one incarnation once. Where the hardware cannot tell whether it did, the operation ends as
//!    [`OpError::Indeterminate`].
//! 8. *Quiescence.* After [`Message::withdraw`] has returned, no later one-sided access to that memory
//!    succeeds, and one that was under way while it was withdrawn is reported to its initiator as
//!    [`OpError::Withdrawn`], never as success. After a [`Message::fence`] completes, nothing posted before
//!    it touches memory any more.
//!    [`Message::end_now`] is the same for [`Message::put_now`], and does not wait for one under way.
//! 9. *Strangers.* A rail that has names for callers ([`Message::caller`]) loses nothing of a sender that the
//!    receiver has not opened yet: it waits, or goes again, until the receiver opens the sender, for as long
//!    as the rail bears with any peer that does not answer. Meanwhile [`Message::stranger`] tells the
//!    receiver that somebody calls, and who.

use std::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian};

use crate::addr::RailAddress;
use crate::error::RailError;
use crate::memory::{ConstLoan, MutLoan, RegionSlice, Room, SharedBytes, View};
use crate::rail::Rail;

/// A peer as one rail numbers it: dense, from zero, in the order of `open`. Valid on that rail only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerIndex(pub u32);

impl PeerIndex {
    /// Returns the index into a table of peers.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which life of a process: random, new at every start, so that a restarted peer is never taken for the old
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u64);

/// Identifies a sender that calls before it was opened: constant for that incarnation of it, and opaque. It
/// is valid only on the rail that returned it, and proves nothing: any process that can send here can use any
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller(pub u128);

/// The number of a message among those a rail accepted for one peer: 1, 2, 3, … Zero means "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MsgId(pub u64);

/// Names one one-sided operation of one initiator; never used twice within an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId(pub u64);

/// The key of exposed memory: random, so that it cannot be guessed; revoked by [`Message::withdraw`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u64);

/// Exposed memory as a peer names it, in the form in which it travels in a header (24 bytes, little endian).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Remote {
    /// The key under which the memory was exposed.
    pub key: little_endian::U64,
    /// The start of the memory, as the exposing rail counts: opaque to all others.
    pub address: little_endian::U64,
    /// The length of the memory in bytes.
    pub length: little_endian::U64,
}
const _: () = assert!(size_of::<Remote>() == 24);

impl Remote {
    /// The part `[offset, offset + length)` of this memory, or `None` when it is not inside.
    pub fn part(&self, offset: u64, length: u64) -> Option<Self> {
        let end = offset.checked_add(length)?;
        if end > self.length.get() {
            return None;
        }
        Some(Self {
            key: self.key,
            address: self.address.get().checked_add(offset)?.into(),
            length: length.into(),
        })
    }
}

/// The body of a message, after its head.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// The message is nothing but its head.
    Empty,
    /// Plain bytes, copied before `send` returns (the field's "inline" or buffered-copy send).
    Bytes(&'a [u8]),
    /// Borrowed user memory in one piece, copied before `send` returns; of a put, read until it has ended.
    Loan(ConstLoan),
    /// Borrowed user memory in several pieces, gathered before `send` returns;
    /// at most [`Limits::parts`](crate::caps::Limits::parts) of them.
    Parts(&'a [ConstLoan]),
    /// Memory in one piece that others may write, copied before `send` returns.
    Shared(SharedBytes<'a>),
    /// A slice of an owned region: may be kept by reference until the message is handed over.
    Region(&'a RegionSlice),
}

impl Body<'_> {
    /// Length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        match self {
            Body::Empty => 0,
            Body::Bytes(bytes) => bytes.len(),
            Body::Loan(loan) => loan.len(),
            Body::Parts(parts) => parts.iter().map(ConstLoan::len).sum(),
            Body::Shared(bytes) => bytes.len(),
            Body::Region(slice) => slice.len(),
        }
    }

    /// Whether there is nothing after the head.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `each` with its pieces, one after the other.
    #[inline(always)]
    pub fn for_each_part(&self, mut each: impl FnMut(SharedBytes<'_>)) {
        match self {
            Body::Empty => {}
            Body::Bytes(bytes) => each(SharedBytes::of(bytes)),
            Body::Loan(loan) => each(loan.as_shared()),
            Body::Parts(parts) => parts.iter().for_each(|part| each(part.as_shared())),
            Body::Shared(bytes) => each(*bytes),
            Body::Region(slice) => each(slice.as_shared()),
        }
    }

    /// Returns its bytes, if they lie in one piece.
    #[inline]
    pub fn in_one_piece(&self) -> Option<SharedBytes<'_>> {
        match self {
            Body::Empty | Body::Parts(_) => None,
            Body::Bytes(bytes) => Some(SharedBytes::of(bytes)),
            Body::Loan(loan) => Some(loan.as_shared()),
            Body::Shared(bytes) => Some(*bytes),
            Body::Region(slice) => Some(slice.as_shared()),
        }
    }

    /// Copies all of it to the beginning of `to`, which is at least as long.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) {
        let mut at = 0;
        self.for_each_part(|part| at += part.copy_to(0, &mut to[at..]));
    }

    /// Returns a copy on the heap (not for the data path).
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(&mut bytes);
        bytes
    }
}

/// A message that arrived, in place: valid for the call that shows it, and only for that.
///
/// Its bytes lie in memory that the sender (or a device) may still be writing: copy, then check. It may lie
/// in several pieces; every accessor counts from the first byte of the head.
#[derive(Clone, Copy, Debug)]
pub struct Inbound<'a> {
    first: SharedBytes<'a>,
    rest: SharedBytes<'a>,
    /// What lies behind these two: nothing, as a rule.
    more: &'a [SharedBytes<'a>],
}

impl<'a> Inbound<'a> {
    /// A message in one piece.
    #[inline]
    pub fn whole(bytes: SharedBytes<'a>) -> Self {
        Self {
            first: bytes,
            rest: SharedBytes::EMPTY,
            more: &[],
        }
    }

    /// A message whose bytes are `first`, then `rest`.
    #[inline]
    pub fn split(first: SharedBytes<'a>, rest: SharedBytes<'a>) -> Self {
        Self {
            first,
            rest,
            more: &[],
        }
    }

    /// A message whose bytes are these pieces, one after the other: the frames that it came in.
    ///
    /// ```
    /// use doorbell_fabric::memory::SharedBytes;
    /// use doorbell_fabric::message::Inbound;
    /// let pieces = [&b"one"[..], b"two", b"three"].map(SharedBytes::of);
    /// let message = Inbound::in_pieces(&pieces);
    /// assert_eq!((message.len(), message.read::<4>(4)), (11, Some(*b"woth")));
    /// ```
    #[inline]
    pub fn in_pieces(pieces: &'a [SharedBytes<'a>]) -> Self {
        let piece = |i: usize| pieces.get(i).copied().unwrap_or(SharedBytes::EMPTY);
        Self {
            first: piece(0),
            rest: piece(1),
            more: pieces.get(2..).unwrap_or(&[]),
        }
    }

    /// Head and body together, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        let more: usize = self.more.iter().map(SharedBytes::len).sum();
        self.first.len() + self.rest.len() + more
    }

    /// Whether it has no byte at all.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `N` bytes from offset `at` to a private array, once; `None` when the message is too short.
    #[inline]
    pub fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        match self.first.read(at) {
            Some(bytes) => Some(bytes),
            None => self.read_across(at),
        }
    }

    // By value, as everything rare that is done with one: so it need not lie in memory where nothing rare
    // happens.
    #[cold]
    fn read_across<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        if self.len() < at.checked_add(N)? {
            return None;
        }
        let mut bytes = [0; N];
        self.copy_to(at, &mut bytes);
        Some(bytes)
    }

    /// Copies from offset `at` into `to`; returns how many bytes there were.
    #[inline]
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> usize {
        let near = self.first.copy_to(at, to);
        let at_rest = (at + near).saturating_sub(self.first.len());
        let done = match to.get_mut(near..) {
            Some(left) if !left.is_empty() => near + self.rest.copy_to(at_rest, left),
            _ => near,
        };
        if self.more.is_empty() {
            return done;
        }
        done + self.copy_more(at + done, |at, bytes| {
            bytes.copy_to(0, to.get_mut(done + at..).unwrap_or(&mut []))
        })
    }

    /// Calls `copy` with what lies behind the first two pieces, from offset `at` of the message on, each with
    /// how much went before it, until it takes less than it is given; returns how much it took.
    #[inline(never)]
    fn copy_more(&self, at: usize, mut copy: impl FnMut(usize, SharedBytes<'a>) -> usize) -> usize {
        let mut skip = at.saturating_sub(self.first.len() + self.rest.len());
        let mut done = 0;
        for piece in self.more {
            let bytes = piece.skip(skip);
            skip = skip.saturating_sub(piece.len());
            let taken = copy(done, bytes);
            done += taken;
            if taken < bytes.len() {
                break;
            }
        }
        done
    }

    /// Returns everything from offset `at` on, if it lies in one piece.
    ///
    /// ```
    /// use doorbell_fabric::memory::SharedBytes;
    /// use doorbell_fabric::message::Inbound;
    /// let message = Inbound::split(SharedBytes::of(b"head"), SharedBytes::of(b"body"));
    /// assert_eq!(message.in_one_piece(5).map(|bytes| bytes.to_vec()), Some(b"ody".to_vec()));
    /// assert!(message.in_one_piece(3).is_none());
    /// ```
    #[inline]
    pub fn in_one_piece(&self, at: usize) -> Option<SharedBytes<'a>> {
        let near = self.first.len();
        if at >= near && self.more.is_empty() {
            return Some(self.rest.skip(at - near));
        }
        (self.len() == near).then(|| self.first.skip(at))
    }

    /// Copies from offset `at` into borrowed memory, starting at its offset `into_at`; returns the bytes
    /// copied, which end where the first of the two does.
    #[inline(always)]
    pub fn copy_to_loan(&self, at: usize, into: &MutLoan, into_at: usize) -> usize {
        let near = into.write_shared(into_at, self.first.skip(at));
        if self.rest.is_empty() {
            return near;
        }
        let at_rest = (at + near).saturating_sub(self.first.len());
        let done = near + into.write_shared(into_at + near, self.rest.skip(at_rest));
        if self.more.is_empty() {
            return done;
        }
        done + self.copy_more(at + done, |at, bytes| {
            into.write_shared(into_at + done + at, bytes)
        })
    }

    /// Copies like [`Inbound::copy_to_loan`], into a region, and at most `most` bytes.
    #[inline]
    pub fn copy_to_region(&self, at: usize, into: &RegionSlice, into_at: usize, most: usize) -> usize {
        let near = into.write_shared(into_at, self.first.skip(at).take(most));
        let at_rest = (at + near).saturating_sub(self.first.len());
        let done = near + into.write_shared(into_at + near, self.rest.skip(at_rest).take(most - near));
        if self.more.is_empty() {
            return done;
        }
        done + self.copy_more(at + done, |at, bytes| {
            into.write_shared(into_at + done + at, bytes.take(most - done - at))
        })
    }
}

/// Why a call took nothing. A value, not an error: the layer above decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no room now: try again after a poll.
    Full,
    /// The peer was reported down, or was never opened.
    PeerDown,
    /// The message is longer than [`Limits::message`](crate::caps::Limits::message), or has too many parts.
    TooLong,
    /// The capabilities do not offer this.
    Unsupported,
    /// The memory named is not exposed, not to this access, or the range is not inside it.
    BadMemory,
}

/// How a one-sided operation or a fence ended when it did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpError {
    /// The target refused: unknown or revoked key, range outside, access not allowed. Nothing was touched.
    Denied,
    /// The target withdrew the memory during the operation: local bytes are not to be used.
    Withdrawn,
    /// The peer or the rail went down before the target executed it.
    NotDone,
    /// The peer or the rail went down, and it is unknown whether the target executed it.
    Indeterminate,
    /// The operating system or device refused; the number is its error code.
    System(i32),
}

/// What a peer may do with exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A peer may get only.
    Read,
    /// A peer may put only.
    Write,
    /// Get, put and atomics.
    ReadWrite,
}

impl Access {
    /// Whether `self` allows everything that `wanted` needs.
    #[inline]
    pub fn allows(self, wanted: Access) -> bool {
        self == wanted || self == Access::ReadWrite
    }
}

/// Memory to be exposed to one-sided access.
#[derive(Clone, Debug)]
pub enum Exposure {
    /// An owned region's slice: kept alive until withdrawn.
    Region(RegionSlice),
    /// Borrowed memory, to be read by peers.
    Read(ConstLoan),
    /// Borrowed memory, to be written by peers through this process.
    Write(MutLoan),
}

/// Where a get puts what it reads. It stays with the operation until that has ended.
///
/// A loan has to be made by code that promises that the memory stays ([`MutLoan::new`]); a region's slice
/// promises it by itself:
///
/// ```
/// use doorbell_fabric::memory::Region;
/// use doorbell_fabric::message::Landing;
/// let landing = Landing::Region(Region::new(16)?.slice(4, 8).unwrap());
/// assert_eq!(landing.part(6, 8).len(), 2);
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
///
/// ```compile_fail,E0308
/// use doorbell_fabric::memory::Region;
/// use doorbell_fabric::message::Landing;
/// let landing = Landing::Loan(Region::new(16)?.whole()); // a slice is not a loan, nor can one be had of it
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
#[derive(Clone, Debug)]
pub enum Landing {
    /// Memory that is borrowed.
    Loan(MutLoan),
    /// A slice of an owned region, which is kept alive.
    Region(RegionSlice),
}

impl Landing {
    /// A landing without room.
    pub const EMPTY: Self = Self::Loan(MutLoan::EMPTY);

    /// Returns the number of bytes that fit.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Loan(loan) => loan.len(),
            Self::Region(slice) => slice.len(),
        }
    }

    /// Whether nothing fits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part from `at`, at most `length` bytes; shorter (or empty) at the end.
    #[inline]
    pub fn part(&self, at: usize, length: usize) -> Self {
        match self {
            Self::Loan(loan) => Self::Loan(loan.part(at, length)),
            Self::Region(slice) => {
                let at = at.min(slice.len());
                slice
                    .slice(at, length.min(slice.len() - at))
                    .map_or(Self::EMPTY, Self::Region)
            }
        }
    }

    /// Returns the bytes as room for a message, as long as it is borrowed.
    #[inline(always)]
    pub fn room(&self) -> Room<'_> {
        match self {
            Self::Loan(loan) => Room::from(*loan),
            Self::Region(slice) => slice.room(),
        }
    }

    /// The address: for a driver's system call or device, which keeps the landing while it fills it.
    #[inline]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        match self {
            Self::Loan(loan) => loan.as_mut_ptr(),
            Self::Region(slice) => slice.as_mut_ptr(),
        }
    }

    /// Writes `bytes` at offset `at`; returns how many fitted.
    #[inline]
    pub fn write_shared(&self, at: usize, bytes: SharedBytes<'_>) -> usize {
        match self {
            Self::Loan(loan) => loan.write_shared(at, bytes),
            Self::Region(slice) => slice.write_shared(at, bytes),
        }
    }

    /// Writes plain bytes at offset `at`; returns how many fitted.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) -> usize {
        self.write_shared(at, SharedBytes::of(bytes))
    }
}

/// A 64-bit atomic at the target, naturally aligned; the operation completes with the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds an operand, wrapping.
    Add(u64),
    /// Bitwise and with an operand.
    And(u64),
    /// Bitwise or with an operand.
    Or(u64),
    /// Bitwise exclusive or.
    Xor(u64),
    /// Replaces the value.
    Swap(u64),
    /// Replace when equal to `expected`.
    CompareSwap {
        /// The value that must be there.
        expected: u64,
        /// The value to store.
        desired: u64,
    },
}

/// What a fence covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceScope {
    /// Everything posted to one peer.
    Peer(PeerIndex),
    /// Everything posted on the rail.
    Rail,
}

/// How long one [`Message::look`] may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Looks, at least one.
    pub looks: u32,
    /// What lies between two of them.
    pub between: Between,
    /// Whether the caller will probably answer: a rail may then make ready to send while it still receives.
    pub answer: bool,
}

/// What lies between two looks of a [`Watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// This many pause instructions.
    Pauses(u32),
    /// The core is given away, since the process that the caller waits for may be waiting for it. A rail
    /// without such a loop returns after its first looks.
    Yield,
}

/// What [`Message::look`] saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing of this peer is there.
    Nothing,
    /// There may be something: poll.
    Other,
    /// The requested message was taken: this many bytes followed its head, and are in the room.
    Taken(usize),
}

/// The state of the path to a peer as a rail knows it, for reports of what waits for what, and for
/// `doorbell why`. Unmeasured values are `None` or zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailReport {
    /// Whether our link is up.
    pub link: Option<bool>,
    /// How long ago something of the peer arrived here.
    pub heard_ago: Option<Duration>,
    /// How long ago the peer last acknowledged something new.
    pub acked_ago: Option<Duration>,
    /// How long the oldest message that is not acknowledged has been waiting.
    pub waiting: Option<Duration>,
    /// The wire's sequence number of its oldest frame.
    pub oldest: Option<u32>,
    /// Frames in flight, or kept for retransmission.
    pub unacknowledged: u64,
    /// Time-outs in a row.
    pub retries: u32,
    /// The smoothed round trip, in nanoseconds.
    pub round_trip_ns: Option<u64>,
    /// Frames received under a peer's identity that no peer can have sent; `None` where frames carry nothing
    /// that detects forgeries.
    pub impossible: Option<u64>,
    /// The longest message that is sent at once rather than read by the peer, where the rail chooses that by
    /// what its copies take.
    pub at_once: Option<usize>,
}

/// Where a poll delivers. Implemented by the PML and the Portals NI; statically dispatched.
pub trait Arrivals {
    /// A message of `peer`. After the return, its bytes belong to the rail again.
    fn message(&mut self, peer: PeerIndex, inbound: Inbound<'_>);

    /// One of our operations or fences ended; an atomic brings the old value, everything else brings zero.
    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>);
}

/// A rail that carries messages.
pub trait Message: Rail {
    /// Opens a peer by its published address. Sends nothing by itself and does not wait: a rail that needs a
    /// connection establishes it at first use, inside `send` or `progress`. Opening the same address and
    /// incarnation again returns the same index.
    ///
    /// # Errors
    /// When the address is not one of this rail's, or the peer cannot be reached, with the reason.
    fn open(&mut self, address: &RailAddress, incarnation: Incarnation) -> Result<PeerIndex, RailError>;

    /// The next sender that this rail has not opened and that has sent a connection request (promise 9), for
    /// an owner that opens peers on demand: it looks up the name ([`Message::caller`]) and opens the peer.
    /// Other owners need not call this.
    ///
    /// Each sender is reported once, and again only when it repeats its request later; the owner remembers
    /// those it cannot open yet. Of very many at once some are reported at their next request. Expect unknown
    /// names at any time: of a former incarnation, of another job, or invalid ones; ignore them.
    ///
    /// The call costs next to nothing while there is no such sender: once a pass is not too often. An owner
    /// calls it until it returns `None` at its last poll before it sleeps; a sender that was received but not
    /// reported does not wake it.
    fn stranger(&mut self) -> Option<Caller> {
        None
    }

    /// The value by which [`Message::stranger`] reports the peer at this published address, in this
    /// incarnation. `None` if it reports none, or could not be called from there: a rail without such names,
    /// or an address of another kind. Not for the data path: it may compute a hash. An owner with many peers
    /// keeps the values.
    fn caller(&self, address: &RailAddress, incarnation: Incarnation) -> Option<Caller> {
        let _ = (address, incarnation);
        None
    }

    /// The caller waits for the watermark of the next message that it sends to `peer`, if that is longer
    /// than a frame: the peer is to report it as soon as it has taken the message, without a later call of
    /// its own. By default without effect, for rails whose watermark waits for no call of the peer's.
    fn await_next(&mut self, peer: PeerIndex) {
        let _ = peer;
    }

    /// Accepts `head` followed by `body` for `peer`. Nothing is visible to the peer before the next
    /// [`Message::flush`] or poll at the latest; rails without a doorbell send at once.
    ///
    /// # Errors
    /// [`Refused`] when nothing was taken.
    fn send(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused>;

    /// Rings one doorbell for all messages accepted since the last one.
    fn flush(&mut self);

    /// Flushes like [`Message::flush`] after a message for `peer` was accepted, by a caller that may have
    /// more for it: the doorbell may wait for those that follow, never for time. The first after a poll has
    /// left when the call returns; whatever waits leaves with the next flush or poll, or when the rail is
    /// armed. Whether everything has left.
    #[inline]
    fn flush_soon(&mut self, peer: PeerIndex) -> bool {
        let _ = peer;
        self.flush();
        true
    }

    /// Flushes like [`Message::flush`] after a message for `peer` was accepted, by a caller that may not call
    /// again for long: whether the device has everything accepted for that peer. If not,
    /// [`Message::holds_back`] returns for how long some of it may be held back.
    #[inline]
    fn flush_for(&mut self, peer: PeerIndex) -> bool {
        let _ = peer;
        self.flush();
        true
    }

    /// Whether messages that were accepted for `peer` (`None`: for any) have not been handed to the device,
    /// and leave only in later calls: a connection that is being checked, a window that is closed, a queue
    /// without room. A rail that hands over what it accepts never holds anything back. Not for the path of a
    /// message that left at once.
    #[inline]
    fn holds_back(&mut self, peer: Option<PeerIndex>) -> bool {
        let _ = peer;
        false
    }

    /// Shows up to `budget` arrivals and completions to `sink`; returns how many. Reads no clock.
    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize;

    /// The fast-path receive of the usNIC BTL, for a caller that waits for one message and knows its head:
    /// takes the next message of `peer` if it begins with the 16 bytes `head` (as two words in memory order)
    /// and the bytes after them fit `room`, to which they are copied. It reads nothing else and serves no
    /// other peer, so it never replaces `poll`. It polls repeatedly as `watch` specifies, in the rail's own
    /// tightest loop. A rail without such a fast path returns [`Look::Other`], which means no more than
    /// "poll".
    #[inline]
    fn look(&mut self, peer: PeerIndex, head: [u64; 2], room: Room<'_>, watch: Watch) -> Look {
        let _ = (peer, head, room, watch);
        Look::Other
    }

    /// Checks up to `looks` times whether anything has arrived from any peer, in a loop of the rail's own:
    /// for a caller that waits and polls next in any case. `false`: all checks were made, and nothing was
    /// seen. A rail without such a loop, or with other work to do in a poll, returns `true` at once, which
    /// means no more than "poll".
    #[inline]
    fn linger(&mut self, looks: u32) -> bool {
        let _ = looks;
        true
    }

    /// The watermark of `peer`: every message up to it was taken by the peer's upper layer.
    fn handed_over(&mut self, peer: PeerIndex) -> MsgId;

    /// Returns the number of the last message that was accepted for `peer`. By default 0, for rails within a
    /// host: what they accept lies in the peer's memory, and arrives without further calls of this process.
    fn accepted(&self, peer: PeerIndex) -> MsgId {
        let _ = peer;
        MsgId(0)
    }

    /// Returns, oldest first, every message accepted for `peer` and not known to be handed over, and forgets
    /// it. For a peer or rail that went down, when another rail is to carry the messages.
    fn reclaim(&mut self, peer: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8]));

    /// Gives up the connection to a peer, as if the rail itself had found it broken: promise 6 about a peer
    /// that is down holds when this returns, except for the event. For an owner that has learned of a failure
    /// from another rail.
    fn abandon(&mut self, peer: PeerIndex);

    /// Forgets a peer, for an owner whose peers come and go: gives up the connection as
    /// [`Message::abandon`] does, also to a peer that is down already; drops what was accepted for it,
    /// without giving it back; and releases everything that the rail keeps of it. One-sided operations that
    /// are still open complete with an error.
    ///
    /// The index names nothing from then on, and a later [`Message::open`] may give it out again. One that
    /// opens the same address and incarnation makes a fresh connection: no message and no event of the old
    /// one is shown under it, at either end. The peer finds the old one down, as one that was closed, and has
    /// to forget it in turn; what the fresh one brings waits for that, as what a stranger sends does
    /// (promise 9).
    ///
    /// By default the connection is given up, and the index stays taken: for rails whose peers are those of a
    /// job from the start to the end.
    fn forget(&mut self, peer: PeerIndex) {
        self.abandon(peer);
    }

    /// Requests a reconnect to a peer that is down. Sends a few frames and does not wait; the owner decides
    /// how often. A rail also answers a peer's request. Without effect for a peer that is up, or has ended
    /// for good.
    fn revive(&mut self, peer: PeerIndex);

    /// Reports that the peer's process has just responded over another path. A rail that waits for a response
    /// then knows that its own path is at fault, and may report it down as soon as
    /// [`DownReason::Silent`](crate::event::DownReason::Silent) is certain. Without effect where the rail
    /// detects it by itself.
    fn proved_alive(&mut self, peer: PeerIndex) {
        let _ = peer;
    }

    /// Returns the state of the path to a peer. For explanations, not for the data path.
    fn report(&self, peer: PeerIndex) -> RailReport {
        let _ = peer;
        RailReport::default()
    }

    /// Whether a message of `length` bytes, head included, had better be exposed and read by this peer than
    /// sent at once. A rail within the host may decide it by what its copies take
    /// ([`Limits::get_from`](crate::caps::Limits::get_from)).
    #[inline]
    fn prefers_get(&mut self, peer: PeerIndex, length: usize) -> bool {
        let _ = peer;
        length > self.capabilities().limits.eager
    }

    /// Exposes memory to one peer, or to all for `None`, under a fresh random key.
    ///
    /// # Errors
    /// [`Refused::Unsupported`] when the rail has no such access; [`Refused::Full`] when its key table is
    /// full.
    fn expose(&mut self, memory: Exposure, access: Access, to: Option<PeerIndex>) -> Result<Remote, Refused>;

    /// Revokes a key at once; see promise 8. An unknown key is ignored.
    fn withdraw(&mut self, key: RemoteKey);

    /// Reads `from` at the peer into `into` (lengths equal). Ends in [`Arrivals::completed`].
    ///
    /// # Errors
    /// [`Refused`] when nothing was started.
    fn get(&mut self, peer: PeerIndex, op: OpId, from: &Remote, into: Landing) -> Result<(), Refused>;

    /// Shows memory that the peer has exposed, of a region of its own, where it lies, mapped to be read. It
    /// stays readable for as long as the view lives, whatever becomes of the key and of the peer; that the
    /// peer does not write it meanwhile is the agreement of the two owners. `None`, and nothing done, where
    /// that is not possible (by default: never), or the key does not allow it; [`Message::get`] then decides.
    fn view(&mut self, peer: PeerIndex, from: &Remote) -> Option<View> {
        let _ = (peer, from);
        None
    }

    /// Exposes memory of a region to one peer that writes and reads it by [`Message::put_now`] and
    /// [`Message::get_now`], and by nothing else, until [`Message::end_now`]. `None` where that is not
    /// possible (by default: never).
    fn expose_now(&mut self, memory: &RegionSlice, to: PeerIndex) -> Option<Remote> {
        let _ = (memory, to);
        None
    }

    /// Writes bytes, in this call, into memory that the peer has exposed so (lengths equal): with a
    /// processor's stores, without any help of the peer's. Returns whether they are there: before every
    /// message that is sent to the peer later. After `false` nothing was written: this is not possible here,
    /// or the key is revoked.
    fn put_now(&mut self, peer: PeerIndex, bytes: SharedBytes<'_>, to: &Remote) -> bool {
        let _ = (peer, bytes, to);
        false
    }

    /// Reads memory that the peer has exposed so, in this call (lengths equal). Returns whether the
    /// bytes are there, and are those of memory that was exposed until the last was read; otherwise the room
    /// may have been written.
    fn get_now(&mut self, peer: PeerIndex, from: &Remote, into: Room<'_>) -> bool {
        let _ = (peer, from, into);
        false
    }

    /// Revokes a key of [`Message::expose_now`]: no [`Message::put_now`] that begins later writes. Returns
    /// whether the memory is quiet: none that began before is still under way, or its process has ended.
    /// While the answer is `false` the memory may still be written: call it again. A key that is unknown is
    /// quiet.
    fn end_now(&mut self, key: RemoteKey) -> bool {
        let _ = key;
        true
    }

    /// Writes `from` to the peer's memory `to` (lengths equal). Ends in [`Arrivals::completed`], when the
    /// bytes are at the target. A [`Body::Loan`] and a [`Body::Region`] may be read until then; any other
    /// body is copied before this returns.
    ///
    /// # Errors
    /// [`Refused`] when nothing was started.
    fn put(&mut self, peer: PeerIndex, op: OpId, from: Body<'_>, to: &Remote) -> Result<(), Refused>;

    /// A 64-bit atomic on the peer's memory `at` (eight bytes). Ends in [`Arrivals::completed`] with the old
    /// value.
    ///
    /// # Errors
    /// [`Refused`] when nothing was started.
    fn atomic(&mut self, peer: PeerIndex, op: OpId, at: &Remote, what: AtomicOp) -> Result<(), Refused>;

    /// Requests proof that nothing posted before, in this scope, touches memory any more. Ends in
    /// [`Arrivals::completed`].
    ///
    /// # Errors
    /// [`Refused`] when nothing was started.
    fn fence(&mut self, scope: FenceScope, op: OpId) -> Result<(), Refused>;
}
