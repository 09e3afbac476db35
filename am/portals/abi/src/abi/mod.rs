//! The functions of `portals4.h`. The only unsafe code of this crate is here: pointers of C programs, and
//! what keeps a process that forks or ends in order.
//!
//! What C promises: a pointer is null, or points to as many readable or writable values as the function
//! needs, for as long as the call lasts; the memory of descriptors and entries for as long as those are
//! there. Everything else is checked: handles, numbers and null pointers get the return codes of the
//! reference. No unwind leaves a function (`crate::call::guarded`).

mod counts;
mod entries;
mod library;
mod memory;
mod moves;
mod queues;
mod table;
mod triggered;

pub use counts::*;
pub use doorbell_fabric::ni::layout as types;
pub use entries::*;
pub use library::*;
pub use moves::*;
pub use queues::*;
pub use table::*;
pub use triggered::*;

use std::ffi::c_int;

use crate::call::{ARG_INVALID, Code};

/// Writes what a call gives back.
///
/// # Safety
/// `to` is null or writable.
///
/// # Errors
/// `PTL_ARG_INVALID` for null.
unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(ARG_INVALID);
    }
    // SAFETY: not null, so it is writable, by the caller's promise; C programs keep their types' alignment.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads what a call is given.
///
/// # Safety
/// `from` is null or readable.
///
/// # Errors
/// `PTL_ARG_INVALID` for null.
unsafe fn taken<T: Copy>(from: *const T) -> Result<T, Code> {
    if from.is_null() {
        return Err(ARG_INVALID);
    }
    // SAFETY: not null, so it is readable, by the caller's promise.
    Ok(unsafe { from.read() })
}

/// A place for what a call will give back: looked at before anything is done.
fn wanted<T>(to: *mut T) -> Result<(), Code> {
    if to.is_null() { Err(ARG_INVALID) } else { Ok(()) }
}

const fn invalid<T>(value: Option<T>) -> Result<T, c_int>
where
    T: Copy,
{
    match value {
        Some(value) => Ok(value),
        None => Err(ARG_INVALID),
    }
}
