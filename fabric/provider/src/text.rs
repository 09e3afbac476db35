//! Texts that a client takes into memory of its own.

use std::ffi::{CStr, c_char};
use std::ptr;

/// Writes a text and a zero byte, cut to the memory; nothing where there is none.
///
/// # Safety
/// `to` is null, or `length` bytes at it may be written.
pub(crate) unsafe fn write(text: &[u8], to: *mut c_char, length: usize) {
    if to.is_null() || length == 0 {
        return;
    }
    let count = text.len().min(length - 1);
    // SAFETY: at most `length - 1` bytes.
    unsafe { ptr::copy_nonoverlapping(text.as_ptr().cast(), to, count) };
    // SAFETY: the byte behind them, which is within `length`.
    unsafe { to.wrapping_add(count).write(0) };
}

/// Writes a text to a caller's memory, and returns the pointer to give it: to the text itself, where it has
/// no memory.
///
/// # Safety
/// As for [`write`].
pub(crate) unsafe fn write_or_point(text: &CStr, to: *mut c_char, length: usize) -> *const c_char {
    if to.is_null() || length == 0 {
        return text.as_ptr();
    }
    // SAFETY: by the contract of this function.
    unsafe { write(text.to_bytes(), to, length) };
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_written_to_the_callers_memory_with_its_end() {
        let mut memory = [7 as c_char; 5];
        // SAFETY: four bytes of five.
        let given = unsafe { write_or_point(c"abcdef", memory.as_mut_ptr(), 4) };
        assert_eq!(given, memory.as_ptr());
        assert_eq!(memory.map(|byte| byte as u8), *b"abc\0\x07");
        // SAFETY: as above.
        unsafe { write(b"", memory.as_mut_ptr(), 4) };
        assert_eq!(memory.map(|byte| byte as u8), *b"\0bc\0\x07");
        // SAFETY: null.
        let own = unsafe { write_or_point(c"abc", ptr::null_mut(), 9) };
        // SAFETY: a text of this program.
        assert_eq!(unsafe { CStr::from_ptr(own) }, c"abc");
        // SAFETY: nothing is written.
        unsafe { write(b"abc", ptr::null_mut(), 9) };
    }
}
