//! The `Datagram` contract: one queue pair with its completion queues, owned by one thread (the usNIC BTL's
//! channels).
//!
//! Frames of at most the MTU. They may be lost, duplicated, reordered and corrupted; the BTL makes messages
//! of them. The two halves can be used at the same time, so that an acknowledgement is posted while the
//! received frame that causes it is still being looked at.
//!
//! ```text
//!   reserve(channel, n) ─► Slots      room for n frames: posting cannot fail any more
//!   slots.post(peer, head, body)      "accepted" promises nothing more
//!   doorbell()                        one for the whole batch
//!   reaped(channel)                   up to where the device has let go
//!
//!   poll(channel, budget) ─► n        n frames are visible in place, 0 .. n
//!   frame(i)                          shared bytes: copy the header, then check it
//!   keep(i)                           swaps in a fresh buffer and hands this one out
//!   (next poll)                       the buffers of the last one go back to the ring
//! ```

use crate::addr::RailAddress;
use crate::error::RailError;
use crate::memory::SharedBytes;
use crate::message::{Body, Incarnation, PeerIndex, Refused};
use crate::rail::Rail;

/// The two channels of the usNIC BTL (reference: vic, section 6): short urgent frames, and everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// ACKs and tiny fragments; short queues.
    Priority,
    /// Chunks, and every retransmission.
    Data,
}

impl Channel {
    /// Returns its index in a table of both.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Priority => 0,
            Self::Data => 1,
        }
    }
}

/// The number of a frame among those posted on one channel: 1, 2, 3, … Zero means "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u64);

/// A received frame, in place, for the length of one poll.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The sender's index, if its address belongs to an opened peer. Never proof of identity.
    pub from: Option<PeerIndex>,
    /// The bytes of the frame, without the network's own headers. A device may still write them.
    pub bytes: SharedBytes<'a>,
}

/// Frames of one size to one peer, of which the last may be shorter: each is a head of its own and the next
/// bytes of one body, which stays where it is until the device takes it.
///
/// ```
/// use doorbell_fabric::datagram::Run;
/// use doorbell_fabric::memory::SharedBytes;
/// // The first head is a byte longer than the others, and its frame has a byte less of the body.
/// let run = Run::new(b"Aa", b"bc", 1, 4, SharedBytes::of(b"0123456")).unwrap();
/// let frame = |i| {
///     let (head, body) = run.frame(i);
///     [head.to_vec(), body.to_vec()].concat()
/// };
/// assert_eq!((run.len(), frame(0), frame(1)), (3, b"Aa01".to_vec(), b"b234".to_vec()));
/// assert_eq!(frame(2), b"c56");
/// // Nothing is left for a fourth frame.
/// assert!(Run::new(b"Aa", b"bcd", 1, 4, SharedBytes::of(b"0123456")).is_none());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    first: &'a [u8],
    others: &'a [u8],
    head: usize,
    size: usize,
    body: SharedBytes<'a>,
}

impl<'a> Run<'a> {
    /// Frames of `size` bytes that take all of `body`: `first` is the head of the first frame, `others` has
    /// those of the others, `head` bytes each. `None` where these contradict each other: a head leaves no
    /// room in its frame, or the body needs another number of frames.
    #[inline]
    pub fn new(
        first: &'a [u8],
        others: &'a [u8],
        head: usize,
        size: usize,
        body: SharedBytes<'a>,
    ) -> Option<Self> {
        if head == 0 || size <= head || size <= first.len() || !others.len().is_multiple_of(head) {
            return None;
        }
        let left = body.len().saturating_sub(size - first.len());
        let fits = !body.is_empty() && left.div_ceil(size - head) == others.len() / head;
        fits.then_some(Self {
            first,
            others,
            head,
            size,
            body,
        })
    }

    /// Number of frames, one at least.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        1 + self.others.len() / self.head
    }

    /// Bytes of each frame but the last.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Head and body of the `i`th frame; both are empty behind the last.
    #[inline]
    pub fn frame(&self, i: usize) -> (&'a [u8], SharedBytes<'a>) {
        let near = self.size - self.first.len();
        let Some(before) = i.checked_sub(1) else {
            return (self.first, self.body.take(near));
        };
        let at = before * self.head;
        let head = self.others.get(at..at + self.head).unwrap_or(&[]);
        let each = self.size - self.head;
        (head, self.body.skip(near + before * each).take(each))
    }
}

