//! Single-producer single-consumer ring of plain bytes, whose two ends are in different processes.
//!
//! ```text
//!   the producer's map (read-only for the consumer)         the consumer's map (read-only for the producer)
//!   ┌─────────────┬────────┬────────┬─   ─┬────────┐        ┌─────────────┐
//!   │ word 0: tail│ slot 0 │ slot 1 │  …  │ slot n │        │ word 0: head│
//!   └─────────────┴────────┴────────┴─   ─┴────────┘        └─────────────┘
//!   a slot: 8 bytes of length, then the payload
//! ```
//!
//! Every word has one writer, and it lies in a map that only its writer has writable; so a peer that dies
//! anywhere leaves nothing half done that the other side would have to repair.
//!
//! The peer is taken to be hostile all the same. Its index is copied once and believed only if it lies
//! between the value seen last and the furthest that an honest peer could have come; the length of a slot is
//! copied once and believed only if it fits the slot. Anything else is [`RingError::Corrupt`], and nothing
//! is read or written on its strength. This side's own index is a private field: the shared word is a copy
//! for the peer and is never read back. Payload bytes leave the ring only by copy ([`SharedSlice`]).
//!
//! ```
//! use doorbell_ring::shared::{self, Geometry};
//! let (mut producer, mut consumer) = shared::pair(Geometry::new(8, 56)?)?;
//! assert!(producer.push(b"ping")?);
//! let mut out = [0u8; 56];
//! assert_eq!(consumer.pop(&mut out)?, Some(4));
//! assert_eq!(&out[..4], b"ping");
//! # Ok::<(), doorbell_ring::RingError>(())
//! ```

use crate::error::{RingError, check_capacity};
use crate::pad::CACHE_LINE;
use crate::storage::{Access, Area};
use crate::sync::Ordering;
use crate::view::{SharedSlice, SharedSliceMut};

/// Bytes of an end's control block: its index in the first word, alone in a cache line.
pub const CONTROL_BYTES: usize = CACHE_LINE;

/// Bytes in front of each payload: the length, as a native-endian 64-bit word.
pub const SLOT_HEADER_BYTES: usize = 8;

/// What both ends have to agree on before they attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    slots: usize,
    payload: usize,
}

