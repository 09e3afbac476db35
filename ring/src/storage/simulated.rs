//! Areas as loom sees them: the same methods over checked cells and loom's atomics.

use super::{Access, AtomicU32, AtomicU64, RingError, SharedSlice, SharedSliceMut};
use crate::sync::{Arc, UnsafeCell};

const GRANULE: usize = 8;

/// The memory of one loom model: named words are atomics, everything else is checked cells of 8 bytes.
pub struct Cells {
    words: Vec<(usize, AtomicU64)>,
    halves: Vec<(usize, AtomicU32)>,
    granules: Vec<UnsafeCell<[u8; GRANULE]>>,
}

impl Cells {
    fn word(&self, at: usize) -> &AtomicU64 {
        match self.words.iter().find(|(offset, _)| *offset == at) {
            Some((_, word)) => word,
            None => panic!("the model did not declare a word at offset {at}"),
        }
    }

    fn half(&self, at: usize) -> &AtomicU32 {
        match self.halves.iter().find(|(offset, _)| *offset == at) {
            Some((_, half)) => half,
            None => panic!("the model did not declare a word of 32 bits at offset {at}"),
        }
    }

    pub(crate) fn read(&self, at: usize, to: &mut [u8]) {
        for (i, byte) in to.iter_mut().enumerate() {
            let cell = &self.granules[(at + i) / GRANULE];
            // SAFETY: loom checks that no write races with this read.
            *byte = cell.with(|granule| unsafe { (*granule)[(at + i) % GRANULE] });
        }
    }

    pub(crate) fn write(&self, at: usize, from: &[u8]) {
        for (i, byte) in from.iter().enumerate() {
            let cell = &self.granules[(at + i) / GRANULE];
            // SAFETY: loom checks that no access races with this write.
            cell.with_mut(|granule| unsafe { (*granule)[(at + i) % GRANULE] = *byte });
        }
    }
}

// SAFETY: loom's cells check every access; the granules are plain bytes.
unsafe impl Send for Cells {}
// SAFETY: as above.
unsafe impl Sync for Cells {}

/// A run of bytes of one loom model.
pub struct Area {
    cells: Arc<Cells>,
    offset: usize,
    len: usize,
    access: Access,
}

impl Area {
    /// `len` zeroed bytes, of which the 8-byte words at the offsets of `words` are atomics.
    pub fn loom(len: usize, words: impl IntoIterator<Item = usize>) -> Self {
        Self::loom_with_halves(len, words, [])
    }

    /// Makes areas with atomics of 32 bits at the offsets of `halves`.
    pub fn loom_with_halves(
        len: usize,
        words: impl IntoIterator<Item = usize>,
        halves: impl IntoIterator<Item = usize>,
    ) -> Self {
        let halves = halves.into_iter().map(|at| (at, AtomicU32::new(0))).collect();
        let words = words.into_iter().map(|at| (at, AtomicU64::new(0))).collect();
        let granules = (0..len.div_ceil(GRANULE))
            .map(|_| UnsafeCell::new([0; GRANULE]))
            .collect();
        Self {
            cells: Arc::new(Cells {
                words,
                halves,
                granules,
            }),
            offset: 0,
            len,
            access: Access::ReadWrite,
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns what the model may do with the bytes.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The offset replaces the address: it has the same alignment.
    pub fn address(&self) -> usize {
        self.offset
    }

    /// Cuts the first `n` bytes off as an area of their own.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] if there are fewer.
    pub fn split_to(&mut self, n: usize) -> Result<Self, RingError> {
        if n > self.len {
            return Err(RingError::TooSmall {
                what: "area",
                needed: n,
                got: self.len,
            });
        }
        let front = Self {
            cells: self.cells.clone(),
            offset: self.offset,
            len: n,
            access: self.access,
        };
        self.offset += n;
        self.len -= n;
        Ok(front)
    }

    /// A second area over the same bytes.
    ///
    /// # Safety
    /// As outside loom; here loom checks it.
    pub unsafe fn alias(&self) -> Self {
        Self {
            cells: self.cells.clone(),
            ..*self
        }
    }

    /// Returns the same bytes, refused for writing from now on.
    pub fn into_read_only(mut self) -> Self {
        self.access = Access::ReadOnly;
        self
    }

    /// # Safety
    /// None here: what the real storage is promised, this one checks.
    pub(crate) unsafe fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at + 8 <= self.len);
        self.cells.word(self.offset + at)
    }

    /// # Safety
    /// None here, as for [`word`](Self::word).
    pub(crate) unsafe fn half(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= self.len);
        self.cells.half(self.offset + at)
    }

    pub(crate) unsafe fn view_at(&self, at: usize, len: usize) -> SharedSlice<'_> {
        assert!(at + len <= self.len);
        SharedSlice::of_cells(&self.cells, self.offset + at, len)
    }

    pub(crate) unsafe fn view_mut_at(&self, at: usize, len: usize) -> SharedSliceMut<'_> {
        assert!(at + len <= self.len);
        SharedSliceMut::of_cells(&self.cells, self.offset + at, len)
    }
}
