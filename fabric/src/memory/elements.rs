//! Elements of memory that the processor's atomic instructions change, also against other threads.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use super::MutLoan;

/// Changes an element of a width by a loop of compare and swap; the value in memory order, as a little-endian
/// number.
macro_rules! update {
    ($atomic:ty, $whole:ty, $start:expr, $change:expr) => {{
        // SAFETY: inside the loan and aligned, both checked by the caller; `MutLoan` promises that the bytes
        // stay mapped and writable, and that others reach them through raw pointers or atomics alone.
        let element = unsafe { <$atomic>::from_ptr($start.cast()) };
        let number = |value: $whole| u64::from(<$whole>::from_le(value));
        let changed = element.fetch_update(SeqCst, SeqCst, |old| {
            $change(number(old)).map(|new: u64| (new as $whole).to_le())
        });
        match changed {
            Ok(old) | Err(old) => number(old),
        }
    }};
}

impl MutLoan {
    /// Changes the element of `width` bytes at offset `at` in one atomic step, and returns what it was: its
    /// bytes in memory order, as a little-endian number. `change` returns the new value, or `None` where
    /// nothing is to be stored; it may be called more than once, when others change the element meanwhile.
    /// `None`, and nothing done, where the element is not all inside, not aligned, or not 1, 2, 4 or 8 bytes
    /// wide.
    ///
    /// ```
    /// use doorbell_fabric::memory::MutLoan;
    /// let room = MutLoan::of_static(Box::leak(Box::new([0u64; 2])).as_mut_slice().as_mut_bytes());
    /// # use zerocopy::IntoBytes;
    /// assert_eq!(room.update(8, 8, |old| Some(old + 5)), Some(0));
    /// assert_eq!(room.update(8, 8, |_| None), Some(5));
    /// assert_eq!(room.update(9, 8, |old| Some(old)), None);
    /// ```
    #[inline]
    pub fn update(&self, at: usize, width: usize, change: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        let mut change = change;
        let start = self.start.wrapping_add(at);
        let inside = at.checked_add(width)? <= self.length;
        if !inside || width == 0 || !start.addr().is_multiple_of(width) {
            return None;
        }
        Some(match width {
            1 => update!(AtomicU8, u8, start, change),
            2 => update!(AtomicU16, u16, start, change),
            4 => update!(AtomicU32, u32, start, change),
            8 => update!(AtomicU64, u64, start, change),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(8))]
    struct Words([u8; 32]);

    fn room() -> MutLoan {
        MutLoan::of_static(&mut Box::leak(Box::new(Words([0; 32]))).0)
    }

    #[test]
    fn each_width_changes_its_own_bytes() {
        for width in [1, 2, 4, 8] {
            let room = room();
            room.write(0, &[0xff; 32]);
            let new = 0x0807_0605_0403_0201u64;
            let mask = u64::MAX >> (64 - 8 * width);
            assert_eq!(room.update(8, width, |_| Some(new)), Some(mask), "{width}");
            let bytes = room.as_shared().to_vec();
            assert_eq!(bytes[8..8 + width], new.to_le_bytes()[..width]);
            assert!(
                bytes[..8]
                    .iter()
                    .chain(&bytes[8 + width..])
                    .all(|byte| *byte == 0xff)
            );
        }
    }

    #[test]
    fn what_is_outside_unaligned_or_too_wide_is_left_alone() {
        let room = room();
        for (at, width) in [
            (32, 1),
            (25, 8),
            (28, 8),
            (1, 2),
            (4, 8),
            (0, 16),
            (0, 3),
            (0, 0),
            (usize::MAX, 2),
        ] {
            assert_eq!(room.update(at, width, |_| Some(1)), None, "{at} {width}");
        }
        assert_eq!(room.as_shared().to_vec(), [0; 32]);
    }

    #[test]
    fn no_update_of_several_threads_is_lost() {
        let room = room();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        room.update(16, 4, |old| Some(old + 1));
                    }
                });
            }
        });
        assert_eq!(room.update(16, 4, |_| None), Some(40_000));
    }
}
