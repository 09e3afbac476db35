//! The arguments of sends and receives: payloads, targets, envelopes.

use doorbell_fabric::memory::{ConstLoan, MutLoan, RegionSlice};

use crate::error::LostReason;
use crate::rank::{Rank, Source};
use crate::request::RequestId;

/// `count` blocks of `block` bytes, their starts `stride` bytes apart, in the memory `base`.
#[derive(Clone, Copy, Debug)]
pub struct Strided<L> {
    /// The memory, from the first block's first byte.
    pub base: L,
    /// Bytes of one block.
    pub block: usize,
    /// From the start of one block to the next, in bytes; at least `block`.
    pub stride: usize,
    /// Number of blocks.
    pub count: usize,
}

/// The bytes of a message to be sent. Loans stay with the PML until the request has ended.
#[derive(Clone, Debug)]
pub enum Payload {
    /// One piece of borrowed memory.
    Loan(ConstLoan),
    /// A slice of an owned region, which is kept alive.
    Region(RegionSlice),
    /// Several pieces of borrowed memory, sent one behind the other (an I/O vector).
    Parts(Box<[ConstLoan]>),
    /// Blocks at equal distances in borrowed memory.
    Strided(Strided<ConstLoan>),
}

/// The room for a message to be received. Loans stay with the PML until the request has ended.
#[derive(Clone, Debug)]
pub enum Target {
    /// One piece of borrowed memory.
    Loan(MutLoan),
    /// A slice of an owned region, which is kept alive.
    Region(RegionSlice),
    /// Several pieces of borrowed memory, filled one after the other. They must not overlap.
    Parts(Box<[MutLoan]>),
    /// Blocks at equal distances in borrowed memory.
    Strided(Strided<MutLoan>),
}

/// When a send is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SendMode {
    /// When the bytes have been taken: the memory may be written again.
    #[default]
    Standard,
    /// When the peer's process has taken all of it, matched or not: nothing more is needed of this process
    /// then. Over a rail within a host that is when the bytes have been taken.
    Delivered,
    /// Not before the message was matched with a receive.
    Synchronous,
    /// At once: what no rail takes now is copied, of all such messages to a peer together at most
    /// `inject_limit` bytes.
    Buffered,
    /// As in standard mode, where the memory is kept for its receiver to read where it lies
    /// ([`Pml::take_in_place`](crate::Pml::take_in_place)): then when that has released it. So it is
    /// announced to a peer of this host, however short, unless a copy takes less than that.
    Lent,
}

/// The arguments of a send.
#[derive(Clone, Debug)]
pub struct SendArgs {
    /// The destination; our own rank is allowed.
    pub to: Rank,
    /// The context (communicator): messages of one never match receives of another.
    pub context: u16,
    /// The tag, or match bits.
    pub tag: u64,
    /// The bytes to be sent.
    pub payload: Payload,
    /// When it is complete.
    pub mode: SendMode,
    /// Put the request on the completion queue when it ends. A send that answers [`Sent::Done`] is not
    /// queued.
    pub notify: bool,
}

/// The arguments of a receive.
#[derive(Clone, Debug)]
pub struct RecvArgs {
    /// The ranks whose messages match.
    pub from: Source,
    /// The context (communicator).
    pub context: u16,
    /// The tag that matches.
    pub tag: u64,
    /// Tag bits that may differ; 0 matches exactly `tag`, all ones match any tag.
    pub ignore: u64,
    /// The room for the message.
    pub target: Target,
    /// Put the request on the completion queue when it ends.
    pub notify: bool,
}

/// The arguments of a multi-receive: one buffer that takes many messages, one behind the other.
#[derive(Clone, Debug)]
pub struct MultiArgs {
    /// The ranks whose messages match.
    pub from: Source,
    /// The context (communicator).
    pub context: u16,
    /// The tag that matches.
    pub tag: u64,
    /// Tag bits that may differ.
    pub ignore: u64,
    /// The buffer; [`Target::Loan`] or [`Target::Region`].
    pub target: Target,
    /// The buffer is released when fewer bytes than this are left; at least 1.
    pub min_free: u64,
    /// Put the request on the completion queue when the buffer is released.
    pub notify: bool,
}

/// What became of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a pending send has to be waited for"]
pub enum Sent {
    /// Complete: the bytes were taken, there is no request.
    Done,
    /// It is under way.
    Pending(RequestId),
}

/// How a request ended when it succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Receive: the sender of the message. Send: its destination. Multi-receive: our own rank.
    pub source: Rank,
    /// The endpoint of the message's sender ([`PmlConfig::sources`](crate::PmlConfig::sources)); 0 where
    /// senders have none.
    pub endpoint: u8,
    /// The message's tag.
    pub tag: u64,
    /// The message's length. Multi-receive: bytes of the buffer that were filled.
    pub length: u64,
    /// Receive: the sender's immediate data ([`Pml::set_immediate`](crate::Pml::set_immediate)). Send: none.
    pub data: Option<u64>,
}

/// A message that a multi-receive buffer took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The multi-receive that took it.
    pub request: RequestId,
    /// Where in the buffer it lies.
    pub offset: u64,
    /// How many of its bytes lie there.
    pub delivered: u64,
    /// Its sender, its tag, its full length, its data. It is truncated when its length is more than
    /// `delivered`.
    pub status: Status,
    /// It arrived whole (up to truncation). False: its peer was lost or gave it up, or its checksum does not
    /// match; then the bytes mean nothing.
    pub intact: bool,
    /// The buffer is released with it: no other message of it follows. A buffer may also be released without
    /// such a message.
    pub last: bool,
}

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The sender of the message.
    pub source: Rank,
    /// The endpoint of the sender.
    pub endpoint: u8,
    /// The tag of the message.
    pub tag: u64,
    /// Its full length in bytes.
    pub length: u64,
    /// The sender's immediate data.
    pub data: Option<u64>,
}

/// A message taken out of matching by [`Pml::claim`](crate::Pml::claim): to be received or discarded by its
/// owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageId(pub(crate) u64);

impl MessageId {
    /// Converts it to a number, to pass through foreign interfaces.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Back from [`MessageId::to_bits`]. A number that names nothing is found out when it is used.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// A claimed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The name by which it is received or discarded.
    pub message: MessageId,
    /// What it is.
    pub envelope: Envelope,
}

/// Messages that were reported as sent when they were accepted, since their bytes had been copied, and whose
/// peer was lost before they left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostSends {
    /// The peer that was lost.
    pub rank: Rank,
    /// Why it is lost.
    pub reason: LostReason,
    /// The context of the messages.
    pub context: u16,
    /// How many messages.
    pub count: u32,
}

/// What [`Pml::abort`](crate::Pml::abort) could promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "after `Wait` the memory is still in use"]
pub enum Aborted {
    /// The request is gone and the PML never touches its memory again.
    Now,
    /// A rail may still write its memory: poll, then call `abort` again.
    Wait,
}
