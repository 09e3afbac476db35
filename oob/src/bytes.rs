//! Bytes that many hold and nobody changes: what a message consists of. Sending one object to a thousand peers, relaying
//! it and keeping it until it is acknowledged are all the same memory.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A part of shared, immutable bytes. A clone is a count, not a copy.
#[derive(Clone, Default)]
pub struct Bytes {
    whole: Arc<[u8]>,
    from: u32,
    length: u32,
}

impl Bytes {
    /// The part of `whole` from `from` on that is `length` bytes long, if there is one.
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

    /// The same memory from `from` on, `length` bytes of it, if there are so many.
    #[must_use]
    pub fn slice(&self, from: usize, length: usize) -> Option<Self> {
        let end = from.checked_add(length)?;
        if end > self.len() {
            return None;
        }
        Self::part(self.whole.clone(), self.from as usize + from, length)
    }

    /// Whether both are the same memory.
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
    /// All of it; nothing, if it is 4 GiB or longer (which no message is).
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
