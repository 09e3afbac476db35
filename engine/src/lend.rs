//! Messages that are handed over without a copy: lent memory at the sender, in place at the receiver.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use doorbell_fabric::memory::{Piece, SharedBytes, View};
use doorbell_job::error::Error;
use doorbell_job::types::{Source, Status, Tag};
use doorbell_pml::RequestId;

use crate::pieces::LentCounts;
use crate::progress::Envelope;
use crate::scope;
use crate::world::{USER, World};

/// Memory to write a message into that is then handed over: made by [`World::lend`].
///
/// Its bytes are a slice, `[u8]`. They are what an earlier message in the same piece has left; a new piece is
/// zero. Dropping it gives the piece back.
#[must_use = "lent memory that is dropped is given back unsent"]
pub struct Lent<'w> {
    world: &'w World,
    /// There, until it is sent.
    piece: Option<Piece>,
    length: usize,
}

impl Lent<'_> {
    /// Makes it shorter: only the first `length` bytes are sent. Without effect where it is no longer.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Sends it to rank `to`, and gives it away: nothing can write it any more, until its receiver has
    /// released it and the piece is lent again.
    ///
    /// A receiver on this host that calls [`World::recv_in_place`] reads it where it is; any other receive
    /// copies it, as it copies every message. To other hosts, where the receiver cannot map the memory, and
    /// for messages below some KiB, it is an ordinary send of these bytes. The call returns when no further
    /// call of this rank is needed: over shared memory at once, elsewhere when the bytes have been taken, as
    /// [`World::send`] does.
    ///
    /// # Errors
    /// An unknown or lost rank; [`Error::Timeout`], after which the message stays queued, and each later call
    /// pushes it on. In dedicated mode, that the rank is lost is not reported: the piece is counted as
    /// [`abandoned`](LentCounts::abandoned).
    pub fn send(mut self, to: u32, tag: u64) -> Result<(), Error> {
        let (world, length) = (self.world, self.length);
        if to >= world.size() {
            let size = world.size();
            return Err(Error::NoSuchRank { rank: to, size });
        }
        let Some(region) = self.piece.take().map(Piece::into_region) else {
            return Err(Error::Cancelled);
        };
        let envelope = Envelope::to(USER, to, tag, false);
        let sent = match region.slice(0, length) {
            Some(slice) => world.engine().send_lent(envelope, slice),
            None => Err(Error::Cancelled), // it is never longer than its piece
        };
        match sent {
            Ok(Some(token)) => {
                world.pieces().sent(token, region);
                world.hand_to_peer(token, envelope)
            }
            Ok(None) => {
                world.pieces().give_back_region(region);
                world.hand_over(Some(to), world.limit(), &|| envelope.awaited_send());
                Ok(())
            }
            Err(error) => {
                world.pieces().give_back_region(region);
                Err(error)
            }
        }
    }
}

impl Deref for Lent<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.piece {
            Some(piece) => &piece[..self.length],
            None => &[],
        }
    }
}

impl DerefMut for Lent<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.piece {
            Some(piece) => &mut piece[..self.length],
            None => &mut [],
        }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            self.world.pieces().give_back(piece);
        }
    }
}

impl fmt::Debug for Lent<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Lent({} bytes)", self.length)
    }
}

/// A message that was received in place: read where its sender wrote it, or in a buffer of its own where that
/// is not possible. Made by [`World::recv_in_place`].
///
/// The memory is the sender's, mapped to be read alone. A sender that uses this library does not write it
/// before this value was dropped, which gives the memory back; another process could, so the bytes are read
/// by copies ([`SharedBytes`]), of any part and as often as wanted. Code that trusts its peers and wants a
/// slice has [`SharedBytes::as_slice`], which is unsafe for that reason.
///
/// It stays readable when the sender has ended or is lost.
#[must_use = "a message that is dropped is gone"]
pub struct InPlace<'w> {
    world: &'w World,
    status: Status,
    memory: Memory,
}

enum Memory {
    Sender(RequestId, View),
    Own(Box<[u8]>),
}

