//! All unsafe views of mapped memory: ring areas, single words, and the bytes of a peer's region.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use doorbell_fabric::error::RailError;
use doorbell_fabric::map::{Map, Object, Protection};
use doorbell_fabric::memory::{MutLoan, SharedBytes, View};
use doorbell_ring::Area;
use doorbell_ring::storage::{Access, Mapped};

/// A map divided in two: words at its front for single values, and the rest for one ring.
///
/// Its two halves are given out by different types, so nothing in this process reaches the same bytes both
/// ways.
pub(crate) struct Sides {
    pub(crate) words: WordsOf,
    pub(crate) area: Area,
}

/// The words at the front of a map. A store to a read-only map is ignored instead of faulting.
#[derive(Clone)]
pub(crate) struct WordsOf {
    map: Arc<Map>,
    count: usize,
}

/// Maps `object`: its first `words` 64-bit words (a multiple of eight) as words, the rest as an area.
pub(crate) fn sides(object: &Object, protection: Protection, words: usize) -> Result<Sides, RailError> {
    let front = words * size_of::<u64>();
    if !front.is_multiple_of(64) || front >= object.len() {
        return Err(RailError::hostile("passed a memory object that is too short"));
    }
    let map = Arc::new(object.map(protection)?);
    let access = match protection {
        Protection::ReadOnly => Access::ReadOnly,
        Protection::ReadWrite => Access::ReadWrite,
    };
    let start = NonNull::new(map.as_ptr().wrapping_add(front))
        .ok_or_else(|| RailError::hostile("passed a memory object that cannot be mapped"))?;
    let owner: Arc<Map> = Arc::clone(&map);
    // SAFETY: the bytes after `front` stay mapped while `owner` lives, with this access; the words in front
    // of them are all that `WordsOf` touches, and the map itself is given to no other code.
    let storage = unsafe { Mapped::new(start, map.len() - front, access, owner) };
    Ok(Sides {
        words: WordsOf { map, count: words },
        area: Area::new(storage),
    })
}

/// Maps `object` for its first `count` words alone.
pub(crate) fn words(object: &Object, protection: Protection, count: usize) -> Result<WordsOf, RailError> {
    if count * size_of::<u64>() > object.len() {
        return Err(RailError::hostile("passed a memory object that is too short"));
    }
    Ok(WordsOf {
        map: Arc::new(object.map(protection)?),
        count,
    })
}

/// A peer's region, mapped to be read.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    map: Arc<Map>,
}

impl Window {
    pub(crate) fn of(object: &Object) -> Result<Self, RailError> {
        let map = Arc::new(object.map(Protection::ReadOnly)?);
        Ok(Self { map })
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns `length` bytes from `at`, which stay mapped; `None` if they are not all inside.
    #[inline]
    pub(crate) fn view(&self, at: u64, length: u64) -> Option<View> {
        View::of(&self.map, at, length)
    }

    /// Returns `length` bytes from `at`; `None` if they are not all inside.
    #[inline]
    pub(crate) fn bytes(&self, at: u64, length: usize) -> Option<SharedBytes<'_>> {
        let at = usize::try_from(at).ok()?;
        if at.checked_add(length)? > self.map.len() {
            return None;
        }
        // SAFETY: inside the map, checked above; it stays mapped while `self`, which the bytes borrow, holds
        // it, and backed by memory, because `Object` refuses what can shrink.
        Some(unsafe { SharedBytes::new(self.map.as_ptr().wrapping_add(at), length) })
    }
}

/// A peer's region, mapped to be written.
#[derive(Debug)]
pub(crate) struct WritableWindow {
    map: Map,
}

impl WritableWindow {
    pub(crate) fn of(object: &Object) -> Result<Self, RailError> {
        let map = object.map(Protection::ReadWrite)?;
        Ok(Self { map })
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns `length` bytes from `at`; `None` if they are not all inside.
    #[inline]
    pub(crate) fn bytes(&self, at: u64, length: u64) -> Option<SharedBytes<'_>> {
        let (at, length) = (usize::try_from(at).ok()?, usize::try_from(length).ok()?);
        if at.checked_add(length)? > self.map.len() {
            return None;
        }
        // SAFETY: inside the map, checked above; it stays mapped while `self`, which the bytes borrow, holds
        // it, and backed by memory, because `Object` refuses what can shrink.
        Some(unsafe { SharedBytes::new(self.map.as_ptr().wrapping_add(at), length) })
    }

    /// Writes bytes at `at`. Returns whether they all have room inside; if not, nothing is written.
    #[inline]
    pub(crate) fn write(&self, at: u64, bytes: SharedBytes<'_>) -> bool {
        let (Ok(at), length) = (usize::try_from(at), bytes.len()) else {
            return false;
        };
        if at.checked_add(length).is_none_or(|end| end > self.map.len()) {
            return false;
        }
        // SAFETY: inside the map, checked above, which is mapped to be written while `self` lives, and backed
        // by memory, because `Object` refuses what can shrink. All other code reaches these bytes through raw
        // pointers or atomics; the loan is used in this call only.
        let room = unsafe { MutLoan::new(self.map.as_ptr().wrapping_add(at), length) };
        room.write_shared(0, bytes) == length
    }
}

impl WordsOf {
    /// Allocates a part of the whole map's object, if that is one that grows.
    pub(crate) fn allocate(&self, part: Range<usize>) -> Result<(), RailError> {
        self.map.allocate(part)
    }

    #[inline]
    fn at(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.count {
            return None;
        }
        let word = self.map.as_ptr().cast::<AtomicU64>().wrapping_add(index);
        // SAFETY: inside the map (`count` words were checked to be), aligned to its page, mapped while `self`
        // lives; all access to it in this process is through atomics.
        Some(unsafe { &*word })
    }

    /// Loads the word at `index`; zero beyond the end.
    #[inline]
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.at(index).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// Stores a word before all later loads and stores of this thread. Does nothing beyond the end or in a
    /// read-only map.
    #[inline]
    pub(crate) fn store(&self, index: usize, value: u64) {
        self.store_as(index, value, Ordering::SeqCst);
    }

    /// Stores a word after everything that this thread did before. Later loads of other words may come first.
    #[inline]
    pub(crate) fn put(&self, index: usize, value: u64) {
        self.store_as(index, value, Ordering::Release);
    }

    #[inline]
    fn store_as(&self, index: usize, value: u64, order: Ordering) {
        if self.map.protection() == Protection::ReadWrite
            && let Some(word) = self.at(index)
        {
            word.store(value, order);
        }
    }
}

#[cfg(test)]
impl WordsOf {
    /// Test equipment: the same map for another thread.
    pub(crate) fn far(&self) -> Self {
        Self {
            map: Arc::clone(&self.map),
            count: self.count,
        }
    }

    /// Test equipment: any word of the map, as a peer that keeps to its maps but to nothing else would write
    /// it.
    pub(crate) fn scribble(&self, index: usize, value: u64) {
        assert!(index < self.map.len() / 8 && self.map.protection() == Protection::ReadWrite);
        let word = self.map.as_ptr().cast::<AtomicU64>().wrapping_add(index);
        // SAFETY: inside the map and aligned, checked above; writable; every reader of it accepts any bytes.
        unsafe { &*word }.store(value, Ordering::Relaxed);
    }
}
