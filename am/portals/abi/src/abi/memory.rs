//! Memory of descriptors and entries, as the interface takes it.

use std::ffi::c_void;

use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::Memory;

use super::types::PtlIovec;
use crate::call::{ARG_INVALID, Code};

/// Bytes that one piece may have: addresses behind it still are addresses.
const LONGEST: u64 = isize::MAX as u64;

/// The bytes at `start`, or of the `length` pieces there.
///
/// # Safety
/// The bytes stay readable and writable for as long as the descriptor or entry is there, and what was begun
/// with it; an array of pieces for as long as the call lasts.
///
/// # Errors
/// `PTL_ARG_INVALID` for more pieces than `most`, or a null array of them.
pub(super) unsafe fn memory(
    start: *mut c_void,
    length: u64,
    is_pieces: bool,
    most: u32,
) -> Result<Memory, Code> {
    if length == 0 {
        return Ok(Memory::Empty);
    }
    if !is_pieces {
        // SAFETY: passed on.
        return Ok(Memory::One(unsafe { landing(start, length) }));
    }
    if start.is_null() || length > u64::from(most) {
        return Err(ARG_INVALID);
    }
    let array = start.cast::<PtlIovec>();
    let pieces = (0..length as usize).map(|at| {
        let piece = array.wrapping_add(at);
        // SAFETY: one of `length` pieces, by the caller's promise.
        let piece = unsafe { piece.read_unaligned() };
        // SAFETY: passed on.
        unsafe { landing(std::ptr::with_exposed_provenance_mut(piece.base), piece.length) }
    });
    Ok(Memory::Many(pieces.collect()))
}

/// # Safety
/// The conditions of [`memory`].
unsafe fn landing(start: *mut c_void, length: u64) -> Landing {
    let length = length.min(LONGEST) as usize;
    if length == 0 {
        return Landing::EMPTY;
    }
    // SAFETY: the caller's promise. That no other code writes there meanwhile is the C program's affair, as
    // ever with Portals: its bytes are moved with raw copies only.
    Landing::Loan(unsafe { MutLoan::new(start.cast(), length) })
}
