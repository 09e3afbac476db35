//! Single-producer single-consumer ring of values, for two threads of one process.
//!
//! ```text
//!            tail (written by the producer)           head (written by the consumer)
//!              │ Release ──────────► Acquire            │ Release ──────────► Acquire
//!   Producer ──┘   slots 0 … capacity-1 (power of two)  └── Consumer
//! ```
//!
//! Both indices run freely (they are never reduced to the capacity, only masked at use), so "full" is
//! `tail - head == capacity` and no slot is wasted. Each side keeps its own index in a private field, and a
//! copy of the far one that it refreshes only when the ring looks full or empty: a stream that never fills
//! the ring costs one cache-line transfer per lap and side. This is the design of the crate rtrb; the
//! capacity is a power of two here, so a slot is found with a mask.
//!
//! ```
//! let (mut producer, mut consumer) = doorbell_ring::spsc::ring(4)?;
//! producer.push("hello").unwrap();
//! assert_eq!(consumer.pop(), Some("hello"));
//! assert_eq!(consumer.pop(), None);
//! # Ok::<(), doorbell_ring::RingError>(())
//! ```

mod chunk;

pub use chunk::{Chunk, Drain, Reserved};

use crate::error::{Full, RingError, check_capacity};
use crate::pad::Pad;
use crate::slot::Slot;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering};

/// Makes a ring of `capacity` slots and gives out its two ends.
///
/// # Errors
/// [`RingError::Capacity`] unless `capacity` is a power of two from 1 to 2³¹; [`RingError::NoMemory`] if
/// the slots cannot be allocated.
pub fn ring<T>(capacity: usize) -> Result<(Producer<T>, Consumer<T>), RingError> {
    const WHAT: &str = "spsc ring";
    check_capacity(WHAT, capacity, 1, 1 << 31)?;
    let mut slots = Vec::new();
    slots
        .try_reserve_exact(capacity)
        .map_err(|_| RingError::NoMemory {
            what: WHAT,
            bytes: capacity.saturating_mul(size_of::<T>()),
        })?;
    slots.resize_with(capacity, Slot::empty);
    let shared = Arc::new(Shared {
        head: Pad(AtomicUsize::new(0)),
        tail: Pad(AtomicUsize::new(0)),
        alone: AtomicBool::new(false),
        slots: slots.into_boxed_slice(),
    });
    let end = |shared: &Arc<Shared<T>>| End {
        slots: shared.slots.as_ptr(),
        mask: capacity - 1,
        mine: 0,
        far: 0,
        shared: Arc::clone(shared),
    };
    Ok((Producer { end: end(&shared) }, Consumer { end: end(&shared) }))
}

struct Shared<T> {
    /// Values taken so far. Written by the consumer only.
    head: Pad<AtomicUsize>,
    /// Values put in so far. Written by the producer only.
    tail: Pad<AtomicUsize>,
    /// Set by whichever end is dropped first.
    alone: AtomicBool,
    slots: Box<[Slot<T>]>,
}

// SAFETY: values move from one thread to the other through the slots, so `T: Send` is what it takes; the
// protocol of the two indices gives each slot to one side at a time.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Relaxed: the last owner of the `Arc` synchronised with the other when it let go.
        let mut head = self.head.load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        while head != tail {
            let slot = &self.slots[head & (self.slots.len() - 1)];
            // SAFETY: slots from head to tail hold values, and no other thread is left to take them.
            drop(unsafe { slot.take() });
            head = head.wrapping_add(1);
        }
    }
}

/// What both ends keep in private. In a line of its own: the ends are often made side by side, and each is
/// written at every turn.
#[repr(align(64))]
struct End<T> {
    slots: *const Slot<T>,
    mask: usize,
    /// This side's index: the truth, of which the shared word is a copy for the far side.
    mine: usize,
    /// The far side's index as last read: never ahead of the truth.
    far: usize,
    /// Keeps the slots alive.
    shared: Arc<Shared<T>>,
}

// SAFETY: the pointer is into `shared`, which is `Send` for `T: Send`; an end has one owner at a time.
unsafe impl<T: Send> Send for End<T> {}

impl<T> End<T> {
    #[inline(always)]
    fn slot(&self, index: usize) -> &Slot<T> {
        // SAFETY: masked, the index is below the capacity.
        let slot = unsafe { self.slots.add(index & self.mask) };
        // SAFETY: `shared` keeps the slots alive; they are cells, so a shared reference is no claim on the
        // value.
        unsafe { &*slot }
    }

    /// First `n` slots from `index` on, as a run up to the end of the slots and a run from their start.
    #[inline(always)]
    #[cfg(not(loom))]
    fn runs(&self, index: usize, n: usize) -> [(*mut T, usize); 2] {
        let at = index & self.mask;
        let first = n.min(self.mask + 1 - at);
        // SAFETY: masked, `at` is below the capacity.
        let start = unsafe { self.slots.add(at) };
        // A slot is a transparent cell of a value, so a run of slots is a run of values.
        [
            (start.cast_mut().cast(), first),
            (self.slots.cast_mut().cast(), n - first),
        ]
    }

    fn is_alone(&self) -> bool {
        // Acquire pairs with the Release in `let_go`: what the far side did before it went is visible.
        self.shared.alone.load(Ordering::Acquire)
    }

    fn let_go(&self) {
        self.shared.alone.store(true, Ordering::Release);
    }
}

/// The end that puts values in. `Send`, but of one thread at a time.
pub struct Producer<T> {
    end: End<T>,
}