impl InPlace<'_> {
    /// Returns its sender, tag and length.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        self.status.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.status.len == 0
    }

    /// Whether it lies where its sender wrote it; otherwise it was copied.
    pub fn is_shared(&self) -> bool {
        matches!(self.memory, Memory::Sender(..))
    }

    /// Returns the bytes, in either case.
    #[inline]
    pub fn bytes(&self) -> SharedBytes<'_> {
        match &self.memory {
            Memory::Sender(_, view) => view.bytes(),
            Memory::Own(bytes) => SharedBytes::of(bytes),
        }
    }

    /// Copies from offset `at` into `to`; returns how many bytes there were.
    #[inline]
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> usize {
        self.bytes().copy_to(at, to)
    }
}

impl Drop for InPlace<'_> {
    fn drop(&mut self) {
        if let Memory::Sender(id, _) = self.memory {
            self.world.pieces().release(self.world.engine(), id);
        }
    }
}

impl fmt::Debug for InPlace<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_shared() { "shared" } else { "copied" };
        write!(out, "InPlace({:?}, {place})", self.status)
    }
}

/// Receives a message in place, waiting for at most `limit`.
pub(crate) fn recv_in_place(
    world: &World,
    envelope: Envelope,
    limit: Duration,
) -> Result<InPlace<'_>, Error> {
    if let Some(rank) = envelope.named_peer().filter(|rank| *rank >= world.size()) {
        let size = world.size();
        return Err(Error::NoSuchRank { rank, size });
    }
    world.pieces().release_left(world.engine());
    let claimed = world
        .engine()
        .claim(envelope, limit, &mut |waiting| world.complain(waiting))?;
    let (message, status) = (claimed.message, Status::from(claimed.envelope));
    let taken = world.engine().call(move |core| core.pml.take_in_place(message));
    let memory = match taken? {
        Some((id, view)) => {
            world.pieces().hold();
            Memory::Sender(id, view)
        }
        None => {
            let mut bytes = vec![0; status.len].into_boxed_slice();
            scope::recv_claimed(world, message, envelope, &mut bytes, limit)?;
            Memory::Own(bytes)
        }
    };
    Ok(InPlace {
        world,
        status,
        memory,
    })
}

impl World {
    /// Lends memory of `length` bytes, to write a message into it that is handed over without a copy, by
    /// [`Lent::send`].
    ///
    /// A receiver on this host that receives it in place ([`World::recv_in_place`]) reads it where it was
    /// written, whatever its length; when that drops it, the piece is there to be lent again. A rank has at
    /// most `lend.pieces` of them, of powers of two bytes each, which it keeps. A receiver that is lost, or
    /// keeps a message, costs one of them ([`World::lent`] counts them), and nothing else.
    ///
    /// ```
    /// # let world = doorbell::init()?;
    /// let mut image = world.lend(1 << 20)?;
    /// image[..5].copy_from_slice(b"pixel"); // a plain slice, until it is sent
    /// image.send(0, 7)?;
    /// let image = world.recv_in_place(0, 7)?;
    /// assert_eq!((image.len(), image.bytes().read(0)), (1 << 20, Some(*b"pixel")));
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// What was sent cannot be written:
    ///
    /// ```compile_fail,E0382
    /// # let world = doorbell::init()?;
    /// let mut image = world.lend(1 << 20)?;
    /// image.send(0, 7)?;
    /// image[0] = 1; // given away
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Full`] when all pieces are out: make progress, or raise `lend.pieces`. The system's error
    /// when memory runs out.
    pub fn lend(&self, length: usize) -> Result<Lent<'_>, Error> {
        self.here()?;
        let piece = self.pieces().lend(self.engine(), length)?;
        Ok(Lent {
            world: self,
            piece: Some(piece),
            length,
        })
    }

    /// Receives a matching message in place: where its sender lies on this host and lent the memory
    /// ([`World::lend`]), or sends out of a [`Region`](crate::Region), without a copy, whatever its length;
    /// any other message into a buffer of its own. A receive that was posted before gets it first.
    ///
    /// Dropping the message gives the memory back to its sender, which waits for that if it is to be lent
    /// again.
    ///
    /// # Errors
    /// An unknown or lost rank; [`Error::Timeout`].
    pub fn recv_in_place(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<InPlace<'_>, Error> {
        let envelope = Envelope::from(USER, from.into(), tag.into());
        recv_in_place(self, envelope, self.limit())
    }

    /// Returns how many pieces of lent memory there are, and where.
    pub fn lent(&self) -> LentCounts {
        self.pieces().counts(self.engine())
    }
}