impl Geometry {
    /// `slots` slots of up to `payload` bytes each. With `payload` = 56 (plus any multiple of 64) slots
    /// begin on cache lines.
    ///
    /// # Errors
    /// [`RingError::Capacity`] unless `slots` is a power of two from 1 to 2²⁴; [`RingError::Size`] unless
    /// `payload` is a multiple of 8 from 8 to 2³⁰.
    pub fn new(slots: usize, payload: usize) -> Result<Self, RingError> {
        const WHAT: &str = "shared ring";
        const MOST: usize = 1 << 30;
        check_capacity(WHAT, slots, 1, 1 << 24)?;
        if payload == 0 || !payload.is_multiple_of(8) || payload > MOST {
            return Err(RingError::Size {
                what: WHAT,
                asked: payload,
                unit: 8,
                most: MOST,
            });
        }
        Ok(Self { slots, payload })
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Longest payload of a slot, in bytes.
    #[must_use]
    pub fn payload(&self) -> usize {
        self.payload
    }

    /// Bytes from one slot to the next.
    #[inline]
    #[must_use]
    pub fn stride(&self) -> usize {
        self.payload + SLOT_HEADER_BYTES
    }

    /// Bytes of all slots.
    #[must_use]
    pub fn slots_bytes(&self) -> usize {
        self.slots * self.stride()
    }
}

/// A ring within one process, in heap blocks of the exact size.
///
/// # Errors
/// [`RingError::NoMemory`].
#[cfg(not(loom))]
pub fn pair(geometry: Geometry) -> Result<(Producer, Consumer), RingError> {
    pair_in(
        geometry,
        Area::heap(CONTROL_BYTES)?,
        Area::heap(geometry.slots_bytes())?,
        Area::heap(CONTROL_BYTES)?,
    )
}

/// Both ends within one process, in the memory given: the producer's control block, the slots, the
/// consumer's control block.
///
/// # Errors
/// As [`Producer::attach`].
pub fn pair_in(
    geometry: Geometry,
    tail: Area,
    slots: Area,
    head: Area,
) -> Result<(Producer, Consumer), RingError> {
    // SAFETY: the two ends of one ring; the indices order what they do with the slots, and the control blocks
    // are words.
    let tail_far = unsafe { tail.alias() }.into_read_only();
    // SAFETY: as above.
    let slots_far = unsafe { slots.alias() }.into_read_only();
    // SAFETY: as above.
    let head_far = unsafe { head.alias() }.into_read_only();
    let producer = Producer::attach(geometry, tail, slots, head_far)?;
    let consumer = Consumer::attach(geometry, head, slots_far, tail_far)?;
    Ok((producer, consumer))
}

/// What both ends keep in private. In lines of their own: in tests and in one process the ends lie side by side,
/// and each is written at every turn.
#[repr(align(64))]
struct End {
    /// Control block of this side: written, never read.
    near: Area,
    /// Control block of the far side: read, never written.
    far: Area,
    slots: Area,
    mask: usize,
    stride: usize,
    payload: usize,
    /// This side's index: the truth.
    mine: u64,
    /// The far side's index as last copied and believed.
    seen: u64,
}

impl End {
    fn attach(
        geometry: Geometry,
        near: Area,
        slots: Area,
        far: Area,
        write: Access,
    ) -> Result<Self, RingError> {
        near.check(
            "shared ring, control block of this side",
            CONTROL_BYTES,
            8,
            Access::ReadWrite,
        )?;
        far.check(
            "shared ring, control block of the far side",
            CONTROL_BYTES,
            8,
            Access::ReadOnly,
        )?;
        slots.check("shared ring, slots", geometry.slots_bytes(), 8, write)?;
        let end = Self {
            near,
            far,
            slots,
            mask: geometry.slots - 1,
            stride: geometry.stride(),
            payload: geometry.payload,
            mine: 0,
            seen: 0,
        };
        end.publish();
        Ok(end)
    }

    /// Copies the far index, once; it must lie from the last one seen to `high`.
    #[inline(always)]
    fn look(&mut self, what: &'static str, high: u64) -> Result<(), RingError> {
        // SAFETY: `attach` checked size and alignment of the control block; the word is only read.
        let word = unsafe { self.far.word(0) };
        // Acquire pairs with the Release of the far side's `publish`. For the consumer: the slots up to tail were
        // written before tail said so; with Relaxed it could copy what was there a lap ago. For the producer: the
        // consumer has finished copying a slot before it is overwritten; with Relaxed it could be overwritten early.
        let value = word.load(Ordering::Acquire);
        if value.wrapping_sub(self.seen) > high.wrapping_sub(self.seen) {
            return Err(corrupt(what, value, self.seen, high));
        }
        self.seen = value;
        Ok(())
    }

    /// Tells the far side this side's index.
    #[inline(always)]
    fn publish(&self) {
        // SAFETY: `attach` checked size, alignment and access of the control block.
        let word = unsafe { self.near.word(0) };
        // Release pairs with the Acquire in the far side's `look`; see there.
        word.store(self.mine, Ordering::Release);
    }

    /// Offset of the slot of `index`: below the slots' size, whatever the index.
    #[inline(always)]
    fn offset(&self, index: u64) -> usize {
        (index as usize & self.mask) * self.stride
    }
}

#[cold]
fn corrupt(what: &'static str, value: u64, low: u64, high: u64) -> RingError {
    RingError::Corrupt {
        what,
        value,
        low,
        high,
    }
}

/// The end that puts bytes in.
pub struct Producer {
    end: End,
}

impl Producer {
    /// Attaches to a fresh ring: `near` is this side's control block (word 0: tail), `slots` the slots (both
    /// written here), `far` the consumer's control block (word 0: head; read only).
    ///
    /// # Errors
    /// [`RingError::TooSmall`], [`RingError::Misaligned`] (words need 8 bytes) or [`RingError::ReadOnly`].
    pub fn attach(geometry: Geometry, near: Area, slots: Area, far: Area) -> Result<Self, RingError> {
        Ok(Self {
            end: End::attach(geometry, near, slots, far, Access::ReadWrite)?,
        })
    }

