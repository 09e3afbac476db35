//! One place for one value, which a protocol hands from thread to thread. Shared by [`crate::spsc`] and
//! [`crate::mpsc`].

use std::mem::MaybeUninit;

use crate::sync::UnsafeCell;

/// A place that holds a value or nothing; which of the two, and whose it is, only the ring knows.
#[cfg_attr(not(loom), repr(transparent))]
pub(crate) struct Slot<T>(UnsafeCell<MaybeUninit<T>>);

impl<T> Slot<T> {
    #[inline]
    pub(crate) fn empty() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Puts a value in.
    ///
    /// # Safety
    /// No other thread touches the slot meanwhile. (What was in it is forgotten, not dropped.)
    #[inline(always)]
    pub(crate) unsafe fn put(&self, value: T) {
        // SAFETY: the cell's pointer is valid for writes, and exclusive by the caller's promise.
        self.0.with_mut(|slot| unsafe { slot.cast::<T>().write(value) });
    }

    /// Moves the value out.
    ///
    /// # Safety
    /// The slot holds a value, no other thread writes it meanwhile, and it is not taken again.
    #[inline(always)]
    pub(crate) unsafe fn take(&self) -> T {
        // SAFETY: the cell's pointer is valid for reads, and there is a value, by the caller's promise.
        self.0.with(|slot| unsafe { slot.cast::<T>().read() })
    }

    /// The value in place.
    ///
    /// # Safety
    /// The slot holds a value, and no thread writes or takes it while the reference lives.
    #[inline(always)]
    #[cfg(not(loom))]
    pub(crate) unsafe fn get(&self) -> &T {
        // SAFETY: as in `take`.
        self.0.with(|slot| unsafe { &*slot.cast::<T>() })
    }
}
