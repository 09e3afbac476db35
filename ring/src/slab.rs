//! A fixed number of values, handed out by index, with handles that go stale.
//!
//! A free list by index hands out slots; each slot has a generation that grows when it is handed out and
//! when it comes back. A handle holds both, so a handle kept after its slot was given back is refused, even
//! if the slot has been handed out again since. Handles can be sent over a wire as 64 bits and come back as
//! anything: what they name is checked before it is touched. After construction nothing is allocated.
//!
//! A slab has one owner (no atomics): it belongs to a rail set, and that to one thread.
//!
//! ```
//! let mut slab = doorbell_ring::slab::Slab::new(2)?;
//! let old = slab.insert("first").unwrap();
//! assert_eq!(slab.remove(old)?, "first");
//! let new = slab.insert("second").unwrap();
//! assert!(slab.get(old).is_err(), "same slot, but an older generation");
//! assert_eq!(*slab.get(new)?, "second");
//! # Ok::<(), doorbell_ring::RingError>(())
//! ```

use std::num::NonZeroU64;

use crate::error::{Full, RingError};

/// Most slots that a slab can have: a handle has 24 bits for the slot.
pub const MOST_SLOTS: usize = 1 << INDEX_BITS;

/// Names one use of one slot: 24 bits of slot number below 40 bits of generation.
///
/// A slot whose generation is used up (after 5.5·10¹¹ uses, hours at full speed) is not handed out again, so
/// no handle is ever valid twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Handle(NonZeroU64);

impl Handle {
    #[inline(always)]
    fn new(index: u32, generation: u64) -> Option<Self> {
        NonZeroU64::new(generation << INDEX_BITS | u64::from(index)).map(Self)
    }

    /// Slot number, for tables beside the slab.
    #[inline]
    #[must_use]
    pub fn index(self) -> u32 {
        (self.0.get() & (MOST_SLOTS as u64 - 1)) as u32
    }

    /// Generation of the slot; odd in every handle that a slab gave out.
    #[inline]
    #[must_use]
    pub fn generation(self) -> u64 {
        self.0.get() >> INDEX_BITS
    }

    /// The handle as bits, to be sent.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// A handle of bits from anywhere. Any value will do: the slab refuses what it did not give out. `None`
    /// for 0, which no slab gives out.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> Option<Self> {
        NonZeroU64::new(bits).map(Self)
    }
}

/// Fixed number of values of one type.
pub struct Slab<T> {
    slots: Box<[Slot<T>]>,
    free: FreeList,
}

struct Slot<T> {
    generation: u64,
    value: Option<T>,
}

impl<T> Slab<T> {
    /// A slab of `capacity` slots, all free.
    ///
    /// # Errors
    /// [`RingError::Size`] unless `capacity` is from 1 to [`MOST_SLOTS`]; [`RingError::NoMemory`].
    pub fn new(capacity: usize) -> Result<Self, RingError> {
        let free = FreeList::new(capacity)?;
        let mut slots = Vec::new();
        slots
            .try_reserve_exact(capacity)
            .map_err(|_| no_memory(capacity * size_of::<Slot<T>>()))?;
        slots.resize_with(capacity, || Slot {
            generation: 0,
            value: None,
        });
        Ok(Self {
            slots: slots.into_boxed_slice(),
            free,
        })
    }

    /// Puts a value in. The slot used last is used first: it is still in the cache.
    ///
    /// # Errors
    /// [`Full`] hands the value back.
    #[inline]
    pub fn insert(&mut self, value: T) -> Result<Handle, Full<T>> {
        let Some(index) = self.free.take() else {
            return Err(Full(value));
        };
        let slot = &mut self.slots[index as usize];
        slot.generation += 1;
        slot.value = Some(value);
        Ok(out(index, slot.generation))
    }

    /// The value of a handle.
    ///
    /// # Errors
    /// [`RingError::Stale`], [`RingError::NoSuchSlot`].
    #[inline]
    pub fn get(&self, handle: Handle) -> Result<&T, RingError> {
        match self.slots.get(handle.index() as usize) {
            Some(Slot {
                generation,
                value: Some(value),
            }) if *generation == handle.generation() => Ok(value),
            slot => Err(refuse(handle, slot.map(|slot| slot.generation), self.slots.len())),
        }
    }

