//! A table with a row for each rank of the job.

use std::ops::{Index, IndexMut};

use crate::rank::Rank;

/// One `T` for each rank.
#[derive(Debug)]
pub(crate) struct ByRank<T>(Vec<T>);

impl<T> ByRank<T> {
    /// A table of a job of `size` ranks, each of whose rows `make` makes.
    pub(crate) fn new(size: u32, make: impl FnMut(Rank) -> T) -> Self {
        Self((0..size).map(Rank).map(make).collect())
    }

    /// Adds the row of the next rank.
    pub(crate) fn push(&mut self, row: T) {
        self.0.push(row);
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// The row of a number that may be no rank of the job.
    #[inline]
    pub(crate) fn get(&self, rank: Rank) -> Option<&T> {
        self.0.get(rank.index())
    }

    /// The row of a number that may be no rank of the job, to be changed.
    #[inline]
    pub(crate) fn get_mut(&mut self, rank: Rank) -> Option<&mut T> {
        self.0.get_mut(rank.index())
    }

    /// The ranks of all rows.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = Rank> + use<T> {
        (0..self.0.len() as u32).map(Rank)
    }

    /// All rows, in the order of the ranks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

impl<T> Index<Rank> for ByRank<T> {
    type Output = T;

    #[inline]
    fn index(&self, rank: Rank) -> &T {
        &self.0[rank.index()]
    }
}

impl<T> IndexMut<Rank> for ByRank<T> {
    #[inline]
    fn index_mut(&mut self, rank: Rank) -> &mut T {
        &mut self.0[rank.index()]
    }
}
