//! The copies themselves: raw pointers in, each byte fetched once.

use std::ptr;

/// A word that may lie at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Loose<T>(T);

/// Fetches `N` bytes once, in as few words as there are: a volatile array would be fetched byte by byte.
///
/// # Safety
/// `N` bytes must be readable at `from`.
#[inline(always)]
pub(super) unsafe fn fetch<const N: usize>(from: *const u8) -> [u8; N] {
    let mut bytes = [0; N];
    let mut at = 0;
    while at + 8 <= N {
        // SAFETY: the eight bytes at `at` are among the caller's N.
        let word = unsafe { load::<u64>(from.wrapping_add(at)) };
        bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        at += 8;
    }
    if at + 4 <= N {
        // SAFETY: the four bytes at `at` are among the caller's N.
        let word = unsafe { load::<u32>(from.wrapping_add(at)) };
        bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        at += 4;
    }
    while at < N {
        // SAFETY: the byte at `at` is among the caller's N.
        bytes[at] = unsafe { load::<u8>(from.wrapping_add(at)) };
        at += 1;
    }
    bytes
}

/// # Safety
/// A `T`, which is a plain number, must be readable at `from`; any alignment will do.
#[inline(always)]
unsafe fn load<T: Copy>(from: *const u8) -> T {
    // SAFETY: readable by the caller's promise, and the packed type has no alignment.
    unsafe { ptr::read_volatile(from.cast::<Loose<T>>()) }.0
}

/// The sum of `n` bytes as 16-bit words in network order, an odd last byte with a zero behind it, folded to
/// sixteen bits in ones' complement (RFC 1071: the sum of wider words, in whatever byte order, folds to the
/// same).
///
/// # Safety
/// `n` bytes must be readable at `from`.
#[inline]
pub(super) unsafe fn sum(from: *const u8, n: usize) -> u16 {
    let words = n / 4;
    let mut sum = 0u64;
    for word in 0..words {
        // SAFETY: the four bytes of this word are among the caller's n; the packed type has no alignment.
        let word = unsafe { ptr::read(from.wrapping_add(4 * word).cast::<Loose<u32>>()) };
        sum += u64::from(word.0);
    }
    let mut last = [0; 4];
    // SAFETY: the bytes behind the words are among the caller's n, and fewer than four.
    unsafe { ptr::copy(from.wrapping_add(4 * words), last.as_mut_ptr(), n % 4) };
    sum += u64::from(u32::from_ne_bytes(last));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::from_be(sum as u16)
}

/// `memmove`, with up to 32 bytes done in registers: a call costs more than a short payload. Least of many
/// batches on one core (the pairs of `benches/fabric.rs`): 1.3 to 2.3 ns against 3.5 ns by the call; from 33
/// bytes on the call wins.
///
/// # Safety
/// `n` bytes must be readable at `from` and writable at `to`; the two may overlap.
#[inline(always)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, n: usize) {
    match n {
        // SAFETY: exactly the caller's promise.
        33.. => unsafe { ptr::copy(from, to, n) },
        // SAFETY: the caller's promise, for a length of one word to two.
        17..33 => unsafe { copy_ends::<u128>(from, to, n) },
        // SAFETY: as above.
        8..17 => unsafe { copy_ends::<u64>(from, to, n) },
        // SAFETY: as above.
        4..8 => unsafe { copy_ends::<u32>(from, to, n) },
        // SAFETY: as above.
        2..4 => unsafe { copy_ends::<u16>(from, to, n) },
        // SAFETY: as above.
        1 => unsafe { copy_ends::<u8>(from, to, n) },
        0 => {}
    }
    // SAFETY: the statement is empty; it only makes the compiler assume that the bytes at `to` were written
    // again.
    unsafe { std::arch::asm!("/* {0} */", in(reg) to, options(nostack, preserves_flags)) };
}

/// Copies the first word and the last one, which meet or overlap in the middle. Both are fetched before one
/// is stored, so the two ranges may overlap too.
///
/// # Safety
/// The conditions of [`copy`], and `n` is from one to two times the size of `T`.
#[inline(always)]
unsafe fn copy_ends<T: Copy>(from: *const u8, to: *mut u8, n: usize) {
    let last = n - size_of::<T>();
    // SAFETY: a word from the start is within `n` bytes.
    let head = unsafe { ptr::read_unaligned(from.cast::<T>()) };
    // SAFETY: the last word ends where the `n` bytes end.
    let tail = unsafe { ptr::read_unaligned(from.wrapping_add(last).cast::<T>()) };
    // SAFETY: as for the first load, on the other side.
    unsafe { ptr::write_unaligned(to.cast::<T>(), head) };
    // SAFETY: as for the second load, on the other side.
    unsafe { ptr::write_unaligned(to.wrapping_add(last).cast::<T>(), tail) };
}
