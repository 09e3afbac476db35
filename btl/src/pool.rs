//! A pool of values of one type, used again and again, each named by an index of that type.
//!
//! The pool grows to its bound as values are needed and keeps what it has made: a value that is given back is
//! handed out again as it is. Giving back never allocates. Unlike [`doorbell_ring::slab::Slab`], whose
//! handles travel on the wire and go stale, indices stay inside this crate, and none is kept after its value
//! is given back.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// The index of a `T` in its pool: not to be mixed up with that of anything else.
pub(crate) struct Id<T>(u32, PhantomData<fn() -> T>);

impl<T> Id<T> {
    /// The index of nothing: the end of a list that is linked through the values.
    pub(crate) const NONE: Self = Self(u32::MAX, PhantomData);

    #[inline]
    fn at(self) -> usize {
        self.0 as usize
    }
}

impl<T> Clone for Id<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Id<T> {}

impl<T> PartialEq for Id<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return out.write_str("none");
        }
        write!(out, "#{}", self.0)
    }
}

/// Values of one type, `most` of them at most.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    all: Vec<T>,
    free: Vec<Id<T>>,
    most: usize,
}

impl<T> Pool<T> {
    /// An empty pool that grows to `most` values.
    pub(crate) const fn new(most: usize) -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
            most,
        }
    }

    /// Returns how many values can be taken.
    #[inline]
    pub(crate) fn available(&self) -> usize {
        self.most - self.active()
    }

    /// Returns how many values are taken.
    #[inline]
    pub(crate) fn active(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Returns how many values were made.
    #[cfg(test)]
    pub(crate) fn made(&self) -> usize {
        self.all.len()
    }

    /// Takes the value that was given back last, or one that `make` makes; `None` when all are taken.
    #[inline]
    pub(crate) fn take(&mut self, make: impl FnOnce() -> T) -> Option<Id<T>> {
        match self.free.pop() {
            Some(id) => Some(id),
            None => self.grow(make),
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, make: impl FnOnce() -> T) -> Option<Id<T>> {
        if self.all.len() == self.most {
            return None;
        }
        let id = Id(self.all.len() as u32, PhantomData);
        self.all.push(make());
        // Room for all, so that giving back never allocates.
        self.free.reserve(self.all.len() - self.free.len());
        Some(id)
    }

    /// Gives a value back.
    #[inline]
    pub(crate) fn give(&mut self, id: Id<T>) {
        self.free.push(id);
    }
}

impl<T> Index<Id<T>> for Pool<T> {
    type Output = T;
    #[inline]
    fn index(&self, id: Id<T>) -> &T {
        &self.all[id.at()]
    }
}

impl<T> IndexMut<Id<T>> for Pool<T> {
    #[inline]
    fn index_mut(&mut self, id: Id<T>) -> &mut T {
        &mut self.all[id.at()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_made_when_needed_and_used_again() {
        let mut pool = Pool::new(3);
        assert_eq!((pool.available(), pool.made()), (3, 0));
        let taken: Vec<_> = std::iter::from_fn(|| pool.take(|| [0; 8])).collect();
        assert_eq!(
            (taken.len(), pool.available(), pool.active(), pool.made()),
            (3, 0, 3, 3)
        );
        pool[taken[1]] = [7; 8];
        pool.give(taken[1]);
        assert_eq!((pool.available(), pool.take(|| [0; 8])), (1, Some(taken[1])));
        assert_eq!(pool[taken[1]], [7; 8], "as it was given back");
    }

    #[test]
    fn giving_back_does_not_allocate() {
        let mut pool = Pool::new(100);
        let taken: Vec<_> = (0..100).filter_map(|n| pool.take(|| n)).collect();
        let room = pool.free.capacity();
        taken.into_iter().for_each(|id| pool.give(id));
        assert_eq!((pool.free.capacity(), pool.active()), (room, 0));
    }
}
