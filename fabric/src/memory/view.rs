//! Memory of a peer that is read where it lies.

use std::sync::Arc;

use super::{RegionSlice, SharedBytes};
use crate::map::Map;

/// A part of a peer's memory, which it keeps mapped, for reading alone.
///
/// The bytes stay readable for as long as a clone of it lives, also when the peer has ended or was lost. The
/// peer can write them at any time; one that keeps the agreement leaves them alone until the reader has
/// released them.
///
/// ```
/// use doorbell_fabric::map::{Object, Protection};
/// use doorbell_fabric::memory::View;
///
/// let object = Object::new("example", 4096)?;
/// let map = std::sync::Arc::new(object.map(Protection::ReadOnly)?);
/// let view = View::of(&map, 4000, 96).unwrap();
/// drop((object, map));
/// assert_eq!(view.bytes().to_vec(), [0; 96]);
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
#[derive(Clone, Debug)]
pub struct View {
    memory: Memory,
    at: usize,
    length: usize,
}

#[derive(Clone, Debug)]
enum Memory {
    /// An object of another process.
    Mapped(Arc<Map>),
    /// A region of this process.
    Own(RegionSlice),
}

impl View {
    /// `length` bytes from `at` of a map; `None` when they are not all inside, or the map may have less
    /// memory than its length.
    #[inline]
    pub fn of(map: &Arc<Map>, at: u64, length: u64) -> Option<Self> {
        let (at, length) = (usize::try_from(at).ok()?, usize::try_from(length).ok()?);
        if map.grows() || at.checked_add(length)? > map.len() {
            return None;
        }
        let memory = Memory::Mapped(Arc::clone(map));
        Some(Self { memory, at, length })
    }

    /// Returns the number of bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes, which the peer may still write.
    #[inline]
    pub fn bytes(&self) -> SharedBytes<'_> {
        match &self.memory {
            Memory::Mapped(map) => {
                let start = map.as_ptr().wrapping_add(self.at);
                // SAFETY: inside the map, checked by `of`; it stays mapped while `self`, which the bytes
                // borrow, holds it, and backed by memory: an object that does not grow was checked to have
                // all of it.
                unsafe { SharedBytes::new(start, self.length) }
            }
            Memory::Own(slice) => slice.as_shared(),
        }
    }
}

impl From<RegionSlice> for View {
    /// Memory of this process, which stands for a peer's: that of a peer that is simulated.
    fn from(slice: RegionSlice) -> Self {
        Self {
            at: 0,
            length: slice.len(),
            memory: Memory::Own(slice),
        }
    }
}
