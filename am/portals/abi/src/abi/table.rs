//! The portal table.

use std::ffi::{c_int, c_uint};
use std::time::{Duration, Instant};

use doorbell_fabric::ni::{ANY, EqHandle, NiError, PtOptions};

use super::{give, wanted};
use crate::call::{ARG_INVALID, Code, EQ, FAIL, NI, guarded, kind_of, on, on_core};
use crate::state::enter;
use crate::wait::{Limit, wait_on};

/// The value of `PTL_EQ_NONE`.
const EQ_NONE: u32 = 0x3fff_ffff;
/// How long an entry that is being disabled may have operations in progress.
const DRAIN: Duration = Duration::from_secs(60);

/// An event queue, or none.
pub(super) fn queue(handle: u32, kind: doorbell_fabric::ni::Kind) -> Result<Option<EqHandle>, Code> {
    if handle == EQ_NONE {
        return Ok(None);
    }
    if kind_of(handle, EQ)? == kind {
        Ok(Some(EqHandle(handle)))
    } else {
        Err(ARG_INVALID)
    }
}

/// An entry of the portal table.
///
/// # Safety
/// `pt_index` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlPTAlloc(
    ni_handle: u32,
    options: c_uint,
    eq_handle: u32,
    pt_index_req: u32,
    pt_index: *mut u32,
) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        let options = PtOptions(options);
        if !options.is_known() {
            return Err(ARG_INVALID);
        }
        wanted(pt_index)?;
        let eq = queue(eq_handle, kind)?;
        let index = (pt_index_req != ANY).then_some(pt_index_req);
        let index = on(kind, |ni| ni.pt_alloc(options, eq, index))?;
        // SAFETY: the caller's promise.
        unsafe { give(pt_index, index) }
    })
}

/// Frees an entry.
#[unsafe(no_mangle)]
pub extern "C" fn PtlPTFree(ni_handle: u32, pt_index: u32) -> c_int {
    guarded(|| on(kind_of(ni_handle, NI)?, |ni| ni.pt_free(pt_index)))
}

/// Takes no new requests, and returns when those that had begun have ended.
#[unsafe(no_mangle)]
pub extern "C" fn PtlPTDisable(ni_handle: u32, pt_index: u32) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        let until = Limit::At(Instant::now() + DRAIN);
        let (core, drained) = wait_on(enter(), until, None, |core| {
            on_core(core, kind, |ni| {
                Ok::<_, NiError>(ni.pt_disable(pt_index)?.then_some(()))
            })
        });
        drop(core);
        drained?.ok_or(FAIL)
    })
}

/// Takes new requests again.
#[unsafe(no_mangle)]
pub extern "C" fn PtlPTEnable(ni_handle: u32, pt_index: u32) -> c_int {
    guarded(|| on(kind_of(ni_handle, NI)?, |ni| ni.pt_enable(pt_index)))
}
