//! A table of which only the touched pages exist. Ten thousand economies of ten thousand peers each would
//! take 3.2 GB, most of it for peers without any event yet; the program's own table
//! ([`Dense`](doorbell_am::credit::Dense)) holds the same at all times, which a test compares.

use doorbell_am::credit::{Peer, Peers};

/// Entries of one page.
const PAGE: usize = 4;
const NONE: u32 = u32::MAX;

/// Entries by rank, made by `fresh` when they are first changed.
pub(super) struct Paged<T> {
    /// Where each page is.
    index: Box<[u32]>,
    pages: Vec<[T; PAGE]>,
    count: u32,
    fresh: Box<dyn Fn(u32) -> T + Send + Sync>,
}

impl<T: Copy> Paged<T> {
    pub(super) fn of(count: u32, fresh: impl Fn(u32) -> T + Send + Sync + 'static) -> Self {
        Self {
            index: vec![NONE; (count as usize).div_ceil(PAGE)].into(),
            pages: Vec::new(),
            count,
            fresh: Box::new(fresh),
        }
    }

    #[inline]
    pub(super) fn at(&self, rank: u32) -> Option<T> {
        if rank >= self.count {
            return None;
        }
        let page = self.index[rank as usize / PAGE];
        if page == NONE {
            return Some((self.fresh)(rank));
        }
        Some(self.pages[page as usize][rank as usize % PAGE])
    }

    #[inline]
    pub(super) fn at_mut(&mut self, rank: u32) -> Option<&mut T> {
        if rank >= self.count {
            return None;
        }
        let page = &mut self.index[rank as usize / PAGE];
        if *page == NONE {
            *page = self.pages.len() as u32;
            let first = rank - rank % PAGE as u32;
            // Ranks beyond the last are never looked up.
            let page = std::array::from_fn(|at| (self.fresh)((first + at as u32).min(self.count - 1)));
            self.pages.push(page);
        }
        Some(&mut self.pages[*page as usize][rank as usize % PAGE])
    }

    pub(super) fn taken(&self) -> usize {
        size_of_val(&*self.index) + self.pages.capacity() * size_of::<[T; PAGE]>()
    }
}

impl<T> std::fmt::Debug for Paged<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} entries, {} pages", self.count, self.pages.len())
    }
}

impl Peers for Paged<Peer> {
    fn new(count: u32, fresh: impl Fn(u32) -> Peer + Send + Sync + 'static) -> Self {
        Self::of(count, fresh)
    }

    #[inline]
    fn get(&self, rank: u32) -> Option<Peer> {
        self.at(rank)
    }

    #[inline]
    fn get_mut(&mut self, rank: u32) -> Option<&mut Peer> {
        self.at_mut(rank)
    }

    fn bytes(&self) -> usize {
        self.taken()
    }
}