    /// The value of a handle, to change.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    #[inline]
    pub fn get_mut(&mut self, handle: Handle) -> Result<&mut T, RingError> {
        let capacity = self.slots.len();
        let Some(slot) = self.slots.get_mut(handle.index() as usize) else {
            return Err(refuse(handle, None, capacity));
        };
        match &mut slot.value {
            Some(value) if slot.generation == handle.generation() => Ok(value),
            _ => Err(refuse(handle, Some(slot.generation), capacity)),
        }
    }

    /// Takes the value of a handle out; the handle and its copies are stale from then on.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    #[inline]
    pub fn remove(&mut self, handle: Handle) -> Result<T, RingError> {
        let capacity = self.slots.len();
        let Some(slot) = self.slots.get_mut(handle.index() as usize) else {
            return Err(refuse(handle, None, capacity));
        };
        if slot.generation != handle.generation() {
            return Err(refuse(handle, Some(slot.generation), capacity));
        }
        let Some(value) = slot.value.take() else {
            return Err(refuse(handle, Some(slot.generation), capacity));
        };
        slot.generation += 1;
        self.free.give_back(handle.index(), slot.generation);
        Ok(value)
    }

    /// Values in the slab.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.left() - self.free.spent
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of slots.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// All values with their handles, by slot. Looks at every slot: for teardown and tools.
    pub fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let value = slot.value.as_ref()?;
            Some((Handle::new(index as u32, slot.generation)?, value))
        })
    }
}

/// Free slots, the one given back last on top.
struct FreeList {
    stack: Box<[u32]>,
    top: usize,
    /// Slots whose generations are used up.
    spent: usize,
}

impl FreeList {
    fn new(capacity: usize) -> Result<Self, RingError> {
        if capacity == 0 || capacity > MOST_SLOTS {
            return Err(RingError::Size {
                what: "slab, slots",
                asked: capacity,
                unit: 1,
                most: MOST_SLOTS,
            });
        }
        let mut stack = Vec::new();
        stack
            .try_reserve_exact(capacity)
            .map_err(|_| no_memory(capacity * 4))?;
        // Slot 0 on top: a fresh slab is used from its start.
        stack.extend((0..capacity as u32).rev());
        Ok(Self {
            stack: stack.into_boxed_slice(),
            top: capacity,
            spent: 0,
        })
    }

    #[inline(always)]
    fn take(&mut self) -> Option<u32> {
        self.top = self.top.checked_sub(1)?;
        self.stack.get(self.top).copied()
    }

    #[inline(always)]
    fn give_back(&mut self, index: u32, generation: u64) {
        if generation >= LAST_GENERATION {
            self.spent += 1;
            return;
        }
        // There is room: what is returned was taken, and only once (by its generation).
        self.stack[self.top] = index;
        self.top += 1;
    }

    #[inline(always)]
    fn left(&self) -> usize {
        self.top
    }
}

/// The handle of a slot just taken: its generation is odd, so the bits are not 0.
#[inline(always)]
fn out(index: u32, generation: u64) -> Handle {
    match Handle::new(index, generation) {
        Some(handle) => handle,
        None => unreachable!("generation {generation} of a taken slot is odd"),
    }
}

#[cold]
fn refuse(handle: Handle, current: Option<u64>, capacity: usize) -> RingError {
    let index = handle.index();
    match current {
        Some(current) => RingError::Stale {
            index,
            generation: handle.generation(),
            current,
        },
        None => RingError::NoSuchSlot {
            index,
            capacity: capacity as u32,
        },
    }
}

#[cold]
fn no_memory(bytes: usize) -> RingError {
    RingError::NoMemory { what: "slab", bytes }
}

impl<T> std::fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slab({} of {} slots taken)", self.len(), self.capacity())
    }
}

const INDEX_BITS: u32 = 24;

/// Even, so a slot retires when it comes back; the next handle would be the last that fits 40 bits.
const LAST_GENERATION: u64 = (1 << (64 - INDEX_BITS)) - 2;
