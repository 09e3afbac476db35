//! Memory of our own that is written as plain bytes while it is ours alone, and then shared to be read.

use std::ops::{Deref, DerefMut};

use super::Region;
use crate::error::RailError;

/// A whole [`Region`] of which there is no other handle, and that no other process can map to write it: so
/// its bytes are a slice, as those of any buffer.
///
/// [`Piece::into_region`] shares it: from then on it is read by copies, and by peers where it lies.
/// [`Piece::of`] takes it back when every other handle is gone.
///
/// ```
/// use doorbell_fabric::memory::Piece;
/// let mut piece = Piece::new(5000)?;
/// piece[..4].copy_from_slice(b"lent");
/// let region = piece.into_region();
/// let slice = region.slice(0, 4).unwrap();
/// let region = Piece::of(region).unwrap_err(); // the slice is another handle
/// assert_eq!(slice.as_shared().to_vec(), b"lent");
/// drop(slice);
/// assert_eq!(&Piece::of(region).unwrap()[..4], b"lent");
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
///
/// A region that other processes may map to write it is never one:
///
/// ```
/// use doorbell_fabric::memory::{Piece, Region};
/// assert!(Piece::of(Region::new(8)?).is_err());
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
#[derive(Debug)]
pub struct Piece {
    /// Never cloned while it is here, and never given out by reference.
    region: Region,
}

impl Piece {
    /// Allocates `length` zero bytes.
    ///
    /// # Errors
    /// When memory or descriptors run out, with the requested size; when the kernel is older than 5.1.
    pub fn new(length: usize) -> Result<Self, RailError> {
        Ok(Self {
            region: Region::sealed(length)?,
        })
    }

    /// Takes a region back that was a piece before.
    ///
    /// # Errors
    /// The region, where there is another handle of it, or it was no piece.
    pub fn of(mut region: Region) -> Result<Self, Region> {
        match region.is_exclusive() {
            true => Ok(Self { region }),
            false => Err(region),
        }
    }

    /// Shares it: as a region it is read and written by copies.
    #[must_use]
    pub fn into_region(self) -> Region {
        self.region
    }
}

impl Deref for Piece {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the whole region, mapped while `self`, which the slice borrows, holds its only handle: no
        // code of this process writes it meanwhile, and no other process can map it to write it.
        unsafe { std::slice::from_raw_parts(self.region.start(), self.region.len()) }
    }
}

impl DerefMut for Piece {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; and by the exclusive borrow no other slice of it exists.
        unsafe { std::slice::from_raw_parts_mut(self.region.start(), self.region.len()) }
    }
}
