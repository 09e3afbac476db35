//! The functions of counting events.

use std::ffi::{c_int, c_uint};

use doorbell_fabric::ni::{Count, CtHandle};

use super::types::PtlCtEvent;
use super::{give, taken, wanted};
use crate::call::{ARG_INVALID, CT, CT_NONE_REACHED, Code, FAIL, NI, guarded, kind_of, on, on_core};
use crate::state::Core;
use crate::wait::{Limit, glance, wait};

/// A counting event, at zero.
///
/// # Safety
/// `ct_handle` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlCTAlloc(ni_handle: u32, ct_handle: *mut u32) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        wanted(ct_handle)?;
        let ct = on(kind, |ni| ni.ct_alloc())?;
        // SAFETY: the caller's promise.
        unsafe { give(ct_handle, ct.0) }
    })
}

/// Frees it, with what waits for it.
#[unsafe(no_mangle)]
pub extern "C" fn PtlCTFree(ct_handle: u32) -> c_int {
    guarded(|| on(kind_of(ct_handle, CT)?, |ni| ni.ct_free(CtHandle(ct_handle))))
}

/// Discards what waits for it.
#[unsafe(no_mangle)]
pub extern "C" fn PtlCTCancelTriggered(ct_handle: u32) -> c_int {
    guarded(|| {
        on(kind_of(ct_handle, CT)?, |ni| {
            ni.ct_cancel_triggered(CtHandle(ct_handle))
        })
    })
}

fn value(core: &mut Core, handle: u32) -> Result<Count, Code> {
    on_core(core, kind_of(handle, CT)?, |ni| ni.ct_get(CtHandle(handle)))
}

fn reached(core: &mut Core, handle: u32, test: u64) -> Result<Option<Count>, Code> {
    let count = value(core, handle)?;
    Ok(count.reaches(test).then_some(count))
}

/// Reads the value of a counting event.
///
/// # Safety
/// `event` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlCTGet(ct_handle: u32, event: *mut PtlCtEvent) -> c_int {
    guarded(|| {
        kind_of(ct_handle, CT)?;
        wanted(event)?;
        let count = glance(|core| value(core, ct_handle))?;
        // SAFETY: the caller's promise.
        unsafe { give(event, count.into()) }
    })
}

/// Waits for the value of a counting event to reach the test, or for any failure.
///
/// # Safety
/// `event` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlCTWait(ct_handle: u32, test: u64, event: *mut PtlCtEvent) -> c_int {
    guarded(|| {
        kind_of(ct_handle, CT)?;
        wanted(event)?;
        let count = wait(Limit::Never, |core| reached(core, ct_handle, test))?;
        // SAFETY: the caller's promise.
        unsafe { give(event, count.ok_or(FAIL)?.into()) }
    })
}

/// The value of the first of these that has reached its test.
///
/// # Safety
/// `ct_handles` and `tests` are null or point to `size` values; `event` and `which` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlCTPoll(
    ct_handles: *const u32,
    tests: *const u64,
    size: c_uint,
    timeout: u32,
    event: *mut PtlCtEvent,
    which: *mut c_uint,
) -> c_int {
    guarded(|| {
        wanted(event)?;
        wanted(which)?;
        if size == 0 {
            return Err(ARG_INVALID);
        }
        let one = |at: c_uint| {
            // SAFETY: one of `size` handles.
            let handle = unsafe { taken(ct_handles.wrapping_add(at as usize)) }?;
            // SAFETY: one of `size` tests.
            let test = unsafe { taken(tests.wrapping_add(at as usize)) }?;
            kind_of(handle, CT).map(|_| (handle, test))
        };
        for at in 0..size {
            one(at)?;
        }
        let found = wait(Limit::of_ms(timeout), |core| {
            for at in 0..size {
                let (handle, test) = one(at)?;
                if let Some(count) = reached(core, handle, test)? {
                    return Ok(Some((count, at)));
                }
            }
            Ok(None)
        })?;
        let (count, at) = found.ok_or(CT_NONE_REACHED)?;
        // SAFETY: the caller's promise.
        unsafe { give(which, at) }?;
        // SAFETY: the caller's promise.
        unsafe { give(event, count.into()) }
    })
}

/// Sets the value of a counting event.
#[unsafe(no_mangle)]
pub extern "C" fn PtlCTSet(ct_handle: u32, new_ct: PtlCtEvent) -> c_int {
    guarded(|| {
        on(kind_of(ct_handle, CT)?, |ni| {
            ni.ct_set(CtHandle(ct_handle), new_ct.into())
        })
    })
}

/// Adds to one of its numbers.
#[unsafe(no_mangle)]
pub extern "C" fn PtlCTInc(ct_handle: u32, increment: PtlCtEvent) -> c_int {
    guarded(|| {
        on(kind_of(ct_handle, CT)?, |ni| {
            ni.ct_inc(CtHandle(ct_handle), increment.into())
        })
    })
}