    /// Copies `bytes` into the next slot; `false` if the ring is full.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] if `bytes` are longer than a slot; [`RingError::Corrupt`] if the consumer's
    /// index is impossible.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result<bool, RingError> {
        if bytes.len() > self.end.payload {
            return Err(too_long(bytes.len(), self.end.payload));
        }
        let mut room = self.reserve(1)?;
        match room.next_slot(bytes.len()) {
            Some(mut slot) => slot.copy_from(bytes),
            None => return Ok(false),
        };
        room.commit();
        Ok(true)
    }

    /// Free slots, by a fresh look at the consumer's index. May grow at any moment.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if that index is impossible.
    #[inline]
    pub fn free(&mut self) -> Result<usize, RingError> {
        // An honest consumer's head is at most tail.
        self.end.look("shared ring, consumer's index", self.end.mine)?;
        Ok(self.free_seen())
    }

    /// Claims up to `n` free slots, to be written in place and committed together; tells how many it got.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if the consumer's index is impossible.
    #[inline]
    pub fn reserve(&mut self, n: usize) -> Result<Reserved<'_>, RingError> {
        let mut free = self.free_seen();
        if free < n {
            free = self.free()?;
        }
        Ok(Reserved {
            end: &mut self.end,
            room: free.min(n),
            begun: 0,
        })
    }

    #[inline(always)]
    fn free_seen(&self) -> usize {
        self.end.mask + 1 - self.end.mine.wrapping_sub(self.end.seen) as usize
    }
}

/// Free slots claimed by [`Producer::reserve`]. Dropped without [`commit`](Self::commit), the ring is as
/// before.
pub struct Reserved<'a> {
    end: &'a mut End,
    room: usize,
    begun: usize,
}

impl Reserved<'_> {
    /// Slots claimed and not yet begun.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.room - self.begun
    }

    /// The next slot's first `len` bytes, to be written; `None` if all claimed slots are begun, or `len` is
    /// more than a slot holds.
    #[inline]
    pub fn next_slot(&mut self, len: usize) -> Option<SharedSliceMut<'_>> {
        if self.begun == self.room || len > self.end.payload {
            return None;
        }
        let at = self.end.offset(self.end.mine.wrapping_add(self.begun as u64));
        self.begun += 1;
        // SAFETY: `attach` checked that all slots lie inside, aligned and writable; `at` is the start of one.
        let length = unsafe { self.end.slots.word(at) };
        // Relaxed: the Release of `publish` covers it.
        length.store(len as u64, Ordering::Relaxed);
        // SAFETY: `len` is at most the payload, so the bytes lie inside the slot; the slot is free, so the far side
        // has no business with it, and `&mut self` keeps other views away.
        Some(unsafe { self.end.slots.view_mut_at(at + SLOT_HEADER_BYTES, len) })
    }

    /// Gives the slots begun to the consumer, with one store; returns how many.
    #[inline]
    pub fn commit(self) -> usize {
        self.end.mine = self.end.mine.wrapping_add(self.begun as u64);
        self.end.publish();
        self.begun
    }
}

/// The end that takes bytes out.
pub struct Consumer {
    end: End,
}

impl Consumer {
    /// Attaches to a fresh ring: `near` is this side's control block (word 0: head, written here), `slots` the
    /// slots and `far` the producer's control block (word 0: tail; both read only).
    ///
    /// # Errors
    /// [`RingError::TooSmall`], [`RingError::Misaligned`] (words need 8 bytes) or [`RingError::ReadOnly`].
    pub fn attach(geometry: Geometry, near: Area, slots: Area, far: Area) -> Result<Self, RingError> {
        Ok(Self {
            end: End::attach(geometry, near, slots, far, Access::ReadOnly)?,
        })
    }