impl<T> Producer<T> {
    /// Puts one value in.
    ///
    /// # Errors
    /// [`Full`] hands the value back.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), Full<T>> {
        if self.free_seen() == 0 && self.free() == 0 {
            return Err(Full(value));
        }
        let tail = self.end.mine;
        // SAFETY: the slot is free, so no other thread reads it until tail moves past it.
        unsafe { self.end.slot(tail).put(value) };
        self.publish(1);
        Ok(())
    }

    /// Free slots, by a fresh look at the far index. May grow at any moment.
    #[inline]
    pub fn free(&mut self) -> usize {
        // Acquire pairs with the Release of `Consumer::publish`: the consumer has finished reading a slot
        // before it is overwritten here. With Relaxed, a value could be overwritten while it is being taken.
        self.end.far = self.end.shared.head.load(Ordering::Acquire);
        self.free_seen()
    }

    /// Claims up to `n` free slots, to be filled in place and committed together; returns how many it got.
    #[inline]
    pub fn reserve(&mut self, n: usize) -> Reserved<'_, T> {
        let mut free = self.free_seen();
        if free < n {
            free = self.free();
        }
        Reserved {
            producer: self,
            room: free.min(n),
            written: 0,
        }
    }

    /// Puts in as many values of `values` as fit, from the start; returns how many.
    #[inline]
    #[cfg(not(loom))]
    pub fn push_slice(&mut self, values: &[T]) -> usize
    where
        T: Copy,
    {
        let n = self.reserve(values.len()).room;
        let (front, back) = values[..n].split_at(self.end.runs(self.end.mine, n)[0].1);
        for ((run, _), part) in self.end.runs(self.end.mine, n).into_iter().zip([front, back]) {
            // SAFETY: the run has as many free slots as the part has values; no other thread reads them.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), run, part.len()) };
        }
        self.publish(n);
        n
    }

    /// The number of slots.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.end.mask + 1
    }

    /// Whether the consumer has been dropped.
    #[inline]
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.end.is_alone()
    }

    #[inline(always)]
    fn free_seen(&self) -> usize {
        self.end.mask + 1 - self.end.mine.wrapping_sub(self.end.far)
    }

    /// Gives the next `n` slots, which hold values, to the consumer.
    #[inline(always)]
    fn publish(&mut self, n: usize) {
        self.end.mine = self.end.mine.wrapping_add(n);
        // Release pairs with the Acquire of `Consumer::ready`: the values are there before tail shows them.
        // With Relaxed, the consumer could take a slot that still holds what was there before.
        self.end.shared.tail.store(self.end.mine, Ordering::Release);
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.end.let_go();
    }
}

/// The end that takes values out. `Send`, but of one thread at a time.
pub struct Consumer<T> {
    end: End<T>,
}

impl<T> Consumer<T> {
    /// Takes the oldest value out; `None` if there is none.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.ready_seen() == 0 && self.ready() == 0 {
            return None;
        }
        let head = self.end.mine;
        // SAFETY: the slot holds a value, which the producer does not touch until head moves past it.
        let value = unsafe { self.end.slot(head).take() };
        self.publish(1);
        Some(value)
    }

    /// Values to take, by a fresh look at the far index. May grow at any moment.
    #[inline]
    pub fn ready(&mut self) -> usize {
        // Acquire pairs with the Release of `Producer::publish`; see there.
        self.end.far = self.end.shared.tail.load(Ordering::Acquire);
        self.ready_seen()
    }

    /// The oldest value, left where it is.
    #[inline]
    #[cfg(not(loom))]
    pub fn peek(&mut self) -> Option<&T> {
        if self.ready_seen() == 0 && self.ready() == 0 {
            return None;
        }
        let head = self.end.mine;
        // SAFETY: the slot holds a value; the borrow of `self` keeps it from being released meanwhile.
        Some(unsafe { self.end.slot(head).get() })
    }

    /// The oldest values, up to `n`, to be read in place and released together; returns how many it got.
    #[inline]
    pub fn read(&mut self, n: usize) -> Chunk<'_, T> {
        let mut ready = self.ready_seen();
        if ready < n {
            ready = self.ready();
        }
        Chunk {
            consumer: self,
            len: ready.min(n),
        }
    }

    /// Takes values out into `out`, from its start; returns how many.
    #[inline]
    #[cfg(not(loom))]
    pub fn pop_slice(&mut self, out: &mut [T]) -> usize
    where
        T: Copy,
    {
        let n = self.read(out.len()).len;
        let (front, back) = out[..n].split_at_mut(self.end.runs(self.end.mine, n)[0].1);
        for ((run, _), part) in self.end.runs(self.end.mine, n).into_iter().zip([front, back]) {
            // SAFETY: the run has as many values as the part has room; the producer does not touch them.
            unsafe { std::ptr::copy_nonoverlapping(run.cast_const(), part.as_mut_ptr(), part.len()) };
        }
        self.publish(n);
        n
    }

    /// The number of slots.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.end.mask + 1
    }

    /// Whether the producer has been dropped. What it had put in is still to be taken: look at this first,
    /// then pop until `None`.
    #[inline]
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.end.is_alone()
    }

    #[inline(always)]
    fn ready_seen(&self) -> usize {
        self.end.far.wrapping_sub(self.end.mine)
    }

    /// Gives the next `n` slots, whose values are gone, back to the producer.
    #[inline(always)]
    fn publish(&mut self, n: usize) {
        self.end.mine = self.end.mine.wrapping_add(n);
        // Release pairs with the Acquire of `Producer::free`; see there.
        self.end.shared.head.store(self.end.mine, Ordering::Release);
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.end.let_go();
    }
}

impl<T> std::fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "spsc::Producer({} slots)", self.capacity())
    }
}

impl<T> std::fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "spsc::Consumer({} slots)", self.capacity())
    }
}
