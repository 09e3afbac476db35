//! Shared, immutable bytes, which messages consist of. Sending one object to a thousand peers, relaying it
//! and keeping it until it is acknowledged all use the same memory.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A range of shared, immutable bytes. Cloning counts a reference and copies nothing.
#[derive(Clone, Default)]
pub struct Bytes {
    whole: Arc<[u8]>,
    from: u32,
    length: u32,
}

impl Bytes {
    /// Returns the range of `whole` that starts at `from` and has `length` bytes, if it exists.
    #[must_use]
    pub fn part(whole: Arc<[u8]>, from: usize, length: usize) -> Option<Self> {
        let end = from.checked_add(length)?;
        if end > whole.len() {
            return None;
        }
        Some(Self {
            whole,
            from: u32::try_from(from).ok()?,
            length: u32::try_from(length).ok()?,
        })
    }

    /// Returns a range of the same memory, if it exists.
    #[must_use]
    pub fn slice(&self, from: usize, length: usize) -> Option<Self> {
        let end = from.checked_add(length)?;
        if end > self.len() {
            return None;
        }
        Self::part(self.whole.clone(), self.from as usize + from, length)
    }

    /// Whether both refer to the same memory.
    #[must_use]
    pub fn is_same_memory(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.whole, &other.whole) && self.from == other.from && self.length == other.length
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let from = self.from as usize;
        self.whole
            .get(from..from + self.length as usize)
            .unwrap_or_default()
    }
}

impl From<Arc<[u8]>> for Bytes {
    /// Refers to all of it, or to nothing if it has 4 GiB or more (which no message has).
    fn from(whole: Arc<[u8]>) -> Self {
        let length = whole.len();
        Self::part(whole, 0, length).unwrap_or_default()
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Arc::<[u8]>::from(bytes).into()
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Arc::<[u8]>::from(bytes).into()
    }
}

impl<const N: usize> From<&[u8; N]> for Bytes {
    fn from(bytes: &[u8; N]) -> Self {
        bytes.as_slice().into()
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

impl fmt::Debug for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Bytes({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_share_memory_and_end_where_they_should() {
        let whole = Bytes::from(&[1, 2, 3, 4, 5]);
        let part = whole.slice(1, 3).expect("inside");
        assert_eq!(&*part, &[2, 3, 4]);
        assert!(part.is_same_memory(&part.clone()));
        assert!(!part.is_same_memory(&whole));
        assert_eq!(part.slice(1, 2).as_deref(), Some(&[3, 4][..]));
        assert!(part.slice(1, 3).is_none() && part.slice(usize::MAX, 2).is_none());
        assert!(Bytes::default().is_empty());
    }
}