/// The sending half.
pub trait Transmit {
    /// Reserves room for up to `n` frames on `channel`; returns how many may be posted now without failing (0
    /// to `n`). The room is held until it is used or until the next `reserve` on the same channel, whatever
    /// happens to the device meanwhile: frames posted while the link is down, or after the queues were
    /// recreated, may be lost like any frame, but are not refused. The reservation ends with the rail.
    fn reserve(&mut self, channel: Channel, n: usize) -> usize;

    /// Posts one frame into reserved room. `head` and `body` together are at most the MTU
    /// ([`Limits::message`](crate::caps::Limits::message)).
    ///
    /// # Errors
    /// [`Refused::Full`] without reserved room, [`Refused::TooLong`] above the MTU, [`Refused::PeerDown`] for
    /// an unknown peer: all three are mistakes of the caller. Nothing else can fail here.
    fn post(
        &mut self,
        channel: Channel,
        peer: PeerIndex,
        head: &[u8],
        body: Body<'_>,
    ) -> Result<FrameId, Refused>;

    /// Posts all frames of a run into reserved room, as [`Transmit::post`] does one by one; a driver that can
    /// hands them to the device at once, out of the memory they are in. Returns the number of the last.
    ///
    /// # Errors
    /// Those of [`Transmit::post`]: mistakes of the caller.
    #[inline]
    fn post_run(&mut self, channel: Channel, peer: PeerIndex, run: &Run<'_>) -> Result<FrameId, Refused> {
        let mut last = FrameId(0);
        for i in 0..run.len() {
            let (head, body) = run.frame(i);
            last = self.post(channel, peer, head, Body::Shared(body))?;
        }
        Ok(last)
    }

    /// Notifies the device of all frames posted since the last doorbell.
    fn doorbell(&mut self);

    /// Whether frames wait for room in the device although the doorbell was rung, and only a further call
    /// sends them: a socket whose buffer is full. Always false for queues that a device empties by itself.
    #[inline]
    fn is_backed_up(&mut self) -> bool {
        false
    }

    /// The last frame whose memory the device has released: no segment up to it is still in use.
    fn reaped(&mut self, channel: Channel) -> FrameId;
}

/// The receiving half.
pub trait Receive {
    /// A received buffer taken out of the ring by [`Receive::keep`]; dropping it returns it.
    type Kept;

    /// Returns the buffers of the last poll to the ring, then shows up to `budget` new frames; returns how
    /// many.
    fn poll(&mut self, channel: Channel, budget: usize) -> usize;

    /// Has the next polls look at everything that a frame may be in, also at what had none for long. By
    /// default without effect, for rails whose polls look at everything.
    fn look_everywhere(&mut self) {}

    /// The `i`th frame of the last poll of `channel`; `None` beyond its count or when it was kept.
    fn frame(&self, channel: Channel, i: usize) -> Option<Frame<'_>>;

    /// Takes the `i`th frame's buffer out of the ring and swaps in a fresh one.
    ///
    /// # Errors
    /// [`Refused::Full`] when there is no fresh buffer: the frame is then copied or dropped by the caller.
    fn keep(&mut self, channel: Channel, i: usize) -> Result<Self::Kept, Refused>;
}

/// A rail that carries datagrams.
pub trait Datagram: Rail {
    /// The sending half.
    type Tx: Transmit;
    /// The receiving half.
    type Rx: Receive;

    /// Makes a peer known by its published address; connected sockets are made here, for peers in use. A peer
    /// is an address, whatever lives there: opening one again, in any incarnation, returns the same index.
    ///
    /// # Errors
    /// When the address is not one of this rail's or cannot be reached, with the reason.
    fn open(&mut self, address: &RailAddress, incarnation: Incarnation) -> Result<PeerIndex, RailError>;

    /// Forgets a peer: releases everything that the driver keeps of it, its sockets too. Frames that were
    /// posted for it may be lost, and those posted from then on are lost or refused. A later
    /// [`Datagram::open`] may give the index out again; events about the peer that were not read are dropped.
    /// An unknown index is ignored.
    ///
    /// By default the peer is kept: for drivers whose peers are those of a job from the start to the end.
    fn forget(&mut self, peer: PeerIndex) {
        let _ = peer;
    }

    /// Returns both halves at once.
    fn split(&mut self) -> (&mut Self::Tx, &mut Self::Rx);
}
