//! Bounded mailbox: many threads send, one thread receives.
//!
//! For commands to a dedicated progress thread. Every slot carries a stamp that shows which side may use it:
//!
//! ```text
//!   stamp == position              free: the sender that claims this position may write
//!   stamp == position + 1          full: the receiver may take
//!   stamp == position + capacity   taken: free again, one lap later
//! ```
//!
//! A sender claims a position by moving `tail` with a compare-and-swap, writes the value, then stamps the
//! slot; the receiver only looks at stamps. Algorithm: Dmitry Vyukov, "Bounded MPMC queue" (1024cores.net);
//! with one receiver, its side needs no compare-and-swap. A sender that is descheduled between claim and
//! stamp holds up what was sent after it, for as long as it sleeps; nothing else ever waits.
//!
//! ```
//! let (sender, mut receiver) = doorbell_ring::mpsc::mailbox(8)?;
//! std::thread::scope(|s| {
//!     for n in 0..4 {
//!         let sender = sender.clone();
//!         s.spawn(move || sender.send(n).unwrap());
//!     }
//! });
//! let mut got: Vec<i32> = std::iter::from_fn(|| receiver.recv()).collect();
//! got.sort();
//! assert_eq!(got, [0, 1, 2, 3]);
//! # Ok::<(), doorbell_ring::RingError>(())
//! ```

use crate::error::{RingError, check_capacity};
use crate::pad::Pad;
use crate::slot::Slot;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering};

/// Makes a mailbox of `capacity` slots.
///
/// # Errors
/// [`RingError::Capacity`] unless `capacity` is a power of two from 2 to 2³¹ (with one slot, "full" and "free
/// a lap later" would be the same stamp); [`RingError::NoMemory`] if the slots cannot be allocated.
pub fn mailbox<T>(capacity: usize) -> Result<(Sender<T>, Receiver<T>), RingError> {
    const WHAT: &str = "mpsc mailbox";
    check_capacity(WHAT, capacity, 2, 1 << 31)?;
    let mut slots = Vec::new();
    slots
        .try_reserve_exact(capacity)
        .map_err(|_| RingError::NoMemory {
            what: WHAT,
            bytes: capacity.saturating_mul(size_of::<Stamped<T>>()),
        })?;
    slots.extend((0..capacity).map(|i| Stamped {
        stamp: AtomicUsize::new(i),
        value: Slot::empty(),
    }));
    let shared = Arc::new(Shared {
        tail: Pad(AtomicUsize::new(0)),
        left: Pad(AtomicUsize::new(0)),
        closed: AtomicBool::new(false),
        senders: AtomicUsize::new(1),
        slots: slots.into_boxed_slice(),
    });
    let table = Table {
        slots: shared.slots.as_ptr(),
        mask: capacity - 1,
    };
    let sender = Sender {
        table,
        shared: Arc::clone(&shared),
    };
    Ok((
        sender,
        Receiver {
            head: 0,
            table,
            shared,
        },
    ))
}

struct Stamped<T> {
    stamp: AtomicUsize,
    value: Slot<T>,
}

struct Shared<T> {
    /// Next position to be claimed by a sender.
    tail: Pad<AtomicUsize>,
    /// Where the receiver was when it was dropped; what lies between here and tail is dropped at the end.
    left: Pad<AtomicUsize>,
    /// The receiver is gone.
    closed: AtomicBool,
    /// Number of senders alive.
    senders: AtomicUsize,
    slots: Box<[Stamped<T>]>,
}

// SAFETY: values move between threads through the slots, so `T: Send` is what it takes; the stamps give each
// slot to one thread at a time.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

/// Where the slots are: each end keeps a copy beside its `Arc`, which keeps them alive.
struct Table<T> {
    slots: *const Stamped<T>,
    mask: usize,
}

impl<T> Clone for Table<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Table<T> {}

impl<T> Table<T> {
    /// # Safety
    /// The slots must be alive, and stay so as long as the reference.
    #[inline(always)]
    unsafe fn slot<'a>(self, position: usize) -> &'a Stamped<T> {
        // SAFETY: masked, the position is below the capacity.
        let slot = unsafe { self.slots.add(position & self.mask) };
        // SAFETY: alive by the caller's promise; slots are cells and atomics, shared by all threads.
        unsafe { &*slot }
    }

    /// Takes the value at `head`, if it is there.
    ///
    /// # Safety
    /// The slots must be alive, and no other thread may be taking.
    #[inline(always)]
    unsafe fn take(self, head: usize) -> Option<T> {
        // SAFETY: passed on.
        let slot = unsafe { self.slot(head) };
        // Acquire pairs with the Release stamp in `send`: the value was written before. With Relaxed, the
        // receiver could take what the slot held before.
        if slot.stamp.load(Ordering::Acquire) != head.wrapping_add(1) {
            return None;
        }
        // SAFETY: the stamp is "full", and only the caller takes.
        let value = unsafe { slot.value.take() };
        // Release pairs with the Acquire in `send`: the value was moved out before the next sender writes.
        slot.stamp
            .store(head.wrapping_add(self.mask + 1), Ordering::Release);
        Some(value)
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Relaxed: the last owner of the `Arc` synchronised with all others when they let go.
        let mut head = self.left.load(Ordering::Relaxed);
        let table = Table {
            slots: self.slots.as_ptr(),
            mask: self.slots.len() - 1,
        };
        // SAFETY: the slots are this value's own, and no other handle is left.
        while let Some(value) = unsafe { table.take(head) } {
            drop(value);
            head = head.wrapping_add(1);
        }
    }
}