    /// Copies the oldest slot's bytes out and gives the slot back; how many bytes, or `None` if there is none.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] if `out` is shorter than the bytes (they stay in the ring);
    /// [`RingError::Corrupt`] if the producer's index or the length is impossible.
    #[inline]
    pub fn pop(&mut self, out: &mut [u8]) -> Result<Option<usize>, RingError> {
        let mut chunk = self.read(1)?;
        let Some(bytes) = chunk.next_slot()? else {
            return Ok(None);
        };
        let len = bytes.len();
        if len > out.len() {
            return Err(too_long(len, out.len()));
        }
        bytes.copy_to(out);
        chunk.release();
        Ok(Some(len))
    }

    /// Slots to take, by a fresh look at the producer's index. May grow at any moment.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if that index is impossible.
    #[inline]
    pub fn ready(&mut self) -> Result<usize, RingError> {
        // An honest producer's tail is at most a capacity ahead of head.
        let high = self.end.mine.wrapping_add(self.end.mask as u64 + 1);
        self.end.look("shared ring, producer's index", high)?;
        Ok(self.ready_seen())
    }

    /// The oldest slots, up to `n`, to be copied out of in place and given back together.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if the producer's index is impossible.
    #[inline]
    pub fn read(&mut self, n: usize) -> Result<Chunk<'_>, RingError> {
        let mut ready = self.ready_seen();
        if ready < n {
            ready = self.ready()?;
        }
        Ok(Chunk {
            end: &mut self.end,
            len: ready.min(n),
            seen: 0,
        })
    }

    #[inline(always)]
    fn ready_seen(&self) -> usize {
        self.end.seen.wrapping_sub(self.end.mine) as usize
    }
}

/// Slots that [`Consumer::read`] found, oldest first. Dropped without [`release`](Self::release), they stay.
pub struct Chunk<'a> {
    end: &'a mut End,
    len: usize,
    seen: usize,
}

impl Chunk<'_> {
    /// Slots not yet looked at.
    #[inline]
    #[must_use]
    pub fn left(&self) -> usize {
        self.len - self.seen
    }

    /// The next slot's bytes, as many as its length says; `None` after the last slot.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if the length is more than a slot holds; the slot counts as not looked at.
    #[inline]
    pub fn next_slot(&mut self) -> Result<Option<SharedSlice<'_>>, RingError> {
        if self.seen == self.len {
            return Ok(None);
        }
        let at = self.end.offset(self.end.mine.wrapping_add(self.seen as u64));
        // SAFETY: `attach` checked that all slots lie inside, aligned; `at` is the start of one; only read.
        let length = unsafe { self.end.slots.word(at) };
        // Relaxed: the Acquire of `look` covers it. Copied once: what is checked is what is used.
        let len = length.load(Ordering::Relaxed);
        if len > self.end.payload as u64 {
            return Err(corrupt(
                "shared ring, length of a slot",
                len,
                0,
                self.end.payload as u64,
            ));
        }
        self.seen += 1;
        // SAFETY: `len` is at most the payload, so the bytes lie inside the slot.
        Ok(Some(unsafe {
            self.end.slots.view_at(at + SLOT_HEADER_BYTES, len as usize)
        }))
    }

    /// Gives the slots looked at back to the producer, with one store; returns how many.
    #[inline]
    pub fn release(self) -> usize {
        self.end.mine = self.end.mine.wrapping_add(self.seen as u64);
        self.end.publish();
        self.seen
    }
}

#[cold]
fn too_long(needed: usize, got: usize) -> RingError {
    RingError::TooSmall {
        what: "shared ring, bytes of one slot",
        needed,
        got,
    }
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "shared::Producer({} slots of {} bytes)",
            self.end.mask + 1,
            self.end.payload
        )
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "shared::Consumer({} slots of {} bytes)",
            self.end.mask + 1,
            self.end.payload
        )
    }
}
