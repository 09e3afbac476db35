//! Many slots at a time: claimed, written in place and committed with one store; read in place and released
//! with one store.

use super::{Consumer, Producer};
use crate::error::Full;

/// Free slots claimed by [`Producer::reserve`]. Dropped without [`commit`](Self::commit), what was written
/// is dropped and the ring is as before.
pub struct Reserved<'a, T> {
    pub(super) producer: &'a mut Producer<T>,
    pub(super) room: usize,
    pub(super) written: usize,
}

impl<T> Reserved<'_, T> {
    /// Slots claimed and not yet written.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.room - self.written
    }

    /// Writes the next slot.
    ///
    /// # Errors
    /// [`Full`] hands the value back when all claimed slots are written.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), Full<T>> {
        if self.written == self.room {
            return Err(Full(value));
        }
        let at = self.producer.end.mine.wrapping_add(self.written);
        // SAFETY: the slot is among the claimed ones, which are free.
        unsafe { self.producer.end.slot(at).put(value) };
        self.written += 1;
        Ok(())
    }

    /// Writes slots from the iterator until either ends; returns how many.
    #[inline]
    #[cfg(not(loom))]
    pub fn fill(&mut self, values: impl IntoIterator<Item = T>) -> usize {
        let mut values = values.into_iter();
        let before = self.written;
        let from = self.producer.end.mine.wrapping_add(before);
        for (run, len) in self.producer.end.runs(from, self.room - before) {
            for i in 0..len {
                let Some(value) = values.next() else {
                    return self.written - before;
                };
                // SAFETY: `i` is within the run of claimed slots.
                let slot = unsafe { run.add(i) };
                // SAFETY: the slot is free; no other thread reads it until it is committed.
                unsafe { slot.write(value) };
                // Counted one by one: if the iterator panics, `drop` knows what is there.
                self.written += 1;
            }
        }
        self.written - before
    }

    /// Gives what was written to the consumer, with one store; returns how many values that were.
    #[inline]
    pub fn commit(mut self) -> usize {
        let n = std::mem::take(&mut self.written);
        self.room = 0;
        self.producer.publish(n);
        n
    }
}

impl<T> Drop for Reserved<'_, T> {
    #[inline]
    fn drop(&mut self) {
        for i in 0..self.written {
            let at = self.producer.end.mine.wrapping_add(i);
            // SAFETY: written by this reservation and not committed.
            drop(unsafe { self.producer.end.slot(at).take() });
        }
    }
}

/// Values that [`Consumer::read`] found, oldest first. Dropped without [`release`](Self::release) or
/// [`drain`](Self::drain), they stay in the ring.
pub struct Chunk<'a, T> {
    pub(super) consumer: &'a mut Consumer<T>,
    pub(super) len: usize,
}

impl<'a, T> Chunk<'a, T> {
    /// Values in the chunk.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values in place: a run up to the end of the slots, and a run from their start.
    #[inline]
    #[must_use]
    #[cfg(not(loom))]
    pub fn as_slices(&self) -> (&[T], &[T]) {
        let [(a, n), (b, m)] = self.consumer.end.runs(self.consumer.end.mine, self.len);
        // SAFETY: `n` slots from `a` on hold values, which stay there while this chunk is borrowed.
        let first = unsafe { std::slice::from_raw_parts(a.cast_const(), n) };
        // SAFETY: likewise `m` slots from `b` on.
        let second = unsafe { std::slice::from_raw_parts(b.cast_const(), m) };
        (first, second)
    }

    /// Drops the oldest `n` values (all, if there are fewer) in place and gives their slots back, with one
    /// store; returns how many.
    #[inline]
    pub fn release(self, n: usize) -> usize {
        let n = n.min(self.len);
        if std::mem::needs_drop::<T>() {
            let mut drain = self.drain();
            return drain.by_ref().take(n).count();
        }
        self.consumer.publish(n);
        n
    }

    /// Moves the values out, one by one. The slots of those taken are given back with one store when the
    /// iterator is dropped; values not taken stay in the ring.
    #[inline]
    #[must_use]
    pub fn drain(self) -> Drain<'a, T> {
        Drain {
            at: self.consumer.end.mine,
            left: self.len,
            consumer: self.consumer,
        }
    }
}

/// Iterator of [`Chunk::drain`].
pub struct Drain<'a, T> {
    consumer: &'a mut Consumer<T>,
    at: usize,
    left: usize,
}

impl<T> Iterator for Drain<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if self.left == 0 {
            return None;
        }
        // SAFETY: the slot holds a value, and each is read once: `drop` gives the slots back that were read.
        let value = unsafe { self.consumer.end.slot(self.at).take() };
        self.at = self.at.wrapping_add(1);
        self.left -= 1;
        Some(value)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> ExactSizeIterator for Drain<'_, T> {}

impl<T> Drop for Drain<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let taken = self.at.wrapping_sub(self.consumer.end.mine);
        self.consumer.publish(taken);
    }
}