/// Why a value was not sent; either way it is handed back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Refused<T> {
    /// The mailbox is full: try again later.
    Full(T),
    /// The receiver is gone, so it will never be taken.
    Closed(T),
}

impl<T> Refused<T> {
    /// The value that was refused.
    #[inline]
    pub fn into_inner(self) -> T {
        match self {
            Self::Full(value) | Self::Closed(value) => value,
        }
    }
}

impl<T> std::fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}

/// The end that sends; cloned for every thread that does, or shared.
pub struct Sender<T> {
    table: Table<T>,
    shared: Arc<Shared<T>>,
}

// SAFETY: the table points into `shared`, which is `Send + Sync` for `T: Send`; senders on many threads are
// what the stamps are for.
unsafe impl<T: Send> Send for Sender<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Sender<T> {}

impl<T> Sender<T> {
    /// Sends one value.
    ///
    /// A value sent while the receiver is being dropped may be accepted and dropped unseen; who waits for an
    /// answer looks at [`is_closed`](Self::is_closed) meanwhile.
    ///
    /// # Errors
    /// [`Refused`] hands the value back.
    #[inline]
    pub fn send(&self, value: T) -> Result<(), Refused<T>> {
        let shared = &*self.shared;
        if shared.closed.load(Ordering::Relaxed) {
            return Err(Refused::Closed(value));
        }
        let mut position = shared.tail.load(Ordering::Relaxed);
        loop {
            // SAFETY: `self.shared` keeps the slots alive.
            let slot = unsafe { self.table.slot(position) };
            // Acquire pairs with the Release stamp in `take`: the receiver has moved the old value out. With
            // Relaxed, it could be overwritten while it is being moved.
            let turn = slot.stamp.load(Ordering::Acquire).wrapping_sub(position) as isize;
            if turn == 0 {
                // Relaxed on both outcomes: tail only hands out positions; the stamps carry the ordering.
                match shared.tail.compare_exchange_weak(
                    position,
                    position.wrapping_add(1),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        // SAFETY: the stamp was "free", and the position is this thread's alone.
                        unsafe { slot.value.put(value) };
                        // Release pairs with the Acquire in `take`; see there.
                        slot.stamp.store(position.wrapping_add(1), Ordering::Release);
                        return Ok(());
                    }
                    Err(now) => position = now,
                }
            } else {
                let now = shared.tail.load(Ordering::Relaxed);
                // Behind: the slot still holds the value of a lap ago, and tail is here: full. Otherwise
                // another sender was faster, and the check is repeated at the new position.
                if turn < 0 && now == position {
                    return Err(Refused::Full(value));
                }
                position = now;
            }
        }
    }

    /// Whether the receiver is gone.
    #[inline]
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // Acquire pairs with the Release in the receiver's drop: what it did before is visible.
        self.shared.closed.load(Ordering::Acquire)
    }

    /// The number of slots.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.table.mask + 1
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        // Relaxed: this sender is counted already, so the count cannot reach 0 meanwhile.
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        Self {
            table: self.table,
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `is_abandoned`: what was sent before is there to be taken.
        self.shared.senders.fetch_sub(1, Ordering::Release);
    }
}

/// The end that receives. `Send`, but of one thread at a time.
pub struct Receiver<T> {
    head: usize,
    table: Table<T>,
    shared: Arc<Shared<T>>,
}

// SAFETY: the table points into `shared`, which is `Send + Sync` for `T: Send`; a receiver has one owner at a
// time.
unsafe impl<T: Send> Send for Receiver<T> {}

impl<T> Receiver<T> {
    /// Takes the oldest value; `None` if there is none (or its sender is not done yet).
    #[inline]
    pub fn recv(&mut self) -> Option<T> {
        // SAFETY: `self.shared` keeps the slots alive, and there is one receiver.
        let value = unsafe { self.table.take(self.head) }?;
        self.head = self.head.wrapping_add(1);
        Some(value)
    }

    /// Takes up to `most` values, oldest first; returns how many. A bounded turn of a progress loop.
    #[inline]
    pub fn drain(&mut self, most: usize, mut each: impl FnMut(T)) -> usize {
        for n in 0..most {
            match self.recv() {
                Some(value) => each(value),
                None => return n,
            }
        }
        most
    }

    /// Whether a value is there to be taken.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // Acquire as in `take`, so that "not empty" may be acted upon.
        // SAFETY: `self.shared` keeps the slots alive.
        let slot = unsafe { self.table.slot(self.head) };
        slot.stamp.load(Ordering::Acquire) != self.head.wrapping_add(1)
    }

    /// Whether all senders are gone. What they had sent is still to be taken: look at this first, then
    /// receive until `None`.
    #[inline]
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        // Acquire pairs with the Release of every sender's drop (they form one release sequence).
        self.shared.senders.load(Ordering::Acquire) == 0
    }

    /// The number of slots.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.table.mask + 1
    }
}

impl<T> Drop for Receiver<T> {
    /// Closes the mailbox and drops what is in it, so that a waiter on a value's destructor is released.
    fn drop(&mut self) {
        // Release pairs with the Acquire in `is_closed`.
        self.shared.closed.store(true, Ordering::Release);
        while self.recv().is_some() {}
        // Relaxed: read when the last owner of the `Arc` drops, which synchronises.
        self.shared.left.store(self.head, Ordering::Relaxed);
    }
}

impl<T> std::fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mpsc::Sender({} slots)", self.capacity())
    }
}

impl<T> std::fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mpsc::Receiver({} slots)", self.capacity())
    }
}
