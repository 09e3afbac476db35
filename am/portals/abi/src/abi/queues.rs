//! The functions of event queues.

use std::ffi::{c_int, c_uint};

use doorbell_fabric::ni::{EqGet, EqHandle};

use super::types::PtlEvent;
use super::{give, taken, wanted};
use crate::call::{ARG_INVALID, Code, EQ, EQ_DROPPED, EQ_EMPTY, NI, guarded, kind_of, on, on_core};
use crate::state::Core;
use crate::wait::{Limit, wait};

/// Allocates a queue for `count` events.
///
/// # Safety
/// `eq_handle` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlEQAlloc(ni_handle: u32, count: u64, eq_handle: *mut u32) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        wanted(eq_handle)?;
        let count = usize::try_from(count).map_err(|_| ARG_INVALID)?;
        let eq = on(kind, |ni| ni.eq_alloc(count))?;
        // SAFETY: the caller's promise.
        unsafe { give(eq_handle, eq.0) }
    })
}

/// Frees a queue.
#[unsafe(no_mangle)]
pub extern "C" fn PtlEQFree(eq_handle: u32) -> c_int {
    guarded(|| on(kind_of(eq_handle, EQ)?, |ni| ni.eq_free(EqHandle(eq_handle))))
}

/// An event, and whether some before it were lost.
type Found = (PtlEvent, bool);

fn oldest(core: &mut Core, handle: u32) -> Result<Option<Found>, Code> {
    let kind = kind_of(handle, EQ)?;
    Ok(match on_core(core, kind, |ni| ni.eq_get(EqHandle(handle)))? {
        EqGet::Empty => None,
        EqGet::Event(event) => Some((event.into(), false)),
        EqGet::Dropped(event) => Some((event.into(), true)),
    })
}

/// # Safety
/// `event` is null or writable.
unsafe fn give_event(event: *mut PtlEvent, found: Option<Found>) -> Result<(), Code> {
    let (value, dropped) = found.ok_or(EQ_EMPTY)?;
    // SAFETY: passed on.
    unsafe { give(event, value) }?;
    if dropped { Err(EQ_DROPPED) } else { Ok(()) }
}

/// The oldest event.
///
/// # Safety
/// `event` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlEQGet(eq_handle: u32, event: *mut PtlEvent) -> c_int {
    guarded(|| {
        kind_of(eq_handle, EQ)?;
        wanted(event)?;
        let found = crate::wait::glance(|core| oldest(core, eq_handle))?;
        // SAFETY: the caller's promise.
        unsafe { give_event(event, found) }
    })
}

/// The oldest event, when there is one.
///
/// # Safety
/// `event` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlEQWait(eq_handle: u32, event: *mut PtlEvent) -> c_int {
    guarded(|| {
        kind_of(eq_handle, EQ)?;
        wanted(event)?;
        let found = wait(Limit::Never, |core| oldest(core, eq_handle))?;
        // SAFETY: the caller's promise.
        unsafe { give_event(event, found) }
    })
}

/// The oldest event of the first of these queues that has one.
///
/// # Safety
/// `eq_handles` is null or points to `size` handles; `event` and `which` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlEQPoll(
    eq_handles: *const u32,
    size: c_uint,
    timeout: u32,
    event: *mut PtlEvent,
    which: *mut c_uint,
) -> c_int {
    guarded(|| {
        wanted(event)?;
        wanted(which)?;
        if size == 0 {
            return Err(ARG_INVALID);
        }
        for at in 0..size {
            // SAFETY: one of `size` handles.
            let handle = unsafe { taken(eq_handles.wrapping_add(at as usize)) }?;
            kind_of(handle, EQ)?;
        }
        let found = wait(Limit::of_ms(timeout), |core| {
            for at in 0..size {
                // SAFETY: one of `size` handles.
                let handle = unsafe { taken(eq_handles.wrapping_add(at as usize)) }?;
                if let Some(found) = oldest(core, handle)? {
                    return Ok(Some((found, at)));
                }
            }
            Ok(None)
        })?;
        let (found, at) = found.ok_or(EQ_EMPTY)?;
        // SAFETY: the caller's promise.
        unsafe { give(which, at) }?;
        // SAFETY: the caller's promise.
        unsafe { give_event(event, Some(found)) }
    })
}
